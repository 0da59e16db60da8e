"""The application: every route of the URL table, in one place."""

from __future__ import annotations

from aiohttp import web

from . import feeds, operations, service
from .live import SITE, Site
from .problems import not_found, problems
from .settings import SETTINGS, HttpSettings


def make_app(site: Site, settings: HttpSettings) -> web.Application:
    """The resources that are read. What is published never gets here: see `front`."""
    app = web.Application(middlewares=[problems], client_max_size=settings.body_bytes_max)
    app[SITE] = site
    app[SETTINGS] = settings
    feeds.add_routes(app)
    service.add_routes(app)
    operations.add_routes(app)
    app.router.add_get("/{target:.*}", _nothing)
    return app


async def _nothing(request: web.Request) -> web.StreamResponse:
    """A path that nothing is known about."""
    return not_found(f"there is nothing at {request.path}; the service document is at /")
