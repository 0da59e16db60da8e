"""The current state of a partition's targets, in its catalogue: what the events have made of them.

A row tells where the event is that made the state, as a place in a page, so that no body is stored twice.
Only what a patch has made has a body of its own here. Rows change in the transaction that commits their
events, first among the recent ones (see there), and can be made again from the pages.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import orjson

from gateway.core.event import Event, Method
from gateway.core.pages import Change
from gateway.core.state import DELETED, UNKNOWN, Digest, Entity, Kind, apply, settled

from . import recent
from .recent import RecentRows, Row

SCHEMA = f"""
{recent.SCHEMA}
CREATE TABLE patched (
    target TEXT PRIMARY KEY, ordinal INTEGER NOT NULL, content_type TEXT, body BLOB NOT NULL
);
CREATE TABLE digest (
    one INTEGER PRIMARY KEY CHECK (one = 1), entities INTEGER NOT NULL, total BLOB NOT NULL
);
"""

_DIGEST_BYTES = 32


class EntityRecord(NamedTuple):
    """What is recorded of a target that had state: how it stands, since which event, and where that is.

    `start` and `length` are the place of the event's part in its page. `patched` tells that the body is not
    the event's: a patch has made it.
    """

    target: str
    kind: Kind
    etag: str
    ordinal: int
    modified_ms: int | None
    start: int
    length: int
    patched: bool


class Folded(NamedTuple):
    """What changes have made: the digest after them, and the targets that had no record before.

    The latter come with the ordinal of the event that first gave them a state, in ascending order.
    """

    digest: Digest
    new: list[tuple[int, str]]


Load = Callable[[EntityRecord], Entity]
"""The entity that a record tells of; raises PageDamaged."""


class EntityTable:
    """The state in one catalogue; raises sqlite3.Error where SQLite does."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._recent = RecentRows(db)

    def record(self, target: str) -> EntityRecord | None:
        """The record of a target, or None if it never had state."""
        self._recent.load()
        row = self._recent.rows.get(target)
        if row is None:
            row = self._db.execute("SELECT * FROM entities WHERE target = ?", (target,)).fetchone()
        return None if row is None else _record(row)

    def patched(self, record: EntityRecord) -> Entity | None:
        """The entity that a patch has made, or None if the target has changed since the record was read."""
        row = self._db.execute(
            "SELECT content_type, body FROM patched WHERE target = ? AND ordinal = ?",
            (record.target, record.ordinal),
        ).fetchone()
        return None if row is None else Entity(record.kind, record.etag, *row)

    def targets_from(self, start: int, end: int, after: str, limit: int) -> list[str]:
        """Targets behind `after` whose first state is from an event in [start, end); looks at all of them."""
        self._recent.load()
        rows = self._db.execute(
            "SELECT target FROM entities WHERE target > ? AND first_ordinal >= ? AND first_ordinal < ?"
            " ORDER BY target LIMIT ?",
            (after, start, end, limit),
        )
        found = {target for (target,) in rows}
        found.update(self._recent.firsts(start, end, after))
        return sorted(found)[:limit]

    def first_ordinals(self, targets: Sequence[str]) -> list[tuple[str, int]]:
        self._recent.load()
        found = {target: row[-1] for target in targets if (row := self._recent.rows.get(target)) is not None}
        found.update(
            self._db.execute(
                "SELECT target, first_ordinal FROM json_each(?) CROSS JOIN entities ON target = value",
                (orjson.dumps([target for target in targets if target not in found]).decode(),),
            )
        )
        return list(found.items())

    def digest(self) -> Digest:
        """The digest over all entities."""
        row = self._db.execute("SELECT entities, total FROM digest").fetchone()
        return Digest() if row is None else Digest(row[0], int.from_bytes(row[1]))

    def fold(self, changes: Sequence[Change], load: Load, digest: Digest) -> Folded:
        """Apply `changes` within a transaction; `digest` is the one before. Raises what `load` raises."""
        last: dict[str, Change] = {}
        firsts: dict[str, int] = {}
        """Of targets with several changes: the ordinal of the first."""
        patched: dict[str, Entity] = {}
        for change in changes:
            event = change.event
            target = event.target
            if target in last:
                firsts.setdefault(target, last[target].ordinal)
            if event.method is Method.PATCH:
                patched[target] = self._patch(event, patched.get(target), last.get(target), load)
            elif patched:
                patched.pop(target, None)
            last[target] = change
        before = self._before(last)
        rows: list[Row] = []
        steps: list[tuple[str, str, str]] = []
        outdated: list[tuple[str]] = []
        new: list[tuple[int, str]] = []
        for target, (ordinal, event, start, length) in last.items():
            state = settled(event)
            if state is None:
                entity = patched[target]
                state = entity.kind, entity.etag
            kind, etag = state
            has_body = kind is Kind.PRESENT and target in patched
            found = before.get(target)
            if found is None:
                etag_before, first = "", firsts.get(target, ordinal)
                new.append((first, target))
            else:
                etag_before, was_patched, first = found
                if was_patched and not has_body:
                    outdated.append((target,))
            steps.append((target, etag_before, etag))
            rows.append(
                (target, kind._value_, etag, ordinal, event.modified_ms, start, length, has_body, first)
            )
        bodies = [
            (target, last[target].ordinal, entity.content_type, entity.body)
            for target, entity in patched.items()
            if entity.kind is Kind.PRESENT
        ]
        digest = digest.with_changes(steps)
        if outdated:
            self._db.executemany("DELETE FROM patched WHERE target = ?", outdated)
        if bodies:
            self._db.executemany("INSERT OR REPLACE INTO patched VALUES (?, ?, ?, ?)", bodies)
        self._db.execute(
            "INSERT OR REPLACE INTO digest VALUES (1, ?, ?)",
            (digest.entities, digest.total.to_bytes(_DIGEST_BYTES)),
        )
        self._recent.add(rows)
        return Folded(digest, new)

    def _patch(self, event: Event, base: Entity | None, last: Change | None, load: Load) -> Entity:
        """What a PATCH makes of `base`, which a patch has made, or of the `last` change, or of the record."""
        if base is None and last is not None:
            base = apply(None, last.event)
        elif base is None:
            record = self.record(event.target)
            base = None if record is None else load(record)
        entity = apply(base, event)
        assert entity is not None, "no change is a POST, and all others give a state"
        return entity

    def merge_some(self) -> None:
        """To be called behind `fold`, before its transaction ends: it may take a while."""
        self._recent.merge_some()

    def set_aside(self) -> None:
        """Empty the tables, and keep what was in them for `compare`."""
        self._recent.load()
        self._recent.merge_all()
        for table in ("entities", "patched"):
            self._db.execute(f"DROP TABLE IF EXISTS temp.{table}_before")
            self._db.execute(f"CREATE TEMP TABLE {table}_before AS SELECT * FROM {table}")  # noqa: S608
            self._db.execute(f"DELETE FROM {table}")  # noqa: S608 - constants
        self._db.execute("DELETE FROM digest")
        self._db.execute("CREATE UNIQUE INDEX temp.before ON entities_before (target)")

    def compare(self) -> int:
        """How many records, or bodies made by patches, differ from those that were set aside.

        A record of the same event keeps its time, of which the page has only the second.
        """
        self._recent.merge_all()
        self._db.execute(
            "UPDATE entities SET modified_ms = before.modified_ms FROM temp.entities_before AS before"
            " WHERE before.target = entities.target AND before.ordinal = entities.ordinal"
            " AND before.modified_ms / 1000 = entities.modified_ms / 1000"
        )
        wrong: set[str] = set()
        for table in ("entities", "patched"):
            for one, other in ((table, f"{table}_before"), (f"{table}_before", table)):
                query = f"SELECT target FROM (SELECT * FROM {one} EXCEPT SELECT * FROM {other})"  # noqa: S608
                wrong.update(target for (target,) in self._db.execute(query))
            self._db.execute(f"DROP TABLE temp.{table}_before")
        return len(wrong)

    def _before(self, targets: Iterable[str]) -> dict[str, tuple[str, bool, int]]:
        """Of those among `targets` that have a record: ETag, whether a patch has made it, first ordinal."""
        self._recent.load()
        recent_rows = self._recent.rows
        found: dict[str, tuple[str, bool, int]] = {}
        others: list[str] = []
        for target in targets:
            row = recent_rows.get(target)
            if row is None:
                others.append(target)
            else:
                found[target] = row[2], row[7], row[8]
        if others:
            # One row with all of them, for the reason that the statements of `recent` have.
            query = (
                "SELECT json_group_object(target, json_array(etag, patched, first_ordinal))"
                " FROM json_each(?) CROSS JOIN entities ON target = value"
            )
            asked = orjson.dumps(others).decode()
            found.update(orjson.loads(self._db.execute(query, (asked,)).fetchone()[0]))
        return found


def _record(row: Row) -> EntityRecord:
    target, kind, etag, ordinal, modified_ms, start, length, patched, _ = row
    return EntityRecord(target, Kind(kind), etag, ordinal, modified_ms, start, length, bool(patched))


def without_body(record: EntityRecord) -> Entity | None:
    """The entity of a record that has no body, or None where it has one to be read."""
    if record.kind is Kind.PRESENT:
        return None
    return DELETED if record.kind is Kind.DELETED else UNKNOWN
