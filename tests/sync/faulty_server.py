"""A server that sends bytes: a feed's answers as they should be, or as a test spoils them on the wire."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from multidict import CIMultiDict

from gateway.core.links import FeedLinks, archive_links, subscription_links
from gateway.sync import ReaderSettings
from gateway.sync.fetch import FetchSettings
from tests.sync.feed_server import Entry, Feed, OurFeed, Reply

REASONS = {200: "OK", 204: "No Content", 301: "Moved Permanently", 302: "Found", 304: "Not Modified"}

QUICK = ReaderSettings(
    fetch=FetchSettings(read_s=0.3, request_s=0.6, retries_max=0, retry_after_max_s=2.0),
    poll_s_min=0.01,
    poll_s_max=0.03,
    wait_s=0,
    trouble_s_min=0.005,
    trouble_s_max=0.05,
    tries_max=6,
    lost_tries_max=4,
)


class NumberedFeed(OurFeed):
    """A feed with Content-IDs and links as this project's gateway has them; `generations` by page."""

    generation = "0123456789abcdef"

    def entry(self, method: str = "PUT", body: bytes = b'{"id":"x"}') -> Entry:
        entry = super().entry(method, body)
        ordinal = self.number - 1
        entry.name = str(ordinal)
        entry.replace("Content-ID", self.content_id(entry.name))
        entry.without("Link")
        entry.headers += [
            ("Link", f'</products/{ordinal}>; rel="about"'),
            ("Link", f'<{self.entry_path(entry.name)}>; rel="self"'),
        ]
        return entry

    def content_id(self, name: str) -> str:
        return f"<{name}.{self.generation}@0.events.example.org>"

    def links(self, page: int) -> list[str]:
        links = FeedLinks("events", "0")
        archived = page < len(self.pages) - 1
        return [archive_links(links, page) if archived else subscription_links(links, page)]


@dataclass
class Request:
    """What a client asked, as much of it as feeds look at."""

    method: str
    path: str
    headers: CIMultiDict[str] = field(default_factory=CIMultiDict)


@dataclass
class Wire:
    """What is sent for one request: bytes, pauses in seconds, and at the end the connection's."""

    steps: Iterable[bytes | float]
    close: bool = False


Fault = Callable[[Request, Reply], "Wire | None"]
"""Spoils an answer, or returns None to let it go as it is."""


def rendered(request: Request, reply: Reply, *more: tuple[str, str]) -> bytes:
    """A response as it should be."""
    head = f"HTTP/1.1 {reply.status} {REASONS.get(reply.status, 'Other')}\r\n"
    for name, value in (*reply.headers.items(), *more):
        head += f"{name}: {value}\r\n"
    if reply.status in (204, 304):
        return f"{head}\r\n".encode()
    if not any(name == "Content-Length" for name, _ in more):
        head += f"Content-Length: {len(reply.body)}\r\n"
    return f"{head}\r\n".encode() + (b"" if request.method == "HEAD" else reply.body)


@asynccontextmanager
async def wired(feed: Feed, fault: Fault = lambda request, reply: None) -> AsyncIterator[str]:
    """The base URL of a server of `feed` whose answers `fault` may spoil."""
    writers: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.add(writer)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                line, *fields = head.rstrip().split("\r\n")
                method, path, _ = line.split(" ")
                headers = CIMultiDict(field.split(": ", 1) for field in fields)
                request = Request(method, path, headers)
                reply = feed.reply(request)
                wire = fault(request, reply) or Wire([rendered(request, reply)])
                for step in wire.steps:
                    if isinstance(step, bytes):
                        writer.write(step)
                        await writer.drain()
                    else:
                        await asyncio.sleep(step)
                if wire.close:
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writers.discard(writer)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for writer in list(writers):
            writer.transport.abort()
        await server.wait_closed()


def content_ids(feed: Feed) -> list[str]:
    """Those of all entries, in order."""
    return [feed.content_id(entry.name) for page in feed.pages for entry in page]
