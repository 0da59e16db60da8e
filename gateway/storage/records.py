"""What is recorded of a target that had state, and its stored form: bytes of one length."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Final, NamedTuple

from gateway.core.state import DELETED, UNKNOWN, Kind


class EntityRecord(NamedTuple):
    """How a target stands, since which event, and where that is.

    `start` and `length` are the place of the event's part in its page. `patched` tells that the body is not
    the event's: a patch has made it. `first_ordinal` is that of the event which gave the target its first
    state.
    """

    target: str
    kind: Kind
    etag: str
    ordinal: int
    modified_ms: int | None
    start: int
    length: int
    patched: bool
    first_ordinal: int


_LAYOUT: Final = Struct(">3q2IB16s")
"""First ordinal, ordinal, time, start, length, kind, and the bytes that the ETag spells. Being the first, and
never negative, first ordinals compare as the bytes do."""

pack: Final = _LAYOUT.pack
RECORD_BYTES: Final = _LAYOUT.size
PATCHED: Final = 4
"""Added to the kind."""
NO_TIME: Final = -(1 << 63)
_ORDINAL_END: Final = 1 << 63
# Both lookups cost as much as all the rest.
_KINDS: Final = {kind.value: kind for kind in Kind}
_PRESENT: Final = Kind.PRESENT
_OTHER_ETAGS: Final = {Kind.DELETED: DELETED.etag, Kind.UNKNOWN: UNKNOWN.etag}


def spelled(kind: Kind, etag: str) -> bytes:
    """The bytes that an ETag spells in hex; where there is no body, the kind alone tells the ETag."""
    return bytes.fromhex(etag[1:-1]) if kind is Kind.PRESENT else b""


def packed(record: EntityRecord) -> bytes:
    """The stored form; the target is kept beside it."""
    _, kind, etag, ordinal, modified_ms, start, length, patched, first = record
    time = NO_TIME if modified_ms is None else modified_ms
    return pack(first, ordinal, time, start, length, kind + PATCHED * patched, spelled(kind, etag))


def unpacked(target: str, stored: bytes) -> EntityRecord:
    """The record that `packed` has made bytes of."""
    first, ordinal, time, start, length, state, digest = _LAYOUT.unpack(stored)
    kind = _KINDS[state % PATCHED]
    etag = f'"{digest.hex()}"' if kind is _PRESENT else _OTHER_ETAGS[kind]
    modified_ms = None if time == NO_TIME else time
    return EntityRecord(target, kind, etag, ordinal, modified_ms, start, length, state >= PATCHED, first)


def ordinal_bytes(ordinal: int) -> bytes:
    """What the stored forms with this first ordinal, or a greater one, are not less than."""
    return ordinal.to_bytes(8)


def started_in(
    records: Iterable[tuple[str, bytes]], start: int, end: int = _ORDINAL_END
) -> Iterator[tuple[str, bytes]]:
    """Those targets and stored forms whose first ordinal is in [start, end)."""
    low, high = ordinal_bytes(start), ordinal_bytes(end)
    return (pair for pair in records if low <= pair[1] < high)
