"""The short way: requests whose path and method alone tell what to do are answered before any routing.

That is a document in memory, which most reads are for, and every publication, whose path is any that is not
reserved. For them, finding a route would cost as much as the rest of the answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from gateway.core.event import METHODS

from .documents import respond
from .live import Site
from .problems import problems
from .publish import publisher
from .settings import HttpSettings

# What makes an answer more than the document as it is; the route decides then.
_ELABORATE = ("Prefer", "A-IM")

Handler = Callable[[Any], Awaitable[web.StreamResponse]]
Front = Callable[[Site, HttpSettings, Handler], Handler]
"""What makes the handler of all requests from that of those which need a route."""


def front(site: Site, settings: HttpSettings, routed: Handler) -> Handler:
    """A handler that answers for documents in memory and for publications; `routed` gets all else."""
    publish = publisher(site, settings)

    async def handle(request: web.Request) -> web.StreamResponse:
        method = request.method
        if method == "GET" or method == "HEAD":
            path = request.raw_path
            document = site.archive_at(path)
            if document is None and not any(name in request.headers for name in _ELABORATE):
                document = site.subscription_at(path)
            if document is not None:
                return respond(request, document)
        elif method in METHODS:
            return await problems(request, publish)
        return await routed(request)

    return handle
