"""Snapshots: the index, and the parts that hold the entities (draft, "Snapshots").

A snapshot holds what the events up to a vector have made: for each partition, those up to one ordinal.
Its index names the vector, so that a reader goes on behind exactly these events. Its parts are multipart
documents with one entity each part, cut by partition and then by a hash of the target. Their bytes depend
on the entities alone, and not on when, where or in how many runs they were made.

In a folder, `{snapshots}/{log}/{id}/` holds a snapshot: its parts as files 0, 1, 2, … and `index.json`.
It appears under this name when all of it is there.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar
from zlib import crc32

from .errors import DecodeError, InvalidEvent
from .event import parse_name, parse_target
from .links import link_by_relation
from .multipart import Part, closing_delimiter, delimiter, read_parts
from .state import UNKNOWN, UNKNOWN_ETAG, Digest, Entity, Kind, etag_of
from .times import http_date

PACKAGE = "multipart/package"
INDEX = "index.json"
"""The file that makes a folder a snapshot."""
VIA = "via"
"""The relation of an entity to the event that made it what it is: its entry link (RFC 4287, 4.2.7.2)."""

PART_ENTITIES = 10_000
PART_BYTES = 16 * 1024 * 1024
"""A partition has so many parts that they hold this much on average, and half of it at the least."""
BUCKETS_MAX = 65_536
BOUNDARY_HEX = 40

_T = TypeVar("_T")
_CRC_BITS = 32
_ID = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}Z")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_FRAMING = ("Content-Disposition", "Content-Length")
_VIA = f'>; rel="{VIA}"'


def parse_snapshot_id(text: str) -> str:
    """`text` if it can be the id of a snapshot of ours, else raises DecodeError."""
    if _ID.fullmatch(text) is None:
        raise DecodeError(f"{text[:80]!r} is not the id of a snapshot, as in 2015-06-23T00:36:45.885Z")
    return text


def buckets_for(entities: int, body_bytes: int) -> int:
    """Into how many parts a partition is cut: a power of two, by what it holds and nothing else."""
    wanted = max(-(-entities // PART_ENTITIES), -(-body_bytes // PART_BYTES), 1)
    return min(1 << (wanted - 1).bit_length(), BUCKETS_MAX)


def bucket_of(target: str, buckets: int) -> int:
    """The part of its partition that a target belongs to: the leading bits of the CRC-32 of its bytes.

    With twice as many parts, each is cut in two.
    """
    return crc32(target.encode()) >> (_CRC_BITS - (buckets.bit_length() - 1))


class Held(NamedTuple):
    """An entity in a snapshot, present or unknown, and the event that made it what it is.

    `entry` is that event's entry link and `last_modified` the text of its header; None where it is not told.
    `validator` is the ETag that the part's own server gave, which is not `entity.etag` on other servers.
    """

    target: str
    entity: Entity
    entry: str | None
    last_modified: str | None
    validator: str | None = None


def held(target: str, entity: Entity, entry: str, modified_ms: int | None) -> Held:
    """What is held of an entity whose event the log added at `modified_ms`."""
    modified = None if modified_ms is None else http_date(modified_ms)
    return Held(target, entity, entry, modified, entity.etag)


def part_boundary(log: str, partition: str, digest: Digest) -> str:
    """The boundary of the part with that digest.

    It depends on all of the part's content, so that nobody can publish an entity that holds it.
    """
    seed = "\0".join((log, partition, str(digest.entities), digest.hex()))
    return hashlib.sha256(seed.encode()).hexdigest()[:BOUNDARY_HEX]


def render_held(boundary: str, item: Held) -> bytes:
    """An entity in a part, behind its delimiter (draft, "Snapshot Part Syntax Example").

    Raises ValueError if it holds the delimiter.
    """
    entity = item.entity
    head = "Content-Disposition: inline\r\n"
    if entity.content_type is not None:
        head += f"Content-Type: {entity.content_type}\r\n"
    head += f"Content-Location: {item.target}\r\nETag: {entity.etag}\r\n"
    if item.last_modified is not None:
        head += f"Last-Modified: {item.last_modified}\r\n"
    if item.entry is not None:
        head += f'Link: <{item.entry}>; rel="{VIA}"\r\n'
    head += f"Content-Length: {len(entity.body)}\r\n"
    for name, value in entity.extra_headers:
        head += f"{name}: {value}\r\n"
    content = b"%s\r\n%s\r\n" % (head.encode("ascii"), entity.body)
    if b"--" + boundary.encode() in content:
        raise ValueError(f"the entity {item.target} holds the delimiter of its part")
    return delimiter(boundary) + content


def render_part(boundary: str, items: Iterable[Held]) -> Iterator[bytes]:
    """The document with `items`, which come in ascending order of target; raises ValueError otherwise."""
    last = ""
    for item in items:
        if item.target <= last:
            raise ValueError(f"{item.target} comes behind {last}")
        last = item.target
        yield render_held(boundary, item)
    yield closing_delimiter(boundary)


def read_part(boundary: str, document: bytes) -> Iterator[Held]:
    """The entities in a part of any server; raises DecodeError if that is malformed or cut short.

    Their ETags are made from what they hold. A target is what Content-Location says, as written.
    """
    # The draft's own example begins without the first delimiter.
    if not document.lstrip(b"\r\n").startswith(b"--" + boundary.encode()):
        document = delimiter(boundary) + document
    for part in read_parts(boundary, document):
        yield _held_in(part)


def _held_in(part: Part) -> Held:
    target = content_type = etag = modified = entry = None
    extra: list[tuple[str, str]] = []
    for pair in part.headers:
        name, value = pair
        # The names come in one spelling, whatever was sent; of two headers of a name the first one counts.
        if name == "Content-Location":
            target = target or value
        elif name == "Content-Type":
            content_type = value if content_type is None else content_type
        elif name == "Etag":
            etag = value if etag is None else etag
        elif name == "Last-Modified":
            modified = value if modified is None else modified
        elif name == "Link":
            entry = entry or _via(value)
        elif name not in _FRAMING:
            extra.append(pair)
    if not target:
        raise DecodeError("an entity has no Content-Location")
    if etag == UNKNOWN_ETAG and content_type is None and not part.body:
        entity = UNKNOWN
    else:
        told = etag_of(content_type, part.body)
        entity = Entity(Kind.PRESENT, told, content_type, part.body, tuple(extra))
    return Held(target, entity, entry, modified, etag)


def _via(link: str) -> str | None:
    # The form that this project writes needs no parser.
    if link[-len(_VIA) :] == _VIA and link[:2] == "</" and ">" not in (entry := link[1 : -len(_VIA)]):
        return entry
    return link_by_relation([link], VIA)


@dataclass(frozen=True, slots=True)
class FeedPoint:
    """The last event of a partition that a snapshot covers, and where to go on behind it.

    `document` is the path of the feed document that holds the event, or will when it is full: what follows
    the event there, and behind its next-archive, is what the snapshot lacks.
    """

    partition: str
    last: int
    entry: str
    content_id: str
    document: str


@dataclass(frozen=True, slots=True)
class SnapshotPart:
    """A part: its path, its size in bytes, its SHA-256 in hex, and the entities in it with their digest."""

    uri: str
    partition: str
    size: int
    sha256: str
    boundary: str
    count: int
    digest: str

    @property
    def content_type(self) -> str:
        """The Content-Type of the part."""
        return f"{PACKAGE}; boundary={self.boundary}"


@dataclass(frozen=True, slots=True)
class DeltaTable:
    """The version of a Delta table that holds what the snapshot covers.

    `path` is below the folder of all snapshots, or a URI.
    """

    path: str
    version: int


@dataclass(frozen=True, slots=True)
class SnapshotIndex:
    """The index of a snapshot of ours (draft, "Snapshot Index Syntax Example", and what goes beyond it).

    `started` and `completed` are milliseconds since the Unix epoch. A partition that had no event is not
    among `feeds`. Parts come by partition, then by their place in it; an empty one is left out.
    """

    id: str
    log: str
    started: int
    completed: int
    feeds: tuple[FeedPoint, ...]
    parts: tuple[SnapshotPart, ...]
    entities: int
    digest: str
    delta: dict[str, DeltaTable]

    def to_json(self) -> bytes:
        """The index as a document."""
        content: dict[str, Any] = {
            "id": self.id,
            "log": self.log,
            "started": self.started,
            "completed": self.completed,
            "uris": [part.uri for part in self.parts],
            "feeds": [_fields(feed) for feed in self.feeds],
            "parts": [_fields(part) for part in self.parts],
            "entities": self.entities,
            "digest": self.digest,
            "delta": {name: _fields(table) for name, table in self.delta.items()},
        }
        return json.dumps(content, indent=2).encode() + b"\n"

    def feed(self, partition: str) -> FeedPoint | None:
        """How far the snapshot covers that partition, or None if it had no event."""
        return next((feed for feed in self.feeds if feed.partition == partition), None)


def read_index(document: bytes) -> SnapshotIndex:
    """The index of ours in `document`; raises DecodeError if it is none, or contradicts itself."""
    try:
        content = json.loads(document)
        index = SnapshotIndex(
            id=parse_snapshot_id(_typed(content, "id", str)),
            log=parse_name(_typed(content, "log", str), "log"),
            started=_typed(content, "started", int),
            completed=_typed(content, "completed", int),
            feeds=tuple(_feed_point(item) for item in _typed(content, "feeds", list)),
            parts=tuple(_part(item) for item in _typed(content, "parts", list)),
            entities=_typed(content, "entities", int),
            digest=_hex(content, "digest"),
            delta={
                str(name): DeltaTable(_typed(item, "path", str), _typed(item, "version", int))
                for name, item in _typed(content, "delta", dict).items()
            },
        )
        uris = _typed(content, "uris", list)
    except (ValueError, KeyError, TypeError, RecursionError, InvalidEvent) as error:
        raise DecodeError(f"not the index of a snapshot: {error}") from error
    if uris != [part.uri for part in index.parts]:
        raise DecodeError("the uris of the index are not those of its parts")
    if sum(part.count for part in index.parts) != index.entities:
        raise DecodeError("the entities of the index are not those of its parts")
    total = sum((Digest(part.count, int(part.digest, 16)) for part in index.parts), Digest())
    if total.hex() != index.digest:
        raise DecodeError("the digest of the index is not that of its parts")
    if len({feed.partition for feed in index.feeds}) != len(index.feeds):
        raise DecodeError("a partition is twice among the feeds of the index")
    return index


def _feed_point(item: object) -> FeedPoint:
    return FeedPoint(
        partition=parse_name(_typed(item, "partition", str), "partition"),
        last=_typed(item, "last", int),
        entry=parse_target(_typed(item, "entry", str)),
        content_id=_typed(item, "content_id", str),
        document=parse_target(_typed(item, "document", str)),
    )


def _part(item: object) -> SnapshotPart:
    return SnapshotPart(
        uri=parse_target(_typed(item, "uri", str)),
        partition=parse_name(_typed(item, "partition", str), "partition"),
        size=_typed(item, "size", int),
        sha256=_hex(item, "sha256"),
        boundary=_typed(item, "boundary", str),
        count=_typed(item, "count", int),
        digest=_hex(item, "digest"),
    )


def _hex(item: object, name: str) -> str:
    text = _typed(item, name, str)
    if _DIGEST.fullmatch(text) is None:
        raise ValueError(f"{name} is not 64 hex digits")
    return text


def _typed(item: object, name: str, kind: type[_T]) -> _T:
    value = item[name] if isinstance(item, dict) else None
    if not isinstance(value, kind) or isinstance(value, bool) or (isinstance(value, int) and value < 0):
        raise ValueError(f"{name} is not what it must be")
    return value


def _fields(item: FeedPoint | SnapshotPart | DeltaTable) -> dict[str, Any]:
    return {name: getattr(item, name) for name in item.__slots__}
