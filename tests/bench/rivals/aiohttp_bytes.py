"""A bare aiohttp handler that returns the bytes of a file, and another that answers 304."""

from __future__ import annotations

import sys
from pathlib import Path

from aiohttp import web


def main(port: int, file: str) -> None:
    body = Path(file).read_bytes()

    async def document(request: web.Request) -> web.Response:
        return web.Response(body=body, content_type="multipart/mixed")

    async def not_modified(request: web.Request) -> web.Response:
        return web.Response(status=304, headers={"ETag": '"1"'})

    app = web.Application()
    app.router.add_get("/document", document)
    app.router.add_get("/not-modified", not_modified)
    web.run_app(app, host="127.0.0.1", port=port, print=None, access_log=None)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
