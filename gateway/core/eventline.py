"""One line of text is one event: what `wes publish` reads (design of the gateway, README).

Two forms. The plain one is a JSON object with `method`, `target`, `content_type` and one of `body` (JSON),
`body_text` and `body_base64`. The other is a CloudEvent in JSON format (CloudEvents 1.0.2, JSON Event
Format 1.0.2, 3), recognised by its `specversion`. The lines that `wes sync` writes are of the plain form:
where the event was in its feed is told there as well, and not read here.

A JSON body is taken as the very bytes that stand in the line, because reading and writing it again would
turn 1.10 into 1.1 and drop keys that occur twice. What a line says and an event cannot hold is an error,
never left out.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from typing import Any, NamedTuple, NoReturn
from urllib.parse import urlsplit

from .errors import InvalidEvent
from .event import HEADER_VALUE_BYTES_MAX, Event, Method, parse_media_type, parse_method, parse_target

JSON_TYPE = "application/json"
TEXT_TYPE = "text/plain; charset=utf-8"
BINARY_TYPE = "application/octet-stream"

_PLAIN_KEYS = ("method", "target", "content_type", "body", "body_text", "body_base64")
_BODY_KEYS = _PLAIN_KEYS[3:]
_EXTRA_HEADERS = "extra_headers"
# Of another feed: an event that is published gets a new place and time.
_PLACE_KEYS = ("partition", "ordinal", "content_id", "entry", "last_modified")
_READ_KEYS = frozenset((*_PLAIN_KEYS, *_PLACE_KEYS, _EXTRA_HEADERS))
# What a publication sends as request headers must not change what the request is (RFC 9110, 7.6.1 and 10.1).
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}")
_HEADER_VALUE = re.compile(r"[!-~](?:[ -~]*[!-~])?")
_REQUEST_HEADERS = frozenset(
    (
        *(
            "authorization",
            "connection",
            "content-length",
            "content-type",
            "cookie",
            "date",
            "expect",
            "host",
        ),
        *("if-match", "if-modified-since", "if-none-match", "if-range", "if-unmodified-since", "keep-alive"),
        *("prefer", "proxy-authorization", "range", "te", "trailer", "transfer-encoding", "upgrade", "via"),
    )
)
# CloudEvents 1.0.2, "Type System" and "Naming Conventions": names are lower-case letters and digits.
_ATTRIBUTE = re.compile(r"[a-z0-9]+")
_CLOUD_REQUIRED = ("specversion", "id", "source", "type")
_DELETING_TYPES = (".deleted", ".removed")
_JSON_MEDIA_TYPE = re.compile(r"[^/]+/(?:json|[^;]+\+json)\s*(?:;.*)?", re.IGNORECASE)
_SPACE = re.compile(r"[ \t\r\n]*")


class _Value(NamedTuple):
    """A member of the line's object: its value, and the text that it was read from."""

    value: Any
    raw: str


def parse_event_line(line: bytes) -> Event:
    """The event that a line says; raises InvalidEvent, whose text says what is wrong and what to write.

    Implements the event line of the README and the JSON Event Format of CloudEvents.
    """
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise InvalidEvent(f"the line is not UTF-8 text (at byte {error.start})") from None
    members = _members(text)
    return _cloud_event(members) if "specversion" in members else _plain_event(members)


def _plain_event(members: dict[str, _Value]) -> Event:
    for key in members:
        if key not in _READ_KEYS:
            raise InvalidEvent(
                f"unknown key {ascii(key)[:80]}: use method, target, content_type and one of body, "
                "body_text and body_base64, or write a CloudEvent, which has specversion"
            )
    method = parse_method(_required_text(members, "method", "PUT, POST, PATCH or DELETE"))
    target = parse_target(_required_text(members, "target", "a path such as /products/1"))
    stated = _text(members, "content_type")
    content_type = None if stated is None else parse_media_type(stated)
    extra_headers = _extra_headers(members[_EXTRA_HEADERS].value) if _EXTRA_HEADERS in members else ()
    bodies = [key for key in _BODY_KEYS if key in members]
    if len(bodies) > 1:
        raise InvalidEvent(f"{' and '.join(bodies)} are both there: an event has one body")
    if not bodies or _no_body(method, members[bodies[0]], bodies[0]):
        stated_type = None if method is Method.DELETE else content_type
        return Event(method, target, stated_type, b"", extra_headers=extra_headers)
    default, body = _plain_body(bodies[0], members)
    return Event(method, target, content_type or default, body, extra_headers=extra_headers)


def _extra_headers(pairs: Any) -> tuple[tuple[str, str], ...]:
    """Names and values that may stand in a request and in a part."""
    found: list[tuple[str, str]] = []
    for pair in pairs if isinstance(pairs, list) else [pairs]:
        match pair:
            case [str(name), str(value)] if type(name) is str and type(value) is str:
                found.append((name, value))
            case _:
                raise InvalidEvent(
                    'extra_headers is not a list of names and values: write [["Name", "value"]]'
                )
        if _HEADER_NAME.fullmatch(name) is None or name.lower() in _REQUEST_HEADERS:
            raise InvalidEvent(f"extra_headers: {ascii(name)[:80]} cannot be a header of an event")
        if _HEADER_VALUE.fullmatch(value) is None or len(value) > HEADER_VALUE_BYTES_MAX:
            raise InvalidEvent(f"extra_headers: the value of {name} cannot stand in a header")
    return tuple(found)


def _plain_body(key: str, members: dict[str, _Value]) -> tuple[str, bytes]:
    if key == "body":
        return JSON_TYPE, members[key].raw.encode()
    text = _required_text(members, key, "text")
    if key == "body_text":
        return TEXT_TYPE, _utf8(text, key)
    return BINARY_TYPE, _base64(text, key)


def _cloud_event(members: dict[str, _Value]) -> Event:
    for key in members:
        if _ATTRIBUTE.fullmatch(key) is None and key != "data_base64":
            raise InvalidEvent(
                f"{ascii(key)[:80]} cannot name an attribute of a CloudEvent: use lower-case letters "
                "and digits"
            )
    for key in _CLOUD_REQUIRED:
        if not _required_text(members, key, "text, as every CloudEvent must have it"):
            raise InvalidEvent(f"{key} is empty: every CloudEvent must have it")
    if (version := members["specversion"].value) != "1.0":
        raise InvalidEvent(
            f"specversion {ascii(version)[:80]} is not known: write the event as CloudEvents 1.0"
        )
    method = _cloud_method(members)
    target = cloud_target(members["source"].value, _text(members, "subject"))
    stated = _text(members, "datacontenttype")
    content_type = None if stated is None else parse_media_type(stated)
    bodies = [key for key in ("data", "data_base64") if key in members]
    if len(bodies) > 1:
        raise InvalidEvent("data and data_base64 are both there: an event has one body")
    if not bodies or _no_body(method, members[bodies[0]], bodies[0]):
        return Event(method, target, None if method is Method.DELETE else content_type, b"")
    if bodies[0] == "data_base64":
        body = _base64(_required_text(members, "data_base64", "Base64"), "data_base64")
        return Event(method, target, content_type or BINARY_TYPE, body)
    return Event(method, target, content_type or JSON_TYPE, _cloud_data(members["data"], content_type))


def _cloud_data(data: _Value, content_type: str | None) -> bytes:
    """The bytes of `data`: its JSON, or for another media type the text that it holds (JSON format, 3.1)."""
    if content_type is None or _JSON_MEDIA_TYPE.fullmatch(content_type):
        return data.raw.encode()
    if isinstance(data.value, str):
        return _utf8(data.value, "data")
    raise InvalidEvent(
        f"data is not text, but datacontenttype is {content_type}: write a string, or data_base64"
    )


def _cloud_method(members: dict[str, _Value]) -> Method:
    """The extension `httpequiv`, else DELETE for types that say so, else PUT."""
    verb = _text(members, "httpequiv")
    if verb is not None:
        return parse_method(verb)
    return Method.DELETE if members["type"].value.endswith(_DELETING_TYPES) else Method.PUT


def cloud_target(source: str, subject: str | None) -> str:
    """The target of a CloudEvent: `subject` if it is a path, else the path of `source` joined with it.

    Raises InvalidEvent where that makes no path, as with `urn:` sources and no subject.
    """
    if subject is not None and subject.startswith("/"):
        return parse_target(subject)
    try:
        url = urlsplit(source)
    except ValueError:
        raise InvalidEvent(f"source {ascii(source)[:80]} is not a URI") from None
    if url.scheme not in ("", "http", "https") or (not url.path.startswith("/") and not url.netloc):
        raise InvalidEvent(
            f"source {ascii(source)[:80]} has no path to make a target from: set subject to a path such as "
            "/products/1"
        )
    if subject is None:
        return parse_target(f"{url.path or '/'}{'?' if url.query else ''}{url.query}")
    if url.query or url.fragment:
        raise InvalidEvent(
            f"source {ascii(source)[:80]} has a query or a fragment, so subject cannot be joined to it: set "
            "subject to a path such as /products/1"
        )
    return parse_target(f"{url.path.rstrip('/')}/{subject}")


def _no_body(method: Method, body: _Value, key: str) -> bool:
    """Whether a DELETE's body is null, which loses nothing; any other body of a DELETE is an error."""
    if method is not Method.DELETE:
        return False
    if body.value is None:
        return True
    raise InvalidEvent(f"a DELETE has no body: leave out {key}, or publish it as POST or PUT")


def _required_text(members: dict[str, _Value], key: str, wanted: str) -> str:
    text = _text(members, key)
    if text is None:
        raise InvalidEvent(f"no {key}: set it to {wanted}")
    return text


def _text(members: dict[str, _Value], key: str) -> str | None:
    """The text of a member; None where it is absent or null."""
    member = members.get(key)
    if member is None or member.value is None:
        return None
    if not isinstance(member.value, str):
        raise InvalidEvent(f"{key} is not text: put it in quotation marks")
    return member.value


def _utf8(text: str, key: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidEvent(
            f"{key} holds half of a surrogate pair, which is no character: use body_base64"
        ) from None


def _base64(text: str, key: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidEvent(f"{key} is not Base64: {error}") from None


def _refuse_constant(name: str) -> NoReturn:
    raise InvalidEvent(f"{name} is not JSON: write a number, null or a string")


class _Number(str):
    """A number as its digits: reading it into a number would be work for nothing, and bounded in length."""

    __slots__ = ()


# Numbers are kept as text: nobody asks for their value.
_SCAN = json.JSONDecoder(parse_int=_Number, parse_float=_Number, parse_constant=_refuse_constant).raw_decode


def _members(text: str) -> dict[str, _Value]:
    """The members of the one JSON object that `text` is, each with the text of its value."""
    try:
        return _scan_object(text)
    except json.JSONDecodeError as error:
        raise InvalidEvent(f"not JSON: {error.msg} (at character {error.pos})") from None
    except RecursionError:
        raise InvalidEvent("the JSON is nested too deeply to be read") from None


def _scan_object(text: str) -> dict[str, _Value]:
    members: dict[str, _Value] = {}
    position = _skip_space(text, 0)
    if text[position : position + 1] != "{":
        raise InvalidEvent("the line is not a JSON object: it must start with '{'")
    position = _skip_space(text, position + 1)
    closed = text[position : position + 1] == "}"
    while not closed:
        if text[position : position + 1] != '"':
            raise json.JSONDecodeError("a key in double quotes is missing", text, position)
        key, position = _SCAN(text, position)
        position = _skip_space(text, position)
        if text[position : position + 1] != ":":
            raise json.JSONDecodeError("':' is missing", text, position)
        start = _skip_space(text, position + 1)
        value, end = _SCAN(text, start)
        if key in members:
            raise InvalidEvent(f"the key {ascii(key)[:80]} is there twice")
        members[key] = _Value(value if type(value) is not _Number else 0, text[start:end])
        position = _skip_space(text, end)
        closed = text[position : position + 1] == "}"
        if not closed:
            if text[position : position + 1] != ",":
                raise json.JSONDecodeError("',' or '}' is missing", text, position)
            position = _skip_space(text, position + 1)
    rest = _skip_space(text, position + 1)
    if rest != len(text):
        raise json.JSONDecodeError("the line goes on behind the object", text, rest)
    return members


def _skip_space(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    assert match is not None, "the pattern matches nothing too"
    return match.end()
