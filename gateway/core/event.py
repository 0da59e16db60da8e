"""One event, checked once: a method, the target it is about, and a representation.

Whatever made an event (an AMQP message, an HTTP request, a line of a file), it passes the checks here
before it is rendered, so no later module asks again whether a value may stand in a header.
"""

from __future__ import annotations

import re
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import quote

from .errors import InvalidEvent

# Many multipart readers stop at header lines of 4,096 bytes, and the target shares its line with a rel.
TARGET_BYTES_MAX = 4_000
HEADER_VALUE_BYTES_MAX = 4_000

_URI_SAFE = "/?:@!$&'()*+,;=-._~%"
_PLAIN_TARGET = re.compile(r"/[A-Za-z0-9/?:@!$&'()*+,;=\-._~]*")
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_DOT_SEGMENT = re.compile(r"/\.{1,2}(?=/|\?|$)")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_TCHARS = r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"
_MEDIA_TYPE = re.compile(
    rf"{_TCHARS}/{_TCHARS}"
    rf"(?:[ \t]*;[ \t]*{_TCHARS}=(?:{_TCHARS}|\"(?:[\t !#-\[\]-~]|\\[\t -~])*\"))*"
)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_AUTHORITY = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")


class Method(StrEnum):
    """The values of the event type family `http-equiv` (draft, "The Event-Type family http-equiv")."""

    PUT = "PUT"
    POST = "POST"
    PATCH = "PATCH"
    DELETE = "DELETE"


METHODS = {method.value: method for method in Method}


class Event(NamedTuple):
    """An event about a target, ready to be rendered.

    `target` is an ASCII path with an optional query. `modified_ms` is the time at which the log added
    the event, in milliseconds since the Unix epoch, or None where the log does not tell.
    `extra_headers` are names and values that are safe in a header.
    """

    method: Method
    target: str
    content_type: str | None
    body: bytes
    modified_ms: int | None = None
    extra_headers: tuple[tuple[str, str], ...] = ()


def parse_method(text: str) -> Method:
    """The method that `text` spells, upper case as in HTTP; raises InvalidEvent for any other text."""
    try:
        return METHODS[text]
    except (KeyError, TypeError):
        raise InvalidEvent(
            f"{_shown(text)} is not a method of an event: use PUT, POST, PATCH or DELETE"
        ) from None


def parse_target(text: str) -> str:
    """`text` as the URI path of an event target, with what URIs cannot hold percent-encoded (RFC 3987, 3.1).

    Raises InvalidEvent for what no HTTP client could request under that name: anything that does not
    start with one slash, a fragment, a control character, a broken escape, a `.` or `..` segment, or more
    than TARGET_BYTES_MAX bytes.
    """
    if _PLAIN_TARGET.fullmatch(text) is None:
        if not text.startswith("/"):
            raise InvalidEvent(f"target {_shown(text)} is not a path: it must start with '/'")
        if _CONTROL.search(text):
            raise InvalidEvent(f"target {_shown(text)} holds a control character")
        if "#" in text:
            raise InvalidEvent(f"target {_shown(text)} has a fragment: leave out '#' and the rest")
        if _BAD_ESCAPE.search(text):
            raise InvalidEvent(f"target {_shown(text)} has a '%' without two hex digits: write %25")
        try:
            text = quote(text, safe=_URI_SAFE)
        except UnicodeEncodeError:
            raise InvalidEvent(f"target {_shown(text)} is not Unicode text") from None
    if text.startswith("//"):
        raise InvalidEvent(f"target {_shown(text)} starts with '//', which names a host, not a path")
    if "/." in text and _DOT_SEGMENT.search(text):
        raise InvalidEvent(f"target {_shown(text)} has a '.' or '..' segment, which clients remove")
    if len(text) > TARGET_BYTES_MAX:
        raise InvalidEvent(f"target has {len(text)} bytes; at most {TARGET_BYTES_MAX} are allowed")
    return text


@lru_cache(maxsize=256)
def parse_media_type(text: str) -> str:
    """`text` without blanks around it; raises InvalidEvent if that is no media type (RFC 9110, 8.3.1).

    No reader of headers sees such blanks, so they must not become part of an ETag either.
    """
    text = text.strip(" \t")
    if len(text) > HEADER_VALUE_BYTES_MAX or _MEDIA_TYPE.fullmatch(text) is None:
        raise InvalidEvent(f"{_shown(text)} is not a media type: write type/subtype, as in text/plain")
    return text


def header_text(text: str) -> str:
    """`text` as a header value: all but visible ASCII and inner spaces percent-encoded."""
    value = quote(text.strip(" "), safe="".join(map(chr, range(0x20, 0x7F))), errors="replace")
    if len(value) > HEADER_VALUE_BYTES_MAX:
        raise InvalidEvent(
            f"header value has {len(value)} bytes; at most {HEADER_VALUE_BYTES_MAX} are allowed"
        )
    return value


def parse_name(text: str, what: str) -> str:
    """`text` if it can name a log or a partition in a URL, a file name and a Content-ID alike."""
    if _NAME.fullmatch(text) is None:
        raise InvalidEvent(
            f"{what} {_shown(text)} is not a name: use letters, digits, '-' and '_', at most 64, no dot"
        )
    return text


def parse_authority(text: str) -> str:
    """`text` if it can end a Content-ID: a host name (RFC 5322, 3.4.1: the domain of a msg-id)."""
    if _AUTHORITY.fullmatch(text) is None or ".." in text:
        raise InvalidEvent(f"authority {_shown(text)} is not a host name, as in feeds.example.org")
    return text


def _shown(text: object) -> str:
    """`text` quoted for a message, and short."""
    shown = ascii(text)
    return shown if len(shown) <= 80 else shown[:77] + "..."
