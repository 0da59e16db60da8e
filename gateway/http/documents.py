"""A document ready to be sent: rendered once, headers and all, and answered conditionally and in ranges.

The header blocks are made with the body, when a page is sealed into the cache or the head moves; a request
only copies them. So the cost of an answer does not depend on how it was rendered.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

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
JSON = "application/json"

_PRECONDITIONS = ("If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since")


@dataclass(frozen=True, slots=True)
class Description:
    """All that is told of a document: its headers, and what conditions and ranges are decided by.

    `sealed` documents never change, so they are served in ranges and compared by date as well; a date
    cannot tell two states of a growing document apart.
    """

    media_type: str
    length: int
    etag: str
    headers: CIMultiDict[str]
    not_modified_headers: CIMultiDict[str]
    modified_ms: int | None
    sealed: bool


@dataclass(frozen=True, slots=True)
class Document:
    """A body with all of its headers."""

    body: bytes
    about: Description


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
    about = describe(
        f"{MIXED}; boundary={page.boundary}",
        len(body),
        page.etag,
        cache=cache,
        link=link,
        modified_ms=page.modified_ms_max,
        sealed=page.sealed,
    )
    return Document(body, about)


def describe(
    content_type: str,
    length: int,
    etag: str,
    *,
    cache: str,
    link: str,
    modified_ms: int | None = None,
    sealed: bool,
) -> Description:
    """The description of a document of that type, with so many bytes, and its headers."""
    not_modified = CIMultiDict({"Cache-Control": cache, "ETag": etag, "Vary": VARY})
    headers = CIMultiDict({"Content-Type": content_type, "Content-Length": str(length), "Link": link})
    headers.extend(not_modified)
    if modified_ms is not None:
        headers["Last-Modified"] = http_date(modified_ms)
    if sealed:
        headers["Accept-Ranges"] = "bytes"
    media_type = content_type.partition(";")[0]
    return Description(media_type, length, etag, headers, not_modified, modified_ms, sealed)


def respond(request: web.BaseRequest, document: Document) -> web.Response:
    """The answer to a GET or HEAD for `document`: 200, 206, 304, 406, 412 or 416."""
    about = document.about
    wanted = decide(request, about)
    if wanted is None:
        return web.Response(body=document.body, headers=about.headers)
    if isinstance(wanted, slice):
        return web.Response(status=206, body=document.body[wanted], headers=range_headers(about, wanted))
    return wanted


def decide(request: web.BaseRequest, about: Description) -> web.Response | slice | None:
    """What a GET or HEAD gets: the answer without the document, 304, 406, 412 or 416, or bytes of it.

    A slice is the range that is asked for, None is all.
    """
    headers = request.headers
    if not acceptable(headers.get("Accept"), about.media_type):
        return not_acceptable(about.media_type)
    if any(name in headers for name in _PRECONDITIONS):
        outcome = evaluate(
            about.etag,
            if_match=headers.get("If-Match"),
            if_none_match=headers.get("If-None-Match"),
            if_modified_since=headers.get("If-Modified-Since"),
            if_unmodified_since=headers.get("If-Unmodified-Since"),
            modified_ms=about.modified_ms if about.sealed else None,
        )
        if outcome is Outcome.NOT_MODIFIED:
            return web.Response(status=304, headers=about.not_modified_headers)
        if outcome is Outcome.FAILED:
            return problem(412, f"the document's ETag is {about.etag}", Vary=VARY)
    if about.sealed and "Range" in headers and request.method == "GET":
        return _range(headers["Range"], headers.get("If-Range"), about)
    return None


def not_acceptable(media_type: str) -> web.Response:
    return problem(406, f"this is served as {media_type}: accept that, or */*", Vary=VARY)


def range_headers(about: Description, wanted: slice) -> CIMultiDict[str]:
    """The headers of a 206 answer with the bytes `wanted`."""
    headers = CIMultiDict(about.headers)
    headers["Content-Length"] = str(wanted.stop - wanted.start)
    headers["Content-Range"] = f"bytes {wanted.start}-{wanted.stop - 1}/{about.length}"
    return headers


def _range(header: str, if_range: str | None, about: Description) -> web.Response | slice | None:
    length = about.length
    wanted = byte_range(header, length, etag=about.etag, if_range=if_range)
    if wanted is False:
        return problem(416, f"the document has {length} bytes", Content_Range=f"bytes */{length}", Vary=VARY)
    assert wanted is not True
    return wanted


def json_response(request: web.Request, content: dict[str, Any], **headers: str) -> web.Response:
    """The answer to a GET or HEAD for a document that is made anew each time: 200, 304 or 412.

    `headers` are named with '_' in place of '-'.
    """
    body = json.dumps(content, indent=2).encode() + b"\n"
    etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    all_headers = {"Cache-Control": REVALIDATE, "ETag": etag}
    all_headers |= {name.replace("_", "-"): value for name, value in headers.items()}
    outcome = evaluate(
        etag,
        if_match=request.headers.get("If-Match"),
        if_none_match=request.headers.get("If-None-Match"),
    )
    if outcome is Outcome.NOT_MODIFIED:
        return web.Response(status=304, headers=all_headers)
    if outcome is Outcome.FAILED:
        return problem(412, f"the document's ETag is {etag}")
    return web.Response(body=body, content_type=JSON, headers=all_headers)


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
