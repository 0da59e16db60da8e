"""Asking targets for their state, where the feed of another server does not tell it.

Draft, "Initializing via Snapshots and Feeds": in place of a PATCH, the current state of the target.
"""

from __future__ import annotations

from .copy import Fetched, Unresolved
from .fetch import Fetcher, FetchFailed, resolve

# With these a body means something else; the coding of the transfer is undone by the HTTP client.
_KEPT_HEADERS = ("Content-Language",)
_GONE = (404, 410)


async def ask_target(fetcher: Fetcher, base: str, unresolved: Unresolved) -> Fetched | None:
    """What the target says of itself; None if what its ETag belongs to still holds. Raises FetchFailed."""
    url = resolve(base, unresolved.target)
    headers = {"Cache-Control": "no-cache"}
    if unresolved.etag:
        headers["If-None-Match"] = unresolved.etag
    answer = await fetcher.follow(url, headers)
    if answer.status == 304 and unresolved.etag:
        return None
    if answer.status in _GONE:
        return Fetched(gone=True)
    if answer.status not in (200, 204):
        raise FetchFailed(f"{url} answers {answer.status}")
    return Fetched(
        answer.headers.get("Content-Type"),
        answer.body,
        tuple((name, answer.headers[name]) for name in _KEPT_HEADERS if name in answer.headers),
        answer.headers.get("ETag"),
        answer.headers.get("Last-Modified"),
    )
