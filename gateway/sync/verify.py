"""Whether a copy is what its gateway says: digests of one position compared, and what differs found.

The digest of the copy is made from its bodies, not from what was recorded beside them, so that a body that
changed on the disk shows, too. Where digests differ, the feed is replayed into a temporary copy, which tells
the targets.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path

from gateway.core.state import Digest, term

from .copy import Stored
from .feed import ReaderSettings
from .fetch import Fetcher
from .observer import Observer
from .partition import PartitionSync
from .source import PartitionHead
from .sqlite_copy import SqliteCopy
from .verdict import DIFFERENCES_MAX, Difference, PartitionVerdict, Verdict


async def compare(
    copy: SqliteCopy, heads: dict[str, PartitionHead], *, fetcher: Fetcher, settings: ReaderSettings
) -> Verdict:
    """Compare a copy that is exactly at the position of `heads` with their digests."""
    verdicts: list[PartitionVerdict] = []
    for partition, head in heads.items():
        assert head.digest is not None, "a server without digests is not compared with"
        verdict = PartitionVerdict(partition, head.last, _digest(copy.stored(partition)), head.digest)
        if not verdict.equal:
            replayed, differences = await _differences(copy, partition, head, fetcher, settings)
            verdict = verdict._replace(replayed=replayed, differences=differences)
        verdicts.append(verdict)
    unknown = tuple(partition for partition in copy.partitions() if partition not in heads)
    return Verdict(tuple(verdicts), unknown)


def _digest(stored: Iterator[Stored]) -> Digest:
    entities = total = 0
    for entity in stored:
        entities += 1
        total += term(entity.target, entity.etag)
    # A sum with nothing brings the total into its range.
    return Digest(entities, total) + Digest()


async def _differences(
    copy: SqliteCopy, partition: str, head: PartitionHead, fetcher: Fetcher, settings: ReaderSettings
) -> tuple[Digest, tuple[Difference, ...]]:
    """The digest of the feed's replay up to the same event, and the targets that differ from it."""
    with tempfile.TemporaryDirectory(prefix="wes-verify-") as folder:
        path = Path(folder) / "replay.sqlite"
        replay = SqliteCopy(path)
        try:
            sync = PartitionSync(
                replay, partition, head.url, fetcher=fetcher, settings=settings, observer=Observer()
            )
            if head.last is not None:
                await sync.run(until=head.last)
            digest = replay.checkpoint(partition).digest
        finally:
            replay.close()
        db = sqlite3.connect(path, isolation_level=None)
        try:
            return digest, _compared(db, copy.stored(partition))
        finally:
            db.close()


def _compared(db: sqlite3.Connection, stored: Iterator[Stored]) -> tuple[Difference, ...]:
    """The targets whose ETags differ between the replay in `db` and the copy."""
    db.execute("CREATE TABLE found (target TEXT PRIMARY KEY, etag TEXT) WITHOUT ROWID")
    db.execute("BEGIN")
    db.executemany("INSERT INTO found VALUES (?, ?)", ((item.target, item.etag or None) for item in stored))
    db.execute("COMMIT")
    rows = db.execute(
        "SELECT found.target, found.etag, entities.etag FROM found"
        " LEFT JOIN entities ON entities.target = found.target WHERE found.etag IS NOT entities.etag"
        " UNION ALL SELECT target, NULL, etag FROM entities"
        " WHERE state <> 'deleted' AND target NOT IN (SELECT target FROM found) ORDER BY 1 LIMIT ?",
        (DIFFERENCES_MAX,),
    )
    return tuple(Difference(*row) for row in rows)
