"""An event log node of one partition that misbehaves on request, at the gateway's end of the wire.

It runs in a thread of its own. `messages` is the log; a test appends to it and sets how the next
attachments are served. After that it behaves, so that what a test sees at the end is how the gateway got
over it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import cproton as pn

from gateway.amqp.driver import AmqpConnection, ConnectionSettings, EngineHandler
from gateway.amqp.endpoints import AmqpDelivery, AmqpLink, Condition, Outcome
from gateway.amqp.sections import encode_delivery_annotations, encode_message
from gateway.core.message import BodyKind, Message, Symbol
from tests.acceptance.support import message

LOG = "events"
PARTITION = Symbol("event-streams-partition")
TIME_MS = 1_700_000_000_000

Script = Callable[["Broker", AmqpLink, int], None]
"""Serves one receiver that starts at an index in `messages`; called with each flow until it is done."""


def offset(number: int) -> str:
    return f"{number:020d}"


class Broker(EngineHandler):
    """The broker; use it as a context manager."""

    def __init__(self, *, frame_bytes_max: int = 65_536) -> None:
        self.messages: list[tuple[int, bytes]] = []
        """Numbers, which offsets are made from, and encoded messages without delivery annotations."""
        self.scripts: list[Script] = []
        """For the next receivers, one each; those behind are served well."""
        self.starts: list[str] = []
        """The offsets that receivers asked for."""
        self.echo_filter = True
        self.settled: list[tuple[AmqpLink, Outcome | None]] = []
        self.settle_published: Callable[[AmqpConnection], bool] = lambda _: True
        self._frame_bytes_max = frame_bytes_max
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._serving: dict[AmqpLink, tuple[Script, int]] = {}
        self._connections: set[AmqpConnection] = set()
        self._all_gone = asyncio.Event()
        self._server: Any = None
        self.url = ""

    def __enter__(self) -> Broker:
        self._thread.start()

        async def start() -> int:
            settings = ConnectionSettings("scripted", frame_bytes_max=self._frame_bytes_max)
            self._server = await self._loop.create_server(
                lambda: AmqpConnection(self, settings, server=True), "127.0.0.1", 0
            )
            return self._server.sockets[0].getsockname()[1]

        self.url = f"amqp://127.0.0.1:{self._wait_for(start())}"
        return self

    def __exit__(self, *_: object) -> None:
        async def stop() -> None:
            self._server.close()
            for connection in list(self._connections):
                connection.abort()
            self._all_gone.clear()
            if self._connections:
                await self._all_gone.wait()

        self._wait_for(stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def add(self, *bodies: bytes, first: int | None = None) -> None:
        """Append events about /things/{number}."""
        number = first if first is not None else len(self.messages)
        for body in bodies:
            self.messages.append((number, native(number, body)))
            number += 1

    def drop_connections(self) -> None:
        """Cut all connections."""

        async def drop() -> None:
            for connection in list(self._connections):
                connection.abort()

        self._wait_for(drop())

    def wake(self) -> None:
        """Serve what was added since."""

        async def serve() -> None:
            for link in list(self._serving):
                self.on_link_flow(link)
                link.connection.flush()

        self._wait_for(serve())

    def _wait_for(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    # EngineHandler

    def on_connection_opened(self, connection: AmqpConnection) -> None:
        self._connections.add(connection)

    def on_session_opened(self, connection: AmqpConnection, session: Any) -> None:
        session.open()

    def on_link_opened(self, link: AmqpLink) -> None:
        link.set_source(link.remote_source_address, filters=link.remote_filter if self.echo_filter else None)
        link.set_target(link.remote_target_address)
        if link.remote_properties:
            link.set_properties(link.remote_properties)
        if not link.is_sender:
            link.open()
            link.flow(1_000)
        elif link.remote_source_address == LOG:
            start = next(iter(link.remote_filter.values())).value["event-streams-offset"]
            self.starts.append(str(start))
            first = 0 if start == "@earliest" else self._index(str(start))
            self._serving[link] = (self.scripts.pop(0) if self.scripts else serve_well, first)
            link.open()
        else:
            link.open()

    def on_link_flow(self, link: AmqpLink) -> None:
        if not link.alive or link.credit == 0:
            return
        if link in self._serving:
            script, first = self._serving[link]
            script(self, link, first)
        elif link.is_sender and link.remote_source_address == f"{LOG}/$info":
            link.send(self._information(), b"info", settled=True)

    def on_link_closed(self, link: AmqpLink, condition: Condition | None) -> None:
        self._serving.pop(link, None)

    def on_delivery(self, link: AmqpLink, delivery: AmqpDelivery) -> None:
        if link.is_sender:
            if delivery.settled:
                self.settled.append((link, delivery.outcome))
                delivery.settle()
        elif delivery.readable and not delivery.partial:
            data = delivery.take()
            if self.settle_published(link.connection):
                self.messages.append((self.messages[-1][0] + 1 if self.messages else 0, data))
                delivery.settle(Outcome.ACCEPTED)
                for other in list(self._serving):
                    self.on_link_flow(other)
                    self._loop.call_soon(other.connection.flush)

    def on_disconnected(self, connection: AmqpConnection, reason: str) -> None:
        self._connections.discard(connection)
        for link in [link for link in self._serving if link.connection is connection]:
            del self._serving[link]
        if not self._connections:
            self._all_gone.set()

    # For scripts

    def send(self, link: AmqpLink, index: int, *, settled: bool = False) -> None:
        """Send a message with its delivery annotations."""
        link.send(annotated(*self.messages[index]), b"%d" % index, settled=settled)

    def send_to_the_end(self, link: AmqpLink, first: int) -> None:
        """Send what there is from an index on, and remember how far that was."""
        while first < len(self.messages) and link.credit > 0:
            self.send(link, first)
            first += 1
        self._serving[link] = (serve_well, first)

    def done(self, link: AmqpLink) -> None:
        """Send nothing more on the link."""
        self._serving.pop(link, None)

    def later(self, wait_s: float, call: Callable[[], None]) -> None:
        self._loop.call_later(wait_s, call)

    def _index(self, start: str) -> int:
        return next((i for i, (n, _) in enumerate(self.messages) if offset(n) >= start), len(self.messages))

    def _information(self) -> bytes:
        ends = [Symbol(offset(self.messages[index][0])) for index in (0, -1)] if self.messages else [None] * 2
        facts = {"partition": Symbol("0"), "earliest-offset": ends[0], "latest-offset": ends[1]}
        entry = {Symbol(key): value for key, value in facts.items()}
        return encode_message(Message(body_kind=BodyKind.VALUE, body={Symbol("partitions"): [entry]}))


def annotated(number: int, data: bytes) -> bytes:
    return encode_delivery_annotations(offset=offset(number), timestamp=TIME_MS, partition="0") + data


def native(number: int, body: bytes) -> bytes:
    return encode_message(message(body, target=f"/things/{number}"))


def serve_well(broker: Broker, link: AmqpLink, first: int) -> None:
    """What a node does."""
    broker.send_to_the_end(link, first)


def close_after(count: int) -> Script:
    """Send some, then close the connection with a condition."""

    def script(broker: Broker, link: AmqpLink, first: int) -> None:
        for index in range(first, first + count):
            broker.send(link, index)
        broker.done(link)
        broker.later(0.05, lambda: link.connection.close(Condition("amqp:connection:forced", "maintenance")))

    return script


def detach_after(count: int) -> Script:
    """Send some, then detach the link with a condition."""

    def script(broker: Broker, link: AmqpLink, first: int) -> None:
        for index in range(first, first + count):
            broker.send(link, index)
        broker.done(link)
        link.close(Condition("amqp:link:detach-forced", "moved elsewhere"))

    return script


def vanish_inside_a_message(count: int) -> Script:
    """Send some and half of the next, then be gone."""

    def script(broker: Broker, link: AmqpLink, first: int) -> None:
        for index in range(first, first + count):
            broker.send(link, index)
        data = annotated(*broker.messages[first + count])
        pn.pn_delivery(link.impl, b"half")
        pn.pn_link_send(link.impl, data[: len(data) // 2])
        broker.done(link)
        broker.later(0.1, link.connection.abort)

    return script


def abort_a_message(count: int) -> Script:
    """Send some, give up on the next in the middle of it, and send it whole behind that."""

    def script(broker: Broker, link: AmqpLink, first: int) -> None:
        for index in range(first, first + count):
            broker.send(link, index)
        data = annotated(*broker.messages[first + count])
        delivery = pn.pn_delivery(link.impl, b"half")
        pn.pn_link_send(link.impl, data[: len(data) // 2])
        broker.done(link)

        def abort() -> None:
            pn.pn_delivery_abort(delivery)
            broker.send_to_the_end(link, first + count)
            link.connection.flush()

        broker.later(0.1, abort)

    return script


def send_in_this_order(*indices: int) -> Script:
    """Send messages in any order, as often as wanted, then what is left."""

    def script(broker: Broker, link: AmqpLink, first: int) -> None:
        for index in indices:
            broker.send(link, index)
        broker.send_to_the_end(link, max(indices) + 1)

    return script


def send_again_later(*indices: int, wait_s: float) -> Script:
    """Send messages, and after a while send them again, with what is left behind them."""

    def script(broker: Broker, link: AmqpLink, first: int) -> None:
        for index in indices:
            broker.send(link, index)
        broker.done(link)

        def again() -> None:
            send_in_this_order(*indices)(broker, link, first)
            link.connection.flush()

        broker.later(wait_s, again)

    return script


def send_unplaced(*, after: int) -> Script:
    """Send some, then a message that does not tell where in the log it stands, then what is left."""

    def script(broker: Broker, link: AmqpLink, first: int) -> None:
        for index in range(first, after):
            broker.send(link, index)
        link.send(native(99, b"unplaced"), b"unplaced", settled=False)
        broker.send_to_the_end(link, after)

    return script


def send_garbage(broker: Broker, link: AmqpLink, first: int) -> None:
    """Send a frame that makes no sense."""
    broker.send(link, first)
    broker.done(link)
    socket = link.connection._socket
    assert socket is not None
    broker.later(0.05, lambda: socket.write(b"\x00\x00\x00\x03 not a frame"))
