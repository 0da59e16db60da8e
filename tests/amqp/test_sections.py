"""Message sections, with proton's Message as the oracle."""

from __future__ import annotations

import contextlib
import struct
from typing import Any

import proton
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.amqp.codec import Described, ULong, encode_value
from gateway.amqp.sections import (
    AMQP_VALUE,
    DATA,
    HEADER,
    PROPERTIES,
    decode_message,
    encode_delivery_annotations,
    encode_message,
    section_spans,
    strip_delivery_annotations,
)
from gateway.core.errors import DecodeError
from gateway.core.message import BodyKind, Message, Properties, Symbol, Timestamp

text = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=40)
symbols = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=20)
moments = st.integers(1, 2**42).map(Timestamp)
ids = st.one_of(text, st.integers(0, 2**64 - 1), st.uuids(), st.binary(max_size=20))
scalars = st.one_of(st.none(), st.booleans(), text, st.integers(-(2**63), 2**63 - 1))
maps = st.dictionaries(text, scalars, max_size=4)
annotations = st.dictionaries(symbols.map(Symbol), scalars, max_size=4)
bodies = st.one_of(
    st.tuples(st.just(BodyKind.DATA), st.lists(st.binary(max_size=400), min_size=1, max_size=3)),
    st.tuples(st.just(BodyKind.SEQUENCE), st.lists(st.lists(scalars, max_size=3), min_size=1, max_size=3)),
    st.tuples(st.just(BodyKind.VALUE), st.one_of(scalars, maps, st.binary(max_size=400))),
    st.just((BodyKind.NONE, None)),
)
properties = st.builds(
    Properties,
    message_id=st.none() | ids,
    user_id=st.none() | st.binary(max_size=20),
    to=st.none() | text,
    subject=st.none() | text,
    reply_to=st.none() | text,
    correlation_id=st.none() | ids,
    content_type=st.none() | symbols,
    content_encoding=st.none() | symbols,
    absolute_expiry_time=st.none() | moments,
    creation_time=st.none() | moments,
    group_id=st.none() | text,
    group_sequence=st.none() | st.integers(0, 2**32 - 1),
    reply_to_group_id=st.none() | text,
)
headers = st.tuples(
    st.booleans(), st.integers(0, 255), st.none() | st.integers(0, 2**32 - 1), st.booleans()
).map(list)


@st.composite
def messages(draw: st.DrawFn) -> Message:
    kind, body = draw(bodies)
    return Message(
        header=draw(st.none() | headers),
        delivery_annotations=draw(st.none() | annotations),
        message_annotations=draw(st.none() | annotations),
        properties=draw(st.none() | properties),
        application_properties=draw(st.none() | maps),
        body_kind=kind,
        body=body,
        footer=draw(st.none() | annotations),
    )


@given(messages())
def test_a_message_is_the_same_after_encoding_and_decoding(message: Message) -> None:
    assert decode_message(encode_message(message)) == message


@given(messages())
def test_the_framing_agrees_with_what_is_decoded(message: Message) -> None:
    data = encode_message(message)
    stripped, index, taken = strip_delivery_annotations(data)
    assert taken == message.delivery_annotations
    assert decode_message(stripped) == message._replace(delivery_annotations=None)
    added = encode_delivery_annotations(offset="0" * 20, timestamp=5, partition="0")
    again = decode_message(stripped[:index] + added + stripped[index:])
    assert again == message._replace(
        delivery_annotations={
            "event-streams-offset": "0" * 20,
            "event-streams-timestamp": 5,
            "event-streams-partition": "0",
        }
    )


@given(messages())
def test_proton_reads_what_is_encoded(message: Message) -> None:
    twin = proton.Message()
    twin.decode(encode_message(message))
    wanted = message.properties or Properties()
    assert twin.subject == wanted.subject
    assert twin.address == wanted.to
    if wanted.content_type is not None:  # where there is none, proton says "None"
        assert twin.content_type == wanted.content_type
    assert twin.group_id == wanted.group_id
    assert twin.creation_time == (wanted.creation_time or 0) / 1000
    assert twin.group_sequence == (wanted.group_sequence or 0)
    assert (twin.annotations or None) == (message.message_annotations or None)
    assert (twin.instructions or None) == (message.delivery_annotations or None)
    assert (twin.properties or None) == (message.application_properties or None)
    if message.body_kind is BodyKind.DATA:
        assert bytes(twin.body) == message.body[-1]
    elif message.body_kind is BodyKind.SEQUENCE:
        assert twin.body == message.body[-1]
    elif isinstance(message.body, bytes):
        assert bytes(twin.body) == message.body
    else:
        assert twin.body == message.body
    if message.header is not None:
        assert twin.durable == message.header[0]
        assert twin.priority == message.header[1]


@given(
    subject=text,
    to=text,
    body=st.one_of(st.binary(max_size=400), text, maps, st.lists(scalars, max_size=4)),
    properties=maps,
    priority=st.integers(0, 255),
    inferred=st.booleans(),
)
def test_what_proton_encodes_is_decoded(
    subject: str,
    to: str,
    body: Any,
    properties: dict[str, Any],
    priority: int,
    inferred: bool,
) -> None:
    twin = proton.Message(
        subject=subject,
        address=to,
        body=body,
        properties=properties,
        priority=priority,
        inferred=inferred,
        id="id-1",
        annotations={proton.symbol("x-opt-a"): 5},
        instructions={proton.symbol("x-opt-b"): "b"},
        creation_time=12.5,
    )
    message = decode_message(bytes(twin.encode()))
    assert message.properties is not None
    assert message.properties.subject == subject
    assert message.properties.to == to
    assert message.properties.message_id == "id-1"
    assert message.properties.creation_time == 12_500
    assert message.message_annotations == {"x-opt-a": 5}
    assert message.delivery_annotations == {"x-opt-b": "b"}
    assert (message.application_properties or {}) == properties
    if inferred and isinstance(body, bytes):
        assert (message.body_kind, message.body) == (BodyKind.DATA, [body])
    elif inferred and isinstance(body, list):
        assert (message.body_kind, message.body) == (BodyKind.SEQUENCE, [body])
    else:
        assert (message.body_kind, message.body) == (BodyKind.VALUE, body)


@given(messages())
@settings(max_examples=30)
def test_a_message_cut_short_is_an_error_except_between_sections(message: Message) -> None:
    data = encode_message(message)
    ends = {0, *(span.end for span in section_spans(data))}
    for length in range(len(data)):
        for read in (decode_message, section_spans):
            if length in ends:
                read(data[:length])
            else:
                with pytest.raises(DecodeError):
                    read(data[:length])


@given(messages(), st.data())
@settings(max_examples=500)
def test_a_damaged_message_is_decoded_or_a_decode_error(message: Message, data: st.DataObject) -> None:
    raw = bytearray(encode_message(message)) or bytearray(b"\0")
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    damaged = bytes(raw)
    try:
        decode_message(damaged)
    except DecodeError:
        for read in (section_spans, strip_delivery_annotations):
            with contextlib.suppress(DecodeError):
                read(damaged)
    else:
        assert section_spans(damaged)[-1].end == len(damaged)


@given(st.binary(max_size=100))
@settings(max_examples=500)
def test_any_bytes_are_a_message_or_a_decode_error(data: bytes) -> None:
    for read in (decode_message, section_spans, strip_delivery_annotations):
        with contextlib.suppress(DecodeError):
            read(data)


def section(code: int, value: Any) -> bytes:
    return b"\0\x53" + bytes([code]) + encode_value(value)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (section(HEADER, []) * 2, "header is repeated"),
        (section(PROPERTIES, []) + section(HEADER, []), "header follows properties"),
        (section(AMQP_VALUE, 1) * 2, "amqp-value is repeated"),
        (section(DATA, b"") + section(AMQP_VALUE, 1), "amqp-value follows data"),
        (section(0x76, []) + section(AMQP_VALUE, 1), "amqp-value follows amqp-sequence"),
        (section(AMQP_VALUE, 1) + section(DATA, b""), "data follows amqp-value"),
        (section(DATA, "text"), "wrong type"),
        (section(HEADER, {}), "wrong type"),
        (section(0x79, []), "no section"),
        (b"\0" + encode_value(Symbol("amqp:nothing:list")) + b"\x45", "no section"),
        (b"\x40", "begin with a descriptor"),
    ],
    ids=lambda value: value.hex() if isinstance(value, bytes) else value,
)
def test_misplaced_and_mistyped_sections_are_errors(data: bytes, problem: str) -> None:
    for read in (decode_message, section_spans):
        with pytest.raises(DecodeError, match=problem):
            read(data)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ([None, None, None, 5], "subject has the wrong type"),
        ([None] * 9 + [5], "creation_time has the wrong type"),
        ([None] * 14, "14 fields"),
    ],
)
def test_properties_of_the_wrong_type_are_errors(fields: list[Any], problem: str) -> None:
    with pytest.raises(DecodeError, match=problem):
        decode_message(section(PROPERTIES, fields))


def test_all_data_and_all_sequence_sections_are_kept() -> None:
    data = section(DATA, b"a") + section(DATA, b"b")
    assert decode_message(data).body == [b"a", b"b"]
    sequences = section(0x76, [1]) + section(0x76, [2])
    assert decode_message(sequences).body == [[1], [2]]


def test_sections_may_have_long_and_symbolic_descriptors() -> None:
    long = b"\0\x80" + struct.pack(">Q", HEADER) + b"\x45"
    symbolic = b"\0" + encode_value(Symbol("amqp:data:binary")) + encode_value(b"x")
    assert decode_message(long + symbolic) == Message(header=[], body_kind=BodyKind.DATA, body=[b"x"])
    assert [span.code for span in section_spans(long + symbolic)] == [HEADER, DATA]


def test_a_value_that_is_described_or_deep_is_walked_without_being_decoded() -> None:
    value: Any = Described(ULong(5), Described(Symbol("a"), [b"x"]))
    data = section(AMQP_VALUE, value)
    assert decode_message(data).body == value
    assert section_spans(data)[0].end == len(data)
    with pytest.raises(DecodeError, match="nested"):
        section_spans(b"\0\x53\x77" + b"\0" * 100_000)


def test_new_delivery_annotations_go_behind_a_header() -> None:
    header, body = section(HEADER, [True]), section(DATA, b"x")
    old = section(0x71, {Symbol("a"): 1})
    assert strip_delivery_annotations(header + old + body) == (header + body, len(header), {"a": 1})
    assert strip_delivery_annotations(header + body) == (header + body, len(header), None)
    assert strip_delivery_annotations(old + body) == (body, 0, {"a": 1})
    assert strip_delivery_annotations(body) == (body, 0, None)


@pytest.mark.parametrize("length", [1, 20, 117, 118, 119, 120, 200, 300])
@pytest.mark.parametrize("partition", [None, "0", "p" * 20])
def test_delivery_annotations_of_any_length_are_decoded(length: int, partition: str | None) -> None:
    data = encode_delivery_annotations(offset="1" * length, timestamp=-7, partition=partition)
    found = decode_message(data).delivery_annotations
    assert found is not None
    assert found.pop("event-streams-offset") == "1" * length
    assert found.pop("event-streams-timestamp") == -7
    assert found.pop("event-streams-partition", None) == partition
    assert found == {}
    assert isinstance(
        decode_message(data).delivery_annotations["event-streams-timestamp"],  # type: ignore[index]
        Timestamp,
    )
