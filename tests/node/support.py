"""A small AMQP client on the driver, and a node to point it at."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from proton import Link, Session

from gateway.amqp.codec import Described
from gateway.amqp.driver import AmqpConnection, ConnectionSettings, EngineHandler
from gateway.amqp.endpoints import AmqpDelivery, AmqpLink, Condition, Outcome
from gateway.amqp.sections import decode_message, encode_message
from gateway.core.message import BodyKind, Message, Properties, Symbol
from gateway.node.server import Node, clock_ms
from gateway.node.settings import LogSettings, NodeSettings

FILTER = Symbol("amqp:event-streams-delivery-annotations-filter")
PARTITION = Symbol("event-streams-partition")


def run(scenario: Callable[[], Awaitable[None]], *, within_s: float = 20) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(scenario(), within_s)

    asyncio.run(bounded())


async def until(condition: Callable[[], object], *, within_s: float = 8.0) -> None:
    deadline = asyncio.get_running_loop().time() + within_s
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "it did not come about in time"
        await asyncio.sleep(0.002)


@asynccontextmanager
async def running_node(
    data: Path,
    *,
    logs: list[LogSettings] | None = None,
    settings: NodeSettings | None = None,
    clock: Callable[[], int] = clock_ms,
) -> AsyncIterator[tuple[Node, int]]:
    node = Node(settings or NodeSettings(), logs or [LogSettings("events")], data, clock)
    port = await node.start("127.0.0.1", 0)
    try:
        yield node, port
    finally:
        await node.stop()


def event(
    body: bytes, *, group_id: str | None = None, annotations: dict[Any, Any] | None = None, **more: Any
) -> bytes:
    return encode_message(
        Message(
            message_annotations=annotations,
            properties=Properties(subject="PUT", to="/products/1", group_id=group_id),
            body_kind=BodyKind.DATA,
            body=[body],
            **more,
        )
    )


def starting(**annotations: Any) -> dict[Any, Any]:
    """A filter set; `offset` and `timestamp` are its annotations."""
    wanted = {Symbol(f"event-streams-{name}"): value for name, value in annotations.items()}
    return {Symbol("start"): Described(FILTER, wanted)}


EARLIEST = starting(offset=Symbol("@earliest"))


class Peer(EngineHandler):
    """A client's connection to a node."""

    def __init__(self) -> None:
        self.connection: AmqpConnection = None  # type: ignore[assignment]
        self.session: Session = None
        self.ended: str | None = None
        self.condition: Condition | None = None

    def on_connection_opened(self, connection: AmqpConnection) -> None:
        self.connection = connection

    def on_connection_closed(self, connection: AmqpConnection, condition: Condition | None) -> None:
        self.condition = condition

    def on_link_opened(self, link: AmqpLink) -> None:
        link.owner.on_opened()

    def on_link_closed(self, link: AmqpLink, condition: Condition | None) -> None:
        link.owner.closed = condition or Condition("none")

    def on_link_flow(self, link: AmqpLink) -> None:
        link.owner.on_flow()

    def on_delivery(self, link: AmqpLink, delivery: AmqpDelivery) -> None:
        link.owner.on_delivery(delivery)

    def on_batch(self, connection: AmqpConnection) -> None:
        for link in connection.links:
            if link.is_sender:
                link.owner.on_flow()

    def on_disconnected(self, connection: AmqpConnection, reason: str) -> None:
        self.ended = reason

    async def sender(self, address: str | None, **options: Any) -> Sending:
        end = Sending(self, address, **options)
        await until(lambda: end.opened or end.closed or self.ended)
        return end

    async def receiver(self, address: str | None, **options: Any) -> Receiving:
        end = Receiving(self, address, **options)
        await until(lambda: end.opened or end.closed or self.ended)
        return end

    async def close(self) -> None:
        self.connection.close()
        await until(lambda: self.ended)


async def connect(port: int, *, receive_buffer: int | None = None, **settings: Any) -> Peer:
    peer = Peer()
    loop = asyncio.get_running_loop()
    raw = socket.socket()
    if receive_buffer is not None:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    raw.setblocking(False)
    await loop.sock_connect(raw, ("127.0.0.1", port))
    _, peer.connection = await loop.create_connection(
        lambda: AmqpConnection(peer, ConnectionSettings("test", **settings), server=False),
        sock=raw,
    )
    await until(lambda: peer.connection.opened or peer.ended)
    if peer.ended is None and not peer.connection.closing:
        peer.session = peer.connection.session()
    return peer


class End:
    names = 0

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.opened = False
        self.closed: Condition | None = None
        End.names += 1
        self.name = f"link-{End.names}"

    def on_opened(self) -> None:
        self.opened = True

    def on_flow(self) -> None:
        pass


class Sending(End):
    """Sends what it is given as credit allows, and keeps the outcomes in order of sending."""

    def __init__(
        self,
        peer: Peer,
        address: str | None,
        *,
        properties: dict[Any, Any] | None = None,
        settled: bool = False,
    ) -> None:
        super().__init__(peer)
        self.settled = settled
        self.queue: list[bytes] = []
        self.sent = 0
        self.outcomes: dict[int, tuple[Outcome | None, Condition | None]] = {}
        self.numbers: dict[Any, int] = {}
        self.link = peer.connection.sender(peer.session, self.name)
        self.link.owner = self
        self.link.set_target(address)
        self.link.set_source("test")
        if properties:
            self.link.set_properties(properties)
        self.link.open()
        peer.connection.flush()

    def on_flow(self) -> None:
        while self.sent < len(self.queue) and self.link.credit > 0:
            self._send_next()

    def _send_next(self) -> None:
        delivery = self.link.send(self.queue[self.sent], b"%d" % self.sent, settled=self.settled)
        if delivery is not None:
            self.numbers[delivery.impl] = self.sent
        self.sent += 1

    def on_delivery(self, delivery: AmqpDelivery) -> None:
        number = self.numbers.pop(delivery.impl)
        self.outcomes[number] = (delivery.outcome, delivery.condition)
        delivery.settle()

    async def send(self, *messages: bytes) -> list[tuple[Outcome | None, Condition | None]]:
        first = len(self.queue)
        self.queue += messages
        self.on_flow()
        self.peer.connection.flush()
        if self.settled:
            await until(lambda: self.sent == len(self.queue))
            return []
        await until(
            lambda: (
                all(number in self.outcomes for number in range(first, len(self.queue)))
                or self.closed
                or self.peer.ended
            )
        )
        return [self.outcomes[n] for n in range(first, len(self.queue)) if n in self.outcomes]


class Receiving(End):
    """Receives and settles, as told."""

    def __init__(
        self,
        peer: Peer,
        address: str | None,
        *,
        filters: dict[Any, Any] | None = None,
        properties: dict[Any, Any] | None = None,
        credit: int = 100,
        settled: bool = False,
        outcome: Outcome | None = Outcome.ACCEPTED,
    ) -> None:
        super().__init__(peer)
        self.outcome = outcome
        self.raw: list[bytes] = []
        self.held: list[AmqpDelivery] = []
        self.topping_up = credit >= 10
        self.link = peer.connection.receiver(peer.session, self.name)
        self.link.owner = self
        self.link.set_source(address, filters=filters)
        self.link.set_target("test")
        if properties:
            self.link.set_properties(properties)
        if settled:
            self.link.endpoint.snd_settle_mode = Link.SND_SETTLED
        self.link.open()
        self.flow(credit)

    def flow(self, credit: int) -> None:
        if credit:
            self.link.flow(credit)
        self.peer.connection.flush()

    def drain(self, credit: int) -> None:
        self.link.endpoint.drain(credit)
        self.peer.connection.flush()

    def on_delivery(self, delivery: AmqpDelivery) -> None:
        if not delivery.readable or delivery.partial:
            return
        self.raw.append(delivery.take())
        if self.outcome is None and not delivery.settled:
            self.held.append(delivery)
        else:
            delivery.settle(self.outcome)
        if self.topping_up:
            self.link.flow(1)

    async def messages(self, count: int) -> list[Message]:
        await until(lambda: len(self.raw) >= count or self.closed or self.peer.ended)
        return [decode_message(raw) for raw in self.raw]

    async def bodies(self, count: int) -> list[bytes]:
        return [message.body[0] for message in await self.messages(count)]
