"""What is told of the runs of a log's snapshots: `{output}/{log}/status.json`.

For people and for the schedule, which goes on where it was; nothing of a snapshot depends on it.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

from gateway.core.errors import DecodeError, StoreFailed, StoreLocked
from gateway.storage.files import OsFiles

from .lock import is_run_under_way

STATUS = "status.json"
ERROR_CHARS_MAX = 1_000
LOCK_WAIT_S_MAX = 5.0
_RETRY_S = 0.01

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Success:
    """A run that ended with a snapshot, newly made or, without new events, the newest again.

    `started` and `completed` are those of the run, in milliseconds since the Unix epoch; `events` are all
    that the snapshot covers.
    """

    id: str
    started: int
    completed: int
    entities: int
    events: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Failure:
    """A run that ended without one, when and why."""

    time: int
    error: str


@dataclass(frozen=True, slots=True)
class Running:
    """A run under way: its process, when it started, and what it is at."""

    pid: int
    started: int
    stage: str


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A schedule: what was due up to `handled` is done, and `next` is when it runs again.

    `waiting` says why the run that is due now has not been made.
    """

    cron: str
    handled: int
    next: int
    waiting: str | None


@dataclass(frozen=True, slots=True)
class Status:
    """All of it; `failures` counts those since the last success."""

    success: Success | None = None
    failure: Failure | None = None
    failures: int = 0
    running: Running | None = None
    scheduled: Scheduled | None = None

    def began(self, run: Running) -> Status:
        """`run` is at its stage; whoever says so has the lock, so that any other run is over."""
        before = self.running
        mine = before is None or (before.pid, before.started) == (run.pid, run.started)
        return replace(self if mine else self.broken_off(), running=run)

    def succeeded(self, success: Success) -> Status:
        """The run of this process made a snapshot."""
        return replace(self._ended(), success=success, failures=0)

    def failed(self, time_ms: int, error: str) -> Status:
        """The run of this process made none."""
        failure = Failure(time_ms, error[:ERROR_CHARS_MAX])
        return replace(self._ended(), failure=failure, failures=self.failures + 1)

    def given_up(self) -> Status:
        """The run of this process was told to end."""
        return self._ended()

    def broken_off(self) -> Status:
        """The run that is told to be under way is not: its process ended, and could not say so."""
        run = self.running
        if run is None:
            return self
        error = f"the run of process {run.pid} was broken off: {run.stage}"
        failure = Failure(run.started, error[:ERROR_CHARS_MAX])
        return replace(self, failure=failure, failures=self.failures + 1, running=None)

    def _ended(self) -> Status:
        # Another process may have begun since this one gave the lock back.
        mine = self.running is not None and self.running.pid == os.getpid()
        return replace(self, running=None) if mine else self


class StatusFile:
    """The status in `folder`, `{output}/{log}`; it may be read and written by several processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file = folder / STATUS

    def read(self) -> Status:
        """What is told, all of it None if there is no file; raises DecodeError if that is damaged."""
        try:
            return _status(self._file.read_bytes())
        except FileNotFoundError:
            return Status()
        except (ValueError, TypeError, RecursionError) as error:
            raise DecodeError(f"{self._file} is damaged: {error}. The next run writes it anew") from error

    def look(self) -> Status:
        """As `read`, but a run whose process is gone is not under way."""
        status = self.read()
        return status if is_run_under_way(self.folder) else status.broken_off()

    def update(self, change: Callable[[Status], Status]) -> Status:
        """Write what `change` makes of it, whole; a damaged one starts over. Raises StoreFailed."""
        try:
            OsFiles().make_folder(self.folder)
            with self._alone():
                try:
                    before = self.read()
                except DecodeError:
                    before = Status()
                after = change(before)
                if after != before:
                    self._write(after)
                return after
        except OSError as error:
            raise StoreFailed(f"cannot write {self._file}: {error.strerror or error}") from error

    def _write(self, status: Status) -> None:
        new = self._file.with_name(f"{STATUS}.new")
        with new.open("wb") as opened:
            opened.write(json.dumps(asdict(status), indent=2).encode() + b"\n")
            opened.flush()
            os.fsync(opened.fileno())
        new.replace(self._file)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        fd = os.open(self._file.with_name(f"{STATUS}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            deadline = time.monotonic() + LOCK_WAIT_S_MAX
            while True:
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() >= deadline:
                        raise StoreLocked(
                            f"another process has had {self._file}.lock for {LOCK_WAIT_S_MAX:.0f} s"
                        ) from None
                time.sleep(_RETRY_S)
            yield
        finally:
            os.close(fd)


def _status(document: bytes) -> Status:
    return _read(Status, json.loads(document))


def _read(kind: type[_T], content: object) -> _T:
    """What `asdict` was made of; raises ValueError or TypeError if it was not."""
    if not isinstance(content, dict):
        raise ValueError(f"{kind.__name__} is not an object")
    hints = _HINTS[kind].items()
    return kind(**{name: _value(content[name], hint) for name, hint in hints if name in content})


_HINTS: dict[Any, dict[str, Any]] = {
    kind: get_type_hints(kind) for kind in (Status, Success, Failure, Running, Scheduled)
}


def _value(item: object, hint: Any) -> Any:
    for kind in get_args(hint) or (hint,):
        if type(item) is kind or (kind is float and type(item) is int):
            return item
        if is_dataclass(kind) and isinstance(kind, type) and isinstance(item, dict):
            return _read(kind, item)
    raise ValueError(f"{str(item)[:40]!r} where {hint} was expected")
