"""Publishing: PUT, POST, PATCH or DELETE on an event target becomes an event about it.

The answer comes when the event is durable in the log and visible in its feed, so that a writer reads its
own write; `Prefer: respond-async` does not wait (RFC 7240, 4.1).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import web

from gateway.core.conditional import write_allowed
from gateway.core.errors import InvalidEvent, LogUnavailable
from gateway.core.event import METHODS, Event, Method, header_text, parse_media_type, parse_target
from gateway.core.identity import ContentID
from gateway.core.links import RESERVED, FeedLinks
from gateway.core.mapping import CONTENT_ENCODING
from gateway.core.negotiation import preferences
from gateway.core.state import Kind

from .documents import NO_STORE
from .entities import raw_path
from .live import LiveLog, Site
from .problems import not_found, problem
from .settings import HttpSettings

ALLOWED_ON_READ = "GET, HEAD, OPTIONS"
ALLOWED_ON_TARGET = ", ".join(sorted((*METHODS, "GET", "HEAD", "OPTIONS")))


_PRECONDITIONS = ("If-Match", "If-None-Match", "If-Unmodified-Since")
_SETTLED_POLL_S = 0.02


def is_reserved(path: str) -> bool:
    """Whether `path` belongs to the gateway itself and can be no event target."""
    return path.partition("?")[0].split("/", 2)[1] in RESERVED


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
        conditional = any(name in headers for name in _PRECONDITIONS)
        if log.preconditions_required and not conditional and event.method is not Method.POST:
            return _condition_missing(target)
        await _take_turn(log, target, settings, alone=conditional)
        try:
            if conditional:
                await _until_settled(log, target, settings)
                refusal = _refusal(request, log, target)
                if refusal is not None:
                    return refusal
            identity = await log.publisher.publish(event, wait=wait)
            if identity is None:
                return _accepted(event, asked=not wait)
            response = _published(event, identity)
            if conditional:
                _add_etag(response, log, target, identity)
            return response
        finally:
            log.turns.leave(target)

    return publish


async def _take_turn(log: LiveLog, target: str, settings: HttpSettings, *, alone: bool) -> None:
    granted = log.turns.enter(target, alone=alone)
    if granted is not None:
        try:
            await log.turns.wait(target, granted, settings.publish_wait_max_s)
        except TimeoutError:
            raise LogUnavailable(f"nothing was published: others about {target} take too long") from None


async def _until_settled(log: LiveLog, target: str, settings: HttpSettings) -> None:
    """Wait for what was sent about the target and is not visible: it comes before a new event."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + settings.publish_wait_max_s
    while log.publisher.unsettled(target):
        if loop.time() > deadline:
            raise LogUnavailable(
                f"nothing was published: what became of an earlier event about {target} is not known yet"
            )
        await asyncio.sleep(_SETTLED_POLL_S)


def _refusal(request: web.Request, log: LiveLog, target: str) -> web.Response | None:
    """The answer to a publication whose preconditions do not hold (RFC 9110, 13.1), else None."""
    found = log.current(target)
    headers = request.headers
    exists = found is not None and found[1].kind is not Kind.DELETED
    etag = found[1].etag if found is not None and found[1].kind is Kind.PRESENT else None
    if write_allowed(
        etag,
        exists=exists,
        if_match=headers.get("If-Match"),
        if_none_match=headers.get("If-None-Match"),
        if_unmodified_since=headers.get("If-Unmodified-Since"),
        modified_ms=None if found is None else found[1].modified_ms,
    ):
        return None
    if etag is not None:
        return problem(412, f"nothing was published: the ETag of {target} is {etag}", ETag=etag)
    known = "it cannot be told what it is" if exists else "it has no state"
    return problem(412, f"nothing was published: {target} does not meet the condition, {known}")


def _condition_missing(target: str) -> web.Response:
    return problem(
        428,
        f"nothing was published: changes must be conditional here. GET {target} and send its ETag as"
        " If-Match, or If-None-Match: * for a new one",
    )


def _add_etag(response: web.Response, log: LiveLog, target: str, identity: ContentID) -> None:
    """The ETag of the state that the event has made, so that the writer can go on from it."""
    record = log.feeds[identity.partition].reader.entity(target)
    if record is not None and record.ordinal == identity.ordinal and record.kind is Kind.PRESENT:
        response.headers["ETag"] = record.etag


async def read_body(request: web.BaseRequest, settings: HttpSettings) -> bytes | None:
    """The body, or None if it did not arrive in time; raises HTTPException for one that is not taken."""
    # A small body comes with its headers, and needs no timer.
    if request.content.is_eof():
        return await request.read()
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
    method = Method(request.method)
    content_type = request.headers.get("Content-Type")
    if method is Method.DELETE:
        if body:
            raise InvalidEvent("a DELETE event has no body: send none, or use PATCH or POST")
        content_type = None
    elif content_type is not None:
        content_type = parse_media_type(content_type)
    # A coded body stays as it is, and its part says so: the bytes are the writer's, not ours.
    names = log.extra_headers if method is Method.DELETE else (CONTENT_ENCODING, *log.extra_headers)
    headers = request.headers
    extras = tuple((name, header_text(headers[name])) for name in names if name in headers)
    return Event(method, target, content_type, body, extra_headers=extras)


def _published(event: Event, identity: ContentID) -> web.Response:
    """The headers of the event's own entry, so that the answer names what was published."""
    entry = FeedLinks(identity.log, identity.partition).entry(identity.ordinal)
    headers = {
        "Content-ID": str(identity),
        "Link": f'<{event.target}>; rel="about", <{entry}>; rel="self"',
        "Event-Type": f"http-equiv={event.method.value}",
        "Cache-Control": NO_STORE,
    }
    if event.method in (Method.PATCH, Method.DELETE):
        return web.Response(status=204, headers=headers)
    headers["Location"] = entry
    return web.Response(status=201, headers=headers)


def _accepted(event: Event, *, asked: bool) -> web.Response:
    """The log has the event; its entry link is not known yet."""
    response = web.Response(status=202)
    response.headers["Link"] = f'<{event.target}>; rel="about"'
    response.headers["Event-Type"] = f"http-equiv={event.method.value}"
    response.headers["Cache-Control"] = NO_STORE
    if asked:
        response.headers["Preference-Applied"] = "respond-async"
    return response
