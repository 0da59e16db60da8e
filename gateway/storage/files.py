"""All file operations of the page store, in one small layer, so that a simulated disk can stand in for it.

What is durable when: an append after `sync` of its file, a new or renamed or removed name after
`sync_folder` of its folder.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Protocol

from gateway.core.errors import StoreLocked


class AppendFile(Protocol):
    """A file that only grows."""

    def append(self, data: bytes) -> None: ...

    def sync(self) -> None: ...

    def close(self) -> None: ...


class Files(Protocol):
    """The operations of a file system that the store needs; all raise OSError."""

    def open_append(self, path: Path) -> AppendFile: ...

    def read(self, path: Path, start: int, length: int) -> bytes: ...

    def sizes(self, folder: Path) -> dict[str, int]: ...

    def truncate(self, path: Path, length: int) -> None: ...

    def rename(self, source: Path, target: Path) -> None: ...

    def remove(self, path: Path) -> None: ...

    def make_folder(self, folder: Path) -> None: ...

    def sync_folder(self, folder: Path) -> None: ...


class OsAppendFile:
    """An append-only file of the operating system."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def append(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class OsFiles:
    """The file system of the operating system."""

    def open_append(self, path: Path) -> AppendFile:
        return OsAppendFile(path)

    def read(self, path: Path, start: int, length: int) -> bytes:
        """Up to `length` bytes: fewer only where the file ends."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = os.pread(fd, length, start)
            while len(data) < length and (more := os.pread(fd, length - len(data), start + len(data))):
                data += more
            return data
        finally:
            os.close(fd)

    def sizes(self, folder: Path) -> dict[str, int]:
        with os.scandir(folder) as entries:
            return {entry.name: entry.stat().st_size for entry in entries if entry.is_file()}

    def truncate(self, path: Path, length: int) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.ftruncate(fd, length)
            os.fsync(fd)
        finally:
            os.close(fd)

    def rename(self, source: Path, target: Path) -> None:
        source.replace(target)

    def remove(self, path: Path) -> None:
        path.unlink()

    def make_folder(self, folder: Path) -> None:
        """Make `folder` and those above it, each durable in its parent."""
        if folder.is_dir():
            return
        self.make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        self.sync_folder(folder.parent)

    def sync_folder(self, folder: Path) -> None:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


class FolderLock:
    """One writer for each folder, among all processes of the machine; it ends with its process.

    Raises StoreLocked, which names the process that has it.
    """

    def __init__(self, folder: Path) -> None:
        self._fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._fd, 32, 0).decode("ascii", "replace").strip()
            os.close(self._fd)
            raise StoreLocked(
                f"another process writes to {folder}{f', process {holder}' if holder else ''}:"
                " stop it, or give this one another --data folder"
            ) from None
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, b"%d\n" % os.getpid(), 0)

    def release(self) -> None:
        os.close(self._fd)
