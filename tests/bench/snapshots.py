"""Snapshots: the fold against a plain one of Spark's own, an increment against a first run; DuckDB beside."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from statistics import median

import duckdb
from pyspark.sql import SparkSession, Window
from pyspark.sql import functions as F

from gateway.core.snapshots import SnapshotIndex
from snapshots.build import BuildObserver, BuildSettings, build
from snapshots.places import open_place
from snapshots.session import SparkSettings, open_session
from tests.bench.result import Result, paired
from tests.bench.tools import write_feed

EVENTS, TARGETS, MORE = 1_000_000, 100_000, 10_000
ROUNDS = 3


class _Stopwatch(BuildObserver):
    """How long each stage of a run takes, in seconds."""

    def __init__(self) -> None:
        self._stages: list[tuple[str, float]] = []

    def stage(self, name: str) -> None:
        self._stages.append((name, time.monotonic()))

    def seconds(self) -> dict[str, float]:
        ends = [began for _, began in self._stages[1:]] + [time.monotonic()]
        return {name: end - began for (name, began), end in zip(self._stages, ends, strict=True)}


def snapshots(folder: Path) -> Iterator[Result]:
    """One warm session; a million events of a hundred thousand targets, and ten thousand more."""
    data, output = folder / "data", folder / "snapshots"
    write_feed(folder / "warm", 1_000)
    write_feed(data, EVENTS, targets=TARGETS)
    with open_session(SparkSettings(), name="bench") as spark:
        _run(spark, folder / "warm", folder / "warm-snapshots")
        index, first = _run(spark, data, output)
        parquet = folder / "events.parquet"
        table = output / index.delta["events"].path
        spark.read.format("delta").load(str(table)).drop("content_id", "entry", "headers").write.parquet(
            str(parquet)
        )
        ours, plain = [], []
        for _ in range(ROUNDS):
            _, seconds = _run(spark, data, output, rebuild=True)
            ours.append(TARGETS / seconds["fold"])
            plain.append(TARGETS / _plain_fold(spark, parquet, folder / "plain.parquet"))
        yield paired("fold into state", ours, plain, "plain Spark fold", "targets/s", 0.5)
        yield Result(
            "fold into state",
            TARGETS / median(TARGETS / rate for rate in ours),
            TARGETS / _duckdb_fold(parquet, folder / "duckdb.parquet"),
            "DuckDB",
            "targets/s",
        )
        increments = []
        for number in range(ROUNDS):
            write_feed(data, EVENTS + MORE * (number + 1), targets=TARGETS, start=EVENTS + MORE * number)
            _, seconds = _run(spark, data, output)
            increments.append(sum(seconds.values()))
    whole = sum(first.values())
    increment = median(increments)
    yield Result(
        "increment of 10 k on 1 M", increment, whole, "first run", "s", round(1 / 0.4, 3), whole / increment
    )


def _run(
    spark: SparkSession, data: Path, output: Path, *, rebuild: bool = False
) -> tuple[SnapshotIndex, dict[str, float]]:
    stopwatch = _Stopwatch()
    settings = BuildSettings(output=output, keep=1, rebuild=rebuild)
    index = build(
        spark, open_place(str(data), None), settings, stopwatch, now_ms=lambda: time.time_ns() // 1_000_000
    )
    return index, stopwatch.seconds()


def _plain_fold(spark: SparkSession, events: Path, state: Path) -> float:
    """The last event of each target, as one would write it without patches; in seconds."""
    began = time.monotonic()
    newest = Window.partitionBy("partition", "target").orderBy(F.col("ordinal").desc())
    rows = spark.read.parquet(str(events)).withColumn("newest", F.row_number().over(newest))
    rows.where("newest = 1 AND method <> 'DELETE'").drop("newest").write.parquet(str(state))
    seconds = time.monotonic() - began
    shutil.rmtree(state)
    return seconds


def _duckdb_fold(events: Path, state: Path) -> float:
    """The same question; in seconds."""
    began = time.monotonic()
    with closing(duckdb.connect()) as database:
        database.execute("SET threads = 2")
        database.execute(
            f"COPY (SELECT * FROM read_parquet('{events}/*.parquet') WHERE method <> 'POST'"  # noqa: S608
            " QUALIFY row_number() OVER (PARTITION BY partition, target ORDER BY ordinal DESC) = 1)"
            f" TO '{state}' (FORMAT parquet)"
        )
    return time.monotonic() - began
