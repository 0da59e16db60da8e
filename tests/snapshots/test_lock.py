"""One run at a time, from whatever process, and none is locked out by a dead one."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from snapshots.lock import LOCK, WITH_STATUS, RunLock, RunUnderWay, is_run_under_way

HOLDER = """
import sys
from pathlib import Path
from snapshots.lock import RunLock
with RunLock(Path(sys.argv[1])):
    print("locked", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that has the lock of the folder `snapshots/events`."""
    folder = tmp_path / "snapshots" / "events"
    command = [sys.executable, "-c", HOLDER, str(folder)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "locked\n"
    yield folder, process
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()


def test_a_second_process_is_told_which_one_is_at_work(holder):
    folder, process = holder
    with pytest.raises(RunUnderWay, match=f"{folder}, process {process.pid}: ") as error, RunLock(folder):
        pass
    assert (error.value.folder, error.value.pid) == (folder, process.pid)
    assert is_run_under_way(folder)


def test_the_lock_ends_with_a_process_that_is_killed(holder):
    folder, process = holder
    process.kill()
    process.wait()
    assert not is_run_under_way(folder)
    with RunLock(folder):
        assert (folder / LOCK).read_text() == f"{os.getpid()}\n"


def test_the_lock_ends_with_its_context_also_after_an_error(tmp_path):
    with pytest.raises(ValueError, match="wrong"), RunLock(tmp_path):
        raise ValueError("wrong")
    assert not is_run_under_way(tmp_path)
    with RunLock(tmp_path):
        assert is_run_under_way(tmp_path)


def test_one_process_does_not_run_twice_either(tmp_path):
    with RunLock(tmp_path):
        with pytest.raises(RunUnderWay, match=f"process {os.getpid()}"), RunLock(tmp_path):
            pass
        assert is_run_under_way(tmp_path)


def test_the_locks_of_two_logs_are_two(tmp_path):
    with RunLock(tmp_path / "a"), RunLock(tmp_path / "b"):
        assert is_run_under_way(tmp_path / "a")


def test_the_lock_of_a_run_and_that_of_its_status_are_two(tmp_path):
    with RunLock(tmp_path, WITH_STATUS):
        assert not is_run_under_way(tmp_path)
        with RunLock(tmp_path), pytest.raises(RunUnderWay), RunLock(tmp_path, WITH_STATUS):
            pass


def test_programs_that_a_run_starts_do_not_inherit_the_lock(tmp_path):
    with RunLock(tmp_path):
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert not is_run_under_way(tmp_path)
    finally:
        child.stdin.close()
        child.wait()


def test_whoever_only_asks_keeps_nobody_from_running(tmp_path):
    with RunLock(tmp_path):
        pass
    over = threading.Event()

    def ask():
        while not over.is_set():
            is_run_under_way(tmp_path)

    asking = [threading.Thread(target=ask) for _ in range(3)]
    for thread in asking:
        thread.start()
    try:
        for _ in range(50):
            with RunLock(tmp_path):
                pass
    finally:
        over.set()
        for thread in asking:
            thread.join()


def test_there_is_no_run_where_there_is_no_folder(tmp_path):
    assert not is_run_under_way(tmp_path / "absent")
