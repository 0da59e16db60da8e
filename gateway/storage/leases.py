"""Leases on folders that others may remove: a shared lock while one is in use, an exclusive one to remove it.

The locks are flock(2) on a file in the folder, so they hold between all processes of a machine and end with
the process that has them. Whoever gets one looks again whether the folder still is where it was, because it
may have been removed between the opening of the file and its lock.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from pathlib import Path

LEASE_KEPT_S = 60.0
"""For which a folder stays leased after its last use: its user is likely to come back for more of it."""


@contextmanager
def exclusively(path: Path) -> Iterator[bool]:
    """Hold the exclusive lock on the file `path`; gives False where anybody has it. Raises OSError."""
    # Over NFS an exclusive lock needs a file that is open for writing.
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        yield _locked(descriptor, fcntl.LOCK_EX) and _stands(descriptor, path)
    finally:
        os.close(descriptor)


@dataclass(slots=True)
class _Lease:
    descriptor: int
    until_s: float = inf
    users: int = 0


class Leases:
    """The leases of this process, by the paths of the locked files; any thread may ask for one.

    `now_s` is a clock that never goes back.
    """

    def __init__(self, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._leases: dict[Path, _Lease] = {}
        # Never held while a file is opened or locked, so that nobody waits for a disk.
        self._changing = threading.Lock()

    def take(self, path: Path, *, held: bool = False) -> bool:
        """Lease the folder of the file `path` for LEASE_KEPT_S from now; with `held`, until `let_go` too.

        Returns False if it is gone, or about to be. Raises OSError where files cannot be locked.
        """
        if self._extend(path, held=held):
            return True
        descriptor = _open_shared(path)
        if descriptor is None:
            return False
        with self._changing:
            if path not in self._leases:
                self._leases[path] = _Lease(descriptor)
                descriptor = None
        if descriptor is not None:
            # Another thread was faster; this lock is not that one.
            os.close(descriptor)
        return self._extend(path, held=held)

    def _extend(self, path: Path, *, held: bool) -> bool:
        with self._changing:
            lease = self._leases.get(path)
            if lease is None:
                return False
            lease.users += held
            lease.until_s = self._now_s() + LEASE_KEPT_S
            return True

    def let_go(self, path: Path) -> None:
        """End what was taken with `held`; the lease goes on for LEASE_KEPT_S."""
        with self._changing:
            lease = self._leases[path]
            lease.users -= 1
            lease.until_s = self._now_s() + LEASE_KEPT_S

    def end_idle(self, *, at_once: bool = False) -> None:
        """End the leases whose time is over, or with `at_once` all that nobody holds."""
        with self._changing:
            now_s = self._now_s()
            ended = [
                path
                for path, lease in self._leases.items()
                if not lease.users and (at_once or lease.until_s <= now_s)
            ]
            descriptors = [self._leases.pop(path).descriptor for path in ended]
        for descriptor in descriptors:
            os.close(descriptor)


def _open_shared(path: Path) -> int | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        if _locked(descriptor, fcntl.LOCK_SH) and _stands(descriptor, path):
            return descriptor
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _locked(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _stands(descriptor: int, path: Path) -> bool:
    """Whether the open file still is the one at `path`."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except (FileNotFoundError, NotADirectoryError):
        return False
