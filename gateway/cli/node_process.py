"""The embedded event log node as a child process, so that it and the gateway each have a core.

The child lives as long as the pipe to its parent: when the parent is gone, however that came about, the
child reads the end of the pipe, commits what it has and exits. If the child dies, it is started again.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import signal
from multiprocessing.connection import Connection

from gateway.amqp.backoff import Backoff
from gateway.config import Address, Config, LogConfig
from gateway.core.errors import GatewayError, ListenFailed
from gateway.node.server import Node
from gateway.node.settings import LogSettings

from .output import log_to_standard_error

START_WAIT_S = 60.0
STOP_WAIT_S = 15.0

_log = logging.getLogger("wes.serve")


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
        self._address = config.amqp_listen
        self._context = multiprocessing.get_context("spawn")
        self._process: multiprocessing.process.BaseProcess | None = None
        self._pipe: Connection | None = None

    async def start(self) -> Address:
        """Start the child and return where it listens; raises GatewayError with what kept it from that."""
        ours, theirs = self._context.Pipe()
        process = self._context.Process(
            target=_child, args=(theirs, self._config, self._logs, self._address), daemon=True
        )
        process.start()
        theirs.close()
        self._process, self._pipe = process, ours
        try:
            answer = await asyncio.to_thread(_first_word, ours)
        except EOFError:
            answer = "the event log node ended before it was ready"
        if not isinstance(answer, int):
            await self.stop()
            raise ListenFailed(str(answer))
        # A port that was chosen once is kept, so that clients find the node again.
        self._address = Address(self._address.host, answer)
        return self._address

    async def watch(self) -> None:
        """Start the child again whenever it ends, until cancelled."""
        backoff = Backoff()
        while True:
            assert self._process is not None
            await _ended(self._process)
            _log.error("node_ended", extra={"exit_code": self._process.exitcode})
            while True:
                await asyncio.sleep(backoff.next_s())
                try:
                    await self.start()
                    _log.info("node_restarted", extra={"address": str(self._address)})
                    break
                except GatewayError as error:
                    _log.error("node_not_started", extra={"reason": str(error)})

    async def stop(self) -> None:
        """Let the child commit what it has and end."""
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None
        if self._process is not None:
            await asyncio.to_thread(self._process.join, STOP_WAIT_S)
            if self._process.is_alive():
                self._process.kill()


async def _ended(process: multiprocessing.process.BaseProcess) -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(process.sentinel, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(process.sentinel)
    process.join()


def _first_word(pipe: Connection) -> object:
    return pipe.recv() if pipe.poll(START_WAIT_S) else "the event log node did not start in time"


def _child(pipe: Connection, config: Config, logs: list[LogConfig], address: Address) -> None:
    # The parent decides when it is over; an interrupt from the terminal reaches both.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    log_to_standard_error()
    asyncio.run(_serve(pipe, config, logs, address))


async def _serve(pipe: Connection, config: Config, logs: list[LogConfig], address: Address) -> None:
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, over.set)
    try:
        node, port = await run_node(config, logs, address)
    except GatewayError as error:
        pipe.send(str(error))
        return
    pipe.send(port)
    # Nothing is ever sent to the child: readable means that the parent has gone.
    loop.add_reader(pipe.fileno(), over.set)
    await over.wait()
    await node.stop()
