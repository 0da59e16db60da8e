"""The application: every route of the URL table, in one place."""

from __future__ import annotations

from aiohttp import web

from . import feeds, operations, service
from .documents import NO_STORE
from .live import SITE, Site
from .problems import not_found, problem, problems
from .publish import ALLOWED_ON_READ, ALLOWED_ON_TARGET, is_reserved
from .settings import SETTINGS, HttpSettings


def make_app(site: Site, settings: HttpSettings) -> web.Application:
    """The resources that are read. What is published never gets here: see `front`."""
    app = web.Application(middlewares=[problems], client_max_size=settings.body_bytes_max)
    app[SITE] = site
    app[SETTINGS] = settings
    feeds.add_routes(app)
    service.add_routes(app)
    operations.add_routes(app)
    app.router.add_route("*", "/{target:.*}", _otherwise)
    return app


async def _otherwise(request: web.Request) -> web.StreamResponse:
    """What no resource answers: OPTIONS, methods that nothing has, and paths that nothing is known about."""
    allowed = ALLOWED_ON_READ if is_reserved(request.path) else ALLOWED_ON_TARGET
    if request.method == "OPTIONS":
        return web.Response(status=204, headers={"Allow": allowed, "Cache-Control": NO_STORE})
    if request.method not in ("GET", "HEAD"):
        return problem(405, f"{request.method} is not allowed here: use {allowed}", Allow=allowed)
    return not_found(f"there is nothing at {request.path}; the service document is at /")
