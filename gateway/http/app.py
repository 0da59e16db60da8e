"""The application: every route of the URL table, in one place."""

from __future__ import annotations

from aiohttp import web

from gateway.core.state import JSON_PATCH_TYPE, MERGE_PATCH_TYPE

from . import entities, feeds, operations, service, snapshots
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
    snapshots.add_routes(app)
    operations.add_routes(app)
    app.router.add_route("*", "/{target:.*}", _otherwise)
    return app


async def _otherwise(request: web.Request) -> web.StreamResponse:
    """Event targets; and what no resource answers: OPTIONS, and methods that nothing has."""
    reserved = is_reserved(entities.raw_path(request))
    allowed = ALLOWED_ON_READ if reserved else ALLOWED_ON_TARGET
    if request.method == "OPTIONS":
        headers = {"Allow": allowed, "Cache-Control": NO_STORE}
        if not reserved:
            # Those that become part of the current state; any other is an event all the same (RFC 5789, 3.1).
            headers["Accept-Patch"] = f"{MERGE_PATCH_TYPE}, {JSON_PATCH_TYPE}"
        return web.Response(status=204, headers=headers)
    if request.method not in ("GET", "HEAD"):
        return problem(405, f"{request.method} is not allowed here: use {allowed}", Allow=allowed)
    if not reserved:
        return await entities.entity(request)
    return not_found(f"there is nothing at {request.path}; the service document is at /")
