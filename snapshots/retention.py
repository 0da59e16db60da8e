"""Retention: the last snapshots of a log stay, older ones go when nobody uses them any more."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from gateway.core.errors import DecodeError
from gateway.core.snapshots import INDEX, parse_snapshot_id, read_index
from gateway.storage.files import OsFiles
from gateway.storage.snapshots import STAGING, remove_snapshot

_REMOVED = "removed-"


@dataclass(frozen=True, slots=True)
class Retained:
    """What went, and what would have gone if nobody used it: that is tried again at the next run."""

    removed: tuple[str, ...]
    in_use: tuple[str, ...]


def retain(folder: Path, keep: int) -> Retained:
    """Remove what is older than the last `keep` snapshots in `folder`, `{output}/{log}`.

    To be called by whoever has the RunLock of the folder, so that none is in the making. A snapshot that
    cannot be read does not count among those that are kept. What an earlier removal left is removed as
    well. Raises OSError.
    """
    if keep < 1:
        raise ValueError("the newest snapshot is always kept")
    _sweep(folder)
    good = 0
    removed, in_use = [], []
    for id_ in sorted(filter(_is_id, _names(folder)), reverse=True):
        if good < keep:
            good += _is_readable(folder / id_)
        elif remove_snapshot(folder / id_):
            removed.append(id_)
        else:
            in_use.append(id_)
    return Retained(tuple(removed), tuple(in_use))


def _sweep(folder: Path) -> None:
    """Remove what is left of snapshots that were being removed.

    A snapshot appears under its id when all of it is there: without an index, it is no more one.
    """
    staging = folder / STAGING
    for id_ in filter(_is_id, _names(folder)):
        if not (folder / id_ / INDEX).exists():
            OsFiles().make_folder(staging)
            gone = staging / f"{_REMOVED}{id_}"
            shutil.rmtree(gone, ignore_errors=True)
            (folder / id_).rename(gone)
    for name in _names(staging):
        if name.startswith(_REMOVED):
            shutil.rmtree(staging / name)


def _names(folder: Path) -> list[str]:
    return [entry.name for entry in folder.iterdir() if entry.is_dir()] if folder.is_dir() else []


def _is_id(name: str) -> bool:
    try:
        parse_snapshot_id(name)
    except DecodeError:
        return False
    return True


def _is_readable(folder: Path) -> bool:
    try:
        read_index((folder / INDEX).read_bytes())
    except (OSError, DecodeError):
        return False
    return True
