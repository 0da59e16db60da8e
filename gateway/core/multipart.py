"""Parts: how an event is written into a feed document, and how any server's documents are read.

Written by hand, because the bytes are the product: fixed header order, no folding, CRLF throughout.
Read with the `multipart` package, because other servers' documents come in every legal form (RFC 2046, 5.1).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from email.message import Message as HeaderBlock

from multipart import MultipartError, MultipartSegment, PushMultipartParser

from .errors import DecodeError
from .event import Event
from .identity import FeedName
from .links import FeedLinks, link_by_relation
from .times import http_date

MIXED = "multipart/mixed"

PART_HEADERS_MAX = 64
PART_HEADER_BYTES_MAX = 16 * 1024

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


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a document as read: its headers in order, names as written, and its body."""

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


class _Parser(PushMultipartParser):
    """The package's parser for any multipart type; its own default insists on what only form-data has."""

    def _create_segment(self, headerlist: list[tuple[str, str]]) -> MultipartSegment:
        return MultipartSegment(headerlist)


def boundary_of(content_type: str) -> str:
    """The boundary of a multipart Content-Type; raises DecodeError if it is not multipart or has none."""
    block = HeaderBlock()
    block["Content-Type"] = content_type
    boundary = block.get_boundary()
    if block.get_content_maintype() != "multipart" or not boundary:
        raise DecodeError(f"Content-Type {content_type!r} is not multipart with a boundary")
    return boundary


def read_parts(boundary: str, document: bytes) -> list[Part]:
    """The parts of a whole multipart document; raises DecodeError if it is malformed or cut short."""
    parts: list[Part] = []
    headers: tuple[tuple[str, str], ...] = ()
    body = bytearray()
    try:
        with _Parser(
            boundary,
            max_header_size=PART_HEADER_BYTES_MAX,
            max_header_count=PART_HEADERS_MAX,
        ) as parser:
            for item in parser.parse(document):
                if isinstance(item, MultipartSegment):
                    headers = tuple(item.headerlist)
                elif item:
                    body += item
                else:
                    parts.append(Part(headers, bytes(body)))
                    body.clear()
    except MultipartError as error:
        raise DecodeError(f"not a whole multipart document: {error}") from error
    return parts
