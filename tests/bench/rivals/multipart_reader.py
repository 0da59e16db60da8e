"""`python -m tests.bench.rivals.multipart_reader URL LAST`: GET archive documents 0 to LAST and split them.

One aiohttp session, the parser of the `multipart` package, nothing else; prints the events and the seconds.
"""

from __future__ import annotations

import asyncio
import sys
import time

import aiohttp
from multipart import MultipartSegment, PushMultipartParser


class Parser(PushMultipartParser):
    def _create_segment(self, headerlist: list[tuple[str, str]]) -> MultipartSegment:
        return MultipartSegment(headerlist)


async def read(base: str, last: int) -> int:
    events = 0
    async with aiohttp.ClientSession() as session:
        for number in range(last + 1):
            async with session.get(f"{base}/archive/{number}") as response:
                document = await response.read()
                boundary = response.headers["Content-Type"].partition("boundary=")[2]
            with Parser(boundary, max_header_count=64) as parser:
                events += sum(item is None for item in parser.parse(document))
    return events


if __name__ == "__main__":
    started = time.perf_counter()
    count = asyncio.run(read(sys.argv[1], int(sys.argv[2])))
    print(count, time.perf_counter() - started)
