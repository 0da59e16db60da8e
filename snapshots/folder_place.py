"""The feeds in a data folder, while a gateway writes them or not.

The catalogue is asked once for a stretch of a feed; tasks read page files only, so that on a cluster a shared
file system need not carry SQLite. A page file never changes below a length that was once committed, so what a
task reads is checked against the SHA-256 of that length, even when the page has grown or was sealed
meanwhile.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from gateway.core.errors import DecodeError, InvalidEvent, StoreMismatch
from gateway.core.event import parse_name
from gateway.core.identity import ContentID, FeedName
from gateway.core.links import FeedLinks, fragment
from gateway.core.pages import Page
from gateway.core.snapshots import FeedPoint
from gateway.core.state import Digest
from gateway.storage.catalogue import Catalogue
from gateway.storage.filestore import CATALOGUE, PAGES, feed_folder

from .entries import Document, Entries, read_entries
from .places import FeedLost, Range, Vector, by_number, expect_within, range_count, the_only


@dataclass(frozen=True, slots=True)
class FolderPlace:
    """A log in a data folder."""

    data: Path
    log: str

    @classmethod
    def open(cls, data: Path, log: str | None) -> FolderPlace:
        """Look for the log in the folder; raises FeedLost."""
        data = data.absolute()
        if not data.is_dir():
            raise FeedLost(f"there is no data folder {data}")
        if log is None:
            feeds = data / "feeds"
            log = the_only([path.name for path in feeds.iterdir()] if feeds.is_dir() else [], str(data))
        try:
            parse_name(log, "log")
        except InvalidEvent as error:
            raise FeedLost(str(error)) from error
        if not feed_folder(data, log, "0").parent.is_dir():
            raise FeedLost(f"there is no log {log} in {data}")
        return cls(data, log)

    def option(self) -> dict[str, str]:
        return {"from": str(self.data), "log": self.log}

    def vector(self) -> Vector:
        points: list[FeedPoint] = []
        digest = Digest()
        for partition in self._partitions():
            with self._catalogue(partition) as (catalogue, name):
                page, _, _, of_partition = catalogue.head()
            if page is None:
                continue
            digest += of_partition
            links = FeedLinks(self.log, partition)
            points.append(
                FeedPoint(
                    partition,
                    page.last_ordinal,
                    links.entry(page.last_ordinal),
                    _content_id(name, page, page.last_ordinal),
                    links.archive(page.number),
                )
            )
        return Vector(self.log, tuple(points), digest.entities, digest.hex())

    def holds(self, point: FeedPoint) -> bool:
        if point.partition not in self._partitions():
            return False
        with self._catalogue(point.partition) as (catalogue, name):
            page = _page_of(catalogue, point.last)
        return page is not None and _content_id(name, page, point.last) == point.content_id

    def sealed(self) -> dict[str, int]:
        ends: dict[str, int] = {}
        for partition in self._partitions():
            with self._catalogue(partition) as (catalogue, _):
                page = catalogue.head()[0]
            if page is not None:
                ends[partition] = page.next_ordinal if page.sealed else page.first_ordinal
        return ends

    def fragment(self, partition: str, ordinal: int) -> str:
        with self._catalogue(partition) as (catalogue, _):
            page = _page_of(catalogue, ordinal)
        if page is None:
            raise FeedLost(f"there is no event {ordinal} in {self._folder(partition)}")
        return fragment(ordinal, page.generation)

    def ranges(self, partition: str, start: int, end: int, tasks: int) -> list[Range]:
        folder = self._folder(partition)
        if start >= end:
            return []
        with self._catalogue(partition) as (catalogue, _):
            pages = [_PageFile.of(page) for page in catalogue.pages(start, end)]
        expect_within(
            {partition: pages[-1].first + pages[-1].events if pages else 0}, partition, end, str(folder)
        )
        size = sum(page.length for page in pages)
        wanted = size / range_count(size, tasks)
        found: list[Range] = []
        gathered: list[_PageFile] = []
        passed = 0
        for page in pages:
            gathered.append(page)
            passed += page.length
            if page is pages[-1] or passed >= wanted * (len(found) + 1):
                first, last = gathered[0], gathered[-1]
                found.append(
                    FolderRange(
                        str(folder / PAGES),
                        self.log,
                        partition,
                        max(start, first.first),
                        min(end, last.first + last.events),
                        tuple(gathered),
                    )
                )
                gathered = []
        return found

    def _folder(self, partition: str) -> Path:
        return feed_folder(self.data, self.log, partition)

    def _partitions(self) -> list[str]:
        """Those whose writer has begun, in order."""
        try:
            found = [path.parent.name for path in self._folder("0").parent.glob(f"*/{CATALOGUE}")]
        except OSError as error:
            raise FeedLost(f"the log {self.log} in {self.data} cannot be read: {error}") from error
        return sorted(found, key=by_number)

    @contextmanager
    def _catalogue(self, partition: str) -> Iterator[tuple[Catalogue, FeedName]]:
        """The catalogue of a partition, and the feed's name, which counts only once there is a page."""
        folder = self._folder(partition)
        try:
            with closing(Catalogue(folder / CATALOGUE, writable=False)) as catalogue:
                settings = catalogue.settings()
                yield catalogue, settings.name if settings else FeedName("localhost", self.log, partition)
        except (sqlite3.Error, OSError) as error:
            raise FeedLost(f"the catalogue in {folder} cannot be read: {error}") from error
        except StoreMismatch as error:
            raise FeedLost(str(error)) from error


class _PageFile(NamedTuple):
    """What a task needs to know of a page."""

    number: int
    boundary: str
    first: int
    events: int
    length: int
    sha256: str
    sealed: bool

    @classmethod
    def of(cls, page: Page) -> _PageFile:
        return cls(
            page.number, page.boundary, page.first_ordinal, page.events, page.length, page.sha256, page.sealed
        )


@dataclass(frozen=True, slots=True)
class FolderRange:
    """Events in page files; see Range."""

    folder: str
    log: str
    partition: str
    start: int
    end: int
    files: tuple[_PageFile, ...]

    def documents(self) -> Iterator[Entries]:
        """All entries of the range, by page; raises FeedLost, which names the page."""
        links = FeedLinks(self.log, self.partition)
        for page in self.files:
            name = f"{self.folder}/{page.number}"
            try:
                data = _read(name, page)
                found = read_entries(Document(name, page.boundary, data, page.sealed), links)
            except (OSError, DecodeError) as error:
                raise FeedLost(f"page {page.number} in {name} is damaged: {error}") from error
            if (found.first, found.end) != (page.first, page.first + page.events):
                raise FeedLost(
                    f"page {page.number} in {name} has the events {found.first} to {found.end - 1},"
                    f" not {page.first} to {page.first + page.events - 1}"
                )
            yield found.within(self.start, self.end)


def _read(name: str, page: _PageFile) -> bytes:
    """The bytes of a page up to the length that the catalogue told; raises DecodeError if they are others."""
    with Path(name).open("rb") as file:
        data = file.read(page.length + 1 if page.sealed else page.length)
    if len(data) != page.length:
        raise DecodeError(f"it has {len(data)} bytes or more, {page.length} were written")
    if hashlib.sha256(data).hexdigest() != page.sha256:
        raise DecodeError("its SHA-256 is not the one recorded")
    return data


def _page_of(catalogue: Catalogue, ordinal: int) -> Page | None:
    page = catalogue.page_of(ordinal)
    return page if page is not None and page.first_ordinal <= ordinal < page.next_ordinal else None


def _content_id(name: FeedName, page: Page, ordinal: int) -> str:
    return str(ContentID(ordinal, page.generation, name.partition, name.log, name.authority))
