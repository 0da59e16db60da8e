"""The last snapshots stay, older ones go, and none goes while anybody uses it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gateway.core.snapshots import INDEX, SnapshotIndex
from snapshots.retention import Retained, retain

READER = """
import sys, fcntl
with open(sys.argv[1]) as index:
    fcntl.flock(index, fcntl.LOCK_SH)
    print("reads", flush=True)
    sys.stdin.read()
"""


def id_of(number: int) -> str:
    return f"2026-01-01T00:00:{number:02}.000Z"


def make(folder, number):
    """A snapshot of nothing in `folder`, with a file that stands for a part."""
    snapshot = folder / id_of(number)
    snapshot.mkdir(parents=True)
    index = SnapshotIndex(id_of(number), "events", number, number, (), (), 0, "0" * 64, {})
    (snapshot / INDEX).write_bytes(index.to_json())
    (snapshot / "0").write_text("part")
    return snapshot


def numbers(folder):
    return [number for number in range(60) if (folder / id_of(number)).exists()]


@pytest.fixture
def reader():
    """Start another process that reads a snapshot until it is told to end."""
    started = []

    def read(snapshot):
        command = [sys.executable, "-c", READER, str(snapshot / INDEX)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout.readline() == "reads\n"
        return process

    yield read
    for process in started:
        process.kill()
        process.communicate()


def test_the_last_stay_and_the_others_go(tmp_path):
    for number in range(5):
        make(tmp_path, number)
    assert retain(tmp_path, 3) == Retained((id_of(1), id_of(0)), ())
    assert numbers(tmp_path) == [2, 3, 4]
    assert (tmp_path / id_of(2) / "0").read_text() == "part"
    assert retain(tmp_path, 3) == Retained((), ())


def test_the_newest_is_always_kept(tmp_path):
    make(tmp_path, 1)
    with pytest.raises(ValueError, match="newest"):
        retain(tmp_path, 0)
    assert retain(tmp_path, 1) == Retained((), ())
    assert numbers(tmp_path) == [1]


def test_one_that_is_read_stays_until_a_later_run(tmp_path, reader):
    for number in range(3):
        make(tmp_path, number)
    process = reader(tmp_path / id_of(0))
    assert retain(tmp_path, 1) == Retained((id_of(1),), (id_of(0),))
    assert (tmp_path / id_of(0) / "0").read_text() == "part"
    process.kill()
    process.wait()
    assert retain(tmp_path, 1) == Retained((id_of(0),), ())
    assert numbers(tmp_path) == [2]


def test_two_readers_of_one_keep_it_until_both_are_done(tmp_path, reader):
    old = make(tmp_path, 0)
    make(tmp_path, 1)
    first, second = reader(old), reader(old)
    for process in (first, second):
        assert retain(tmp_path, 1).in_use == (id_of(0),)
        process.kill()
        process.wait()
    assert retain(tmp_path, 1).removed == (id_of(0),)


def test_what_an_earlier_removal_left_is_swept_and_a_run_in_the_making_is_not(tmp_path):
    for number in range(2):
        make(tmp_path, number)
    (make(tmp_path, 2) / INDEX).unlink()
    made = tmp_path / "staging" / id_of(3)
    made.mkdir(parents=True)
    left = tmp_path / "staging" / f"removed-{id_of(9)}"
    left.mkdir()
    (left / "0").write_text("part")
    assert retain(tmp_path, 2) == Retained((), ())
    assert numbers(tmp_path) == [0, 1]
    assert made.is_dir()
    assert [path.name for path in (tmp_path / "staging").iterdir()] == [id_of(3)]


def test_one_that_cannot_be_read_takes_no_place(tmp_path):
    for number in range(4):
        make(tmp_path, number)
    (tmp_path / id_of(3) / INDEX).write_text("damaged")
    assert retain(tmp_path, 2) == Retained((id_of(0),), ())
    assert numbers(tmp_path) == [1, 2, 3]


def test_nothing_else_in_the_folder_is_touched(tmp_path):
    for name in ("delta", "2026-01-01", "other"):
        (tmp_path / name).mkdir()
    for name in ("lock", "status.json", id_of(7)):
        (tmp_path / name).write_text("file")
    make(tmp_path, 1)
    retain(tmp_path, 1)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"delta", "2026-01-01", "other", "lock", "status.json", id_of(1), id_of(7)}


def test_a_log_without_snapshots_has_none_to_remove(tmp_path):
    assert retain(tmp_path / "absent", 3) == Retained((), ())
