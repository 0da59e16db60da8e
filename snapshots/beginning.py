"""What a run begins with: the tables and the snapshot that it can go on from, or none."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import SparkSession

from gateway.core.snapshots import SnapshotIndex

from .failures import FeedBehind
from .places import Place, Vector
from .stored import Previous, indexes, previous
from .tables import EVENTS, STATE, Covered, Folders, Tables

_NAME = re.compile(r"[0-9]{8}T[0-9]{9}Z")
_NAME_FORMAT = "%Y%m%dT%H%M%S%fZ"


@dataclass(frozen=True, slots=True)
class Beginning:
    """What is there: the tables with what they cover, None where there is none yet, and the snapshot before.

    `before` is the newest snapshot if it was made of these tables and is whole.
    """

    tables: Tables
    events: Covered | None = None
    state: Covered | None = None
    before: Previous | None = None


class TableFolders:
    """Where the tables of a log are: a folder for each generation of its feeds, named by its first run.

    They are below `{output}/{log}/delta`, or below the URI `tables` for those of all logs.
    """

    def __init__(self, spark: SparkSession, folder: Path, tables: str | None) -> None:
        self._spark = spark
        self._folder = folder
        self._index_root = f"{folder.name}/delta" if tables is None else f"{tables.rstrip('/')}/{folder.name}"
        self.root = f"{folder}/delta" if tables is None else self._index_root
        self._folders = Folders(spark, self.root)

    def names(self) -> list[str]:
        """The names of the folders, the newest last."""
        return [name for name in self._folders.names() if _NAME.fullmatch(name)]

    def tables(self, name: str) -> Tables:
        """The tables in the folder of that name."""
        return Tables(self._spark, f"{self.root}/{name}")

    def index_path(self, tables: Tables, table: str) -> str:
        """How an index of a snapshot names a table."""
        return f"{self._index_root}{tables.path(table).removeprefix(self.root)}"

    def remove_old(self) -> None:
        """Remove tables of earlier generations that no snapshot names any more."""
        names = self.names()
        named = {table.path for index in indexes(self._folder) for table in index.delta.values()}
        for name in names[:-1]:
            if self.index_path(self.tables(name), STATE) not in named:
                self._folders.remove(name)


def table_name(started: int) -> str:
    """The name of the folder of tables that a run makes which started then; it sorts by time."""
    moment = datetime.fromtimestamp(started // 1000, UTC)
    return f"{moment:%Y%m%dT%H%M%S}{started % 1000:03d}Z"


def start_after(now_ms: int, newest: SnapshotIndex | None, names: list[str]) -> int:
    """When a run counts as started: now, but behind all earlier ones, even if the clock was set back."""
    begun = [] if newest is None else [newest.started]
    begun += [_milliseconds(name) for name in names[-1:]]
    return max([now_ms, *(before + 1 for before in begun)])


def begin(
    folders: TableFolders, place: Place, vector: Vector, newest: tuple[Path, SnapshotIndex] | None
) -> Beginning | None:
    """What a run for `vector` goes on from, None if there are no tables, or none of these feeds.

    `newest` is the newest snapshot with its folder. Raises FeedBehind, FeedLost and TablesDamaged.
    """
    names = folders.names()
    if not names:
        return None
    tables = folders.tables(names[-1])
    events = tables.covered(EVENTS)
    if events is None or not _is_of_feeds(tables, events, place, vector):
        return None
    before = None
    if newest is not None:
        folder, index = newest
        table = index.delta.get(STATE)
        if table is not None and table.path == folders.index_path(tables, STATE):
            before = previous(folder, index)
    return Beginning(tables, events, tables.covered(STATE), before)


def _is_of_feeds(tables: Tables, events: Covered, place: Place, vector: Vector) -> bool:
    """Whether the events in the table are those of the feeds, and not of feeds that started over since."""
    now = {point.partition: point for point in vector.points}
    for point in events.points:
        reached = now.get(point.partition)
        if reached is None:
            return False
        if reached.last < point.last:
            row = tables.read(EVENTS, events.version).where(
                f"partition = '{point.partition}' AND ordinal = {reached.last}"
            )
            if [found.content_id for found in row.select("content_id").collect()] == [reached.content_id]:
                raise FeedBehind(point.partition, reached=reached.last, expected=point.last)
            return False
        if not place.holds(point):
            return False
    return True


def _milliseconds(name: str) -> int:
    moment = datetime.strptime(name, _NAME_FORMAT).replace(tzinfo=UTC)
    return int(moment.timestamp()) * 1000 + moment.microsecond // 1000
