"""Copies that begin with a snapshot in place of all the events that made it (draft, "Consuming").

A partition that stands at nothing takes the parts of the newest snapshot that are its own, side by side, each
checked before a row of it is written. When all of them are there, and have the digest that the index tells of
that partition, its checkpoint becomes the last event that the snapshot holds, and reading goes on behind
exactly that event. Whatever ends the process, the next run goes on with the parts that are missing.

Nothing here makes a copy wrong, only late: a snapshot that is not what its index tells, or not of the feed as
it is now, is left, and so is one that is removed meanwhile. A newer one takes its place, or, where there is
none, the feed from its beginning.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import NamedTuple
from urllib.parse import urlsplit

from gateway.core.identity import parse_content_id
from gateway.core.links import FeedLinks, entry_ordinal
from gateway.core.snapshots import FeedPoint, Held
from gateway.core.state import Digest, Kind

from .asking import Asker, ReaderSettings, Refused
from .copy import EntityCopy, PartMismatch, SnapshotName
from .feed_walk import CURRENT
from .fetch import Fetcher, resolve
from .fold import NOT_TOLD, Row
from .observer import Observer
from .reading import Document, Position, at_home
from .snapshot import Index, PartAt, SnapshotPlace, SnapshotUnusable, Unused, patiently
from .tasks import for_each
from .time_frame import behind
from .urls import origin_of

PARTS_AT_ONCE = 4
PARTS_BYTES_MAX = 64 * 1024 * 1024
"""Of parts on their way or at hand; a part that is larger, or of which no size is told, comes alone."""
MOVES_MAX = 5
"""So many snapshots are begun for a partition before its feed is read from the beginning."""
INDEX_KEPT_S = 5.0
"""For which an index counts as the newest one."""

_Key = tuple[str, str | None, int]


class SnapshotUse(NamedTuple):
    """The snapshot that partitions began with, and what was taken over from it: parts, entities, bytes."""

    url: str
    id: str
    parts: int = 0
    entities: int = 0
    bytes: int = 0


class _Plan(NamedTuple):
    """What a partition takes of a snapshot, and where its feed goes on; see `EntityCopy.end_snapshot`."""

    parts: Sequence[PartAt]
    ordinal: int | None
    position: Position | None


class SnapshotLoad:
    """Begins partitions of one copy with a snapshot; without a `place`, with none.

    `log` is what the copy is of, None for a single feed; `fetcher` asks for what the feeds hold.
    """

    def __init__(
        self,
        copy: EntityCopy,
        place: SnapshotPlace | None,
        *,
        log: str | None,
        fetcher: Fetcher,
        settings: ReaderSettings,
        observer: Observer,
    ) -> None:
        self.used: SnapshotUse | None = None
        """The one that was taken over last."""
        self._copy = copy
        self._place = place
        self._log = log
        self._fetcher = fetcher
        self._settings = settings
        self._observer = observer
        self._room = _Room(PARTS_AT_ONCE, PARTS_BYTES_MAX)
        self._uses: dict[_Key, SnapshotUse] = {}
        # What is not to be tried again, by partition.
        self._left: set[tuple[str, _Key]] = set()
        self._newest: Index | None = None
        self._newest_until_s = 0.0
        self._asking = asyncio.Lock()

    async def begin(self, partition: str, url: str) -> None:
        """Bring a partition that stands at nothing to where a snapshot ends, if there is one to use.

        `url` is its feed. Raises FetchFailed, FeedBroken, CopyFailed, and SnapshotUnusable.
        """
        copy = self._copy
        begun = copy.begun(partition)
        if copy.checkpoint(partition).content_id is not None or (begun is not None and begun.whole):
            return
        left = len(self._left)
        for _ in range(MOVES_MAX if self._place is not None else 0):
            index = await self._begun_index(partition) or await self._newest_index(partition)
            if index is None:
                break
            try:
                if await self._take(partition, url, index):
                    return
                # What is not in it begins at its first event.
                break
            except Unused as error:
                self._leave(partition, index.name, str(error))
        copy.drop_snapshot(partition)
        if len(self._left) > left:
            self._observer.trouble(partition, "no snapshot is used: the feed is read from its beginning")

    def _leave(self, partition: str, name: SnapshotName, reason: str) -> None:
        self._left.add((partition, name.key))
        self._newest_until_s = 0.0
        self._observer.snapshot_left(partition, name.id, reason)

    async def _begun_index(self, partition: str) -> Index | None:
        """The index of the snapshot that was begun, as long as it is there."""
        begun = self._copy.begun(partition)
        if self._place is None or begun is None or (partition, begun.snapshot.key) in self._left:
            return None
        index = await self._place.again(begun.snapshot)
        if index is None:
            self._leave(partition, begun.snapshot, "it was begun, and is not there any more")
        return index

    async def _newest_index(self, partition: str) -> Index | None:
        """The newest index, unless it was left before."""
        assert self._place is not None, "without a place nothing is looked for"
        async with self._asking:
            if self._newest is None or time.monotonic() > self._newest_until_s:
                try:
                    self._newest = await self._place.newest()
                except Unused as error:
                    self._newest = None
                    self._observer.trouble(None, f"there is no snapshot to begin with: {error}")
                self._newest_until_s = time.monotonic() + INDEX_KEPT_S
            newest = self._newest
        return None if newest is None or (partition, newest.name.key) in self._left else newest

    async def _take(self, partition: str, url: str, index: Index) -> bool:
        """Take over all that `index` has of the partition; False if that is nothing.

        Raises Unused if the snapshot has to be left.
        """
        plan = await self._plan(partition, url, index)
        if plan is None:
            return False
        await self._take_parts(partition, url, index, plan)
        self._copy.end_snapshot(partition, plan.ordinal, plan.position)
        self.used = self._uses.get(index.name.key, SnapshotUse(*index.name[:2]))
        return True

    async def _plan(self, partition: str, url: str, index: Index) -> _Plan | None:
        """Raises Unused if the feed does not hold the place where it has to go on."""
        assert self._place is not None, "the index came from there"
        url_of_index, started = index.name.url, index.name.started
        if index.feeds is None:
            if self._log is not None:
                raise self._place.refusal(
                    f"{url_of_index} names no feeds, so that its entities cannot be told apart by partition"
                )
            on_trouble = partial(self._observer.trouble, partition)
            position = await patiently(
                self._settings, lambda: behind(self._fetcher, url, started, self._settings, on_trouble)
            )
            return _Plan(index.parts, None, position)
        if self._log is not None and index.log != self._log:
            raise self._place.refusal(f"{url_of_index} is of the log {index.log}, not of {self._log}")
        point = _point(index, partition, url, single=self._log is None)
        if point is None:
            return None
        content_id = parse_content_id(point.content_id)
        if content_id is None or content_id.ordinal != point.last:
            raise Unused(f"its index names {point.content_id} as event {point.last}")
        await self._check_feed(url, point)
        parts = [part for part in index.parts if part.told and part.told.partition == point.partition]
        return _Plan(parts, point.last, Position(point.content_id, point.entry))

    async def _check_feed(self, url: str, point: FeedPoint) -> None:
        """Raises Unused if the feed does not hold the event: it was made anew, or lost what it had."""
        asker = Asker(self._fetcher, origin_of(url))
        asker.fresh = True
        settings = self._settings
        for attempt in range(settings.lost_tries_max):
            if attempt:
                # A replica may be a little behind.
                await asyncio.sleep(min(settings.trouble_s_min * 2.0**attempt, settings.trouble_s_max))
            document = await patiently(settings, partial(_there, asker, resolve(url, point.entry)))
            if document is None or document.index(point.content_id) is None:
                continue
            if document.links.get(CURRENT, url) == url:
                return
        raise Unused(f"the feed at {url} does not hold its last event, {point.content_id}")

    async def _take_parts(self, partition: str, url: str, index: Index, plan: _Plan) -> None:
        copy, name = self._copy, index.name
        begun = copy.begun(partition)
        taken = copy.taken_parts(partition)
        if (
            begun is None
            or begun.snapshot.key != name.key
            or not taken.issubset(part.uri for part in plan.parts)
        ):
            copy.begin_snapshot(partition, name)
            taken = set()
        missing = [part for part in plan.parts if part.uri not in taken]
        self._observer.snapshot_begun(
            partition,
            name.id,
            entities=sum(part.told.count for part in missing if part.told is not None),
            events=0 if plan.ordinal is None else plan.ordinal + 1,
        )
        await for_each(
            missing, lambda part: self._take_part(partition, url, index, part), parallel=PARTS_AT_ONCE
        )
        if plan.ordinal is None:
            return
        told = sum((digest for part in plan.parts if (digest := _digest(part)) is not None), Digest())
        if copy.checkpoint(partition).digest != told:
            raise Unused(
                f"what it made of partition {partition} does not have the digest that its index tells"
            )

    async def _take_part(self, partition: str, url: str, index: Index, part: PartAt) -> None:
        assert self._place is not None, "the index came from there"
        async with self._room.taken(None if part.told is None else part.told.size):
            found, size = await self._place.part(part)
            rows = _rows(found) if part.told is not None else _foreign_rows(found, part.url, origin_of(url))
            try:
                self._copy.take_part(partition, part.uri, rows, _digest(part))
            except PartMismatch as error:
                raise Unused(str(error)) from None
        use = self._uses.get(index.name.key, SnapshotUse(*index.name[:2]))
        self._uses[index.name.key] = use._replace(
            parts=use.parts + 1, entities=use.entities + len(rows), bytes=use.bytes + size
        )
        self._observer.loaded(len(rows))


class _Room:
    """Lets in so many at once, with so many bytes in all; what is larger than that, or not told, alone."""

    def __init__(self, number_max: int, bytes_max: int) -> None:
        self._number_max = number_max
        self._bytes_max = bytes_max
        self._number = 0
        self._bytes = 0
        self._left = asyncio.Event()

    @asynccontextmanager
    async def taken(self, size: int | None) -> AsyncIterator[None]:
        size = self._bytes_max if size is None else size
        while self._number and not (
            self._number < self._number_max and self._bytes + size <= self._bytes_max
        ):
            self._left.clear()
            await self._left.wait()
        self._number += 1
        self._bytes += size
        try:
            yield
        finally:
            self._number -= 1
            self._bytes -= size
            self._left.set()


async def _there(asker: Asker, url: str) -> Document | None:
    """The document that `url` leads to, None if it leads nowhere."""
    try:
        return await asker.get(url)
    except Refused as error:
        if not error.not_there:
            raise
        return None


def _point(index: Index, partition: str, url: str, *, single: bool) -> FeedPoint | None:
    """How far the snapshot holds the feed at `url`; a single one is found by its path."""
    for point in index.feeds or ():
        if single:
            assert index.log is not None, "an index with feeds names its log"
            if FeedLinks(index.log, point.partition).current == urlsplit(url).path:
                return point
        elif point.partition == partition:
            return point
    if single:
        raise SnapshotUnusable(f"{index.name.url} does not hold the feed at {url}")
    return None


def _digest(part: PartAt) -> Digest | None:
    return None if part.told is None else Digest(part.told.count, int(part.told.digest, 16))


def _rows(items: Sequence[Held]) -> dict[str, Row]:
    return {item.target: Row(item.entity, _ordinal(item), item.last_modified) for item in items}


def _ordinal(item: Held) -> int:
    ordinal = None if item.entry is None else entry_ordinal(item.entry)
    return NOT_TOLD if ordinal is None else ordinal


def _foreign_rows(items: Sequence[Held], url: str, origin: str) -> dict[str, Row]:
    """The rows of another server's part at `url`, their targets as those of a feed at `origin`."""
    rows: dict[str, Row] = {}
    for item in items:
        # No text but ASCII can be sent back as an ETag.
        etag = item.validator if item.validator is not None and item.validator.isascii() else ""
        if item.entity.kind is Kind.UNKNOWN:
            etag = ""
        rows[at_home(url, item.target, origin)] = Row(item.entity, NOT_TOLD, item.last_modified, etag)
    return rows
