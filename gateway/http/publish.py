"""Publishing: PUT, POST, PATCH or DELETE on an event target becomes an event about it.

The answer comes when the event is durable in the log and visible in its feed, so that a writer reads its
own write; `Prefer: respond-async` does not wait (RFC 7240, 4.1).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from urllib.parse import unquote

from aiohttp import web

from gateway.core.errors import InvalidEvent, LogUnavailable
from gateway.core.event import METHODS, Event, Method, header_text, parse_media_type, parse_target
from gateway.core.identity import ContentID
from gateway.core.links import RESERVED, FeedLinks
from gateway.core.mapping import CONTENT_ENCODING
from gateway.core.negotiation import preferences

from .bodiless import BodilessResponse
from .conditions import conditions_of, etag_made, missing, refusal, until_settled
from .documents import NO_STORE
from .entities import raw_path
from .live import LiveLog, Site
from .problems import not_found, problem
from .settings import HttpSettings

ALLOWED_ON_READ = "GET, HEAD, OPTIONS"
ALLOWED_ON_TARGET = ", ".join(sorted((*METHODS, "GET", "HEAD", "OPTIONS")))
TURN_SHARE = 0.25
"""Of the time that a publication may take: for its turn, and for what comes before it to be known."""


def is_reserved(path: str) -> bool:
    """Whether `path`, however it is escaped, belongs to the gateway itself and can be no event target."""
    first = path.partition("?")[0].split("/", 2)[1]
    return (unquote(first).partition("/")[0] if "%" in first else first) in RESERVED


def publisher(site: Site, settings: HttpSettings) -> Callable[[web.Request], Awaitable[web.Response]]:
    """A handler that publishes one event about the path of its request."""

    async def publish(request: web.Request) -> web.Response:
        target = parse_target(raw_path(request))
        if is_reserved(target):
            return problem(405, f"{target} is not an event target: GET it", Allow=ALLOWED_ON_READ)
        log = site.log_of(target)
        if log is None:
            return not_found(f"no log takes events about {target}")
        body = await read_body(request, settings)
        if body is None:
            return late_body()
        event = _event(request, target, body, log)
        headers = request.headers
        wait = "Prefer" not in headers or "respond-async" not in preferences(headers.getall("Prefer"))
        conditions = conditions_of(request)
        if log.preconditions_required and event.method is not Method.POST:
            demand = missing(conditions, target)
            if demand is not None:
                return demand
        wait_s = settings.publish_wait_max_s * TURN_SHARE
        await _take_turn(log, target, wait_s, alone=conditions is not None)
        try:
            if conditions is not None:
                await until_settled(log, target, wait_s)
                refused = refusal(conditions, log, target)
                if refused is not None:
                    return refused
            identity = await log.publisher.publish(event, wait=wait)
            if identity is None:
                return _accepted(event, asked=not wait)
            etag = None if conditions is None else etag_made(log, target, identity)
            return _published(event, identity, etag)
        finally:
            log.turns.leave(target)

    return publish


async def _take_turn(log: LiveLog, target: str, wait_s: float, *, alone: bool) -> None:
    granted = log.turns.enter(target, alone=alone)
    if granted is not None:
        try:
            await log.turns.wait(target, granted, wait_s)
        except TimeoutError:
            raise LogUnavailable(f"nothing was published: others about {target} take too long") from None


async def read_body(request: web.BaseRequest, settings: HttpSettings) -> bytes | None:
    """The body, or None if it did not arrive in time; raises HTTPException for one that is not taken."""
    # A small body comes with its headers: it needs no timer, and no more than to be taken.
    if request.content.is_eof():
        body = request.content.read_nowait()
        if len(body) > settings.body_bytes_max:
            raise web.HTTPRequestEntityTooLarge(settings.body_bytes_max, len(body))
        return body
    length = request.content_length
    if length is not None and length > settings.body_bytes_max:
        raise web.HTTPRequestEntityTooLarge(settings.body_bytes_max, length)
    if "Expect" in request.headers:
        await _go_on(request)
    try:
        async with asyncio.timeout(settings.body_time_max_s):
            return await request.read()
    except TimeoutError:
        return None


async def _go_on(request: web.BaseRequest) -> None:
    """Tell a client that asked first to send its body (RFC 9110, 10.1.1)."""
    if request.headers["Expect"].lower() != "100-continue":
        raise web.HTTPExpectationFailed(text="the only expectation that is met here is 100-continue")
    await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    # What was written is not the beginning of the answer.
    request.writer.output_size = 0


def late_body() -> web.Response:
    """The answer to a request whose body did not arrive in time."""
    response = problem(408, "the body did not arrive in time")
    response.force_close()
    return response


def _event(request: web.Request, target: str, body: bytes, log: LiveLog) -> Event:
    method = METHODS[request.method]
    headers = request.headers
    if "Content-Range" in headers:
        raise InvalidEvent("Content-Range is not taken: send the whole representation (RFC 9110, 14.5)")
    content_type = headers.get("Content-Type")
    if method is Method.DELETE:
        if body:
            raise InvalidEvent("a DELETE event has no body: send none, or use PATCH or POST")
        content_type = None
    elif content_type is not None:
        content_type = parse_media_type(content_type)
    # A coded body stays as it is, and its part says so: the bytes are the writer's, not ours.
    names = log.extra_headers if method is Method.DELETE else (CONTENT_ENCODING, *log.extra_headers)
    extras = tuple((name, header_text(headers[name])) for name in names if name in headers)
    return Event(method, target, content_type, body, extra_headers=extras)


def _published(event: Event, identity: ContentID, etag: str | None) -> web.Response:
    """The headers of the event's own entry, so that the answer names what was published."""
    entry = FeedLinks(identity.log, identity.partition).entry(identity.ordinal)
    changed = event.method is Method.PATCH or event.method is Method.DELETE
    fields = (
        f"Content-ID: {identity}\r\n"
        f'Link: <{event.target}>; rel="about", <{entry}>; rel="self"\r\n'
        f"Event-Type: http-equiv={event.method.value}\r\n"
        f"Cache-Control: {NO_STORE}\r\n"
    )
    if not changed:
        fields += f"Location: {entry}\r\n"
    if etag is not None:
        fields += f"ETag: {etag}\r\n"
    return BodilessResponse(204 if changed else 201, fields)


def _accepted(event: Event, *, asked: bool) -> web.Response:
    """The log has the event; its entry link is not known yet."""
    response = web.Response(status=202)
    response.headers["Link"] = f'<{event.target}>; rel="about"'
    response.headers["Event-Type"] = f"http-equiv={event.method.value}"
    response.headers["Cache-Control"] = NO_STORE
    if asked:
        response.headers["Preference-Applied"] = "respond-async"
    return response
