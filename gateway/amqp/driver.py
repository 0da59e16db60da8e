"""Proton's AMQP 1.0 engine inside asyncio: one protocol object for each connection.

Theory: proton's transport is a pair of pipes without I/O. Bytes from the socket are pushed into it,
no more at a time than it has room for; each push makes events, which the collector hands out and
which go to an `EngineHandler`; then everything that the transport has pending is written to the
socket. Work done outside of a handler's callback must end with `flush()`.

Nothing is written while asyncio says that the socket's buffer is full, so a peer that stops reading
stops this end's output; what a handler wants to send after that it must hold back itself: it looks
at `writable` and at a link's `outgoing_bytes`, and goes on in `on_writable`.

Events and deliveries are read through `cproton`, the functions under proton's classes: wrapping one
event costs more than all else that is done for a message (6 to 10 µs against 0.4). That is confined
to this module and `endpoints`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import cproton as pn  # type: ignore[import-untyped]
from proton import Collector, Connection, Endpoint, Session, Transport
from proton import Condition as ProtonCondition

from gateway.amqp.endpoints import AmqpDelivery, AmqpLink, Condition, condition_of, data_of, text_of
from gateway.core.errors import DecodeError, InvalidSetting

logger = logging.getLogger("wes.amqp")

_wrap_session: Callable[[Any], Any] = Session.wrap

WRITE_BYTES = 131_072
"""Output is gathered up to about this size before it is handed to the socket."""


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """What one end says and allows when a connection is opened (part 2, 2.7.1). Immutable."""

    container_id: str
    hostname: str | None = None
    idle_timeout_ms: int = 60_000
    frame_bytes_max: int = 65_536
    channel_max: int = 255
    sasl: bool = True
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    offered_capabilities: tuple[str, ...] = ()
    output_bytes_max: int = 262_144
    """The socket's write buffer above which no more output is taken from the engine."""
    open_wait_ms: int = 15_000
    """The peer must have opened the connection by then."""
    close_wait_ms: int = 5_000
    """The peer must have answered a close by then."""

    def __post_init__(self) -> None:
        if self.frame_bytes_max < 512:
            raise InvalidSetting(f"frame_bytes_max is {self.frame_bytes_max}; AMQP needs 512 or more")
        if not 0 <= self.channel_max <= 32_767:
            raise InvalidSetting(f"channel_max is {self.channel_max}; it goes from 0 to 32767")
        if (self.user is None) != (self.password is None):
            raise InvalidSetting("a user needs a password and a password a user")


class EngineHandler:
    """What happens on a connection. Subclass it and override what matters; the defaults do nothing.

    All methods are called in the event loop and must not block. DecodeError out of a method closes
    the connection with `amqp:decode-error`, any other exception is logged and closes it with
    `amqp:internal-error`.
    """

    def on_connection_opened(self, connection: AmqpConnection) -> None:
        """The peer has opened the connection. A server refuses by `connection.close(condition)`."""

    def on_connection_closed(self, connection: AmqpConnection, condition: Condition | None) -> None:
        """The peer has closed the connection; the driver answers, `on_disconnected` follows."""

    def on_session_opened(self, connection: AmqpConnection, session: Session) -> None:
        """The peer has begun a session; a server answers with `session.open()`."""

    def on_session_closed(
        self, connection: AmqpConnection, session: Session, condition: Condition | None
    ) -> None:
        """The peer has ended a session; `on_link_closed` came first for each of its links."""

    def on_link_opened(self, link: AmqpLink) -> None:
        """The peer has attached; a server answers with `link.open()` or `link.refuse()`."""

    def on_link_closed(self, link: AmqpLink, condition: Condition | None) -> None:
        """The peer has detached or its session ended; the driver answers, `link` is dead after."""

    def on_link_flow(self, link: AmqpLink) -> None:
        """Credit or drain has changed."""

    def on_delivery(self, link: AmqpLink, delivery: AmqpDelivery) -> None:
        """A delivery has come in, in part or whole, or the peer has changed one's state."""

    def on_batch(self, connection: AmqpConnection) -> None:
        """All events of one read were handed out; output follows. The place for work in bulk."""

    def on_writable(self, connection: AmqpConnection) -> None:
        """The socket takes output again."""

    def on_transport_error(self, connection: AmqpConnection, text: str) -> None:
        """The peer broke the protocol, was not authenticated or fell silent; the end is near."""

    def on_disconnected(self, connection: AmqpConnection, reason: str) -> None:
        """The connection is gone. The last call for it, made exactly once."""


class AmqpConnection(asyncio.Protocol):
    """One AMQP connection, client or server, as an asyncio protocol. TLS is asyncio's business."""

    def __init__(self, handler: EngineHandler, settings: ConnectionSettings, *, server: bool) -> None:
        self.handler = handler
        self.settings = settings
        self.server = server
        self.opened = False
        """Whether the peer has opened the connection."""
        self.owner: Any = None
        """For the handler."""
        self.peer = "unknown"
        """The peer's address, for logs."""
        self._socket: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._links: dict[Any, AmqpLink] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._paused = self._busy = self._lost = self._closing = False
        self._failure: str | None = None
        self._connection = Connection()
        self._transport = Transport(Transport.SERVER if server else Transport.CLIENT)
        self._engine: Any = self._transport._impl
        self._collector = Collector()
        self._connection.collect(self._collector)
        self._set_up()

    def _set_up(self) -> None:
        settings, connection, transport = self.settings, self._connection, self._transport
        connection.container = settings.container_id
        if settings.hostname is not None:
            connection.hostname = settings.hostname
        if settings.offered_capabilities:
            connection.offered_capabilities = list(settings.offered_capabilities)
        transport.max_frame_size = settings.frame_bytes_max
        transport.channel_max = settings.channel_max
        transport.idle_timeout = settings.idle_timeout_ms / 1000
        if settings.sasl:
            sasl = transport.sasl()
            if self.server or settings.user is None or settings.password is None:
                sasl.allowed_mechs("ANONYMOUS")
            else:
                # The engine cannot see asyncio's TLS, so it takes every connection for a plain one.
                sasl.allow_insecure_mechs = True
                sasl.allowed_mechs("PLAIN")
                connection.user = settings.user
                connection.password = settings.password
        transport.require_auth(False)
        transport.bind(connection)

    # For handlers and their owners

    @property
    def writable(self) -> bool:
        """Whether the socket takes output; if not, hold back until `on_writable`."""
        return not self._paused and not self._lost

    @property
    def closing(self) -> bool:
        """Whether either end is about to end the connection, or it is gone."""
        return self._closing or self._lost

    @property
    def remote_container(self) -> str | None:
        """The container id of the peer."""
        return text_of(pn.pn_connection_remote_container, self._connection._impl)

    @property
    def remote_capabilities(self) -> list[Any]:
        """What the peer offers."""
        offered = data_of(pn.pn_connection_remote_offered_capabilities(self._connection._impl))
        return offered if isinstance(offered, list) else [] if offered is None else [offered]

    @property
    def links(self) -> list[AmqpLink]:
        """The links that are alive."""
        return list(self._links.values())

    def session(self, *, incoming_bytes_max: int | None = None) -> Session:
        """Begin a session, whose window keeps unread message data under `incoming_bytes_max`."""
        session = self._connection.session()
        if incoming_bytes_max is not None:
            session.incoming_capacity = incoming_bytes_max
        session.open()
        return session

    def sender(self, session: Session, name: str) -> AmqpLink:
        """A new sending link; name its source and target, then `open` it and `flush`."""
        return self._adopt(session.sender(name)._impl)

    def receiver(self, session: Session, name: str) -> AmqpLink:
        """A new receiving link; name its source and target, then `open` it and `flush`."""
        return self._adopt(session.receiver(name)._impl)

    def flush(self) -> None:
        """Write out what was done outside of a callback; inside of one it does nothing."""
        if not self._busy and not self._lost and self._socket is not None:
            self._process()

    def close(self, condition: Condition | None = None) -> None:
        """Close in good order; the connection is cut if the peer does not answer in time."""
        if self._closing or self._lost:
            return
        self._closing = True
        if self._socket is None:
            return
        connection = self._connection
        if connection.state & Endpoint.LOCAL_UNINIT:
            connection.open()
        if condition is not None:
            connection.condition = ProtonCondition(*condition)
        connection.close()
        self._start_timer("close", self.settings.close_wait_ms, self.abort)
        self.flush()

    def abort(self) -> None:
        """Cut the connection without a word; `on_disconnected` follows."""
        self._closing = True
        if self._socket is not None and not self._lost:
            self._socket.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._socket = cast(asyncio.Transport, transport)
        name = transport.get_extra_info("peername")
        if isinstance(name, tuple):
            self.peer = f"{name[0]}:{name[1]}"
        if self._closing:
            self._socket.abort()
            return
        self._socket.set_write_buffer_limits(high=self.settings.output_bytes_max)
        if not self.server:
            self._connection.open()
        self._start_timer("open", self.settings.open_wait_ms, self._open_overdue)
        self._tick()

    def data_received(self, data: bytes) -> None:
        engine, at, size = self._engine, 0, len(data)
        view = memoryview(data)
        while at < size and not self._lost:
            room = pn.pn_transport_capacity(engine)
            if room <= 0:
                break  # the peer has closed, or was cut off for an error, or sends what never ends
            end = min(at + room, size)
            pn.pn_transport_push(engine, view[at:end])
            at = end
            self._dispatch()
        if at < size or pn.pn_transport_capacity(engine) < 0:
            self._input_ended()
        self._guard(self.handler.on_batch, self)
        self._process()

    def eof_received(self) -> bool | None:
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        if self._lost:
            return
        self._lost = True
        for timer in self._timers.values():
            timer.cancel()
        for link in self._links.values():
            link.alive = False
        self._links.clear()
        reason = self._failure or (str(exc) if exc else "") or "the connection was closed"
        try:
            self.handler.on_disconnected(self, reason)
        finally:
            self._transport.unbind()
            self._connection.free()
            self._collector.release()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        if not self._lost:
            self._guard(self.handler.on_writable, self)
            self._process()

    # Events

    def _process(self) -> None:
        """Hand out events and write output until neither is left."""
        self._dispatch()
        self._write_out()
        while not self._lost and pn.pn_collector_more(self._collector._impl):
            self._dispatch()
            self._write_out()

    def _dispatch(self) -> None:
        if self._busy or self._lost:
            return
        collector, links, on_delivery = self._collector._impl, self._links, self.handler.on_delivery
        self._busy = True
        try:
            while event := pn.pn_collector_peek(collector):
                kind = pn.pn_event_type(event)
                try:
                    if kind == pn.PN_DELIVERY:
                        impl = pn.pn_event_delivery(event)
                        link = links.get(pn.pn_delivery_link(impl))
                        if link is not None:
                            on_delivery(link, AmqpDelivery(link, impl))
                    elif kind in _ACTIONS:
                        _ACTIONS[kind](self, event)
                except Exception as error:
                    self._handler_failed(error)
                pn.pn_collector_pop(collector)
        finally:
            self._busy = False

    def _guard(self, call: Callable[..., None], *arguments: Any) -> None:
        self._busy = True
        try:
            call(*arguments)
        except Exception as error:
            self._handler_failed(error)
        finally:
            self._busy = False

    def _handler_failed(self, error: Exception) -> None:
        self._failure = f"{type(error).__name__}: {error}"
        if isinstance(error, DecodeError):
            self.close(Condition("amqp:decode-error", str(error)))
            return
        logger.error("handler_failed", extra={"peer": self.peer}, exc_info=error)
        self.close(Condition("amqp:internal-error", "this end failed to handle an event"))

    def _on_connection_opened(self, event: Any) -> None:
        self._stop_timer("open")
        self.opened = True
        self.handler.on_connection_opened(self)
        if self._connection.state & Endpoint.LOCAL_UNINIT:
            self._connection.open()
        # The peer's idle timeout is known only now.
        self._loop.call_soon(self._tick)

    def _on_connection_closed(self, event: Any) -> None:
        condition = condition_of(pn.pn_connection_remote_condition(self._connection._impl))
        if condition is not None:
            self._failure = f"{condition.name}: {condition.description}"
        try:
            self.handler.on_connection_closed(self, condition)
        finally:
            self.close()

    def _on_session_opened(self, event: Any) -> None:
        self.handler.on_session_opened(self, _wrap_session(pn.pn_event_session(event)))

    def _on_session_closed(self, event: Any) -> None:
        impl = pn.pn_event_session(event)
        session = _wrap_session(impl)
        condition = condition_of(pn.pn_session_remote_condition(impl))
        for link in self.links:
            if link.session == impl:
                self._drop(link, condition)
        self.handler.on_session_closed(self, session, condition)
        session.close()
        session.free()

    def _on_link_opened(self, event: Any) -> None:
        impl = pn.pn_event_link(event)
        link = self._links.get(impl) or self._adopt(impl)
        self.handler.on_link_opened(link)

    def _on_link_closed(self, event: Any) -> None:
        link = self._links.get(pn.pn_event_link(event))
        if link is None:
            return
        self._drop(link, condition_of(pn.pn_link_remote_condition(link.impl)))
        if pn.pn_event_type(event) == pn.PN_LINK_REMOTE_DETACH:
            pn.pn_link_detach(link.impl)
        else:
            pn.pn_link_close(link.impl)
        pn.pn_link_free(link.impl)

    def _on_link_flow(self, event: Any) -> None:
        link = self._links.get(pn.pn_event_link(event))
        if link is not None:
            self.handler.on_link_flow(link)

    def _on_transport_error(self, event: Any) -> None:
        condition = condition_of(pn.pn_transport_condition(self._engine))
        self._report(condition or Condition("amqp:connection:framing-error", "unknown"))

    def _input_ended(self) -> None:
        """For some frames the engine takes no more input and does not say why."""
        if self._failure is None and not self._connection.state & Endpoint.REMOTE_CLOSED:
            condition = Condition("amqp:connection:framing-error", "a frame made no sense")
            self._guard(self._report, condition)
            self.close(condition)

    def _report(self, condition: Condition) -> None:
        if self._failure is None:
            self._failure = f"{condition.name}: {condition.description}"
            self.handler.on_transport_error(self, self._failure)

    def _adopt(self, impl: Any) -> AmqpLink:
        link = self._links[impl] = AmqpLink(self, impl)
        return link

    def _drop(self, link: AmqpLink, condition: Condition | None) -> None:
        try:
            self.handler.on_link_closed(link, condition)
        finally:
            link.alive = False
            self._links.pop(link.impl, None)

    # Output and time

    def _write_out(self) -> None:
        engine, socket = self._engine, self._socket
        if socket is None or self._busy:
            return
        chunks: list[bytearray] = []
        size = pending = 0
        while not self._paused and (pending := pn.pn_transport_pending(engine)) > 0:
            chunks.append(pn.pn_transport_peek(engine, pending)[1])
            pn.pn_transport_pop(engine, pending)
            size += pending
            if size >= WRITE_BYTES:
                socket.write(b"".join(chunks))
                chunks, size = [], 0
        if chunks:
            socket.write(b"".join(chunks))
        # The engine does not say that it is done where its input broke off in the middle of a frame.
        if pending < 0 or (self._closing and not self._paused and pn.pn_transport_capacity(engine) < 0):
            self._output_ended(socket)

    def _output_ended(self, socket: asyncio.Transport) -> None:
        """The engine has written its last byte; the socket closes when the peer has done so too."""
        self._closing = True
        if pn.pn_transport_capacity(self._engine) < 0:
            socket.close()
        self._start_timer("close", self.settings.close_wait_ms, self.abort)

    def _tick(self) -> None:
        if self._lost:
            return
        now_ms = int(self._loop.time() * 1000) + 1  # the engine takes 0 for no time at all
        deadline_ms = pn.pn_transport_tick(self._engine, now_ms)
        self._stop_timer("tick")
        if deadline_ms:
            self._start_timer("tick", max(deadline_ms - now_ms, 1), self._tick)
        self._process()

    def _open_overdue(self) -> None:
        self._failure = f"the peer has not opened within {self.settings.open_wait_ms} ms"
        self.abort()

    def _start_timer(self, name: str, wait_ms: int, call: Callable[[], None]) -> None:
        if name not in self._timers and not self._lost:
            self._timers[name] = self._loop.call_later(wait_ms / 1000, call)

    def _stop_timer(self, name: str) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()


_ACTIONS: dict[int, Callable[[AmqpConnection, Any], None]] = {
    pn.PN_CONNECTION_REMOTE_OPEN: AmqpConnection._on_connection_opened,
    pn.PN_CONNECTION_REMOTE_CLOSE: AmqpConnection._on_connection_closed,
    pn.PN_SESSION_REMOTE_OPEN: AmqpConnection._on_session_opened,
    pn.PN_SESSION_REMOTE_CLOSE: AmqpConnection._on_session_closed,
    pn.PN_LINK_REMOTE_OPEN: AmqpConnection._on_link_opened,
    pn.PN_LINK_REMOTE_CLOSE: AmqpConnection._on_link_closed,
    pn.PN_LINK_REMOTE_DETACH: AmqpConnection._on_link_closed,
    pn.PN_LINK_FLOW: AmqpConnection._on_link_flow,
    pn.PN_TRANSPORT_ERROR: AmqpConnection._on_transport_error,
}
