"""The AMQP 1.0 type system as Python values, both ways (AMQP 1.0 part 1).

Decoding is a table of 256 functions, one for each constructor byte. A decoder takes the data, the
index behind its constructor byte and the depth of nesting, and returns the value and the index
behind it. The decoders trust Python to notice where data ends too early (IndexError, struct.error),
and `decode_value` turns that into the one error that may come out: `DecodeError`. Nothing is
allocated on the word of a count: an element needs at least a byte of data, and arrays of elements
that need none are kept short.

A value that no Python type can stand for keeps a class of its own: `Described`, `Decimal`, and the
`Symbol` and `Timestamp` of the core. Numbers decode to int and float whatever their width; to
encode a number of a given width, wrap it (`ULong`, `UInt`, `UShort`, `UByte`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple
from uuid import UUID

from gateway.core.errors import DecodeError, GatewayError
from gateway.core.message import Symbol, Timestamp

NESTING_MAX = 64
"""Levels of lists, maps, arrays and described types inside each other."""

ARRAY_EMPTY_ELEMENTS_MAX = 64
"""Elements of an array whose elements take no bytes: their count is not covered by any data."""

Decoder = Callable[[bytes, int, int], tuple[Any, int]]


class EncodeError(GatewayError):
    """A Python value without an AMQP encoding; the text names its type or what is wrong."""


class Described(NamedTuple):
    """A described type: the descriptor (Symbol or int as a rule) and the value under it (1.3)."""

    descriptor: Any
    value: Any


class Decimal(NamedTuple):
    """A decimal32, decimal64 or decimal128, kept as its IEEE 754 bytes (1.6.13 to 1.6.15)."""

    width: int
    """In bits: 32, 64 or 128."""
    raw: bytes


class ULong(int):
    """An int that is encoded as ulong."""


class UInt(int):
    """An int that is encoded as uint."""


class UShort(int):
    """An int that is encoded as ushort."""


class UByte(int):
    """An int that is encoded as ubyte."""


def decode_value(data: bytes, at: int = 0) -> tuple[Any, int]:
    """Decode the value whose constructor is at index `at`; return it and the index behind it.

    Raises DecodeError, with the index where the data stops making sense, for truncated or malformed
    data, unknown constructors, keys that cannot be told apart in a dict, and nesting beyond
    `NESTING_MAX`.
    """
    try:
        return DECODERS[data[at]](data, at + 1, 0)
    except (IndexError, struct.error):
        raise DecodeError("the data ends inside a value", offset=len(data)) from None


def _ends_early(what: str, data: bytes) -> DecodeError:
    return DecodeError(f"the data ends inside a {what}", offset=len(data))


# Fixed width (1.6.1 to 1.6.18)


def _constant(value: Any) -> Decoder:
    def decode(data: bytes, at: int, depth: int) -> tuple[Any, int]:
        return value, at

    return decode


def _fixed(layout: str) -> Decoder:
    unpack_from = struct.Struct(layout).unpack_from
    width = struct.calcsize(layout)

    def decode(data: bytes, at: int, depth: int) -> tuple[Any, int]:
        return unpack_from(data, at)[0], at + width

    return decode


def _byte(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    return data[at], at + 1


def _boolean(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    if data[at] > 1:
        raise DecodeError("a boolean is neither 0 nor 1", offset=at)
    return data[at] == 1, at + 1


_U32 = struct.Struct(">I").unpack_from
_I64 = struct.Struct(">q").unpack_from


def _timestamp(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    return Timestamp(_I64(data, at)[0]), at + 8


def _char(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    code = _U32(data, at)[0]
    if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
        raise DecodeError(f"{code:#x} is no Unicode character", offset=at)
    return chr(code), at + 4


def _uuid(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    end = at + 16
    if end > len(data):
        raise _ends_early("uuid", data)
    return UUID(bytes=data[at:end]), end


def _decimal(width: int) -> Decoder:
    size = width // 8

    def decode(data: bytes, at: int, depth: int) -> tuple[Any, int]:
        end = at + size
        if end > len(data):
            raise _ends_early("decimal", data)
        return Decimal(width, data[at:end]), end

    return decode


# Variable width (1.6.19 to 1.6.21)


def _binary8(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    start = at + 1
    end = start + data[at]
    if end > len(data):
        raise _ends_early("binary", data)
    return data[start:end], end


def _binary32(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    start = at + 4
    end = start + _U32(data, at)[0]
    if end > len(data):
        raise _ends_early("binary", data)
    return data[start:end], end


def _text(data: bytes, start: int, end: int) -> tuple[Any, int]:
    if end > len(data):
        raise _ends_early("string", data)
    try:
        return data[start:end].decode(), end
    except UnicodeDecodeError as error:
        raise DecodeError("a string is not UTF-8", offset=start + error.start) from None


def _string8(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    return _text(data, at + 1, at + 1 + data[at])


def _string32(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    return _text(data, at + 4, at + 4 + _U32(data, at)[0])


def _symbol(data: bytes, start: int, end: int) -> tuple[Any, int]:
    if end > len(data):
        raise _ends_early("symbol", data)
    try:
        return Symbol(data[start:end].decode("ascii")), end
    except UnicodeDecodeError as error:
        raise DecodeError("a symbol is not ASCII", offset=start + error.start) from None


def _symbol8(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    return _symbol(data, at + 1, at + 1 + data[at])


def _symbol32(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    return _symbol(data, at + 4, at + 4 + _U32(data, at)[0])


# Compound (1.6.22, 1.6.23), arrays (1.6.24) and described types (1.2)


def _frame(what: str, data: bytes, at: int, width: int, depth: int) -> tuple[int, int, int]:
    """The count, the index of the first byte behind it, and the index behind the whole value."""
    if depth >= NESTING_MAX:
        raise DecodeError(f"values are nested deeper than {NESTING_MAX} levels", offset=at)
    if width == 1:
        start, end, count = at + 2, at + 1 + data[at], data[at + 1]
    else:
        start, end, count = at + 8, at + 4 + _U32(data, at)[0], _U32(data, at + 4)[0]
    if end > len(data):
        raise _ends_early(what, data)
    if start > end:
        raise DecodeError(f"a {what} has no room for its own count", offset=at)
    return count, start, end


def _list_of(width: int) -> Decoder:
    def decode(data: bytes, at: int, depth: int) -> tuple[Any, int]:
        count, start, end = _frame("list", data, at, width, depth)
        if count > end - start:
            raise DecodeError(f"a list counts {count} elements in {end - start} bytes", offset=at)
        at, depth, decoders = start, depth + 1, DECODERS
        values = []
        for _ in range(count):
            value, at = decoders[data[at]](data, at + 1, depth)
            values.append(value)
        if at != end:
            raise DecodeError("a list does not end where its size says", offset=end)
        return values, end

    return decode


def _map_of(width: int) -> Decoder:
    def decode(data: bytes, at: int, depth: int) -> tuple[Any, int]:
        count, start, end = _frame("map", data, at, width, depth)
        if count > end - start:
            raise DecodeError(f"a map counts {count} elements in {end - start} bytes", offset=at)
        if count & 1:
            raise DecodeError(f"a map has an odd count of elements, {count}", offset=at)
        at, depth, decoders = start, depth + 1, DECODERS
        values: dict[Any, Any] = {}
        for _ in range(count >> 1):
            key_at = at
            key, at = decoders[data[at]](data, at + 1, depth)
            value, at = decoders[data[at]](data, at + 1, depth)
            try:
                values[key] = value
            except TypeError:
                raise DecodeError("the key of a map is a list or a map", offset=key_at) from None
        if at != end:
            raise DecodeError("a map does not end where its size says", offset=end)
        if len(values) != count >> 1:
            # Invalid by 1.6.23 where the keys are identical; where they only look the same to a
            # dict (1 and True), one of the values would be lost without a trace.
            raise DecodeError("two keys of a map are the same", offset=start)
        return values, end

    return decode


def _array_of(width: int) -> Decoder:
    def decode(data: bytes, at: int, depth: int) -> tuple[Any, int]:
        count, start, end = _frame("array", data, at, width, depth)
        element, at, bare = _constructor(data, start, depth + 1)
        if at > end:
            raise DecodeError("an array has no room for its constructor", offset=start)
        if count > end - at and not (bare and count <= ARRAY_EMPTY_ELEMENTS_MAX):
            raise DecodeError(f"an array counts {count} elements in {end - at} bytes", offset=start)
        values = []
        for _ in range(count):
            value, at = element(data, at, depth + 1)
            values.append(value)
        if at != end:
            raise DecodeError("an array does not end where its size says", offset=end)
        return values, end

    return decode


def _constructor(data: bytes, at: int, depth: int) -> tuple[Decoder, int, bool]:
    """The decoder for a constructor, the index behind it, whether its values take no bytes."""
    code = data[at]
    if code:
        return DECODERS[code], at + 1, code & 0xF0 == 0x40
    if depth >= NESTING_MAX:
        raise DecodeError(f"values are nested deeper than {NESTING_MAX} levels", offset=at)
    descriptor, at = DECODERS[data[at + 1]](data, at + 2, depth + 1)
    inner, at, bare = _constructor(data, at, depth + 1)

    def decode(data: bytes, at: int, depth: int) -> tuple[Any, int]:
        value, at = inner(data, at, depth)
        return Described(descriptor, value), at

    return decode, at, bare


def _described(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    if depth >= NESTING_MAX:
        raise DecodeError(f"values are nested deeper than {NESTING_MAX} levels", offset=at)
    descriptor, at = DECODERS[data[at]](data, at + 1, depth + 1)
    value, at = DECODERS[data[at]](data, at + 1, depth + 1)
    return Described(descriptor, value), at


def _list0(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    return [], at


def _unknown(code: int) -> Decoder:
    def decode(data: bytes, at: int, depth: int) -> tuple[Any, int]:
        raise DecodeError(f"{code:#04x} is no constructor of a type", offset=at - 1)

    return decode


_KNOWN: dict[int, Decoder] = {
    0x00: _described,
    0x40: _constant(None),
    0x41: _constant(True),
    0x42: _constant(False),
    0x43: _constant(0),
    0x44: _constant(0),
    0x45: _list0,
    0x50: _byte,
    0x51: _fixed(">b"),
    0x52: _byte,
    0x53: _byte,
    0x54: _fixed(">b"),
    0x55: _fixed(">b"),
    0x56: _boolean,
    0x60: _fixed(">H"),
    0x61: _fixed(">h"),
    0x70: _fixed(">I"),
    0x71: _fixed(">i"),
    0x72: _fixed(">f"),
    0x73: _char,
    0x74: _decimal(32),
    0x80: _fixed(">Q"),
    0x81: _fixed(">q"),
    0x82: _fixed(">d"),
    0x83: _timestamp,
    0x84: _decimal(64),
    0x94: _decimal(128),
    0x98: _uuid,
    0xA0: _binary8,
    0xA1: _string8,
    0xA3: _symbol8,
    0xB0: _binary32,
    0xB1: _string32,
    0xB3: _symbol32,
    0xC0: _list_of(1),
    0xC1: _map_of(1),
    0xD0: _list_of(4),
    0xD1: _map_of(4),
    0xE0: _array_of(1),
    0xF0: _array_of(4),
}

DECODERS: tuple[Decoder, ...] = tuple(_KNOWN.get(code) or _unknown(code) for code in range(256))
"""A decoder for each constructor byte; only for the section codec beside this module."""


# Encoding


def encode_value(value: Any) -> bytes:
    """Encode a value with its constructor, in the shortest form that its type has.

    Takes None, bool, int (long, or the width of its wrapper), float (double), str, Symbol, bytes,
    Timestamp, UUID, Decimal, Described, and lists and dicts of these. Raises EncodeError for
    anything else, for numbers out of range, and for nesting beyond `NESTING_MAX`.
    """
    return _encode(value, 0)


def _encode(value: Any, depth: int) -> bytes:
    if depth > NESTING_MAX:
        raise EncodeError(f"values are nested deeper than {NESTING_MAX} levels")
    encoder = _ENCODERS.get(type(value))
    if encoder is None:
        for kind, candidate in _ENCODERS.items():
            if isinstance(value, kind):
                encoder = candidate
                break
        else:
            raise EncodeError(f"a {type(value).__name__} has no AMQP encoding")
    try:
        return encoder(value, depth)
    except (struct.error, UnicodeEncodeError) as error:
        raise EncodeError(f"a {type(value).__name__} cannot be encoded: {error}") from None


def sized(short: int, long: int, payload: bytes) -> bytes:
    if len(payload) < 256:
        return b"%c%c%b" % (short, len(payload), payload)
    return struct.pack(">BI", long, len(payload)) + payload


def counted(short: int, long: int, count: int, payload: bytes) -> bytes:
    if len(payload) < 255 and count < 256:
        return b"%c%c%c%b" % (short, len(payload) + 1, count, payload)
    return struct.pack(">BII", long, len(payload) + 4, count) + payload


def _long(value: int, depth: int) -> bytes:
    return struct.pack(">Bb", 0x55, value) if -128 <= value < 128 else struct.pack(">Bq", 0x81, value)


def _unsigned(zero: bytes, small: int, code: int, layout: str) -> Callable[[Any, int], bytes]:
    def encode(value: int, depth: int) -> bytes:
        if value == 0:
            return zero
        return struct.pack(">BB", small, value) if 0 < value < 256 else struct.pack(layout, code, value)

    return encode


def _list(value: list[Any], depth: int) -> bytes:
    if not value:
        return b"\x45"
    payload = b"".join([_encode(element, depth + 1) for element in value])
    return counted(0xC0, 0xD0, len(value), payload)


def _map(value: dict[Any, Any], depth: int) -> bytes:
    payload = b"".join([_encode(part, depth + 1) for pair in value.items() for part in pair])
    return counted(0xC1, 0xD1, 2 * len(value), payload)


def _encode_described(value: Described, depth: int) -> bytes:
    return b"\0" + _encode(value.descriptor, depth + 1) + _encode(value.value, depth + 1)


_DECIMAL_CODES = {32: b"\x74", 64: b"\x84", 128: b"\x94"}


def _encode_decimal(value: Decimal, depth: int) -> bytes:
    if value.width not in _DECIMAL_CODES or len(value.raw) * 8 != value.width:
        raise EncodeError(f"no decimal has {value.width} bits in {len(value.raw)} bytes")
    return _DECIMAL_CODES[value.width] + value.raw


# A subclass comes before its base, so that the search by isinstance finds the nearest.
_ENCODERS: dict[type, Callable[[Any, int], bytes]] = {
    type(None): lambda value, depth: b"\x40",
    bool: lambda value, depth: b"\x41" if value else b"\x42",
    Timestamp: lambda value, depth: struct.pack(">Bq", 0x83, value),
    ULong: _unsigned(b"\x44", 0x53, 0x80, ">BQ"),
    UInt: _unsigned(b"\x43", 0x52, 0x70, ">BI"),
    UShort: lambda value, depth: struct.pack(">BH", 0x60, value),
    UByte: lambda value, depth: struct.pack(">BB", 0x50, value),
    int: _long,
    float: lambda value, depth: struct.pack(">Bd", 0x82, value),
    Symbol: lambda value, depth: sized(0xA3, 0xB3, value.encode("ascii")),
    str: lambda value, depth: sized(0xA1, 0xB1, value.encode()),
    bytes: lambda value, depth: sized(0xA0, 0xB0, value),
    UUID: lambda value, depth: b"\x98" + value.bytes,
    Described: _encode_described,
    Decimal: _encode_decimal,
    list: _list,
    dict: _map,
}
