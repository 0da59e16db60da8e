"""Pages: how a sequence of events becomes a sequence of documents, as a pure function.

A page holds the rendered parts of consecutive events. Its bytes depend on the events, their offsets in
the log, and the feed's settings, and on nothing else: no clock, no batch size, no restart. So two
gateways on one log write the same pages, and the last one written can be rebuilt from the log.

A page is cut before an event when it is full, when the event would take it past its size, when the event
holds the page's own delimiter, or at a gap. It is never cut by time, and never left empty.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import NamedTuple

from .errors import InvalidSetting
from .event import Event, Method
from .identity import FeedName, first_generation, generation_after_gap
from .links import FeedLinks
from .multipart import closing_delimiter, delimiter, part_renderer, read_event

ARCHIVE_EVENTS_MAX = 1_000
ARCHIVE_BYTES_MAX = 256 * 1024
PAGE_BYTES_MAX = 1 << 30
"""What `archive_bytes_max` may be set to."""
BOUNDARY_HEX = 40

_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
# What a part or the answer with its state has by itself, and what belongs to a connection.
_OWN_HEADERS = frozenset(
    (
        *("content-id", "link", "event-type", "content-type", "last-modified", "content-length"),
        *("content-encoding", "etag", "cache-control", "vary", "date", "age", "expires", "set-cookie"),
        *("content-range", "accept-ranges", "x-content-type-options", "location", "server"),
        *("connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade"),
    )
)


@dataclass(frozen=True, slots=True)
class FeedSettings:
    """All that decides a feed's bytes, besides its events; replicas must share it.

    `archive_bytes_max` is the size in bytes that a document is kept under, closing delimiter included; an
    event that is larger alone has a page to itself. `salt` is any text; it goes into the boundaries.
    `extra_headers` names the application properties that become headers of an event's part.
    """

    name: FeedName
    archive_events_max: int = ARCHIVE_EVENTS_MAX
    archive_bytes_max: int = ARCHIVE_BYTES_MAX
    salt: str = ""
    extra_headers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.archive_events_max < 1:
            raise InvalidSetting("archive_events_max must be at least 1")
        if not 1 <= self.archive_bytes_max <= PAGE_BYTES_MAX:
            raise InvalidSetting(
                f"archive_bytes_max must be from 1 to {PAGE_BYTES_MAX}: an open page is kept in memory"
            )
        seen: set[str] = set()
        for header in self.extra_headers:
            name = header.lower()
            if _TOKEN.fullmatch(header) is None or name in _OWN_HEADERS or name in seen:
                raise InvalidSetting(
                    f"extra header {ascii(header)[:80]} cannot be had: it must be the name of a header, once,"
                    " and of none that parts and answers have already"
                )
            seen.add(name)

    @property
    def links(self) -> FeedLinks:
        return FeedLinks(self.name.log, self.name.partition)


@dataclass(frozen=True, slots=True)
class Page:
    """What is known of a page without its bytes.

    `length` and `sha256` are of the bytes written so far, the closing delimiter included once the page is
    sealed. `first_offset` is the log's offset of the first event. `modified_ms_max` is the greatest time
    of any event of the feed up to the end of this page, which makes it ascend from page to page.
    """

    number: int
    generation: str
    boundary: str
    first_ordinal: int
    first_offset: str
    events: int = 0
    length: int = 0
    sha256: str = hashlib.sha256().hexdigest()
    modified_ms_max: int | None = None
    sealed: bool = False

    @property
    def next_ordinal(self) -> int:
        return self.first_ordinal + self.events

    @property
    def last_ordinal(self) -> int:
        return self.next_ordinal - 1

    @property
    def etag(self) -> str:
        """The strong ETag of the document: of what it holds while it grows, of its bytes once sealed."""
        return f'"{self.sha256}"' if self.sealed else f'"{self.last_ordinal}.{self.generation}"'


@dataclass(frozen=True, slots=True)
class Gap:
    """Events that the log lost before they were read: none between the two offsets can be had.

    `ordinal` is that of the first event after the gap, at `offset_after`.
    """

    ordinal: int
    offset_before: str
    offset_after: str


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A message that could not become an event: its place in the log, the reason, its bytes as received."""

    offset: str
    timestamp_ms: int | None
    reason: str
    raw: bytes


@dataclass(frozen=True, slots=True)
class PageWrite:
    """Bytes to append to the file of `page`, which describes the page when they are written."""

    page: Page
    data: bytes


@dataclass(frozen=True, slots=True)
class LogPosition:
    """The last message that was taken from the log: its offset, and the SHA-256 of its bare message in hex.

    `gap_before` is the offset before a gap, if no event has followed that gap yet.
    """

    offset: str
    sha256: str
    gap_before: str | None = None


class Change(NamedTuple):
    """An event that may change its target's state, and its place: a part begins at byte `start` of its page.

    `length` is the part's without the delimiter: headers, empty line, body, CRLF.
    """

    ordinal: int
    event: Event
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class Batch:
    """What one commit makes durable, all of it or nothing; `changes` are in the feed's order."""

    writes: tuple[PageWrite, ...] = ()
    gaps: tuple[Gap, ...] = ()
    changes: tuple[Change, ...] = ()
    quarantined: tuple[Quarantined, ...] = ()
    position: LogPosition | None = None


class Paginator:
    """Turns events into page writes; the only place where pages are cut.

    Start it with the open page and its bytes, or with nothing for a new feed. `add` takes events in the
    log's order; `take` hands over what has gathered since the last `take`.
    """

    def __init__(self, settings: FeedSettings, page: Page | None = None, data: bytes = b"") -> None:
        assert page is None or not page.sealed, "only an open page can go on"
        self._settings = settings
        self._render = part_renderer(settings.name)
        self._writes: list[PageWrite] = []
        self._gaps: list[Gap] = []
        self._changes: list[Change] = []
        self._parts: list[bytes] = []
        self._page = page
        self._hash = hashlib.sha256()
        self._events = self._length = 0
        self._modified_ms_max = -1
        self._marker = self._delimiter = self._closing = b""
        if page is not None:
            self._adopt(page, data)

    def add(self, event: Event, offset: str, *, offset_before_gap: str | None = None) -> int:
        """Append `event`, which the log keeps at `offset`, and return its ordinal.

        `offset_before_gap` tells that the log lost events after that offset and before this one: the page
        is cut and a new generation starts.
        """
        page = self._page
        if page is None:
            ordinal, generation = 0, first_generation(event, offset)
            content = self._render(ordinal, generation, event)
            self._open(0, generation, ordinal, offset, content)
        else:
            ordinal, generation = page.first_ordinal + self._events, page.generation
            if offset_before_gap is not None:
                generation = generation_after_gap(generation, event, offset)
                self._gaps.append(Gap(ordinal, offset_before_gap, offset))
            content = self._render(ordinal, generation, event)
            if self._events and (offset_before_gap is not None or self._must_cut(content)):
                self.seal()
                self._open(page.number + 1, generation, ordinal, offset, content)
        self._parts.append(self._delimiter)
        self._parts.append(content)
        start = self._length + len(self._delimiter)
        self._length = start + len(content)
        self._events += 1
        if event.modified_ms is not None and event.modified_ms > self._modified_ms_max:
            self._modified_ms_max = event.modified_ms
        if event.method is not Method.POST:
            self._changes.append(Change(ordinal, event, start, len(content)))
        return ordinal

    @property
    def page(self) -> Page | None:
        """The page that events now go to, as it was when it was opened or last taken."""
        return self._page

    def seal(self) -> None:
        """Close the open page; what is added next opens the one after it."""
        self._parts.append(self._closing)
        self._length += len(self._closing)
        self._flush(sealed=True)

    def take(self) -> Batch:
        """What was added since the last call; the last write is to the open page."""
        if self._parts:
            self._flush(sealed=False)
        taken = Batch(tuple(self._writes), tuple(self._gaps), tuple(self._changes))
        self._writes.clear()
        self._gaps.clear()
        self._changes.clear()
        return taken

    def _must_cut(self, content: bytes) -> bool:
        length = self._length + len(self._delimiter) + len(content) + len(self._closing)
        return (
            self._events >= self._settings.archive_events_max
            or length > self._settings.archive_bytes_max
            or self._marker in content
        )

    def _open(self, number: int, generation: str, ordinal: int, offset: str, content: bytes) -> None:
        boundary = next(
            boundary
            for boundary in boundaries(self._settings, generation, number)
            if b"--" + boundary.encode() not in content
        )
        modified = None if self._page is None or self._modified_ms_max < 0 else self._modified_ms_max
        page = Page(number, generation, boundary, ordinal, offset, modified_ms_max=modified)
        self._adopt(page, b"")

    def _adopt(self, page: Page, data: bytes) -> None:
        self._page = page
        self._hash = hashlib.sha256(data)
        self._events, self._length = page.events, page.length
        self._modified_ms_max = -1 if page.modified_ms_max is None else page.modified_ms_max
        self._marker = b"--" + page.boundary.encode()
        self._delimiter = delimiter(page.boundary)
        self._closing = closing_delimiter(page.boundary)

    def _flush(self, *, sealed: bool) -> None:
        assert self._page is not None
        data = b"".join(self._parts)
        self._parts.clear()
        self._hash.update(data)
        self._page = replace(
            self._page,
            events=self._events,
            length=self._length,
            sha256=self._hash.hexdigest(),
            modified_ms_max=None if self._modified_ms_max < 0 else self._modified_ms_max,
            sealed=sealed,
        )
        self._writes.append(PageWrite(self._page, data))


def page_changes(page: Page, data: bytes) -> Iterator[Change]:
    """The changes in the bytes of `page`, as when they were added, with times cut to the second.

    Raises DecodeError if these are not its bytes.
    """
    line = delimiter(page.boundary)
    if page.sealed:
        data = data.removesuffix(closing_delimiter(page.boundary))
    start = 0
    # No event holds the delimiter of its page.
    for ordinal, content in enumerate(data.split(line)[1:], page.first_ordinal):
        start += len(line)
        event = read_event(content)
        if event.method is not Method.POST:
            yield Change(ordinal, event, start, len(content))
        start += len(content)


def boundaries(settings: FeedSettings, generation: str, page: int) -> Iterator[str]:
    """The series of boundaries that a page may have; it takes the first that its first event lacks.

    Hex digits only, so that it needs no quotes in Content-Type (RFC 2046, 5.1.1).
    """
    name = settings.name
    for attempt in count():
        seed = (settings.salt, name.log, name.partition, generation, str(page), str(attempt))
        yield hashlib.sha256("\0".join(seed).encode()).hexdigest()[:BOUNDARY_HEX]
