"""Places: where the feeds of a log are read from, the data folder of a gateway or its URL.

A place tells how far the feeds reach, and cuts a stretch of a feed into ranges that tasks read one by one, in
other processes and on other machines. A range is a value: reading it again gives the same rows, whatever has
been added since.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gateway.core.errors import GatewayError, InvalidSetting
from gateway.core.snapshots import FeedPoint

from .entries import Entries

RANGE_BYTES_MIN = 2 * 1024 * 1024
"""Less than this is not cut further, however many tasks could run."""
RANGE_BYTES_MAX = 64 * 1024 * 1024
"""Of documents that one task reads, as far as their size is known."""


class FeedLost(GatewayError):
    """The place has no such feed, or has another one than before, or it is damaged or out of reach."""


@dataclass(frozen=True, slots=True)
class Vector:
    """How far the feeds of a log reach: the last event of each partition that has one.

    It is of one moment in each partition. `points` are sorted by partition, numbers by value. `entities` and
    `digest` are what the place itself tells of these moments, None if it tells nothing.
    """

    log: str
    points: tuple[FeedPoint, ...]
    entities: int | None
    digest: str | None

    @property
    def ends(self) -> dict[str, int]:
        """For each partition the ordinal behind its last event."""
        return {point.partition: point.last + 1 for point in self.points}


class Range(Protocol):
    """Consecutive events of one partition, those from `start` to before `end`; it can be pickled."""

    @property
    def partition(self) -> str: ...

    @property
    def start(self) -> int: ...

    @property
    def end(self) -> int: ...

    def documents(self) -> Iterator[Entries]:
        """All entries of the range, by document; raises FeedLost unless each of them is there."""


class Place(Protocol):
    """Where the feeds of one log are."""

    @property
    def log(self) -> str: ...

    def vector(self) -> Vector:
        """How far the feeds reach now; raises FeedLost."""

    def holds(self, point: FeedPoint) -> bool:
        """Whether the feed still has this very event at its ordinal; raises FeedLost if nobody can tell."""

    def option(self) -> dict[str, str]:
        """The options with which `format("webfeed")` reads from this place."""

    def sealed(self) -> dict[str, int]:
        """For each partition the ordinal behind the last event in a full document; raises FeedLost."""

    def fragment(self, partition: str, ordinal: int) -> str:
        """The left side of the Content-ID of an event; raises FeedLost if there is none."""

    def ranges(self, partition: str, start: int, end: int, tasks: int) -> list[Range]:
        """Cut the events from `start` to before `end` for about that many tasks; raises FeedLost."""


def open_place(from_: str, log: str | None) -> Place:
    """The place that `from_` names: the URL of a gateway or of its log document, or a data folder.

    `log` None is the only log there. Raises FeedLost, and InvalidSetting for what cannot be a place.
    """
    from .folder_place import FolderPlace
    from .server_place import ServerPlace

    if not from_:
        raise InvalidSetting("from is empty: name the URL of a gateway, or a data folder")
    if from_.lower().startswith(("http://", "https://")):
        return ServerPlace.open(from_, log)
    if "://" in from_:
        raise InvalidSetting(f"{from_} is not the URL of a gateway: it must start with http:// or https://")
    return FolderPlace.open(Path(from_), log)


def by_number(partition: str) -> tuple[int, str]:
    """The key that sorts partitions, numbers by value."""
    return len(partition), partition


def the_only(found: list[str], where: str) -> str:
    """The log if there is one and no other, else raises FeedLost."""
    if len(found) == 1:
        return found[0]
    if not found:
        raise FeedLost(f"there is no log in {where}")
    raise FeedLost(f"there are {len(found)} logs in {where}: name one of {', '.join(sorted(found)[:20])}")


def range_count(size: int, tasks: int) -> int:
    """Into how many ranges to cut documents of `size` bytes together, when `tasks` can run at a time."""
    return max(min(size // RANGE_BYTES_MIN, tasks), -(-size // RANGE_BYTES_MAX), 1)


def expect_within(ends: Mapping[str, int], partition: str, end: int, where: str) -> None:
    """Raises FeedLost unless the partition has all events before `end`."""
    if end > ends.get(partition, 0):
        raise FeedLost(
            f"partition {partition} in {where} has {ends.get(partition, 0)} events, and {end} are asked for:"
            " it is another feed than before, or was cut back"
        )
