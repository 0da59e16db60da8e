"""Reads the files of `spec-examples/` and replays them against a server, byte for byte.

The format is described in `spec-examples/README.md`. Requests go out over a plain socket, so that what is
sent is exactly what is written.
"""

from __future__ import annotations

import http.client
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

FOLDER = Path(__file__).parents[2] / "spec-examples"
TIMEOUT_S = 30

_MARK = re.compile(r"=== (?:(request|response)(?: ([a-z]+))?|(snapshot) ([0-9TZ.:-]+))")
_PLACEHOLDER = re.compile(r"\{(\*|[a-z][a-z0-9_]*\*?)\}")
_SETTING = re.compile(r"# (gateway|environment): (.+)")
# In a line a value ends before these, unless its name ends in '*'.
_VALUE = r"[^\s\"<>;,]+"
_REST = r"[^\r\n]*?"


class ExampleError(Exception):
    """A file of examples that is not in the format."""


class Mismatch(AssertionError):
    """A response that is not the one that stands in the example."""


@dataclass
class Message:
    """A request or a response as written, its lines without their ends; or a snapshot, `label` is its id."""

    kind: str
    label: str
    line: int
    start: str
    headers: list[str]
    body: list[str]


@dataclass
class Example:
    """One file: what the gateway is started with, and the messages in order."""

    path: Path
    title: str
    options: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    messages: list[Message] = field(default_factory=list)


def files() -> list[Path]:
    """All files of examples, in the order of their names."""
    return sorted(FOLDER.glob("*.http"))


def read(path: Path) -> Example:
    """The example in a file; raises ExampleError."""
    lines = path.read_text("utf-8").split("\n")
    if not lines[0].startswith("# "):
        raise ExampleError(f"{path.name}: the first line must be a title behind '# '")
    example = Example(path, lines[0].removeprefix("# "))
    block: list[str] | None = None
    for number, line in enumerate(lines, 1):
        mark = _MARK.fullmatch(line)
        if mark is not None:
            block = []
            message = Message(mark[1] or mark[3], mark[2] or mark[4] or "", number, "", [], block)
            example.messages.append(message)
        elif line.startswith("==="):
            raise ExampleError(f"{path.name}:{number}: {line!r} is neither request, response nor snapshot")
        elif block is not None:
            block.append(line)
        elif (setting := _SETTING.fullmatch(line)) is not None:
            words = setting[2].split()
            if setting[1] == "gateway":
                example.options += words
            else:
                example.environment |= dict(word.split("=", 1) for word in words)
        elif line and not line.startswith("#"):
            raise ExampleError(f"{path.name}:{number}: text before the first request")
    for message in example.messages:
        _split(path, message)
    _check_order(example)
    return example


def replay(example: Example, base_url: str, make_snapshot: Callable[[str], object] | None = None) -> int:
    """Send every request and compare every response; the number of responses that were compared.

    `make_snapshot` makes one of that id. Raises Mismatch, which names the file, the line and the difference.
    """
    host = urlsplit(base_url).netloc
    values = {"host": host}
    waiting: dict[str, tuple[socket.socket, str]] = {}
    compared = 0
    try:
        for message in example.messages:
            where = f"{example.path.name}:{message.line}"
            if message.kind == "snapshot":
                if make_snapshot is None:
                    raise ExampleError(f"{where}: no snapshot can be made here")
                make_snapshot(message.label)
            elif message.kind == "request":
                method = message.start.partition(" ")[0]
                waiting[message.label] = _send(host, _request(message, values, where)), method
            else:
                connection, method = waiting.pop(message.label)
                with connection:
                    _compare(message, connection, method, values, where)
                compared += 1
    finally:
        for connection, _ in waiting.values():
            connection.close()
    return compared


def _split(path: Path, message: Message) -> None:
    """Cut a block into start line, headers and body; one empty line at its end belongs to nobody."""
    block = message.body
    while len(block) > 1 and block[-1] == "" and block[-2] == "":
        block.pop()
    if block and block[-1] == "":
        block.pop()
    if message.kind == "snapshot":
        if block:
            raise ExampleError(f"{path.name}:{message.line}: text behind a snapshot")
        return
    if not block:
        raise ExampleError(f"{path.name}:{message.line}: an empty message")
    empty = block.index("") if "" in block else len(block)
    message.start, message.headers = block[0], block[1:empty]
    message.body = block[empty + 1 :]


def _check_order(example: Example) -> None:
    name = example.path.name
    open_labels: set[str] = set()
    exchanged = [message for message in example.messages if message.kind != "snapshot"]
    for message in exchanged:
        if (message.kind == "request") == (message.label in open_labels):
            raise ExampleError(f"{name}:{message.line}: {message.kind} is out of order")
        open_labels ^= {message.label}
    if open_labels or not exchanged:
        raise ExampleError(f"{name}: a request has no response, or there is none at all")


def _request(message: Message, values: dict[str, str], where: str) -> bytes:
    def value(match: re.Match[str]) -> str:
        name = match[1].rstrip("*")
        if name not in values:
            raise ExampleError(f"{where}: {{{name}}} has no value yet")
        return values[name]

    head = "\r\n".join([message.start, *message.headers])
    text = head + "\r\n\r\n" + "\n".join(message.body)
    return _PLACEHOLDER.sub(value, text).encode()


def _send(host: str, data: bytes) -> socket.socket:
    name, _, port = host.rpartition(":")
    connection = socket.create_connection((name, int(port)), timeout=TIMEOUT_S)
    connection.sendall(data)
    return connection


def _compare(
    message: Message, connection: socket.socket, method: str, values: dict[str, str], where: str
) -> None:
    response = http.client.HTTPResponse(connection, method=method)
    response.begin()
    body = response.read()
    # The reason phrase is for people, and differs from one version of Python to the next (RFC 9112, 4).
    status = " ".join(message.start.split(" ")[:2])
    _match(status, f"HTTP/1.1 {response.status}", values, where)
    expected: dict[str, list[str]] = {}
    for line in message.headers:
        name, _, value = line.partition(":")
        expected.setdefault(name.lower(), []).append(value.strip())
    for name, wanted in expected.items():
        found = response.headers.get_all(name, [])
        if len(found) != len(wanted):
            raise Mismatch(f"{where}: {name}: expected {wanted}, found {found}")
        for one, other in zip(wanted, found, strict=True):
            _match(f"{name}: {one}", f"{name}: {other}", values, where)
    content_type = expected.get("content-type", [""])[0]
    _compare_body(message.body, body, content_type, values, where)


def _compare_body(
    lines: list[str], body: bytes, content_type: str, values: dict[str, str], where: str
) -> None:
    found = body.decode("utf-8")
    if "json" in content_type:
        # White space between the tokens of JSON means nothing, and examples are to be read.
        _match(_compact("\n".join(lines)), _compact(found), values, where)
        return
    multipart = content_type.startswith("multipart/")
    text = ("\r\n" if multipart else "\n").join(lines)
    if multipart and lines and not text.endswith("\\"):
        text += "\r\n"
    _match(text.removesuffix("\\"), found, values, where)


def _compact(text: str) -> str:
    """JSON without white space outside of strings."""
    strings = re.compile(r'("(?:[^"\\]|\\.)*")|\s+')
    return strings.sub(lambda match: match[1] or "", text)


def _match(expected: str, found: str, values: dict[str, str], where: str) -> None:
    """Compare, and keep the values of placeholders that have none yet."""
    pattern = ""
    position = 0
    new: set[str] = set()
    for placeholder in _PLACEHOLDER.finditer(expected):
        pattern += re.escape(expected[position : placeholder.start()])
        position = placeholder.end()
        name = placeholder[1].rstrip("*")
        if not name:
            pattern += _REST
        elif name in values:
            pattern += re.escape(values[name])
        elif name in new:
            pattern += f"(?P={name})"
        else:
            new.add(name)
            pattern += f"(?P<{name}>{_REST if placeholder[1].endswith('*') else _VALUE})"
    pattern += re.escape(expected[position:])
    match = re.fullmatch(pattern, found)
    if match is None:
        shown = _PLACEHOLDER.sub(lambda m: values.get(m[1].rstrip("*"), m[0]), expected)
        raise Mismatch(f"{where}:\nexpected: {shown!r}\nfound:    {found!r}")
    values |= match.groupdict()
