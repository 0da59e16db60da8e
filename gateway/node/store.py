"""One durable log, as the event loop sees it: appends, reads, and word of what is new.

Appends go to the writing thread, reads of older events to a reading thread, and the newest events of
each partition are also kept in memory, so that a link that follows the log live is fed without touching
the disk. Whoever waits for events subscribes to a partition; there is no polling.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from gateway.node.errors import AppendFailed
from gateway.node.schema import Entry, Extent, connect, first_at, prepare, read_entries
from gateway.node.settings import LogSettings, NodeSettings
from gateway.node.writer import Append, Writer

logger = logging.getLogger("wes.node")

Done = Callable[[AppendFailed | None], None]


class Partition:
    """What the event loop knows of a partition."""

    def __init__(self, position: int, extent: Extent) -> None:
        self.position = position
        self.name = str(position)
        self.earliest = extent.earliest
        self.next_sequence = extent.next_sequence
        self.tail: list[Entry] = []
        self.tail_bytes = 0
        self.followers: set[Callable[[], None]] = set()

    def add(self, entries: list[Entry], *, messages_max: int, bytes_max: int) -> None:
        """Take in what was committed, and drop the oldest of the tail where it is too much."""
        if self.earliest is None:
            self.earliest = entries[0].sequence
        self.next_sequence = entries[-1].sequence + 1
        self.tail += entries
        self.tail_bytes += sum(len(entry.message) for entry in entries)
        if len(self.tail) > messages_max or self.tail_bytes > bytes_max:
            # Cut to half, so that this is not done for every event.
            keep, size = 0, 0
            for entry in reversed(self.tail):
                size += len(entry.message)
                if keep >= messages_max // 2 or size > bytes_max // 2:
                    break
                keep += 1
            self.tail = self.tail[len(self.tail) - keep :]
            self.tail_bytes = sum(len(entry.message) for entry in self.tail)


class LogStore:
    """A log that is open. Everything here is called in one event loop.

    Opening creates the file or checks it, and raises WrongFormat or PartitionsChanged. The data folder
    must be locked by the caller, as nothing here survives a second writer.
    """

    def __init__(
        self, folder: Path, log: LogSettings, settings: NodeSettings, clock: Callable[[], int]
    ) -> None:
        path = folder / f"{log.name}.sqlite"
        extents = prepare(path, log=log.name, partitions=log.partitions)
        self.name = log.name
        self.partitions = [Partition(position, extent) for position, extent in enumerate(extents)]
        self.backlog_bytes = 0
        """Of events that were appended and are not yet committed."""
        self.on_committed: Callable[[], None] = lambda: None
        """Called after the `done` of each append of a commit, good or bad."""
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._failing = False
        self._pending = 0
        self._drained: asyncio.Future[None] | None = None
        self._path = path
        self._reader: sqlite3.Connection | None = None
        self._reads = ThreadPoolExecutor(1, thread_name_prefix=f"read {log.name}")
        self._writer = Writer(
            path,
            extents,
            clock=clock,
            messages_max=settings.commit_messages_max,
            bytes_max=settings.commit_bytes_max,
            report=self._report,
        )

    @property
    def full(self) -> bool:
        """Whether so much waits for the disk that no more should be taken in."""
        return self.backlog_bytes >= self._settings.backlog_bytes_max

    async def drained(self) -> None:
        """Return when every append has had its `done`."""
        if self._pending:
            self._drained = self._loop.create_future()
            await self._drained

    def append(self, position: int, message: bytes, *, split: int, done: Done) -> None:
        """Queue an event; `done` is called when it is on the disk, or with the error if it is not."""
        self.backlog_bytes += len(message)
        self._pending += 1
        self._writer.put(Append(position, split, message, done))

    def recent(self, position: int, sequence: int) -> list[Entry] | None:
        """The entries from `sequence` on, empty at the end; None if they are not all in memory."""
        partition = self.partitions[position]
        if sequence >= partition.next_sequence:
            return []
        tail = partition.tail
        if not tail or sequence < tail[0].sequence:
            return None
        at = sequence - tail[0].sequence
        return tail[at : at + self._settings.read_messages_max]

    def read(self, position: int, sequence: int, done: Callable[[list[Entry] | None], None]) -> None:
        """Read from disk in the reading thread; `done` gets the entries, or None after an error."""
        self._in_reader(
            partial(
                read_entries,
                position=position,
                sequence=sequence,
                messages_max=self._settings.read_messages_max,
                bytes_max=self._settings.read_bytes_max,
            ),
            done,
        )

    def find(self, position: int, timestamp: int, done: Callable[[int | None], None]) -> None:
        """Look for the first sequence at or after `timestamp`, else the next one.

        `done` gets it, or None after an error.
        """
        self._in_reader(partial(first_at, position=position, timestamp=timestamp), done)

    async def close(self) -> None:
        """Commit what is queued, tell the appends, and close the file."""
        await asyncio.to_thread(self._writer.stop)
        await asyncio.to_thread(self._reads.shutdown)
        # What the threads reported was queued in the loop before they ended.
        await asyncio.sleep(0)
        if self._reader is not None:
            self._reader.close()

    def _in_reader(self, work: Callable[[sqlite3.Connection], Any], done: Callable[[Any], None]) -> None:
        def run() -> Any:
            if self._reader is None:
                self._reader = connect(self._path, read_only=True)
            return work(self._reader)

        def finish(future: Future[Any]) -> None:
            error = future.exception()
            if error is not None:
                logger.error("read_failed", extra={"log": self.name, "reason": str(error)})
            result = None if error is not None else future.result()
            with contextlib.suppress(RuntimeError):  # the loop has ended, and with it who asked
                self._loop.call_soon_threadsafe(done, result)

        self._reads.submit(run).add_done_callback(finish)

    def _report(
        self, batch: list[Append], entries: dict[int, list[Entry]], error: AppendFailed | None
    ) -> None:
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._committed, batch, entries, error)

    def _committed(
        self, batch: list[Append], entries: dict[int, list[Entry]], error: AppendFailed | None
    ) -> None:
        if (error is not None) != self._failing:
            self._failing = error is not None
            if error is None:
                logger.info("appends_recovered", extra={"log": self.name})
            else:
                logger.error("appends_fail", extra={"log": self.name, "reason": str(error)})
        for position, added in entries.items():
            partition = self.partitions[position]
            partition.add(
                added,
                messages_max=self._settings.tail_messages_max,
                bytes_max=self._settings.tail_bytes_max // len(self.partitions),
            )
        for append in batch:
            self.backlog_bytes -= len(append.message)
            append.done(error)
        self._pending -= len(batch)
        self.on_committed()
        if not self._pending and self._drained is not None:
            self._drained.set_result(None)
            self._drained = None
        for position in entries:
            for follower in tuple(self.partitions[position].followers):
                follower()
