"""The status tells what is so, whoever writes it and whatever happens to its process."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from gateway.core.errors import DecodeError, StoreFailed
from snapshots.lock import RunLock
from snapshots.status import ERROR_CHARS_MAX, STATUS, Failure, Running, Scheduled, Status, StatusFile, Success

SUCCESS = Success("2026-01-01T00:00:00.000Z", 10, 2_010, 7, 12, 2.0)
MINE = Running(os.getpid(), 10, "fold")
OTHER = Running(1, 5, "export")

WRITER = """
import sys
from dataclasses import replace
from pathlib import Path
from snapshots.status import StatusFile
file = StatusFile(Path(sys.argv[1]))
for _ in range(100):
    file.update(lambda status: replace(status, failures=status.failures + 1))
"""


def test_what_is_written_is_read_again(tmp_path):
    status = Status(SUCCESS, Failure(3, "disk full"), 2, MINE, Scheduled("0 3 * * *", 1, 2, "why"))
    file = StatusFile(tmp_path / "new" / "events")
    assert file.read() == Status()
    assert file.update(lambda _: status) == status
    assert StatusFile(tmp_path / "new" / "events").read() == status


def test_a_success_ends_the_failures_in_a_row_and_leaves_the_last_error_to_be_seen():
    status = Status().began(MINE).failed(20, "first").began(MINE).failed(30, "second")
    assert (status.failures, status.failure) == (2, Failure(30, "second"))
    assert status.running is None
    status = status.began(MINE).succeeded(SUCCESS)
    assert (status.failures, status.failure, status.success) == (0, Failure(30, "second"), SUCCESS)
    assert status.running is None


def test_an_error_has_a_limit():
    assert len(Status().failed(1, "x" * 100_000).failure.error) == ERROR_CHARS_MAX


def test_a_run_that_has_been_given_up_is_neither_success_nor_failure():
    assert Status(SUCCESS).began(MINE).given_up() == Status(SUCCESS)


def test_a_run_that_another_process_has_begun_meanwhile_stays_under_way():
    assert Status(running=OTHER).succeeded(SUCCESS).running == OTHER
    assert Status(running=OTHER).failed(1, "why").running == OTHER


def test_whoever_begins_finds_the_run_before_broken_off():
    status = Status(running=OTHER).began(MINE)
    assert status.running == MINE
    assert status.failures == 1
    assert status.failure == Failure(5, "the run of process 1 was broken off: export")


def test_the_stages_of_one_run_are_one_run():
    status = Status().began(MINE).began(Running(MINE.pid, MINE.started, "export"))
    assert (status.failures, status.running.stage) == (0, "export")


def test_a_run_is_under_way_as_long_as_its_process_has_the_lock(tmp_path):
    file = StatusFile(tmp_path)
    file.update(lambda status: status.began(OTHER))
    with RunLock(tmp_path):
        assert file.look().running == OTHER
    assert file.look().running is None
    assert file.look().failure.error == "the run of process 1 was broken off: export"
    assert file.read().running == OTHER, "looking changes nothing"


def test_two_processes_lose_none_of_each_others_changes(tmp_path):
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)]) for _ in range(2)]
    file = StatusFile(tmp_path)
    while any(writer.poll() is None for writer in writers):
        # Whole at any moment.
        file.read()
    assert [writer.returncode for writer in writers] == [0, 0]
    assert file.read().failures == 200


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "1",
        '{"failures": "two"}',
        '{"failures": true}',
        '{"success": {"id": "x"}}',
        '{"running": []}',
        pytest.param("[" * 100_000, id="nested"),
    ],
)
def test_a_damaged_file_is_named_when_read_and_begun_again_when_written(tmp_path, content):
    file = StatusFile(tmp_path)
    (tmp_path / STATUS).write_text(content)
    with pytest.raises(DecodeError, match=f"{STATUS} is damaged"):
        file.read()
    assert file.update(lambda status: status.succeeded(SUCCESS)) == Status(SUCCESS)
    assert file.read() == Status(SUCCESS)


def test_a_file_of_a_version_that_told_less_or_more_is_read(tmp_path):
    (tmp_path / STATUS).write_text(json.dumps({"failures": 3, "weather": "fine"}))
    assert StatusFile(tmp_path).read() == Status(failures=3)


def test_what_cannot_be_written_leaves_what_was(tmp_path):
    file = StatusFile(tmp_path)
    file.update(lambda status: status.succeeded(SUCCESS))
    # A folder in place of the new file: nobody, root neither, can open it for writing.
    (tmp_path / f"{STATUS}.new").mkdir()
    with pytest.raises(StoreFailed, match=f"cannot write .*{STATUS}"):
        file.update(lambda status: status.failed(1, "why"))
    assert file.read() == Status(SUCCESS)
