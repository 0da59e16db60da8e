"""A run: from the events that a log has now to a snapshot that covers them, on Delta tables in between.

First run, increment and rebuild go one way, and differ only in what is there already:

1. the vector is fixed: how far the feeds reach, and from where on the tables lack events;
2. the new events are appended to the table `events`, and read back from there;
3. the buckets of `state` that they touch are folded: their rows and the new events become their new rows;
4. Spark adds up what is in the buckets, and the place must say the same, if it says anything;
5. tasks write the parts of the buckets that were touched; all others are those of the snapshot before;
6. the snapshot gets its index, and by one rename its name.

A run that ends anywhere leaves at most a table that is ahead of the newest snapshot. The next run finds in
each table's last commit what it covers, and goes on from there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from gateway.core.snapshots import DeltaTable, SnapshotIndex
from gateway.core.state import Digest

from .beginning import Beginning, TableFolders, begin, start_after, table_name
from .buckets import Layout, where_behind
from .counts import NewEvents, count_events, targets_of
from .export import Export, export_parts, plan_export
from .failures import DigestDiffers, said_clearly
from .java_lock import java_locked
from .lock import RunLock
from .places import Place, Vector
from .publish import Staging, sweep
from .retention import retain
from .state import Fold, fold_state
from .stored import indexes
from .tables import EVENTS, STATE, Covered, Tables, TablesDamaged, configured
from .webfeed import WebFeed

KEEP = 3
TIDY_COMMITS = 20
VACUUM_HOURS = 168.0
"""As long as Delta Lake itself keeps the files of old versions, for readers that have begun with them."""

STAGES = ("vector", "events", "count", "fold", "sum", "parts", "publish", "tidy")
"""What a run is at, in this order; those without work are left out."""

_CONF = {
    # All plans here are small, or say how they are to be cut.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    # Or a batch with large bodies would take gigabytes.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(16 * 1024 * 1024),
    "spark.sql.execution.arrow.useLargeVarTypes": "false",
}


@dataclass(frozen=True, slots=True)
class BuildSettings:
    """What a run is to make.

    Snapshots come into `output`, the folder of all logs, and the tables beside them unless `tables` is a URI
    for those of all logs. `keep` snapshots stay, all of them if it is None. With `rebuild` the tables start
    over, from the first event. After `tidy_commits` commits to a table its small files are put together, and
    those removed that no version younger than `vacuum_hours` needs.
    """

    output: Path
    tables: str | None = None
    keep: int | None = KEEP
    rebuild: bool = False
    tidy_commits: int = TIDY_COMMITS
    vacuum_hours: float = VACUUM_HOURS


class BuildObserver:
    """Is told what a run is at; this one does nothing with it. What it raises ends the run."""

    def stage(self, name: str) -> None:
        """One of STAGES begins."""

    def progress(self, done: int, of: int) -> None:
        """So many of the parts of the snapshot are in their place."""


def build(
    spark: SparkSession,
    place: Place,
    settings: BuildSettings,
    observer: BuildObserver,
    *,
    now_ms: Callable[[], int],
) -> SnapshotIndex:
    """Make a run; returns the index of the snapshot, the newest again if there is nothing new.

    Raises RunUnderWay, FeedLost, FeedBehind, DigestDiffers, DiskFull, TablesDamaged, PartLost, OSError for
    the output folder, and what Spark raises besides.
    """
    folder = settings.output.absolute() / place.log
    with (
        said_clearly(settings.output),
        RunLock(folder),
        java_locked(spark, folder),
        configured(
            spark, _CONF | {"spark.sql.shuffle.partitions": str(spark.sparkContext.defaultParallelism)}
        ),
    ):
        return _Run(spark, place, settings, observer, now_ms, folder).make()


class _Run:
    def __init__(
        self,
        spark: SparkSession,
        place: Place,
        settings: BuildSettings,
        observer: BuildObserver,
        now_ms: Callable[[], int],
        folder: Path,
    ) -> None:
        self._spark = spark
        self._place = place
        self._settings = settings
        self._observer = observer
        self._now_ms = now_ms
        self._folder = folder
        self._folders = TableFolders(spark, folder, settings.tables)
        self._parallelism = spark.sparkContext.defaultParallelism

    def make(self) -> SnapshotIndex:
        self._observer.stage("vector")
        sweep(self._folder)
        newest = next(indexes(self._folder), None)
        started = start_after(self._now_ms(), newest, self._folders.names())
        vector = self._place.vector()
        beginning = None
        if not self._settings.rebuild:
            known = None if newest is None else (self._folder / newest.id, newest)
            beginning = begin(self._folders, self._place, vector, known)
        if newest is not None and self._is_nothing_new(newest, beginning, vector):
            _compare(Digest(newest.entities, int(newest.digest, 16)), vector)
            index = newest
        else:
            tables = self._folders.tables(table_name(started))
            index = self._snapshot(beginning or Beginning(tables), vector, started)
        if self._settings.keep is not None:
            retain(self._folder, self._settings.keep)
        self._folders.remove_old()
        return index

    def _is_nothing_new(self, newest: SnapshotIndex, beginning: Beginning | None, vector: Vector) -> bool:
        if newest.feeds != vector.points or self._settings.rebuild:
            return False
        # Of a log without events there are no tables.
        return not vector.points or (beginning is not None and beginning.before is not None)

    def _snapshot(self, beginning: Beginning, vector: Vector, started: int) -> SnapshotIndex:
        tables = beginning.tables
        if not vector.points:
            _compare(Digest(), vector)
            return Staging(self._folder, started).publish([], Layout({}), (), {}, self._now_ms)
        events = self._append(beginning, vector)
        new, state = self._fold(beginning, events)
        self._observer.stage("sum")
        rows = tables.read(STATE, state.version)
        export = plan_export(rows, Layout(state.buckets), new.touched, beginning.before)
        _compare(export.digest, vector)
        versions = {
            name: DeltaTable(self._folders.index_path(tables, name), covered.version)
            for name, covered in ((EVENTS, events), (STATE, state))
        }
        index = self._export(vector, started, export, rows, versions)
        self._tidy(tables, events, state)
        return index

    def _append(self, beginning: Beginning, vector: Vector) -> Covered:
        """Bring the table `events` up to `vector`."""
        events = beginning.events
        start = {} if events is None else events.ends
        new = {name: end for name, end in vector.ends.items() if end > start.get(name, 0)}
        if events is not None and not new:
            return events
        self._observer.stage("events")
        self._spark.dataSource.register(WebFeed)
        rows = (
            self._spark.read.format("webfeed")
            .options(**self._place.option())
            .options(start=json.dumps(start), end=json.dumps(new))
            .load()
            .select(
                *("partition", "ordinal", "content_id", "target", "method", "content_type", "last_modified"),
                *("entry", "headers", F.expr("CAST(octet_length(body) AS BIGINT)").alias("size"), "body"),
            )
        )
        return beginning.tables.append_events(rows, events, vector.points)

    def _fold(self, beginning: Beginning, events: Covered) -> tuple[NewEvents, Covered]:
        """Bring the table `state` up to `events`."""
        tables, state, before = beginning.tables, beginning.state, beginning.before
        self._observer.stage("count")
        folded = exported = {} if state is None else state.ends
        known = {} if state is None else dict(state.buckets)
        entities = None
        if before is not None:
            exported = {feed.partition: feed.last + 1 for feed in before.index.feeds}
            # What grew over a limit in the run before is laid out anew when it is written anyway.
            known |= {
                name: count
                for name, count in before.layout.buckets.items()
                if events.ends[name] > folded.get(name, 0)
            }
            if exported == folded:
                entities = {bucket: stored.part.count for bucket, stored in before.parts.items()}
        changed = [name for name, end in events.ends.items() if end > exported.get(name, 0)]
        rows = tables.read(EVENTS, events.version).where(where_behind(exported, changed))
        with _kept(targets_of(rows, folded)) as targets:
            try:
                new, layout = count_events(targets, Layout(known), folded, events.ends)
            except ValueError as error:
                raise TablesDamaged(tables.path(EVENTS), str(error)) from error
            if state is None or state.points != events.points:
                self._observer.stage("fold")
                state = fold_state(tables, Fold(events, state, new, layout, entities), self._parallelism)
        return new, state

    def _export(
        self, vector: Vector, started: int, export: Export, rows: DataFrame, versions: dict[str, DeltaTable]
    ) -> SnapshotIndex:
        staging = Staging(self._folder, started)
        written = {}
        if export.written:
            self._observer.stage("parts")
            written = export_parts(rows, export, vector.log, staging.attempts, self._parallelism)
        self._observer.stage("publish")
        parts = staging.collect(export, written, self._observer.progress)
        total = sum((found.sum.digest for found in parts), Digest())
        if total != export.digest:
            raise DigestDiffers(export.digest, "its parts", total.entities, total.hex())
        return staging.publish(parts, export.layout, vector.points, versions, self._now_ms)

    def _tidy(self, tables: Tables, events: Covered, state: Covered) -> None:
        """Put small files together and remove old ones, when enough has come since the last time."""
        if max(events.untidied, state.untidied) < self._settings.tidy_commits:
            return
        self._observer.stage("tidy")
        # The files of `state` hold whole buckets: a run writes new ones for those that it folds.
        tables.compact(EVENTS, events)
        for name, covered in ((EVENTS, events), (STATE, state)):
            tables.vacuum(name, covered, self._settings.vacuum_hours)


@contextmanager
def _kept(rows: DataFrame) -> Iterator[DataFrame]:
    """Rows that are computed once within the context."""
    rows.persist()
    try:
        yield rows
    finally:
        # When Java has died in between, they are gone too.
        with suppress(Py4JError, OSError):
            rows.unpersist()


def _compare(own: Digest, vector: Vector) -> None:
    """Raises DigestDiffers unless the place says the same of the vector, or nothing."""
    entities = own.entities if vector.entities is None else vector.entities
    digest = own.hex() if vector.digest is None else vector.digest
    if (entities, digest) != (own.entities, own.hex()):
        raise DigestDiffers(own, "the gateway", entities, digest)
