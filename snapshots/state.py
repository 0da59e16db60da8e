"""What a run does to the table `state`: events and the rows before them, folded by tasks into new rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from .buckets import Bucket, Layout, where_behind, where_buckets
from .counts import count_rows
from .fold import FOLDED_SQL, UNFOLDED, fold_batches
from .tables import EVENTS, STATE, Covered, Tables

FOLD_ROWS = 250_000
"""So many rows a task folds, or fewer where as many tasks can run at a time as there are buckets."""

_EVENT_COLUMNS = {"change": "method", "etag": "CAST(NULL AS STRING)"}
_STATE_COLUMNS = {"change": "state"}


@dataclass(frozen=True, slots=True)
class Fold:
    """What is to be folded: the tables as they are, the events by bucket, and the layout of the new rows."""

    events: Covered
    state: Covered | None
    to_fold: Mapping[Bucket, int]
    layout: Layout


def fold_state(tables: Tables, fold: Fold, parallelism: int) -> Covered:
    """Replace the rows of the buckets that have new events, in one commit; returns what is covered then."""
    before = fold.state
    relaid = [] if before is None else _relaid(before.buckets, fold)
    where = where_buckets(relaid, fold.to_fold)
    start = {} if before is None else before.ends
    partitions = {partition for partition, _ in fold.to_fold}
    rows = (
        tables.read(EVENTS, fold.events.version)
        .where(where_behind(start, sorted(partitions)))
        .where("method <> 'POST'")
        .select(*_columns(fold.layout.bucket_sql, _EVENT_COLUMNS))
    )
    expected = Counter(fold.to_fold)
    if before is not None:
        own = Layout({name: count for name, count in fold.layout.buckets.items() if name in before.buckets})
        bucket = own.bucket_sql if relaid else "bucket"
        stored = tables.read(STATE, before.version).where(where)
        expected.update(count_rows(stored.select("partition", F.expr(bucket).alias("bucket"))))
        rows = rows.unionByName(stored.select(*_columns(bucket, _STATE_COLUMNS)))
    folded = _folded(rows, fold.layout, expected, parallelism)
    replaced = None if before is None or not expected else where
    return tables.replace_state(folded, before, fold.events.points, fold.layout.buckets, replaced)


def _relaid(before: Mapping[str, int], fold: Fold) -> list[str]:
    return [name for name, count in before.items() if fold.layout.buckets[name] != count]


def _columns(bucket: str, others: Mapping[str, str]) -> list[Column]:
    expressions = {"bucket": bucket, **others}
    return [F.expr(expressions.get(name, name)).alias(name) for name in UNFOLDED]


def _folded(rows: DataFrame, layout: Layout, expected: Mapping[Bucket, int], parallelism: int) -> DataFrame:
    wanted = max(parallelism, -(-sum(expected.values()) // FOLD_ROWS))
    tasks = layout.tasks(max(min(wanted, len(expected)), 1))

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        mine = context.partitionId()
        yield from fold_batches(
            batches, {bucket: count for bucket, count in expected.items() if tasks.task(bucket) == mine}
        )

    return (
        rows.repartitionById(tasks.count, F.expr(tasks.task_sql))
        .sortWithinPartitions("partition", "bucket", "target", "ordinal")
        .mapInArrow(task, FOLDED_SQL)
    )
