"""Snapshots that are there, as far as a run needs them: what the newest is, and which of its parts can stay.

`buckets.json` in the folder of a snapshot tells how its parts were cut, which nobody else needs to know.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gateway.core.errors import DecodeError
from gateway.core.snapshots import INDEX, SnapshotIndex, SnapshotPart, read_index
from gateway.core.state import Digest

from .buckets import Bucket, Layout
from .counts import BucketSum

BUCKETS = "buckets.json"


@dataclass(frozen=True, slots=True)
class StoredPart:
    """A part in its place: its file, and the bytes of the bodies in it."""

    bucket: Bucket
    part: SnapshotPart
    file: Path
    body_bytes: int

    @property
    def sum(self) -> BucketSum:
        """What is in it."""
        return BucketSum(Digest(self.part.count, int(self.part.digest, 16)), self.body_bytes)


@dataclass(frozen=True, slots=True)
class Previous:
    """The newest snapshot, as far as a new one can go on from it."""

    index: SnapshotIndex
    layout: Layout
    parts: Mapping[Bucket, StoredPart]


def previous(folder: Path, index: SnapshotIndex) -> Previous | None:
    """The snapshot of `index` in `folder`, or None if it does not tell how it was cut, or lacks a part."""
    try:
        content = json.loads((folder / BUCKETS).read_bytes())
        layout = Layout({str(name): int(count) for name, count in content["buckets"].items()})
        parts = {}
        for number, (part, (bucket, size)) in enumerate(zip(index.parts, content["parts"], strict=True)):
            file = folder / str(number)
            if file.stat().st_size != part.size:
                return None
            parts[part.partition, int(bucket)] = StoredPart(
                (part.partition, int(bucket)), part, file, int(size)
            )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return Previous(index, layout, parts)


def indexes(folder: Path) -> Iterator[SnapshotIndex]:
    """The indexes of the snapshots in `folder`, `{output}/{log}`, that can be read, the newest first."""
    names = [path.parent.name for path in folder.glob(f"*/{INDEX}")]
    for name in sorted(names, reverse=True):
        try:
            index = read_index((folder / name / INDEX).read_bytes())
        except (OSError, DecodeError):
            continue
        if index.id == name:
            yield index
