"""Snapshots for tests of whatever reads them: rendered by the core, and put into place by one rename."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256
from pathlib import Path

from gateway.core.identity import ContentID
from gateway.core.links import FeedLinks, SnapshotLinks
from gateway.core.snapshots import (
    INDEX,
    FeedPoint,
    Held,
    SnapshotIndex,
    SnapshotPart,
    held,
    part_boundary,
    render_part,
)
from gateway.core.state import Digest, Entity, Kind, etag_of
from gateway.core.times import parse_rfc3339
from gateway.storage.filestore import StoredFeed, feed_folder

TARGETS_MAX = 10_000


def item(target: str, body: bytes, *, ordinal: int = 0, modified_ms: int | None = None) -> Held:
    """A present entity as it stands in a part."""
    content_type = "application/octet-stream"
    entity = Entity(Kind.PRESENT, etag_of(content_type, body), content_type, body)
    return held(target, entity, FeedLinks("things", "0").entry(ordinal), modified_ms)


def add_snapshot(
    root: Path,
    log: str,
    id_: str,
    parts: Iterable[tuple[str, Sequence[Held]]],
    feeds: Sequence[FeedPoint] = (),
) -> SnapshotIndex:
    """Put a snapshot into `root`; each of `parts` is the name of a partition and what the part holds."""
    links = SnapshotLinks(log)
    staging = root / log / "staging" / id_
    staging.mkdir(parents=True)
    described = []
    for number, (partition, items) in enumerate(parts):
        digest = Digest().with_changes((one.target, "", one.entity.etag) for one in items)
        boundary = part_boundary(log, partition, digest)
        document = b"".join(render_part(boundary, items))
        (staging / str(number)).write_bytes(document)
        described.append(
            SnapshotPart(
                links.part(id_, number),
                partition,
                len(document),
                sha256(document).hexdigest(),
                boundary,
                digest.entities,
                digest.hex(),
            )
        )
    total = sum((Digest(part.count, int(part.digest, 16)) for part in described), Digest())
    started = parse_rfc3339(id_)
    index = SnapshotIndex(
        id=id_,
        log=log,
        started=started,
        completed=started + 1_000,
        feeds=tuple(feeds),
        parts=tuple(described),
        entities=total.entities,
        digest=total.hex(),
        delta={},
    )
    (staging / INDEX).write_bytes(index.to_json())
    staging.rename(root / log / id_)
    return index


def add_snapshot_of(data: Path, log: str, id_: str) -> SnapshotIndex:
    """Put a snapshot of what the feeds in a data folder have come to into its folder of snapshots."""
    parts: list[tuple[str, list[Held]]] = []
    feeds: list[FeedPoint] = []
    for folder in sorted(feed_folder(data, log, "0").parent.iterdir()):
        reader = StoredFeed(folder)
        try:
            reader.refresh()
            head = reader.head
            page = head.page
            if page is None:
                continue
            name, links = reader.settings.name, FeedLinks(log, folder.name)
            last = page.last_ordinal
            content_id = ContentID(last, page.generation, name.partition, name.log, name.authority)
            feeds.append(
                FeedPoint(
                    name.partition, last, links.entry(last), str(content_id), links.archive(page.number)
                )
            )
            items = []
            for target in sorted(reader.targets_from(0, head.next_ordinal, "", TARGETS_MAX)):
                record = reader.entity(target)
                if record.kind is Kind.DELETED:
                    continue
                entity = reader.representation(record)
                items.append(held(target, entity, links.entry(record.ordinal), record.modified_ms))
            if items:
                parts.append((name.partition, items))
        finally:
            reader.close()
    return add_snapshot(data / "snapshots", log, id_, parts, feeds)
