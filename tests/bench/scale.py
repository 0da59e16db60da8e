"""Growth: what a million events cost that ten thousand do not. Our rival here is ourselves, smaller."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from statistics import median

from tests.bench.result import Result, paired
from tests.bench.tools import serving, write_feed, wrk
from tests.servers import Server

SMALL, MIDDLE, LARGE = 10_000, 100_000, 1_000_000
START_S_MAX = 2.0
ROUNDS = 3

REDIRECTS = """
local number = %d
request = function()
  number = (number * 1103515245 + 12345) %% 2147483648
  return wrk.format("GET", "/feeds/events/0/events/" .. number %% %d)
end
"""


def scale(folder: Path) -> Iterator[Result]:
    """Start, entry redirects, and memory."""
    data = {events: folder / str(events) for events in (SMALL, MIDDLE, LARGE)}
    for events, path in data.items():
        write_feed(path, events)
    starts = [_start_seconds(data[LARGE]) for _ in range(ROUNDS)]
    start = median(starts)
    yield Result("start at 1 M events", start, START_S_MAX, "limit", "s", 1.0, START_S_MAX / start)
    with serving(data[LARGE], ready=False) as large, serving(data[SMALL], ready=False) as small:
        ours, theirs = [], []
        for _ in range(ROUNDS):
            ours.append(_redirects(large, LARGE, folder))
            theirs.append(_redirects(small, SMALL, folder))
        name = "entry redirects at 1 M events"
        yield paired(name, ours, theirs, "at 10 k events", "requests/s", round(1 / 1.2, 3))
    sizes = {events: _memory(data[events], events, folder) for events in (LARGE, MIDDLE)}
    yield Result(
        "memory at 1 M events",
        sizes[LARGE],
        sizes[MIDDLE],
        "at 100 k events",
        "MiB",
        round(1 / 1.2, 3),
        sizes[MIDDLE] / sizes[LARGE],
    )


def _start_seconds(data: Path) -> float:
    """From the start of the process until it answers for the last event."""
    started = time.perf_counter()
    with serving(data, ready=False):
        return time.perf_counter() - started


def _redirects(server: Server, events: int, folder: Path) -> float:
    script = folder / "redirects.lua"
    script.write_text(REDIRECTS % (Random(1).randrange(1 << 30), events))
    return wrk(f"{server.http}/", "-s", str(script))


def _memory(data: Path, events: int, folder: Path) -> float:
    """MiB resident after 3 s of reading archive documents all over the feed, as a busy gateway is."""
    with serving(data, ready=False) as server:
        script = folder / "pages.lua"
        pages = len(list((data / "feeds" / "events" / "0" / "pages").iterdir())) - 1
        script.write_text(REDIRECTS.replace('/events/" ..', '/archive/" ..') % (1, pages))
        wrk(f"{server.http}/", "-s", str(script))
        status = Path(f"/proc/{server.pid}/status").read_text()
        match = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert match is not None, "the kernel tells the size of a process"
        return int(match[1]) / 1024
