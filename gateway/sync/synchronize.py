"""Copies of logs: all partitions of a log side by side into one destination, and new ones as they come.

await synchronize("http://localhost:8080/", "events.sqlite")
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from gateway.core.errors import GatewayError
from gateway.core.state import Digest

from .copy import Checkpoint, Copy, Source
from .destination import OpenCopy, copy_at
from .feed import ReaderSettings
from .fetch import Fetcher, FetchFailed, enter
from .observer import Observer
from .partition import FeedTooShort, PartitionSync
from .snapshot import SnapshotPlace
from .snapshot_load import SnapshotLoad, SnapshotUse
from .source import Found, PartitionHead, find_source, read_log
from .sqlite_copy import SqliteCopy
from .tasks import for_each
from .verdict import Verdict
from .verify import compare


class NotVerifiable(GatewayError):
    """The server tells no digest, or is behind the copy, so that nothing can be compared."""


@dataclass(frozen=True, slots=True)
class SyncSettings:
    """Limits of a copy; times in seconds. `partitions_at_once` is for copies that do not follow."""

    reader: ReaderSettings = field(default_factory=ReaderSettings)
    partitions_at_once: int = 8
    new_partitions_s: float = 10.0
    verify_tries_max: int = 6
    verify_wait_s: float = 1.0


class Summary(NamedTuple):
    """What a copy holds at the end: the checkpoint of each partition.

    `verdict` is None unless it was asked for; `stopped` says that the end was not reached; `snapshot` is the
    one that partitions began with in this run.
    """

    url: str
    log: str | None
    partitions: dict[str, Checkpoint]
    verdict: Verdict | None
    stopped: bool
    snapshot: SnapshotUse | None = None

    @property
    def digest(self) -> Digest:
        """The digest of all partitions."""
        return sum((checkpoint.digest for checkpoint in self.partitions.values()), Digest())


async def synchronize(
    url: str,
    destination: str | Path | OpenCopy,
    *,
    log: str | None = None,
    follow: bool = False,
    verify: bool = False,
    moved: bool = False,
    snapshot: str | None = None,
    snapshots: bool = True,
    stop: asyncio.Event | None = None,
    settings: SyncSettings | None = None,
    observer: Observer | None = None,
) -> Summary:
    """Bring a copy up to what the feeds at `url` hold when it gets there; with `follow`, go on until `stop`.

    `url` is a gateway, where `log` chooses among several logs, a log document, or a feed document of any
    server. A partition that stands at nothing, or has to start over, begins with the newest snapshot of the
    log, or with the one whose index is at the URL `snapshot`. Without `snapshots` it reads its feed from the
    beginning, as lines always do. With `verify` the copy is brought exactly to the position of the log
    document, and compared with its digests, before it goes on. It may be stopped or cancelled at any moment:
    the copy stands behind the last document that it took. With `follow`, trouble that may pass is waited for.
    User info in a URL is sent to its server (RFC 7617), and stands neither in the copy nor in what is told.

    Raises NoSource, FetchFailed, FeedBroken, StartOver if that cannot be done, SnapshotUnusable,
    InvalidSetting, CopyLocked, CopyMismatch, CopyFailed, and NotVerifiable.
    """
    open_copy = copy_at(destination) if isinstance(destination, str | Path) else destination
    settings = settings or SyncSettings()
    url, fetch_settings = enter(url, settings.reader.fetch)
    settings = replace(settings, reader=replace(settings.reader, fetch=fetch_settings))
    run = _Run(url, open_copy, settings, observer or Observer(), snapshot, snapshots=snapshots)
    work = asyncio.ensure_future(run.work(log, follow=follow, verify=verify, moved=moved))
    stopping = asyncio.ensure_future((stop or asyncio.Event()).wait())
    try:
        await asyncio.wait((work, stopping), return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
        stopped = work.cancel()
        await asyncio.wait((work,))
    if not work.cancelled():
        work.result()
    return run.summary(stopped=stopped)


class _Run:
    """One run: what is known so far of its source and its copy."""

    def __init__(
        self,
        url: str,
        open_copy: OpenCopy,
        settings: SyncSettings,
        observer: Observer,
        snapshot: str | None,
        *,
        snapshots: bool,
    ) -> None:
        self._source = Source(url, None)
        self._open_copy = open_copy
        self._settings = settings
        self._observer = observer
        self._checkpoints: dict[str, Checkpoint] = {}
        self._verdict: Verdict | None = None
        self._snapshot = snapshot
        self._snapshots = snapshots
        self._load: SnapshotLoad | None = None

    def summary(self, *, stopped: bool) -> Summary:
        used = None if self._load is None else self._load.used
        return Summary(*self._source, self._checkpoints, self._verdict, stopped, used)

    async def work(self, log: str | None, *, follow: bool, verify: bool, moved: bool) -> None:
        async with Fetcher(self._settings.reader.fetch) as fetcher:
            found = await self._find(fetcher, log, follow=follow)
            self._source = found.source
            copy = self._open_copy()
            try:
                copy.bind(found.source, moved=moved)
                try:
                    async with self._loading(copy, found, fetcher) as load:
                        self._load = load
                        sync = _Sync(copy, found, fetcher, self._settings, self._observer, load)
                        await self._read(sync, follow, verify)
                finally:
                    self._checkpoints = {name: copy.checkpoint(name) for name in copy.partitions()}
            finally:
                copy.close()

    @asynccontextmanager
    async def _loading(
        self, copy: Copy, found: Found, fetcher: Fetcher
    ) -> AsyncIterator[SnapshotLoad | None]:
        """What begins partitions of the copy with a snapshot; None where lines tell each event."""
        if not isinstance(copy, SqliteCopy):
            yield None
            return
        reader, named, place = self._settings.reader, self._snapshot, None
        # A server that was named may be another one, with a login of its own.
        named, fetch_settings = (None, reader.fetch) if named is None else enter(named, reader.fetch)
        async with Fetcher(fetch_settings) as snapshots:
            if self._snapshots:
                place = SnapshotPlace(snapshots, reader, collection=found.snapshots, named=named)
            yield SnapshotLoad(
                copy, place, log=found.source.log, fetcher=fetcher, settings=reader, observer=self._observer
            )

    async def _read(self, sync: _Sync, follow: bool, verify: bool) -> None:
        if verify:
            self._verdict = await sync.verify()
            self._observer.compared(self._verdict)
        if follow and (self._verdict is None or self._verdict.equal):
            await sync.follow()
        elif not verify:
            await sync.once()

    async def _find(self, fetcher: Fetcher, log: str | None, *, follow: bool) -> Found:
        reader = self._settings.reader
        wait_s = reader.trouble_s_min
        while True:
            try:
                return await find_source(fetcher, self._source.url, log)
            except FetchFailed as error:
                if not follow:
                    raise
                self._observer.trouble(None, str(error))
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, reader.trouble_s_max)


class _Sync:
    """All partitions of one source."""

    def __init__(
        self,
        copy: Copy,
        found: Found,
        fetcher: Fetcher,
        settings: SyncSettings,
        observer: Observer,
        snapshots: SnapshotLoad | None,
    ) -> None:
        self._copy = copy
        self._source = found.source
        self._fetcher = fetcher
        self._settings = settings
        self._observer = observer
        self._snapshots = snapshots
        self._partitions: dict[str, PartitionSync] = {}
        self._heads = found.partitions
        self._add(found.partitions)

    def _add(self, heads: dict[str, PartitionHead]) -> list[PartitionSync]:
        """Those of the partitions that are new."""
        added: list[PartitionSync] = []
        for partition, head in heads.items():
            if partition not in self._partitions:
                sync = PartitionSync(
                    self._copy,
                    partition,
                    head.url,
                    fetcher=self._fetcher,
                    settings=self._settings.reader,
                    observer=self._observer,
                    snapshots=self._snapshots,
                )
                self._partitions[partition] = sync
                added.append(sync)
        left = (
            head.last - _reached(self._copy, partition)
            for partition, head in heads.items()
            if head.last is not None
        )
        self._observer.expected(sum(count for count in left if count > 0))
        return added

    async def once(self) -> None:
        await for_each(
            self._partitions.values(), lambda sync: sync.run(), parallel=self._settings.partitions_at_once
        )

    async def follow(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for sync in self._partitions.values():
                    group.create_task(sync.run(follow=True))
                while self._source.log is not None:
                    await asyncio.sleep(self._settings.new_partitions_s)
                    try:
                        heads = await read_log(self._fetcher, self._source)
                    except GatewayError as error:
                        self._observer.trouble(None, str(error))
                        continue
                    for sync in self._add(heads) if heads.keys() - self._partitions.keys() else ():
                        group.create_task(sync.run(follow=True))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def verify(self) -> Verdict:
        """Bring all partitions to one position of the log document, and compare."""
        copy = self._copy
        if not isinstance(copy, SqliteCopy):
            raise NotVerifiable("only a copy that holds state can be verified: a file or a folder")
        settings = self._settings
        for attempt in range(settings.verify_tries_max):
            if attempt:
                await asyncio.sleep(settings.verify_wait_s)
                self._heads = await read_log(self._fetcher, self._source)
                self._add(self._heads)
            try:
                reason = await self._reach(self._heads)
            except FeedTooShort as error:
                reason = str(error)
            if reason is None:
                return await compare(copy, self._heads, fetcher=self._fetcher, settings=settings.reader)
            self._observer.trouble(None, reason)
        raise NotVerifiable(f"{self._source.url} cannot be compared with: {reason}")

    async def _reach(self, heads: dict[str, PartitionHead]) -> str | None:
        """Bring all partitions exactly to `heads`; why not, if that cannot be."""
        if self._source.log is None or any(head.digest is None for head in heads.values()):
            raise NotVerifiable(f"{self._source.url} tells no digest to compare with")

        async def reach(item: tuple[str, PartitionHead]) -> None:
            partition, head = item
            checkpoint = self._copy.checkpoint(partition)
            there = (checkpoint.ordinal, checkpoint.generation) == (head.last, head.generation)
            if not there or self._copy.starting_over(partition):
                await self._partitions[partition].run(until=-1 if head.last is None else head.last)

        await for_each(heads.items(), reach, parallel=self._settings.partitions_at_once)
        for partition, head in heads.items():
            ordinal = self._copy.checkpoint(partition).ordinal
            if ordinal != head.last:
                return f"partition {partition} is at event {ordinal}, in the log document at {head.last}"
        return None


def _reached(copy: Copy, partition: str) -> int:
    ordinal = copy.checkpoint(partition).ordinal
    return -1 if ordinal is None else ordinal
