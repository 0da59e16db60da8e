"""The application: every route of the URL table, in one place."""

from __future__ import annotations

from aiohttp import web

from . import feeds, operations, publish, service
from .live import SITE, Site
from .problems import problems
from .settings import SETTINGS, HttpSettings


def make_app(site: Site, settings: HttpSettings) -> web.Application:
    """The web application over `site`. Event targets come last: they are whatever path is left."""
    app = web.Application(middlewares=[problems], client_max_size=settings.body_bytes_max)
    app[SITE] = site
    app[SETTINGS] = settings
    feeds.add_routes(app)
    service.add_routes(app)
    operations.add_routes(app)
    publish.add_routes(app)
    return app
