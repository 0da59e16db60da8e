"""The records of entities that changed lately: written batch by batch, merged into the table many at a time.

The targets of a batch lie all over the table: each record of a small batch would dirty a page of its own,
which costs several times what the record does. So a batch adds one row here, with all that it changed, in its
own transaction. Every process that reads keeps these records in memory, and they go before those of the
table. When there are many, or the same have been written many times, they are merged into the table in the
order of their targets, a slice with each commit.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from itertools import chain

import orjson

from .records import RECORD_BYTES, started_in

SCHEMA = """
CREATE TABLE entities (target TEXT PRIMARY KEY, record BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE recent (number INTEGER PRIMARY KEY, targets TEXT NOT NULL, records BLOB NOT NULL);
CREATE TABLE merged (one INTEGER PRIMARY KEY CHECK (one = 1), number INTEGER NOT NULL);
INSERT INTO merged VALUES (1, 0);
"""

MERGED_RECORDS_MIN = 16_384
"""So many have to come together before they are merged: about as many as the pages of a large table."""
WRITTEN_RECORDS_MAX = 65_536
"""With so many written since the last time they are merged too, so that a start has no more to read."""
SLICE_RECORDS = 1_024
"""To be merged with a commit, or twice as many as it adds."""

_UPSERTS = {
    rows: f"INSERT OR REPLACE INTO entities VALUES {', '.join(['(?, ?)'] * rows)}"  # noqa: S608 - constants
    for rows in (512, 64, 8, 1)
}
"""By the number of rows: Python lets go of its lock at each step of a statement, and that for each row would
cost more than the row, as the event loop waits for it."""


class RecentRecords:
    """The records that go before those of the table `entities`, as one connection sees them, in stored form.

    Raises sqlite3.Error where SQLite does; then what is in memory counts no more, and the connection neither.
    """

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._new: dict[str, bytes] = {}
        self._merging: dict[str, bytes] = {}
        """Those that were there when a merge began."""
        self._to_merge: list[str] = []
        """Targets that are still to be merged, the next ones last."""
        self._number = 0
        """The last batch that is in memory."""
        self._merged = 0
        """The last batch of which the table has everything."""
        self._merging_to = 0
        """The last batch of which it then will have."""
        self._seen_version = -1
        self._added = 0
        self._written = 0
        """Records in the batches that are not part of a merge."""

    def load(self) -> None:
        """Learn what any other connection has committed."""
        version: int = self._db.execute("PRAGMA data_version").fetchone()[0]
        if version == self._seen_version:
            return
        # One statement, so that all is of one moment.
        found = self._db.execute(
            "SELECT merged.number, recent.number, targets, records FROM merged"
            " LEFT JOIN recent ON recent.number > ? ORDER BY recent.number",
            (self._number,),
        ).fetchall()
        merged = found[0][0]
        if merged != self._merged:
            # A batch that was merged before it was seen here may have newer records than those in memory.
            self._new.clear()
            self._written = 0
            self._number = self._merged = merged
            found = self._db.execute(
                "SELECT 0, number, targets, records FROM recent WHERE number > ? ORDER BY number", (merged,)
            ).fetchall()
        for _, number, targets, records in found:
            if number is not None:
                size = RECORD_BYTES
                for index, target in enumerate(orjson.loads(targets)):
                    self._new[target] = records[index * size : (index + 1) * size]
                self._written += len(records) // size
                self._number = number
        self._seen_version = version

    def get(self, target: str) -> bytes | None:
        """The newest record of a target, or None if those of the table have it, or none do."""
        return self._new.get(target) or self._merging.get(target)

    def without(self, targets: Iterable[str]) -> list[str]:
        """Those among `targets` for which `get` has nothing."""
        new, merging = self._new, self._merging
        return [target for target in targets if target not in new and target not in merging]

    def add(self, records: dict[str, bytes]) -> None:
        """Write the records of a batch, within its transaction."""
        self._db.execute(
            "INSERT INTO recent VALUES (?, ?, ?)",
            (self._number + 1, orjson.dumps(list(records)).decode(), b"".join(records.values())),
        )
        self._number += 1
        self._added = len(records)
        self._written += len(records)
        self._new.update(records)

    def merge_some(self) -> None:
        """Merge a slice into the table, within a transaction that has called `add`, if there is enough."""
        if not self._to_merge:
            if len(self._new) < MERGED_RECORDS_MIN and self._written < WRITTEN_RECORDS_MAX:
                return
            self._begin()
        self._merge(max(SLICE_RECORDS, 2 * self._added))

    def merge_all(self) -> None:
        """Merge everything, within a transaction."""
        if self._to_merge:
            self._merge(len(self._to_merge))
        self._begin()
        self._merge(len(self._to_merge))

    def firsts(self, start: int, end: int, after: str) -> set[str]:
        """The targets behind `after` whose first ordinal is in [start, end)."""
        records = chain(self._merging.items(), self._new.items())
        return {target for target, _ in started_in(records, start, end) if target > after}

    def _begin(self) -> None:
        self._merging, self._new = self._new, {}
        self._to_merge = sorted(self._merging, reverse=True)
        self._merging_to = self._number
        self._written = 0

    def _merge(self, count: int) -> None:
        targets = self._to_merge[: -count - 1 : -1]
        # Of bytes, Python's module would first ask whether they want to be something else.
        records = map(bytearray, map(self._merging.__getitem__, targets))
        values = list(chain.from_iterable(zip(targets, records, strict=True)))
        done = 0
        for rows, statement in _UPSERTS.items():
            size = rows * 2
            while len(values) - done >= size:
                self._db.execute(statement, values[done : done + size])
                done += size
        del self._to_merge[-count:]
        if not self._to_merge:
            self._db.execute("DELETE FROM recent WHERE number <= ?", (self._merging_to,))
            self._db.execute("UPDATE merged SET number = ?", (self._merging_to,))
            self._merged = self._merging_to
            self._merging = {}
