"""A snapshot in the making: its folder in `staging`, and the one rename that makes it appear.

    {output}/{log}/staging/{id}/attempts/    what tasks write; only the driver takes files from there
    {output}/{log}/staging/{id}/             0, 1, 2, …, buckets.json, and index.json as the last

`buckets.json` tells the next run how the parts were cut, so that it can keep those that nothing touches.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from gateway.core.errors import GatewayError
from gateway.core.links import SnapshotLinks
from gateway.core.snapshots import (
    INDEX,
    DeltaTable,
    FeedPoint,
    SnapshotIndex,
    SnapshotPart,
    part_boundary,
)
from gateway.core.state import Digest
from gateway.storage.files import OsFiles
from gateway.storage.snapshots import STAGING

from .buckets import Bucket, Layout
from .export import Export
from .parts import Written
from .places import by_number
from .stored import BUCKETS, StoredPart

ATTEMPTS = "attempts"


class PartLost(GatewayError):
    """The file of a part is not what the task said that it had written."""


def sweep(folder: Path) -> None:
    """Remove what runs have left that did not end; to be called by whoever has the lock of the folder."""
    shutil.rmtree(folder / STAGING, ignore_errors=True)


class Staging:
    """The folder of a run that started at `started`, milliseconds since the Unix epoch, until `publish`."""

    def __init__(self, folder: Path, started: int) -> None:
        self._started = started
        self._id = _snapshot_id(started)
        self._links = SnapshotLinks(folder.name)
        self._final = folder / self._id
        self._folder = folder / STAGING / self._id
        self._files = OsFiles()
        self._files.make_folder(self.attempts)

    @property
    def attempts(self) -> Path:
        """Where tasks write."""
        return self._folder / ATTEMPTS

    def collect(
        self, export: Export, written: Mapping[Bucket, Written], progress: Callable[[int, int], None]
    ) -> list[StoredPart]:
        """Bring what tasks have written and what is kept into its place; raises PartLost, OSError.

        Parts come by partition, then by bucket.
        """
        buckets = sorted(
            written.keys() | export.kept.keys(), key=lambda bucket: (by_number(bucket[0]), bucket[1])
        )
        parts = []
        for number, bucket in enumerate(buckets):
            if bucket in written:
                parts.append(self._adopt(written[bucket], number, export.written[bucket].size))
            else:
                parts.append(self._keep(export.kept[bucket], number))
            progress(number + 1, len(buckets))
        return parts

    def publish(
        self,
        parts: list[StoredPart],
        layout: Layout,
        feeds: tuple[FeedPoint, ...],
        delta: dict[str, DeltaTable],
        now_ms: Callable[[], int],
    ) -> SnapshotIndex:
        """Write the index of `parts`, and give the folder its name; raises OSError."""
        total = sum((found.sum.digest for found in parts), Digest())
        index = SnapshotIndex(
            id=self._id,
            log=self._links.log,
            started=self._started,
            completed=max(now_ms(), self._started),
            feeds=feeds,
            parts=tuple(found.part for found in parts),
            entities=total.entities,
            digest=total.hex(),
            delta=delta,
        )
        cut = {
            "buckets": dict(layout.buckets),
            "parts": [(found.bucket[1], found.body_bytes) for found in parts],
        }
        shutil.rmtree(self.attempts)
        self._write(BUCKETS, json.dumps(cut).encode() + b"\n")
        self._files.sync_folder(self._folder)
        self._write(INDEX, index.to_json())
        self._files.sync_folder(self._folder)
        self._folder.rename(self._final)
        self._files.sync_folder(self._final.parent)
        return index

    def _adopt(self, written: Written, number: int, body_bytes: int) -> StoredPart:
        attempt = self.attempts / written.file
        if not attempt.is_file() or attempt.stat().st_size != written.size:
            raise PartLost(f"{attempt} is not the {written.size} bytes that a task has written there")
        partition, digest = written.bucket[0], written.digest
        part = SnapshotPart(
            uri=self._links.part(self._id, number),
            partition=partition,
            size=written.size,
            sha256=written.sha256,
            boundary=part_boundary(self._links.log, partition, digest),
            count=digest.entities,
            digest=digest.hex(),
        )
        file = attempt.rename(self._folder / str(number))
        return StoredPart(written.bucket, part, file, body_bytes)

    def _keep(self, stored: StoredPart, number: int) -> StoredPart:
        file = self._folder / str(number)
        try:
            file.hardlink_to(stored.file)
        except OSError:
            # Not all file systems have links, and some limit their number.
            file.unlink(missing_ok=True)
            shutil.copyfile(stored.file, file)
            _sync(file)
        return replace(stored, part=replace(stored.part, uri=self._links.part(self._id, number)), file=file)

    def _write(self, name: str, data: bytes) -> None:
        path = self._folder / name
        path.write_bytes(data)
        _sync(path)


def _snapshot_id(started: int) -> str:
    moment = datetime.fromtimestamp(started // 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{started % 1000:03d}Z"


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
