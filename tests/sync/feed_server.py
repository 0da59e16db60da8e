"""A server of the draft that is not ours: other URLs, other Content-IDs, relative links, unquoted rel.

It keeps every rule until a test gives it a `twist`, which may change any answer before it is sent.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Any

from aiohttp import web

from gateway.sync.breaches import Breach
from gateway.sync.check import CheckSummary, check
from gateway.sync.feed_check import CheckSettings
from gateway.sync.fetch import FetchSettings

LATEST = "/products/changes/latest"
FIRST_TIME_S = 1_400_000_000


@dataclass
class Entry:
    """One event; `headers` may be edited by a test before it is rendered."""

    name: str
    headers: list[tuple[str, str]]
    body: bytes = b'{"id":"x"}'

    def without(self, name: str) -> None:
        self.headers = [pair for pair in self.headers if pair[0] != name]

    def replace(self, name: str, value: str) -> None:
        self.headers = [(key, value if key == name else old) for key, old in self.headers]

    def rendered(self) -> bytes:
        head = "".join(f"{name}: {value}\r\n" for name, value in self.headers)
        return head.encode() + b"\r\n" + self.body


@dataclass
class Reply:
    """An answer that a twist may change."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


Twist = Callable[[web.Request, Reply], None]


class Feed:
    """Pages of entries, the last of them open. `count` is how often each method and path was asked for."""

    def __init__(self, *sizes: int, entry_links: bool = True) -> None:
        self.entry_links = entry_links
        self.number = 0
        self.pages = [[self.entry() for _ in range(size)] for size in sizes]
        self.boundary = "gc0p4Jq0M:2Yt08jU534c0p"
        self.twist: Twist = lambda request, reply: None
        self.count: Counter[str] = Counter()
        self.latest = LATEST

    # What a subclass may name differently.

    def archive(self, page: int) -> str:
        return f"/products/changes/2013/{page:02}"

    def entry_path(self, name: str) -> str:
        return f"/changes/{name}"

    def content_id(self, name: str) -> str:
        return f"<{name}@products.example.org>"

    def fragment(self, name: str) -> str:
        return name

    def entry(self, method: str = "PUT", body: bytes = b'{"id":"x"}') -> Entry:
        name = str(1000 + 7 * self.number)
        headers = [("Link", f"</products/{self.number}>;rel=about")]
        if self.entry_links:
            headers.append(("Link", f"<{self.entry_path(name)}>;rel=self"))
        headers += [
            ("Event-Type", f"http-equiv={method}"),
            ("Content-Type", "application/json"),
            ("Last-Modified", formatdate(FIRST_TIME_S + self.number, usegmt=True)),
            ("Content-ID", self.content_id(name)),
            ("Content-Length", str(len(body))),
        ]
        self.number += 1
        return Entry(name, headers, body)

    def add(self, *, page_max: int) -> None:
        """One more event, on a page of its own if the last one is full."""
        if len(self.pages[-1]) >= page_max:
            self.pages.append([])
        self.pages[-1].append(self.entry())

    def links(self, page: int) -> list[str]:
        """The Link header's values, relative to the document."""
        archived = page < len(self.pages) - 1
        found = [f"<{self.latest}>; rel=current"]
        if page > 0:
            found.append(f'<{self.archive(page - 1)}>; rel="prev-archive"')
        if archived and page < len(self.pages) - 2:
            found.append(f"<{self.archive(page + 1)}>;rel=next-archive")
        return found

    def document(self, page: int) -> Reply:
        entries = self.pages[page]
        if not entries:
            headers = {"Cache-Control": "no-cache", "Link": ", ".join(self.links(page))}
            return Reply(204, headers)
        delimiter = b"--" + self.boundary.encode()
        parts = b"".join(delimiter + b"\r\n" + entry.rendered() + b"\r\n" for entry in entries)
        body = b"a preamble\r\n" + parts + delimiter + b"--\r\nand an epilogue"
        archived = page < len(self.pages) - 1
        headers = {
            "Content-Type": f'multipart/mixed; boundary="{self.boundary}"',
            "Cache-Control": "max-age=3600" if archived else "no-cache",
            "ETag": f'"{hashlib.sha256(body).hexdigest()[:16]}"',
            "Link": ", ".join(self.links(page)),
        }
        return Reply(200, headers, body)

    def answer(self, request: web.Request) -> Reply:
        path = request.path
        if path == self.latest:
            return self.document(len(self.pages) - 1)
        for page, entries in enumerate(self.pages):
            archived = page < len(self.pages) - 1
            if archived and path == self.archive(page):
                return self.document(page)
            for entry in entries:
                if path == self.entry_path(entry.name):
                    to = self.archive(page) if archived else self.latest
                    location = f"{to}#{self.fragment(entry.name)}"
                    return Reply(301 if archived else 302, {"Location": location})
        return Reply(404, {"Cache-Control": "no-store"}, b"not here")

    def reply(self, request: web.Request) -> Reply:
        """What the server answers, conditional requests and the twist included."""
        self.count[f"{request.method} {request.path}"] += 1
        reply = self.answer(request)
        etag = reply.headers.get("ETag")
        if etag is not None and request.headers.get("If-None-Match") == etag:
            kept = {name: reply.headers[name] for name in ("ETag", "Cache-Control")}
            reply = Reply(304, kept)
        self.twist(request, reply)
        return reply

    async def handle(self, request: web.Request) -> web.Response:
        reply = self.reply(request)
        response = web.Response(status=reply.status, headers=reply.headers)
        if reply.status not in (204, 304):
            response.body = reply.body
        return response

    def looks(self, request: web.Request) -> int:
        """How often this was asked for by the same method, this time included."""
        return self.count[f"{request.method} {request.path}"]


class OurFeed(Feed):
    """The same in the URL space of this project, so that its own promises are checked as well."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.latest = "/feeds/events/0/latest"

    def archive(self, page: int) -> str:
        return f"/feeds/events/0/archive/{page}"

    def entry_path(self, name: str) -> str:
        return f"/feeds/events/0/events/{name}"

    def links(self, page: int) -> list[str]:
        found = super().links(page)
        if page == len(self.pages) - 2:
            found.append(f"<{self.archive(page + 1)}>; rel=next-archive")
        return found

    def answer(self, request: web.Request) -> Reply:
        if request.path == self.archive(len(self.pages) - 1):
            return Reply(302, {"Location": self.latest, "Cache-Control": "no-store"})
        if request.path == "/":
            return _json({"logs": [{"log": "events", "href": "/feeds/events"}]})
        if request.path == "/feeds/events":
            events = sum(map(len, self.pages))
            links = {"current": "/feeds/events/0/latest"}
            return _json({"partitions": [{"partition": "0", "events": events, "links": links}]})
        return super().answer(request)


def _json(content: object) -> Reply:
    return Reply(200, {"Content-Type": "application/json"}, json.dumps(content).encode())


@asynccontextmanager
async def serving(handler: Callable[[web.Request], object]) -> AsyncIterator[str]:
    """The base URL of a server whose every request goes to `handler`."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)  # type: ignore[arg-type]
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def check_feed(
    feed: Feed,
    path: str | None = None,
    *,
    settings: CheckSettings | None = None,
    fetch_settings: FetchSettings | None = None,
) -> tuple[list[Breach], CheckSummary]:
    """What `wes check` finds in `feed`, entering at `path`."""
    breaches: list[Breach] = []

    async def scenario() -> CheckSummary:
        async with serving(feed.handle) as url:
            return await check(
                url + (path or feed.latest),
                breaches.append,
                settings=settings,
                fetch_settings=fetch_settings,
            )

    return breaches, asyncio.run(scenario())


@contextmanager
def served(source: Any) -> Iterator[str]:
    """The base URL of a server of `source`, in a thread of its own."""
    ready, over, found = threading.Event(), asyncio.Event(), []

    async def run():
        found.append(asyncio.get_running_loop())
        async with serving(source.handle) as url:
            found.append(url)
            ready.set()
            await over.wait()

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    assert ready.wait(10)
    try:
        yield found[1]
    finally:
        found[0].call_soon_threadsafe(over.set)
        thread.join(10)
