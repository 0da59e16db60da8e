"""One feed document, judged by itself: its parts, their headers, and its links.

What is kept of a document is small, 16 bytes for each entry, so that a feed of any length can be compared
with itself later. The entries are handed out beside it and may be forgotten.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from itertools import pairwise

from multidict import CIMultiDictProxy

from gateway.core.errors import DecodeError
from gateway.core.links import parse_links
from gateway.core.multipart import Part
from gateway.core.times import parse_http_date

from .breaches import Breach, Rule
from .fetch import Answer, resolve
from .wellformed import check_boundary, split_document

KEY_BYTES = 16
HTTP_EQUIV = "http-equiv"

_NO_KEY = bytes(KEY_BYTES)
_EVENT_TYPE = re.compile(r"([!#$%&'*+\-.^_`|~0-9A-Za-z]+)=(?:([^\s\",;]+)|\"([^\"]*)\")")
_MESSAGE_ID = re.compile(r"<[^<>@\s]+@[^<>@\s]+>")
_ENTITY_TAG = re.compile(r"(?:W/)?\"[\x21\x23-\x7e\x80-\xff]*\"")
# The unsafe methods of the HTTP method registry (RFC 9110, 16.1.1).
_UNSAFE_METHODS = frozenset(
    (
        *("ACL", "BIND", "CHECKIN", "CHECKOUT", "CONNECT", "COPY", "DELETE", "LABEL", "LINK", "LOCK"),
        *("MERGE", "MKCALENDAR", "MKCOL", "MOVE", "ORDERPATCH", "PATCH", "POST", "PROPPATCH", "PUT"),
        *("REBIND", "UNBIND", "UNLINK", "UNLOCK", "UPDATE"),
    )
)
# What a proxy or the connection adds differs from one answer to the next, and says nothing of the document.
_PASSING_HEADERS = frozenset(
    (
        *("age", "alt-svc", "connection", "date", "expires", "keep-alive", "nel", "report-to"),
        *("server-timing", "set-cookie", "transfer-encoding", "via", "warning"),
        *("x-cache", "x-cache-hits", "x-request-id", "x-served-by", "x-timer", "x-varnish"),
    )
)


@dataclass(frozen=True, slots=True)
class Entry:
    """An event entry: what names it, and its entry link as an absolute URL."""

    number: int
    content_id: str | None
    key: bytes
    link: str | None


@dataclass(frozen=True, slots=True)
class FeedDocument:
    """What is kept of a document. `keys` has KEY_BYTES for each entry, in order."""

    url: str
    etag: str | None
    headers: tuple[tuple[str, str], ...]
    sha256: bytes
    keys: bytes
    links: dict[str, str] = field(default_factory=dict)
    families: frozenset[str] = frozenset()

    @property
    def entries(self) -> int:
        return len(self.keys) // KEY_BYTES

    def key_list(self) -> list[bytes]:
        keys = self.keys
        return [keys[i : i + KEY_BYTES] for i in range(0, len(keys), KEY_BYTES)]


@dataclass(frozen=True, slots=True)
class Reading:
    """A document as read: what is kept, what may be forgotten, and what was wrong with it."""

    document: FeedDocument
    entries: tuple[Entry, ...]
    breaches: tuple[Breach, ...]


def key_of(content_id: str) -> bytes:
    """A short stand-in for a Content-ID."""
    return hashlib.blake2b(content_id.encode(), digest_size=KEY_BYTES).digest()


def read_document(answer: Answer) -> Reading | None:
    """Judge an answer with status 200 or 204; None if it is no multipart document at all.

    204 is an empty feed: a multipart document needs a part (RFC 2046, 5.1.1), so it cannot say that.
    """
    breaches: list[Breach] = []
    parts: list[Part] = []
    if answer.status != 204:
        if not answer.media_type.startswith("multipart/"):
            return None
        try:
            boundary, faults = check_boundary(answer.headers["Content-Type"])
        except DecodeError as error:
            return Reading(
                _document(answer, ()),
                (),
                (Breach(Rule.MULTIPART_MALFORMED, answer.url, str(error)),),
            )
        parts, more = split_document(boundary, answer.body)
        breaches += [Breach(Rule.MULTIPART_MALFORMED, answer.url, fault) for fault in (*faults, *more)]
    reader = _EntryReader(answer.url, breaches)
    entries = tuple(reader.read(number, part) for number, part in enumerate(parts))
    reader.check_dates()
    document = _document(answer, entries, frozenset(reader.families))
    if document.etag is not None and _ENTITY_TAG.fullmatch(document.etag) is None:
        breaches.append(Breach(Rule.ETAG_FORM, answer.url, f"ETag: {document.etag} is not in quotes"))
    return Reading(document, entries, tuple(breaches))


def comparable_headers(headers: CIMultiDictProxy[str]) -> tuple[tuple[str, str], ...]:
    """The headers that belong to the document, in lower case and sorted by name."""
    lowered = [(name.lower(), value) for name, value in headers.items()]
    kept = [pair for pair in lowered if pair[0] not in _PASSING_HEADERS]
    return tuple(sorted(kept, key=lambda pair: pair[0]))


def cache_directives(headers: CIMultiDictProxy[str]) -> dict[str, str]:
    """The directives of Cache-Control (RFC 9111, 5.2), names in lower case."""
    found: dict[str, str] = {}
    for value in headers.getall("Cache-Control", []):
        for directive in value.split(","):
            name, _, argument = directive.strip().partition("=")
            if name:
                found.setdefault(name.lower(), argument.strip('"'))
    return found


def freshness_s(headers: CIMultiDictProxy[str]) -> int | None:
    """For how long the answer says that it may be kept by any cache, in seconds; None if it does not say."""
    directives = cache_directives(headers)
    if "no-store" in directives or "no-cache" in directives:
        return 0
    ages = [directives[name] for name in ("max-age", "s-maxage") if name in directives]
    numbers = [int(age) for age in ages if age.isascii() and age.isdigit()]
    return max(numbers, default=0) if ages else None


def _document(
    answer: Answer, entries: tuple[Entry, ...], families: frozenset[str] = frozenset()
) -> FeedDocument:
    return FeedDocument(
        url=answer.url,
        etag=answer.headers.get("ETag"),
        headers=comparable_headers(answer.headers),
        sha256=hashlib.sha256(answer.body).digest(),
        keys=b"".join(entry.key for entry in entries),
        links=answer.relations(),
        families=families,
    )


class _EntryReader:
    """Judges the parts of one document, one after the other."""

    def __init__(self, url: str, breaches: list[Breach]) -> None:
        self.families: set[str] = set()
        self._url = url
        self._breaches = breaches
        self._times: list[int] = []

    def read(self, number: int, part: Part) -> Entry:
        fields: dict[str, list[str]] = {}
        for name, value in part.headers:
            fields.setdefault(name.lower(), []).append(value)
        content_ids = fields.get("content-id", [])
        content_id = content_ids[0] if content_ids else None
        shown = f"entry {number} ({content_id or 'no Content-ID'})"
        self._check_content_id(shown, content_ids)
        relations = {
            relation: link.target
            for value in reversed(fields.get("link", []))
            for link in reversed(parse_links(value))
            for relation in link.relations
        }
        if "about" not in relations:
            self._breach(Rule.ABOUT_MISSING, f'{shown} has no Link with rel="about"')
        self._check_event_type(shown, fields.get("event-type", []))
        self._check_length(shown, fields.get("content-length", []), len(part.body))
        self._check_date(shown, fields.get("last-modified", []))
        link = relations.get("self")
        return Entry(
            number,
            content_id,
            _NO_KEY if content_id is None else key_of(content_id),
            None if link is None else resolve(self._url, link),
        )

    def check_dates(self) -> None:
        """Times that only ever fall are those of a document that puts new entries in front."""
        times = self._times
        pairs = pairwise(times)
        if times and times[0] > times[-1] and all(one >= two for one, two in pairs):
            self._breach(
                Rule.NEWEST_FIRST,
                "the Last-Modified times fall from entry to entry; new entries belong at the end",
            )

    def _check_content_id(self, shown: str, values: list[str]) -> None:
        if not values:
            self._breach(Rule.CONTENT_ID_MISSING, f"{shown} has no Content-ID")
        elif len(values) > 1:
            self._breach(Rule.CONTENT_ID_FORM, f"{shown} has {len(values)} Content-IDs")
        elif _MESSAGE_ID.fullmatch(values[0]) is None:
            self._breach(Rule.CONTENT_ID_FORM, f"{shown}: a Content-ID has the form <left@right>")

    def _check_event_type(self, shown: str, values: list[str]) -> None:
        if not values:
            self._breach(Rule.EVENT_TYPE_MISSING, f"{shown} has no Event-Type")
            return
        match = _EVENT_TYPE.fullmatch(values[0])
        if match is None or len(values) > 1:
            self._breach(
                Rule.EVENT_TYPE_FORM,
                f"{shown} has Event-Type: {', '.join(values)[:100]}, not one pair family=name",
            )
            return
        family, name = match[1], match[2] or match[3] or ""
        self.families.add(family)
        if family == HTTP_EQUIV and name not in _UNSAFE_METHODS:
            self._breach(Rule.EVENT_TYPE_METHOD, f"{shown}: {name[:40]!r} is not an unsafe HTTP method")

    def _check_length(self, shown: str, values: list[str], length: int) -> None:
        for value in values[:1]:
            if not (value.isascii() and value.isdigit()) or int(value) != length:
                self._breach(
                    Rule.PART_LENGTH,
                    f"{shown} says Content-Length: {value[:40]} and has {length} bytes",
                )

    def _check_date(self, shown: str, values: list[str]) -> None:
        for value in values[:1]:
            time = parse_http_date(value)
            if time is None:
                self._breach(Rule.PART_DATE, f"{shown}: Last-Modified: {value[:40]} is no HTTP date")
            else:
                self._times.append(time)

    def _breach(self, rule: Rule, detail: str) -> None:
        self._breaches.append(Breach(rule, self._url, detail))
