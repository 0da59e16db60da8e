"""A document ready to be sent: rendered once, headers and all, and answered conditionally and in ranges.

The header blocks are made with the body, when a page is sealed into the cache or the head moves; a request
only copies them. So the cost of an answer does not depend on how it was rendered.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from aiohttp import web
from multidict import CIMultiDict

from gateway.core.conditional import Outcome, byte_range, evaluate
from gateway.core.links import FeedLinks, archive_links, subscription_links
from gateway.core.multipart import MIXED, closing_delimiter
from gateway.core.negotiation import acceptable
from gateway.core.pages import Page
from gateway.core.times import http_date

from .problems import problem

IMMUTABLE = "public, max-age=31536000, immutable"
REVALIDATE = "no-cache"
NO_STORE = "no-store"
VARY = "Accept"

_PRECONDITIONS = ("If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since")


@dataclass(frozen=True, slots=True)
class Document:
    """A body with all of its headers.

    `sealed` documents never change, so they are served in ranges and compared by date as well; a date
    cannot tell two states of a growing document apart.
    """

    body: bytes
    etag: str
    headers: CIMultiDict[str]
    not_modified_headers: CIMultiDict[str]
    modified_ms: int | None
    sealed: bool


def subscription_document(links: FeedLinks, page: Page, data: bytes) -> Document:
    """The subscription document: the open page, closed for now (draft, "Publishing Feeds")."""
    return _document(
        page,
        data + closing_delimiter(page.boundary),
        cache=REVALIDATE,
        link=subscription_links(links, page.number),
    )


def archive_document(links: FeedLinks, page: Page, data: bytes) -> Document:
    """An archive document; nothing in it depends on what comes later (RFC 5005, 4; RFC 8246)."""
    return _document(page, data, cache=IMMUTABLE, link=archive_links(links, page.number))


def _document(page: Page, body: bytes, *, cache: str, link: str) -> Document:
    not_modified = CIMultiDict({"Cache-Control": cache, "ETag": page.etag, "Vary": VARY})
    headers = CIMultiDict(
        {
            "Content-Type": f"{MIXED}; boundary={page.boundary}",
            "Content-Length": str(len(body)),
            "Link": link,
        }
    )
    headers.extend(not_modified)
    if page.modified_ms_max is not None:
        headers["Last-Modified"] = http_date(page.modified_ms_max)
    if page.sealed:
        headers["Accept-Ranges"] = "bytes"
    return Document(body, page.etag, headers, not_modified, page.modified_ms_max, page.sealed)


def respond(request: web.BaseRequest, document: Document) -> web.Response:
    """The answer to a GET or HEAD for `document`: 200, 206, 304, 406, 412 or 416."""
    headers = request.headers
    if not acceptable(headers.get("Accept"), MIXED):
        return not_acceptable()
    if any(name in headers for name in _PRECONDITIONS):
        outcome = evaluate(
            document.etag,
            if_match=headers.get("If-Match"),
            if_none_match=headers.get("If-None-Match"),
            if_modified_since=headers.get("If-Modified-Since"),
            if_unmodified_since=headers.get("If-Unmodified-Since"),
            modified_ms=document.modified_ms if document.sealed else None,
        )
        if outcome is Outcome.NOT_MODIFIED:
            return web.Response(status=304, headers=document.not_modified_headers)
        if outcome is Outcome.FAILED:
            return problem(412, f"the document's ETag is {document.etag}", Vary=VARY)
    if document.sealed and "Range" in headers and request.method == "GET":
        return _ranged(headers["Range"], headers.get("If-Range"), document)
    return web.Response(body=document.body, headers=document.headers)


def not_acceptable() -> web.Response:
    return problem(406, f"feed documents are served as {MIXED}: accept that, or */*", Vary=VARY)


def _ranged(header: str, if_range: str | None, document: Document) -> web.Response:
    length = len(document.body)
    wanted = byte_range(header, length, etag=document.etag, if_range=if_range)
    if wanted is None:
        return web.Response(body=document.body, headers=document.headers)
    if wanted is False:
        return problem(416, f"the document has {length} bytes", Content_Range=f"bytes */{length}", Vary=VARY)
    assert isinstance(wanted, slice)
    headers = CIMultiDict(document.headers)
    headers["Content-Length"] = str(wanted.stop - wanted.start)
    headers["Content-Range"] = f"bytes {wanted.start}-{wanted.stop - 1}/{length}"
    return web.Response(status=206, body=document.body[wanted], headers=headers)


class DocumentCache:
    """Archive documents by their paths, the least recently used dropped beyond `bytes_max` bytes."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._documents: OrderedDict[str, Document] = OrderedDict()

    def get(self, path: str) -> Document | None:
        document = self._documents.get(path)
        if document is not None:
            self._documents.move_to_end(path)
        return document

    def put(self, path: str, document: Document) -> None:
        if path in self._documents:
            return
        self._documents[path] = document
        self._bytes += len(document.body)
        while self._bytes > self._bytes_max and len(self._documents) > 1:
            _, dropped = self._documents.popitem(last=False)
            self._bytes -= len(dropped.body)
