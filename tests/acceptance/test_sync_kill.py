"""kill -9 of sync clients and of the gateway at random moments, while events of all kinds are published.

Six rounds as a rule; WES_KILL_ROUNDS=100 does that many. WES_KILL_SEED repeats the moments of a run.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests import servers
from tests.acceptance.publishing import Publishing
from tests.acceptance.support import lasting_port, log_document, until, wes

ROUNDS = int(os.environ.get("WES_KILL_ROUNDS", "6"))
SEED = int(os.environ.get("WES_KILL_SEED", str(time.time_ns() % 1_000_000)))
LOAD_S = (0.05, 1.0)


class Client:
    """`wes sync URL DEST --follow`, killed and started again; DEST may be an append-only file of lines."""

    def __init__(self, url: str, destination: Path, *, lines: bool = False) -> None:
        self.url = url
        self.destination = destination
        self.lines = lines
        self._log = destination.with_name(f"{destination.name}.log").open("ab")
        self._process: subprocess.Popen[bytes] | None = None
        if lines:
            destination.touch()

    def _arguments(self) -> list[str]:
        if self.lines:
            return [self.url, "-", "--after", str(self.destination)]
        return [self.url, str(self.destination) + ("" if self.destination.suffix else "/")]

    def start(self, *options: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "gateway", "sync", *self._arguments(), *options]
        with self.destination.open("ab") if self.lines else Path(os.devnull).open("wb") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=self._log
            )
        return self._process

    def kill(self) -> None:
        assert self._process is not None
        assert self._process.poll() is None, f"it ended by itself: {self.said()}"
        self._process.kill()
        self._process.wait()
        self.start("--follow")

    def finish(self) -> None:
        """Stop following, then go up to the end."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        # The last kill may be so short ago that nothing in the new process heeds a signal yet.
        assert self._process.wait(30) in (0, -signal.SIGTERM), self.said()
        assert self.start().wait(60) == 0, self.said()

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def said(self) -> str:
        return Path(self._log.name).read_text()[-2_000:]


@pytest.mark.slow
def test_copies_are_exact_whatever_is_killed(tmp_path):
    chance = random.Random(SEED)
    print(f"WES_KILL_SEED={SEED}")
    listen = ("--listen", f"127.0.0.1:{lasting_port()}", "--amqp-listen", "127.0.0.1:0")
    gateway = servers.Server(
        "serve", *listen, "--partitions", "2", "--archive-events-max", "40", data=tmp_path / "data"
    )
    gateway.start()
    clients = {
        "sqlite": Client(gateway.http, tmp_path / "copy.sqlite"),
        "folder": Client(gateway.http, tmp_path / "copy"),
        "lines": Client(gateway.http, tmp_path / "events.ndjson", lines=True),
    }
    publishing = Publishing(gateway, SEED)
    killed: Counter[str] = Counter()
    try:
        publishing.start()
        for client in clients.values():
            client.start("--follow")
        for _ in range(ROUNDS):
            time.sleep(chance.uniform(*LOAD_S))
            victim = chance.choice([*clients, "gateway"])
            killed[victim] += 1
            if victim == "gateway":
                gateway.kill()
                gateway.start()
            else:
                clients[victim].kill()
        before = publishing.published
        until(lambda: publishing.published > before)
        publishing.stop()
        document = until(lambda: _at_rest(gateway))
        for client in clients.values():
            client.finish()
        for name in ("sqlite", "folder"):
            verified = wes("sync", *clients[name]._arguments(), "--verify", "--json")
            assert verified.returncode == 0, verified.stdout + verified.stderr
            assert document["digest"] in verified.stdout
        _check_lines(clients["lines"].destination, document)
        print(
            f"{ROUNDS} rounds, killed: {dict(killed)}; {publishing.published} events; {document['position']}"
        )
    finally:
        publishing.stop()
        for client in clients.values():
            client.close()
        gateway.stop()


def _at_rest(gateway: servers.Server):
    before = log_document(gateway.http)
    time.sleep(0.3)
    after = log_document(gateway.http)
    return after if before == after else None


def _check_lines(path: Path, document) -> None:
    """Every event once, in the order of its feed."""
    ordinals: dict[str, list[int]] = {partition: [] for partition in document["position"]}
    for line in path.read_text().splitlines():
        event = json.loads(line)
        ordinals[event["partition"]].append(event["ordinal"])
    for partition, last in document["position"].items():
        assert ordinals[partition] == list(range(last + 1))
