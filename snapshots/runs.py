"""A run as its status tells it: what it is at, that it made a snapshot, or why it did not."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable

from gateway.core.errors import GatewayError, StoreFailed, StoreLocked
from gateway.core.snapshots import SnapshotIndex

from .build import BuildObserver
from .lock import RunUnderWay
from .status import Running, Status, StatusFile, Success

Run = Callable[[BuildObserver], SnapshotIndex]
"""Makes one run. Raises RunUnderWay if another one has the lock."""

_log = logging.getLogger(__name__)

_PYTHON = re.compile(r"^Traceback \(most recent call last\):\n(?:[ \n].*\n?)*([^ \n].*)", re.MULTILINE)
_JAVA = re.compile(r"^Caused by: (.*)", re.MULTILINE)


class RunFailed(GatewayError):
    """A run ended by what is no error of this project's own; that is its cause."""


class RunGivenUp(GatewayError):
    """A run ended because it was told to; what it had done so far is swept by the next."""

    def __init__(self) -> None:
        super().__init__("the run was given up: the next one makes its snapshot")


class Recorded(BuildObserver):
    """Writes what a run is at to the status, and gives the run up when `stopping` says so."""

    def __init__(self, status: StatusFile, started: int, stopping: Callable[[], bool]) -> None:
        self._status = status
        self._started = started
        self._stopping = stopping

    def stage(self, name: str) -> None:
        self._go_on()
        running = Running(os.getpid(), self._started, name)
        note(self._status, lambda status: status.began(running))

    def progress(self, done: int, of: int) -> None:
        self._go_on()

    def _go_on(self) -> None:
        if self._stopping():
            raise RunGivenUp


def recorded(
    run: Run, status: StatusFile, *, now_ms: Callable[[], int], stopping: Callable[[], bool] = lambda: False
) -> tuple[SnapshotIndex, Success]:
    """Make one run and write to `status` how it went; to be called with the lock WITH_STATUS.

    Raises RunUnderWay, RunGivenUp when `stopping` said so, and any other GatewayError for a run that failed:
    RunFailed for what Spark, Java or the operating system say.
    """
    started = now_ms()
    try:
        index = run(Recorded(status, started, stopping))
    except RunUnderWay:
        raise
    except KeyboardInterrupt:
        note(status, Status.given_up)
        raise
    except Exception as error:
        if stopping():
            # Whatever it failed of: a signal may reach Java, too.
            note(status, Status.given_up)
            raise RunGivenUp from error
        text = str(error) if isinstance(error, GatewayError) else reason(error)
        ended = now_ms()
        note(status, lambda before: before.failed(ended, text))
        if isinstance(error, GatewayError):
            raise
        raise RunFailed(text) from error
    success = _success(index, started, now_ms())
    note(status, lambda before: before.succeeded(success))
    return index, success


def note(status: StatusFile, change: Callable[[Status], Status]) -> None:
    """Write it if that is possible: a run goes by its own facts, and its status only tells of them."""
    try:
        status.update(change)
    except (StoreFailed, StoreLocked) as error:
        _log.warning("status_not_written", extra={"reason": str(error)})


def reason(error: BaseException) -> str:
    """What an error of Spark, Java or Python says at its root, in a line."""
    text = str(error)
    for root in (_PYTHON, _JAVA):
        if found := root.findall(text):
            return str(found[-1]).strip()
    line = " ".join(text.split("\tat ", 1)[0].split())
    return f"{type(error).__name__}: {line}" if line else type(error).__name__


def _success(index: SnapshotIndex, started: int, completed: int) -> Success:
    return Success(
        id=index.id,
        started=started,
        completed=completed,
        entities=index.entities,
        events=sum(feed.last + 1 for feed in index.feeds),
        seconds=max(completed - started, 0) / 1000,
    )
