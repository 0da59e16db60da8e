"""One HTTP connection, with the limits in time that aiohttp leaves out: slow headers, stalled readers.

aiohttp closes a connection that waits too long for its next request, but lets a request's headers and a
response's body take for ever. Each connection notes since when it has been waiting for its client, and a
sweep once a second cuts those that wait too long: a note costs less than a timer for each request.
"""

from __future__ import annotations

import asyncio
from array import array
from contextlib import suppress
from fcntl import ioctl
from termios import TIOCOUTQ

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from .front import Front, Handler, front
from .live import SITE
from .problems import MEDIA_TYPE, problem_body
from .settings import SETTINGS, HttpSettings

SWEEP_S = 1.0


class LimitedConnection(RequestHandler):
    """aiohttp's connection, which notes since when its client has been slow."""

    headers_since: float | None = None
    stalled_since: float | None = None
    unsent = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.headers_since = self._loop.time()

    def data_received(self, data: bytes) -> None:
        if self._request_in_progress and (self._close or self._force_close):
            # aiohttp drops what comes once a stop has begun, and with it the rest of a body that a handler
            # is reading, which then waits for as long as the stop may take.
            stopping = self._close, self._force_close
            self._close = self._force_close = False
            super().data_received(data)
            self._close, self._force_close = stopping
        else:
            super().data_received(data)
        # aiohttp's waiter stays open for as long as no request is complete up to the end of its headers.
        waiter = self._waiter
        if waiter is None or waiter.done():
            self.headers_since = None
        elif self.headers_since is None:
            self.headers_since = self._loop.time()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.stalled_since = self._loop.time()
        # The sweep looks how much waits; here, once for each large answer, it would cost too much.
        self.unsent = 0

    def resume_writing(self) -> None:
        super().resume_writing()
        self.stalled_since = None

    def overdue(self, now: float, settings: HttpSettings) -> bool:
        """Whether the client has taken too long; one that reads slowly has not, as long as it reads."""
        if self.stalled_since is not None:
            unsent = self._unsent()
            if unsent < self.unsent:
                self.stalled_since = now
            self.unsent = unsent
        return (
            self.headers_since is not None and now - self.headers_since > settings.headers_time_max_s
        ) or (self.stalled_since is not None and now - self.stalled_since > settings.stall_time_max_s)

    def _unsent(self) -> int:
        """The bytes that wait for the client, here and in the kernel, which has room for megabytes."""
        if self.transport is None:
            return 0
        queued = array("i", [0])
        with suppress(OSError):
            ioctl(self.transport.get_extra_info("socket").fileno(), TIOCOUTQ, queued)
        return self.transport.get_write_buffer_size() + queued[0]

    def cut(self) -> None:
        """End the connection now, whatever is under way."""
        if self.transport is not None:
            self.transport.abort()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """What is wrong below the application, as a problem document instead of aiohttp's HTML."""
        if request.writer.output_size > 0:
            # A second answer must not stand within the first; aiohttp ends the connection for this.
            raise ConnectionError("an answer broke off") from exc
        if status >= 500:
            self.log_exception("request_failed", exc_info=exc)
        detail = message or "the server failed; its log says why"
        response = web.Response(status=status, body=problem_body(status, detail.splitlines()[0]))
        response.headers["Content-Type"] = MEDIA_TYPE
        response.headers["Cache-Control"] = "no-store"
        response.force_close()
        return response


class LimitedServer(web.Server):
    """Makes limited connections, no more than allowed at a time, and sweeps them."""

    def __init__(self, server: web.Server, handler: Handler, settings: HttpSettings) -> None:
        super().__init__(
            handler,
            request_factory=server.request_factory,
            loop=server._loop,
            **server._kwargs,
        )
        self._settings = settings
        self._sweeping: asyncio.TimerHandle | None = self._loop.call_later(SWEEP_S, self._sweep)

    def __call__(self) -> RequestHandler:
        return LimitedConnection(self, loop=self._loop, **self._kwargs)

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        if len(self.connections) > self._settings.connections_max:
            transport.abort()

    async def shutdown(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - aiohttp's signature
        if self._sweeping is not None:
            self._sweeping.cancel()
            self._sweeping = None
        await super().shutdown(timeout)

    def _sweep(self) -> None:
        now = self._loop.time()
        for connection in self.connections:
            assert isinstance(connection, LimitedConnection)
            if connection.overdue(now, self._settings):
                connection.cut()
        self._sweeping = self._loop.call_later(SWEEP_S, self._sweep)


class LimitedRunner(web.AppRunner):
    """Runs an application with limited connections; each request comes to `front_of` first."""

    def __init__(self, app: web.Application, front_of: Front = front) -> None:
        self._front_of = front_of
        settings = app[SETTINGS]
        super().__init__(
            app,
            access_log=None,
            lingering_time=settings.linger_time_max_s,
            # A coded body is published as it came: see `publish`.
            auto_decompress=False,
            keepalive_timeout=settings.idle_time_max_s,
            shutdown_timeout=settings.drain_time_max_s,
            handle_signals=False,
        )

    async def _make_server(self) -> web.Server:
        server = await super()._make_server()
        settings = self.app[SETTINGS]
        return LimitedServer(
            server, self._front_of(self.app[SITE], settings, server.request_handler), settings
        )
