"""Group commit: one thread for each log writes whatever has gathered while it was writing.

There is no timer. An append that comes when the disk is idle is written at once; those that come while
a commit is under way go into the next one, so the batch grows with the load by itself. If a commit
fails, all of its appends fail and nothing of it is kept; the file is opened anew for the next one,
which is how the log recovers when there is space again.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from gateway.node.errors import AppendFailed
from gateway.node.schema import Entry, Extent, connect, discard, write_entries


class Append(NamedTuple):
    """An event on its way to the disk. `done` is called in the event loop, with None if it is there."""

    position: int
    split: int
    message: bytes
    done: Callable[[AppendFailed | None], None]


Report = Callable[[list[Append], dict[int, list[Entry]], AppendFailed | None], None]


class Writer:
    """The writing thread of one log.

    `report` is called in the thread after each commit: with the appends in their order, and either the
    entries that they became, by partition, or the error.
    """

    def __init__(
        self,
        path: Path,
        extents: list[Extent],
        *,
        clock: Callable[[], int],
        messages_max: int,
        bytes_max: int,
        report: Report,
    ) -> None:
        self._path = path
        self._positions = [(extent.next_sequence, extent.timestamp) for extent in extents]
        self._clock = clock
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._report = report
        self._queue: list[Append] = []
        self._stopping = False
        self._wake = threading.Condition()
        self._connection: sqlite3.Connection | None = None
        self._failed = False
        self._thread = threading.Thread(target=self._run, name=f"log {path.stem}", daemon=True)
        self._thread.start()

    def put(self, append: Append) -> None:
        """Queue an append; the caller bounds the queue."""
        with self._wake:
            self._queue.append(append)
            if len(self._queue) == 1:
                self._wake.notify()

    def stop(self) -> None:
        """Commit what is queued and end the thread. Blocks."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._queue and not self._stopping:
                    self._wake.wait()
                waiting, self._queue = self._queue, []
            if not waiting:
                break
            for batch in self._batches(waiting):
                self._commit(batch)
        self._disconnect()

    def _batches(self, waiting: list[Append]) -> list[list[Append]]:
        batches: list[list[Append]] = [[]]
        size = 0
        for append in waiting:
            if batches[-1] and (
                len(batches[-1]) >= self._messages_max or size + len(append.message) > self._bytes_max
            ):
                batches.append([])
                size = 0
            batches[-1].append(append)
            size += len(append.message)
        return batches

    def _commit(self, batch: list[Append]) -> None:
        now = self._clock()
        positions = self._positions.copy()
        entries: dict[int, list[Entry]] = {}
        for append in batch:
            sequence, newest = positions[append.position]
            timestamp = max(now, newest)
            entry = Entry(sequence, timestamp, append.split, append.message)
            entries.setdefault(append.position, []).append(entry)
            positions[append.position] = (sequence + 1, timestamp)
        try:
            if self._connection is None:
                self._connection = connect(self._path)
                if self._failed:
                    discard(self._connection, self._positions)
                    self._failed = False
            write_entries(self._connection, entries)
        except (sqlite3.Error, OSError) as error:
            self._failed = True
            self._disconnect()
            self._report(batch, {}, AppendFailed(f"{self._path} takes no events: {error}"))
        else:
            self._positions = positions
            self._report(batch, entries, None)

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()
