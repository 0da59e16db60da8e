"""The OASIS event-streams extensions, csprd01: partitions, offsets and the delivery-annotations filter.

The filter is inclusive (2.2.2.1), so a consumer that resumes asks for the last message it has: it gets that
one again, which proves that the log is still the same and has lost nothing in between.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from gateway.core.errors import DecodeError, LogUnavailable
from gateway.core.message import Message, Symbol

from ..codec import Described

PARTITION = Symbol("event-streams-partition")
OFFSET = Symbol("event-streams-offset")
TIMESTAMP = Symbol("event-streams-timestamp")
GROUP_KEY = Symbol("event-streams-key")
FILTER = Symbol("amqp:event-streams-delivery-annotations-filter")
FILTER_NAME = Symbol("event-streams-offset")
EARLIEST = Symbol("@earliest")


class PartitionInfo(NamedTuple):
    """A partition as the node describes it; the offsets are None while it is empty."""

    partition: str
    earliest_offset: str | None
    latest_offset: str | None


def info_address(log: str) -> str:
    """The source of the runtime information of a log."""
    return f"{log}/$info"


def parse_info(message: Message) -> list[PartitionInfo]:
    """The partitions in a runtime information message; raises DecodeError."""
    body = message.body
    try:
        return [
            PartitionInfo(
                str(entry["partition"]),
                _optional_text(entry["earliest-offset"]),
                _optional_text(entry["latest-offset"]),
            )
            for entry in body["partitions"]
        ]
    except (TypeError, KeyError) as error:
        raise DecodeError(f"the runtime information of the log is not understood: {error}") from None


def link_properties(partition: str) -> dict[Any, Any]:
    """Ask for a partition (2.1.1)."""
    return {PARTITION: Symbol(partition)}


def filters_from(offset: str | None) -> dict[Any, Any]:
    """The filter set that starts at `offset`, included, or at the earliest message there is (2.2.2.1)."""
    start = EARLIEST if offset is None else Symbol(offset)
    return {FILTER_NAME: Described(FILTER, {OFFSET: start})}


def check_attached(partition: str, properties: dict[Any, Any], filters: Any) -> None:
    """Raise LogUnavailable unless the node gave what was asked for: a dropped filter delivers others."""
    if properties.get(PARTITION) != partition:
        raise LogUnavailable(f"asked for partition {partition}, the node gave {properties.get(PARTITION)!r}")
    if not isinstance(filters, dict) or FILTER_NAME not in filters:
        raise LogUnavailable("the node does not know the event-streams delivery-annotations filter")


def offset_and_time(annotations: dict[Any, Any] | None) -> tuple[str, int | None]:
    """Where a message stands in its partition, and when it got there in ms; raises DecodeError."""
    annotations = annotations or {}
    offset = annotations.get(OFFSET)
    if not isinstance(offset, str) or not offset:
        raise DecodeError("the message has no event-streams-offset delivery annotation")
    time = annotations.get(TIMESTAMP)
    return str(offset), int(time) if isinstance(time, int) else None


def _optional_text(value: Any) -> str | None:
    return None if value is None else str(value)
