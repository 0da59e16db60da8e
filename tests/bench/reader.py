"""`python -m tests.bench.reader URL`: read a feed with the library and do nothing with its events.

Prints the events, the seconds, and the memory in MiB after a tenth of the events and at the end.
"""

from __future__ import annotations

import asyncio
import re
import sys
import time
from pathlib import Path

from gateway.sync import feed


def resident() -> float:
    """MiB of this process in memory."""
    match = re.search(r"VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert match is not None, "the kernel tells the size of a process"
    return int(match[1]) / 1024


async def read(url: str, total: int) -> tuple[int, float]:
    events, early = 0, 0.0
    async for _ in feed(url, follow=False):
        events += 1
        if events == total // 10:
            early = resident()
    return events, early


if __name__ == "__main__":
    started = time.perf_counter()
    count, before = asyncio.run(read(sys.argv[1], int(sys.argv[2])))
    print(count, time.perf_counter() - started, before, resident())
