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
from .counts import NewEvents, count_entities
from .fold import FOLDED_SQL, UNFOLDED, fold_batches
from .tables import EVENTS, STATE, Covered, Tables

FOLD_ROWS = 250_000
"""So many rows a task folds, or fewer where as many tasks can run at a time as there are buckets."""

_EVENT_COLUMNS = {"change": "method", "etag": "CAST(NULL AS STRING)"}
_STATE_COLUMNS = {"change": "state"}


@dataclass(frozen=True, slots=True)
class Fold:
    """What is to be folded: the tables as they are, the new events, and the layout of the new rows.

    `entities` tells how many there are in each bucket of the table `state`, if that is known.
    """

    events: Covered
    state: Covered | None
    new: NewEvents
    layout: Layout
    entities: Mapping[Bucket, int] | None


def fold_state(tables: Tables, fold: Fold, parallelism: int) -> Covered:
    """Replace the rows of the buckets that have new events, in one commit; returns what is covered then."""
    before = fold.state
    expected = Counter(fold.new.to_fold)
    rows = _events(tables, fold)
    replaced = None
    if before is not None and expected:
        relaid = [name for name, count in before.buckets.items() if fold.layout.buckets[name] != count]
        replaced = where_buckets(relaid, expected)
        own = Layout({name: count for name, count in fold.layout.buckets.items() if name in before.buckets})
        bucket = own.bucket_sql if relaid else "bucket"
        stored = tables.read(STATE, before.version).where(replaced)
        if fold.entities is None or relaid:
            expected.update(
                count_entities(stored.select("partition", "state", F.expr(bucket).alias("bucket")))
            )
        else:
            expected.update({touched: fold.entities.get(touched, 0) for touched in fold.new.to_fold})
        rows = rows.unionByName(stored.select(*_columns(bucket, _STATE_COLUMNS)))
    folded = _folded(rows, fold.layout, expected, parallelism)
    return tables.replace_state(folded, before, fold.events.points, fold.layout.buckets, replaced)


def _events(tables: Tables, fold: Fold) -> DataFrame:
    """The events to fold, as `fold.new` counts them."""
    start = {} if fold.state is None else fold.state.ends
    partitions = {partition for partition, _ in fold.new.to_fold}
    events = (
        tables.read(EVENTS, fold.events.version)
        .where(where_behind(start, sorted(partitions)))
        .where("method <> 'POST'")
    )
    if fold.new.last is not None:
        # Most are left out before they are read whole, sent and sorted.
        events = events.join(F.broadcast(fold.new.last), ["partition", "target"], "left").where(
            "last IS NULL OR last = ordinal"
        )
    return events.select(*_columns(fold.layout.bucket_sql, _EVENT_COLUMNS))


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
        # By a number first: Spark compares the first eight bytes of rows, and paths begin alike.
        .sortWithinPartitions(F.xxhash64("target"), "target", "partition", "ordinal")
        .mapInArrow(task, FOLDED_SQL)
        # As the files lie, so that the writer need not sort by itself.
        .sortWithinPartitions("partition", "bucket", "target")
    )
