"""Where a feed goes on behind a snapshot of which only the start is known.

Draft, "Initializing via Snapshots and Feeds": at the oldest event with a Last-Modified that is not before the
snapshot's start. What a feed holds of the time before changes nothing for the worse, so any doubt is settled
by reading earlier.
"""

from __future__ import annotations

from collections.abc import Callable

from gateway.core.times import parse_http_date

from .asking import Asker, ReaderSettings
from .chain import Chain
from .feed_walk import PREV
from .fetch import Fetcher, resolve
from .reading import Document, FeedEvent, Position
from .snapshot import Unused
from .urls import origin_of


async def behind(
    fetcher: Fetcher, url: str, started: int, settings: ReaderSettings, on_trouble: Callable[[str], None]
) -> Position | None:
    """The position in the feed at `url` behind which all is that came since `started`; None: its beginning.

    `started` is in milliseconds since the Unix epoch. Raises FetchFailed and FeedBroken, and Unused if the
    feed does not reach back to it.
    """
    # Last-Modified is cut to the second.
    from_ms = started - started % 1000
    asker = Asker(fetcher, origin_of(url))
    asker.fresh = True
    chain = Chain(asker, resolve(url, url), documents_max=settings.documents_max, on_trouble=on_trouble)
    document = await asker.get(chain.current)
    chain.learn(document)
    seen: set[int] = set()
    while not _begins_before(document, from_ms):
        earlier = await chain.before(document, seen)
        if earlier is None:
            if PREV in document.links:
                raise Unused(
                    f"the feed does not reach back to its start: {document.links[PREV]} is not there any more"
                )
            return None
        document = earlier
    last = document.events[0]
    for event in document.events:
        if not _is_before(event, from_ms):
            break
        last = event
    return last.position


def _begins_before(document: Document, from_ms: int) -> bool:
    return bool(document.events) and _is_before(document.events[0], from_ms)


def _is_before(event: FeedEvent, from_ms: int) -> bool:
    moment_ms = None if event.last_modified is None else parse_http_date(event.last_modified)
    return moment_ms is not None and moment_ms < from_ms
