"""The embedded event log node, in a process of its own, so that it and the gateway each have a core."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from gateway.config import Address, Config, LogConfig
from gateway.node.server import Node
from gateway.node.settings import LogSettings

from .child_process import ChildProcess


async def run_node(config: Config, logs: list[LogConfig], address: Address) -> tuple[Node, int]:
    """Start a node with `logs` in this process; returns it and its port. Raises GatewayError."""
    settings = [LogSettings(log.name, log.partitions) for log in logs]
    node = Node(config.node, settings, config.data)
    return node, await node.start(address.host, address.port)


class NodeProcess:
    """The embedded node, kept running until `stop`."""

    def __init__(self, config: Config, logs: list[LogConfig]) -> None:
        self._config = config
        self._logs = logs
        self._child = ChildProcess("event log node", _work, config, logs, config.amqp_listen)

    async def start(self) -> Address:
        """Start the child and return where it listens; raises GatewayError with what kept it from that."""
        port = await self._child.start()
        # A port that was chosen once is kept, so that clients find the node again.
        address = Address(self._config.amqp_listen.host, port)
        self._child.arguments = (self._config, self._logs, address)
        return address

    async def stop(self) -> None:
        """Let the child commit what it has and end."""
        await self._child.stop()


async def _work(
    config: Config, logs: list[LogConfig], address: Address
) -> tuple[int, Callable[[], Awaitable[None]]]:
    node, port = await run_node(config, logs, address)
    return port, node.stop
