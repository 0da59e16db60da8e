"""The resources of a feed: subscription document, archive documents, entry links, and the way in by time."""

from __future__ import annotations

from aiohttp import web
from multidict import CIMultiDict

from gateway.core.conditional import matches_weakly
from gateway.core.links import fragment, parse_number
from gateway.core.multipart import MIXED
from gateway.core.negotiation import acceptable, preferences
from gateway.core.pages import Page
from gateway.core.times import parse_rfc3339
from gateway.storage.contract import Head

from .documents import NO_STORE, REVALIDATE, VARY, Document, not_acceptable, respond
from .live import SITE, LiveFeed
from .problems import no_log, not_found, problem
from .settings import SETTINGS


def add_routes(app: web.Application) -> None:
    router = app.router
    router.add_get("/feeds/{log}/{partition}/archive/{page}", archive)
    router.add_get("/feeds/{log}/{partition}/latest", latest)
    router.add_get("/feeds/{log}/{partition}/events/{ordinal}", entry)
    router.add_get("/feeds/{log}/{partition}", since)


async def archive(request: web.Request) -> web.StreamResponse:
    """An archive document; while its page is open, the way to where it is growing."""
    feed = _feed(request)
    text = request.match_info["page"]
    number = parse_number(text)
    if feed is None or number is None:
        return _no_feed(request) if feed is None else not_found(f"{text!r} is not a page number")
    # Asked for first: a page that is sealed meanwhile is found then, or was open at this moment.
    open_page = _open_page(feed.reader.head)
    document = await feed.archive(number)
    if document is not None:
        return respond(request, document)
    if number == open_page:
        return _redirect(302, feed.links.current)
    return not_found(f"there is no page {number} yet in {feed.links.base}")


async def latest(request: web.Request) -> web.StreamResponse:
    """The subscription document, whole, or what is new in it, or once it has changed."""
    feed = _feed(request)
    if feed is None:
        return _no_feed(request)
    headers = request.headers
    waited: dict[str, str] = {}
    known = headers.get("If-None-Match")
    if "Prefer" in headers:
        seconds = preferences(headers.getall("Prefer")).get("wait", "")
        if seconds.isdecimal():
            waited = {"Preference-Applied": f"wait={await _wait(request, feed, known, int(seconds))}"}
    document = feed.subscription()
    if document is None:
        response = _empty(request, feed)
    elif known is not None and "A-IM" in headers and _asks_for_news(headers.getall("A-IM")):
        response = _news(feed, document, known) or respond(request, document)
    else:
        response = respond(request, document)
    response.headers.update(waited)
    return response


async def entry(request: web.Request) -> web.StreamResponse:
    """The entry link: to the document which holds the event (draft, "The Event Entry Link Relation").

    301 only to a sealed page, because a cache may keep that answer for ever.
    """
    feed = _feed(request)
    text = request.match_info["ordinal"]
    ordinal = parse_number(text)
    if feed is None or ordinal is None:
        return _no_feed(request) if feed is None else not_found(f"{text!r} is not an ordinal")
    page = feed.reader.page_of(ordinal)
    if page is None:
        return not_found(f"there is no event {ordinal} yet in {feed.links.base}")
    anchor = f"#{fragment(ordinal, page.generation)}"
    if page.sealed:
        return _redirect(301, feed.links.archive(page.number) + anchor)
    return _redirect(302, feed.links.current + anchor)


async def since(request: web.Request) -> web.StreamResponse:
    """The way to the document with the first event at or after a time; without a time, to the end."""
    feed = _feed(request)
    if feed is None:
        return _no_feed(request)
    text = request.query.get("since")
    page: Page | None = None
    if text is not None:
        try:
            page = feed.reader.page_since(parse_rfc3339(text))
        except (ValueError, OverflowError) as error:
            return problem(400, f"since={text}: {error}; write it as 2026-01-31T12:00:00Z")
    if page is None or not page.sealed:
        return _redirect(302, feed.links.current)
    return _redirect(302, feed.links.archive(page.number))


async def _wait(request: web.Request, feed: LiveFeed, known: str | None, seconds: int) -> int:
    """Wait while the client already has what there is (RFC 7240, 4.3); returns the seconds granted."""
    granted = min(seconds, request.app[SETTINGS].wait_max_s)
    head = feed.reader.head
    knows_all = known is not None and head.page is not None and matches_weakly(known, head.page.etag)
    if knows_all and not request.app[SITE].draining:
        await feed.wait(head, granted)
    return granted


def _empty(request: web.Request, feed: LiveFeed) -> web.Response:
    """A new feed: a multipart document needs a part (RFC 2046, 5.1), so there is none yet."""
    if not acceptable(request.headers.get("Accept"), MIXED):
        return not_acceptable(MIXED)
    return web.Response(
        status=204,
        headers={
            "Cache-Control": REVALIDATE,
            "Vary": VARY,
            "Link": f'<{feed.links.current}>; rel="current"',
        },
    )


def _asks_for_news(headers: list[str]) -> bool:
    tokens = (token.partition(";")[0] for header in headers for token in header.split(","))
    return any(token.strip().lower() == "feed" for token in tokens)


def _news(feed: LiveFeed, document: Document, known: str) -> web.Response | None:
    """The entries after the state of the document that the ETag `known` names (RFC 3229, IM: feed).

    None if that state was not of this document, so that the whole of it has to be sent.
    """
    page, data = feed.reader.head.page, feed.reader.head.data
    assert page is not None
    ordinal, _, generation = known.strip().removeprefix("W/").strip('"').partition(".")
    number = parse_number(ordinal)
    if number is None or generation != page.generation:
        return None
    if not page.first_ordinal <= number < page.last_ordinal:
        return None
    start = data.find(f"--{page.boundary}\r\nContent-ID: <{number + 1}.".encode())
    assert start > 0, "the page holds every ordinal between its first and its last"
    headers = CIMultiDict(document.about.headers)
    # A cache that knows nothing of RFC 3229 must not take this for the document.
    headers["Cache-Control"] = NO_STORE
    headers["IM"] = "feed"
    headers["Delta-Base"] = known
    body = document.body[start:]
    headers["Content-Length"] = str(len(body))
    return web.Response(status=226, reason="IM Used", body=body, headers=headers)


def _feed(request: web.Request) -> LiveFeed | None:
    match = request.match_info
    return request.app[SITE].feed(match["log"], match["partition"])


def _no_feed(request: web.Request) -> web.Response:
    match = request.match_info
    logs = request.app[SITE].logs
    if match["log"] not in logs:
        return not_found(no_log(match["log"], logs))
    known = ", ".join(sorted(logs[match["log"]].feeds)) or "none yet"
    return not_found(
        f"the log {match['log']} has no partition {match['partition']!r}; its partitions: {known}"
    )


def _open_page(head: Head) -> int:
    """The number of the page that grows; in a new feed the one that will."""
    if head.page is None:
        return 0
    return head.page.number + 1 if head.page.sealed else head.page.number


def _redirect(status: int, location: str) -> web.Response:
    headers = {"Location": location}
    if status == 302:
        headers["Cache-Control"] = NO_STORE
    headers["Content-Length"] = "0"
    return web.Response(status=status, headers=headers)
