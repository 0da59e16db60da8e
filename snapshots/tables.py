"""The Delta tables of a log: `events`, all that its feeds have, and `state`, what the events have made.

Each commit says in its userMetadata which vector the table then covers, so that data and vector become
visible together, or neither does. There is one writer, the run that has the lock; that no commit is made
twice is ensured once more by Delta itself (txnAppId and txnVersion).

Both tables can be read by any Delta reader: they have no deletion vectors and no column mapping.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any

from delta.tables import DeltaTable as Table
from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from gateway.core.errors import GatewayError
from gateway.core.snapshots import FeedPoint

EVENTS, STATE = "events", "state"
HISTORY_COMMITS_MAX = 100
"""So many of the last commits are searched for one of a run, should another program have made some."""
SMALL_FILE_BYTES = 32 * 1024 * 1024
FILE_BYTES = 128 * 1024 * 1024
"""Files of events below the first size are put together, to about the second."""

_USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
_VACUUM = "VACUUM"
_FORMAT = 1


class TablesDamaged(GatewayError):
    """A Delta table does not hold what its commits say."""

    def __init__(self, path: str, what: str) -> None:
        super().__init__(
            f"the Delta table {path} is damaged: {what}. The snapshots are as they were; make the tables"
            " anew with --rebuild"
        )
        self.path = path


@dataclass(frozen=True, slots=True)
class Covered:
    """What a version of a table covers: the last event of each partition, and how the rows of `state` lie.

    `buckets` tells for each partition into how many buckets its rows are cut. `untidied` commits came since
    files were last removed.
    """

    version: int
    points: tuple[FeedPoint, ...]
    buckets: Mapping[str, int]
    untidied: int

    @property
    def ends(self) -> dict[str, int]:
        """For each partition the ordinal behind its last event."""
        return ends_of(self.points)


def ends_of(points: tuple[FeedPoint, ...]) -> dict[str, int]:
    """For each partition the ordinal behind the last event."""
    return {point.partition: point.last + 1 for point in points}


class Tables:
    """The two tables below `root`, a folder or a URI, for the feeds of one generation."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        self._spark = spark
        self.root = root

    def path(self, name: str) -> str:
        return f"{self.root}/{name}"

    def covered(self, name: str) -> Covered | None:
        """The last version of a table and what it covers; None if there is no table yet.

        Raises TablesDamaged.
        """
        try:
            commits = (
                Table.forPath(self._spark, self.path(name))
                .history(HISTORY_COMMITS_MAX)
                .select("version", "userMetadata", "operation")
                .collect()
            )
        except AnalysisException as error:
            if error.getCondition() in ("DELTA_MISSING_DELTA_TABLE", "DELTA_TABLE_NOT_FOUND"):
                return None
            raise
        commits.sort(key=lambda commit: int(commit.version), reverse=True)
        untidied = 0
        while untidied < len(commits) and not commits[untidied].operation.startswith(_VACUUM):
            untidied += 1
        for commit in commits:
            told = _told(commit.userMetadata)
            if told is not None:
                return Covered(commits[0].version, *told, untidied)
        raise TablesDamaged(
            self.path(name), f"none of its last {len(commits)} commits was made by a snapshot job"
        )

    def read(self, name: str, version: int) -> DataFrame:
        """The rows of one version of a table."""
        return self._spark.read.format("delta").option("versionAsOf", str(version)).load(self.path(name))

    def append_events(
        self, rows: DataFrame, before: Covered | None, points: tuple[FeedPoint, ...]
    ) -> Covered:
        """Add `rows`, the events between what is covered and `points`; returns what is covered then."""
        after = _next(before, points, {})
        writer = rows.write.format("delta").mode("append").options(**self._options(EVENTS, after))
        if before is None:
            writer = writer.options(**_properties("partition,ordinal"))
        writer.save(self.path(EVENTS))
        return after

    def replace_state(
        self,
        rows: DataFrame,
        before: Covered | None,
        points: tuple[FeedPoint, ...],
        buckets: Mapping[str, int],
        where: str | None,
    ) -> Covered:
        """Put `rows` in the place of those for which `where` holds; returns what is covered then.

        `where` is about the columns partition and bucket, by which the files lie; None is for no row at all.
        """
        after = _next(before, points, buckets)
        writer = rows.write.format("delta").partitionBy("partition", "bucket")
        writer = writer.options(**self._options(STATE, after))
        if before is None:
            writer = writer.options(**_properties("ordinal"))
        if where is None:
            writer = writer.mode("append")
        else:
            writer = writer.mode("overwrite").option("replaceWhere", where)
        writer.save(self.path(STATE))
        return after

    def compact(self, name: str, covered: Covered) -> None:
        """Put small files of a table together, in a commit of its own."""
        conf = {
            _USER_METADATA: _metadata(covered),
            "spark.databricks.delta.optimize.minFileSize": str(SMALL_FILE_BYTES),
            "spark.databricks.delta.optimize.maxFileSize": str(FILE_BYTES),
        }
        with configured(self._spark, conf):
            Table.forPath(self._spark, self.path(name)).optimize().executeCompaction()

    def vacuum(self, name: str, covered: Covered, hours: float) -> None:
        """Remove the files that no version younger than `hours` needs."""
        conf = {
            _USER_METADATA: _metadata(covered),
            "spark.databricks.delta.retentionDurationCheck.enabled": "false",
            "spark.databricks.delta.vacuum.logging.enabled": "true",
            # It lists the folders with so many tasks, 10,000 if nobody says otherwise.
            "spark.sql.sources.parallelPartitionDiscovery.parallelism": str(
                self._spark.sparkContext.defaultParallelism
            ),
        }
        with configured(self._spark, conf):
            Table.forPath(self._spark, self.path(name)).vacuum(hours)

    def _options(self, name: str, covered: Covered) -> dict[str, str]:
        return {
            "userMetadata": _metadata(covered),
            "txnAppId": f"snapshots-{name}",
            # How many events are covered: it grows with each commit, and is the same when one is made again.
            "txnVersion": str(sum(covered.ends.values())),
        }


@contextmanager
def configured(spark: SparkSession, values: Mapping[str, str]) -> Iterator[None]:
    """Settings of the session that hold within the context."""
    before = {name: spark.conf.get(name, None) for name in values}
    for name, value in values.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        # When Java has died in between, its settings are gone too.
        with suppress(Py4JError, OSError):
            for name, value_before in before.items():
                if value_before is None:
                    spark.conf.unset(name)
                else:
                    spark.conf.set(name, value_before)


class Folders:
    """The folders below `root`, a folder or a URI, of which each has the tables of one generation."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        jvm: Any = spark.sparkContext._jvm
        java: Any = spark.sparkContext._jsc
        self.root = root
        self._path = jvm.org.apache.hadoop.fs.Path
        self._files = self._path(root).getFileSystem(java.hadoopConfiguration())

    def names(self) -> list[str]:
        """The names of the folders, in order."""
        root = self._path(self.root)
        if not self._files.exists(root):
            return []
        return sorted(
            found.getPath().getName() for found in self._files.listStatus(root) if found.isDirectory()
        )

    def remove(self, name: str) -> None:
        """Remove a folder with all that is in it."""
        self._files.delete(self._path(f"{self.root}/{name}"), True)


def _properties(statistics: str) -> dict[str, str]:
    return {
        "delta.enableDeletionVectors": "false",
        # Files are left out by these, and statistics of bodies cost more than they are worth.
        "delta.dataSkippingStatsColumns": statistics,
    }


def _next(before: Covered | None, points: tuple[FeedPoint, ...], buckets: Mapping[str, int]) -> Covered:
    version, untidied = (0, 1) if before is None else (before.version + 1, before.untidied + 1)
    return Covered(version, points, buckets, untidied)


def _metadata(covered: Covered) -> str:
    content = {
        "snapshots": _FORMAT,
        "feeds": [asdict(point) for point in covered.points],
        "buckets": dict(covered.buckets),
    }
    return json.dumps(content, separators=(",", ":"))


def _told(metadata: str | None) -> tuple[tuple[FeedPoint, ...], dict[str, int]] | None:
    """What the metadata of a commit says, None if it is not of this form."""
    try:
        content = json.loads(metadata or "")
        if content["snapshots"] != _FORMAT:
            return None
        return tuple(FeedPoint(**point) for point in content["feeds"]), dict(content["buckets"])
    except (ValueError, KeyError, TypeError):
        return None
