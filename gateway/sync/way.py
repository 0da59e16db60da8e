"""The way through a feed, event by event: from its first archive document to the one that still grows.

Nothing is taken on trust. A document counts as the next one only if it holds the event that the reader
stands on, or provably begins right behind it: by the ordinals on servers of this project, by its
prev-archive link elsewhere. Where that fails, the reader asks where its own event stands now, first by the
entry link, past all caches in case of doubt, and goes on from there; so it never goes back, and an old
document from a cache on the way is told from a feed that became another one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

from gateway.core.identity import ContentID, parse_content_id

from .ahead import Ahead
from .asking import Asker, ReaderSettings, Refused
from .chain import LINKS_CLAUSE, Chain
from .feed_walk import NEXT, PREV
from .fetch import Fetcher, FetchFailed, resolve
from .reading import ORDER_CLAUSE, Document, FeedBroken, FeedEvent, Position
from .second_look import ACCEPT
from .urls import origin_of


class FeedSlice(NamedTuple):
    """What is new in one document, in order.

    `caught_up`: nothing is known to come after it; only then may `events` be empty. `generation` is that of
    the events, None on servers other than this project's.
    """

    events: list[FeedEvent]
    caught_up: bool
    document: str
    generation: str | None


class Lost(Exception):
    """The event that the reader stands on was not found where it must be."""


class Sure(IntEnum):
    """What is known of the reader's own event since the reader last moved."""

    NO = 0
    FOUND = 1
    FOUND_AT_ITS_SERVER = 2


class _Doubt(Exception):
    """A document that does not follow; `error` tells why, and holds if the own place is `enough` sure."""

    def __init__(self, error: Exception, enough: Sure) -> None:
        super().__init__(str(error))
        self.error = error
        self.enough = enough


class Way:
    """One reader's way through the feed at `url`, behind `position`. `step` goes on by one document."""

    def __init__(
        self,
        fetcher: Fetcher,
        url: str,
        position: Position | None,
        settings: ReaderSettings,
        on_trouble: Callable[[str], None],
    ) -> None:
        self.entered = position is not None
        """Whether the URL has ever led to a feed."""
        self._url = resolve(url, url)
        self._settings = settings
        self._position = position
        self._last = None if position is None else parse_content_id(position.content_id)
        self._asker = Asker(fetcher, origin_of(self._url))
        self._chain = Chain(
            self._asker, self._url, documents_max=settings.documents_max, on_trouble=on_trouble
        )
        self._ahead = Ahead(
            fetcher,
            self._chain.following_head,
            headers=ACCEPT,
            documents_max=settings.ahead_max,
            bytes_max=settings.ahead_bytes_max,
        )
        # The document that was read last, None before the reader has found its place.
        self._at: Document | None = None
        self._etag: str | None = None
        self._sure = Sure.NO
        # Of a foreign feed: the Content-IDs of the last document, and hashes of the URLs that are done with.
        self._ids: frozenset[str] = frozenset()
        self._done: set[int] = set()

    async def close(self) -> None:
        """End all requests."""
        await self._ahead.drop()

    async def recover(self) -> None:
        """After trouble: find the own place again, past all caches and on new connections."""
        await self._leave(fresh=True)
        await self._asker.fetcher.reconnect()

    async def step(self) -> FeedSlice:
        """The next document; waits for news if the last step had caught up.

        Raises FetchFailed, FeedBroken, or Lost; `recover` comes before the next step then.
        """
        while True:
            try:
                if self._at is not None:
                    return self._take(*await self._join(await self._next(self._at), self._at))
                if self._position is None:
                    return self._take(await self._first(), 0)
                document, start = await self._locate(self._position)
                self._sure = Sure.FOUND_AT_ITS_SERVER if self._asker.fresh else Sure.FOUND
                return self._take(document, start)
            except _Doubt as doubt:
                if self._sure >= doubt.enough:
                    raise doubt.error from None
                await self._leave(fresh=doubt.enough is Sure.FOUND_AT_ITS_SERVER)
                if self._position is None:
                    self._sure = doubt.enough

    async def _leave(self, *, fresh: bool) -> None:
        await self._ahead.drop()
        self._at = None
        self._asker.fresh = fresh

    def _take(self, document: Document, start: int) -> FeedSlice:
        """Move behind the events of `document` from index `start` on."""
        events = document.events[start:] if start else document.events
        first = document.first
        if self._position is None and first is not None and first.ordinal and PREV not in document.links:
            raise FeedBroken(document.url, f"the feed begins with {first}, not with 0", ORDER_CLAUSE)
        self._chain.learn(document)
        current = self._chain.is_current(document)
        if events:
            if first is None:
                self._check_foreign(document, events, growing=current)
            self._position = events[-1].position
            self._last = document.last
            self._sure = Sure.NO
        self._at = document
        self._etag = document.etag if current else None
        caught_up = current and NEXT not in document.links
        if events or caught_up:
            self._asker.fresh = False
        return FeedSlice(events, caught_up, document.url, None if first is None else first.generation)

    def _check_foreign(self, document: Document, events: list[FeedEvent], *, growing: bool) -> None:
        """What no ordinal tells: nothing comes twice, and the links make no circle."""
        ids = frozenset([event.content_id for event in events])
        if not ids.isdisjoint(self._ids):
            raise FeedBroken(document.url, "has events that came before", ORDER_CLAUSE)
        whole = len(events) == len(document.events)
        if not growing:
            if whole and hash(document.url) in self._done:
                raise FeedBroken(document.url, "was read before: the links make a circle", LINKS_CLAUSE)
            self._done.add(hash(document.url))
        self._ids = ids if whole else self._ids | ids

    async def _first(self) -> Document:
        document = await self._asker.get(self._url)
        self.entered = True
        self._chain.learn(document)
        return await self._chain.first(document)

    async def _locate(self, position: Position) -> tuple[Document, int]:
        """The document that holds the event of `position`, and the index behind it; raises Lost."""
        if position.entry is None:
            document = await self._asker.get(self._chain.current)
            self._chain.learn(document)
            found = await self._chain.back(document, position.content_id)
            if found is None:
                raise Lost(f"no document of the feed holds {position.content_id}")
            return found[0], found[1] + 1
        try:
            document = await self._asker.get(resolve(self._url, position.entry))
        except Refused as error:
            if not error.not_there:
                raise
            raise Lost(f"the entry link of {position.content_id} leads nowhere: {error}") from None
        index = document.index(position.content_id)
        if index is None:
            raise Lost(self._why_lost(document, position.content_id))
        return document, index + 1

    def _why_lost(self, document: Document, content_id: str) -> str:
        if self._last is not None and document.first is not None:
            index = self._last.ordinal - document.first.ordinal
            if 0 <= index < len(document.events):
                return f"{document.url} has {document.events[index].content_id} in place of {content_id}"
        return f"{document.url} does not hold {content_id}, whose entry link leads there"

    async def _next(self, at: Document) -> Document:
        """What is said to come after `at`."""
        url = self._chain.following(at)
        if url == self._chain.current and self._chain.is_current(at):
            return await self._poll(at)
        try:
            if self._asker.fresh:
                return await self._asker.get(url)
            return self._asker.read(url, await self._ahead.get(url))
        except Refused as error:
            if not error.not_there:
                raise
            # The documents behind ours went away: with our own event, or without it?
            gone = Lost(f"what follows is gone: {error}") if error.status == 410 else error
            raise _Doubt(gone, Sure.FOUND_AT_ITS_SERVER) from None

    async def _join(self, document: Document, at: Document) -> tuple[Document, int]:
        """Where the events after `at` begin: in `document`, or in another one that comes before it."""
        follows = document.links.get(PREV) in at.names
        position = self._position
        if position is None:
            if PREV not in document.links or follows:
                return document, 0
            raise _Doubt(self._gap(document), Sure.FOUND)
        index = document.index(position.content_id)
        if index is not None:
            return document, index + 1
        if self._last is not None and document.first is not None:
            return document, self._join_ordinals(document, self._last, document.first)
        if follows:
            # A document that nothing came after when it was read may have grown since.
            if self._chain.is_finished(at) or self._sure is Sure.FOUND_AT_ITS_SERVER:
                return document, 0
            raise _Doubt(self._gap(document), Sure.FOUND_AT_ITS_SERVER)
        if not document.events:
            raise _Doubt(FetchFailed(f"{document.url} has no events"), Sure.FOUND_AT_ITS_SERVER)
        if self._last is not None:
            raise _Doubt(self._gap(document), Sure.FOUND_AT_ITS_SERVER)
        if self._sure is Sure.NO and position.entry is not None:
            raise _Doubt(self._gap(document), Sure.FOUND)
        found = await self._chain.back(document, position.content_id)
        if found is None:
            raise _Doubt(self._behind(document), Sure.FOUND_AT_ITS_SERVER)
        return found[0], found[1] + 1

    def _join_ordinals(self, document: Document, last: ContentID, first: ContentID) -> int:
        if first.ordinal == last.ordinal + 1 and first[2:] == last[2:]:
            # After a gap, or in a feed that was made anew: then our own event is another one by now.
            if first.generation == last.generation or self._sure is Sure.FOUND_AT_ITS_SERVER:
                return 0
            raise _Doubt(self._gap(document), Sure.FOUND_AT_ITS_SERVER)
        if first.ordinal <= last.ordinal:
            raise _Doubt(self._behind(document), Sure.FOUND_AT_ITS_SERVER)
        raise _Doubt(self._gap(document), Sure.FOUND)

    def _gap(self, document: Document) -> FeedBroken:
        begins = f"begins with {document.events[0].content_id}" if document.events else "is empty"
        after = "the beginning" if self._position is None else self._position.content_id
        return FeedBroken(document.url, f"{begins}, which does not follow {after}", LINKS_CLAUSE)

    def _behind(self, document: Document) -> FetchFailed:
        own = "" if self._position is None else self._position.content_id
        return FetchFailed(f"{document.url} is older than what was read before: it does not hold {own}")

    async def _poll(self, at: Document) -> Document:
        """The subscription document, once it has something new."""
        settings = self._settings
        clock = asyncio.get_running_loop().time
        interval_s = settings.poll_s_min
        while True:
            asked_s = clock()
            document, waited = await self._asker.news(
                self._chain.current, self._etag, wait_s=settings.wait_s, entries=self._last is not None
            )
            if document is not None:
                if self._has_news(document, at):
                    return document
                self._etag = document.etag
            # A server that waited for us is asked again at once; one that only says so is not.
            if not waited or clock() - asked_s < interval_s:
                await asyncio.sleep(interval_s)
                interval_s = min(interval_s * 1.5, settings.poll_s_max)

    def _has_news(self, document: Document, at: Document) -> bool:
        """Whether `document` says anything that `at` did not."""
        if NEXT in document.links:
            return True
        if not document.events:
            return bool(at.events) or document.links.get(PREV) != at.links.get(PREV)
        return self._position is None or document.events[-1].content_id != self._position.content_id
