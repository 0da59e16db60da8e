"""Passing a request on to the main process, which publishes and knows all, over a socket of its own.

The request goes on as it came: target and header lines byte for byte, save what is of one connection only
(RFC 9110, 7.6.1), and the body, which is read first so that a slow client holds nothing up there. The
answer comes back unchanged. No request is ever sent twice: a publication would be two events.

The peer is our own server, so this speaks HTTP/1.0 with `Connection: keep-alive`: a body is as long as its
Content-Length says, or else ends with the connection.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from aiohttp import web
from multidict import CIMultiDict

from gateway.core.errors import LogUnavailable, OutcomeUnknown
from gateway.core.event import METHODS

from .publish import late_body, read_body
from .settings import HttpSettings

ANSWER_MARGIN_S = 10.0
"""For the main process to answer beyond the time that a publication may take there."""
CHUNK_BYTES_MAX = 256 * 1024
HEAD_BYTES_MAX = 64 * 1024

# Of the connection, not of the message; what the length is, and that it comes at once, is said anew.
_HOP_BY_HOP = frozenset(
    {
        "connection",
        "content-length",
        "expect",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)


@dataclass(frozen=True, slots=True)
class _Answer:
    """The head of an answer; `length` is None where the body ends with the connection."""

    status: int
    reason: str
    headers: CIMultiDict[str]
    length: int | None
    last: bool


@dataclass(slots=True)
class _Connection:
    """A connection to the main process, and since when nothing was under way on it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    idle_since: float = 0.0


class Forwarder:
    """Sends requests to the server that listens on the Unix socket `path`."""

    def __init__(self, path: str, settings: HttpSettings) -> None:
        self._path = path
        self._settings = settings
        self._idle: list[_Connection] = []

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """The answer of the main process; raises LogUnavailable if it is away, OutcomeUnknown if it left."""
        body = await read_body(request, self._settings)
        if body is None:
            return late_body()
        connection = await self._connect()
        try:
            answer = await self._ask(connection, request, body)
            response = web.StreamResponse(status=answer.status, reason=answer.reason, headers=answer.headers)
            await response.prepare(request)
            await self._relay(connection.reader, response, answer.length)
        except BaseException:
            connection.writer.transport.abort()
            raise
        self._keep(connection, last=answer.last)
        return response

    def close(self) -> None:
        """Let go of all connections."""
        while self._idle:
            self._idle.pop().writer.close()

    async def _connect(self) -> _Connection:
        now = asyncio.get_running_loop().time()
        while self._idle:
            connection = self._idle.pop()
            # The server closes those that were idle for longer, so none is closed under a request.
            fresh = now - connection.idle_since < self._settings.idle_time_max_s / 2
            if fresh and not connection.reader.at_eof():
                return connection
            connection.writer.close()
        try:
            return _Connection(*await asyncio.open_unix_connection(self._path, limit=HEAD_BYTES_MAX))
        except OSError as error:
            raise LogUnavailable(f"the main process is away ({error}); nothing was sent to it") from error

    def _keep(self, connection: _Connection, *, last: bool) -> None:
        if last:
            connection.writer.close()
        else:
            connection.idle_since = asyncio.get_running_loop().time()
            self._idle.append(connection)

    async def _ask(self, connection: _Connection, request: web.BaseRequest, body: bytes) -> _Answer:
        wait_s = self._settings.publish_wait_max_s + ANSWER_MARGIN_S
        try:
            async with asyncio.timeout(wait_s):
                connection.writer.write(_request_head(request, len(body)) + body)
                await connection.writer.drain()
                return _answer(await connection.reader.readuntil(b"\r\n\r\n"), request.method)
        except (OSError, EOFError) as error:
            said = f"the main process did not answer ({type(error).__name__})"
            if request.method in METHODS:
                raise OutcomeUnknown(f"{said}: whether the event was kept is not known") from error
            raise LogUnavailable(said) from error

    @staticmethod
    async def _relay(reader: asyncio.StreamReader, response: web.StreamResponse, length: int | None) -> None:
        while length is None or length > 0:
            chunk = await reader.read(CHUNK_BYTES_MAX if length is None else min(length, CHUNK_BYTES_MAX))
            if length is not None:
                length -= len(chunk)
            if chunk:
                await response.write(chunk)
            elif length is None:
                break
            else:
                raise ConnectionError("the main process ended within an answer")
        await response.write_eof()


def _request_head(request: web.BaseRequest, length: int) -> bytes:
    lines = [f"{request.method} {request.raw_path} HTTP/1.0".encode("utf-8", "surrogateescape")]
    dropped = _HOP_BY_HOP | _named(request.headers.getall("Connection", []))
    lines += [
        b"%s: %s" % (name, value)
        for name, value in request.raw_headers
        if name.decode("utf-8", "surrogateescape").lower() not in dropped
    ]
    lines += [b"Connection: keep-alive", b"Content-Length: %d" % length, b"\r\n"]
    return b"\r\n".join(lines)


def _answer(head: bytes, method: str) -> _Answer:
    first, *lines = head.decode("utf-8", "surrogateescape").split("\r\n")[:-2]
    _, status, reason = first.split(" ", 2)
    headers: CIMultiDict[str] = CIMultiDict()
    for line in lines:
        name, _, value = line.partition(":")
        headers.add(name, value.strip(" "))
    kept_alive = "keep-alive" in _named(headers.getall("Connection", []))
    length: int | None = None
    if method == "HEAD" or status in ("204", "304"):
        length = 0
    elif "Content-Length" in headers:
        length = int(headers["Content-Length"])
    for name in ("Connection", "Keep-Alive"):
        headers.popall(name, None)
    return _Answer(int(status), reason, headers, length, last=length is None or not kept_alive)


def _named(values: list[str]) -> frozenset[str]:
    return frozenset(word.strip().lower() for value in values for word in value.split(","))
