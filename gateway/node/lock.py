"""One process has a data folder: an advisory lock on a file in it, held for as long as it runs.

The kernel releases the lock when the process ends, however it ends, so there is nothing to clean up.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from pathlib import Path

from gateway.node.errors import DataLocked

RETRY_S = 0.05


class FolderLock:
    """The lock of a data folder. `acquire` it before any file in the folder is opened."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._descriptor: int | None = None

    async def acquire(self, *, wait_ms: int) -> None:
        """Take the lock, trying again for `wait_ms`; raise DataLocked if another process keeps it."""
        path = self._folder / "lock"
        deadline = asyncio.get_running_loop().time() + wait_ms / 1000
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            while not _locked(descriptor):
                if asyncio.get_running_loop().time() >= deadline:
                    holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
                    raise DataLocked(self._folder, f"process {holder}" if holder else "a process")
                await asyncio.sleep(RETRY_S)
        except BaseException:
            os.close(descriptor)
            raise
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
        self._descriptor = descriptor

    def release(self) -> None:
        """Give the folder up; does nothing if the lock is not held."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
