"""The current state of a partition's targets, in its catalogue: what the events have made of them.

A row tells where the event is that made the state, as a place in a page, so that no body is stored twice.
Only what a patch has made has a body of its own here: in the order of the events, so that those of a batch
are side by side. Rows change in the transaction that commits their events, first among the recent ones (see
there), and can be made again from the pages.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import orjson

from gateway.core.event import Event, Method
from gateway.core.pages import Change
from gateway.core.state import DELETED, UNKNOWN, Digest, Entity, Kind, apply, settled

from . import recent
from .recent import RecentRecords
from .records import NO_TIME, PATCHED, EntityRecord, ordinal_bytes, pack, packed, spelled, unpacked

SCHEMA = f"""
{recent.SCHEMA}
CREATE TABLE patched (
    ordinal INTEGER PRIMARY KEY, target TEXT NOT NULL, content_type TEXT, body BLOB NOT NULL
);
CREATE TABLE digest (
    one INTEGER PRIMARY KEY CHECK (one = 1), entities INTEGER NOT NULL, total BLOB NOT NULL
);
"""

_DIGEST_BYTES = 32


class Folded(NamedTuple):
    """What changes have made: the digest after them, and the records of targets that had none before."""

    digest: Digest
    new: dict[str, bytes]


Load = Callable[[EntityRecord], Entity]
"""The entity that a record tells of; raises PageDamaged."""


class EntityTable:
    """The state in one catalogue; raises sqlite3.Error where SQLite does."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._recent = RecentRecords(db)

    def record(self, target: str) -> EntityRecord | None:
        """The record of a target, or None if it never had state."""
        self._recent.load()
        stored = self._recent.get(target)
        if stored is None:
            query = "SELECT record FROM entities WHERE target = ?"
            (stored,) = self._db.execute(query, (target,)).fetchone() or (None,)
        return None if stored is None else unpacked(target, stored)

    def patched(self, record: EntityRecord) -> Entity | None:
        """The entity that a patch has made, or None if the target has changed since the record was read."""
        query = "SELECT content_type, body FROM patched WHERE ordinal = ?"
        row = self._db.execute(query, (record.ordinal,)).fetchone()
        return None if row is None else Entity(record.kind, record.etag, *row)

    def targets_from(self, start: int, end: int, after: str, limit: int) -> list[str]:
        """Targets behind `after` whose first state is from an event in [start, end); looks at all of them."""
        self._recent.load()
        rows = self._db.execute(
            "SELECT target FROM entities WHERE target > ? AND record >= ? AND record < ?"
            " ORDER BY target LIMIT ?",
            (after, ordinal_bytes(start), ordinal_bytes(end), limit),
        )
        found = {target for (target,) in rows}
        found.update(self._recent.firsts(start, end, after))
        return sorted(found)[:limit]

    def first_ordinals(self, targets: Sequence[str]) -> list[tuple[str, int]]:
        return [(target, record.first_ordinal) for target, record in self._before(targets).items()]

    def digest(self) -> Digest:
        """The digest over all entities."""
        row = self._db.execute("SELECT entities, total FROM digest").fetchone()
        return Digest() if row is None else Digest(row[0], int.from_bytes(row[1]))

    def fold(self, changes: Sequence[Change], load: Load, digest: Digest) -> Folded:
        """Apply `changes` within a transaction; `digest` is the one before. Raises what `load` raises."""
        targets = [change.event.target for change in changes]
        last = dict(zip(targets, changes, strict=True))
        chains: dict[str, list[Change]] = {}
        """The changes of each target, if there are several of any."""
        if len(last) < len(changes):
            for target, change in zip(targets, changes, strict=True):
                chains.setdefault(target, []).append(change)
        before = self._before(last)
        records: dict[str, bytes] = {}
        steps: list[tuple[str, str, str]] = []
        bodies: list[tuple[int, str, str | None, bytes]] = []
        outdated: list[tuple[int]] = []
        states = settled([change.event for change in last.values()])
        for (target, change), state in zip(last.items(), states, strict=True):
            ordinal, event, start, length = change
            found = before.get(target)
            has_body = False
            if state is not None:
                kind, etag, hashed = state
            else:
                kind, etag, content_type, body, _ = _patched(chains.get(target, [change]), found, load)
                hashed = spelled(kind, etag)
                has_body = kind is Kind.PRESENT
                if has_body:
                    bodies.append((ordinal, target, content_type, body))
            if found is None:
                etag_before, first = "", chains[target][0].ordinal if chains else ordinal
            else:
                etag_before, first = found.etag, found.first_ordinal
                if found.patched:
                    outdated.append((found.ordinal,))
            steps.append((target, etag_before, etag))
            time = event.modified_ms
            records[target] = pack(
                first,
                ordinal,
                NO_TIME if time is None else time,
                start,
                length,
                kind._value_ + PATCHED if has_body else kind._value_,
                hashed,
            )
        digest = digest.with_changes(steps)
        if outdated:
            self._db.executemany("DELETE FROM patched WHERE ordinal = ?", outdated)
        if bodies:
            self._db.executemany("INSERT INTO patched VALUES (?, ?, ?, ?)", bodies)
        self._db.execute(
            "INSERT OR REPLACE INTO digest VALUES (1, ?, ?)",
            (digest.entities, digest.total.to_bytes(_DIGEST_BYTES)),
        )
        self._recent.add(records)
        new = {target: record for target, record in records.items() if target not in before}
        return Folded(digest, new)

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
        self._db.create_function("with_time_of", 2, _with_time_of, deterministic=True)
        self._db.execute(
            "UPDATE entities SET record = with_time_of(entities.record, before.record)"
            " FROM temp.entities_before AS before"
            " WHERE before.target = entities.target AND before.record != entities.record"
        )
        wrong: set[str] = set()
        for table in ("entities", "patched"):
            for one, other in ((table, f"{table}_before"), (f"{table}_before", table)):
                query = f"SELECT target FROM (SELECT * FROM {one} EXCEPT SELECT * FROM {other})"  # noqa: S608
                wrong.update(target for (target,) in self._db.execute(query))
            self._db.execute(f"DROP TABLE temp.{table}_before")
        return len(wrong)

    def _before(self, targets: Collection[str]) -> dict[str, EntityRecord]:
        """The records of those among `targets` that have one."""
        self._recent.load()
        found: dict[str, EntityRecord] = {}
        others = self._recent.without(targets)
        if len(others) < len(targets):
            for target in targets:
                stored = self._recent.get(target)
                if stored is not None:
                    found[target] = unpacked(target, stored)
        if others:
            # One row with all of them, for the reason that the statements of `recent` have.
            query = (
                "SELECT json_group_object(target, hex(record))"
                " FROM json_each(?) CROSS JOIN entities ON target = value"
            )
            asked = orjson.dumps(others).decode()
            kept = orjson.loads(self._db.execute(query, (asked,)).fetchone()[0])
            found.update((target, unpacked(target, bytes.fromhex(text))) for target, text in kept.items())
        return found


def _patched(chain: Sequence[Change], before: EntityRecord | None, load: Load) -> Entity:
    """What the changes of one target, the last of them a PATCH, make of it; raises what `load` raises."""
    patches: list[Event] = []
    entity: Entity | None
    for change in reversed(chain):
        event = change.event
        if event.method is not Method.PATCH:
            entity = apply(None, event)
            break
        patches.append(event)
    else:
        entity = None if before is None else load(before)
    for patch in reversed(patches):
        entity = apply(entity, patch)
    assert entity is not None, "no change is a POST, and all others give a state"
    return entity


def _with_time_of(stored: bytes, before: bytes) -> bytes:
    """`stored` with the time of the record before, if both are of one event."""
    record, kept = unpacked("", stored), unpacked("", before)
    if record.ordinal != kept.ordinal or record.modified_ms is None or kept.modified_ms is None:
        return stored
    if record.modified_ms // 1000 != kept.modified_ms // 1000:
        return stored
    return packed(record._replace(modified_ms=kept.modified_ms))


def without_body(record: EntityRecord) -> Entity | None:
    """The entity of a record that has no body, or None where it has one to be read."""
    if record.kind is Kind.PRESENT:
        return None
    return DELETED if record.kind is Kind.DELETED else UNKNOWN
