"""The rows of a copy in SQL: entities of one partition read and written, and checkpoints.

The tables are those of `copy_file`; which one of two is meant is the caller's to say.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from gateway.core.state import UNKNOWN, Digest, Entity, Kind, etag_of, term

from .copy import Checkpoint, CopyFailed, Fetched
from .fold import STATES, Row

FEED_COLUMNS = "url, ordinal, content_id, entry, generation, events, entities, digest"

_KINDS = {text: kind for kind, text in STATES.items()}
_ENTITY_COLUMNS = "state, content_type, etag, last_modified, ordinal, body, extra_headers, server_etag"

BodyOf = Callable[[str, "bytes | None"], "bytes | None"]
"""The body of a target that is present, by what its row has; None if it is lost."""


def read_rows(
    db: sqlite3.Connection, table: str, partition: str, targets: Iterable[str], body_of: BodyOf
) -> dict[str, Row]:
    """The rows of those `targets` that have one; raises CopyFailed if a body is not what was recorded."""
    query = (
        f"SELECT target, {_ENTITY_COLUMNS} FROM {table} WHERE partition = ? AND target IN"  # noqa: S608
        " (SELECT value FROM json_each(?))"
    )
    found: dict[str, Row] = {}
    for (
        target,
        state,
        content_type,
        etag,
        last_modified,
        ordinal,
        body,
        extra_headers,
        server_etag,
    ) in db.execute(query, (partition, json.dumps(sorted(targets)))):
        kind = _KINDS[state]
        headers = tuple((name, value) for name, value in json.loads(extra_headers or "[]"))
        entity, kept = Entity(kind, etag or "", None, b""), None
        if kind is Kind.PRESENT:
            whole = body_of(target, body)
            if whole is None or etag_of(content_type, whole) != etag:
                raise CopyFailed(
                    f"{target} of partition {partition} is not what was copied:"
                    " delete the copy and make it again"
                )
            entity = Entity(kind, etag, content_type, whole, headers)
        elif kind is Kind.UNKNOWN:
            entity = UNKNOWN
            if body is not None:
                kept = Entity(Kind.PRESENT, etag_of(content_type, body), content_type, body, headers)
        found[target] = Row(entity, ordinal, last_modified, server_etag, kept)
    return found


def write_rows(db: sqlite3.Connection, table: str, partition: str, rows: dict[str, Row]) -> None:
    """Write each row in the place of the one that its target has, if it has one."""
    db.executemany(
        f"INSERT INTO {table} (partition, target, {_ENTITY_COLUMNS})"  # noqa: S608
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (partition, target) DO UPDATE SET"
        " state = excluded.state, content_type = excluded.content_type, etag = excluded.etag,"
        " last_modified = excluded.last_modified, ordinal = excluded.ordinal, body = excluded.body,"
        " extra_headers = excluded.extra_headers, server_etag = excluded.server_etag",
        # In the order of the index, which saves a tenth.
        [_parameters(partition, target, row) for target, row in sorted(rows.items())],
    )


def changed_digest(
    db: sqlite3.Connection, table: str, partition: str, digest: Digest, changed: dict[str, Row]
) -> Digest:
    """What `digest` becomes when those rows are written."""
    etags: dict[str, str | None] = {}
    if digest.entities:
        query = (
            f"SELECT target, etag FROM {table} WHERE partition = ? AND target IN"  # noqa: S608
            " (SELECT value FROM json_each(?))"
        )
        etags = dict(db.execute(query, (partition, json.dumps(sorted(changed)))))
    entities, total = digest
    for target, row in changed.items():
        before, after = etags.get(target), row.entity.etag
        if before:
            entities -= 1
            total -= term(target, before)
        if after:
            entities += 1
            total += term(target, after)
    # One change of nothing brings the sum back into its range.
    return Digest(entities, total) + Digest()


def save_checkpoint(db: sqlite3.Connection, table: str, partition: str, checkpoint: Checkpoint) -> None:
    """Write how far the copy of a partition has come, and when."""
    updated = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    *place, digest = checkpoint
    db.execute(
        f"INSERT OR REPLACE INTO {table} (partition, {FEED_COLUMNS}, updated)"  # noqa: S608
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (partition, *place, digest.entities, digest.hex(), updated),
    )


def move_rows(db: sqlite3.Connection, partition: str) -> None:
    """Put the partition's rows of `next_entities` in the place of those of `entities`."""
    for statement in (
        "DELETE FROM entities WHERE partition = ?",
        "INSERT INTO entities SELECT * FROM next_entities WHERE partition = ?",
        "DELETE FROM next_entities WHERE partition = ?",
    ):
        db.execute(statement, (partition,))


def resolved(row: Row, fetched: Fetched | None) -> Row:
    """The row once its server told the state; None if the one that belongs to the ETag still holds."""
    if fetched is None:
        assert row.kept is not None, "an ETag that was asked with has its representation"
        return row._replace(entity=row.kept, kept=None)
    if fetched.gone:
        return Row(Entity(Kind.DELETED, "", None, b""), row.ordinal, row.last_modified)
    content_type, body = fetched.content_type, fetched.body
    entity = Entity(Kind.PRESENT, etag_of(content_type, body), content_type, body, fetched.extra_headers)
    return Row(entity, row.ordinal, fetched.last_modified or row.last_modified, fetched.etag or "")


def _parameters(partition: str, target: str, row: Row) -> tuple[object, ...]:
    entity = row.entity
    told = entity if row.kept is None else row.kept
    return (
        partition,
        target,
        STATES[entity.kind],
        told.content_type,
        entity.etag or None,
        row.last_modified,
        row.ordinal,
        told.body if told.kind is Kind.PRESENT else None,
        json.dumps(told.extra_headers) if told.extra_headers else None,
        row.server_etag,
    )
