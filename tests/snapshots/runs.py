"""Runs of the job on data folders, and all that must hold of what a run leaves."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from itertools import count
from pathlib import Path
from typing import Any

import deltalake
from pyspark.sql import SparkSession

from gateway.core.event import Event
from gateway.core.snapshots import SnapshotIndex, bucket_of, buckets_for, read_index, read_part
from gateway.core.state import Kind
from snapshots.build import BuildObserver, BuildSettings, build
from snapshots.places import Place, open_place
from tests.snapshots.written import LOG
from tests.sync.replay import State, digest, replay

START_MS = 1_790_000_000_000
_clock = count(START_MS, 1_000)


class Stages(BuildObserver):
    """Remembers the stages of a run."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def stage(self, name: str) -> None:
        self.seen.append(name)


def run(
    spark: SparkSession, place: Place | Path, output: Path, observer: BuildObserver | None = None, **more: Any
) -> SnapshotIndex:
    """A run with a clock of its own."""
    found = open_place(str(place), None) if isinstance(place, Path) else place
    settings = BuildSettings(output, **more)
    return build(spark, found, settings, observer or BuildObserver(), now_ms=lambda: next(_clock))


def snapshots(output: Path) -> list[str]:
    """The names of all that may be seen as a snapshot; each is whole."""
    found = sorted(path.name for path in (output / LOG).glob("2*Z"))
    for name in found:
        index = read_index((output / LOG / name / "index.json").read_bytes())
        for number, part in enumerate(index.parts):
            data = (output / LOG / name / str(number)).read_bytes()
            assert (len(data), hashlib.sha256(data).hexdigest()) == (part.size, part.sha256)
    return found


def part_bytes(output: Path, index: SnapshotIndex) -> list[bytes]:
    return [(output / LOG / index.id / str(number)).read_bytes() for number in range(len(index.parts))]


def entities(output: Path, index: SnapshotIndex) -> dict[str, dict[str, State]]:
    """What the parts of a snapshot hold, by partition; each part is checked against the index."""
    found: dict[str, dict[str, State]] = {feed.partition: {} for feed in index.feeds}
    buckets: dict[str, set[int]] = {}
    for part, data in zip(index.parts, part_bytes(output, index), strict=True):
        assert (len(data), hashlib.sha256(data).hexdigest()) == (part.size, part.sha256)
        held = list(read_part(part.boundary, data))
        assert [item.target for item in held] == sorted(item.target for item in held)
        states = {
            item.target: State(None, "unknown")
            if item.entity.kind is Kind.UNKNOWN
            else State(item.entity.content_type, item.entity.body)
            for item in held
        }
        assert (part.count, part.digest) == (len(states), digest(states))
        assert not states.keys() & found[part.partition].keys()
        found[part.partition] |= states
    for partition, states in found.items():
        size = sum(len(state.body) for state in states.values() if isinstance(state.body, bytes))
        wanted = buckets_for(len(states), size)
        buckets[partition] = {bucket_of(target, wanted) for target in states}
    assert [part.partition for part in index.parts] == [
        partition for partition in found for _ in buckets[partition]
    ]
    return found


def check(output: Path, index: SnapshotIndex, events: dict[str, Iterable[Event]]) -> None:
    """The snapshot, the tables and the index say what a replay of the events by partition says."""
    expected = {partition: replay(of_partition) for partition, of_partition in events.items()}
    assert entities(output, index) == expected
    total = sum(int(digest(states), 16) for states in expected.values()) % 2**256
    assert index.digest == f"{total:064x}"
    assert index.entities == sum(map(len, expected.values()))
    ends = {partition: len(list(of_partition)) for partition, of_partition in events.items()}
    assert {feed.partition: feed.last + 1 for feed in index.feeds} == ends
    # Not a byte of these is read by Java.
    rows = table(output, index, "events")
    assert sorted((row["partition"], row["ordinal"]) for row in rows) == sorted(
        (partition, ordinal) for partition, end in ends.items() for ordinal in range(end)
    )
    found: dict[str, dict[str, State]] = {partition: {} for partition in expected}
    for row in table(output, index, "state"):
        if row["state"] == "present":
            found[row["partition"]][row["target"]] = State(row["content_type"], row["body"])
        elif row["state"] == "unknown":
            found[row["partition"]][row["target"]] = State(None, "unknown")
        assert row["size"] == len(row["body"] or b"")
    assert found == expected


def table(output: Path, index: SnapshotIndex, name: str) -> list[dict[str, Any]]:
    """The rows of a table at the version that the index names, read without Spark."""
    place = index.delta[name]
    found = deltalake.DeltaTable(str(output / place.path), version=place.version)
    return sorted(found.to_pyarrow_table().to_pylist(), key=lambda row: (row["partition"], row["ordinal"]))


def cut(output: Path, index: SnapshotIndex) -> dict[str, int]:
    """Into how many parts each partition is cut."""
    content: dict[str, Any] = json.loads((output / LOG / index.id / "buckets.json").read_bytes())
    return dict(content["buckets"])
