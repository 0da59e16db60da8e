"""Runs at the times of a cron expression: each time once, never two at a time, and again what failed.

Time is a value here: a schedule of days takes milliseconds. The processes at the end are real.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from itertools import pairwise

import pytest

from gateway.core.errors import GatewayError
from gateway.core.snapshots import FeedPoint, SnapshotIndex
from snapshots.cron import Cron
from snapshots.lock import RunLock
from snapshots.runs import RunFailed, RunGivenUp, reason, recorded
from snapshots.schedule import Schedule, ScheduleLimits, ScheduleObserver
from snapshots.status import STATUS, Scheduled, Status, StatusFile

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
START = int(datetime(2026, 3, 1, tzinfo=UTC).timestamp() * 1000)


class Time:
    """A clock that goes on when somebody waits, and stops the schedule at `end`."""

    def __init__(self, now=START, end=START + DAY):
        self.now = now
        self.end = end
        self.stopped = False
        self.events = {}

    def now_ms(self):
        return self.now

    def at(self, moment, do):
        """Do it when the clock reaches `moment`."""
        self.events[moment] = do

    def pass_by(self, milliseconds):
        self.now += milliseconds
        for moment in sorted(self.events):
            if moment <= self.now:
                self.events.pop(moment, lambda: None)()

    def is_set(self):
        return self.stopped or self.now >= self.end

    def wait(self, timeout):
        assert 0 < timeout <= ScheduleLimits().look_s_max
        self.pass_by(int(timeout * 1000))
        return self.is_set()


class Job(ScheduleObserver):
    """A run that takes `takes` milliseconds and fails with the errors in `fails`, one by one."""

    def __init__(self, folder, clock, takes=1_000, fails=()):
        self.folder = folder
        self.clock = clock
        self.takes = takes
        self.fails = list(fails)
        self.starts = []
        self.retries = []
        self.snapshots = []

    def __call__(self, observer):
        with RunLock(self.folder):
            self.starts.append(self.clock.now)
            observer.stage("fold")
            self.clock.pass_by(self.takes)
            observer.progress(1, 2)
            if self.fails:
                raise self.fails.pop(0)
            feed = FeedPoint(
                "0", 9, "/feeds/events/0/events/9", "9.x@0.events.localhost", "/feeds/events/0/archive/0"
            )
            id_ = f"{datetime.fromtimestamp(self.clock.now / 1000, UTC):%Y-%m-%dT%H:%M:%S}.000Z"
            return SnapshotIndex(id_, "events", self.clock.now, self.clock.now, (feed,), (), 0, "0" * 64, {})

    def made(self, index, success):
        self.snapshots.append(index.id)

    def failed(self, error, retry_ms):
        self.retries.append((str(error), retry_ms))


def scheduled(folder, clock, job, cron="0 * * * *", **limits):
    schedule = Schedule(
        Cron(cron), StatusFile(folder), job, clock, clock.now_ms, job, ScheduleLimits(**limits)
    )
    schedule.go_on()
    return schedule


def hours(*numbers):
    return [START + number * HOUR for number in numbers]


def test_a_run_begins_at_each_time_and_at_no_other(tmp_path):
    clock = Time(START + 1, START + 5 * HOUR)
    job = Job(tmp_path, clock)
    scheduled(tmp_path, clock, job)
    assert job.starts == hours(1, 2, 3, 4)
    status = StatusFile(tmp_path).read()
    assert (status.success.started, status.success.seconds) == (START + 4 * HOUR, 1.0)
    assert (status.success.events, status.failures, status.running) == (10, 0, None)
    assert (status.scheduled.cron, status.scheduled.next) == ("0 * * * *", START + 5 * HOUR)


def test_a_first_schedule_has_missed_nothing(tmp_path):
    clock = Time(START, START + HOUR)
    job = Job(tmp_path, clock)
    scheduled(tmp_path, clock, job)
    assert job.starts == []


def test_what_was_missed_while_no_process_was_there_is_one_run(tmp_path):
    clock = Time(START + 1, START + 2 * HOUR + 1)
    job = Job(tmp_path, clock)
    scheduled(tmp_path, clock, job)
    clock.now, clock.end = START + 7 * HOUR + 5, START + 8 * HOUR + MINUTE
    scheduled(tmp_path, clock, job)
    assert job.starts == [*hours(1, 2), START + 7 * HOUR + 5, *hours(8)]


def test_what_came_while_a_run_was_under_way_is_one_run(tmp_path):
    clock = Time(START + 1, START + 8 * HOUR)
    job = Job(tmp_path, clock, takes=3 * HOUR + MINUTE)
    scheduled(tmp_path, clock, job)
    assert job.starts == [START + HOUR, START + 4 * HOUR + MINUTE, START + 7 * HOUR + 2 * MINUTE]


def test_a_run_by_hand_is_that_of_the_time_before_it(tmp_path):
    clock = Time(START + 1, START + 90 * MINUTE)
    job = Job(tmp_path, clock)
    scheduled(tmp_path, clock, job)
    clock.now = START + 2 * HOUR + MINUTE
    recorded(job, StatusFile(tmp_path), now_ms=clock.now_ms)
    clock.now, clock.end = START + 2 * HOUR + 5 * MINUTE, START + 3 * HOUR + 1
    scheduled(tmp_path, clock, job)
    assert job.starts == [START + HOUR, START + 2 * HOUR + MINUTE, START + 3 * HOUR]


def test_what_failed_is_tried_again_after_twice_as_long_each_time_and_can_be_seen(tmp_path):
    clock = Time(START + 1, START + 3 * HOUR)
    job = Job(tmp_path, clock, takes=0, fails=[GatewayError(f"disk full {number}") for number in range(5)])
    seen = []
    clock.at(START + HOUR + 40_000, lambda: seen.append(StatusFile(tmp_path).read()))
    scheduled(tmp_path, clock, job, retry_s_min=10)
    waits = [after - before for before, after in pairwise(job.starts)]
    assert job.starts[0] == START + HOUR
    assert waits == [10_000, 20_000, 40_000, 80_000, 160_000, HOUR - 310_000]
    assert [text for text, _ in job.retries] == [f"disk full {number}" for number in range(5)]
    assert [at for _, at in job.retries] == job.starts[1:6]
    (status,) = seen
    assert (status.failures, status.failure.error, status.failure.time) == (3, "disk full 2", job.starts[2])
    assert (status.scheduled.next, status.scheduled.waiting) == (job.starts[3], "disk full 2")
    status = StatusFile(tmp_path).read()
    assert (status.failures, status.failure.error) == (0, "disk full 4")
    assert status.scheduled.waiting is None


def test_after_a_success_the_next_failure_is_tried_again_soon(tmp_path):
    clock = Time(START + 1, START + 3 * HOUR)
    job = Job(tmp_path, clock, takes=0, fails=[GatewayError("a"), GatewayError("b")])
    clock.at(START + 2 * HOUR - MINUTE, lambda: job.fails.append(GatewayError("c")))
    scheduled(tmp_path, clock, job, retry_s_min=10)
    assert job.starts[-2:] == [START + 2 * HOUR, START + 2 * HOUR + 10_000]


def test_the_wait_before_another_try_has_a_limit(tmp_path):
    clock = Time(START, START + DAY)
    job = Job(tmp_path, clock, takes=0, fails=[GatewayError("no")] * 15)
    StatusFile(tmp_path).update(lambda _: Status(scheduled=Scheduled("0 0 1 * *", START - DAY, START, None)))
    scheduled(tmp_path, clock, job, cron="0 0 1 * *", retry_s_min=10, retry_s_max=3_600)
    waits = [after - before for before, after in pairwise(job.starts)]
    assert waits == [10_000 * 2**number for number in range(9)] + [HOUR] * 6


def test_the_next_time_does_not_wait_for_another_try(tmp_path):
    clock = Time(START, START + 10 * MINUTE)
    job = Job(tmp_path, clock, takes=0, fails=[GatewayError("no")] * 3)
    scheduled(tmp_path, clock, job, cron="* * * * *", retry_s_min=1_800)
    assert job.starts == [START + number * MINUTE for number in range(1, 10)]


def test_a_run_of_another_process_that_began_in_time_is_as_good(tmp_path):
    clock = Time(START + 1, START + 2 * HOUR)
    job = Job(tmp_path, clock)
    other = Job(tmp_path, clock)
    lock = RunLock(tmp_path)
    clock.at(START + HOUR, lock.__enter__)

    def done():
        lock.__exit__(None, None, None)
        before = clock.now
        clock.now = START + HOUR
        _, success = recorded(other, StatusFile(tmp_path), now_ms=clock.now_ms)
        assert success.started == START + HOUR
        clock.now = before

    clock.at(START + HOUR + 50_000, done)
    seen = []
    clock.at(START + HOUR + 30_000, lambda: seen.append(StatusFile(tmp_path).read()))
    scheduled(tmp_path, clock, job)
    assert job.starts == []
    assert len(other.starts) == 1
    assert f"process {os.getpid()}" in seen[0].scheduled.waiting
    assert (seen[0].failures, seen[0].failure) == (0, None)


def test_a_run_of_another_process_that_began_too_early_is_waited_for(tmp_path):
    clock = Time(START + 1, START + 2 * HOUR)
    job = Job(tmp_path, clock)
    lock = RunLock(tmp_path)
    clock.at(START + HOUR - MINUTE, lock.__enter__)
    clock.at(START + HOUR + 40_000, lambda: lock.__exit__(None, None, None))
    scheduled(tmp_path, clock, job, busy_s=15)
    assert len(job.starts) == 1
    assert 0 <= job.starts[0] - (START + HOUR + 40_000) <= 16_000


def test_a_clock_that_is_put_forward_leaves_one_run_for_all_that_it_passed(tmp_path):
    clock = Time(START + 1, START + 12 * HOUR)
    job = Job(tmp_path, clock)
    clock.at(START + 90 * MINUTE, lambda: clock.pass_by(5 * HOUR))
    scheduled(tmp_path, clock, job)
    assert job.starts[0] == START + HOUR
    assert START + 6 * HOUR + 30 * MINUTE <= job.starts[1] <= START + 6 * HOUR + 31 * MINUTE
    assert job.starts[2:] == hours(7, 8, 9, 10, 11)


def test_a_clock_that_is_put_back_a_little_doubles_no_run(tmp_path):
    clock = Time(START + 1, START + 4 * HOUR)
    job = Job(tmp_path, clock)
    clock.at(START + HOUR + 5 * MINUTE, lambda: clock.pass_by(-10 * MINUTE))
    scheduled(tmp_path, clock, job)
    assert job.starts == hours(1, 2, 3)


def test_a_clock_that_was_far_ahead_is_forgotten(tmp_path):
    clock = Time(START + 10 * DAY, START + 11 * DAY)
    job = Job(tmp_path, clock)

    def put_right():
        clock.now, clock.end = START + 1, START + 5 * HOUR

    clock.at(START + 10 * DAY + 90 * MINUTE, put_right)
    scheduled(tmp_path, clock, job)
    assert job.starts == [START + 10 * DAY + HOUR, *hours(1, 2, 3, 4)]


def test_a_failure_of_a_time_that_was_far_ahead_is_tried_again_now(tmp_path):
    clock = Time(START + 10 * DAY, START + 11 * DAY)
    job = Job(tmp_path, clock, takes=0, fails=[GatewayError("no")])

    def put_right():
        clock.now, clock.end = START + 1, START + 2 * HOUR

    clock.at(START + 10 * DAY + HOUR + 10_000, put_right)
    scheduled(tmp_path, clock, job, retry_s_min=1_800)
    assert job.starts == [START + 10 * DAY + HOUR, START + HOUR]


def test_a_run_under_way_is_given_up_at_its_next_word_when_the_schedule_is_to_end(tmp_path):
    clock = Time(START + 1)
    job = Job(tmp_path, clock, takes=10 * MINUTE)
    clock.at(START + HOUR + 5 * MINUTE, lambda: setattr(clock, "stopped", True))
    scheduled(tmp_path, clock, job)
    assert clock.now == START + HOUR + 10 * MINUTE
    assert job.snapshots == []
    status = StatusFile(tmp_path).read()
    assert (status.success, status.failure, status.running) == (None, None, None)
    clock.stopped, clock.end = False, START + HOUR + 30 * MINUTE
    scheduled(tmp_path, clock, job)
    assert len(job.snapshots) == 1, "the next process makes it"


def test_what_the_end_breaks_in_a_run_is_no_failure(tmp_path):
    clock = Time()
    clock.stopped = True
    job = Job(tmp_path, clock, fails=[OSError("Java has ended")])
    with pytest.raises(RunGivenUp):
        recorded(lambda _: job(_Silent()), StatusFile(tmp_path), now_ms=clock.now_ms, stopping=clock.is_set)
    assert StatusFile(tmp_path).read().failure is None


class _Silent:
    def stage(self, name):
        pass

    def progress(self, done, of):
        pass


def test_a_status_that_cannot_be_written_stops_no_run_and_doubles_none(tmp_path, caplog):
    clock = Time(START + 1, START + 4 * HOUR)
    job = Job(tmp_path, clock)
    (tmp_path / f"{STATUS}.new").mkdir()
    scheduled(tmp_path, clock, job)
    assert job.starts == hours(1, 2, 3)
    assert "status_not_written" in caplog.messages


def test_a_status_that_is_damaged_is_written_anew(tmp_path):
    clock = Time(START + 1, START + 4 * HOUR)
    job = Job(tmp_path, clock)
    clock.at(START + 90 * MINUTE, lambda: (tmp_path / STATUS).write_text("{"))
    scheduled(tmp_path, clock, job)
    assert job.starts == hours(1, 2, 3)
    assert StatusFile(tmp_path).read().success.started == START + 3 * HOUR


def test_whatever_a_run_fails_of_the_schedule_goes_on_and_says_why(tmp_path):
    clock = Time(START + 1, START + 2 * HOUR)
    job = Job(tmp_path, clock, takes=0, fails=[TypeError("'JavaPackage' object is not callable"), OSError()])
    scheduled(tmp_path, clock, job)
    assert [text for text, _ in job.retries] == ["TypeError: 'JavaPackage' object is not callable", "OSError"]
    assert len(job.snapshots) == 1


def test_a_failed_run_keeps_what_it_failed_of(tmp_path):
    cause = OSError("no such device")
    with pytest.raises(RunFailed, match="OSError: no such device") as error:
        recorded(Job(tmp_path, Time(), fails=[cause]), StatusFile(tmp_path), now_ms=lambda: 7)
    assert error.value.__cause__ is cause
    assert StatusFile(tmp_path).read().failure.error == "OSError: no such device"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "An error occurred while calling o45.save.\n: org.apache.spark.SparkException: Job aborted.\n"
            "\tat org.apache.spark.X(X.scala:1)\nCaused by: java.io.IOException: outer\n\tat java.Y\n"
            "Caused by: java.io.IOException: No space left on device\n\tat java.Z\n\t... 3 more\n",
            "java.io.IOException: No space left on device",
        ),
        (
            "Job aborted due to stage failure: Task 0 failed: org.apache.spark.api.python.PythonException: \n"
            'Traceback (most recent call last):\n  File "x.py", line 1, in f\n    g()\n    ^^^\n'
            "gateway.core.errors.PageDamaged: page 3 is damaged\n\n\tat org.apache.spark.X(X.scala:1)\n"
            "Caused by: org.apache.spark.api.python.PythonException: Traceback\n",
            "gateway.core.errors.PageDamaged: page 3 is damaged",
        ),
        ("one\n  two\n\tat org.X", "ValueError: one two"),
        ("", "ValueError"),
    ],
)
def test_the_root_of_an_error_is_found_in_what_java_and_python_wrapped_it(text, says):
    assert reason(ValueError(text)) == says


PROCESS = """
import sys, threading, time, signal
from pathlib import Path
from gateway.core.snapshots import SnapshotIndex
from snapshots.cron import Cron
from snapshots.lock import RunLock
from snapshots.schedule import Schedule, ScheduleLimits
from snapshots.status import StatusFile

folder, runs = Path(sys.argv[1]), Path(sys.argv[2])
stop = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())


def now_ms():
    return time.time_ns() // 1_000_000


def run(observer):
    with RunLock(folder):
        started = now_ms()
        observer.stage("fold")
        time.sleep(0.3)
        with runs.open("a") as file:
            file.write(f"{started} {now_ms()} {sys.argv[3]}\\n")
        return SnapshotIndex("2026-01-01T00:00:00.000Z", "events", started, started, (), (), 0, "0" * 64, {})


limits = ScheduleLimits(busy_s=0.2)
schedule = Schedule(Cron("* * * * * *"), StatusFile(folder), run, stop, now_ms, limits=limits)
print("ready", flush=True)
schedule.go_on()
"""


@pytest.mark.slow
def test_two_processes_make_one_run_a_time_and_one_goes_on_when_the_other_is_killed(tmp_path):
    folder, runs = tmp_path / "events", tmp_path / "runs"
    command = [sys.executable, "-c", PROCESS, str(folder), str(runs)]
    processes = {
        name: subprocess.Popen([*command, name], stdout=subprocess.PIPE, text=True) for name in ("a", "b")
    }
    try:
        for process in processes.values():
            assert process.stdout.readline() == "ready\n"
        wait_until(lambda: len(lines(runs)) >= 6)
        before = len(lines(runs))
        processes["a"].send_signal(signal.SIGKILL)
        processes["a"].wait()
        wait_until(lambda: len(lines(runs)) >= before + 3)
        processes["b"].send_signal(signal.SIGTERM)
        assert processes["b"].wait(10) == 0
    finally:
        for process in processes.values():
            process.kill()
            process.communicate()
    made = [(int(start), int(end), name) for start, end, name in map(str.split, lines(runs))]
    assert all(end <= start for (_, end, _), (start, _, _) in pairwise(made)), "one after the other"
    assert len({start // 1_000 for start, _, _ in made}) == len(made), "one for each time"
    assert [name for _, _, name in made[before + 1 :]] == ["b"] * (len(made) - before - 1)
    assert StatusFile(folder).look().success.started <= made[-1][0]


def lines(file):
    return file.read_text().splitlines() if file.exists() else []


def wait_until(condition, wait_s=30.0):
    deadline = time.monotonic() + wait_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
