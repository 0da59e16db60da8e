"""The snapshots of a log in a folder: which are there, their indexes and parts, and how one is removed.

`{root}/{log}/{id}/` is a snapshot once it has this name (see `gateway.core.snapshots`). Whoever reads one
holds a lease on its index, and nobody removes it as long as anybody does. So a reader that has begun a
snapshot gets all of it, however many new ones come.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from gateway.core.errors import DecodeError, SnapshotUnreadable
from gateway.core.links import SnapshotLinks
from gateway.core.snapshots import INDEX, SnapshotIndex, SnapshotPart, parse_snapshot_id, read_index

from .files import OsFiles
from .leases import Leases, exclusively

STAGING = "staging"
"""The folder beside the snapshots in which they are made, and to which one goes before it is removed."""
SNAPSHOTS_MAX = 1_000
"""As many are looked at, the newest ones."""
LISTING_KEPT_S = 1.0
"""For which a listing holds while the time of the folder stays: that moves in steps of some milliseconds."""
INDEX_BYTES_MAX = 64 * 1024 * 1024
"""Of one index: that of about 150,000 parts."""
INDEXES_BYTES_MAX = 32 * 1024 * 1024
"""Of indexes in memory, beyond the one that was used last."""

_TIME_MS_MAX = 253_402_300_799_999  # the end of the year 9999, the last that an HTTP date can tell

_log = logging.getLogger("wes.snapshots")


def remove_snapshot(folder: Path) -> bool:
    """Remove the snapshot in `folder`; False if somebody uses it, and then it stays as it is.

    It goes from its name by one rename, so that nobody ever sees a part of it. What a crash leaves is in the
    staging folder. May block; raises OSError.
    """
    try:
        with exclusively(folder / INDEX) as alone:
            if not alone:
                return not folder.exists()
            gone = folder.parent / STAGING / f"removed-{folder.name}"
            files = OsFiles()
            files.make_folder(gone.parent)
            shutil.rmtree(gone, ignore_errors=True)
            folder.rename(gone)
            # Durable first, or a crash could leave the name with only some of the files.
            files.sync_folder(folder.parent)
            files.sync_folder(gone.parent)
    except (FileNotFoundError, NotADirectoryError):
        # Somebody else has removed it; or it has no index, and is no snapshot.
        return not folder.exists()
    with suppress(FileNotFoundError):
        # A run that sweeps the staging folder may have been faster.
        shutil.rmtree(gone)
    return True


@dataclass(frozen=True, slots=True)
class StoredSnapshot:
    """A snapshot in its folder: the index, and the bytes of that with their SHA-256 in hex."""

    folder: Path
    index: SnapshotIndex
    document: bytes
    sha256: str


class OpenPart:
    """The file of a part, whose snapshot nobody removes before this is closed."""

    def __init__(self, part: SnapshotPart, descriptor: int, let_go: Callable[[], None]) -> None:
        self.part = part
        self._descriptor: int | None = descriptor
        self._let_go = let_go
        # A closed descriptor's number may be another file's at once.
        self._using = threading.Lock()

    def read(self, start: int, length: int) -> bytes:
        """`length` bytes from `start`, or fewer, but some. May block; raises SnapshotUnreadable."""
        with self._using:
            if self._descriptor is None:
                raise ValueError(f"{self.part.uri} is closed")
            try:
                data = os.pread(self._descriptor, length, start)
            except OSError as error:
                raise SnapshotUnreadable(f"{self.part.uri}: {_reason(error)}") from error
        if not data:
            raise SnapshotUnreadable(f"{self.part.uri}: its file ends before byte {start}")
        return data

    def close(self) -> None:
        with self._using:
            descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)
            self._let_go()


class _Looked(NamedTuple):
    """What was found in a folder: its index without the parts, or None and what is wrong with it.

    It holds for as long as the index file has the same `stamp`; None where that may pass by itself.
    """

    stamp: tuple[int, int, int] | None
    summary: SnapshotIndex | None
    trouble: str = ""


class SnapshotFolder:
    """The snapshots of `log` below the folder `root`, which may not be there yet; for any thread.

    What it gives is leased: see `Leases`. `now_s` is a clock that never goes back.
    """

    def __init__(self, root: Path, log: str, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self.links = SnapshotLinks(log)
        self.leases = Leases(now_s=now_s)
        self._folder = root / log
        self._now_s = now_s
        self._looking = threading.Lock()
        self._found: dict[str, _Looked] = {}
        self._retained: tuple[SnapshotIndex, ...] = ()
        self._folder_mtime_ns: int | None = None
        self._listed_until_s = -1.0
        self._loaded: OrderedDict[str, StoredSnapshot] = OrderedDict()

    def retained(self) -> tuple[SnapshotIndex, ...]:
        """The indexes of all snapshots, the newest first, without their parts, which may be many.

        May block; raises SnapshotUnreadable.
        """
        with self._looking:
            self._list()
            return self._retained

    def newest(self) -> StoredSnapshot | None:
        """The newest snapshot, or None while there is none. May block; raises SnapshotUnreadable."""
        for index in self.retained():
            snapshot = self.snapshot(index.id)
            if snapshot is not None:
                return snapshot
        return None

    def snapshot(self, id_: str) -> StoredSnapshot | None:
        """The snapshot of that id, or None if there is none. May block; raises SnapshotUnreadable."""
        with self._looking:
            self._list()
            looked = self._found.get(id_)
            if looked is None or looked.summary is None or not self._lease(id_):
                return None
            try:
                return self._load(id_)
            except (OSError, DecodeError) as error:
                raise SnapshotUnreadable(f"the snapshot {id_} is not served: {_reason(error)}") from error

    def open_part(self, snapshot: StoredSnapshot, number: int) -> OpenPart | None:
        """The part of that number, or None if the snapshot is gone. May block.

        Raises SnapshotUnreadable if its file does not have the size that the index says.
        """
        part = snapshot.index.parts[number]
        if not self._lease(snapshot.index.id, held=True):
            return None
        index = snapshot.folder / INDEX
        try:
            descriptor = os.open(snapshot.folder / str(number), os.O_RDONLY | os.O_CLOEXEC)
            opened = OpenPart(part, descriptor, lambda: self.leases.let_go(index))
        except OSError as error:
            self.leases.let_go(index)
            raise SnapshotUnreadable(f"{part.uri} is not served: {_reason(error)}") from error
        size = os.fstat(descriptor).st_size
        if size != part.size:
            opened.close()
            raise SnapshotUnreadable(
                f"{part.uri} is not served: its file has {size} bytes, its index says {part.size}."
                " The next snapshot has it whole: wes snapshot build --rebuild"
            )
        return opened

    def _lease(self, id_: str, *, held: bool = False) -> bool:
        try:
            return self.leases.take(self._folder / id_ / INDEX, held=held)
        except OSError as error:
            raise SnapshotUnreadable(f"the snapshot {id_} cannot be locked: {_reason(error)}") from error

    def _list(self) -> None:
        """Look what is there, if that may have changed."""
        try:
            mtime_ns = self._folder.stat().st_mtime_ns
            if mtime_ns == self._folder_mtime_ns and self._now_s() < self._listed_until_s:
                return
            with os.scandir(self._folder) as entries:
                ids = sorted((entry.name for entry in entries if _is_id(entry.name)), reverse=True)
        except (FileNotFoundError, NotADirectoryError):
            mtime_ns, ids = None, []
        except OSError as error:
            raise SnapshotUnreadable(
                f"the snapshots of {self.links.log} cannot be listed: {_reason(error)}"
            ) from error
        self._found = {id_: looked for id_ in ids[:SNAPSHOTS_MAX] if (looked := self._look(id_)) is not None}
        self._retained = tuple(found.summary for found in self._found.values() if found.summary is not None)
        for id_ in self._loaded.keys() - self._found.keys():
            del self._loaded[id_]
        self._folder_mtime_ns = mtime_ns
        self._listed_until_s = self._now_s() + LISTING_KEPT_S

    def _look(self, id_: str) -> _Looked | None:
        """What is in the folder of that id, None if there is no index; one that stays is not read again."""
        known = self._found.get(id_)
        stamp: tuple[int, int, int] | None = None
        try:
            status = (self._folder / id_ / INDEX).stat()
            stamp = status.st_ino, status.st_size, status.st_mtime_ns
            if known is not None and known.stamp == stamp:
                return known
            self._loaded.pop(id_, None)
            return _Looked(stamp, replace(self._load(id_).index, parts=()))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except DecodeError as error:
            looked = _Looked(stamp, None, str(error))
        except OSError as error:
            looked = _Looked(None, None, _reason(error))
        if known is None or known.trouble != looked.trouble:
            facts = {"log": self.links.log, "snapshot": id_, "reason": looked.trouble}
            _log.error("snapshot_damaged", extra=facts)
        return looked

    def _load(self, id_: str) -> StoredSnapshot:
        """The snapshot with its index, from memory if it is there; raises OSError, DecodeError."""
        snapshot = self._loaded.get(id_)
        if snapshot is None:
            snapshot = self._loaded[id_] = _read(self._folder / id_, self.links)
            while len(self._loaded) > 1 and self._loaded_bytes() > INDEXES_BYTES_MAX:
                self._loaded.popitem(last=False)
        self._loaded.move_to_end(id_)
        return snapshot

    def _loaded_bytes(self) -> int:
        return sum(len(snapshot.document) for snapshot in self._loaded.values())


def _read(folder: Path, links: SnapshotLinks) -> StoredSnapshot:
    with (folder / INDEX).open("rb") as file:
        document = file.read(INDEX_BYTES_MAX + 1)
    if len(document) > INDEX_BYTES_MAX:
        raise DecodeError(f"its index has more than {INDEX_BYTES_MAX} bytes")
    index = read_index(document)
    if (index.log, index.id) != (links.log, folder.name):
        raise DecodeError(f"its index is that of {index.id} of the log {index.log}")
    if any(part.uri != links.part(index.id, number) for number, part in enumerate(index.parts)):
        raise DecodeError("its index names parts that are not its own")
    if index.completed > _TIME_MS_MAX:
        raise DecodeError(f"its index was completed at {index.completed}, which is no time")
    return StoredSnapshot(folder, index, document, hashlib.sha256(document).hexdigest())


def _is_id(name: str) -> bool:
    try:
        parse_snapshot_id(name)
    except DecodeError:
        return False
    return True


def _reason(error: Exception) -> str:
    """What went wrong, without the paths of this machine."""
    return (isinstance(error, OSError) and error.strerror) or str(error)
