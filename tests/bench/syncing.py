"""Sync: a feed read to nothing and to SQLite, against the bare cost of getting and splitting its pages."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.bench.result import Result, paired
from tests.bench.tools import LOAD_CORE, on_core, serving, write_feed

EVENTS, MANY = 100_000, 1_000_000
ROUNDS = 5


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


def _run(module: str, *arguments: str) -> list[float]:
    with on_core(LOAD_CORE):
        command = [sys.executable, "-m", f"tests.bench.{module}", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [float(word) for word in done.stdout.split()]


def _to_sqlite(url: str, destination: Path) -> float:
    command = [sys.executable, "-m", "gateway", "sync", url, str(destination), "--json"]
    with on_core(LOAD_CORE):
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["events"] == EVENTS, summary
    return float(summary["events"] / summary["seconds"])
