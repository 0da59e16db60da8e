"""Disks that can be filled, and emptied again, while processes write to them."""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple

FILE_BYTES_MAX = 25_000
TMPFS_BYTES = 4_000_000


class Disk(NamedTuple):
    """A folder for data, and a way to fill its disk under the feet of a process for a while."""

    folder: Path
    full: Callable[[int], AbstractContextManager[None]]


@contextmanager
def limited_files(folder: Path) -> Iterator[Disk]:
    """A stand-in that needs no rights: no file of the process may grow beyond FILE_BYTES_MAX."""
    folder.mkdir()

    @contextmanager
    def full(pid: int) -> Iterator[None]:
        before, most = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (FILE_BYTES_MAX, most))
        yield
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (before, most))

    yield Disk(folder, full)


@contextmanager
def small_tmpfs(folder: Path) -> Iterator[Disk]:
    """A file system of TMPFS_BYTES, filled with one large file."""
    folder.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={TMPFS_BYTES}", "tmpfs"]
    subprocess.run(["mount", *options, str(folder)], check=True)

    @contextmanager
    def full(_: int) -> Iterator[None]:
        ballast = folder / "ballast"
        with ballast.open("wb", buffering=0) as file:
            for size in (65_536, 4_096, 1):
                try:
                    while file.write(b"x" * size) == size:
                        pass
                except OSError:
                    continue
        yield
        ballast.unlink()

    try:
        yield Disk(folder, full)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def may_mount() -> bool:
    """Whether this process may mount file systems; asked of the kernel without mounting any."""
    return os.geteuid() == 0 and subprocess.run(["unshare", "--mount", "true"], check=False).returncode == 0


KINDS = [limited_files, small_tmpfs] if may_mount() else [limited_files]
