"""The file of a copy: its tables, its one writer, and what tells it from any other SQLite file."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import threading
from pathlib import Path

from .copy import CopyFailed, CopyLocked, CopyMismatch

APPLICATION_ID = 0x57455343
"""In the header of the file (SQLite, "Database File Format", 1.3): the letters WESC."""
FORMAT = 1
BUSY_MS = 10_000
CACHE_KIB = 64 * 1024
CHECKPOINT_PAGES = 16_384

_ENTITIES = """
CREATE TABLE {name} (
    partition TEXT NOT NULL,
    target TEXT NOT NULL,
    state TEXT NOT NULL,
    content_type TEXT,
    etag TEXT,
    last_modified TEXT,
    ordinal INTEGER NOT NULL,
    body BLOB,
    extra_headers TEXT,
    server_etag TEXT,
    PRIMARY KEY (partition, target)
)"""
_FEEDS = """
CREATE TABLE {name} (
    partition TEXT PRIMARY KEY,
    url TEXT NOT NULL,
    ordinal INTEGER,
    entry TEXT,
    content_id TEXT,
    generation TEXT,
    entities INTEGER NOT NULL,
    digest TEXT NOT NULL,
    events INTEGER NOT NULL,
    updated TEXT NOT NULL
)"""
_TABLES = (
    "CREATE TABLE copy (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    *(_ENTITIES.format(name=name) for name in ("entities", "next_entities")),
    *(_FEEDS.format(name=name) for name in ("feeds", "next_feeds")),
    # Targets whose files are to be written or removed; a copy in one file leaves it empty.
    "CREATE TABLE outbox (partition TEXT, target TEXT, PRIMARY KEY (partition, target)) WITHOUT ROWID",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {FORMAT}",
)
# Added to copies that were begun without them: what a second state begins with, until it is complete.
_SNAPSHOT_TABLES = (
    "CREATE TABLE IF NOT EXISTS snapshots (partition TEXT PRIMARY KEY, url TEXT NOT NULL, id TEXT NOT NULL,"
    " digest TEXT, started INTEGER NOT NULL, whole INTEGER NOT NULL)",
    "CREATE TABLE IF NOT EXISTS snapshot_parts (partition TEXT, uri TEXT, PRIMARY KEY (partition, uri))"
    " WITHOUT ROWID",
)


# The files that this process has locked, by device and inode.
_own: set[tuple[int, int]] = set()
_own_changes = threading.Lock()


class FileLock:
    """One writer for the file, among all processes of the machine; it ends with its process.

    SQLite's own locks come and go with each transaction. This one (flock) does not touch them, and leaves no
    second file behind; it must be released after the database was closed. Raises CopyLocked.
    """

    def __init__(self, path: Path) -> None:
        with _own_changes:
            # Not even opened: to close the file anywhere in a process ends the locks that SQLite has on it in
            # that process (SQLite, "How To Corrupt An SQLite Database File", 2.2).
            if _file_at(path) in _own:
                raise CopyLocked(
                    f"this process writes to {path} already: close that copy, or give another destination"
                )
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(self._fd)
                raise CopyLocked(
                    f"another process writes to {path}: stop it, or give this one another destination"
                ) from None
            except BaseException:
                os.close(self._fd)
                raise
            self._file = _identity(os.fstat(self._fd))
            _own.add(self._file)

    def release(self) -> None:
        with _own_changes:
            os.close(self._fd)
            _own.discard(self._file)


def _file_at(path: Path) -> tuple[int, int] | None:
    try:
        return _identity(path.stat())
    except FileNotFoundError:
        return None


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def open_database(path: Path, *, durable: bool) -> tuple[FileLock, sqlite3.Connection]:
    """The file's lock and its tables, made if it is new; `durable`: each transaction is on disk when it ends.

    Raises CopyLocked, CopyMismatch for any other file, and CopyFailed.
    """
    try:
        lock = FileLock(path)
    except OSError as error:
        raise CopyFailed(f"{path}: {error.strerror or error}") from error
    try:
        db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            _prepare(db, path, durable=durable)
        except BaseException:
            db.close()
            raise
    except sqlite3.DatabaseError as error:
        lock.release()
        if isinstance(error, sqlite3.OperationalError):
            raise CopyFailed(f"{path}: {error}") from error
        raise CopyMismatch(f"{path} is no copy: {error}") from error
    except BaseException:
        lock.release()
        raise
    return lock, db


def _prepare(db: sqlite3.Connection, path: Path, *, durable: bool) -> None:
    db.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
    application, version, tables = (
        db.execute(query).fetchone()[0]
        for query in ("PRAGMA application_id", "PRAGMA user_version", "SELECT count(*) FROM sqlite_master")
    )
    if application != APPLICATION_ID and (application or tables):
        raise CopyMismatch(f"{path} is a SQLite database, but no copy of ours: give another destination")
    if application == APPLICATION_ID and version != FORMAT:
        raise CopyMismatch(
            f"{path} has format {version}, this program writes {FORMAT}: give another destination"
        )
    db.execute("PRAGMA journal_mode = WAL")
    db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
    db.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
    db.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
    if not application:
        db.execute("BEGIN EXCLUSIVE")
        for statement in _TABLES:
            db.execute(statement)
        db.execute("COMMIT")
    for statement in _SNAPSHOT_TABLES:
        db.execute(statement)
