"""Publishing: PUT, POST, PATCH or DELETE on an event target becomes an event about it.

The answer comes when the event is durable in the log and visible in its feed, so that a writer reads its
own write; `Prefer: respond-async` does not wait (RFC 7240, 4.1).
"""

from __future__ import annotations

import asyncio

from aiohttp import web

from gateway.core.errors import InvalidEvent
from gateway.core.event import METHODS, Event, Method, header_text, parse_media_type, parse_target
from gateway.core.identity import ContentID
from gateway.core.links import RESERVED, FeedLinks
from gateway.core.negotiation import preferences

from .documents import NO_STORE
from .live import SITE, LiveLog
from .problems import not_found, problem
from .settings import SETTINGS

# What aiohttp undoes before the body is seen.
_CODINGS = frozenset({"", "identity", "gzip", "deflate"})


def add_routes(app: web.Application) -> None:
    for method in METHODS:
        app.router.add_route(method, "/{target:.*}", publish)
    app.router.add_get("/{target:.*}", target)


async def target(request: web.Request) -> web.StreamResponse:
    """A path that nothing is known about."""
    return not_found(f"there is nothing at {request.path}; the service document is at /")


async def publish(request: web.Request) -> web.StreamResponse:
    """Publish one event about the path of the request."""
    path = _raw_path(request)
    if path.partition("?")[0].split("/")[1] in RESERVED:
        return problem(405, f"{path} is not an event target: GET it", Allow="GET, HEAD")
    event_target = parse_target(path)
    log = request.app[SITE].log_of(event_target)
    if log is None:
        return not_found(f"no log takes events about {event_target}")
    if request.headers.get("Content-Encoding", "").strip().lower() not in _CODINGS:
        return problem(415, "the Content-Encoding is not known here", Accept_Encoding="gzip, deflate")
    try:
        async with asyncio.timeout(request.app[SETTINGS].body_time_max_s):
            body = await request.read()
    except TimeoutError:
        response = problem(408, "the body did not arrive in time")
        response.force_close()
        return response
    event = _event(request, event_target, body, log)
    wait = "respond-async" not in preferences(request.headers.getall("Prefer", []))
    identity = await log.publisher.publish(event, wait=wait)
    if identity is None:
        return _accepted(event, asked=not wait)
    return _published(event, identity)


def _event(request: web.Request, event_target: str, body: bytes, log: LiveLog) -> Event:
    method = Method(request.method)
    content_type = request.headers.get("Content-Type")
    if method is Method.DELETE:
        if body:
            raise InvalidEvent("a DELETE event has no body: send none, or use PATCH or POST")
        content_type = None
    elif content_type is not None:
        content_type = parse_media_type(content_type)
    extras = tuple(
        (name, header_text(request.headers[name])) for name in log.extra_headers if name in request.headers
    )
    return Event(method, event_target, content_type, body, extra_headers=extras)


def _published(event: Event, identity: ContentID) -> web.Response:
    """The headers of the event's own entry, so that the answer names what was published."""
    links = FeedLinks(identity.log, identity.partition)
    entry = links.entry(identity.ordinal)
    response = web.Response(status=201 if event.method in (Method.PUT, Method.POST) else 204)
    response.headers["Content-ID"] = str(identity)
    response.headers["Link"] = f'<{event.target}>; rel="about", <{entry}>; rel="self"'
    response.headers["Event-Type"] = f"http-equiv={event.method.value}"
    response.headers["Cache-Control"] = NO_STORE
    if response.status == 201:
        response.headers["Location"] = entry
    return response


def _accepted(event: Event, *, asked: bool) -> web.Response:
    """The log has the event; its entry link is not known yet."""
    response = web.Response(status=202)
    response.headers["Link"] = f'<{event.target}>; rel="about"'
    response.headers["Event-Type"] = f"http-equiv={event.method.value}"
    response.headers["Cache-Control"] = NO_STORE
    if asked:
        response.headers["Preference-Applied"] = "respond-async"
    return response


def _raw_path(request: web.Request) -> str:
    """The path and query as sent; a request in absolute form (RFC 9112, 3.2.2) has a host in front."""
    path = request.raw_path
    return path if path.startswith("/") else request.rel_url.raw_path_qs
