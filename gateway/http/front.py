"""The short way: a document that is in memory is answered before any routing.

Most requests that a gateway ever gets are for archive documents and for unchanged subscription documents. For
them, finding the route costs as much as the rest of the answer, and the path alone tells the document.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from .documents import respond
from .live import Site

# What makes an answer more than the document as it is; the route decides then.
_ELABORATE = ("Prefer", "A-IM")

Handler = Callable[[Any], Awaitable[web.StreamResponse]]


def documents_first(site: Site, handler: Handler) -> Handler:
    """A handler that answers for documents in memory, and leaves all else to `handler`."""

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        if request.method == "GET" or request.method == "HEAD":
            path = request.raw_path
            document = site.archive_at(path)
            if document is None and not any(name in request.headers for name in _ELABORATE):
                document = site.subscription_at(path)
            if document is not None:
                return respond(request, document)
        return await handler(request)

    return handle
