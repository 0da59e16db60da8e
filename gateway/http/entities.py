"""Current state: GET and HEAD on an event target give what its events have made of it."""

from __future__ import annotations

import asyncio

from aiohttp import web
from multidict import CIMultiDict

from gateway.core.conditional import Outcome, evaluate
from gateway.core.errors import InvalidEvent
from gateway.core.event import parse_target
from gateway.core.state import Entity, Kind
from gateway.core.times import http_date
from gateway.storage.records import EntityRecord

from .documents import REVALIDATE
from .live import SITE, LiveFeed
from .problems import not_found, problem


async def entity(request: web.Request) -> web.StreamResponse:
    """The current state of the target: its body, type, and ETag, and the way to the event that made it.

    404 if it never had state, 410 if it was deleted, 409 if its events do not tell what it is.
    """
    target = target_of(request)
    log = None if target is None else request.app[SITE].log_of(target)
    if target is None or log is None:
        return not_found(f"there is nothing at {request.path}; the service document is at /")
    while True:
        found = log.current(target)
        if found is None:
            return not_found(f"no event has given {target} a state; the service document is at /")
        feed, record = found
        if record.kind is not Kind.PRESENT:
            return _stateless(feed, record)
        headers = _headers(feed, record)
        outcome = evaluate(
            record.etag,
            if_match=request.headers.get("If-Match"),
            if_none_match=request.headers.get("If-None-Match"),
        )
        if outcome is Outcome.NOT_MODIFIED:
            return web.Response(status=304, headers=headers)
        if outcome is Outcome.FAILED:
            return problem(412, f"the ETag of {target} is {record.etag}", Link=headers["Link"])
        known = await asyncio.to_thread(feed.reader.representation, record)
        if known is not None:
            return _present(headers, record, known)


def target_of(request: web.Request) -> str | None:
    """The event target that the request's path is, or None if it can be none."""
    try:
        return parse_target(raw_path(request))
    except InvalidEvent:
        return None


def raw_path(request: web.Request) -> str:
    """The path and query as sent; a request in absolute form (RFC 9112, 3.2.2) has a host in front."""
    path = request.raw_path
    return path if path.startswith("/") else request.rel_url.raw_path_qs


def _stateless(feed: LiveFeed, record: EntityRecord) -> web.Response:
    entry = feed.links.entry(record.ordinal)
    if record.kind is Kind.DELETED:
        return problem(410, f"{record.target} was deleted by the event {entry}", Link=_links(feed, record))
    return problem(
        409,
        f"what {record.target} is cannot be told since {entry}, a patch that cannot be applied here: the next"
        " PUT or DELETE ends this",
        Link=_links(feed, record),
    )


def _headers(feed: LiveFeed, record: EntityRecord) -> CIMultiDict[str]:
    return CIMultiDict({"ETag": record.etag, "Cache-Control": REVALIDATE, "Link": _links(feed, record)})


def _present(headers: CIMultiDict[str], record: EntityRecord, known: Entity) -> web.Response:
    if known.content_type is not None:
        headers["Content-Type"] = known.content_type
    if record.modified_ms is not None:
        headers["Last-Modified"] = http_date(record.modified_ms)
    # What a publisher calls text must not become a script of this site.
    headers["X-Content-Type-Options"] = "nosniff"
    headers.extend(known.extra_headers)
    return web.Response(body=known.body, headers=headers)


def _links(feed: LiveFeed, record: EntityRecord) -> str:
    """The event that the state is from (`via`, RFC 4287, 4.2.7.2), and the feed that goes on from there."""
    links = feed.links
    return f'<{links.entry(record.ordinal)}>; rel="via", <{links.current}>; rel="current"'
