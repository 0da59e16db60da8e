"""The event log node: it listens, keeps its connections within their limits, and stops without loss.

All of it runs in one event loop; only the disk has threads. To stop, the node refuses new transfers,
commits and settles what it has taken, detaches its links, closes its connections, then its files.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path

from proton import Session

from gateway.amqp.driver import AmqpConnection, ConnectionSettings, EngineHandler
from gateway.amqp.endpoints import AmqpDelivery, AmqpLink, Condition
from gateway.core.errors import InvalidSetting
from gateway.node.errors import AddressInUse, Refused
from gateway.node.links import Attached, Log, attach
from gateway.node.lock import lock_folder
from gateway.node.settings import LogSettings, NodeSettings
from gateway.node.store import LogStore
from gateway.storage.files import FolderLock

logger = logging.getLogger("wes.node")

CAPABILITY = "AMQP_EVENT_STREAMS_V1_0"
FORCED = Condition("amqp:connection:forced", "the event log node is stopping")


def clock_ms() -> int:
    """The time in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


class Node:
    """An event log node with its logs in `<data>/log/`, one file each."""

    def __init__(
        self,
        settings: NodeSettings,
        logs: list[LogSettings],
        data: Path,
        clock: Callable[[], int] = clock_ms,
    ) -> None:
        if not logs:
            raise InvalidSetting("an event log node needs at least one log")
        if len({log.name for log in logs}) < len(logs):
            raise InvalidSetting("two logs have the same name")
        self._settings = settings
        self._wanted = logs
        self._folder = data / "log"
        self._clock = clock
        self._lock: FolderLock | None = None
        self._logs: dict[str, Log] = {}
        self._handler: _Handler | None = None
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Open the logs and listen; return the port, which is a free one if `port` is 0.

        Raises StoreLocked, WrongFormat, PartitionsChanged or AddressInUse; nothing stays open then.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        self._lock = await lock_folder(self._folder, wait_ms=self._settings.lock_wait_ms)
        try:
            for log in self._wanted:
                store = LogStore(self._folder, log, self._settings, self._clock)
                self._logs[log.name] = Log(store)
            handler = self._handler = _Handler(self._settings, self._logs)
            try:
                self._server = await asyncio.get_running_loop().create_server(handler.accept, host, port)
            except OSError as error:
                raise AddressInUse(host, port, error.strerror or str(error)) from error
        except BaseException:
            await self._close_logs()
            raise
        bound: int = self._server.sockets[0].getsockname()[1]
        logger.info(
            "node_started",
            extra={"host": host, "port": bound, "logs": sorted(self._logs)},
        )
        return bound

    async def stop(self) -> None:
        """Stop without loss: what was taken in is committed and settled before links are closed."""
        server, self._server = self._server, None
        if server is None or self._handler is None:
            return
        server.close()
        self._handler.refuse()
        for log in self._logs.values():
            await log.store.drained()
        self._handler.close()
        # Another process may have the folder now: a peer that hangs keeps only this one waiting.
        await self._close_logs()
        await self._handler.gone()
        logger.info("node_stopped", extra={"logs": sorted(self._wanted_names())})

    def _wanted_names(self) -> list[str]:
        return [log.name for log in self._wanted]

    async def _close_logs(self) -> None:
        logs = list(self._logs.values())
        self._logs.clear()
        for log in logs:
            await log.store.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None


class _Handler(EngineHandler):
    """All connections of a node."""

    def __init__(self, settings: NodeSettings, logs: dict[str, Log]) -> None:
        self._settings = settings
        self._logs = logs
        self._stopping = False
        self._connections: set[AmqpConnection] = set()
        self._links: dict[AmqpConnection, set[AmqpLink]] = {}
        self._gone = asyncio.Event()
        self._connection_settings = ConnectionSettings(
            container_id=settings.container_id,
            idle_timeout_ms=settings.idle_timeout_ms,
            frame_bytes_max=settings.frame_bytes_max,
            channel_max=settings.sessions_per_connection_max - 1,
            offered_capabilities=(CAPABILITY,),
            output_bytes_max=settings.socket_output_bytes_max,
        )

    def accept(self) -> AmqpConnection:
        """A connection for a socket that was accepted."""
        connection = AmqpConnection(self, self._connection_settings, server=True)
        self._connections.add(connection)
        if self._stopping or len(self._connections) > 2 * self._settings.connections_max:
            connection.abort()  # beyond what can even be told in good order
        return connection

    def refuse(self) -> None:
        """Take no more connections, links or transfers."""
        self._stopping = True
        for log in self._logs.values():
            for intake in log.intakes:
                intake.stop()

    def close(self) -> None:
        """Detach all links and close all connections."""
        for connection in tuple(self._connections):
            for link in connection.links:
                self._forget(link)
                link.close(FORCED)
            connection.flush()
            connection.close(FORCED)

    async def gone(self) -> None:
        """Wait until the peers have closed, too, but not for long."""
        try:
            async with asyncio.timeout(self._settings.stop_wait_ms / 1000):
                while self._connections:
                    self._gone.clear()
                    await self._gone.wait()
        except TimeoutError:
            for connection in tuple(self._connections):
                connection.abort()
            await asyncio.sleep(0)

    # EngineHandler

    def on_connection_opened(self, connection: AmqpConnection) -> None:
        if len(self._connections) > self._settings.connections_max:
            logger.warning("connection_refused", extra={"peer": connection.peer, "reason": "limit"})
            connection.close(
                Condition(
                    "amqp:resource-limit-exceeded",
                    f"the node has its {self._settings.connections_max} connections",
                )
            )
            return
        logger.info(
            "connection_opened",
            extra={"peer": connection.peer, "container": connection.remote_container},
        )

    def on_session_opened(self, connection: AmqpConnection, session: Session) -> None:
        session.incoming_capacity = self._settings.session_bytes_max
        session.open()

    def on_link_opened(self, link: AmqpLink) -> None:
        facts = {"peer": link.connection.peer, "link": link.name}
        try:
            if self._stopping:
                raise Refused(*FORCED)
            if len(link.connection.links) > self._settings.links_per_connection_max:
                limit = self._settings.links_per_connection_max
                raise Refused("amqp:resource-limit-exceeded", f"a connection has {limit} links")
            attached = attach(link, self._logs, self._settings)
        except Refused as error:
            link.refuse(error.condition)
            logger.info("link_refused", extra={**facts, "reason": str(error)})
            return
        link.owner = attached
        self._links.setdefault(link.connection, set()).add(link)
        logger.info(
            "link_attached",
            extra={**facts, "log": attached.log.store.name, "kind": type(attached.work).__name__},
        )

    def on_link_closed(self, link: AmqpLink, condition: Condition | None) -> None:
        self._forget(link)

    def on_link_flow(self, link: AmqpLink) -> None:
        if link.owner is not None:
            link.owner.work.on_flow()

    def on_delivery(self, link: AmqpLink, delivery: AmqpDelivery) -> None:
        if link.owner is not None:
            link.owner.work.on_delivery(delivery)
        elif not link.is_sender and delivery.readable:
            delivery.read()  # of a link that was refused or ended: the peer could not know yet

    def on_batch(self, connection: AmqpConnection) -> None:
        self._make_room(connection)

    def on_writable(self, connection: AmqpConnection) -> None:
        self._make_room(connection)

    def on_transport_error(self, connection: AmqpConnection, text: str) -> None:
        logger.warning("connection_failed", extra={"peer": connection.peer, "reason": text})

    def on_disconnected(self, connection: AmqpConnection, reason: str) -> None:
        for link in tuple(self._links.get(connection, ())):
            self._forget(link)
        self._connections.discard(connection)
        logger.info("connection_ended", extra={"peer": connection.peer, "reason": reason})
        self._gone.set()

    def _make_room(self, connection: AmqpConnection) -> None:
        for link in self._links.get(connection, ()):
            link.owner.work.on_room()

    def _forget(self, link: AmqpLink) -> None:
        attached: Attached | None = link.owner
        if attached is not None:
            link.owner = None
            attached.on_closed()
            links = self._links[link.connection]
            links.discard(link)
            if not links:
                del self._links[link.connection]
