"""Liveness and readiness."""

from __future__ import annotations

from aiohttp import web

from .documents import NO_STORE
from .live import SITE

_HEADERS = {"Cache-Control": NO_STORE}


def add_routes(app: web.Application) -> None:
    app.router.add_get("/livez", live)
    app.router.add_get("/readyz", ready)


async def live(request: web.Request) -> web.StreamResponse:
    """200 for as long as the process answers at all."""
    return _status(200, "alive", [])


async def ready(request: web.Request) -> web.StreamResponse:
    """200 when events flow from every log into every feed; else 503 with what is in the way."""
    site = request.app[SITE]
    reasons = ["the server is stopping"] if site.draining else site.readiness.problems()
    return _status(503 if reasons else 200, "not ready" if reasons else "ready", reasons)


def _status(status: int, word: str, reasons: list[str]) -> web.Response:
    content = {"status": word, "reasons": reasons} if reasons else {"status": word}
    return web.json_response(content, status=status, headers=_HEADERS)
