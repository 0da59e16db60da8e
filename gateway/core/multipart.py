"""Parts: how an event is written into a feed document, and how any server's documents are read.

Both by hand: written, because the bytes are the product (fixed header order, no folding, CRLF throughout);
read, because other servers' documents come in every legal form (RFC 2046, 5.1), and a part without a body,
as the draft's own example has one, makes form-data parsers lose the part after it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from email.message import Message as HeaderBlock
from typing import NamedTuple

from .errors import DecodeError
from .event import Event, Method
from .identity import FeedName
from .links import FeedLinks, link_by_relation
from .times import http_date, parse_http_date

MIXED = "multipart/mixed"

PART_HEADERS_MAX = 64
PART_HEADER_BYTES_MAX = 16 * 1024
DOCUMENT_PARTS_MAX = 1_000_000

_HEADER_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_USUAL_NAMES = frozenset(
    ("Content-ID", "Link", "Event-Type", "Content-Type", "Last-Modified", "Content-Length")
)
_BLANK = b" \t"

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


def boundary_of(content_type: str) -> str:
    """The boundary of a multipart Content-Type; raises DecodeError if it is not multipart or has none."""
    block = HeaderBlock()
    block["Content-Type"] = content_type
    boundary = block.get_boundary()
    if block.get_content_maintype() != "multipart" or not boundary:
        raise DecodeError(f"Content-Type {content_type!r} is not multipart with a boundary")
    return boundary


def read_parts(boundary: str, document: bytes) -> list[Part]:
    """The parts of a whole multipart document; raises DecodeError if it is malformed or cut short.

    A part ends at its delimiter and must be as long as its Content-Length, if it has one: a body that holds
    the delimiter could be read in two ways, so it is refused (RFC 2046, 5.1.1).
    """
    # The CRLF in front makes the first delimiter look like all others.
    pieces = (b"\r\n" + document).split(b"\r\n--" + boundary.encode(), DOCUMENT_PARTS_MAX + 1)
    if len(pieces) == 1:
        raise DecodeError(f"not a multipart document: it has no delimiter --{boundary}")
    parts: list[Part] = []
    for piece in pieces[1:]:
        if piece.startswith(b"--"):
            return parts
        if not piece.startswith(b"\r\n"):
            # Nobody may send blanks after a delimiter, and everybody must ignore them.
            piece = piece.lstrip(_BLANK)
            if not piece.startswith(b"\r\n"):
                raise DecodeError(f"part {len(parts)}: a line starts with the delimiter and goes on")
        parts.append(_part(piece, len(parts)))
    if len(parts) > DOCUMENT_PARTS_MAX:
        raise DecodeError(f"a document has at most {DOCUMENT_PARTS_MAX} parts")
    raise DecodeError("not a whole multipart document: the closing delimiter is missing")


def _part(piece: bytes, index: int) -> Part:
    """The part in what stands between two delimiters, the line break of the first one included."""
    # That line break is the first half of an empty line when there are no headers.
    end = piece.find(b"\r\n\r\n")
    if end >= 0:
        head, body = piece[2:end], piece[end + 4 :]
    elif piece.endswith(b"\r\n") and len(piece) > 2:
        # A part without a body: the empty line is the beginning of the delimiter.
        head, body = piece[2:-2], b""
    else:
        raise DecodeError(f"part {index}: no empty line ends its headers")
    headers = _headers(head, index) if head else ()
    length: str | None = None
    for name, value in headers:
        if name == "Content-Length" or (len(name) == 14 and name.lower() == "content-length"):
            if length is not None:
                raise DecodeError(f"part {index} has two headers Content-Length")
            length = value
    if length is not None and length != str(len(body)):
        raise DecodeError(f"part {index} says Content-Length: {length[:40]} and has {len(body)} bytes")
    return Part(headers, body)


def _headers(head: bytes, index: int) -> tuple[tuple[str, str], ...]:
    try:
        text = head.decode()
    except UnicodeDecodeError:
        text = head.decode("latin-1")  # as HTTP headers once were (RFC 9110, 5.5)
    lines = text.split("\r\n")
    if len(lines) > PART_HEADERS_MAX:
        raise DecodeError(f"part {index} has more than {PART_HEADERS_MAX} header lines")
    headers: list[tuple[str, str]] = []
    for line in lines:
        name, colon, value = line.partition(":")
        if len(line) > PART_HEADER_BYTES_MAX:
            raise DecodeError(f"part {index}: a header line has more than {PART_HEADER_BYTES_MAX} bytes")
        if name not in _USUAL_NAMES:
            if line[:1] in (" ", "\t") and headers:
                # A folded line (RFC 5322, 2.2.3).
                name, before = headers.pop()
                value = f"{before} {line.strip()}"
            elif not colon or _HEADER_NAME.fullmatch(name) is None:
                raise DecodeError(f"part {index}: {line[:80]!r} is not a header line")
        headers.append((name, value.strip(" \t")))
    if text.count("\n") != len(lines) - 1 or text.count("\r") != len(lines) - 1:
        raise DecodeError(f"part {index}: its header lines do not end in CRLF")
    return tuple(headers)
