"""The reader processes beside the main one: they serve the stored feeds, on the same address.

The kernel gives each process its part of the connections (SO_REUSEPORT). What a reader does not serve
itself it forwards to the main process, over a Unix socket in a folder that only this user can enter.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from aiohttp import web

from gateway.config import Address, Config
from gateway.http.app import make_app
from gateway.http.connection import LimitedRunner
from gateway.http.documents import DocumentCache
from gateway.http.forward import Forwarder
from gateway.http.live import Site
from gateway.http.reader import StoredSite, reading

from .child_process import ChildProcess
from .listener import BACKLOG, bind
from .memory import settle_memory

SOCKET = "main.sock"


class Workers:
    """The reader processes of a gateway, and the main process's server for what they forward."""

    def __init__(self, config: Config, site: Site) -> None:
        self._config = config
        # No forwarded request may be turned away: each was admitted by a reader.
        limits = replace(config.http, connections_max=config.workers * config.http.connections_max)
        self._runner = LimitedRunner(make_app(site, limits))
        self._folder: Path | None = None
        self._children: list[ChildProcess] = []

    async def start(self, address: Address) -> None:
        """Start as many as are configured; raises ListenFailed."""
        self._folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="wes-"))
        path = str(self._folder / SOCKET)
        await self._runner.setup()
        await web.UnixSite(self._runner, path, backlog=BACKLOG).start()
        for number in range(1, self._config.workers + 1):
            self._children.append(ChildProcess(f"reader {number}", _work, self._config, address, path))
        await asyncio.gather(*(child.start() for child in self._children))

    async def drain(self) -> None:
        """Let the readers answer what is under way, and end."""
        await asyncio.gather(*(child.stop() for child in self._children))

    async def stop(self) -> None:
        """Take no more forwarded requests."""
        await self._runner.cleanup()
        if self._folder is not None:
            await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)


async def _work(config: Config, address: Address, path: str) -> tuple[None, Callable[[], Awaitable[None]]]:
    listener, _ = bind(address, shared=True)
    site = StoredSite(
        config.data,
        config.snapshots,
        (log.name for log in config.logs),
        DocumentCache(config.http.page_cache_bytes_max),
    )
    forwarder = Forwarder(path, config.http)
    runner = LimitedRunner(make_app(site, config.http), reading(site, forwarder.handle))
    await runner.setup()
    await web.SockSite(runner, listener, backlog=BACKLOG).start()
    settle_memory()

    async def end() -> None:
        site.drain()
        await runner.cleanup()
        forwarder.close()
        site.close()
        parent = multiprocessing.parent_process()
        if parent is not None and not parent.is_alive():
            # It was killed, so that the folder is left to us.
            await asyncio.to_thread(shutil.rmtree, Path(path).parent, ignore_errors=True)

    return None, end
