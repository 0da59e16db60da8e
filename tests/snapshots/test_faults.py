"""Faults while a run lasts: the last whole snapshot stays, nothing else is visible, the next run succeeds."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from gateway.core.errors import GatewayError
from snapshots.build import STAGES, BuildObserver
from snapshots.failures import DiskFull
from tests.acceptance import disks
from tests.feeds import event
from tests.servers import children
from tests.snapshots.runs import check, run, snapshots
from tests.snapshots.written import LOG, Written

RUN_S_MAX = 300
FIRST = [event(number) for number in range(40)]
MORE = [event(number, body=b"changed %d" % number) for number in range(20, 60)]


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_a_driver_killed_at_any_stage_leaves_what_the_next_run_goes_on_from(spark, tmp_path, stage):
    data, out = tmp_path / "data", tmp_path / "out"
    with Written(data) as feed:
        feed.add(*FIRST)
        first = run(spark, data, out)
        feed.add(*MORE)

        killed = _killed_run(data, out, stage)

        assert killed.returncode == -signal.SIGKILL, killed.stderr
        seen = snapshots(out)
        assert seen[0] == first.id
        # Only what comes behind `publish` finds the new one there, and all of it.
        assert len(seen) == (2 if stage == "tidy" else 1)
        index = run(spark, data, out)
        check(out, index, {"0": feed.events})
        assert snapshots(out)[-1] == index.id
        assert not list((out / LOG / "staging").glob("2*"))


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["events", "fold", "parts"])
def test_a_driver_killed_while_spark_works_leaves_what_the_next_run_goes_on_from(spark, tmp_path, stage):
    data, out = tmp_path / "data", tmp_path / "out"
    with Written(data) as feed:
        feed.add(*FIRST)
        killed = _killed_run(data, out, stage, delay_s=random.Random(stage).uniform(0.1, 1.5))
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert len(snapshots(out)) <= 1
        feed.add(*MORE)
        # Its Java may still be alive, and about to commit.
        check(out, run(spark, data, out), {"0": feed.events})


def _killed_run(data: Path, out: Path, stage: str, delay_s: float = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.snapshots.killed_run", str(data), str(out), stage, str(delay_s)]
    return subprocess.run(command, capture_output=True, text=True, timeout=RUN_S_MAX, check=False)


class At(BuildObserver):
    """Enters a context at a stage, which lasts until the observer is left."""

    def __init__(self, stage: str, context) -> None:
        self._at = stage
        self._context = context
        self._stack = ExitStack()

    def stage(self, name: str) -> None:
        if name == self._at:
            self._stack.enter_context(self._context)

    def __enter__(self) -> At:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["fold", "parts"])
def test_python_workers_killed_in_a_task_end_the_run_and_not_the_next(spark, tmp_path, stage):
    data, out = tmp_path / "data", tmp_path / "out"
    with Written(data) as feed:
        feed.add(*FIRST)
        first = run(spark, data, out)
        feed.add(*MORE)
        with At(stage, _workers_killed(spark)) as observer, pytest.raises((PySparkException, Py4JError)):
            run(spark, data, out, observer)
        assert snapshots(out) == [first.id]
        check(out, run(spark, data, out), {"0": feed.events})


@contextmanager
def _workers_killed(spark: SparkSession) -> Iterator[None]:
    """Within the context no Python worker of the session lives for long."""
    over = threading.Event()
    java = spark.sparkContext._gateway.proc.pid

    def kill() -> None:
        while not over.wait(0.002):
            for daemon in children(java):
                for worker in children(daemon):
                    with suppress(ProcessLookupError):
                        os.kill(worker, signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.slow
def test_rows_that_cannot_be_read_while_a_part_is_written_publish_no_part(spark, tmp_path):
    data, out = tmp_path / "data", tmp_path / "out"
    noise = random.Random(1)
    with Written(data, events_max=100) as feed:
        feed.add(*(event(number, body=noise.randbytes(20_000)) for number in range(200)))
        first = run(spark, data, out)
        feed.add(event(0))
        # Bodies from the middle of a file on; what tells how many rows there are can all be read.
        (file,) = (out / first.delta["state"].path).glob("partition=*/*/*.parquet")
        metadata = pq.read_metadata(file).row_group(0)
        (column,) = (
            metadata.column(number)
            for number in range(metadata.num_columns)
            if metadata.column(number).path_in_schema == "body"
        )
        with file.open("r+b") as opened:
            opened.seek(column.data_page_offset + column.total_compressed_size // 2)
            opened.write(bytes(100_000))
        file.with_name(f".{file.name}.crc").unlink()
        # The first snapshot's parts must be written anew, out of the damaged table.
        (out / LOG / first.id / "buckets.json").unlink()

        with pytest.raises((PySparkException, Py4JError, GatewayError)):
            run(spark, data, out)
        assert snapshots(out) == [first.id]
        check(out, run(spark, data, out, rebuild=True), {"0": feed.events})


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["events", "parts"])
@pytest.mark.parametrize("kind", disks.KINDS)
def test_a_full_disk_is_said_and_the_next_run_goes_on(spark, tmp_path, kind, stage):
    noise = random.Random(1)
    bodies = [noise.randbytes(2_000) for _ in range(120)]
    data = tmp_path / "data"
    with Written(data, events_max=100) as feed, kind(tmp_path / "disk") as disk:
        feed.add(event(0))
        first = run(spark, data, disk.folder)
        feed.add(*(event(number, body=body) for number, body in enumerate(bodies)))
        java = spark.sparkContext._gateway.proc.pid
        with At(stage, disk.full(java)) as observer, pytest.raises(DiskFull, match=str(disk.folder)):
            run(spark, data, disk.folder, observer)
        assert snapshots(disk.folder) == [first.id]
        check(disk.folder, run(spark, data, disk.folder), {"0": feed.events})
