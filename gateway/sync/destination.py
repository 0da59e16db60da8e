"""What a destination means: a file for SQLite, a folder, or lines on standard output."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from gateway.core.errors import InvalidSetting

from .copy import Copy
from .folder_copy import FolderCopy
from .ndjson import NdjsonCopy
from .sqlite_copy import SqliteCopy

STANDARD_OUTPUT = "-"
SQLITE_SUFFIXES = (".sqlite", ".sqlite3", ".db")

OpenCopy = Callable[[], Copy]
"""Opens a copy; raises CopyLocked, CopyMismatch and CopyFailed."""


def copy_at(destination: str | Path, *, after: Path | None = None) -> OpenCopy:
    """What opens the copy at `destination`; nothing is touched yet.

    `after` is an earlier output of `-`. Raises InvalidSetting if it cannot be told what the destination is.
    """
    text, path = str(destination), Path(destination)
    if after is not None and text != STANDARD_OUTPUT:
        raise InvalidSetting(f"--after goes with the destination -, not with {text}")
    if text == STANDARD_OUTPUT:
        return lambda: NdjsonCopy(sys.stdout.buffer, after=after)
    if text.endswith("/") or path.is_dir():
        return partial(FolderCopy, path)
    if path.suffix.lower() in SQLITE_SUFFIXES:
        return partial(SqliteCopy, path)
    raise InvalidSetting(
        f"{text} is no destination: write FILE.sqlite, FOLDER/ with a slash at its end, or - for lines"
    )
