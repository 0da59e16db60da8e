"""The SQLite catalogue of a partition: which pages there are, what is committed, what was set aside.

One transaction for each batch. Readers in other processes see a batch whole or not at all, and learn of a
new one by SQLite's data_version, without a query.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from gateway.core.errors import StoreMismatch
from gateway.core.identity import FeedName
from gateway.core.pages import Batch, Change, FeedSettings, Gap, LogPosition, Page, Quarantined
from gateway.core.state import Digest, Entity

from . import entities
from .entities import EntityTable, Folded, Load
from .records import EntityRecord

FORMAT = 5
BUSY_TIMEOUT_S = 10.0

_SCHEMA = f"""
BEGIN;
CREATE TABLE settings (settings TEXT NOT NULL);
CREATE TABLE pages (
    number INTEGER PRIMARY KEY, generation TEXT NOT NULL, boundary TEXT NOT NULL,
    first_ordinal INTEGER NOT NULL, first_offset TEXT NOT NULL, events INTEGER NOT NULL,
    length INTEGER NOT NULL, sha256 TEXT NOT NULL, modified_ms_max INTEGER, sealed INTEGER NOT NULL
);
CREATE UNIQUE INDEX pages_by_ordinal ON pages (first_ordinal);
CREATE INDEX pages_by_time ON pages (modified_ms_max, number);
CREATE TABLE gaps (
    ordinal INTEGER PRIMARY KEY, offset_before TEXT NOT NULL, offset_after TEXT NOT NULL
);
CREATE TABLE quarantine (
    number INTEGER PRIMARY KEY, "offset" TEXT NOT NULL, timestamp_ms INTEGER, reason TEXT NOT NULL,
    raw BLOB NOT NULL
);
CREATE TABLE position (
    one INTEGER PRIMARY KEY CHECK (one = 1), "offset" TEXT NOT NULL, sha256 TEXT NOT NULL,
    gap_before TEXT
);
{entities.SCHEMA}
PRAGMA user_version = {FORMAT};
COMMIT;
"""
_PAGE_COLUMNS = (
    "number, generation, boundary, first_ordinal, first_offset, events, length, sha256,"
    " modified_ms_max, sealed"
)
_THAT_HOLDS = "WHERE first_ordinal <= ? ORDER BY first_ordinal DESC LIMIT 1"


class Catalogue:
    """One connection to a partition's catalogue; raises sqlite3.Error where SQLite does.

    A connection may be used from several threads, one at a time: while one statement is under way, all others
    of the connection see the database as it was when that began.
    """

    def __init__(self, path: Path, *, writable: bool) -> None:
        self._path = path
        mode = "rwc" if writable else "rw"
        self._db = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode={mode}",
            uri=True,
            timeout=BUSY_TIMEOUT_S,
            isolation_level=None,
            check_same_thread=False,
        )
        self._entities = EntityTable(self._db)
        try:
            self._prepare(writable=writable)
        except BaseException:
            self._db.close()
            raise

    def _prepare(self, *, writable: bool) -> None:
        version = self._db.execute("PRAGMA user_version").fetchone()[0]
        if writable and version == 0:
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.executescript(_SCHEMA)
        elif version != FORMAT:
            raise StoreMismatch(
                f"{self._path} has format {version}, this program reads format {FORMAT}:"
                " use the version that wrote it, or another --data folder, which fills from the event log"
            )
        # Acknowledged means synced: FULL syncs the write-ahead log at every commit.
        self._db.execute("PRAGMA synchronous = FULL")
        if not writable:
            self._db.execute("PRAGMA query_only = ON")

    def close(self) -> None:
        self._db.close()

    def settings(self) -> FeedSettings | None:
        """The settings that the feed was made with, or None in a new catalogue."""
        row = self._db.execute("SELECT settings FROM settings").fetchone()
        if row is None:
            return None
        fields = json.loads(row[0])
        name = FeedName(**fields.pop("name"))
        fields["extra_headers"] = tuple(fields["extra_headers"])
        return FeedSettings(name, **fields)

    def keep_settings(self, settings: FeedSettings) -> None:
        self._db.execute("INSERT INTO settings VALUES (?)", (json.dumps(asdict(settings)),))

    def data_version(self) -> int:
        """A number that changes when another connection has committed."""
        version: int = self._db.execute("PRAGMA data_version").fetchone()[0]
        return version

    def stage(self, batch: Batch, load: Load, digest: Digest) -> Folded:
        """Write `batch` in a transaction, which `commit` ends; a failure takes all of it back.

        `load` gives what its patches build on, `digest` is the one before it.
        """
        execute = self._db.execute
        execute("BEGIN IMMEDIATE")
        try:
            for write in batch.writes:
                execute(
                    f"INSERT OR REPLACE INTO pages ({_PAGE_COLUMNS})"  # noqa: S608 - a constant
                    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    _page_row(write.page),
                )
            for gap in batch.gaps:
                execute(
                    "INSERT INTO gaps VALUES (?, ?, ?)",
                    (gap.ordinal, gap.offset_before, gap.offset_after),
                )
            for item in batch.quarantined:
                execute(
                    'INSERT INTO quarantine ("offset", timestamp_ms, reason, raw) VALUES (?, ?, ?, ?)',
                    (item.offset, item.timestamp_ms, item.reason, item.raw),
                )
            if batch.position is not None:
                execute(
                    "INSERT OR REPLACE INTO position VALUES (1, ?, ?, ?)",
                    (batch.position.offset, batch.position.sha256, batch.position.gap_before),
                )
            return self._entities.fold(batch.changes, load, digest) if batch.changes else Folded(digest, {})
        except BaseException:
            self._roll_back()
            raise

    def rebuild_state(self, changes: Iterable[Sequence[Change]], load: Load) -> tuple[int, Digest]:
        """Make the state again from all `changes`, in one transaction; what they or `load` raise ends it.

        Returns how many records were not as they are now, and the digest.
        """
        self._db.execute("BEGIN IMMEDIATE")
        try:
            self._entities.set_aside()
            digest = Digest()
            for some in changes:
                digest, _ = self._entities.fold(some, load, digest)
                self._entities.merge_some()
            wrong = self._entities.compare()
            self._db.execute("COMMIT")
        except BaseException:
            self._roll_back()
            raise
        return wrong, digest

    def commit(self) -> None:
        """End the transaction; what it wrote is synced when this returns."""
        try:
            self._entities.merge_some()
            self._db.execute("COMMIT")
        except BaseException:
            self._roll_back()
            raise

    def _roll_back(self) -> None:
        self._entities = EntityTable(self._db)
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")

    def entity(self, target: str) -> EntityRecord | None:
        return self._entities.record(target)

    def targets_from(self, start: int, end: int, after: str, limit: int) -> list[str]:
        return self._entities.targets_from(start, end, after, limit)

    def first_ordinals(self, targets: Sequence[str]) -> list[tuple[str, int]]:
        return self._entities.first_ordinals(targets)

    def patched(self, record: EntityRecord) -> Entity | None:
        return self._entities.patched(record)

    def head(self) -> tuple[Page | None, LogPosition | None, int, Digest]:
        """The last page, the position in the log, the number of quarantined messages, and the digest.

        All are of one moment.
        """
        self._db.execute("BEGIN")
        try:
            page = self._page("ORDER BY number DESC LIMIT 1")
            row = self._db.execute('SELECT "offset", sha256, gap_before FROM position').fetchone()
            position = None if row is None else LogPosition(*row)
            # Numbers start at 1 and none is ever taken out, so the last number is the count.
            last = self._db.execute("SELECT max(number) FROM quarantine").fetchone()[0]
            digest = self._entities.digest()
        finally:
            self._db.execute("COMMIT")
        return page, position, last or 0, digest

    def page(self, number: int) -> Page | None:
        return self._page("WHERE number = ?", number)

    def page_of(self, ordinal: int) -> Page | None:
        return self._page(_THAT_HOLDS, ordinal)

    def page_number_of(self, ordinal: int) -> int:
        """The number of the page that holds an event that there is."""
        query = f"SELECT number FROM pages {_THAT_HOLDS}"  # noqa: S608 - constants
        number: int = self._db.execute(query, (ordinal,)).fetchone()[0]
        return number

    def pages(self, start: int, end: int) -> list[Page]:
        """The pages that hold the events from `start` to before `end`, as far as there are any, in order."""
        rows = self._db.execute(
            f"SELECT {_PAGE_COLUMNS} FROM pages"  # noqa: S608 - constants
            " WHERE first_ordinal >= (SELECT max(first_ordinal) FROM pages WHERE first_ordinal <= ?)"
            " AND first_ordinal < ? AND first_ordinal + events > ? ORDER BY first_ordinal",
            (start, end, start),
        )
        return [_page(row) for row in rows]

    def page_since(self, time_ms: int) -> Page | None:
        return self._page("WHERE modified_ms_max >= ? ORDER BY modified_ms_max, number LIMIT 1", time_ms)

    def sealed_pages(self) -> list[tuple[int, int]]:
        """Number and length of every sealed page."""
        return self._db.execute("SELECT number, length FROM pages WHERE sealed").fetchall()

    def gaps(self) -> list[Gap]:
        return [Gap(*row) for row in self._db.execute("SELECT * FROM gaps ORDER BY ordinal")]

    def quarantine(self, after: int, limit: int) -> list[tuple[int, Quarantined]]:
        rows = self._db.execute(
            'SELECT number, "offset", timestamp_ms, reason, raw FROM quarantine'
            " WHERE number > ? ORDER BY number LIMIT ?",
            (after, limit),
        )
        return [(number, Quarantined(*fields)) for number, *fields in rows]

    def _page(self, clause: str, *values: int) -> Page | None:
        row = self._db.execute(
            f"SELECT {_PAGE_COLUMNS} FROM pages {clause}",  # noqa: S608 - constants
            values,
        ).fetchone()
        return None if row is None else _page(row)


def _page(row: tuple[Any, ...]) -> Page:
    return replace(Page(*row), sealed=bool(row[-1]))


def _page_row(page: Page) -> tuple[object, ...]:
    return (
        page.number,
        page.generation,
        page.boundary,
        page.first_ordinal,
        page.first_offset,
        page.events,
        page.length,
        page.sha256,
        page.modified_ms_max,
        int(page.sealed),
    )
