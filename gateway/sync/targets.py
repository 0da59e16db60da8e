"""Asking targets for their state, where the feed of another server does not tell it.

Draft, "Initializing via Snapshots and Feeds": in place of a PATCH, the current state of the target.

Only targets of the feed's own server are asked: a feed must not send its readers to any address that it
names, perhaps one that only they can reach.
"""

from __future__ import annotations

from .copy import Fetched, Unresolved
from .fetch import REDIRECTS, Fetcher, FetchFailed, resolve
from .urls import origin_of

# With these a body means something else; the coding of the transfer is undone by the HTTP client.
_KEPT_HEADERS = ("Content-Language",)
_GONE = (404, 410)


async def ask_target(fetcher: Fetcher, base: str, unresolved: Unresolved) -> Fetched | None:
    """What the target says of itself; None if what its ETag belongs to still holds.

    `base` is the URL of the feed. Raises FetchFailed, also for targets of other servers.
    """
    url, origin = resolve(base, unresolved.target), origin_of(base)
    if origin_of(url) != origin:
        raise FetchFailed(f"{url} is not asked for its state: it is not of the feed's own server, {origin}")
    headers = {"Cache-Control": "no-cache"}
    if unresolved.etag:
        headers["If-None-Match"] = unresolved.etag
    answer = await fetcher.follow(url, headers, within=origin)
    if answer.status == 304 and unresolved.etag:
        return None
    if answer.status in _GONE:
        return Fetched(gone=True)
    if answer.status in REDIRECTS:
        raise FetchFailed(f"{url} redirects to another server, which is not asked, or without an end")
    if answer.status not in (200, 204):
        raise FetchFailed(f"{url} answers {answer.status}")
    return Fetched(
        answer.headers.get("Content-Type"),
        answer.body,
        tuple((name, answer.headers[name]) for name in _KEPT_HEADERS if name in answer.headers),
        answer.headers.get("ETag"),
        answer.headers.get("Last-Modified"),
    )
