"""kill -9 of the driver and of clients at random moments, while snapshots are built and events published.

Three rounds as a rule; WES_KILL_ROUNDS=30 does that many. WES_KILL_SEED repeats the moments of a run.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from gateway.core.multipart import boundary_of
from gateway.core.snapshots import read_index, read_part
from tests.acceptance.publishing import Publishing
from tests.acceptance.support import get, log_document, until, wes

ROUNDS = int(os.environ.get("WES_KILL_ROUNDS", "3"))
SEED = int(os.environ.get("WES_KILL_SEED", str(time.time_ns() % 1_000_000)))
BUILD_S, SYNC_S = (1.0, 25.0), (0.2, 2.0)
"""After how long a driver or a client is killed; a build takes longer, start of Spark included."""


class Watching(threading.Thread):
    """Looks at what is served, again and again: an index has to be whole from the moment it shows up."""

    def __init__(self, base: str) -> None:
        super().__init__()
        self._base = base
        self._stopping = threading.Event()
        self.seen: set[str] = set()
        self.wrong: list[str] = []

    def stop(self) -> None:
        self._stopping.set()
        self.join()

    def run(self) -> None:
        while not self._stopping.wait(0.02):
            # A problem document, as long as there is none, has no such list.
            for snapshot in get(self._base, "/snapshots/events").json.get("snapshots", ()):
                if snapshot["id"] not in self.seen:
                    self.seen.add(snapshot["id"])
                    self._look(snapshot["href"])

    def _look(self, href: str) -> None:
        answer = get(self._base, href)
        if answer.status != 200:
            self.wrong.append(f"{href}: {answer}")
            return
        index = read_index(answer.body)
        for part in index.parts:
            got = get(self._base, part.uri)
            held = list(read_part(boundary_of(got.header("Content-Type") or ""), got.body))
            if (len(got.body), sha256(got.body).hexdigest(), len(held)) != (
                part.size,
                part.sha256,
                part.count,
            ):
                self.wrong.append(f"{part.uri} is not what {href} says")


def _start(*arguments: str | Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "gateway", *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _kill(process: subprocess.Popen[bytes], *, group: bool) -> None:
    """Kill it, alone or with all that it has started: Java goes on for a moment without its driver.

    One that is done already is left as it is: its number may be another process's by now.
    """
    if process.poll() is None:
        (os.killpg if group else os.kill)(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.slow
def test_no_partial_snapshot_is_ever_served_and_copies_are_exact_whatever_is_killed(start_gateway, tmp_path):
    chance = random.Random(SEED)
    print(f"WES_KILL_SEED={SEED}")
    gateway = start_gateway("--partitions", "2", "--archive-events-max", "40")
    output = gateway.data / "snapshots"
    build = ("snapshot", "build", "--from", gateway.http, "--output", output, "--json")
    publishing, watching = Publishing(gateway, SEED), Watching(gateway.http)
    killed: Counter[str] = Counter()
    started: list[subprocess.Popen[bytes]] = []
    try:
        publishing.start()
        until(lambda: publishing.published > 50)
        watching.start()
        first = wes(*build)
        assert first.returncode == 0, first.stdout + first.stderr
        for _ in range(ROUNDS):
            copy = tmp_path / f"copy-{chance.randrange(3)}.sqlite"
            driver, client = _start(*build), _start("sync", gateway.http, copy)
            started += driver, client
            moments = sorted(((chance.uniform(*BUILD_S), "driver"), (chance.uniform(*SYNC_S), "client")))
            began = time.monotonic()
            for moment, victim in moments:
                time.sleep(max(0.0, began + moment - time.monotonic()))
                process = driver if victim == "driver" else client
                killed[victim if process.poll() is None else f"{victim}, done already"] += 1
                _kill(process, group=chance.random() < 0.5)
            newest = json.loads(get(gateway.http, "/snapshots/events/latest").body)
            assert newest["id"] in watching.seen | {newest["id"]}
        publishing.stop()
        last = wes(*build)
        assert last.returncode == 0, last.stdout + last.stderr
        document = log_document(gateway.http)
        index = _built(last)
        assert (index["digest"], index["entities"]) == (document["digest"], document["entities"])
        for name in ("copy-0", "copy-1", "copy-2", "fresh"):
            done = wes("sync", gateway.http, tmp_path / f"{name}.sqlite", "--verify", "--json")
            assert done.returncode == 0, done.stdout + done.stderr
            assert document["digest"] in done.stdout
        assert sorted(path.name for path in (output / "events" / "staging").glob("*")) == []
    finally:
        for process in started:
            _kill(process, group=True)
        publishing.stop()
        if watching.is_alive():
            watching.stop()
    assert watching.wrong == []
    assert {_built(first)["snapshot"], index["snapshot"]} <= watching.seen
    told = f"{publishing.published} events; {len(watching.seen)} snapshots"
    print(f"{ROUNDS} rounds, killed: {dict(killed)}; {told}")


def _built(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told
