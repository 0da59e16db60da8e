"""A copy in one SQLite file, which anybody may read at any time while it grows (design, "Sync database").

One transaction for each document: entities, digest and checkpoint. The write-ahead log lets readers see the
state before it until it is whole. After a power failure SQLite may be some transactions back, all of each;
the checkpoint went back with them, so reading goes on from there.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from gateway.core.identity import parse_content_id
from gateway.core.state import UNKNOWN, UNKNOWN_ETAG, Digest, Entity, Kind, etag_of, term

from .copy import Checkpoint, CopyFailed, CopyMismatch, Fetched, Source, Stored, Unresolved
from .copy_file import open_database
from .feed import FeedBroken, FeedEvent
from .fold import STATES, Row, fold, patched_targets
from .urls import without_user

_KINDS = {text: kind for kind, text in STATES.items()}
_ENTITY_COLUMNS = "state, content_type, etag, last_modified, ordinal, body, extra_headers, server_etag"
_FEED_COLUMNS = "url, ordinal, content_id, entry, generation, events, entities, digest"
_DIGEST = re.compile(r"[0-9a-f]{64}")


class SqliteCopy:
    """See `gateway.sync.copy.Copy`. Raises CopyLocked and CopyMismatch when it is opened."""

    def __init__(self, path: Path, *, durable: bool = False) -> None:
        self._path = path
        self._lock, self._db = open_database(path, durable=durable)
        self._feeds: dict[str, Checkpoint] = {}
        self._next: dict[str, Checkpoint] = {}
        try:
            self._read_checkpoints()
        except BaseException:
            self.close()
            raise

    def _read_checkpoints(self) -> None:
        with self._refusals():
            for table, checkpoints in (("feeds", self._feeds), ("next_feeds", self._next)):
                query = f"SELECT partition, {_FEED_COLUMNS} FROM {table}"  # noqa: S608 - our own names
                for partition, *place, entities, total in self._db.execute(query):
                    if type(entities) is not int or type(total) is not str or not _DIGEST.fullmatch(total):
                        raise CopyMismatch(
                            f"{self._path} is damaged, {ascii(total)[:80]} of {ascii(entities)[:20]} entities"
                            f" is no digest of partition {partition}: delete the copy and make it again"
                        )
                    checkpoints[partition] = Checkpoint._make((*place, Digest(entities, int(total, 16))))

    # What it is of

    def bind(self, source: Source, *, moved: bool = False) -> None:
        source = source._replace(url=without_user(source.url))
        with self._refusals():
            found = dict(self._db.execute("SELECT name, value FROM copy WHERE name IN ('url', 'log')"))
            if found and found["url"] != source.url and not moved:
                raise CopyMismatch(
                    f"{self._path} is a copy of {found['url']}, not of {source.url}: give another"
                    " destination, or --moved if the same events are there now"
                )
            log = source.log or ""
            if found and found["log"] != log:
                raise CopyMismatch(
                    f"{self._path} is a copy of {_named(found['log'])}, not of {_named(log)}:"
                    " give another destination"
                )
            with self._transaction():
                values = (("url", source.url), ("log", log))
                self._db.executemany("INSERT OR REPLACE INTO copy VALUES (?, ?)", values)

    def begin(self, partition: str, url: str) -> None:
        with self._refusals(), self._transaction():
            url = without_user(url)
            empty = Checkpoint(url, None, None, None, None, 0, Digest())
            current = self._feeds.get(partition, empty)._replace(url=url)
            self._save("feeds", partition, current)
            following = self._next.get(partition)
            if following is not None:
                following = following._replace(url=url)
                self._save("next_feeds", partition, following)
        self._feeds[partition] = current
        if following is not None:
            self._next[partition] = following

    def partitions(self) -> list[str]:
        return list(self._feeds)

    def checkpoint(self, partition: str) -> Checkpoint:
        return self._next.get(partition) or self._feeds[partition]

    def starting_over(self, partition: str) -> bool:
        return partition in self._next

    # Events

    def apply(self, partition: str, events: Sequence[FeedEvent]) -> None:
        if not events:
            return
        before = self.checkpoint(partition)
        table = self._table(partition)
        last = events[-1]
        first_ordinal = before.events if events[0].ordinal is None else events[0].ordinal
        if before.ordinal is not None and first_ordinal != before.ordinal + 1:
            raise FeedBroken(
                events[0].document,
                f"goes on with event {first_ordinal} behind event {before.ordinal}",
                "draft, The Content-ID header",
            )
        with self._refusals():
            with self._transaction():
                stored = self._rows(table, partition, patched_targets(events))
                changed = fold(stored, events, first_ordinal)
                digest = self._changed_digest(table, partition, before.digest, changed)
                self._write(table, partition, changed)
                content_id = parse_content_id(last.content_id)
                after = Checkpoint(
                    before.url,
                    first_ordinal + len(events) - 1,
                    last.content_id,
                    last.entry,
                    None if content_id is None else content_id.generation,
                    before.events + len(events),
                    digest,
                )
                self._save(self._feed_table(partition), partition, after)
            self._set(partition, after)
            self._committed()

    def _changed_digest(self, table: str, partition: str, digest: Digest, changed: dict[str, Row]) -> Digest:
        etags: dict[str, str | None] = {}
        if digest.entities:
            query = (
                f"SELECT target, etag FROM {table} WHERE partition = ? AND target IN"  # noqa: S608
                " (SELECT value FROM json_each(?))"
            )
            etags = dict(self._db.execute(query, (partition, json.dumps(sorted(changed)))))
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

    # Starting over

    def start_over(self, partition: str, reason: str) -> None:
        empty = Checkpoint(self._feeds[partition].url, None, None, None, None, 0, Digest())
        with self._refusals(), self._transaction():
            self._db.execute("DELETE FROM next_entities WHERE partition = ?", (partition,))
            self._save("next_feeds", partition, empty)
        self._next[partition] = empty

    def complete(self, partition: str) -> None:
        if partition not in self._next:
            return
        after = self._next[partition]
        with self._refusals():
            with self._transaction():
                self._replace_entities(partition)
                self._save("feeds", partition, after)
                self._db.execute("DELETE FROM next_feeds WHERE partition = ?", (partition,))
            del self._next[partition]
            self._feeds[partition] = after
            self._committed()

    def _replace_entities(self, partition: str) -> None:
        for statement in (
            "DELETE FROM entities WHERE partition = ?",
            "INSERT INTO entities SELECT * FROM next_entities WHERE partition = ?",
            "DELETE FROM next_entities WHERE partition = ?",
        ):
            self._db.execute(statement, (partition,))

    # Targets that only their own server can tell

    def unresolved(self, partition: str) -> list[Unresolved]:
        table = self._table(partition)
        query = f"SELECT target, server_etag FROM {table} WHERE partition = ? AND state = 'unknown'"  # noqa: S608
        with self._refusals():
            return [Unresolved(*row) for row in self._db.execute(query, (partition,))]

    def resolve(self, partition: str, target: str, fetched: Fetched | None) -> None:
        table = self._table(partition)
        with self._refusals():
            with self._transaction():
                row = self._rows(table, partition, {target})[target]
                resolved = _resolved(row, fetched)
                before = self.checkpoint(partition)
                digest = before.digest.with_change(target, row.entity.etag, resolved.entity.etag)
                after = before._replace(digest=digest)
                self._write(table, partition, {target: resolved})
                self._save(self._feed_table(partition), partition, after)
            self._set(partition, after)
            self._committed()

    # Reading it back

    def stored(self, partition: str) -> Iterator[Stored]:
        """All entities that count in the digest, each ETag computed anew from what is kept."""
        query = (
            "SELECT target, state, content_type, etag, body FROM entities"
            " WHERE partition = ? AND state <> 'deleted'"
        )
        with self._refusals():
            for target, state, content_type, etag, body in self._db.execute(query, (partition,)):
                if state == "unknown":
                    yield Stored(target, etag, UNKNOWN_ETAG)
                    continue
                found = self._body(partition, target, body)
                yield Stored(target, etag, "" if found is None else etag_of(content_type, found))

    def close(self) -> None:
        try:
            with self._refusals():
                self._db.close()
        finally:
            self._lock.release()

    # What a folder does differently

    def _body(self, partition: str, target: str, body: bytes | None) -> bytes | None:
        """The body of an entity that is present, None if it is lost."""
        return body

    def _changed(self, partition: str, targets: Sequence[str]) -> None:
        """Called within the transaction that changes entities which readers see."""

    def _committed(self) -> None:
        """Called after it."""

    # Rows

    def _table(self, partition: str) -> str:
        return "next_entities" if partition in self._next else "entities"

    def _feed_table(self, partition: str) -> str:
        return "next_feeds" if partition in self._next else "feeds"

    def _set(self, partition: str, checkpoint: Checkpoint) -> None:
        (self._next if partition in self._next else self._feeds)[partition] = checkpoint

    def _rows(self, table: str, partition: str, targets: set[str]) -> dict[str, Row]:
        if not targets:
            return {}
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
        ) in self._db.execute(query, (partition, json.dumps(sorted(targets)))):
            kind = _KINDS[state]
            headers = tuple((name, value) for name, value in json.loads(extra_headers or "[]"))
            entity, kept = Entity(kind, etag or "", None, b""), None
            if kind is Kind.PRESENT:
                whole = self._body(partition, target, body)
                if whole is None or etag_of(content_type, whole) != etag:
                    raise CopyFailed(
                        f"{self._path}: {target} of partition {partition} is not what was copied:"
                        " delete the copy and make it again"
                    )
                entity = Entity(kind, etag, content_type, whole, headers)
            elif kind is Kind.UNKNOWN:
                entity = UNKNOWN
                if body is not None:
                    kept = Entity(Kind.PRESENT, etag_of(content_type, body), content_type, body, headers)
            found[target] = Row(entity, ordinal, last_modified, server_etag, kept)
        return found

    def _write(self, table: str, partition: str, rows: dict[str, Row]) -> None:
        self._db.executemany(
            f"INSERT INTO {table} (partition, target, {_ENTITY_COLUMNS})"  # noqa: S608
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (partition, target) DO UPDATE SET"
            " state = excluded.state, content_type = excluded.content_type, etag = excluded.etag,"
            " last_modified = excluded.last_modified, ordinal = excluded.ordinal, body = excluded.body,"
            " extra_headers = excluded.extra_headers, server_etag = excluded.server_etag",
            # In the order of the index, which saves a tenth.
            [_parameters(partition, target, row) for target, row in sorted(rows.items())],
        )
        if table == "entities":
            self._changed(partition, list(rows))

    def _save(self, table: str, partition: str, checkpoint: Checkpoint) -> None:
        updated = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        *place, digest = checkpoint
        self._db.execute(
            f"INSERT OR REPLACE INTO {table} (partition, {_FEED_COLUMNS}, updated)"  # noqa: S608
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (partition, *place, digest.entities, digest.hex(), updated),
        )

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise CopyFailed(f"{self._path}: {error}") from error


def _resolved(row: Row, fetched: Fetched | None) -> Row:
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


def _named(log: str) -> str:
    return f"the log {log}" if log else "a single feed"
