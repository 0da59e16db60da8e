"""A copy in one SQLite file, which anybody may read at any time while it grows (design, "Sync database").

One transaction for each document: entities, digest and checkpoint. The write-ahead log lets readers see the
state before it until it is whole. After a power failure SQLite may be some transactions back, all of each;
the checkpoint went back with them, so reading goes on from there.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from gateway.core.identity import parse_content_id
from gateway.core.state import UNKNOWN_ETAG, Digest, etag_of

from .copy import (
    Begun,
    Checkpoint,
    CopyFailed,
    CopyMismatch,
    Fetched,
    PartMismatch,
    SnapshotName,
    Source,
    Stored,
    Unresolved,
)
from .copy_file import open_database
from .copy_rows import (
    FEED_COLUMNS,
    changed_digest,
    move_rows,
    read_rows,
    resolved,
    save_checkpoint,
    write_rows,
)
from .feed import FeedBroken, FeedEvent, Position
from .fold import NOT_TOLD, Row, fold, patched_targets
from .urls import without_user

_DIGEST = re.compile(r"[0-9a-f]{64}")


class SqliteCopy:
    """See `gateway.sync.copy.EntityCopy`. Raises CopyLocked and CopyMismatch when it is opened."""

    def __init__(self, path: Path, *, durable: bool = False) -> None:
        self._path = path
        self._lock, self._db = open_database(path, durable=durable)
        self._feeds: dict[str, Checkpoint] = {}
        self._next: dict[str, Checkpoint] = {}
        self._begun: dict[str, Begun] = {}
        try:
            self._read_checkpoints()
            self._read_begun()
        except BaseException:
            self.close()
            raise

    def _read_checkpoints(self) -> None:
        with self._refusals():
            for table, checkpoints in (("feeds", self._feeds), ("next_feeds", self._next)):
                query = f"SELECT partition, {FEED_COLUMNS} FROM {table}"  # noqa: S608 - our own names
                for partition, *place, entities, total in self._db.execute(query):
                    if type(entities) is not int or type(total) is not str or not _DIGEST.fullmatch(total):
                        raise CopyMismatch(
                            f"{self._path} is damaged, {ascii(total)[:80]} of {ascii(entities)[:20]} entities"
                            f" is no digest of partition {partition}: delete the copy and make it again"
                        )
                    checkpoints[partition] = Checkpoint._make((*place, Digest(entities, int(total, 16))))

    def _read_begun(self) -> None:
        with self._refusals():
            query = "SELECT partition, whole, url, id, digest, started FROM snapshots"
            for partition, whole, *name in self._db.execute(query):
                self._begun[partition] = Begun(SnapshotName._make(name), whole=bool(whole))

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
                changed = fold(stored, events, first_ordinal, ask=self._in_time_frame(partition))
                digest = changed_digest(self._db, table, partition, before.digest, changed)
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

    # Starting over

    def start_over(self, partition: str, reason: str) -> None:
        empty = Checkpoint(self._feeds[partition].url, None, None, None, None, 0, Digest())
        with self._refusals(), self._transaction():
            self._clear_next(partition)
            self._save("next_feeds", partition, empty)
        self._next[partition] = empty
        self._begun.pop(partition, None)

    def complete(self, partition: str) -> None:
        if partition not in self._next:
            return
        after = self._next[partition]
        with self._refusals():
            with self._transaction():
                if self._in_time_frame(partition):
                    # What the feed left as it was is exactly the state that later patches build on.
                    self._db.execute(
                        "UPDATE next_entities SET server_etag = NULL WHERE partition = ? AND ordinal = ?",
                        (partition, NOT_TOLD),
                    )
                self._move_entities(partition)
                self._clear_next(partition)
                self._save("feeds", partition, after)
            del self._next[partition]
            self._begun.pop(partition, None)
            self._feeds[partition] = after
            self._committed()

    def _clear_next(self, partition: str) -> None:
        for table in ("next_entities", "next_feeds", "snapshots", "snapshot_parts"):
            self._db.execute(f"DELETE FROM {table} WHERE partition = ?", (partition,))  # noqa: S608

    # Beginning with a snapshot

    def begun(self, partition: str) -> Begun | None:
        return self._begun.get(partition)

    def begin_snapshot(self, partition: str, snapshot: SnapshotName) -> None:
        empty = Checkpoint(self._feeds[partition].url, None, None, None, None, 0, Digest())
        with self._refusals(), self._transaction():
            self._clear_next(partition)
            self._save("next_feeds", partition, empty)
            self._db.execute(
                "INSERT INTO snapshots VALUES (?, ?, ?, ?, ?, 0)",
                (partition, *snapshot),
            )
        self._next[partition] = empty
        self._begun[partition] = Begun(snapshot, whole=False)

    def taken_parts(self, partition: str) -> set[str]:
        with self._refusals():
            query = "SELECT uri FROM snapshot_parts WHERE partition = ?"
            return {uri for (uri,) in self._db.execute(query, (partition,))}

    def take_part(self, partition: str, uri: str, rows: dict[str, Row], told: Digest | None) -> None:
        assert partition in self._begun, "a part belongs to the snapshot that was begun"
        before = self._next[partition]
        with self._refusals(), self._transaction():
            digest = changed_digest(self._db, "next_entities", partition, before.digest, rows)
            if told is not None and digest != before.digest + told:
                raise PartMismatch(f"{uri} does not add the entities and the digest that its index tells")
            write_rows(self._db, "next_entities", partition, rows)
            after = before._replace(digest=digest)
            self._save("next_feeds", partition, after)
            self._db.execute("INSERT INTO snapshot_parts VALUES (?, ?)", (partition, uri))
        self._next[partition] = after

    def end_snapshot(self, partition: str, ordinal: int | None, position: Position | None) -> None:
        content_id, entry = (None, None) if position is None else position
        ours = None if content_id is None else parse_content_id(content_id)
        after = self._next[partition]._replace(
            ordinal=ordinal,
            content_id=content_id,
            entry=entry,
            generation=None if ours is None else ours.generation,
            events=0 if ordinal is None else ordinal + 1,
        )
        with self._refusals(), self._transaction():
            self._save("next_feeds", partition, after)
            self._db.execute("UPDATE snapshots SET whole = 1 WHERE partition = ?", (partition,))
            self._db.execute("DELETE FROM snapshot_parts WHERE partition = ?", (partition,))
        self._next[partition] = after
        self._begun[partition] = self._begun[partition]._replace(whole=True)
        if self._feeds[partition].content_id is None and not self._in_time_frame(partition):
            self.complete(partition)

    def drop_snapshot(self, partition: str) -> None:
        if partition not in self._begun:
            return
        if self._feeds[partition].content_id is not None:
            self.start_over(partition, "")
            return
        with self._refusals(), self._transaction():
            self._clear_next(partition)
        del self._next[partition], self._begun[partition]

    def _in_time_frame(self, partition: str) -> bool:
        """Whether the growing state may be newer than the events that come."""
        begun = self._begun.get(partition)
        return begun is not None and begun.snapshot.digest is None

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
                told = resolved(row, fetched)
                before = self.checkpoint(partition)
                digest = before.digest.with_change(target, row.entity.etag, told.entity.etag)
                after = before._replace(digest=digest)
                self._write(table, partition, {target: told})
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
        try:
            return read_rows(
                self._db, table, partition, targets, lambda target, body: self._body(partition, target, body)
            )
        except CopyFailed as error:
            raise CopyFailed(f"{self._path}: {error}") from None

    def _write(self, table: str, partition: str, rows: dict[str, Row]) -> None:
        write_rows(self._db, table, partition, rows)
        if table == "entities":
            self._changed(partition, list(rows))

    def _save(self, table: str, partition: str, checkpoint: Checkpoint) -> None:
        save_checkpoint(self._db, table, partition, checkpoint)

    def _move_entities(self, partition: str) -> None:
        """Called within the transaction that puts the second state in the place of the first."""
        move_rows(self._db, partition)

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


def _named(log: str) -> str:
    return f"the log {log}" if log else "a single feed"
