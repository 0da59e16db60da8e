"""Reading one partition of a log: attach at a position, keep credit flowing, hand over what comes.

A consumer is one attachment on one fresh connection; whoever drives it makes a new one when it ends. It holds
back what the receiver cannot take: messages that are not taken stay in the session's window, which closes.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from gateway.core.errors import DecodeError, LogUnavailable

from .client import Broker, Client, LinkOwner
from .dialects import event_streams
from .dialects.event_streams import PartitionInfo
from .endpoints import AmqpDelivery, AmqpLink
from .sections import decode_message

CREDIT_WINDOW = 1_000
WINDOW_BYTES_MAX = 4 * 1024 * 1024
MESSAGE_BYTES_MAX = 64 * 1024 * 1024


class Receiver(Protocol):
    """Takes what a consumer reads. Called in the event loop, must not block."""

    def full(self) -> bool:
        """Whether messages must wait; `Consumer.proceed` is to be called when that is over."""

    def receive(self, data: bytes, delivery: AmqpDelivery) -> None:
        """Take one whole message; settle `delivery` when it is durable."""

    def received_all(self) -> None:
        """Nothing more is at hand for now: the time to commit."""


class Consumer(LinkOwner):
    """One attachment to a partition; `ended` resolves with the reason when it is over."""

    def __init__(self, client: Client, log: str, partition: str, receiver: Receiver) -> None:
        self._client = client
        self._log = log
        self._partition = partition
        self._receiver = receiver
        self._taken = 0
        self._waiting = False
        self._partial = bytearray()
        session = client.connection.session(incoming_bytes_max=WINDOW_BYTES_MAX)
        self._link = client.connection.receiver(session, f"{log}-{partition}")
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def start(self, offset: str | None) -> None:
        """Attach at `offset`, included, or at the earliest message; raises LogUnavailable."""
        link = self._link
        link.set_source(self._log, filters=event_streams.filters_from(offset))
        link.set_target(f"{self._log}-{self._partition}")
        link.set_properties(event_streams.link_properties(self._partition))
        await self._client.attach(link, self)
        event_streams.check_attached(self._partition, link.remote_properties, link.remote_filter)
        link.flow(CREDIT_WINDOW)
        self._client.connection.flush()

    def proceed(self) -> None:
        """Take what waited, and write out settlements and credit."""
        if self._waiting:
            self._take_waiting()
        self._client.connection.flush()

    def stop(self) -> None:
        """Ask for nothing more; what was received can still be settled."""
        if self._link.alive:
            self._link.close()
            self._client.connection.flush()

    # LinkOwner

    def on_delivery(self, link: AmqpLink, delivery: AmqpDelivery) -> None:
        # Behind messages that wait, a new one waits too; `proceed` takes them in order.
        self._waiting = self._waiting or self._receiver.full()
        if not self._waiting and self._take(delivery):
            self._replenish()

    def on_batch(self) -> None:
        self._receiver.received_all()

    def on_closed(self, reason: str) -> None:
        if not self.ended.done():
            self.ended.set_result(reason)

    def _take_waiting(self) -> None:
        link = self._link
        self._waiting = False
        while link.alive and not self._waiting:
            if self._receiver.full():
                self._waiting = True
                break
            delivery = link.current()
            if delivery is None or not self._take(delivery):
                break
            self._replenish()

    def _take(self, delivery: AmqpDelivery) -> bool:
        """Take the message that the link is at, or what there is of it; tells whether it was whole."""
        if delivery.aborted:
            self._partial.clear()
            delivery.settle()
        elif delivery.partial:
            # A message may be larger than the window, which opens only by what is read.
            self._gather(delivery)
            return False
        elif delivery.readable:
            self._receiver.receive(self._whole(delivery), delivery)
        else:
            return False
        return True

    def _replenish(self) -> None:
        self._taken += 1
        if self._taken >= CREDIT_WINDOW // 2 and self._link.alive:
            self._link.flow(self._taken)
            self._taken = 0

    def _gather(self, delivery: AmqpDelivery) -> None:
        self._partial += delivery.read()
        if len(self._partial) > MESSAGE_BYTES_MAX:
            raise DecodeError(f"a message has more than {MESSAGE_BYTES_MAX} bytes")

    def _whole(self, delivery: AmqpDelivery) -> bytes:
        if not self._partial:
            return delivery.take()
        self._partial += delivery.take()
        data = bytes(self._partial)
        self._partial.clear()
        return data


class _InfoReader(LinkOwner):
    def __init__(self) -> None:
        self.partitions: asyncio.Future[list[PartitionInfo]]
        self.partitions = asyncio.get_running_loop().create_future()

    def on_delivery(self, link: AmqpLink, delivery: AmqpDelivery) -> None:
        if delivery.readable and not delivery.partial and not self.partitions.done():
            self.partitions.set_result(event_streams.parse_info(decode_message(delivery.take())))
            delivery.settle()

    def on_closed(self, reason: str) -> None:
        if not self.partitions.done():
            self.partitions.set_exception(LogUnavailable(reason))


async def read_info(client: Client, log: str, *, wait_s: float = 10.0) -> list[PartitionInfo]:
    """The partitions of `log` and how far each reaches; raises LogUnavailable or DecodeError."""
    session = client.connection.session()
    link = client.connection.receiver(session, f"{log}-info")
    link.set_source(event_streams.info_address(log))
    link.set_target(f"{log}-info")
    reader = _InfoReader()
    await client.attach(link, reader)
    link.flow(1)
    client.connection.flush()
    try:
        async with asyncio.timeout(wait_s):
            return await reader.partitions
    except TimeoutError:
        raise LogUnavailable(f"no runtime information of {log} within {wait_s:g} s") from None
    finally:
        if link.alive:
            link.close()
            client.connection.flush()


async def discover(broker: Broker, log: str, container_id: str) -> list[str]:
    """The partitions of `log`; raises LogUnavailable or DecodeError."""
    client = await Client.connect(broker, container_id)
    try:
        return [entry.partition for entry in await read_info(client, log)]
    finally:
        await client.close()
