"""The rows of entities that changed lately: written batch by batch, merged into their table many at a time.

The targets of a batch lie all over the table: each row of a small batch would dirty a page of its own, which
costs several times what the row does. So a batch adds one row here, with all that it changed, in its own
transaction. Every process that reads keeps these rows in memory, and they go before those of the table. When
there are many, or the same have been written many times, they are merged into the table in the order of their
targets, a slice with each commit.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Final

import orjson

SCHEMA = """
CREATE TABLE entities (
    target TEXT PRIMARY KEY, kind INTEGER NOT NULL, etag TEXT NOT NULL, ordinal INTEGER NOT NULL,
    modified_ms INTEGER, start INTEGER NOT NULL, length INTEGER NOT NULL, patched INTEGER NOT NULL,
    first_ordinal INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE recent (number INTEGER PRIMARY KEY, changed TEXT NOT NULL);
CREATE TABLE merged (one INTEGER PRIMARY KEY CHECK (one = 1), number INTEGER NOT NULL);
INSERT INTO merged VALUES (1, 0);
"""

Row = tuple[str, int, str, int, int | None, int, int, bool, int]
"""A row of the table, in its order."""

MERGED_ROWS_MIN = 16_384
"""So many have to come together before they are merged: about as many as the pages of a large table."""
WRITTEN_ROWS_MAX = 65_536
"""With so many written since the last time they are merged too, so that a start has no more to read."""
SLICE_ROWS = 1_024
"""To be merged with a commit, or twice as many as it adds."""

_ORDINAL: Final = 3
_FIRST_ORDINAL: Final = 8
_VALUES = 9
_VALUE_LIST = f"({', '.join('?' * _VALUES)})"
_UPSERTS = {
    rows: f"INSERT INTO entities VALUES {', '.join([_VALUE_LIST] * rows)}"  # noqa: S608 - question marks
    " ON CONFLICT (target) DO UPDATE SET kind = excluded.kind, etag = excluded.etag,"
    " ordinal = excluded.ordinal, modified_ms = excluded.modified_ms, start = excluded.start,"
    " length = excluded.length, patched = excluded.patched"
    for rows in (512, 64, 8, 1)
}
"""By the number of rows: Python lets go of its lock at each step of a statement, and that for each row would
cost more than the row, as the event loop waits for it."""


class RecentRows:
    """The rows that go before those of the table `entities`, as one connection sees them.

    Raises sqlite3.Error where SQLite does; then what is in memory counts no more, and the connection neither.
    """

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self.rows: dict[str, Row] = {}
        self._number = 0
        """The last batch whose rows are in memory."""
        self._merged = 0
        """The last batch of which the table has everything."""
        self._seen_version = -1
        self._merging: list[str] = []
        """Targets that are still to be merged, the next ones last."""
        self._merging_to = (0, -1)
        """The last batch, and the last ordinal, that the table will then have."""
        self._added = 0
        self._written = 0
        """Rows in the batches that are not part of a merge."""

    def load(self) -> None:
        """Learn what any other connection has committed."""
        version: int = self._db.execute("PRAGMA data_version").fetchone()[0]
        if version == self._seen_version:
            return
        # One statement, so that all is of one moment.
        found = self._db.execute(
            "SELECT merged.number, recent.number, changed FROM merged"
            " LEFT JOIN recent ON recent.number > ? ORDER BY recent.number",
            (self._number,),
        ).fetchall()
        merged = found[0][0]
        if merged != self._merged:
            # A batch that was merged before it was seen here may have newer rows than those in memory.
            self.rows.clear()
            self._written = 0
            self._number = self._merged = merged
            found = self._db.execute(
                "SELECT 0, number, changed FROM recent WHERE number > ? ORDER BY number", (merged,)
            ).fetchall()
        for _, number, changed in found:
            if number is not None:
                rows = orjson.loads(changed)
                self.rows.update((row[0], row) for row in rows)
                self._written += len(rows)
                self._number = number
        self._seen_version = version

    def add(self, rows: Sequence[Row]) -> None:
        """Write the rows of a batch, within its transaction."""
        self._db.execute("INSERT INTO recent VALUES (?, ?)", (self._number + 1, orjson.dumps(rows).decode()))
        self._number += 1
        self._added = len(rows)
        self._written += len(rows)
        for row in rows:
            self.rows[row[0]] = row

    def merge_some(self) -> None:
        """Merge a slice into the table, within a transaction that has called `add`, if there is enough."""
        if not self._merging:
            if len(self.rows) < MERGED_ROWS_MIN and self._written < WRITTEN_ROWS_MAX:
                return
            self._begin()
        self._merge(max(SLICE_ROWS, 2 * self._added))

    def merge_all(self) -> None:
        """Merge everything, within a transaction."""
        self._begin()
        self._merge(len(self._merging))

    def firsts(self, start: int, end: int, after: str) -> list[str]:
        """The targets behind `after` whose first ordinal is in [start, end)."""
        return [
            target
            for target, row in self.rows.items()
            if start <= row[_FIRST_ORDINAL] < end and target > after
        ]

    def _begin(self) -> None:
        self._merging = sorted(self.rows, reverse=True)
        self._written = 0
        last = max((row[_ORDINAL] for row in self.rows.values()), default=-1)
        self._merging_to = self._number, last

    def _merge(self, count: int) -> None:
        targets = self._merging[: -count - 1 : -1]
        values: list[object] = []
        for target in targets:
            values += self.rows[target]
        done = 0
        for rows, statement in _UPSERTS.items():
            size = rows * _VALUES
            while len(values) - done >= size:
                self._db.execute(statement, values[done : done + size])
                done += size
        del self._merging[-count:]
        if not self._merging:
            number, last = self._merging_to
            self._db.execute("DELETE FROM recent WHERE number <= ?", (number,))
            self._db.execute("UPDATE merged SET number = ?", (number,))
            self._merged = number
            self.rows = {target: row for target, row in self.rows.items() if row[_ORDINAL] > last}
