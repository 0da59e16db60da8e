"""An AMQP 1.0 message as values: its sections, and nothing of how they travel (AMQP 1.0 part 3, 3.2).

The section codec in `gateway.amqp` makes these from bytes; the mapping beside this module makes events
from them. Two AMQP types have no Python twin and keep their own class, because they mean something
else than the text or number that they are made of: `Symbol` and `Timestamp`.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple


class Symbol(str):
    """An AMQP symbol: ASCII text from a constrained domain (AMQP 1.0 part 1, 1.6.21)."""

    __slots__ = ()


class Timestamp(int):
    """An AMQP timestamp: milliseconds since the Unix epoch, UTC (AMQP 1.0 part 1, 1.6.17)."""


class BodyKind(Enum):
    """Which of the three kinds of body sections a message has (AMQP 1.0 part 3, 3.2)."""

    NONE = "none"
    DATA = "data"
    SEQUENCE = "amqp-sequence"
    VALUE = "amqp-value"


class Properties(NamedTuple):
    """The immutable properties of a message (AMQP 1.0 part 3, 3.2.4)."""

    message_id: Any = None
    user_id: bytes | None = None
    to: str | None = None
    subject: str | None = None
    reply_to: str | None = None
    correlation_id: Any = None
    content_type: str | None = None
    content_encoding: str | None = None
    absolute_expiry_time: Timestamp | None = None
    creation_time: Timestamp | None = None
    group_id: str | None = None
    group_sequence: int | None = None
    reply_to_group_id: str | None = None


class Message(NamedTuple):
    """The sections of one message; a section that is absent is None.

    `body` is a list of bytes for DATA (one for each section), a list of lists for SEQUENCE (likewise),
    the value itself for VALUE, and None for NONE. `header` is the list of its fields as they came.
    """

    header: list[Any] | None = None
    delivery_annotations: dict[Any, Any] | None = None
    message_annotations: dict[Any, Any] | None = None
    properties: Properties | None = None
    application_properties: dict[Any, Any] | None = None
    body_kind: BodyKind = BodyKind.NONE
    body: Any = None
    footer: dict[Any, Any] | None = None
