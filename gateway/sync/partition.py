"""One partition of a copy, brought up to its feed: with a snapshot at first, then document by document."""

from __future__ import annotations

import asyncio

from gateway.core.errors import GatewayError
from gateway.core.event import Method
from gateway.core.identity import parse_content_id

from .copy import Copy, Unresolved
from .feed import FeedEvent, ReaderSettings, StartOver, documents
from .fetch import Fetcher, FetchFailed, InvalidLink
from .observer import Observer
from .snapshot_load import SnapshotLoad
from .targets import ask_target
from .tasks import for_each

ASK_PARALLEL = 8
START_OVER_WAIT_S_MAX = 60.0


class FeedTooShort(GatewayError):
    """The feed ends before an event that the log document speaks of."""


class PartitionSync:
    """Brings one partition of `copy` up to the feed at `url`."""

    def __init__(
        self,
        copy: Copy,
        partition: str,
        url: str,
        *,
        fetcher: Fetcher,
        settings: ReaderSettings,
        observer: Observer,
        snapshots: SnapshotLoad | None = None,
    ) -> None:
        self._copy = copy
        self._partition = partition
        self._url = url
        self._fetcher = fetcher
        self._settings = settings
        self._observer = observer
        self._snapshots = snapshots
        # Looked through once, for what an earlier run left.
        self._to_ask = True
        self._in_vain: set[str] = set()
        copy.begin(partition, url)

    async def run(self, *, follow: bool = False, until: int | None = None) -> None:
        """Up to what the feed has, for ever with `follow`, or exactly to the ordinal `until`, -1 for nothing.

        Raises FetchFailed and FeedBroken as `documents` does, SnapshotUnusable, CopyFailed, and FeedTooShort.
        """
        started_over = 0
        while True:
            if self._snapshots is not None:
                await self._begin(self._snapshots, follow=follow)
            before = self._copy.checkpoint(self._partition)
            try:
                await self._read(follow=follow, until=until)
                return
            except StartOver as error:
                if before.position is None and self._copy.checkpoint(self._partition) == before:
                    raise
                self._observer.started_over(self._partition, error.reason)
                self._copy.start_over(self._partition, error.reason)
            # Two servers behind one name, with different feeds, must not be hammered.
            if started_over:
                await asyncio.sleep(min(2.0**started_over, START_OVER_WAIT_S_MAX))
            started_over += 1

    async def _begin(self, snapshots: SnapshotLoad, *, follow: bool) -> None:
        wait_s = self._settings.trouble_s_min
        while True:
            try:
                return await snapshots.begin(self._partition, self._url)
            except FetchFailed as error:
                if not follow or isinstance(error, InvalidLink):
                    raise
                self._observer.trouble(self._partition, str(error))
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, self._settings.trouble_s_max)

    async def _read(self, *, follow: bool, until: int | None) -> None:
        copy, partition = self._copy, self._partition
        ordinal: int | None = None
        slices = documents(
            self._url,
            copy.checkpoint(partition).position,
            follow=follow and until is None,
            settings=self._settings,
            on_trouble=lambda text: self._observer.trouble(partition, text),
        )
        try:
            async for found in slices:
                events = found.events
                if until is not None:
                    events = [event for event in events if event.ordinal is None or event.ordinal <= until]
                copy.apply(partition, events)
                self._observer.applied(len(events))
                self._note_patches(events)
                ordinal = copy.checkpoint(partition).ordinal
                reached = until is not None and (
                    len(events) < len(found.events) or (-1 if ordinal is None else ordinal) >= until
                )
                if found.caught_up or reached:
                    await self._caught_up()
                if reached:
                    return
        finally:
            await slices.aclose()
        if until is not None:
            raise FeedTooShort(
                f"{self._url} ends at event {ordinal}, but the log document speaks of event {until}"
            )

    async def _caught_up(self) -> None:
        copy, partition = self._copy, self._partition
        if copy.starting_over(partition):
            copy.complete(partition)
            self._observer.completed(partition)
        if self._to_ask:
            self._to_ask = False
            await self._ask_targets()

    def _note_patches(self, events: list[FeedEvent]) -> None:
        for event in events:
            if event.method is Method.PATCH:
                self._to_ask = True
                self._in_vain.discard(event.target)

    async def _ask_targets(self) -> None:
        """Fetch what the feed does not tell, unless its server is one that cannot know more.

        Such a server may know what was in a snapshot that does not tell which events it holds.
        """
        checkpoint = self._copy.checkpoint(self._partition)
        if checkpoint.content_id is None:
            return
        ours = parse_content_id(checkpoint.content_id) is not None
        wanted = [
            item
            for item in self._copy.unresolved(self._partition)
            if item.target not in self._in_vain and not (ours and item.etag is None)
        ]
        await for_each(wanted, self._ask, parallel=ASK_PARALLEL)

    async def _ask(self, unresolved: Unresolved) -> None:
        try:
            fetched = await ask_target(self._fetcher, self._url, unresolved)
        except FetchFailed as error:
            self._in_vain.add(unresolved.target)
            self._observer.trouble(self._partition, str(error))
            return
        self._copy.resolve(self._partition, unresolved.target, fetched)
