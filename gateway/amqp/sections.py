"""Message sections as bytes and as values, without losing one (AMQP 1.0 part 3, 3.2).

A message is a row of described values: header, delivery annotations, message annotations,
properties, application properties, the body, footer; each at most once and in this order, but the
body may be several data or several amqp-sequence sections. Two readers share this grammar.
`decode_message` makes values of everything. `section_spans` only walks the framing, which is all
that an event log node needs: it stores what it is sent and puts its own delivery annotations in
front of the bare message.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from gateway.amqp.codec import (
    DECODERS,
    NESTING_MAX,
    UByte,
    UInt,
    ULong,
    decode_value,
    encode_value,
)
from gateway.core.errors import DecodeError
from gateway.core.message import BodyKind, Message, Properties, Symbol, Timestamp

HEADER = 0x70
DELIVERY_ANNOTATIONS = 0x71
MESSAGE_ANNOTATIONS = 0x72
PROPERTIES = 0x73
APPLICATION_PROPERTIES = 0x74
DATA = 0x75
AMQP_SEQUENCE = 0x76
AMQP_VALUE = 0x77
FOOTER = 0x78

_NAMES = {
    HEADER: "header",
    DELIVERY_ANNOTATIONS: "delivery-annotations",
    MESSAGE_ANNOTATIONS: "message-annotations",
    PROPERTIES: "properties",
    APPLICATION_PROPERTIES: "application-properties",
    DATA: "data",
    AMQP_SEQUENCE: "amqp-sequence",
    AMQP_VALUE: "amqp-value",
    FOOTER: "footer",
}
_CODES_BY_SYMBOL = {
    "amqp:header:list": HEADER,
    "amqp:delivery-annotations:map": DELIVERY_ANNOTATIONS,
    "amqp:message-annotations:map": MESSAGE_ANNOTATIONS,
    "amqp:properties:list": PROPERTIES,
    "amqp:application-properties:map": APPLICATION_PROPERTIES,
    "amqp:data:binary": DATA,
    "amqp:amqp-sequence:list": AMQP_SEQUENCE,
    "amqp:amqp-value:*": AMQP_VALUE,
    "amqp:footer:map": FOOTER,
}
_LIST = frozenset((0x45, 0xC0, 0xD0))
_MAP = frozenset((0xC1, 0xD1))
_BINARY = frozenset((0xA0, 0xB0))
_CONSTRUCTORS = {
    HEADER: _LIST,
    DELIVERY_ANNOTATIONS: _MAP,
    MESSAGE_ANNOTATIONS: _MAP,
    PROPERTIES: _LIST,
    APPLICATION_PROPERTIES: _MAP,
    DATA: _BINARY,
    AMQP_SEQUENCE: _LIST,
    AMQP_VALUE: frozenset(range(256)),
    FOOTER: _MAP,
}

_REPEATABLE = frozenset((DATA, AMQP_SEQUENCE))
_NONE = type(None)
_PROPERTY_TYPES: tuple[Any, ...] = (
    object,
    (bytes, _NONE),
    (str, _NONE),
    (str, _NONE),
    (str, _NONE),
    object,
    (str, _NONE),
    (str, _NONE),
    (Timestamp, _NONE),
    (Timestamp, _NONE),
    (str, _NONE),
    (int, _NONE),
    (str, _NONE),
)


class Span(NamedTuple):
    """Where a section lies: its descriptor, its value's constructor, and what is behind it."""

    code: int
    start: int
    value: int
    end: int


def decode_message(data: bytes) -> Message:
    """Decode all sections of an encoded message; nothing that it says is dropped.

    A message without a body section has BodyKind.NONE: part 3, 3.2 does not allow it, common
    clients send it. Raises DecodeError for malformed data, for sections that are repeated or out of
    order, and for a section or a property of the wrong type.
    """
    header = delivery = message = properties = application = footer = None
    kind = BodyKind.NONE
    body: Any = None
    at, last, size, decoders = 0, 0, len(data), DECODERS
    try:
        while at < size:
            if data[at] == 0 and data[at + 1] == 0x53:
                code, value_at = data[at + 2], at + 3
                if not HEADER <= code <= FOOTER:
                    raise _unknown_section(hex(code), at)
            else:
                code, value_at = _descriptor(data, at)
            if code <= last and not (code == last and code in _REPEATABLE):
                raise _misplaced(code, last, at)
            if data[value_at] not in _CONSTRUCTORS[code]:
                raise _mistyped(code, value_at)
            value, end = decoders[data[value_at]](data, value_at + 1, 0)
            if code == DATA:
                if last == DATA:
                    body.append(value)
                else:
                    kind, body = BodyKind.DATA, [value]
            elif code == PROPERTIES:
                properties = _properties(value, value_at)
            elif code == DELIVERY_ANNOTATIONS:
                delivery = value
            elif code == MESSAGE_ANNOTATIONS:
                message = value
            elif code == APPLICATION_PROPERTIES:
                application = value
            elif code == HEADER:
                header = value
            elif code == FOOTER:
                footer = value
            elif code == last:
                body.append(value)
            elif DATA <= last <= AMQP_VALUE:
                raise _misplaced(code, last, at)
            elif code == AMQP_SEQUENCE:
                kind, body = BodyKind.SEQUENCE, [value]
            else:
                kind, body = BodyKind.VALUE, value
            last, at = code, end
    except (IndexError, struct.error):
        raise DecodeError("the message ends inside a section", offset=size) from None
    return Message(header, delivery, message, properties, application, kind, body, footer)


def _properties(fields: list[Any], at: int) -> Properties:
    if len(fields) > len(_PROPERTY_TYPES):
        raise DecodeError(f"properties has {len(fields)} fields, not 13 or fewer", offset=at)
    if not all(map(isinstance, fields, _PROPERTY_TYPES)):
        for name, value, kinds in zip(Properties._fields, fields, _PROPERTY_TYPES, strict=False):
            if not isinstance(value, kinds):
                kind = type(value).__name__
                raise DecodeError(f"property {name} has the wrong type, {kind}", offset=at)
    return Properties(*fields)


def _descriptor(data: bytes, at: int) -> tuple[int, int]:
    """The section code and the index of its value, for descriptors in a longer form."""
    if data[at] != 0:
        raise DecodeError("a section does not begin with a descriptor", offset=at)
    descriptor, value_at = decode_value(data, at + 1)
    if isinstance(descriptor, Symbol):
        code = _CODES_BY_SYMBOL.get(descriptor)
    else:
        code = descriptor if type(descriptor) is int and descriptor in _NAMES else None
    if code is None:
        raise _unknown_section(repr(descriptor)[:80], at)
    return code, value_at


def _unknown_section(descriptor: str, at: int) -> DecodeError:
    return DecodeError(f"{descriptor} describes no section of a message", offset=at)


def _misplaced(code: int, last: int, at: int) -> DecodeError:
    if code == last:
        return DecodeError(f"the section {_NAMES[code]} is repeated", offset=at)
    return DecodeError(f"the section {_NAMES[code]} follows {_NAMES[last]}", offset=at)


def _mistyped(code: int, at: int) -> DecodeError:
    return DecodeError(f"the section {_NAMES[code]} is of the wrong type", offset=at)


# Walking the framing


_WIDTHS = {0x4: 0, 0x5: 1, 0x6: 2, 0x7: 4, 0x8: 8, 0x9: 16}
_FIXED_WIDTHS = {
    code: _WIDTHS[code >> 4]
    for code in (
        *range(0x40, 0x46),
        *range(0x50, 0x57),
        *(0x60, 0x61),
        *range(0x70, 0x75),
        *range(0x80, 0x85),
        *(0x94, 0x98),
    )
}
_SIZE_IN_BYTE = frozenset((0xA0, 0xA1, 0xA3, 0xC0, 0xC1, 0xE0))
_SIZE_IN_WORD = frozenset((0xB0, 0xB1, 0xB3, 0xD0, 0xD1, 0xF0))
_U32 = struct.Struct(">I").unpack_from


def section_spans(data: bytes) -> list[Span]:
    """Where the sections of a message lie; order and framing are checked, contents are not.

    Raises DecodeError where the framing is broken or the sections are repeated or out of order.
    """
    spans: list[Span] = []
    at, last, size = 0, 0, len(data)
    try:
        while at < size:
            if data[at] == 0 and data[at + 1] == 0x53:
                code, value_at = data[at + 2], at + 3
                if not HEADER <= code <= FOOTER:
                    raise _unknown_section(hex(code), at)
            else:
                code, value_at = _descriptor(data, at)
            if code <= last and not (code == last and code in _REPEATABLE):
                raise _misplaced(code, last, at)
            if DATA <= last < code <= AMQP_VALUE:
                raise _misplaced(code, last, at)
            if data[value_at] not in _CONSTRUCTORS[code]:
                raise _mistyped(code, value_at)
            end = _skip(data, value_at)
            if end > size:
                raise DecodeError(f"the message ends inside {_NAMES[code]}", offset=size)
            spans.append(Span(code, at, value_at, end))
            last, at = code, end
    except (IndexError, struct.error):
        raise DecodeError("the message ends inside a section", offset=size) from None
    return spans


def _skip(data: bytes, at: int) -> int:
    """The index behind the value at `at`; it may lie past the end of the data."""
    pending, depth = 1, 0
    while pending:
        code = data[at]
        if code in _SIZE_IN_BYTE:
            at += 2 + data[at + 1]
        elif code in _SIZE_IN_WORD:
            at += 5 + int(_U32(data, at + 1)[0])
        elif code in _FIXED_WIDTHS:
            at += 1 + _FIXED_WIDTHS[code]
        elif code == 0:
            at, pending, depth = at + 1, pending + 2, depth + 1
            if depth > NESTING_MAX:
                raise DecodeError(f"values are nested deeper than {NESTING_MAX}", offset=at)
        else:
            raise DecodeError(f"{code:#04x} is no constructor of a type", offset=at)
        pending -= 1
    return at


def strip_delivery_annotations(data: bytes) -> tuple[bytes, int, dict[Any, Any] | None]:
    """Take the delivery annotations out of a message.

    Returns the message without that section, the index in it where new delivery annotations belong
    (behind a header, else 0), and the annotations taken out, or None if there were none. They
    concern one hop only (3.2.2). Raises DecodeError if any section's framing is broken, or the
    annotations.
    """
    return strip_spans(data, section_spans(data))


_DELIVERY_ANNOTATIONS_8 = b"\0\x53\x71\xc1"
"""How a section begins whose size is in one byte."""


def behind_delivery_annotations(data: bytes) -> bytes:
    """The message without leading delivery annotations in their short form; nothing is checked."""
    return data[5 + data[4] :] if data.startswith(_DELIVERY_ANNOTATIONS_8) and len(data) > 4 else data


def leading_offset_and_time(data: bytes) -> tuple[str, int] | None:
    """Offset and timestamp as `encode_delivery_annotations` puts them in front, or None in any other form."""
    if data[:4] != _DELIVERY_ANNOTATIONS_8 or data[6:29] != _OFFSET_SYMBOL or len(data) < 30:
        return None
    end = 30 + data[29]
    at = end + len(_TIMESTAMP)
    offset = data[30:end]
    if data[end:at] != _TIMESTAMP or len(data) < at + 8 or not offset or not offset.isascii():
        return None
    return offset.decode("ascii"), int.from_bytes(data[at : at + 8], signed=True)


def strip_spans(data: bytes, spans: list[Span]) -> tuple[bytes, int, dict[Any, Any] | None]:
    """`strip_delivery_annotations` for data whose spans are known."""
    index = 0
    for span in spans[:2]:
        if span.code == HEADER:
            index = span.end
        elif span.code == DELIVERY_ANNOTATIONS:
            annotations, _ = decode_value(data, span.value)
            return data[: span.start] + data[span.end :], index, annotations
    return data, index, None


# Encoding


_SYM8 = b"\xa3%c%b"
_OFFSET = _SYM8 % (20, b"event-streams-offset")
_OFFSET_SYMBOL = _OFFSET + b"\xa3"
_TIMESTAMP = _SYM8 % (23, b"event-streams-timestamp") + b"\x83"
_PARTITION = _SYM8 % (23, b"event-streams-partition")
_ANNOTATION_BYTES_MAX = 140
"""With an offset and a partition of this length together, the map still fits its one-byte size."""


def encode_delivery_annotations(*, offset: str, timestamp: int, partition: str | None) -> bytes:
    """The delivery annotations of an event log node (event-streams csprd01, 2.1.2 and 2.2.1).

    `timestamp` is in milliseconds since the epoch; `partition` is left out if None.
    """
    name = b"" if partition is None else partition.encode("ascii")
    raw = offset.encode("ascii")
    if len(raw) + len(name) > _ANNOTATION_BYTES_MAX:
        return _long_delivery_annotations(offset, timestamp, partition)
    payload = b"%b\xa3%c%b%b%b" % (_OFFSET, len(raw), raw, _TIMESTAMP, struct.pack(">q", timestamp))
    if partition is None:
        return b"\0\x53\x71\xc1%c\x04%b" % (len(payload) + 1, payload)
    size = len(payload) + len(_PARTITION) + len(name) + 3
    return b"\0\x53\x71\xc1%c\x06%b%b\xa3%c%b" % (size, payload, _PARTITION, len(name), name)


def _long_delivery_annotations(offset: str, timestamp: int, partition: str | None) -> bytes:
    annotations: dict[Any, Any] = {
        Symbol("event-streams-offset"): Symbol(offset),
        Symbol("event-streams-timestamp"): Timestamp(timestamp),
    }
    if partition is not None:
        annotations[Symbol("event-streams-partition")] = Symbol(partition)
    return _section(DELIVERY_ANNOTATIONS, annotations)


_HEADER_TYPES: tuple[Any, ...] = (None, UByte, UInt, None, UInt)
_SYMBOL_PROPERTIES = (6, 7)
_UINT_PROPERTY = 11


def encode_message(message: Message) -> bytes:
    """Encode a message, its sections in their order; the inverse of `decode_message`.

    Numbers are widened to long, except where the section's definition fixes their type; an int as
    message-id or correlation-id becomes ulong. Raises EncodeError for values without an encoding.
    """
    parts = []
    if message.header is not None:
        parts.append(_section(HEADER, _typed_header(message.header)))
    if message.delivery_annotations is not None:
        parts.append(_section(DELIVERY_ANNOTATIONS, message.delivery_annotations))
    if message.message_annotations is not None:
        parts.append(_section(MESSAGE_ANNOTATIONS, message.message_annotations))
    if message.properties is not None:
        parts.append(_section(PROPERTIES, _typed_properties(message.properties)))
    if message.application_properties is not None:
        parts.append(_section(APPLICATION_PROPERTIES, message.application_properties))
    if message.body_kind is BodyKind.DATA:
        parts.extend([_section(DATA, value) for value in message.body])
    elif message.body_kind is BodyKind.SEQUENCE:
        parts.extend([_section(AMQP_SEQUENCE, value) for value in message.body])
    elif message.body_kind is BodyKind.VALUE:
        parts.append(_section(AMQP_VALUE, message.body))
    if message.footer is not None:
        parts.append(_section(FOOTER, message.footer))
    return b"".join(parts)


def _section(code: int, value: Any) -> bytes:
    return b"\0\x53%c%b" % (code, encode_value(value))


def _typed_header(fields: list[Any]) -> list[Any]:
    kinds = (*_HEADER_TYPES, *(None,) * (len(fields) - len(_HEADER_TYPES)))
    return [
        value if kind is None or value is None else kind(value)
        for kind, value in zip(kinds, fields, strict=False)
    ]


def _typed_properties(properties: Properties) -> list[Any]:
    fields = list(properties)
    for index in (0, 5):
        if type(fields[index]) is int:
            fields[index] = ULong(fields[index])
    for index in _SYMBOL_PROPERTIES:
        if fields[index] is not None:
            fields[index] = Symbol(fields[index])
    if fields[_UINT_PROPERTY] is not None:
        fields[_UINT_PROPERTY] = UInt(fields[_UINT_PROPERTY])
    while fields and fields[-1] is None:
        fields.pop()
    return fields
