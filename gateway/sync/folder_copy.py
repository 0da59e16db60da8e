"""A copy as a folder with a file for each target: DEST/{partition}/{name}, and DEST/.wes/copy.sqlite.

The database has all but the bodies. A document's bodies are committed to it first, together with the
checkpoint and with a list of the files that they go to (the outbox). Then the files are written, each whole
under another name and renamed, or removed; then the bodies and the list are cleared. After a crash what is
left of the list is worked off before anything else, so the files follow the checkpoint exactly.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from gateway.storage.files import OsFiles

from .copy import CopyFailed, CopyMismatch
from .file_names import file_name
from .sqlite_copy import SqliteCopy

CONTROL_FOLDER = ".wes"
DATABASE = "copy.sqlite"
NEW_PREFIX = ".new-"
"""What a file is called until it is whole; no target's name starts with a dot."""

_BATCH = 1_000
_SYNC_EACH_MAX = 32
_FILES = OsFiles()
# Linux has it; Python has no name for it.
_SYNCFS = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)


class FolderCopy(SqliteCopy):
    """See `gateway.sync.copy.EntityCopy`. Raises CopyLocked and CopyMismatch when it is opened."""

    def __init__(self, folder: Path) -> None:
        control = folder / CONTROL_FOLDER
        try:
            if not control.is_dir() and folder.is_dir() and any(folder.iterdir()):
                raise CopyMismatch(f"{folder} is no copy, and not empty: give another destination")
            _FILES.make_folder(control)
            self._case_matters = _case_matters(control)
        except OSError as error:
            raise CopyFailed(f"{folder}: {error}") from error
        self._folder = folder
        # A file must not be written before what lists it is on the disk.
        super().__init__(control / DATABASE, durable=True)
        try:
            self._settle_case()
            for partition in self.partitions():
                self._remove_unfinished(partition)
            self._work_off()
        except BaseException:
            self.close()
            raise

    def begin(self, partition: str, url: str) -> None:
        with self._refusals():
            _FILES.make_folder(self._folder_of(partition))
        super().begin(partition, url)

    def file(self, partition: str, target: str) -> Path:
        """Where the body of `target` is, if it is present."""
        return self._folder_of(partition) / file_name(target, case_matters=self._case_matters)

    def _folder_of(self, partition: str) -> Path:
        return self._folder / file_name(partition, case_matters=self._case_matters)

    def _body(self, partition: str, target: str, body: bytes | None) -> bytes | None:
        if body is not None:
            return body
        try:
            return self.file(partition, target).read_bytes()
        except FileNotFoundError:
            return None

    def _changed(self, partition: str, targets: Sequence[str]) -> None:
        self._db.executemany(
            "INSERT OR IGNORE INTO outbox VALUES (?, ?)", ((partition, target) for target in targets)
        )

    def _move_entities(self, partition: str) -> None:
        both = "INSERT OR IGNORE INTO outbox SELECT partition, target FROM entities WHERE partition = ?"
        self._db.execute(both, (partition,))
        super()._move_entities(partition)
        self._db.execute(both, (partition,))

    def _committed(self) -> None:
        self._work_off()

    def _work_off(self) -> None:
        """Bring the files up to the database."""
        query = (
            "SELECT outbox.partition, outbox.target, state, body FROM outbox"
            " LEFT JOIN entities USING (partition, target) LIMIT ?"
        )
        with self._refusals():
            while rows := self._db.execute(query, (_BATCH,)).fetchall():
                by_partition: dict[str, list[tuple[Path, bytes | None]]] = {}
                for partition, target, state, body in rows:
                    assert body is not None or state != "present", "a file on the list has its body"
                    content = body if state == "present" else None
                    by_partition.setdefault(partition, []).append((self.file(partition, target), content))
                for partition, files in by_partition.items():
                    _write_files(self._folder_of(partition), files)
                done = [row[:2] for row in rows]
                with self._transaction():
                    self._db.executemany(
                        "UPDATE entities SET body = NULL"
                        " WHERE partition = ? AND target = ? AND state = 'present'",
                        done,
                    )
                    self._db.executemany("DELETE FROM outbox WHERE partition = ? AND target = ?", done)

    def _settle_case(self) -> None:
        """Keep to the names that the copy began with."""
        with self._refusals():
            self._db.execute(
                "INSERT OR IGNORE INTO copy VALUES ('case_matters', ?)", (str(int(self._case_matters)),)
            )
            query = "SELECT value FROM copy WHERE name = 'case_matters'"
            if self._db.execute(query).fetchone()[0] == "0":
                self._case_matters = False
            elif not self._case_matters:
                raise CopyMismatch(
                    f"{self._folder} was begun on a file system that tells A from a, and this one does not:"
                    " make the copy anew here"
                )

    def _remove_unfinished(self, partition: str) -> None:
        with self._refusals(), suppress(FileNotFoundError):
            for path in self._folder_of(partition).glob(f"{NEW_PREFIX}*"):
                path.unlink()


def _write_files(folder: Path, files: Iterable[tuple[Path, bytes | None]]) -> None:
    """Write, or where there is no content remove, each file; all are on the disk when this returns."""
    renames: list[tuple[Path, Path]] = []
    removals: list[Path] = []
    for path, content in files:
        if content is None:
            removals.append(path)
            continue
        new = folder / f"{NEW_PREFIX}{len(renames)}"
        new.write_bytes(content)
        renames.append((new, path))
    _sync_files(folder, [new for new, _ in renames])
    for new, path in renames:
        new.replace(path)
    for path in removals:
        path.unlink(missing_ok=True)
    _FILES.sync_folder(folder)


def _sync_files(folder: Path, files: Sequence[Path]) -> None:
    """Sync files: a few of them one by one, many with their file system, which takes one wait for all."""
    if len(files) >= _SYNC_EACH_MAX and _SYNCFS is not None:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if _SYNCFS(descriptor) != 0:
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number), str(folder))
        finally:
            os.close(descriptor)
        return
    for path in files:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _case_matters(folder: Path) -> bool:
    """Whether the file system tells `A` from `a`."""
    probe = folder / "CASE"
    probe.touch()
    matters = not (folder / "case").exists()
    probe.unlink()
    return matters
