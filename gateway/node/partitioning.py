"""Which partition an event goes to (event-streams csprd01, 2.1).

The producer decides where it says so: by the link, which is then bound to one partition, or by a
delivery annotation. Else events with the same grouping key go to the same partition, by a hash that
depends on nothing but the key and the number of partitions. Else they are spread in turn.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Any

from gateway.amqp.codec import decode_value, encode_value
from gateway.amqp.sections import MESSAGE_ANNOTATIONS, PROPERTIES, Span
from gateway.core.message import Properties, Symbol
from gateway.node.errors import Refused

PARTITION = Symbol("event-streams-partition")
"""As a link property and as a delivery annotation."""

GROUP_KEYS = ("event-streams-key", "event-streams-group-key")
"""The grouping key's message annotation: 2.1.3 defines the first and is headed by the second."""

_GROUP_ID = Properties._fields.index("group_id")


class Partitioner:
    """Chooses partitions for the events of one log."""

    def __init__(self, log: str, names: Iterable[str]) -> None:
        self._log = log
        self._positions = {name: position for position, name in enumerate(names)}
        self._names = list(self._positions)
        self._turn = 0

    def position(self, name: Any) -> int:
        """The partition that a peer names; raises Refused (amqp:not-found) if there is none."""
        position = self._positions.get(name) if isinstance(name, str) else None
        if position is None:
            shown = name if isinstance(name, str) else repr(name)
            raise Refused(
                "amqp:not-found",
                f"log {self._log} has no partition {shown[:80]}; it has {self._listed()}",
            )
        return position

    def choose(
        self,
        data: bytes,
        spans: list[Span],
        annotations: dict[Any, Any] | None,
        *,
        bound: int | None,
    ) -> int:
        """The partition of a message, given its sections and its delivery annotations.

        Raises Refused if it asks for a partition that does not exist or that its link is not bound
        to, and DecodeError if the sections that must be looked at are malformed.
        """
        wanted = annotations.get(PARTITION) if annotations else None
        if wanted is not None:
            position = self.position(wanted)
            if bound is not None and position != bound:
                raise Refused(
                    "amqp:not-allowed",
                    f"the event asks for partition {wanted}, its link is bound to {self._names[bound]}",
                )
            return position
        if bound is not None:
            return bound
        count = len(self._names)
        if count == 1:
            return 0
        key = group_key(data, spans)
        if key is not None:
            return int.from_bytes(blake2b(key, digest_size=8).digest()) % count
        self._turn = (self._turn + 1) % count
        return self._turn

    def _listed(self) -> str:
        if len(self._names) == 1:
            return f"only {self._names[0]}"
        return f"{self._names[0]} to {self._names[-1]}"


def group_key(data: bytes, spans: list[Span]) -> bytes | None:
    """The grouping key of a message as bytes: its annotation, else its group-id, else None."""
    group_id = None
    for span in spans:
        if span.code == MESSAGE_ANNOTATIONS:
            annotations, _ = decode_value(data, span.value)
            for name in GROUP_KEYS:
                if annotations.get(name) is not None:
                    return _key_bytes(annotations[name])
        elif span.code == PROPERTIES:
            fields, _ = decode_value(data, span.value)
            group_id = fields[_GROUP_ID] if len(fields) > _GROUP_ID else None
            break
    return None if group_id is None else _key_bytes(group_id)


def _key_bytes(key: Any) -> bytes:
    return key.encode() if isinstance(key, str) else encode_value(key)
