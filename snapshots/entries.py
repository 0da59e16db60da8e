"""The event entries of feed documents, column by column, and as Arrow batches.

Documents of a gateway are its pages, whose form is known to the byte, so they are split at their delimiter,
and each piece is checked: its place in the series of Content-IDs, its entry link, its Content-Length. That is
several times as fast as the parser for all legal forms, which reads documents that somebody on the way has
written anew.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple

import pyarrow as pa

from gateway.core.errors import DecodeError
from gateway.core.event import METHODS
from gateway.core.identity import parse_content_id
from gateway.core.links import FeedLinks
from gateway.core.multipart import Part, closing_delimiter, delimiter, read_parts
from gateway.core.times import parse_http_date

BATCH_ROWS_MAX = 10_000
BATCH_BYTES_MAX = 16 * 1024 * 1024
"""Of documents whose events are in one batch; an event that is larger alone has a batch to itself."""

SCHEMA = (
    "partition STRING, ordinal BIGINT, content_id STRING, target STRING, method STRING, content_type STRING,"
    " last_modified TIMESTAMP, entry STRING, headers ARRAY<STRUCT<name: STRING, value: STRING>>, body BINARY"
)
_HEADER = pa.struct([("name", pa.string()), ("value", pa.string())])
ARROW_SCHEMA = pa.schema(
    [
        ("partition", pa.string()),
        ("ordinal", pa.int64()),
        ("content_id", pa.string()),
        ("target", pa.string()),
        ("method", pa.string()),
        ("content_type", pa.string()),
        ("last_modified", pa.timestamp("us", tz="UTC")),
        ("entry", pa.string()),
        ("headers", pa.list_(pa.field("element", _HEADER))),
        ("body", pa.binary()),
    ]
)

# Visible ASCII and nothing else, as gateways write it: `>` ends a target, CRLF a line.
_HEAD = re.compile(
    rb"Content-ID: (<([0-9]+)\.[!-=?-~]*>)\r\n"
    rb'Link: <([!-=?-~]*)>; rel="about"\r\n'
    rb'Link: <([!-=?-~]*)>; rel="self"\r\n'
    rb"Event-Type: http-equiv=(PUT|POST|PATCH|DELETE)\r\n"
    rb"(?:Content-Type: ([\t -~]*)\r\n)?"
    rb"(?:Last-Modified: ([ -~]*)\r\n)?"
    rb"Content-Length: ([0-9]+)\r\n"
    rb"((?:[!-~][\t -~]*\r\n)*)\r\n"
)
_LENGTH = 7
"""Which group of it is Content-Length."""
_OWN_HEADERS = frozenset(
    ("content-id", "link", "event-type", "content-type", "last-modified", "content-length")
)


class Document(NamedTuple):
    """A feed document, or what there is yet of one; `name` is its file or URL, for messages.

    `whole` tells that it ends with the closing delimiter.
    """

    name: str
    boundary: str
    data: bytes
    whole: bool


class Entries(NamedTuple):
    """Consecutive event entries by column, the first of them with ordinal `first`.

    Texts are the bytes that stand in the document. `headers` are the lines of an entry that have no column,
    each with its CRLF.
    """

    first: int
    content_id: Sequence[bytes]
    target: Sequence[bytes]
    entry: Sequence[bytes]
    method: Sequence[bytes]
    content_type: Sequence[bytes | None]
    last_modified: Sequence[bytes | None]
    headers: Sequence[bytes]
    body: Sequence[bytes]

    @property
    def end(self) -> int:
        """The ordinal behind the last entry."""
        return self.first + len(self.content_id)

    def within(self, start: int, end: int) -> Entries:
        """Those from ordinal `start` to before `end`."""
        if start <= self.first and self.end <= end:
            return self
        cut = slice(max(start - self.first, 0), max(end - self.first, 0))
        columns: list[Any] = [column[cut] for column in self[1:]]
        return Entries(self.first + cut.start, *columns)


def read_entries(document: Document, feed: FeedLinks) -> Entries:
    """The event entries of a document of `feed`, which has at least one.

    Raises DecodeError if they are anything else, or there is a hole in the series of their ordinals.
    """
    found = _split(document)
    if found is None:
        parts = [_fields(part) for part in read_parts(document.boundary, document.data)]
        if not parts:
            raise DecodeError("it has no event")
        found = [list(column) for column in zip(*parts, strict=True)]
    content_ids, ordinals, targets, entries, *others = found
    first = int(ordinals[0])
    link = feed.entry(0).removesuffix("0").encode()
    series = range(first, first + len(ordinals))
    if entries != [b"%b%d" % (link, n) for n in series] or [int(n) for n in ordinals] != list(series):
        raise DecodeError(f"its events are not one series of {feed.base} from {first} on")
    return Entries(first, content_ids, targets, entries, *others)


def _split(document: Document) -> list[list[Any]] | None:
    """The columns if the document is a gateway's own bytes, else None.

    Each body is as long as its Content-Length, or else it held the delimiter.
    """
    line = delimiter(document.boundary)
    data = document.data
    end = len(data) - (len(closing_delimiter(document.boundary)) if document.whole else 0)
    if not data.startswith(line) or not data.endswith(b"\r\n", 0, max(end, 0)):
        return None
    if document.whole and data[end:] != closing_delimiter(document.boundary):
        return None
    pieces = data[len(line) : end - 2].split(b"\r\n" + line)
    heads = [_HEAD.match(piece) for piece in pieces]
    if None in heads:
        return None
    columns = [list(column) for column in zip(*[head.groups() for head in heads if head], strict=True)]
    bodies = [piece[head.end() :] for piece, head in zip(pieces, heads, strict=True) if head]
    lengths = columns.pop(_LENGTH)
    if [int(length) for length in lengths] != [len(body) for body in bodies]:
        return None
    return [*columns, bodies]


def _fields(part: Part) -> tuple[bytes | None, ...]:
    """What the columns have of a part in any legal form; raises DecodeError if no gateway wrote it."""
    content_id = part.value("Content-ID") or ""
    identity = parse_content_id(content_id)
    method = (part.value("Event-Type") or "").removeprefix("http-equiv=")
    if identity is None or part.about is None or part.entry is None or method not in METHODS:
        raise DecodeError(f"the part {content_id[:200]!r} is not an event entry of a gateway")
    headers = "".join(
        f"{name}: {value}\r\n" for name, value in part.headers if name.lower() not in _OWN_HEADERS
    )
    texts = (content_id, str(identity.ordinal), part.about, part.entry, method)
    told = (part.value("Content-Type"), part.value("Last-Modified"))
    return (
        *(text.encode() for text in texts),
        *(None if text is None else text.encode() for text in told),
        headers.encode(),
        part.body,
    )


def batches(partition: str, documents: Iterable[Entries]) -> Iterator[pa.RecordBatch]:
    """Arrow batches of all entries in order, within BATCH_ROWS_MAX, and BATCH_BYTES_MAX or one event."""
    gathered: list[Entries] = []
    rows = size = 0
    for document in documents:
        for entries in _bounded(document):
            more = _size(entries)
            if gathered and (rows + len(entries.body) > BATCH_ROWS_MAX or size + more > BATCH_BYTES_MAX):
                yield _batch(partition, gathered)
                gathered, rows, size = [], 0, 0
            gathered.append(entries)
            rows += len(entries.body)
            size += more
    if gathered:
        yield _batch(partition, gathered)


def _bounded(entries: Entries) -> Iterator[Entries]:
    """The entries in pieces that are small enough for a batch."""
    count = len(entries.body)
    if count == 1 or (count <= BATCH_ROWS_MAX and _size(entries) <= BATCH_BYTES_MAX):
        yield entries
    else:
        middle = (entries.first + entries.end) // 2
        yield from _bounded(entries.within(entries.first, middle))
        yield from _bounded(entries.within(middle, entries.end))


def _size(entries: Entries) -> int:
    return sum(map(len, entries.body)) + sum(map(len, entries.target)) + sum(map(len, entries.headers))


def _batch(partition: str, gathered: list[Entries]) -> pa.RecordBatch:
    first, end = gathered[0].first, gathered[-1].end
    content_id, target, entry, method, content_type, last_modified, headers, body = (
        list(chain.from_iterable(columns))
        for columns in zip(*[entries[1:] for entries in gathered], strict=True)
    )
    times = [None if value is None else _microseconds(value) for value in last_modified]
    pairs = [_pairs(lines) if lines else () for lines in headers]
    columns = [
        pa.repeat(pa.scalar(partition), end - first),
        range(first, end),
        *(content_id, target, method, content_type, times, entry, pairs, body),
    ]
    arrays = [
        column if isinstance(column, pa.Array) else pa.array(column, field.type)
        for column, field in zip(columns, ARROW_SCHEMA, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=ARROW_SCHEMA)


@lru_cache(maxsize=4096)
def _microseconds(date: bytes) -> int | None:
    milliseconds = parse_http_date(date.decode("latin-1"))
    return None if milliseconds is None else milliseconds * 1000


def _pairs(lines: bytes) -> list[tuple[str, str]]:
    found = []
    for line in lines.decode("latin-1").split("\r\n")[:-1]:
        name, _, value = line.partition(":")
        found.append((name, value.strip(" \t")))
    return found
