"""Processes pinned to a core, load from wrk, and feeds of any size."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gateway.core.event import Event, Method
from gateway.core.identity import FeedName
from gateway.core.pages import FeedSettings, Paginator
from gateway.storage.filestore import FeedStore, feed_folder
from tests.servers import Server, children, free_port, gateway

SERVER_CORE, LOAD_CORE = 0, 1
TIME_MS = 1_700_000_000_000


@contextmanager
def on_core(core: int) -> Iterator[None]:
    """Start processes on one core: they inherit it."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def serving(data: Path, *options: str, core: int = SERVER_CORE, ready: bool = True) -> Iterator[Server]:
    """A gateway on one core."""
    server = gateway(data, *options)
    with on_core(core):
        server.start(ready=ready)
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def serving_on_two_cores(data: Path, *options: str) -> Iterator[Server]:
    """A gateway on one core, and its embedded node, which is its child, on the other."""
    with serving(data, *options) as server:
        for child in children(server.pid):
            for thread in Path(f"/proc/{child}/task").iterdir():
                os.sched_setaffinity(int(thread.name), {LOAD_CORE})
        yield server


@contextmanager
def rival(module: str, *arguments: str, core: int = SERVER_CORE) -> Iterator[str]:
    """A rival server from tests/bench/rivals on one core; yields its URL."""
    port = free_port()
    command = [sys.executable, "-m", f"tests.bench.rivals.{module}", str(port), *arguments]
    with on_core(core):
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        wait_for_port(port)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def wait_for_port(port: int, wait_s: float = 30.0) -> None:
    deadline = time.monotonic() + wait_s
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def wrk(url: str, *options: str, connections: int = 16, seconds: int = 3) -> float:
    """Requests a second from wrk on the other core; every answer must be a success."""
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", *options, url]
    with on_core(LOAD_CORE):
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    match = re.search(r"Requests/sec:\s+([0-9.]+)", done.stdout)
    if match is None or "Non-2xx or 3xx" in done.stdout or "Socket errors" in done.stdout:
        raise RuntimeError(f"wrk on {url}: {done.stdout}{done.stderr}")
    return float(match[1])


def sample_event(number: int, *, targets: int = 100_000, body_bytes: int = 357) -> Event:
    """An event of about the size of a catalogue entry."""
    body = b'{"number":%d,"text":"' % number
    body += b"x" * (body_bytes - len(body) - 2) + b'"}'
    return Event(Method.PUT, f"/things/{number % targets}", "application/json", body, TIME_MS + number)


def write_feed(
    data: Path,
    events: int,
    *,
    log: str = "events",
    events_max: int = 1_000,
    bytes_max: int = 1 << 18,
    targets: int = 100_000,
    start: int = 0,
) -> None:
    """Write a feed of that many events straight into a data folder, as if it had come from a log.

    With `start`, it has that many already.
    """
    settings = FeedSettings(FeedName("localhost", log, "0"), events_max, bytes_max)
    store = FeedStore(feed_folder(data, log, "0"), settings)
    paginator = Paginator(settings, store.head.page, store.head.data)
    for number in range(start, events):
        paginator.add(sample_event(number, targets=targets), f"{number:020d}")
        if number % 50_000 == 49_999 or number == events - 1:
            store.append(paginator.take())
    store.close()
