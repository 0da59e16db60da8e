"""A feed as the web server sees it: a stored feed, its documents, and those who wait for it to change."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from aiohttp import web

from gateway.core.errors import PageDamaged
from gateway.core.event import Event
from gateway.core.identity import ContentID
from gateway.core.links import FeedLinks
from gateway.core.pages import Page
from gateway.storage.contract import FeedReader, Head
from gateway.storage.records import EntityRecord
from gateway.storage.shared import Ends, SharedTargets
from gateway.storage.snapshots import SnapshotFolder

from .documents import Document, DocumentCache, archive_document, subscription_document
from .turns import Turns

POLL_S = 0.02
"""Between two looks at a feed that other processes write, while somebody waits for it."""


class Publisher(Protocol):
    """What brings an event into the log of its target."""

    async def publish(self, event: Event, *, wait: bool) -> ContentID | None:
        """Send `event`; with `wait` return its identity once it is visible in its feed.

        Returns None when the log has the event and it is not visible yet. Raises LogUnavailable if nothing
        was sent, MessageRefused if the log refused it, OutcomeUnknown if no answer came.
        """

    def unsettled(self, target: str) -> bool:
        """Whether the log has, or may have, an event about `target` that is not visible yet."""


class LiveFeed:
    """The documents of one feed, which moves when `changed` is called or, in a shared site, by `refresh`."""

    def __init__(self, reader: FeedReader, cache: DocumentCache, *, shared: bool = False) -> None:
        self.reader = reader
        self._shared = shared
        name = reader.settings.name
        self.links = FeedLinks(name.log, name.partition)
        self._cache = cache
        self._rendered: tuple[Head, Document] | None = None
        self._loading: dict[int, asyncio.Task[Document]] = {}
        self._waiters: set[asyncio.Future[None]] = set()
        self._polling = False

    def refresh(self) -> None:
        """Take over what is committed, by whatever process, and wake those who wait for it."""
        if self.reader.refresh():
            self.changed()

    def subscription(self) -> Document | None:
        """The subscription document as it is now, or None in a new feed; raises PageDamaged."""
        head = self.reader.head
        if self._rendered is not None and self._rendered[0] is head:
            return self._rendered[1]
        if head.page is None:
            return None
        if len(head.data) != head.page.length:
            raise PageDamaged(head.page.number, self.links.base, "its file does not hold what was written")
        document = subscription_document(self.links, head.page, head.data)
        self._rendered = head, document
        return document

    async def archive(self, number: int) -> Document | None:
        """The archive document `number`, or None if that page is not sealed; raises PageDamaged.

        Many who ask for one page at once wait for one read.
        """
        document = self._cache.get(self.links.archive(number))
        if document is not None:
            return document
        task = self._loading.get(number)
        if task is None:
            page = self.reader.page(number)
            if page is None or not page.sealed:
                return None
            task = asyncio.ensure_future(self._load(page))
            self._loading[number] = task
            task.add_done_callback(lambda _: self._loading.pop(number, None))
        return await asyncio.shield(task)

    async def _load(self, page: Page) -> Document:
        data = await asyncio.to_thread(self.reader.read, page)
        document = archive_document(self.links, page, data)
        self._cache.put(self.links.archive(page.number), document)
        return document

    def changed(self) -> None:
        """Wake all who wait; to be called in the event loop when the head has moved."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    async def wait(self, head: Head, timeout_s: float) -> None:
        """Return when the head is no longer `head`, `changed` was called, or the time is over."""
        if self.reader.head is not head:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        if self._shared and not self._polling:
            self._poll()
        try:
            async with asyncio.timeout(timeout_s):
                await waiter
        except TimeoutError:
            pass
        finally:
            self._waiters.discard(waiter)

    def _poll(self) -> None:
        """Look for what other processes commit, again and again for as long as somebody waits."""
        self._polling = bool(self._waiters)
        if self._polling:
            asyncio.get_running_loop().call_later(POLL_S, self._poll)
            self.refresh()


@dataclass(slots=True)
class LiveLog:
    """A log as the web server sees it: the paths that it answers for, its feeds, and the way into it.

    `preconditions_required` refuses PUT, PATCH and DELETE without a condition (RFC 6585, 3). `snapshots` is
    None where none are served.
    """

    name: str
    prefix: str
    publisher: Publisher
    extra_headers: tuple[str, ...] = ()
    preconditions_required: bool = False
    snapshots: SnapshotFolder | None = None
    feeds: dict[str, LiveFeed] = field(default_factory=dict)
    turns: Turns = field(default_factory=Turns)
    _shared: SharedTargets = field(default_factory=SharedTargets)
    _counting: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def count_shared(self, feeds: Mapping[str, FeedReader], ends: Ends) -> int:
        """How many targets have state in several of `feeds` before `ends`."""
        if len(feeds) < 2:
            return 0
        async with self._counting:
            return await asyncio.to_thread(self._shared.count, feeds, ends)

    def current(self, target: str) -> tuple[LiveFeed, EntityRecord] | None:
        """How the target stands, with the feed that says so, or None if it never had state.

        A target in several partitions is answered for by the one where it changed last, by the log's time.
        """
        found: tuple[LiveFeed, EntityRecord] | None = None
        for _, feed in sorted(self.feeds.items()):
            record = feed.reader.entity(target)
            if record is not None and (found is None or _time(record) >= _time(found[1])):
                found = feed, record
        return found


def _time(record: EntityRecord) -> int:
    return -1 if record.modified_ms is None else record.modified_ms


class Readiness(Protocol):
    """Whether this process should be sent requests."""

    def problems(self) -> list[str]:
        """What keeps it from being ready, a sentence each; empty when it is ready."""


class Site:
    """All that the web server serves; its parts may grow while it runs, as partitions are discovered.

    A `shared` site is one of several processes that serve the same feeds: each request then sees all that
    was committed before it came, because its client may have heard of that from another process.
    """

    def __init__(self, readiness: Readiness, cache: DocumentCache, *, shared: bool = False) -> None:
        self.readiness = readiness
        self.shared = shared
        self.logs: dict[str, LiveLog] = {}
        self.draining = False
        self._cache = cache
        self._current: dict[str, LiveFeed] = {}

    def add_feed(self, log: LiveLog, reader: FeedReader) -> LiveFeed:
        """Serve a stored feed of `log`."""
        feed = LiveFeed(reader, self._cache, shared=self.shared)
        log.feeds[feed.links.partition] = feed
        self._current[feed.links.current] = feed
        return feed

    def archive_at(self, path: str) -> Document | None:
        """The archive document at `path` if it is in memory."""
        return self._cache.get(path)

    def subscription_at(self, path: str) -> Document | None:
        """The subscription document at `path`; None in a new feed, and if there is none that is whole."""
        feed = self._current.get(path)
        if feed is None:
            return None
        if self.shared:
            feed.refresh()
        try:
            return feed.subscription()
        except PageDamaged:
            return None

    def feed(self, log: str, partition: str) -> LiveFeed | None:
        """The feed of a partition, with all that is committed."""
        live = self.logs.get(log)
        feed = None if live is None else live.feeds.get(partition)
        if feed is not None and self.shared:
            feed.refresh()
        return feed

    def log(self, name: str) -> LiveLog | None:
        """The log of that name, its feeds with all that is committed."""
        live = self.logs.get(name)
        if live is not None and self.shared:
            for feed in live.feeds.values():
                feed.refresh()
        return live

    def log_of(self, target: str) -> LiveLog | None:
        """The log whose prefix is the longest that `target` starts with."""
        best: LiveLog | None = None
        for log in self.logs.values():
            if target.startswith(log.prefix) and (best is None or len(log.prefix) > len(best.prefix)):
                best = log
        return best

    def drain(self) -> None:
        """End all waits: the server is about to stop."""
        self.draining = True
        for log in self.logs.values():
            for feed in log.feeds.values():
                feed.changed()


SITE = web.AppKey("site", Site)
"""Where the application carries what it serves."""
