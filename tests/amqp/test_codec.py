"""The AMQP type system, with proton's own codec as the oracle."""

from __future__ import annotations

import contextlib
import math
import struct
import uuid
from typing import Any

import proton
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.amqp.codec import (
    ARRAY_EMPTY_ELEMENTS_MAX,
    NESTING_MAX,
    Decimal,
    Described,
    EncodeError,
    UByte,
    UInt,
    ULong,
    UShort,
    decode_value,
    encode_value,
)
from gateway.core.errors import DecodeError
from gateway.core.message import Symbol, Timestamp


def proton_encode(value: Any) -> bytes:
    data = proton.Data()
    data.put_object(value)
    return bytes(data.encode())


def proton_decode(encoded: bytes) -> Any:
    data = proton.Data()
    assert data.decode(encoded) == len(encoded)
    data.rewind()
    data.next()
    return plain(data.get_object())  # before `data` goes, and with it the memory under its views


def plain(value: Any) -> Any:
    """A value of proton's as one of ours."""
    match value:
        case proton.symbol():
            return Symbol(value)
        case proton.timestamp():
            return Timestamp(value)
        case proton.decimal32():
            return Decimal(32, int(value).to_bytes(4))
        case proton.decimal64():
            return Decimal(64, int(value).to_bytes(8))
        case proton.decimal128():
            return Decimal(128, bytes(value))
        case proton.Described():
            return Described(plain(value.descriptor), plain(value.value))
        case proton.Array():
            return [plain(element) for element in value.elements]
        case memoryview():
            return bytes(value)
        case list():
            return [plain(element) for element in value]
        case dict():
            return {plain(key): plain(element) for key, element in value.items()}
        case bool() | None:
            return value
        case int():
            return int(value)
        case float():
            return float(value)
        case str():
            return str(value)
    return value


def typed(value: Any) -> Any:
    """A value with the types that `==` does not see."""
    if isinstance(value, dict):
        return {typed(key): typed(element) for key, element in value.items()}
    if isinstance(value, Described):
        return ("described", typed(value.descriptor), typed(value.value))
    if isinstance(value, list):
        return [typed(element) for element in value]
    if isinstance(value, float):
        return ("float", struct.pack(">d", value))
    return (type(value).__name__, value)


def integers(bits: int, *, signed: bool) -> st.SearchStrategy[int]:
    if signed:
        return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return st.integers(0, 2**bits - 1)


text = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)
ascii_text = st.text(st.characters(max_codepoint=127), max_size=300)
real = st.floats(allow_nan=False)

PROTON_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    integers(8, signed=False).map(proton.ubyte),
    integers(16, signed=False).map(proton.ushort),
    integers(32, signed=False).map(proton.uint),
    integers(64, signed=False).map(proton.ulong),
    integers(8, signed=True).map(proton.byte),
    integers(16, signed=True).map(proton.short),
    integers(32, signed=True).map(proton.int32),
    integers(64, signed=True),
    integers(64, signed=True).map(proton.timestamp),
    st.floats(allow_nan=False, width=32).map(proton.float32),
    real,
    integers(32, signed=False).map(proton.decimal32),
    integers(64, signed=False).map(proton.decimal64),
    st.binary(min_size=16, max_size=16).map(proton.decimal128),
    st.uuids(),
    st.binary(max_size=300),
    text,
    ascii_text.map(proton.symbol),
    st.characters(exclude_categories=["Cs"]).map(proton.char),
)
PROTON_VALUES = st.recursive(
    PROTON_SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=6),
        st.dictionaries(st.one_of(text, st.uuids()), inner, max_size=6),
        st.builds(proton.Described, integers(64, signed=False).map(proton.ulong), inner),
        st.lists(text, max_size=6).map(
            lambda values: proton.Array(proton.UNDESCRIBED, proton.Data.STRING, *values)
        ),
        st.lists(integers(64, signed=True), max_size=6).map(
            lambda values: proton.Array(proton.UNDESCRIBED, proton.Data.LONG, *values)
        ),
    ),
    max_leaves=20,
)

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    integers(64, signed=True),
    integers(64, signed=True).map(Timestamp),
    real,
    text,
    ascii_text.map(Symbol),
    st.binary(max_size=300),
    st.uuids(),
    st.binary(min_size=8, max_size=8).map(lambda raw: Decimal(64, raw)),
)
# Described values hold scalars only: proton's Python code loses its place after a described value in another.
VALUES = st.recursive(
    st.one_of(SCALARS, st.builds(Described, ascii_text.map(Symbol), SCALARS)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=6),
        st.dictionaries(st.one_of(text, st.uuids()), inner, max_size=6),
    ),
    max_leaves=20,
)


@given(PROTON_VALUES)
def test_what_proton_encodes_is_decoded_to_the_same_value(value: Any) -> None:
    encoded = proton_encode(value)
    decoded, end = decode_value(b"before" + encoded + b"behind", 6)
    assert end == 6 + len(encoded)
    assert typed(decoded) == typed(plain(value))


@given(VALUES)
def test_what_is_encoded_proton_and_we_decode_to_the_same_value(value: Any) -> None:
    encoded = encode_value(value)
    assert typed(proton_decode(encoded)) == typed(value)
    decoded, end = decode_value(encoded)
    assert end == len(encoded)
    assert typed(decoded) == typed(value)


@pytest.mark.parametrize(
    ("value", "twin"),
    [
        (ULong(0), proton.ulong(0)),
        (ULong(255), proton.ulong(255)),
        (ULong(2**64 - 1), proton.ulong(2**64 - 1)),
        (UInt(0), proton.uint(0)),
        (UInt(2**32 - 1), proton.uint(2**32 - 1)),
        (UShort(65_535), proton.ushort(65_535)),
        (UByte(4), proton.ubyte(4)),
        (-129, -129),
        (2**63 - 1, 2**63 - 1),
        ("é" * 200, "é" * 200),
        ([1] * 300, [1] * 300),
        ({str(number): number for number in range(300)},) * 2,
    ],
    ids=lambda value: repr(value)[:20],
)
def test_widths_are_encoded_as_proton_encodes_them(value: Any, twin: Any) -> None:
    assert encode_value(value) == proton_encode(twin)


@given(PROTON_VALUES)
@settings(max_examples=30)
def test_data_cut_at_any_length_is_a_decode_error(value: Any) -> None:
    encoded = proton_encode(value)
    for length in range(len(encoded)):
        with pytest.raises(DecodeError) as caught:
            decode_value(encoded[:length])
        assert caught.value.offset is not None
        assert 0 <= caught.value.offset <= length


@given(st.binary(max_size=200))
@settings(max_examples=1000)
def test_any_bytes_give_a_value_or_a_decode_error(data: bytes) -> None:
    with contextlib.suppress(DecodeError):
        _, end = decode_value(data)
        assert 0 < end <= len(data)


@given(PROTON_VALUES, st.data())
@settings(max_examples=300)
def test_damaged_data_gives_a_value_or_a_decode_error(value: Any, data: st.DataObject) -> None:
    encoded = bytearray(proton_encode(value))
    for _ in range(data.draw(st.integers(1, 4))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(DecodeError):
        decode_value(bytes(encoded))


ENDLESS = 0xFFFFFFFF


@pytest.mark.parametrize(
    "data",
    [
        b"\xf0" + struct.pack(">II", 5, ENDLESS) + b"\x40",
        b"\xf0" + struct.pack(">II", 5, ENDLESS) + b"\x45",
        b"\xf0" + struct.pack(">II", 8, ENDLESS) + b"\x00\x53\x01\x40",
        b"\xf0" + struct.pack(">II", 5, ENDLESS) + b"\x50",
        b"\xf0" + struct.pack(">II", ENDLESS, ENDLESS) + b"\x40",
        b"\xd0" + struct.pack(">II", 4, ENDLESS),
        b"\xd0" + struct.pack(">II", ENDLESS, 1) + b"\x40",
        b"\xd1" + struct.pack(">II", 4, ENDLESS - 1),
        b"\xb0" + struct.pack(">I", ENDLESS),
        b"\xb1" + struct.pack(">I", ENDLESS),
        b"\xb3" + struct.pack(">I", ENDLESS),
        b"\xe0\x02" + bytes([ARRAY_EMPTY_ELEMENTS_MAX + 1]) + b"\x40",
    ],
    ids=lambda data: data.hex(),
)
def test_no_count_or_size_is_believed_beyond_the_data(data: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_value(data)


def test_an_array_of_few_elements_without_bytes_is_decoded() -> None:
    assert decode_value(b"\xe0\x02\x03\x41") == ([True] * 3, 4)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"\xa1\x02\xc3\x28", "not UTF-8"),
        (b"\xa3\x01\x80", "not ASCII"),
        (b"\x56\x02", "neither 0 nor 1"),
        (b"\x73\x00\x11\x00\x00", "no Unicode character"),
        (b"\x73\x00\x00\xd8\x00", "no Unicode character"),
        (b"\x3f", "no constructor"),
        (b"\xc1\x05\x02\xc0\x01\x00\x40", "list or a map"),
        (b"\xc1\x02\x01\x40", "odd count"),
        (b"\xc1\x05\x04\x41\x40\x41\x40", "are the same"),
        (b"\xc1\x06\x04\x41\x40\x54\x01\x40", "are the same"),
        (b"\xc0\x03\x01\x40\x40", "where its size says"),
        (b"\xc0\x00\x00", "no room for its own count"),
        (b"", "ends"),
    ],
    ids=lambda value: value.hex() if isinstance(value, bytes) else value,
)
def test_malformed_values_are_named(data: bytes, problem: str) -> None:
    with pytest.raises(DecodeError, match=problem):
        decode_value(data)


def nested_list(levels: int) -> bytes:
    data = b"\x45"
    for _ in range(levels):
        data = b"\xd0" + struct.pack(">II", len(data) + 4, 1) + data
    return data


def test_values_nested_too_deep_are_refused_in_every_form() -> None:
    assert decode_value(nested_list(NESTING_MAX))[1] == len(nested_list(NESTING_MAX))
    arrays = b"\xf0" * 2000
    for data in (nested_list(NESTING_MAX + 1), b"\0" * 100_000, arrays, b"\xe0\x7f\x01\0" * 5000):
        with pytest.raises(DecodeError):
            decode_value(data)
    value: Any = []
    for _ in range(NESTING_MAX + 2):
        value = [value]
    with pytest.raises(EncodeError, match="nested"):
        encode_value(value)


@pytest.mark.parametrize(
    "value",
    [2**63, -(2**63) - 1, ULong(-1), UByte(256), UInt(2**32), 1j, "\ud800", Symbol("é"), {1, 2}],
    ids=repr,
)
def test_what_has_no_encoding_is_an_encode_error(value: Any) -> None:
    with pytest.raises(EncodeError):
        encode_value(value)


def test_nan_and_infinity_go_both_ways() -> None:
    assert math.isnan(decode_value(encode_value(math.nan))[0])
    assert decode_value(encode_value(-math.inf))[0] == -math.inf
    assert decode_value(proton_encode(proton.float32(math.inf)))[0] == math.inf


def test_a_uuid_is_a_uuid() -> None:
    value = uuid.UUID(int=5)
    assert decode_value(encode_value(value)) == (value, 17)
