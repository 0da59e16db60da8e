"""Snapshot parts, written by tasks: each row of `state` becomes an entity in the file of its bucket.

A task writes to files of its own attempt. What it has written counts only if it is what Spark had computed
from the table before: as many entities, and their digest, which is made here from the bodies themselves. An
iterator of Spark can end early as if nothing were wrong, and then the part would be well-formed all the same.
"""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from gateway.core.errors import GatewayError
from gateway.core.multipart import closing_delimiter
from gateway.core.snapshots import Held, held, part_boundary, render_held
from gateway.core.state import UNKNOWN, Digest, Entity, Kind, etag_of

from .buckets import Bucket
from .fold import STATES

PART_COLUMNS = (
    "partition",
    "bucket",
    "target",
    "state",
    "content_type",
    "last_modified",
    "entry",
    "headers",
    "body",
)
WRITTEN_SQL = (
    "partition STRING, bucket INT, file STRING, size BIGINT, sha256 STRING, entities BIGINT, digest STRING"
)
WRITTEN = pa.schema(
    [
        ("partition", pa.string()),
        ("bucket", pa.int32()),
        ("file", pa.string()),
        ("size", pa.int64()),
        ("sha256", pa.string()),
        ("entities", pa.int64()),
        ("digest", pa.string()),
    ]
)
_WRITE_BYTES = 256 * 1024


class PartDiffers(GatewayError):
    """A part holds other entities than the table `state`; it is not published."""

    def __init__(self, bucket: Bucket, *, expected: Digest, found: Digest) -> None:
        super().__init__(
            f"the part of partition {bucket[0]}, bucket {bucket[1]}, has {found.entities} entities with the"
            f" digest {found.hex()} instead of {expected.entities} with {expected.hex()}: rows were lost on"
            " their way, or the table state is damaged. If a new run says the same, make the tables anew with"
            " --rebuild"
        )


class OutputNotShared(GatewayError):
    """A task does not see the folder into which it should write."""


class Written(NamedTuple):
    """A part that a task has written to `file` in the folder of attempts."""

    bucket: Bucket
    file: str
    size: int
    sha256: str
    digest: Digest


def write_parts(
    batches: Iterable[pa.RecordBatch],
    expected: Mapping[Bucket, Digest],
    folder: Path,
    log: str,
    attempt: str,
) -> Iterator[pa.RecordBatch]:
    """Write the rows of `batches` to parts in `folder`; yields what was written, as WRITTEN.

    The rows have PART_COLUMNS and come by partition, bucket and target. Raises PartDiffers unless the parts
    are those of `expected`, OutputNotShared if there is no such folder, and OSError.
    """
    if not folder.is_dir():
        raise OutputNotShared(
            f"{socket.gethostname()} has no folder {folder}: on a cluster --output must be in a file system"
            " that all machines share, under the same path"
        )
    left = dict(expected)
    part: _Part | None = None
    for batch in batches:
        for bucket, items in _by_bucket(batch):
            if part is None or part.bucket != bucket:
                if part is not None:
                    yield _row(part.finish())
                # A bucket that nobody expects differs from one without entities.
                part = _Part(bucket, left.pop(bucket, Digest()), folder, log, attempt)
            for item in items:
                part.add(item)
    if part is not None:
        yield _row(part.finish())
    for bucket, digest in left.items():
        raise PartDiffers(bucket, expected=digest, found=Digest())


class _Part:
    """A part that is being written."""

    def __init__(self, bucket: Bucket, expected: Digest, folder: Path, log: str, attempt: str) -> None:
        self.bucket = bucket
        self._expected = expected
        self._boundary = part_boundary(log, bucket[0], expected)
        self._name = f"{bucket[0]}-{bucket[1]}-{attempt}"
        self._file = os.open(folder / self._name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        self._hash = hashlib.sha256()
        self._size = 0
        self._gathered: list[bytes] = []
        self._gathered_size = 0
        self._etags: list[tuple[str, str, str]] = []
        self._digest = Digest()
        self._last = ""

    def add(self, item: Held) -> None:
        if item.target <= self._last:
            raise ValueError(f"{item.target} comes behind {self._last}")
        self._last = item.target
        self._etags.append((item.target, "", item.entity.etag))
        data = render_held(self._boundary, item)
        self._gathered.append(data)
        self._gathered_size += len(data)
        if self._gathered_size >= _WRITE_BYTES:
            self._write()

    def finish(self) -> Written:
        self._gathered.append(closing_delimiter(self._boundary))
        self._write()
        os.fsync(self._file)
        os.close(self._file)
        if self._digest != self._expected:
            raise PartDiffers(self.bucket, expected=self._expected, found=self._digest)
        return Written(self.bucket, self._name, self._size, self._hash.hexdigest(), self._digest)

    def _write(self) -> None:
        data = memoryview(b"".join(self._gathered))
        self._digest = self._digest.with_changes(self._etags)
        self._gathered.clear()
        self._etags.clear()
        self._gathered_size = 0
        self._hash.update(data)
        self._size += len(data)
        while data:
            data = data[os.write(self._file, data) :]


def _by_bucket(batch: pa.RecordBatch) -> Iterator[tuple[Bucket, Iterator[Held]]]:
    """The rows of a batch as entities, those of one bucket together."""
    partition, bucket = batch["partition"].to_pylist(), batch["bucket"].to_pylist()
    buckets = list(zip(partition, bucket, strict=True))
    start = 0
    while start < len(buckets):
        end = start
        while end < len(buckets) and buckets[end] == buckets[start]:
            end += 1
        yield buckets[start], _entities(batch.slice(start, end - start))
        start = end


def _entities(batch: pa.RecordBatch) -> Iterator[Held]:
    columns = ("target", "state", "content_type", "entry", "headers")
    times = batch["last_modified"].cast(pa.int64()).to_pylist()
    texts = zip(*(batch[name].to_pylist() for name in columns), times, batch["body"], strict=True)
    for target, state, content_type, entry, headers, microseconds, body in texts:
        if STATES[state] is Kind.UNKNOWN:
            entity = UNKNOWN
        else:
            data = body.as_py() or b""
            extra = tuple((header["name"], header["value"]) for header in headers or ())
            entity = Entity(Kind.PRESENT, etag_of(content_type, data), content_type, data, extra)
        yield held(target, entity, entry, None if microseconds is None else microseconds // 1000)


def _row(written: Written) -> pa.RecordBatch:
    (partition, bucket), file, size, sha256, digest = written
    values = (partition, bucket, file, size, sha256, digest.entities, digest.hex())
    return pa.RecordBatch.from_pylist([dict(zip(WRITTEN.names, values, strict=True))], schema=WRITTEN)
