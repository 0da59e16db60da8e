"""The file of one log: an SQLite database with a table for each partition.

Write-ahead logging with synchronous=FULL: a commit returns when it is on the disk. An event is a row,
keyed by its sequence in its partition, so that appending and reading in order are what SQLite does
best. The next sequence and the newest timestamp are kept beside the rows, because retention may remove
the rows that they could be read from. `split` is the index in the message where delivery annotations
go: behind a header section, or 0.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import NamedTuple

from gateway.node.errors import PartitionsChanged, WrongFormat

FORMAT = 1
"""The version of the file's layout, kept as SQLite's user_version."""

APPLICATION_ID = 0x7765736C  # "wesl"

OFFSET_DIGITS = 20
SEQUENCE_MAX = 2**63 - 1
WAL_BYTES_KEPT = 67_108_864


class Entry(NamedTuple):
    """One event in a partition. `timestamp` is in milliseconds since the epoch."""

    sequence: int
    timestamp: int
    split: int
    message: bytes


class Extent(NamedTuple):
    """How far a partition goes: its earliest retained sequence, if any, and the next one."""

    earliest: int | None
    next_sequence: int
    timestamp: int


def offset_of(sequence: int) -> str:
    """The `event-streams-offset`: zero-padded, so that text order is log order (2.2.1.1)."""
    return f"{sequence:0{OFFSET_DIGITS}d}"


def connect(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    """Open the file; transactions are begun and ended by hand, in whatever thread uses it."""
    mode = "ro" if read_only else "rwc"
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        timeout=5.0,
    )
    if not read_only:
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA journal_size_limit = {WAL_BYTES_KEPT}")
    return connection


def prepare(path: Path, *, log: str, partitions: int) -> list[Extent]:
    """Create the file if it is not there, check it if it is, and return how far each partition goes.

    Raises WrongFormat for a file of another version or another program, PartitionsChanged if it was
    created with another number of partitions.
    """
    try:
        connection = connect(path)
    except sqlite3.Error as error:
        raise WrongFormat(path, f"it cannot be opened ({error})") from error
    try:
        _check(connection, path, log=log, partitions=partitions)
        return [_extent(connection, position) for position in range(partitions)]
    except sqlite3.Error as error:
        raise WrongFormat(path, f"SQLite says: {error}") from error
    finally:
        connection.close()


def _check(connection: sqlite3.Connection, path: Path, *, log: str, partitions: int) -> None:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if version == 0 and tables == 0:
        _create(connection, partitions)
        return
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    if application != APPLICATION_ID:
        raise WrongFormat(path, "it is not a log of this node; move it away")
    if version != FORMAT:
        raise WrongFormat(
            path,
            f"it has format {version} and this version of the node knows format {FORMAT}; use the"
            " version that wrote it, or another data folder",
        )
    (kept,) = connection.execute("SELECT count(*) FROM partitions").fetchone()
    if kept != partitions:
        raise PartitionsChanged(log, kept=kept, asked=partitions)


def _create(connection: sqlite3.Connection, partitions: int) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(
        "CREATE TABLE partitions (position INTEGER PRIMARY KEY,"
        " next_sequence INTEGER NOT NULL, timestamp INTEGER NOT NULL)"
    )
    for position in range(partitions):
        connection.execute(
            f"CREATE TABLE partition_{position:d} (sequence INTEGER PRIMARY KEY,"
            " timestamp INTEGER NOT NULL, split INTEGER NOT NULL, message BLOB NOT NULL)"
        )
        connection.execute("INSERT INTO partitions VALUES (?, 0, 0)", (position,))
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {FORMAT}")
    connection.execute("COMMIT")


def _extent(connection: sqlite3.Connection, position: int) -> Extent:
    next_sequence, timestamp = connection.execute(
        "SELECT next_sequence, timestamp FROM partitions WHERE position = ?", (position,)
    ).fetchone()
    return Extent(earliest_sequence(connection, position), next_sequence, timestamp)


def earliest_sequence(connection: sqlite3.Connection, position: int) -> int | None:
    """The earliest retained sequence of a partition."""
    query = f"SELECT min(sequence) FROM partition_{position:d}"  # noqa: S608 - a number
    found: int | None = connection.execute(query).fetchone()[0]
    return found


def write_entries(connection: sqlite3.Connection, batch: dict[int, list[Entry]]) -> None:
    """Store entries by partition, all or nothing, and return when they are on the disk."""
    connection.execute("BEGIN IMMEDIATE")
    for position, entries in batch.items():
        insert = f"INSERT INTO partition_{position:d} VALUES (?, ?, ?, ?)"  # noqa: S608 - a number
        connection.executemany(insert, entries)
        connection.execute(
            "UPDATE partitions SET next_sequence = ?, timestamp = ? WHERE position = ?",
            (entries[-1].sequence + 1, entries[-1].timestamp, position),
        )
    connection.execute("COMMIT")


def discard(connection: sqlite3.Connection, positions: list[tuple[int, int]]) -> None:
    """Remove what lies behind `positions`, the next sequence and newest timestamp of each partition.

    After a commit that failed it is not known whether its entries are in the file. They were refused, so they
    must not be there.
    """
    connection.execute("BEGIN IMMEDIATE")
    for position, (next_sequence, timestamp) in enumerate(positions):
        delete = f"DELETE FROM partition_{position:d} WHERE sequence >= ?"  # noqa: S608 - a number
        connection.execute(delete, (next_sequence,))
        connection.execute(
            "UPDATE partitions SET next_sequence = ?, timestamp = ? WHERE position = ?",
            (next_sequence, timestamp, position),
        )
    connection.execute("COMMIT")


def read_entries(
    connection: sqlite3.Connection,
    position: int,
    sequence: int,
    *,
    messages_max: int,
    bytes_max: int,
) -> list[Entry]:
    """The entries from `sequence` on, within both limits, but one at least if there is any."""
    query = (
        f"SELECT sequence, timestamp, split, message FROM partition_{position:d}"  # noqa: S608
        " WHERE sequence >= ? ORDER BY sequence LIMIT ?"
    )
    entries: list[Entry] = []
    size = 0
    cursor = connection.execute(query, (min(sequence, SEQUENCE_MAX), messages_max))
    try:
        for row in cursor:
            entries.append(Entry._make(row))
            size += len(entries[-1].message)
            if size >= bytes_max:
                break
    finally:
        cursor.close()  # or the read transaction stays open and the write-ahead log only grows
    return entries


def first_at(connection: sqlite3.Connection, position: int, timestamp: int) -> int:
    """The first sequence whose timestamp is at or after `timestamp`, or else the next one.

    Timestamps never decrease in a partition, so this is a binary search over the key.
    """
    query = (
        f"SELECT sequence, timestamp FROM partition_{position:d}"  # noqa: S608 - a number
        " WHERE sequence >= ? ORDER BY sequence LIMIT 1"
    )
    (high,) = connection.execute(
        "SELECT next_sequence FROM partitions WHERE position = ?", (position,)
    ).fetchone()
    low = earliest_sequence(connection, position)
    if low is None:
        return int(high)
    while low < high:
        middle = (low + high) // 2
        row = connection.execute(query, (middle,)).fetchone()
        if row is None or row[1] >= timestamp:
            high = middle
        else:
            low = row[0] + 1
    return low
