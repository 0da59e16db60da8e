"""The native form: HTTP over AMQP, and what cannot be mapped says why."""

from __future__ import annotations

from uuid import UUID

import pytest

from gateway.core.errors import UnmappableMessage
from gateway.core.event import Event, Method
from gateway.core.mapping import native_mapping, native_message
from gateway.core.message import BodyKind, Message, Properties, Symbol, Timestamp

map_message = native_mapping()


def message(kind: BodyKind = BodyKind.DATA, body: object = None, **properties: object) -> Message:
    defaults = {"subject": "PUT", "to": "/a"}
    return Message(
        properties=Properties(**(defaults | properties)),
        body_kind=kind,
        body=[b"x"] if body is None and kind is BodyKind.DATA else body,
    )


def test_subject_to_and_content_type_make_an_event_whose_time_is_the_logs():
    event = map_message(message(content_type=Symbol("text/plain"), creation_time=Timestamp(5)), 1234)
    assert event == Event(Method.PUT, "/a", "text/plain", b"x", 1234)


def test_without_a_time_of_the_log_the_senders_counts_and_else_there_is_none():
    assert map_message(message(creation_time=Timestamp(5)), None).modified_ms == 5
    assert map_message(message(), None).modified_ms is None
    assert map_message(message(creation_time=Timestamp(-5)), None).modified_ms is None


def test_application_properties_say_the_same_and_win():
    plain = Message(
        application_properties={"Event-Type": "http-equiv=DELETE", "about": "/b"},
        properties=Properties(subject="whatever", to="/queues/q"),
    )
    assert map_message(plain, None) == Event(Method.DELETE, "/b", None, b"")


@pytest.mark.parametrize(
    ("kind", "body", "content_type", "expected"),
    [
        (BodyKind.DATA, [b"a", b"", b"b"], "application/octet-stream", b"ab"),
        (BodyKind.DATA, [b""], None, b""),
        (BodyKind.NONE, None, None, b""),
        (BodyKind.VALUE, None, None, b""),
        (BodyKind.VALUE, "gr\u00f6\u00dfe", "text/plain; charset=utf-8", "gr\u00f6\u00dfe".encode()),
        (BodyKind.VALUE, b"\x00\xff", "application/octet-stream", b"\x00\xff"),
        (
            BodyKind.VALUE,
            {"b": [1, True, None, 1.5], Symbol("a"): "\u00e4"},
            "application/json",
            '{"b":[1,true,null,1.5],"a":"\u00e4"}'.encode(),
        ),
        (
            BodyKind.VALUE,
            [Timestamp(7), b"\x01", UUID(int=1)],
            "application/json",
            b'[7,"AQ==","00000000-0000-0000-0000-000000000001"]',
        ),
        (BodyKind.SEQUENCE, [[1, 2], ["a"]], "application/json", b'[1,2,"a"]'),
    ],
)
def test_every_kind_of_body_becomes_bytes(kind, body, content_type, expected):
    event = map_message(message(kind, body), None)
    assert (event.content_type, event.body) == (content_type, expected)


def test_a_delete_has_no_body_and_no_type():
    event = map_message(message(subject="DELETE", content_type="text/plain"), None)
    assert (event.content_type, event.body) == (None, b"")


def nested(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (Message(), "no method"),
        (Message(properties=Properties(subject="PUT")), "no target"),
        (message(subject="GET"), "not a method"),
        (message(to="products/1"), "not a path"),
        (message(to="/a\r\nSet-Cookie: x"), "control character"),
        (message(content_type="text\r\nX: 1"), "not a media type"),
        (
            Message(application_properties={"Event-Type": "cloudevents=PUT", "about": "/a"}),
            "not of the family",
        ),
        (Message(application_properties={"Event-Type": "http-equiv=PUT", "about": 7}), "not a string"),
        (message(BodyKind.VALUE, {1: 2}), "key that is not a string"),
        (message(BodyKind.VALUE, float("nan")), "JSON cannot write"),
        (message(BodyKind.VALUE, nested(70)), "nested deeper"),
        (message(BodyKind.VALUE, [object()]), "no form in JSON"),
        (message(BodyKind.VALUE, "\ud800"), "not Unicode"),
    ],
)
def test_what_cannot_be_mapped_says_why(bad, reason):
    with pytest.raises(UnmappableMessage, match=reason):
        map_message(bad, None)


def test_extra_headers_are_those_named_and_safe_whatever_they_hold():
    mapped = native_mapping(("traceparent", "absent"))(
        message()._replace(application_properties={"traceparent": "a\r\nb\u00e4", "other": "x"}), None
    )
    assert mapped.extra_headers == (("traceparent", "a%0D%0Ab%C3%A4"),)


def test_a_content_encoding_travels_with_its_body():
    assert map_message(message(content_encoding=Symbol("gzip")), None).extra_headers == (
        ("Content-Encoding", "gzip"),
    )


@pytest.mark.parametrize(
    "event",
    [
        Event(Method.PUT, "/a", "application/json", b"{}"),
        Event(Method.POST, "/a?b", "text/plain", b""),
        Event(Method.DELETE, "/a", None, b""),
        Event(Method.PUT, "/a", "text/plain", b"x", None, (("Content-Encoding", "gzip"),)),
    ],
)
def test_the_native_message_of_an_event_maps_back_to_it(event):
    assert map_message(native_message(event, message_id="1", group_key=event.target), None) == event
