"""What a receiver wants of a partition: where to start, and which events (csprd01, 2.2.2).

A source carries a set of filters, each a described value under a key of the client's choice; the
descriptor says what kind of filter it is, and all of them must match. A kind that is not in `_PARSERS`
is left out of the set that the node echoes, so the client sees that it does not apply. A filter of a
known kind that makes no sense refuses the attach.

Offsets and timestamps both rise along a partition, so the events that match are those behind one point.
The point is looked up once; the timestamp must still be compared where no event is that late yet.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from gateway.amqp.codec import Described, ULong
from gateway.core.message import Symbol
from gateway.node.errors import Refused
from gateway.node.schema import OFFSET_DIGITS, Entry

OFFSET = "event-streams-offset"
TIMESTAMP = "event-streams-timestamp"


class Edge(Enum):
    """The ends of a log, by the reserved words for them (2.2.1.1)."""

    EARLIEST = "@earliest"
    LATEST = "@latest"


@dataclass(frozen=True, slots=True)
class Start:
    """What one filter asks for: events at or after both, where both are given."""

    offset: int | Edge | None = None
    timestamp: int | None = None


@dataclass(frozen=True, slots=True)
class Wanted:
    """What all filters of a link ask for together."""

    accepted: dict[Any, Any] = field(default_factory=dict)
    """The filters that apply, to be echoed as they came."""
    starts: tuple[Start, ...] = ()

    @property
    def timestamp(self) -> int | None:
        """The least timestamp that matches, if there is one."""
        return max((start.timestamp for start in self.starts if start.timestamp is not None), default=None)

    def sequence(self, *, earliest: int, next_sequence: int) -> int:
        """Where to start by the offsets alone: without any filter, behind the newest event (2.2.2)."""
        if not self.starts:
            return next_sequence
        sequences = {Edge.EARLIEST: earliest, Edge.LATEST: next_sequence, None: earliest}
        return max(
            start.offset if isinstance(start.offset, int) else sequences[start.offset]
            for start in self.starts
        )

    def matches(self, entry: Entry) -> bool:
        """Whether an event behind the start is one that is wanted."""
        timestamp = self.timestamp
        return timestamp is None or entry.timestamp >= timestamp


def parse_filters(filters: Any) -> Wanted:
    """Read a source's filter set; None is no filter. Raises Refused (amqp:invalid-field)."""
    if filters is None:
        return Wanted()
    if not isinstance(filters, dict):
        raise Refused("amqp:invalid-field", "the source's filter is not a map")
    accepted: dict[Any, Any] = {}
    starts: list[Start] = []
    for key, value in filters.items():
        if not isinstance(value, Described):
            continue
        descriptor = value.descriptor
        parse = _PARSERS.get(descriptor) if isinstance(descriptor, (str, int)) else None
        if parse is not None:
            starts.append(parse(value.value))
            shown = ULong(descriptor) if isinstance(descriptor, int) else descriptor
            accepted[key] = Described(shown, value.value)
    return Wanted(accepted, tuple(starts))


def _delivery_annotations(value: Any) -> Start:
    """The delivery-annotations filter (2.2.2.1): value >= filter, as csprd01 has it."""
    if not isinstance(value, dict) or not value:
        raise _invalid(f"is not a map of {OFFSET} or {TIMESTAMP} or both")
    offset: int | Edge | None = None
    timestamp: int | None = None
    for name, wanted in value.items():
        if name == OFFSET:
            offset = _offset(wanted)
        elif name == TIMESTAMP:
            if type(wanted) is bool or not isinstance(wanted, int):
                raise _invalid(f"has an {TIMESTAMP} that is no timestamp")
            timestamp = int(wanted)
        else:
            raise _invalid(f"names {name!r:.80}; only {OFFSET} and {TIMESTAMP} can be asked for")
    return Start(offset, timestamp)


def _offset(wanted: Any) -> int | Edge:
    if wanted in (Edge.EARLIEST.value, Edge.LATEST.value):
        return Edge(wanted)
    if (
        not isinstance(wanted, str)
        or len(wanted) != OFFSET_DIGITS
        or not (wanted.isascii() and wanted.isdigit())
    ):
        raise _invalid(
            f"has the {OFFSET} {wanted!r:.80}, which is neither one that this node has given out nor"
            f" {Edge.EARLIEST.value} or {Edge.LATEST.value}"
        )
    return int(wanted)


def _invalid(problem: str) -> Refused:
    return Refused("amqp:invalid-field", f"the event-streams-delivery-annotations filter {problem}")


_PARSERS: dict[Any, Callable[[Any], Start]] = {
    Symbol("amqp:event-streams-delivery-annotations-filter"): _delivery_annotations,
    0x200: _delivery_annotations,
}
"""By descriptor, symbolic and numeric. Another kind of filter is another pair of lines here."""
