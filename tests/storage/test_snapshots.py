"""The folder of snapshots: what counts as one, what is read of it, and that nobody removes one in use."""

from __future__ import annotations

import fcntl
import logging
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.core.errors import SnapshotUnreadable
from gateway.core.snapshots import INDEX, read_part
from gateway.storage import snapshots
from gateway.storage.leases import LEASE_KEPT_S, Leases, exclusively
from gateway.storage.snapshots import LISTING_KEPT_S, SnapshotFolder, remove_snapshot
from tests.snapshot_folder import add_snapshot, item

FIRST, SECOND, THIRD = (f"2026-01-0{day}T00:00:00.000Z" for day in (1, 2, 3))
ITEMS = [item("/a", b"one", ordinal=3), item("/b", b"two", ordinal=1)]


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


def add(root: Path, id_: str, *bodies: bytes):
    parts = [("0", ITEMS), *(("0", [item(f"/{n}", body)]) for n, body in enumerate(bodies))]
    return add_snapshot(root, "things", id_, parts)


def opened(root: Path) -> tuple[SnapshotFolder, Clock]:
    clock = Clock()
    return SnapshotFolder(root, "things", now_s=clock), clock


def ids(folder: SnapshotFolder) -> list[str]:
    return [index.id for index in folder.retained()]


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_a_folder_that_is_not_there_has_no_snapshots(tmp_path):
    folder, _ = opened(tmp_path / "absent")
    assert folder.retained() == ()
    assert folder.newest() is None
    assert folder.snapshot(FIRST) is None


def test_the_newest_comes_first_and_what_is_no_snapshot_does_not_count(tmp_path):
    for id_ in (SECOND, FIRST, THIRD):
        add(tmp_path, id_)
    log = tmp_path / "things"
    for name in ("delta", "staging", "2026-01-04", f"{THIRD}.old", "2026-01-05T00:00:00.000Z"):
        (log / name).mkdir(exist_ok=True)
    (log / "delta" / INDEX).write_bytes((log / FIRST / INDEX).read_bytes())
    (log / "2026-01-06T00:00:00.000Z").write_bytes(b"a file")
    (log / "status.json").write_text("{}")
    folder, _ = opened(tmp_path)
    assert ids(folder) == [THIRD, SECOND, FIRST]
    assert folder.newest().index.id == THIRD
    assert folder.snapshot("delta") is folder.snapshot("staging") is folder.snapshot("..") is None


def test_an_index_and_a_part_are_the_bytes_of_their_files(tmp_path):
    index = add(tmp_path, FIRST, b"three")
    folder, _ = opened(tmp_path)
    snapshot = folder.snapshot(FIRST)
    assert snapshot.index == index
    assert snapshot.document == (tmp_path / "things" / FIRST / INDEX).read_bytes()
    assert folder.retained() == (replace(index, parts=()),)
    part = folder.open_part(snapshot, 0)
    document = part.read(0, part.part.size + 1)
    assert len(document) == part.part.size
    assert list(read_part(part.part.boundary, document)) == ITEMS
    assert part.read(5, 7) == document[5:12]
    with pytest.raises(SnapshotUnreadable, match="its file ends before"):
        part.read(part.part.size, 1)
    part.close()
    with pytest.raises(ValueError, match="closed"):
        part.read(0, 1)


def test_a_new_snapshot_is_seen_at_once_and_a_removed_one_no_longer(tmp_path):
    add(tmp_path, FIRST)
    folder, _ = opened(tmp_path)
    assert ids(folder) == [FIRST]
    os.utime(tmp_path / "things", ns=(0, 0))
    assert ids(folder) == [FIRST]
    add(tmp_path, SECOND)
    assert ids(folder) == [SECOND, FIRST]
    os.utime(tmp_path / "things", ns=(0, 0))
    assert remove_snapshot(tmp_path / "things" / FIRST)
    assert ids(folder) == [SECOND]
    assert folder.snapshot(FIRST) is None


def test_a_change_that_the_time_of_the_folder_does_not_show_is_seen_a_little_later(tmp_path):
    add(tmp_path, FIRST)
    folder, clock = opened(tmp_path)
    assert ids(folder) == [FIRST]
    status = (tmp_path / "things").stat()
    add(tmp_path, SECOND)
    os.utime(tmp_path / "things", ns=(status.st_atime_ns, status.st_mtime_ns))
    assert ids(folder) == [FIRST]
    clock.now_s += LISTING_KEPT_S
    assert ids(folder) == [SECOND, FIRST]


def test_what_has_not_changed_is_not_read_again(tmp_path, monkeypatch):
    reads = []
    read = snapshots._read
    monkeypatch.setattr(
        snapshots, "_read", lambda folder, links: reads.append(folder.name) or read(folder, links)
    )
    add(tmp_path, FIRST)
    folder, clock = opened(tmp_path)
    for _ in range(5):
        assert folder.newest().index.id == FIRST
        clock.now_s += LISTING_KEPT_S
    assert reads == [FIRST]
    add(tmp_path, SECOND)
    assert folder.newest().index.id == SECOND
    assert reads == [FIRST, SECOND]


def test_indexes_in_memory_are_bounded_and_the_others_are_read_when_asked_for(tmp_path, monkeypatch):
    for id_ in (FIRST, SECOND, THIRD):
        add(tmp_path, id_)
    size = (tmp_path / "things" / FIRST / INDEX).stat().st_size
    monkeypatch.setattr(snapshots, "INDEXES_BYTES_MAX", 2 * size)
    folder, _ = opened(tmp_path)
    for id_ in (FIRST, SECOND, THIRD, FIRST):
        assert folder.snapshot(id_).index.id == id_
        assert len(folder._loaded) <= 2
    monkeypatch.setattr(snapshots, "INDEXES_BYTES_MAX", 0)
    assert folder.snapshot(SECOND).index.id == SECOND
    assert list(folder._loaded) == [SECOND]


def damaged_indexes(document: bytes) -> dict[str, bytes]:
    return {
        "empty": b"",
        "cut short": document[:-40],
        "of another log": document.replace(b'"log": "things"', b'"log": "others"'),
        "of another snapshot": document.replace(FIRST.encode(), SECOND.encode()),
        "with parts elsewhere": document.replace(b"/snapshots/things/", b"/snapshots/others/"),
        "of no time": document.replace(b'"completed": ', b'"completed": 999'),
        "with another count": document.replace(b'"entities": 2', b'"entities": 3'),
    }


@pytest.mark.parametrize("how", list(damaged_indexes(b"")))
def test_a_damaged_index_is_not_served_and_is_named_in_the_log_once(tmp_path, caplog, how):
    add(tmp_path, FIRST)
    path = tmp_path / "things" / FIRST / INDEX
    whole = path.read_bytes()
    damaged = damaged_indexes(whole)[how]
    assert damaged != whole
    path.write_bytes(damaged)
    folder, clock = opened(tmp_path)
    with caplog.at_level(logging.ERROR, "wes.snapshots"):
        for _ in range(3):
            assert ids(folder) == []
            assert folder.snapshot(FIRST) is folder.newest() is None
            clock.now_s += LISTING_KEPT_S
        add(tmp_path, THIRD)
        assert ids(folder) == [THIRD]
    assert [(record.message, record.snapshot) for record in caplog.records] == [("snapshot_damaged", FIRST)]
    _file_with(tmp_path, whole).replace(path)
    clock.now_s += LISTING_KEPT_S
    assert ids(folder) == [THIRD, FIRST]


def _file_with(folder: Path, content: bytes) -> Path:
    path = folder / "new"
    path.write_bytes(content)
    return path


def test_an_index_that_the_disk_does_not_give_is_tried_again_and_named_in_the_log_once(
    tmp_path, monkeypatch, caplog
):
    add(tmp_path, FIRST)
    folder, clock = opened(tmp_path)
    read = snapshots._read

    def fail(path, links):
        raise OSError(5, "Input/output error", str(path))

    monkeypatch.setattr(snapshots, "_read", fail)
    with caplog.at_level(logging.ERROR, "wes.snapshots"):
        for _ in range(3):
            assert ids(folder) == []
            clock.now_s += LISTING_KEPT_S
    assert [record.reason for record in caplog.records] == ["Input/output error"]
    monkeypatch.setattr(snapshots, "_read", read)
    assert ids(folder) == [FIRST]


def test_an_index_beyond_the_limit_is_damaged(tmp_path, monkeypatch):
    add(tmp_path, FIRST)
    monkeypatch.setattr(snapshots, "INDEX_BYTES_MAX", 100)
    folder, _ = opened(tmp_path)
    assert ids(folder) == []


@pytest.mark.parametrize("change", [-1, 1])
def test_a_part_of_another_size_is_not_opened_and_says_which_and_why(tmp_path, change):
    index = add(tmp_path, FIRST)
    path = tmp_path / "things" / FIRST / "0"
    document = path.read_bytes()
    path.write_bytes(document[:-1] if change < 0 else document + b"x")
    folder, _ = opened(tmp_path)
    snapshot = folder.snapshot(FIRST)
    says = f"{index.parts[0].uri} .* its file has {len(document) + change} bytes"
    with pytest.raises(SnapshotUnreadable, match=says):
        folder.open_part(snapshot, 0)
    path.unlink()
    with pytest.raises(SnapshotUnreadable, match="No such file") as error:
        folder.open_part(snapshot, 0)
    assert str(tmp_path) not in str(error.value)
    folder.leases.end_idle(at_once=True)
    assert remove_snapshot(tmp_path / "things" / FIRST)


def test_a_removed_snapshot_is_gone_with_all_its_files(tmp_path):
    for id_ in (FIRST, SECOND):
        add(tmp_path, id_)
    assert remove_snapshot(tmp_path / "things" / FIRST)
    assert sorted(path.name for path in (tmp_path / "things").iterdir()) == [SECOND, "staging"]
    assert list((tmp_path / "things" / "staging").iterdir()) == []
    assert remove_snapshot(tmp_path / "things" / FIRST), "it is removed already"


def test_what_a_crash_has_left_in_staging_does_not_keep_a_snapshot_from_being_removed(tmp_path):
    add(tmp_path, FIRST)
    left = tmp_path / "things" / "staging" / f"removed-{FIRST}"
    left.mkdir(parents=True)
    (left / "0").write_bytes(b"left")
    assert remove_snapshot(tmp_path / "things" / FIRST)
    assert list(left.parent.iterdir()) == []


def test_a_folder_without_an_index_is_left_as_it_is(tmp_path):
    folder = tmp_path / "things" / FIRST
    folder.mkdir(parents=True)
    (folder / "0").write_bytes(b"a part")
    assert not remove_snapshot(folder)
    assert (folder / "0").exists()


def test_a_snapshot_in_use_is_not_removed_until_some_time_after_the_last_request(tmp_path):
    add(tmp_path, FIRST)
    path = tmp_path / "things" / FIRST
    folder, clock = opened(tmp_path)
    snapshot = folder.snapshot(FIRST)
    assert not remove_snapshot(path)
    part = folder.open_part(snapshot, 0)
    clock.now_s += 10 * LEASE_KEPT_S
    folder.leases.end_idle()
    assert not remove_snapshot(path), "a part of it is being read"
    part.close()
    clock.now_s += LEASE_KEPT_S - 1
    folder.leases.end_idle()
    assert not remove_snapshot(path), "its reader may come back"
    assert folder.newest() is not None
    clock.now_s += LEASE_KEPT_S - 1
    folder.leases.end_idle()
    assert not remove_snapshot(path), "its reader came back"
    clock.now_s += 1
    folder.leases.end_idle()
    assert remove_snapshot(path)
    assert folder.open_part(snapshot, 0) is None


def test_listing_leases_nothing(tmp_path):
    add(tmp_path, FIRST)
    folder, _ = opened(tmp_path)
    assert ids(folder) == [FIRST]
    assert remove_snapshot(tmp_path / "things" / FIRST)


def test_a_snapshot_that_is_about_to_be_removed_is_not_given_to_new_readers(tmp_path):
    for id_ in (FIRST, SECOND):
        add(tmp_path, id_)
    folder, _ = opened(tmp_path)
    assert ids(folder) == [SECOND, FIRST]
    with exclusively(tmp_path / "things" / SECOND / INDEX) as alone:
        assert alone
        assert folder.snapshot(SECOND) is None
        assert folder.newest().index.id == FIRST
    assert folder.newest().index.id == SECOND


def test_a_lease_on_what_was_removed_while_it_was_taken_is_none(tmp_path, monkeypatch):
    """The file is open, and then the folder is renamed away and its lock is free again."""
    add(tmp_path, FIRST)
    path = tmp_path / "things" / FIRST
    flock = fcntl.flock

    def late(descriptor, operation):
        monkeypatch.setattr(fcntl, "flock", flock)
        assert remove_snapshot(path)
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    assert not Leases().take(path / INDEX)


def test_an_exclusive_lock_on_what_was_replaced_meanwhile_is_none(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(b"one")
    flock = fcntl.flock

    def late(descriptor, operation):
        path.unlink()
        path.write_bytes(b"two")
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    with exclusively(path) as alone:
        assert not alone


def test_a_lease_holds_against_another_process_and_ends_with_its_own(tmp_path):
    add(tmp_path, FIRST)
    program = (
        "import sys; from pathlib import Path; from gateway.storage.snapshots import SnapshotFolder\n"
        "folder = SnapshotFolder(Path(sys.argv[1]), 'things'); assert folder.newest()\n"
        "print('leased', flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout.readline() == b"leased\n"
        assert not remove_snapshot(tmp_path / "things" / FIRST)
        process.kill()
        process.wait(30)
        assert remove_snapshot(tmp_path / "things" / FIRST)
    finally:
        process.kill()
        process.communicate()


def test_many_threads_share_one_lease_and_none_is_left(tmp_path):
    index = add(tmp_path, FIRST, *(b"%d" % number for number in range(7)))
    folder, _ = opened(tmp_path)
    start = threading.Barrier(8)

    def read(number: int) -> bytes:
        start.wait(10)
        part = folder.open_part(folder.snapshot(FIRST), number)
        try:
            return part.read(0, part.part.size)
        finally:
            part.close()

    with ThreadPoolExecutor(8) as pool:
        documents = list(pool.map(read, range(8)))
    assert [len(document) for document in documents] == [part.size for part in index.parts]
    before = descriptors()
    folder.leases.end_idle(at_once=True)
    assert descriptors() == before - 1
    assert remove_snapshot(tmp_path / "things" / FIRST)
