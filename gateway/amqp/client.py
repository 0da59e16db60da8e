"""The client end of a connection to an event log node: connect, attach, and hear of the end.

Each link has an owner, a `LinkOwner`, which gets what happens on it. A link that was refused, a closed
connection and an unreachable host all come out as LogUnavailable with the reason in words: to the caller
they are one thing, to be tried again on a fresh connection.
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from gateway.core.errors import InvalidSetting, LogUnavailable

from .driver import AmqpConnection, ConnectionSettings, EngineHandler
from .endpoints import AmqpDelivery, AmqpLink, Condition

PORTS = {"amqp": 5672, "amqps": 5671}


@dataclass(frozen=True, slots=True)
class Broker:
    """Where an event log node listens, and how to reach it. Times in seconds."""

    host: str
    port: int
    tls: bool = False
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    connect_wait_s: float = 10.0
    attach_wait_s: float = 10.0
    frame_bytes_max: int = 65_536

    def __str__(self) -> str:
        return f"{'amqps' if self.tls else 'amqp'}://{self.host}:{self.port}"


def parse_broker(url: str) -> Broker:
    """The broker at `amqp[s]://[user:password@]host[:port]`; raises InvalidSetting."""
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = -1
    if parts.scheme not in PORTS or not parts.hostname or port == -1 or parts.path not in ("", "/"):
        raise InvalidSetting("a broker is written amqp://HOST:PORT, or amqps:// with TLS")
    user = None if parts.username is None else unquote(parts.username)
    password = None if user is None else unquote(parts.password or "")
    return Broker(parts.hostname, port or PORTS[parts.scheme], parts.scheme == "amqps", user, password)


class LinkOwner:
    """What happens on one link; the defaults do nothing. Called in the event loop, must not block."""

    def on_closed(self, reason: str) -> None:
        """The link is gone: detached by the peer, or lost with its connection. Called once."""

    def on_flow(self, link: AmqpLink) -> None:
        """Credit has changed."""

    def on_delivery(self, link: AmqpLink, delivery: AmqpDelivery) -> None:
        """A delivery has come in, in part or whole, or the peer has changed the state of one."""

    def on_batch(self) -> None:
        """All that one read brought has been handed out."""


class Client(EngineHandler):
    """A connection to an event log node; make it with `connect`."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._attaching: dict[AmqpLink, asyncio.Future[None]] = {}
        self._owners: dict[AmqpLink, LinkOwner] = {}
        self.connection: AmqpConnection
        self.lost: asyncio.Future[str] = self._loop.create_future()
        """Resolves with the reason when the connection is gone."""

    @classmethod
    async def connect(cls, broker: Broker, container_id: str) -> Client:
        """Open a connection; raises LogUnavailable."""
        client = cls(broker)
        settings = ConnectionSettings(
            container_id,
            hostname=broker.host,
            user=broker.user,
            password=broker.password,
            frame_bytes_max=broker.frame_bytes_max,
        )
        context = ssl.create_default_context() if broker.tls else None
        try:
            async with asyncio.timeout(broker.connect_wait_s):
                _, client.connection = await client._loop.create_connection(
                    lambda: AmqpConnection(client, settings, server=False),
                    broker.host,
                    broker.port,
                    ssl=context,
                )
                await client._opened
        except TimeoutError:
            client.abort()
            raise LogUnavailable(f"{broker} did not answer within {broker.connect_wait_s:g} s") from None
        except OSError as error:
            raise LogUnavailable(f"cannot connect to {broker}: {error}") from error
        except BaseException:
            client.abort()
            raise
        return client

    async def attach(self, link: AmqpLink, owner: LinkOwner) -> None:
        """Open `link` and wait until the peer has; raises LogUnavailable with the peer's reason."""
        opened = self._loop.create_future()
        self._attaching[link] = opened
        self._owners[link] = owner
        link.open()
        self.connection.flush()
        try:
            async with asyncio.timeout(self._broker.attach_wait_s):
                await opened
        except TimeoutError:
            raise LogUnavailable(f"{self._broker} did not answer an attach in time") from None
        finally:
            self._attaching.pop(link, None)

    async def close(self) -> None:
        """Close in good order and wait until the connection is gone."""
        self.connection.close()
        await asyncio.shield(self.lost)

    def abort(self) -> None:
        """Cut the connection; nothing is settled."""
        connection = getattr(self, "connection", None)
        if connection is not None:
            connection.abort()

    # EngineHandler

    def on_connection_opened(self, connection: AmqpConnection) -> None:
        if not self._opened.done():
            self._opened.set_result(None)

    def on_link_opened(self, link: AmqpLink) -> None:
        address = link.remote_target_address if link.is_sender else link.remote_source_address
        opened = self._attaching.get(link)
        # A peer that refuses attaches without a terminus and then detaches with the reason (part 2, 2.6.3).
        if opened is not None and address is not None and not opened.done():
            opened.set_result(None)

    def on_link_closed(self, link: AmqpLink, condition: Condition | None) -> None:
        self._end(link, _reason(condition) if condition else "the peer detached the link")

    def on_link_flow(self, link: AmqpLink) -> None:
        if (owner := self._owners.get(link)) is not None:
            owner.on_flow(link)

    def on_delivery(self, link: AmqpLink, delivery: AmqpDelivery) -> None:
        if (owner := self._owners.get(link)) is not None:
            owner.on_delivery(link, delivery)

    def on_batch(self, connection: AmqpConnection) -> None:
        for owner in list(self._owners.values()):
            owner.on_batch()

    def on_disconnected(self, connection: AmqpConnection, reason: str) -> None:
        if not self._opened.done():
            self._opened.set_exception(LogUnavailable(f"{self._broker}: {reason}"))
        for link in list(self._owners):
            self._end(link, reason)
        if not self.lost.done():
            self.lost.set_result(reason)

    def _end(self, link: AmqpLink, reason: str) -> None:
        opened = self._attaching.get(link)
        owner = self._owners.pop(link, None)
        if opened is not None and not opened.done():
            opened.set_exception(LogUnavailable(f"{self._broker}: {reason}"))
        elif owner is not None:
            owner.on_closed(reason)


def _reason(condition: Condition) -> str:
    return f"{condition.name}: {condition.description}" if condition.description else condition.name
