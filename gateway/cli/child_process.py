"""A part of the gateway in a process of its own, kept running for as long as the gateway runs.

The child lives as long as the pipe to its parent: when the parent is gone, however that came about, the
child reads the end of the pipe, finishes what it has and exits. If the child dies, it is started again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import multiprocessing
import signal
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection
from typing import Any

import uvloop

from gateway.amqp.backoff import Backoff
from gateway.core.errors import GatewayError, ListenFailed

from .output import log_to_standard_error

START_WAIT_S = 60.0
STOP_WAIT_S = 15.0
STEADY_S = 1.0
"""A child that has run for so long did not fail at its start, and is started again at once when it ends."""

_log = logging.getLogger("wes.serve")

Work = Callable[..., Awaitable[tuple[object, Callable[[], Awaitable[None]]]]]
"""Starts the child's part; gives a word for the parent, and what ends the part in good order."""


class ChildProcess:
    """Runs `work(*arguments)` in a child process until `stop`; `work` is a function of a module.

    `name` says in logs and errors what the child is. `arguments` may be changed, for the next start.
    """

    def __init__(self, name: str, work: Work, *arguments: object) -> None:
        self.arguments = arguments
        self._name = name
        self._work = work
        self._context = multiprocessing.get_context("spawn")
        self._process: multiprocessing.process.BaseProcess | None = None
        self._pipe: Connection | None = None
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> Any:
        """Start the child and return its word; raises ListenFailed with what kept it from that.

        From then on it is started again whenever it ends.
        """
        word = await self._start()
        self._watching = asyncio.create_task(self._watch())
        return word

    async def stop(self) -> None:
        """Let the child finish what it has and end."""
        if self._watching is not None:
            self._watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watching
            self._watching = None
        await self._end()

    async def _start(self) -> Any:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_child, args=(theirs, self._work, self.arguments), daemon=True)
        process.start()
        theirs.close()
        self._process, self._pipe = process, ours
        try:
            async with asyncio.timeout(START_WAIT_S):
                await _readable(ours.fileno())
            ready, word = ours.recv()
        except TimeoutError:
            ready, word = False, f"the {self._name} was not ready in time"
        except (EOFError, OSError):
            ready, word = False, f"the {self._name} ended before it was ready"
        if not ready:
            await self._end()
            raise ListenFailed(word)
        return word

    async def _watch(self) -> None:
        backoff = Backoff()
        facts = {"child": self._name}
        loop = asyncio.get_running_loop()
        while True:
            assert self._process is not None
            started = loop.time()
            await _readable(self._process.sentinel)
            if loop.time() - started >= STEADY_S:
                backoff.reset()
            self._process.join()
            _log.error("process_ended", extra=facts | {"exit_code": self._process.exitcode})
            await self._end()
            while True:
                await asyncio.sleep(backoff.next_s())
                try:
                    await self._start()
                    _log.info("process_restarted", extra=facts)
                    break
                except GatewayError as error:
                    _log.error("process_not_started", extra=facts | {"reason": str(error)})

    async def _end(self) -> None:
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None
        if self._process is not None:
            await asyncio.to_thread(self._process.join, STOP_WAIT_S)
            if self._process.is_alive():
                self._process.kill()
                self._process.join()
            self._process = None


async def _readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(descriptor, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(descriptor)


def _child(pipe: Connection, work: Work, arguments: tuple[object, ...]) -> None:
    # The parent decides when it is over; an interrupt from the terminal reaches both.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    log_to_standard_error()
    uvloop.run(_run(pipe, work, arguments))


async def _run(pipe: Connection, work: Work, arguments: tuple[object, ...]) -> None:
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, over.set)
    try:
        word, end = await work(*arguments)
    except GatewayError as error:
        pipe.send((False, str(error)))
        return
    pipe.send((True, word))
    # Nothing is ever sent to the child: readable means that the parent has gone.
    loop.add_reader(pipe.fileno(), over.set)
    await over.wait()
    await end()
