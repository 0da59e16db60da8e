"""A bare aiohttp handler that appends each body to one file, with group fdatasync before it answers."""

from __future__ import annotations

import asyncio
import os
import sys

from aiohttp import web


class Appender:
    """Bodies that come in while a sync runs are written and synced together after it."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._waiting: list[tuple[bytes, asyncio.Future[None]]] = []
        self._syncing = False
        self._task: asyncio.Task[None] | None = None

    async def append(self, body: bytes) -> None:
        done = asyncio.get_running_loop().create_future()
        self._waiting.append((body, done))
        if not self._syncing:
            self._syncing = True
            self._task = asyncio.ensure_future(self._sync())
        await done

    async def _sync(self) -> None:
        while self._waiting:
            group, self._waiting = self._waiting, []
            await asyncio.to_thread(self._write, b"\n".join(body for body, _ in group))
            for _, done in group:
                done.set_result(None)
        self._syncing = False

    def _write(self, data: bytes) -> None:
        os.write(self._fd, data)
        os.fdatasync(self._fd)


def main(port: int, path: str) -> None:
    async def put(request: web.Request) -> web.Response:
        await request.app[appender].append(await request.read())
        return web.Response(status=201)

    appender = web.AppKey("appender", Appender)
    app = web.Application()
    app[appender] = Appender(path)
    app.router.add_put("/{target:.*}", put)
    web.run_app(app, host="127.0.0.1", port=port, print=None, access_log=None)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
