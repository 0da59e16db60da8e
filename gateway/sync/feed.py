"""The events of a feed, each once and in order, from any server of the draft.

    async for event in feed("http://localhost:8080/feeds/events/0/latest"):
        ...

Whatever the network does, what comes out is the feed: answers that are cut short, out of date or not the
feed's at all are asked for again, and what stays wrong is raised, never passed on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

from gateway.core.errors import GatewayError

from .asking import ReaderSettings, Refused
from .fetch import Fetcher, FetchFailed, InvalidLink, enter
from .reading import FeedBroken, FeedEvent, Position
from .way import FeedSlice, Lost, Way

__all__ = [
    "FeedBroken",
    "FeedEvent",
    "FeedSlice",
    "Position",
    "ReaderSettings",
    "StartOver",
    "documents",
    "feed",
]

OnTrouble = Callable[[str], None]


class StartOver(GatewayError):
    """The feed no longer has the event that the reader stands on: what was built from it is void."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"{url}: {reason}; start over from the beginning of the feed")
        self.url = url
        self.reason = reason


def _ignore(text: str) -> None:
    pass


async def feed(
    url: str,
    position: Position | None = None,
    *,
    follow: bool = True,
    settings: ReaderSettings | None = None,
    on_trouble: OnTrouble = _ignore,
) -> AsyncGenerator[FeedEvent, None]:
    """The events of the feed that the document at `url` is of, from the first one, or behind `position`.

    With `follow` they never end; without, they end with what the feed has when the reader gets there. Each
    event's `position` is where to go on after it.

    Raises StartOver when the feed no longer has the event of the position, FeedBroken when it breaks a rule
    of the draft that no event can be trusted without, FetchFailed when the server cannot be asked. With
    `follow`, trouble that may pass is waited for, without an end; `on_trouble` gets a sentence each time.
    User info in `url` is sent to its server (RFC 7617), and stands in nothing that comes out.
    """
    slices = documents(url, position, follow=follow, settings=settings, on_trouble=on_trouble)
    try:
        async for found in slices:
            for event in found.events:
                yield event
    finally:
        await slices.aclose()


async def documents(
    url: str,
    position: Position | None = None,
    *,
    follow: bool = True,
    settings: ReaderSettings | None = None,
    on_trouble: OnTrouble = _ignore,
) -> AsyncGenerator[FeedSlice, None]:
    """The same as `feed`, in slices: what is new in one document after the other."""
    settings = settings or ReaderSettings()
    url, fetch_settings = enter(url, settings.fetch)
    async with Fetcher(fetch_settings) as fetcher:
        way = Way(fetcher, url, position, settings, on_trouble)
        patience = _Patience(url, settings, follow=follow)
        try:
            while True:
                try:
                    found = await way.step()
                except (Lost, FetchFailed, FeedBroken) as error:
                    wait_s = patience.after(error, entered=way.entered)
                    on_trouble(str(error))
                    await asyncio.sleep(wait_s)
                    await way.recover()
                    continue
                if found.events or found.caught_up:
                    patience.restore(events=bool(found.events))
                    yield found
                if found.caught_up and not follow:
                    return
        finally:
            await way.close()


class _Patience:
    """How long trouble is borne."""

    def __init__(self, url: str, settings: ReaderSettings, *, follow: bool) -> None:
        self._url = url
        self._settings = settings
        self._follow = follow
        self._clock = asyncio.get_running_loop().time
        self._tries = 0
        self._lost = 0
        self._last_s = 0.0

    def restore(self, *, events: bool) -> None:
        """All is well; without `events` that may be luck, until the last trouble is some time ago."""
        self._lost = 0
        if events or self._clock() - self._last_s > 2 * self._settings.trouble_s_max:
            self._tries = 0

    def after(self, error: Exception, *, entered: bool) -> float:
        """The seconds to wait until the next try; raises what `error` means if it was the last.

        `entered`: the URL has led to a feed, so that any trouble may pass.
        """
        settings = self._settings
        self._last_s = self._clock()
        if isinstance(error, Lost):
            self._lost += 1
            if self._lost >= settings.lost_tries_max:
                raise StartOver(self._url, str(error)) from None
            return self._wait_s(self._lost)
        self._tries += 1
        refused = error if isinstance(error, Refused) else None
        if not entered and (isinstance(error, InvalidLink) or (refused is not None and refused.for_good)):
            raise error
        may_pass = self._follow and not isinstance(error, FeedBroken | InvalidLink)
        if self._tries >= settings.tries_max and not may_pass:
            raise error
        wait_s = self._wait_s(self._tries)
        if refused is not None and refused.retry_after_s is not None:
            wait_s = max(wait_s, min(refused.retry_after_s, settings.fetch.retry_after_max_s))
        return wait_s

    def _wait_s(self, count: int) -> float:
        settings = self._settings
        return min(settings.trouble_s_min * 2.0 ** min(count - 1, 30), settings.trouble_s_max)
