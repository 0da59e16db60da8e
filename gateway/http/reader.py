"""What a reader process serves: the feed documents of a data folder that the main process writes.

Snapshots are read from their folder likewise. All else is forwarded: publications, the documents about
logs, readiness, and whatever is not known here or damaged, which the main process repairs when it is asked
for it. So a reader needs to be told of nothing: a feed is opened when its first request comes.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path

from aiohttp import web

from gateway.core.errors import InvalidEvent, StoreMismatch
from gateway.core.event import Event, parse_name
from gateway.core.identity import ContentID
from gateway.storage.filestore import CATALOGUE, StoredFeed, feed_folder
from gateway.storage.snapshots import SnapshotFolder

from .documents import DocumentCache
from .front import Front, Handler, front
from .live import LiveLog, Site
from .problems import problems
from .settings import HttpSettings

_READS = ("GET", "HEAD")
_SNAPSHOTS = "/snapshots/"


class _Elsewhere:
    """The publisher and the readiness of a reader, which are the main process's own."""

    async def publish(self, event: Event, *, wait: bool) -> ContentID | None:
        raise AssertionError("a reader forwards publications")

    def unsettled(self, target: str) -> bool:
        raise AssertionError("a reader forwards publications")

    def problems(self) -> list[str]:
        raise AssertionError("a reader forwards readiness")


class StoredSite(Site):
    """The feeds in the data folder `data`, and the snapshots in `snapshots`, of the logs of those names."""

    def __init__(self, data: Path, snapshots: Path, logs: Iterable[str], cache: DocumentCache) -> None:
        elsewhere = _Elsewhere()
        super().__init__(elsewhere, cache, shared=True)
        self._data = data
        for name in logs:
            self.logs[name] = LiveLog(name, "/", elsewhere, snapshots=SnapshotFolder(snapshots, name))

    def knows(self, path: str) -> bool:
        """Whether `path` is of a feed that is stored here; opens it if this is the first time."""
        segments = path.partition("?")[0].split("/", 4)
        if len(segments) < 4 or segments[1] != "feeds":
            return False
        live = self.logs.get(segments[2])
        return live is not None and (segments[3] in live.feeds or self._open(live, segments[3]))

    def close(self) -> None:
        """Let go of all feeds."""
        for live in self.logs.values():
            for feed in live.feeds.values():
                assert isinstance(feed.reader, StoredFeed)
                feed.reader.close()

    def _open(self, live: LiveLog, partition: str) -> bool:
        try:
            folder = feed_folder(self._data, live.name, parse_name(partition, "partition"))
            if not (folder / CATALOGUE).is_file():
                return False
            self.add_feed(live, StoredFeed(folder))
        except (InvalidEvent, StoreMismatch, sqlite3.Error):
            # Not a name, or a feed that is just being made: the main process knows more.
            return False
        return True


def reading(site: StoredSite, forward: Handler) -> Front:
    """A front that answers for the feeds and snapshots of `site`; all else goes to `forward`."""

    def front_of(_: Site, settings: HttpSettings, routed: Handler) -> Handler:
        local = front(site, settings, routed)

        async def handle(request: web.Request) -> web.StreamResponse:
            if request.method in _READS:
                if request.raw_path.startswith(_SNAPSHOTS):
                    return await local(request)
                if site.knows(request.raw_path):
                    response = await local(request)
                    # 503 is a damaged page.
                    if response.status != 503:
                        return response
            return await problems(request, forward)

        return handle

    return front_of
