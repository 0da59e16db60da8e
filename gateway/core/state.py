"""The state of an entity and the digest of many: what events make of a target (design, README).

Everything that keeps current state calls these functions (the gateway, the snapshot jobs, the client), so
that all of them agree byte for byte. PUT replaces, DELETE removes, POST changes nothing. A PATCH is applied
where its media type is known and the entity is JSON; after any other patch, and after one that fails, nobody
can tell from the feed what the entity is: it is unknown until the next PUT or DELETE.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple

from .event import Event, Method
from .jsontext import NotJson, canonical, parse
from .patch import PATCHED_BYTES_MAX, PatchFailed, json_patch, merge_patch

if TYPE_CHECKING:
    from hashlib import _Hash as Hash

JSON_TYPE = "application/json"
MERGE_PATCH_TYPE = "application/merge-patch+json"
JSON_PATCH_TYPE = "application/json-patch+json"
UNKNOWN_ETAG = '"unknown"'

_CONTENT_ENCODING = "content-encoding"
_MASK = (1 << 256) - 1
_SPELLED_BYTES = 16


class Kind(IntEnum):
    """What is known of an entity; the values are stored."""

    PRESENT = 1
    DELETED = 2
    UNKNOWN = 3


class Entity(NamedTuple):
    """The state of a target that had an event; None stands for one that never had state.

    `etag` has its quotes and is empty where the entity is deleted. `content_type`, `body` and
    `extra_headers` are those of the PUT; a patch leaves the entity without extra headers, as they told of
    bytes that are no more.
    """

    kind: Kind
    etag: str
    content_type: str | None
    body: bytes
    extra_headers: tuple[tuple[str, str], ...] = ()


UNKNOWN = Entity(Kind.UNKNOWN, UNKNOWN_ETAG, None, b"")
DELETED = Entity(Kind.DELETED, "", None, b"")

_EMPTY = sha256()
"""To copy a hash is cheaper than to begin one."""
# Looking up a member of an enumeration costs as much as a call.
_PUT = Method.PUT
_PRESENT = Kind.PRESENT
_SETTLED_DELETE = Kind.DELETED, "", b""


def etag_of(content_type: str | None, body: bytes) -> str:
    """The strong ETag of a representation (RFC 9110, 8.8.3): a hash of its type and its bytes, in quotes.

    The first 32 hex digits of SHA-256(content type, NUL, body); no content type counts as an empty one.
    """
    return f'"{_spelled(content_type, body).hex()}"'


def _spelled(content_type: str | None, body: bytes) -> bytes:
    state = _begun(content_type).copy()
    state.update(body)
    return state.digest()[:_SPELLED_BYTES]


@lru_cache(maxsize=256)
def _begun(content_type: str | None) -> Hash:
    """The hash of what comes before a body."""
    return sha256(f"{content_type or ''}\0".encode())


def settled(events: Iterable[Event]) -> list[tuple[Kind, str, bytes] | None]:
    """Kind, ETag, and the bytes that it spells in hex, of the state that each makes whatever was before.

    None where that counts. All that most events need: what `apply` gives is then `apply(None, event)`. Many
    at once, as between other steps each hash finds the processor's caches full of these.
    """
    states: list[tuple[Kind, str, bytes] | None] = []
    for method, _, content_type, body, _, _ in events:
        if method is _PUT:
            spelled = _spelled(content_type, body)
            states.append((_PRESENT, f'"{spelled.hex()}"', spelled))
        else:
            states.append(_SETTLED_DELETE if method is Method.DELETE else None)
    return states


def apply(entity: Entity | None, event: Event) -> Entity | None:
    """What `event` makes of its target's `entity`: the same object where it changes nothing.

    None is a target that never had state, which only a POST leaves so. Raises nothing: an event that cannot
    be applied gives UNKNOWN.
    """
    (state,) = settled((event,))
    if state is None:
        return _patched(entity, event) if event.method is Method.PATCH else entity
    kind, etag, _ = state
    if kind is Kind.DELETED:
        return DELETED
    return Entity(kind, etag, event.content_type, event.body, event.extra_headers)


class Digest(NamedTuple):
    """How many entities there are, and the sum of their terms modulo 2^256: the same in any order.

    Unknown entities are among them, deleted ones are not. The digest of a log is the sum over its partitions.
    """

    entities: int = 0
    total: int = 0

    def with_change(self, target: str, before_etag: str, after_etag: str) -> Digest:
        """The digest once `target` went from one ETag to the other; an empty one is an entity not there."""
        return self.with_changes(((target, before_etag, after_etag),))

    def with_changes(self, changes: Iterable[tuple[str, str, str]]) -> Digest:
        """`with_change` for many: target, ETag before, ETag after."""
        entities, total = self
        for target, before_etag, after_etag in changes:
            if before_etag == after_etag:
                continue
            if before_etag:
                entities -= 1
                total -= term(target, before_etag)
            if after_etag:
                entities += 1
                total += term(target, after_etag)
        return Digest(entities, total & _MASK)

    def __add__(self, other: Digest) -> Digest:  # type: ignore[override]  # no use for joined tuples
        return Digest(self.entities + other.entities, (self.total + other.total) & _MASK)

    def hex(self) -> str:
        """The sum as 64 hex digits."""
        return f"{self.total:064x}"


def term(target: str, etag: str) -> int:
    """What one entity adds to a digest: SHA-256(target, NUL, ETag with its quotes) as a number."""
    state = _EMPTY.copy()
    state.update(f"{target}\0{etag}".encode())
    return int.from_bytes(state.digest())


def _patched(entity: Entity | None, event: Event) -> Entity:
    patch_type = _media_type(event.content_type)
    if patch_type not in (MERGE_PATCH_TYPE, JSON_PATCH_TYPE) or _encoded(event.extra_headers):
        return UNKNOWN
    # Everybody who keeps state does this work for every patch.
    if len(event.body) > PATCHED_BYTES_MAX or (entity is not None and len(entity.body) > PATCHED_BYTES_MAX):
        return UNKNOWN
    try:
        if entity is None or entity.kind == Kind.DELETED:
            if patch_type == JSON_PATCH_TYPE:
                return UNKNOWN  # there is no document for its operations
            content_type: str | None = JSON_TYPE
            value = merge_patch(None, parse(event.body))
        else:
            # An entity that is unknown is not JSON: it has no content type.
            if not _is_json(entity):
                return UNKNOWN
            content_type = entity.content_type
            change = merge_patch if patch_type == MERGE_PATCH_TYPE else json_patch
            value = change(parse(entity.body), parse(event.body))
    except (NotJson, PatchFailed):
        return UNKNOWN
    body = canonical(value)
    if len(body) > PATCHED_BYTES_MAX:
        return UNKNOWN
    return Entity(Kind.PRESENT, etag_of(content_type, body), content_type, body)


def _is_json(entity: Entity) -> bool:
    """Whether the entity's bytes are to be read as JSON: as its type says, and in no content coding.

    `text/json` was never registered, but it is in use, and browsers take it for JSON too.
    """
    media_type = _media_type(entity.content_type)
    return (media_type in (JSON_TYPE, "text/json") or media_type.endswith("+json")) and not _encoded(
        entity.extra_headers
    )


def _media_type(content_type: str | None) -> str:
    """Type and subtype in lower case, without parameters (RFC 9110, 8.3.1)."""
    return (content_type or "").partition(";")[0].strip(" \t").lower()


def _encoded(headers: tuple[tuple[str, str], ...]) -> bool:
    """Whether the body is in a content coding, such as gzip (RFC 9110, 8.4)."""
    return any(name.lower() == _CONTENT_ENCODING for name, _ in headers)
