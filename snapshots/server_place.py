"""The feeds of a gateway, over HTTP: one that writes them, or a replica, or a cache in front of either.

Stretches are cut at documents. Each archive document is checked against its strong ETag, which in a gateway
is the SHA-256 of its bytes, and the one that is still open against the series of ordinals that it must hold.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any
from urllib.parse import urljoin, urlsplit

from gateway.core.errors import DecodeError, InvalidEvent, InvalidSetting
from gateway.core.event import parse_name
from gateway.core.links import FeedLinks, link_by_relation, log_path
from gateway.core.multipart import boundary_of
from gateway.core.snapshots import FeedPoint

from .asking import Answer, Asker
from .entries import Document, Entries, read_entries
from .places import FeedLost, Range, Vector, by_number, expect_within, range_count, the_only

PAGE_BYTES_USUAL = 256 * 1024
"""What a document is taken to have when a stretch is cut, as asking each for its size would cost too much."""
MOVED_TRIES_MAX = 5
"""How often the open document may become full between two questions."""
_BEGINNING_BYTES = 4096

_CONTENT_ID = re.compile(rb"\r\nContent-ID: <([0-9]+)\.")
_STRONG_SHA256 = re.compile(r'"([0-9a-f]{64})"')
_ARCHIVE = re.compile(r"/feeds/[^/]+/[^/]+/archive/(0|[1-9][0-9]*)")


@dataclass(frozen=True, slots=True)
class ServerPlace:
    """A log of a gateway; `base` is scheme, host and port of its URL."""

    base: str
    log: str

    @classmethod
    def open(cls, url: str, log: str | None) -> ServerPlace:
        """Find out which log is meant; raises FeedLost, and InvalidSetting for another kind of URL."""
        parts = urlsplit(url)
        base = f"{parts.scheme}://{parts.netloc}"
        named = re.fullmatch(r"(?:/feeds/([^/]+))?/?", parts.path)
        if named is None or parts.query or not parts.netloc:
            raise InvalidSetting(
                f"{url} is neither the URL of a gateway nor that of a log document, /feeds/NAME"
            )
        if named[1] is not None:
            if log not in (None, named[1]):
                raise InvalidSetting(f"{url} is the log {named[1]}, and the log {log} is asked for")
            log = named[1]
        if log is None:
            with closing(Asker()) as asker:
                content = _json(asker.get(f"{base}/"))
            try:
                log = the_only([str(item["log"]) for item in content["logs"]], url)
            except (KeyError, TypeError) as error:
                raise FeedLost(f"{url} is not the service document of a gateway") from error
        try:
            parse_name(log, "log")
        except InvalidEvent as error:
            raise FeedLost(str(error)) from error
        return cls(base, log)

    def option(self) -> dict[str, str]:
        return {"from": self.base, "log": self.log}

    def vector(self) -> Vector:
        with closing(Asker()) as asker:
            content = self._log_document(asker)
            points: list[FeedPoint] = []
            for partition, (last, number) in sorted(
                _heads(content).items(), key=lambda item: by_number(item[0])
            ):
                links = FeedLinks(self.log, partition)
                content_id = _Feed(asker, self.base, links).content_id(number, last)
                points.append(
                    FeedPoint(partition, last, links.entry(last), content_id, links.archive(number))
                )
        return Vector(self.log, tuple(points), int(content["entities"]), str(content["digest"]))

    def holds(self, point: FeedPoint) -> bool:
        with closing(Asker()) as asker:
            if _heads(self._log_document(asker)).get(point.partition, (-1, 0))[0] < point.last:
                return False
            feed = _Feed(asker, self.base, FeedLinks(self.log, point.partition))
            return feed.content_id(feed.page_of(point.last), point.last) == point.content_id

    def sealed(self) -> dict[str, int]:
        with closing(Asker()) as asker:
            return {
                partition: _Feed(asker, self.base, FeedLinks(self.log, partition)).first_open()
                for partition in _heads(self._log_document(asker))
            }

    def fragment(self, partition: str, ordinal: int) -> str:
        with closing(Asker()) as asker:
            return _Feed(asker, self.base, FeedLinks(self.log, partition)).entry(ordinal).partition("#")[2]

    def ranges(self, partition: str, start: int, end: int, tasks: int) -> list[Range]:
        links = FeedLinks(self.log, partition)
        if start >= end:
            return []
        with closing(Asker()) as asker:
            ends = {name: last + 1 for name, (last, _) in _heads(self._log_document(asker)).items()}
            expect_within(ends, partition, end, self.base)
            feed = _Feed(asker, self.base, links)
            first, last = feed.page_of(start), feed.page_of(end - 1)
            pages = last - first + 1
            count = min(range_count(pages * PAGE_BYTES_USUAL, tasks), pages)
            numbers = [first + pages * n // count for n in range(count)]
            starts = [start, *(feed.first_of(number) for number in numbers[1:])]
        return [
            ServerRange(self.base, self.log, partition, begin, behind, number)
            for number, begin, behind in zip(numbers, starts, [*starts[1:], end], strict=True)
        ]

    def _log_document(self, asker: Asker) -> dict[str, Any]:
        answer = asker.get(f"{self.base}{log_path(self.log)}")
        content = _json(answer)
        try:
            _heads(content)
            int(content["entities"]), str(content["digest"])
        except (KeyError, TypeError, ValueError) as error:
            raise FeedLost(f"{answer.url} is not the log document of a gateway") from error
        return content


@dataclass(frozen=True, slots=True)
class ServerRange:
    """Events in the documents of a gateway, from document `number` on; see Range."""

    base: str
    log: str
    partition: str
    start: int
    end: int
    number: int

    def documents(self) -> Iterator[Entries]:
        """All entries of the range, by document; raises FeedLost, which names the document."""
        with closing(Asker()) as asker:
            feed = _Feed(asker, self.base, FeedLinks(self.log, self.partition))
            number, ordinal = self.number, self.start
            while ordinal < self.end:
                found = feed.entries(number, ordinal)
                if found.first < ordinal and number != self.number:
                    raise FeedLost(f"{feed.url(number)} begins with event {found.first}, not {ordinal}")
                yield found.within(ordinal, self.end)
                ordinal = found.end
                number += 1


@dataclass(frozen=True, slots=True)
class _Feed:
    """Questions about one feed."""

    asker: Asker
    base: str
    links: FeedLinks

    def url(self, number: int) -> str:
        return self.base + self.links.archive(number)

    def entry(self, ordinal: int) -> str:
        """Where the entry link of an event leads."""
        answer = self.asker.get(self.base + self.links.entry(ordinal))
        if answer.status not in (301, 302) or "Location" not in answer.headers:
            raise answer.lost(f"there is no event {ordinal}")
        return answer.headers["Location"]

    def page_of(self, ordinal: int) -> int:
        """The number of the document that holds an event, also while it is open."""
        for _ in range(MOVED_TRIES_MAX):
            if archived := _ARCHIVE.fullmatch(urlsplit(self.entry(ordinal)).path):
                return int(archived[1])
            open_ = self.asker.get(self.base + self.links.current, bytes_wanted=0)
            before = link_by_relation([open_.headers.get("Link", "")], "prev-archive")
            # The event was in the open document before the question and is so behind it: that was this one.
            if _ARCHIVE.fullmatch(urlsplit(self.entry(ordinal)).path) is None:
                if before is None:
                    return 0
                if archived := _ARCHIVE.fullmatch(urlsplit(before).path):
                    return int(archived[1]) + 1
        raise FeedLost(f"{self.base}{self.links.entry(ordinal)} does not lead to a document of a gateway")

    def first_of(self, number: int) -> int:
        """The first ordinal in a document that is there."""
        answer = self._document(number, bytes_wanted=_BEGINNING_BYTES)
        return _first(answer)

    def first_open(self) -> int:
        """The first ordinal in the document that grows; 0 in a new feed."""
        answer = self.asker.get(self.base + self.links.current, bytes_wanted=_BEGINNING_BYTES)
        if answer.status == 204:
            return 0
        if answer.status != 200:
            raise answer.lost("it should be the subscription document")
        return _first(answer)

    def content_id(self, number: int, ordinal: int) -> str:
        """The Content-ID of an event in a document; raises FeedLost if it is not there."""
        found = self.entries(number, ordinal)
        return found.content_id[ordinal - found.first].decode()

    def entries(self, number: int, ordinal: int) -> Entries:
        """What is in a document that holds event `ordinal`; raises FeedLost if it does not, or is damaged."""
        problem = ""
        for _ in range(MOVED_TRIES_MAX):
            answer = self._document(number)
            try:
                boundary = boundary_of(answer.headers.get("Content-Type", ""))
                _expect_whole(answer)
                found = read_entries(Document(answer.url, boundary, answer.body, whole=True), self.links)
            except DecodeError as error:
                problem = f"is damaged: {error}"
                continue
            if found.first <= ordinal < found.end:
                return found
            # The way to the open document may have been overtaken: the next one grows there now.
            problem = f"has the events {found.first} to {found.end - 1}, and not {ordinal}"
        raise FeedLost(f"{self.url(number)} {problem}")

    def _document(self, number: int, bytes_wanted: int | None = None) -> Answer:
        answer = self.asker.get(self.url(number), bytes_wanted=bytes_wanted)
        if answer.status == 302 and "Location" in answer.headers:
            answer = self.asker.get(
                urljoin(answer.url, answer.headers["Location"]), bytes_wanted=bytes_wanted
            )
        if answer.status != 200:
            raise answer.lost(f"document {number} of the feed should be there")
        return answer


def _expect_whole(answer: Answer) -> None:
    """Raises DecodeError if the ETag is a SHA-256, and another one than that of the body."""
    tagged = _STRONG_SHA256.fullmatch(answer.headers.get("ETag", ""))
    if tagged is not None and hashlib.sha256(answer.body).hexdigest() != tagged[1]:
        raise DecodeError("its SHA-256 is not the one in its ETag")


def _first(answer: Answer) -> int:
    match = _CONTENT_ID.search(answer.body)
    if match is None:
        raise answer.lost("it does not begin as a document of a gateway")
    return int(match[1])


def _json(answer: Answer) -> dict[str, Any]:
    if answer.status != 200:
        raise answer.lost(answer.body[:500].decode("utf-8", "replace").strip() or "there is nothing")
    try:
        content = json.loads(answer.body)
    except (ValueError, RecursionError) as error:
        raise FeedLost(f"{answer.url} is not a document of a gateway: {error}") from error
    if not isinstance(content, dict):
        raise FeedLost(f"{answer.url} is not a document of a gateway")
    return content


def _heads(content: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """For each partition with events, its last ordinal and the number of the document that holds it."""
    found: dict[str, tuple[int, int]] = {}
    for item in content["partitions"]:
        if item["last"] is None:
            continue
        archived = _ARCHIVE.fullmatch(item["links"]["last"])
        if archived is None:
            raise ValueError("links.last is not an archive document")
        found[parse_name(item["partition"], "partition")] = int(item["last"]), int(archived[1])
    return found
