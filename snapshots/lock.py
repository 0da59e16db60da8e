"""The lock of a log's snapshots: one run at a time, from whatever process."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from types import TracebackType

from gateway.core.errors import GatewayError
from gateway.storage.files import OsFiles

LOCK = "lock"
WITH_STATUS = "lock.status"
LOCK_WAIT_S_MAX = 0.5
"""Who asks whether a run is under way has the lock for a moment, and so has a process that is just dying."""
_RETRY_S = 0.02
_PID_BYTES_MAX = 32


class RunUnderWay(GatewayError):
    """Another run has the log's snapshots; `pid` is its process, None if it has not told."""

    def __init__(self, folder: Path, pid: int | None) -> None:
        who = "" if pid is None else f", process {pid}"
        super().__init__(
            f"a run is under way in {folder}{who}: wait until it has ended, or give this one another --output"
        )
        self.folder = folder
        self.pid = pid


class RunLock:
    """Has the snapshots in `folder`, `{output}/{log}`, as long as the context lasts.

    Entering makes the folder if it is not there, and raises RunUnderWay. The lock is the kernel's: it ends
    with its process, however that ends. Programs that this one starts do not inherit it. With the name
    WITH_STATUS it is another lock, that of whoever makes runs and writes their status: what a run has done is
    in the status before the next one looks there.
    """

    def __init__(self, folder: Path, name: str = LOCK) -> None:
        self.folder = folder
        self._file = folder / name
        self._fd = -1

    def __enter__(self) -> RunLock:
        OsFiles().make_folder(self.folder)
        fd = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            self._take(fd)
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._fd)
        self._fd = -1

    def _take(self, fd: int) -> None:
        deadline = time.monotonic() + LOCK_WAIT_S_MAX
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    pid = os.pread(fd, _PID_BYTES_MAX, 0).strip()
                    raise RunUnderWay(self.folder, int(pid) if pid.isdigit() else None) from None
            time.sleep(_RETRY_S)
        os.ftruncate(fd, 0)
        os.pwrite(fd, b"%d\n" % os.getpid(), 0)


def is_run_under_way(folder: Path) -> bool:
    """Whether any process has the snapshots in `folder` now."""
    try:
        fd = os.open(folder / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False
