"""Any history, in pages of any size, read by a client that stops anywhere: the copy equals the replay."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from gateway.core.event import Event, Method
from gateway.core.pages import Paginator
from gateway.core.state import Digest, Entity, Kind, apply
from gateway.http.app import make_app
from gateway.http.connection import LimitedRunner
from gateway.http.documents import DocumentCache
from gateway.http.live import LiveLog, Site
from gateway.http.settings import HttpSettings
from gateway.storage.memory import MemoryFeed
from gateway.sync import Observer, synchronize
from tests.feeds import TIME_MS, batch_with, settings
from tests.http.test_app import FakePublisher, Ready

TARGETS = st.sampled_from(["/a", "/b?x=1", "/c/%C3%A9"])
JSON, MERGE, PATCH = "application/json", "application/merge-patch+json", "application/json-patch+json"
BODIES = st.sampled_from(
    [b'{"a":{"b":1.10},"c":[1e400]}', b"[1,2]", b'"text"', b"not json", b"", b"\x00\xff\r\n--"]
)
MERGES = st.sampled_from([b'{"a":{"b":null,"d":2}}', b'{"c":9223372036854775808}', b"null", b"broken"])
PATCHES = st.sampled_from(
    [
        b'[{"op":"add","path":"/z","value":0.1000000000000000055}]',
        b'[{"op":"test","path":"/a/b","value":1.1},{"op":"remove","path":"/a"}]',
        b'[{"op":"move","from":"/c","path":"/a"}]',
        b'[{"op":"replace","path":"","value":{}}]',
    ]
)


def event(method: Method, target: str, content_type: str | None, body: bytes) -> Event:
    return Event(method, target, content_type, body, TIME_MS)


EVENTS = st.one_of(
    st.builds(event, st.just(Method.PUT), TARGETS, st.sampled_from([JSON, "text/plain", None]), BODIES),
    st.builds(event, st.just(Method.PATCH), TARGETS, st.just(MERGE), MERGES),
    st.builds(event, st.just(Method.PATCH), TARGETS, st.just(PATCH), PATCHES),
    st.builds(event, st.just(Method.PATCH), TARGETS, st.just("text/x-diff"), st.just(b"x")),
    st.builds(event, st.just(Method.POST), TARGETS, st.just(JSON), BODIES),
    st.builds(event, st.just(Method.DELETE), TARGETS, st.none(), st.just(b"")),
)
RUNS = st.lists(
    st.tuples(st.lists(EVENTS, max_size=12), st.one_of(st.none(), st.integers(0, 12))), min_size=1, max_size=6
)


class StopAfter(Observer):
    """Stops a run once so many events were applied."""

    def __init__(self, stop: asyncio.Event, events: int | None) -> None:
        self._stop = stop
        self._left = events

    def applied(self, events: int) -> None:
        if self._left is not None:
            self._left -= events
            if self._left <= 0:
                self._stop.set()


@asynccontextmanager
async def serving(feeds: Sequence[MemoryFeed]):
    limits = HttpSettings()
    site = Site(Ready(), DocumentCache(limits.page_cache_bytes_max))
    log = LiveLog("things", "/", FakePublisher())
    site.logs["things"] = log
    for feed in feeds:
        site.add_feed(log, feed)
    runner = LimitedRunner(make_app(site, limits))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/"
    finally:
        await runner.cleanup()


@pytest.mark.slow
@hypothesis_settings(max_examples=60, deadline=None)
@given(runs=RUNS, events_max=st.integers(1, 5), folder_copy=st.booleans(), partitions=st.integers(1, 2))
def test_the_copy_of_any_history_equals_its_replay(
    tmp_path_factory, runs, events_max, folder_copy, partitions
):
    folder: Path = tmp_path_factory.mktemp("copy")
    destination = f"{folder}/copy/" if folder_copy else str(folder / "copy.sqlite")
    feeds = [
        MemoryFeed(settings(partition=str(number), events_max=events_max)) for number in range(partitions)
    ]
    replayed: list[dict[str, Entity | None]] = [{} for _ in feeds]

    async def scenario():
        async with serving(feeds) as url:
            for number, (events, stop_after) in enumerate(runs):
                which = number % partitions
                feed, state = feeds[which], replayed[which]
                if events:
                    head = feed.head
                    feed.append(batch_with(Paginator(feed.settings, head.page, head.data), *events))
                for made in events:
                    state[made.target] = apply(state.get(made.target), made)
                stop = asyncio.Event()
                await synchronize(url, destination, stop=stop, observer=StopAfter(stop, stop_after))
            return await synchronize(url, destination, verify=True)

    summary = asyncio.run(scenario())
    assert summary.verdict is not None
    assert summary.verdict.equal
    assert summary.digest == sum((digest_of(state) for state in replayed), Digest())
    if not folder_copy:
        assert copied(Path(destination)) == {
            (str(number), target): (entity.etag, entity.body if entity.kind is Kind.PRESENT else None)
            for number, state in enumerate(replayed)
            for target, entity in state.items()
            if entity is not None
        }


def digest_of(state: dict[str, Entity | None]) -> Digest:
    known = [(target, "", entity.etag) for target, entity in state.items() if entity is not None]
    return Digest().with_changes(known)


def copied(path: Path) -> dict[tuple[str, str], tuple[str, bytes | None]]:
    with closing(sqlite3.connect(path)) as database:
        rows = database.execute("SELECT partition, target, coalesce(etag, ''), body FROM entities").fetchall()
    return {(partition, target): (etag, body) for partition, target, etag, body in rows}
