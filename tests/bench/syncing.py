"""Sync: to nothing and to SQLite, against the bare cost of the same pages; and from a snapshot."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from tests.bench.result import Result, paired
from tests.bench.tools import LOAD_CORE, on_core, serving, write_feed

EVENTS, MANY = 100_000, 1_000_000
ROUNDS = 5
VERSIONS, VERSIONED = 10, 50_000
VERSIONED_ROUNDS = 3


def sync(folder: Path) -> Iterator[Result]:
    """One core each for server and client; memory while a million events pass."""
    write_feed(folder / "data", EVENTS)
    with serving(folder / "data", ready=False) as server:
        base = f"{server.http}/feeds/events/0"
        last = len(list((folder / "data" / "feeds" / "events" / "0" / "pages").iterdir())) - 1
        ours, bare, sqlite = [], [], []
        for number in range(ROUNDS):
            events, seconds, *_ = _run("reader", f"{base}/latest", str(EVENTS))
            assert events == EVENTS, events
            ours.append(events / seconds)
            # `archive/{last}` is still open, and leads to `latest`.
            events, seconds = _run("rivals.multipart_reader", base, str(last))
            assert events == EVENTS, events
            bare.append(events / seconds)
            sqlite.append(_to_sqlite(server.http, folder / f"copy-{number}.sqlite"))
    yield paired("sync to nothing", ours, bare, "bare multipart", "events/s", 0.7)
    yield paired("sync to SQLite", sqlite, bare, "bare multipart", "events/s", None)
    write_feed(folder / "many", MANY)
    with serving(folder / "many", ready=False) as server:
        _, _, early, late = _run("reader", f"{server.http}/feeds/events/0/latest", str(MANY))
    yield Result(
        "sync, memory at 1 M events", late, early, "at 100 k", "MiB", round(1 / 1.2, 3), early / late
    )


def from_snapshot(folder: Path) -> Iterator[Result]:
    """A copy of targets with ten versions each: from their snapshot, against a replay of their feed."""
    data = folder / "data"
    write_feed(data, VERSIONS * VERSIONED, targets=VERSIONED)
    _wes("snapshot", "build", "--from", str(data))
    index = json.loads(next((data / "snapshots" / "events").glob("*/index.json")).read_bytes())
    with serving(data, ready=False) as server:
        seconds: dict[str, list[float]] = {"": [], "--no-snapshot": []}
        for number in range(VERSIONED_ROUNDS):
            for option, taken in seconds.items():
                copy = str(folder / f"copy{option}-{number}.sqlite")
                with on_core(LOAD_CORE):
                    summary = _wes("sync", server.http, copy, *filter(None, (option,)))
                assert (summary["digest"], summary["entities"]) == (index["digest"], VERSIONED), summary
                taken.append(summary["seconds"])
        with urllib.request.urlopen(f"{server.http}/feeds/events/0/latest") as response:
            latest_bytes = len(response.read())
    pages = data / "feeds" / "events" / "0" / "pages"
    replayed = sum(page.stat().st_size for page in pages.iterdir())
    taken_bytes = sum(part["size"] for part in index["parts"]) + latest_bytes
    ours, replay = seconds.values()
    ratio = median(other / mine for mine, other in zip(ours, replay, strict=True))
    yield Result("sync from a snapshot, time", median(ours), median(replay), "replay", "s", 5.0, ratio)
    megabytes = taken_bytes / 1e6, replayed / 1e6
    yield Result("sync from a snapshot, bytes", *megabytes, "replay", "MB", 5.0, megabytes[1] / megabytes[0])


def _wes(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "gateway", *arguments, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def _run(module: str, *arguments: str) -> list[float]:
    with on_core(LOAD_CORE):
        command = [sys.executable, "-m", f"tests.bench.{module}", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [float(word) for word in done.stdout.split()]


def _to_sqlite(url: str, destination: Path) -> float:
    with on_core(LOAD_CORE):
        summary = _wes("sync", url, str(destination))
    assert summary["events"] == EVENTS, summary
    return float(summary["events"] / summary["seconds"])
