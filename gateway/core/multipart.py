"""Parts: how an event is written into a feed document, and how any server's documents are read.

Written by hand, because the bytes are the product: fixed header order, no folding, CRLF throughout.
Read with the `multipart` package, because other servers' documents come in every legal form (RFC 2046, 5.1).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from email.message import Message as HeaderBlock
from typing import NamedTuple

from multipart import MultipartError, MultipartSegment, PushMultipartParser

from .errors import DecodeError
from .event import Event, Method
from .identity import FeedName
from .links import FeedLinks, link_by_relation
from .times import http_date, parse_http_date

MIXED = "multipart/mixed"

PART_HEADERS_MAX = 64
PART_HEADER_BYTES_MAX = 16 * 1024
DOCUMENT_PARTS_MAX = 1_000_000

PartRenderer = Callable[[int, str, Event], bytes]


def delimiter(boundary: str) -> bytes:
    """The line in front of each part. The CRLF that belongs to it ends the part before it."""
    return b"--%s\r\n" % boundary.encode()


def closing_delimiter(boundary: str) -> bytes:
    """The line that ends a document."""
    return b"--%s--\r\n" % boundary.encode()


def part_renderer(name: FeedName) -> PartRenderer:
    """A function that renders an event of the feed, delimiter left out: headers, empty line, body, CRLF.

    The order of the headers is fixed: Content-ID, Link about, Link self, Event-Type, Content-Type,
    Last-Modified, Content-Length, then extras.
    """
    entry = FeedLinks(name.log, name.partition).entry(0).removesuffix("0")
    domain = f"{name.partition}.{name.log}.{name.authority}"

    def render(ordinal: int, generation: str, event: Event) -> bytes:
        head = (
            f"Content-ID: <{ordinal}.{generation}@{domain}>\r\n"
            f'Link: <{event.target}>; rel="about"\r\n'
            f'Link: <{entry}{ordinal}>; rel="self"\r\n'
            f"Event-Type: http-equiv={event.method._value_}\r\n"
        )
        if event.content_type is not None:
            head += f"Content-Type: {event.content_type}\r\n"
        if event.modified_ms is not None:
            head += f"Last-Modified: {http_date(event.modified_ms)}\r\n"
        head += f"Content-Length: {len(event.body)}\r\n"
        for header, value in event.extra_headers:
            head += f"{header}: {value}\r\n"
        return b"%s\r\n%s\r\n" % (head.encode("ascii"), event.body)

    return render


def read_event(content: bytes) -> Event:
    """The event that a `part_renderer` has rendered as `content`, its time cut to the second.

    Raises DecodeError if these are not such bytes.
    """
    head, _, rest = content.partition(b"\r\n\r\n")
    target = method = content_type = length = modified_ms = None
    extras: list[tuple[str, str]] = []
    try:
        for line in head.decode("ascii").split("\r\n"):
            name, value = line.split(": ", 1)
            if name == "Link" and target is None:
                target = value.removeprefix("<").removesuffix('>; rel="about"')
            elif name == "Event-Type":
                method = Method(value.removeprefix("http-equiv="))
            elif name == "Content-Type":
                content_type = value
            elif name == "Last-Modified":
                modified_ms = parse_http_date(value)
            elif name == "Content-Length":
                length = int(value)
            elif length is not None:
                extras.append((name, value))
    except ValueError as error:
        raise DecodeError(f"not an event entry: {error}") from error
    if target is None or method is None or length is None or rest[length:] != b"\r\n":
        raise DecodeError("not a whole event entry")
    return Event(method, target, content_type, rest[:length], modified_ms, tuple(extras))


class Part(NamedTuple):
    """One part of a document as read: its headers in order, names spelled as in Content-Id, and its body."""

    headers: tuple[tuple[str, str], ...]
    body: bytes

    def values(self, name: str) -> list[str]:
        """All values of the header `name`, whatever its case."""
        wanted = name.lower()
        return [value for header, value in self.headers if header.lower() == wanted]

    def value(self, name: str) -> str | None:
        """The first value of the header `name`, or None."""
        return next(iter(self.values(name)), None)

    @property
    def about(self) -> str | None:
        """The event target (draft, "The Event Target Link Relation")."""
        return link_by_relation(self.values("Link"), "about")

    @property
    def entry(self) -> str | None:
        """The entry link (draft, "The Event Entry Link Relation")."""
        return link_by_relation(self.values("Link"), "self")


def boundary_of(content_type: str) -> str:
    """The boundary of a multipart Content-Type; raises DecodeError if it is not multipart or has none."""
    boundary: str | None = None
    # The standard library's parser stumbles over some broken parameters.
    with suppress(TypeError, ValueError, LookupError):
        block = HeaderBlock()
        block["Content-Type"] = content_type
        if block.get_content_maintype() == "multipart":
            boundary = block.get_boundary()
    if not boundary or not boundary.isascii():
        raise DecodeError(f"Content-Type {content_type!r} is not multipart with a boundary")
    return boundary


class _Parser(PushMultipartParser):
    """The package's parser for any multipart type; its own default insists on what only form-data has."""

    def _create_segment(self, headerlist: list[tuple[str, str]]) -> MultipartSegment:
        return _Segment(headerlist)


class _Segment(MultipartSegment):
    """A part whose headers are not looked into: what form-data would have there is not asked for."""

    def __init__(self, headerlist: list[tuple[str, str]]) -> None:
        self.headerlist = headerlist
        self.bytes_received = 0
        self.complete = False


def read_parts(boundary: str, document: bytes) -> list[Part]:
    """The parts of a whole multipart document; raises DecodeError if it is malformed or cut short.

    A part ends at its delimiter and must be as long as its Content-Length, if it has one: a body that holds
    the delimiter could be read in two ways, so it is refused (RFC 2046, 5.1.1).
    """
    parts: list[Part] = []
    headers: tuple[tuple[str, str], ...] = ()
    body = b""
    try:
        with _Parser(
            boundary,
            max_header_size=PART_HEADER_BYTES_MAX,
            max_header_count=PART_HEADERS_MAX,
            max_segment_count=DOCUMENT_PARTS_MAX,
        ) as parser:
            for item in parser.parse(_usual_form(boundary.encode(), document)):
                if item is None:
                    parts.append(Part(headers, body))
                elif type(item) is _Segment:
                    headers, body = _checked(item.headerlist), b""
                else:
                    body += item
    except (MultipartError, UnicodeDecodeError) as error:
        raise DecodeError(f"not a whole multipart document: {error}") from error
    return parts


def _usual_form(boundary: bytes, document: bytes) -> bytes:
    """The document without two legal forms that the package does not read.

    Blanks after a delimiter are to be ignored. A part without a body may do without the second line break
    behind its headers, as in the draft's own example, and would swallow the part after it.
    """
    marker = b"--" + boundary
    if marker + b" " in document or marker + b"\t" in document:
        padded = rb"(?:\A|(?<=\r\n))(%b(?:--)?)[ \t]+(?=\r\n)" % re.escape(marker)
        document = re.sub(padded, rb"\1", document)
    # A body that is there and empty has three line breaks in front of the next delimiter.
    if document.count(b"\r\n\r\n" + marker) != document.count(b"\r\n\r\n\r\n" + marker):
        bodyless = rb"(%b\r\n(?:[^\r\n]+\r\n)+)(?=\r\n%b)" % ((re.escape(marker),) * 2)
        document = re.sub(bodyless, rb"\1\r\n", document)
    return document


def _checked(headers: list[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """The headers without what the package leaves in and nobody may send (RFC 9110, 5.5)."""
    # One look at all values together is enough for nearly every part.
    values = "|".join([value for _, value in headers])
    if not values.isprintable() or " |" in values or values[-1:] == " ":
        if "\r" in values or "\n" in values or "\0" in values:
            raise DecodeError("a bare CR, LF or NUL is in the headers of a part")
        headers = [(name, value.rstrip(" \t")) for name, value in headers]
    return tuple(headers)
