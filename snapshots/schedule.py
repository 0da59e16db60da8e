"""The schedule: a run at each time of a cron expression, one after the other, for as long as it is wanted.

A time is *handled* when a run that began at it or later, in whatever process, has made a snapshot. What was
missed, because nobody was there, or the run before took too long, or failed, is one run, however many times
it is. The status keeps the last time that was handled, so that a new process goes on where this one ended.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from gateway.core.errors import DecodeError, GatewayError
from gateway.core.snapshots import SnapshotIndex

from .cron import Cron
from .lock import WITH_STATUS, RunLock, RunUnderWay
from .runs import Run, RunGivenUp, note, recorded
from .status import ERROR_CHARS_MAX, Scheduled, Status, StatusFile, Success

_WAIT_S_MIN = 0.01
_DOUBLED_MAX = 20


class Stop(Protocol):
    """Whether the schedule is to end, as threading.Event says it."""

    def is_set(self) -> bool: ...

    def wait(self, timeout: float) -> bool: ...


class ScheduleObserver:
    """Is told what happens; this one does nothing with it."""

    def waits(self, next_ms: int) -> None:
        """The next run is at `next_ms`."""

    def made(self, index: SnapshotIndex, success: Success) -> None:
        """A run made a snapshot."""

    def failed(self, error: GatewayError, retry_ms: int) -> None:
        """A run failed, or another one was under way; it is tried again at `retry_ms`."""


@dataclass(frozen=True, slots=True)
class ScheduleLimits:
    """How long the schedule waits."""

    retry_s_min: float = 10.0
    retry_s_max: float = 3_600.0
    """What failed is tried again after `retry_s_min`, then twice as long, up to this, or at the next time."""
    busy_s: float = 15.0
    """So long it waits for a run of another process before it looks again."""
    look_s_max: float = 30.0
    """So often it looks at the clock, which may be put forward or sleep with the machine."""
    clock_back_s_max: float = 3 * 3_600.0
    """A clock that goes back further was wrong before: what is due goes by the new time."""


@dataclass(frozen=True, slots=True)
class _Retry:
    """When what is due is tried again, and why it has not been made; `failures` are those in a row."""

    at_ms: int
    because: str
    failures: int


@dataclass(slots=True)
class Schedule:
    """Makes runs with `run` at the times of `cron`, and tells of them in `status`."""

    cron: Cron
    status: StatusFile
    run: Run
    stop: Stop
    now_ms: Callable[[], int]
    observer: ScheduleObserver = field(default_factory=ScheduleObserver)
    limits: ScheduleLimits = field(default_factory=ScheduleLimits)
    _handled: int | None = None
    _retry: _Retry | None = None
    _written: Scheduled | None = None
    _told_ms: int | None = None

    def go_on(self) -> None:
        """Until `stop` is set; a run that is under way then is given up at its next stage."""
        while not self.stop.is_set():
            now = self.now_ms()
            due, handled = self.cron.until(now), self._handled_until(now)
            if due <= handled:
                self._retry = None
                self._wait_until(self.cron.after(max(now, handled)), now, handled)
            elif self._retry is not None and 0 < self._retry.at_ms - now <= self._far_ms:
                self._wait_until(self._retry.at_ms, now, handled)
            else:
                self._tell(Scheduled(self.cron.expression, handled, self.cron.after(now), None))
                self._attempt(due)

    def _handled_until(self, now: int) -> int:
        """The last time that needs no run any more, by what this process and all others have done."""
        status = self._read()
        self._written = status.scheduled
        known = [] if self._handled is None else [self._handled]
        if status.scheduled is not None:
            known.append(status.scheduled.handled)
        # Who has never been scheduled has missed nothing.
        if known and status.success is not None:
            known.append(status.success.started)
        self._handled = max((time for time in known if time - now <= self._far_ms), default=now)
        return self._handled

    def _read(self) -> Status:
        try:
            return self.status.read()
        except (DecodeError, OSError):
            # It is written anew, from what this process knows.
            return Status()

    def _attempt(self, due: int) -> None:
        try:
            with RunLock(self.status.folder, WITH_STATUS):
                if self._handled_until(self.now_ms()) >= due:
                    return
                index, success = recorded(
                    self.run, self.status, now_ms=self.now_ms, stopping=self.stop.is_set
                )
        except RunGivenUp:
            return
        except GatewayError as error:
            self._try_again(error)
            return
        self._handled, self._retry = due, None
        self.observer.made(index, success)

    def _try_again(self, error: GatewayError) -> None:
        failures = 0 if self._retry is None else self._retry.failures
        if isinstance(error, RunUnderWay):
            wait_s = self.limits.busy_s
        else:
            wait_s = min(self.limits.retry_s_min * 2.0**failures, self.limits.retry_s_max)
            failures = min(failures + 1, _DOUBLED_MAX)
        now = self.now_ms()
        at_ms = min(now + int(wait_s * 1000), self.cron.after(now))
        self._retry = _Retry(at_ms, str(error), failures)
        self.observer.failed(error, at_ms)

    def _wait_until(self, next_ms: int, now: int, handled: int) -> None:
        waiting = None if self._retry is None else self._retry.because[:ERROR_CHARS_MAX]
        self._tell(Scheduled(self.cron.expression, handled, next_ms, waiting))
        self.stop.wait(max(min((next_ms - now) / 1000, self.limits.look_s_max), _WAIT_S_MIN))

    def _tell(self, scheduled: Scheduled) -> None:
        if scheduled != self._written:
            note(self.status, lambda status: replace(status, scheduled=scheduled))
        if scheduled.next != self._told_ms:
            self._told_ms = scheduled.next
            self.observer.waits(scheduled.next)

    @property
    def _far_ms(self) -> int:
        return int(self.limits.clock_back_s_max * 1000)
