"""What a run makes of the table `state`: the parts of a snapshot, and what they add up to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from gateway.core.snapshots import buckets_for
from gateway.core.state import Digest

from .buckets import Bucket, Layout, where_buckets
from .counts import BucketSum, sum_buckets
from .parts import PART_COLUMNS, WRITTEN_SQL, PartDiffers, Written, write_parts
from .stored import Previous, StoredPart

EXPORT_BYTES = 128 * 1024 * 1024
"""Bodies of about so many bytes a task writes, or fewer where more tasks can run at a time."""


@dataclass(frozen=True, slots=True)
class Export:
    """The parts of a snapshot: those to be written, with what must be in them, and those that are there.

    `layout` is how they are cut; `where` holds for the rows of the table that the first ones need.
    """

    layout: Layout
    where: str
    written: Mapping[Bucket, BucketSum]
    kept: Mapping[Bucket, StoredPart]

    @property
    def digest(self) -> Digest:
        """What all parts together must add up to."""
        sums = [*self.written.values(), *(part.sum for part in self.kept.values())]
        return sum((part.digest for part in sums), Digest())


def plan_export(
    state: DataFrame, layout: Layout, touched: frozenset[Bucket], before: Previous | None
) -> Export:
    """Look which parts the rows of `state`, which lie in `layout`, make.

    A partition in which `touched` has no bucket keeps the parts of the snapshot `before`; one that is cut as
    before keeps those that are not touched; all others are written.
    """
    old = {} if before is None else before.layout.buckets
    changed = {partition for partition, _ in touched}
    same = [name for name in layout.buckets if name in old and name not in changed]
    partly = [name for name in changed if old.get(name) == layout.buckets[name]]
    whole = {name for name in layout.buckets if name not in same and name not in partly}
    kept = {
        bucket: part
        for bucket, part in ({} if before is None else before.parts).items()
        if bucket[0] in same or (bucket[0] in partly and bucket not in touched)
    }
    buckets = [bucket for bucket in touched if bucket[0] in partly]
    written = {}
    where = where_buckets(whole, buckets)
    if whole or buckets:
        written = sum_buckets(state.where(where), layout)
    cut = {name: old[name] for name in same}
    for name in layout.buckets.keys() - cut.keys():
        cut[name] = _buckets_for(name, written, kept)
    if recut := {name for name in layout.buckets if name not in same and cut[name] != layout.buckets[name]}:
        # These have grown or shrunk over a limit, so that all of their parts are new ones.
        whole |= recut
        kept = {bucket: part for bucket, part in kept.items() if bucket[0] not in recut}
        written = {bucket: found for bucket, found in written.items() if bucket[0] not in recut}
        written |= sum_buckets(state.where(where_buckets(recut, ())), Layout(cut))
        where = where_buckets(whole, buckets)
    return Export(Layout(cut), where, written, kept)


def _buckets_for(
    partition: str, written: Mapping[Bucket, BucketSum], kept: Mapping[Bucket, StoredPart]
) -> int:
    sums = [found for (name, _), found in written.items() if name == partition]
    sums += [part.sum for (name, _), part in kept.items() if name == partition]
    return buckets_for(sum(found.digest.entities for found in sums), sum(found.size for found in sums))


def export_parts(
    state: DataFrame, export: Export, log: str, folder: Path, parallelism: int
) -> dict[Bucket, Written]:
    """Let tasks write the parts of `export` into `folder`; raises PartDiffers unless all of them did."""
    expected = {bucket: found.digest for bucket, found in export.written.items()}
    if not expected:
        return {}
    size = sum(found.size for found in export.written.values())
    tasks = export.layout.tasks(min(max(parallelism, -(-size // EXPORT_BYTES)), len(expected)))

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        mine, attempt = context.partitionId(), str(context.taskAttemptId())
        yield from write_parts(
            batches,
            {bucket: digest for bucket, digest in expected.items() if tasks.task(bucket) == mine},
            folder,
            log,
            attempt,
        )

    columns = {"bucket": export.layout.bucket_sql}
    rows = (
        state.where(export.where)
        .where("state <> 'deleted'")
        .select(*(F.expr(columns.get(name, name)).alias(name) for name in PART_COLUMNS))
        .repartitionById(tasks.count, F.expr(tasks.task_sql))
        .sortWithinPartitions("partition", "bucket", "target")
        .mapInArrow(task, WRITTEN_SQL)
        .collect()
    )
    found = {}
    for row in rows:
        bucket = row.partition, row.bucket
        digest = Digest(row.entities, int(row.digest, 16))
        if bucket in found or digest != expected.get(bucket):
            raise PartDiffers(bucket, expected=expected.get(bucket, Digest()), found=digest)
        found[bucket] = Written(bucket, row.file, row.size, row.sha256, digest)
    for bucket in expected.keys() - found.keys():
        raise PartDiffers(bucket, expected=expected[bucket], found=Digest())
    return found
