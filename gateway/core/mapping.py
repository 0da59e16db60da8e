"""From an AMQP message to an event: the native form, HTTP over AMQP (design of the gateway, README).

A producer says `subject` = method and `to` = target in the message's properties, or, where it cannot set
those, `Event-Type` and `about` in the application properties, which therefore win where both are there. What
does not fit raises UnmappableMessage, whose text is the reason that the quarantine keeps.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable
from typing import Any
from uuid import UUID

from .errors import InvalidEvent, UnmappableMessage
from .event import Event, Method, header_text, parse_media_type, parse_method, parse_target
from .message import BodyKind, Message, Properties, Symbol, Timestamp
from .times import TIME_MS_MAX, TIME_MS_MIN

EVENT_TYPE = "Event-Type"
ABOUT = "about"
FAMILY = "http-equiv"
CONTENT_ENCODING = "Content-Encoding"

BINARY_TYPE = "application/octet-stream"

JSON_DEPTH_MAX = 64

Mapping = Callable[[Message, int | None], Event]


def native_mapping(extra_headers: tuple[str, ...] = ()) -> Mapping:
    """A function from (message, time at which the log added it in ms) to its event.

    `extra_headers` names the application properties that become headers of the part, under that name.
    The function raises UnmappableMessage.
    """

    def map_message(message: Message, log_time_ms: int | None) -> Event:
        properties = message.properties or Properties()
        application = message.application_properties or {}
        try:
            method = _method(properties, application)
            target = _target(properties, application)
            if method is Method.DELETE:
                content_type, body = None, b""
            else:
                default_type, body = _body(message)
                content_type = _media_type(properties, default_type)
            return Event(
                method,
                target,
                content_type,
                body,
                _modified(properties, log_time_ms),
                _extras(method, properties, application, extra_headers),
            )
        except InvalidEvent as error:
            raise UnmappableMessage(str(error)) from None

    return map_message


def _method(properties: Properties, application: dict[Any, Any]) -> Method:
    event_type = application.get(EVENT_TYPE)
    if event_type is None:
        if properties.subject is None:
            raise UnmappableMessage(
                "no method: set the property subject to PUT, POST, PATCH or DELETE, "
                "or the application property Event-Type to http-equiv=PUT and so on"
            )
        return parse_method(properties.subject)
    family, _, name = str(event_type).partition("=")
    if family != FAMILY:
        raise UnmappableMessage(f"Event-Type {ascii(event_type)[:80]} is not of the family {FAMILY}")
    return parse_method(name)


def _target(properties: Properties, application: dict[Any, Any]) -> str:
    target = application.get(ABOUT, properties.to)
    if target is None:
        raise UnmappableMessage(
            "no target: set the property to, or the application property about, to a path"
        )
    if not isinstance(target, str):
        raise UnmappableMessage(f"target is of type {type(target).__name__}, not a string")
    return parse_target(target)


def _media_type(properties: Properties, default: str | None) -> str | None:
    if properties.content_type is None:
        return default
    return parse_media_type(properties.content_type)


def log_time(time_ms: int | None) -> int | None:
    """The time at which the log added a message, or None if it does not tell one that a header can hold."""
    return int(time_ms) if time_ms is not None and TIME_MS_MIN <= time_ms <= TIME_MS_MAX else None


def _modified(properties: Properties, log_time_ms: int | None) -> int | None:
    """The log's time, else the sender's, else none: never our own clock, which differs between replicas."""
    time_ms = log_time(log_time_ms)
    return log_time(properties.creation_time) if time_ms is None else time_ms


def _extras(
    method: Method,
    properties: Properties,
    application: dict[Any, Any],
    names: tuple[str, ...],
) -> tuple[tuple[str, str], ...]:
    extras = []
    if properties.content_encoding and method is not Method.DELETE:
        extras.append((CONTENT_ENCODING, header_text(properties.content_encoding)))
    for name in names:
        value = application.get(name)
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            extras.append((name, header_text(str(value))))
    return tuple(extras)


def _body(message: Message) -> tuple[str | None, bytes]:
    """The media type that the body has unless the message names one, and its bytes."""
    match message.body_kind:
        case BodyKind.NONE:
            return None, b""
        case BodyKind.DATA:
            sections = message.body
            body = sections[0] if len(sections) == 1 else b"".join(sections)
            return BINARY_TYPE if body else None, body
        case BodyKind.SEQUENCE:
            items = [item for section in message.body for item in section]
            return "application/json", _json(items)
        case BodyKind.VALUE:
            value = message.body
            if value is None:
                return None, b""
            if isinstance(value, str):
                return "text/plain; charset=utf-8", _utf8(value)
            if isinstance(value, bytes):
                return BINARY_TYPE, value
            return "application/json", _json(value)


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise UnmappableMessage("the body is a string that is not Unicode text") from None


def _json(value: Any) -> bytes:
    plain = _plain(value, JSON_DEPTH_MAX)
    return _utf8(json.dumps(plain, ensure_ascii=False, separators=(",", ":"), allow_nan=False))


def _plain(value: Any, depth: int) -> Any:
    """`value` in the types of JSON; binary becomes base64, a timestamp its milliseconds, a UUID its text."""
    if depth == 0:
        raise UnmappableMessage(f"the body is nested deeper than {JSON_DEPTH_MAX} levels")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int | Timestamp):
        return int(value)
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        raise UnmappableMessage(f"the body holds the number {value}, which JSON cannot write")
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, list):
        return [_plain(item, depth - 1) for item in value]
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise UnmappableMessage("the body holds a map with a key that is not a string")
        return {str(key): _plain(item, depth - 1) for key, item in value.items()}
    raise UnmappableMessage(f"the body holds a {type(value).__name__}, which has no form in JSON")


def as_mapped(event: Event) -> Event:
    """What the native mapping makes of the `native_message` of a valid `event`, its time left out."""
    if event.content_type is None and event.body:
        return event._replace(content_type=BINARY_TYPE)
    return event


def native_message(event: Event, *, message_id: str, group_key: str) -> Message:
    """The AMQP message that carries `event` in the native form; the native mapping turns it back.

    `group_key` keeps events that belong together in one partition, in order (event-streams, 2.1.3).
    """
    extras = dict(event.extra_headers)
    coding = extras.pop(CONTENT_ENCODING, None)
    return Message(
        message_annotations={Symbol("event-streams-key"): group_key},
        properties=Properties(
            message_id=message_id,
            to=event.target,
            subject=event.method.value,
            content_type=None if event.content_type is None else Symbol(event.content_type),
            content_encoding=None if coding is None else Symbol(coding),
        ),
        application_properties=extras or None,
        body_kind=BodyKind.DATA,
        body=[event.body],
    )
