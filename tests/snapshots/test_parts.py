"""Parts: what a task writes, and that nothing of what it failed to write can be taken for a part."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from gateway.core.snapshots import SnapshotIndex, part_boundary, read_part
from gateway.core.state import Digest, etag_of
from snapshots.buckets import Layout
from snapshots.counts import BucketSum
from snapshots.export import Export
from snapshots.fold import FOLDED
from snapshots.parts import PART_COLUMNS, OutputNotShared, PartDiffers, Written, write_parts
from snapshots.publish import PartLost, Staging, sweep
from snapshots.stored import indexes, previous

SCHEMA = pa.schema([FOLDED.field(name) for name in PART_COLUMNS])
TIME = datetime(2024, 1, 1, tzinfo=UTC)


def row(target: str, *, bucket: int = 0, state: str = "present", body: bytes = b"{}") -> dict:
    present = state == "present"
    return {
        "partition": "0",
        "bucket": bucket,
        "target": target,
        "state": state,
        "content_type": "application/json" if present else None,
        "last_modified": TIME,
        "entry": "/feeds/things/0/events/7",
        "headers": [] if present else None,
        "body": body if present else None,
    }


def batches(rows: list[dict], size: int = 3) -> Iterator[pa.RecordBatch]:
    for start in range(0, len(rows), size):
        yield pa.RecordBatch.from_pylist(rows[start : start + size], schema=SCHEMA)


def digest(rows: list[dict]) -> Digest:
    changes = [
        (
            item["target"],
            "",
            '"unknown"' if item["state"] == "unknown" else etag_of(item["content_type"], item["body"]),
        )
        for item in rows
    ]
    return Digest().with_changes(changes)


ROWS = [*(row(f"/a/{number}") for number in range(5)), row("/a/x", state="unknown")]
OTHERS = [row(f"/b/{number}", bucket=2, body=b"\r\n" * number) for number in range(4)]
EXPECTED = {("0", 0): digest(ROWS), ("0", 2): digest(OTHERS)}


def test_what_a_task_wrote_is_what_it_tells(tmp_path):
    written = [
        found
        for batch in write_parts(batches(ROWS + OTHERS), EXPECTED, tmp_path, "things", "3")
        for found in batch.to_pylist()
    ]
    assert [(item["bucket"], item["file"]) for item in written] == [(0, "0-0-3"), (2, "0-2-3")]
    for item, rows in zip(written, (ROWS, OTHERS), strict=True):
        data = (tmp_path / item["file"]).read_bytes()
        assert (item["size"], item["sha256"]) == (len(data), hashlib.sha256(data).hexdigest())
        assert (item["entities"], item["digest"]) == (len(rows), digest(rows).hex())
        held = list(read_part(part_boundary("things", "0", digest(rows)), data))
        assert [(item.target, item.entity.body) for item in held] == [
            (item["target"], item["body"] or b"") for item in rows
        ]


@pytest.mark.parametrize("lost", [0, 1, 5, 6, 7, 9])
def test_a_task_that_lost_rows_fails(tmp_path, lost):
    rows = ROWS + OTHERS
    with pytest.raises(PartDiffers):
        list(write_parts(batches(rows[:lost] + rows[lost + 1 :]), EXPECTED, tmp_path, "things", "3"))


@pytest.mark.parametrize("left", range(10))
def test_a_task_whose_rows_end_early_fails(tmp_path, left):
    with pytest.raises(PartDiffers):
        list(write_parts(batches((ROWS + OTHERS)[:left]), EXPECTED, tmp_path, "things", "3"))


def test_a_task_that_got_other_bodies_or_rows_that_nobody_expects_fails(tmp_path):
    wrong = [*ROWS[:2], row("/a/2", body=b"[]"), *ROWS[3:]]
    with pytest.raises(PartDiffers, match="bucket 0"):
        list(write_parts(batches(wrong + OTHERS), EXPECTED, tmp_path, "things", "3"))
    more = [*ROWS, row("/c", bucket=1), *OTHERS]
    with pytest.raises(PartDiffers, match="bucket 1"):
        list(write_parts(batches(more), EXPECTED, tmp_path, "things", "4"))
    with pytest.raises(ValueError, match="/a/0 comes behind /a/1"):
        list(write_parts(batches([ROWS[1], ROWS[0]]), EXPECTED, tmp_path, "things", "5"))


def test_without_the_folder_a_task_says_that_it_is_not_shared(tmp_path):
    with pytest.raises(OutputNotShared, match="all machines share"):
        list(write_parts(batches(ROWS), EXPECTED, tmp_path / "elsewhere", "things", "3"))


def _export(folder: Path, staging: Staging) -> tuple[Export, dict]:
    found = [
        Written(
            ("0", item["bucket"]), item["file"], item["size"], item["sha256"], EXPECTED["0", item["bucket"]]
        )
        for batch in write_parts(batches(ROWS + OTHERS), EXPECTED, staging.attempts, "things", "3")
        for item in batch.to_pylist()
    ]
    sums = {bucket: BucketSum(expected, 10) for bucket, expected in EXPECTED.items()}
    return Export(Layout({"0": 4}), "true", sums, {}), {item.bucket: item for item in found}


def _publish(staging: Staging, export: Export, written: dict) -> SnapshotIndex:
    parts = staging.collect(export, written, lambda done, of: None)
    return staging.publish(parts, export.layout, (), {}, lambda: 0)


def test_a_snapshot_appears_whole_or_not_at_all(tmp_path, monkeypatch):
    folder = tmp_path / "things"
    real = {name: getattr(Path, name) for name in ("rename", "write_bytes")}
    left = [0]

    def failing(name):
        def operation(self, *arguments):
            if not left[0]:
                raise OSError(5, "the disk is gone")
            left[0] -= 1
            return real[name](self, *arguments)

        return operation

    for name in real:
        monkeypatch.setattr(Path, name, failing(name))
    for operations in range(5):
        sweep(folder)
        left[0] = 100
        staging = Staging(folder, 1_700_000_000_000)
        export, written = _export(folder, staging)
        left[0] = operations
        with pytest.raises(OSError, match="the disk is gone"):
            _publish(staging, export, written)
        assert [path.name for path in folder.iterdir()] == ["staging"]
    left[0] = 100
    sweep(folder)
    staging = Staging(folder, 1_700_000_000_000)
    export, written = _export(folder, staging)
    index = _publish(staging, export, written)
    assert index.id == "2023-11-14T22:13:20.000Z"
    assert index.completed == index.started
    assert next(indexes(folder)) == index
    assert sorted(path.name for path in (folder / index.id).iterdir()) == [
        "0",
        "1",
        "buckets.json",
        "index.json",
    ]


def test_a_file_that_is_not_what_a_task_wrote_is_no_part(tmp_path):
    staging = Staging(tmp_path / "things", 1_700_000_000_000)
    export, written = _export(tmp_path, staging)
    with (staging.attempts / "0-2-3").open("ab") as file:
        file.write(b"x")
    with pytest.raises(PartLost, match="0-2-3"):
        staging.collect(export, written, lambda done, of: None)


def test_parts_of_the_snapshot_before_stay_and_are_copied_where_there_are_no_links(tmp_path, monkeypatch):
    folder = tmp_path / "things"
    staging = Staging(folder, 1_700_000_000_000)
    export, written = _export(folder, staging)
    first = _publish(staging, export, written)
    before = previous(folder / first.id, first)
    assert before is not None
    assert before.layout == export.layout
    assert {bucket: part.sum for bucket, part in before.parts.items()} == export.written

    def no_links(self, target):
        raise OSError(95, "Operation not supported")

    for time, links in ((1_700_000_001_000, True), (1_700_000_002_000, False)):
        if not links:
            monkeypatch.setattr(Path, "hardlink_to", no_links)
        staging = Staging(folder, time)
        kept = Export(before.layout, "false", {}, before.parts)
        index = _publish(staging, kept, {})
        assert [part.sha256 for part in index.parts] == [part.sha256 for part in first.parts]
        for number in ("0", "1"):
            files = [folder / id_ / number for id_ in (first.id, index.id)]
            assert files[0].samefile(files[1]) is links
            assert files[0].read_bytes() == files[1].read_bytes()
        assert previous(folder / index.id, index) is not None
    (folder / first.id / "0").write_bytes(b"")
    assert previous(folder / first.id, first) is None
