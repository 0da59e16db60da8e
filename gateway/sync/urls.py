"""URLs taken apart: the server that one is of, and the name and password that may stand in it."""

from __future__ import annotations

import re
from base64 import b64encode
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

# Up to the authority (RFC 3986, 3.2), and the user info in it: also in what is no URL otherwise.
_USER = re.compile(r"([^/?#]*//)([^/?#]*)@")
_PATH = re.compile(r"[^/?#]*//[^/?#]*(/(?!/).*)", re.DOTALL)
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}


class Login(NamedTuple):
    """The value of Authorization that requests to `origin` get, and no other ones."""

    origin: str
    authorization: str


def origin_of(url: str) -> str:
    """Scheme and authority of a URL in one spelling, without user info and default port; empty if it is none.

    An absolute path can be put behind it (RFC 6454, 4 and 6.1).
    """
    try:
        scheme, authority, *_ = urlsplit(url)
    except ValueError:
        return ""
    host = authority.rpartition("@")[2].lower().removesuffix(_DEFAULT_PORTS.get(scheme, ":"))
    return f"{scheme}://{host.removesuffix(':')}"


def path_within(url: str, origin: str) -> str | None:
    """The path of `url` and what follows it; None for another origin, or if the path cannot stand alone.

    With two slashes at its beginning it would be read as the name of a server.
    """
    match = _PATH.fullmatch(url) if origin_of(url) == origin else None
    return None if match is None else match[1]


def without_user(url: str) -> str:
    """`url` without user info: fit to be shown and kept."""
    return _USER.sub(r"\1", url, count=1) if _USER.match(url) else url


def login_of(url: str) -> Login | None:
    """What the user info of `url` asks for: the Basic scheme (RFC 7617); None if there is none."""
    match = _USER.match(url)
    if match is None or not match[2]:
        return None
    name, _, password = match[2].partition(":")
    told = f"{unquote(name)}:{unquote(password)}".encode("utf-8", "surrogateescape")
    return Login(origin_of(url), f"Basic {b64encode(told).decode()}")
