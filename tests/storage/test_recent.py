"""Rows that changed lately: wherever the merging stands, each process sees what is committed."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from gateway.core.errors import PageDamaged
from gateway.core.event import Event, Method
from gateway.core.pages import Paginator
from gateway.storage import recent
from gateway.storage.filestore import FeedStore, StoredFeed
from gateway.storage.memory import MemoryFeed
from tests.feeds import TIME_MS, batch_with, settings

JSON = "application/json"
NAMES = [f"/{number:02}" for number in range(30)]


@pytest.fixture(autouse=True)
def _merged_often(monkeypatch):
    """So that a handful of events goes through all that many thousand do."""
    monkeypatch.setattr(recent, "MERGED_RECORDS_MIN", 8)
    monkeypatch.setattr(recent, "WRITTEN_RECORDS_MAX", 30)
    monkeypatch.setattr(recent, "SLICE_RECORDS", 3)


def put(target, body):
    return Event(Method.PUT, target, JSON, body, TIME_MS)


def patch(target):
    return Event(Method.PATCH, target, "application/merge-patch+json", b'{"p":1}', TIME_MS)


def publish(store, *events):
    head = store.head
    store.append(batch_with(Paginator(store.settings, head.page, head.data), *events))


def rows_left(folder):
    with closing(sqlite3.connect(folder / "catalogue.sqlite")) as db:
        return db.execute("SELECT count(*) FROM recent").fetchone()[0]


def assert_same(feed, twin):
    for target in NAMES:
        record = feed.entity(target)
        assert record == twin.entity(target)
        if record is not None:
            assert feed.representation(record) == twin.representation(twin.entity(target))
    end = twin.head.next_ordinal
    assert feed.targets_from(0, end, "", 100) == twin.targets_from(0, end, "", 100)
    assert feed.targets_from(end // 2, end, "/05", 3) == twin.targets_from(end // 2, end, "/05", 3)
    assert sorted(feed.first_ordinals(NAMES)) == sorted(twin.first_ordinals(NAMES))


targets = st.sampled_from(NAMES)
events = st.one_of(
    st.builds(put, targets, st.sampled_from([b"1", b"{}"])),
    st.builds(patch, targets),
    targets.map(lambda target: Event(Method.DELETE, target, None, b"", TIME_MS)),
)
steps = st.one_of(
    st.lists(events, min_size=1, max_size=12), st.sampled_from(["restart", "look", "open", "rebuild"])
)


@hypothesis_settings(max_examples=60, deadline=None)
@given(st.lists(steps, max_size=25))
def test_writer_and_readers_see_what_the_twin_sees_after_any_history(tmp_path_factory, steps):
    folder = tmp_path_factory.mktemp("feed")
    store, twin = FeedStore(folder, settings(events_max=7)), MemoryFeed(settings(events_max=7))
    readers = []
    for step in steps:
        match step:
            case "restart":
                store.close()
                store = FeedStore(folder, settings(events_max=7))
            case "open":
                readers.append(StoredFeed(folder))
            case "rebuild":
                assert store.rebuild_state() == 0
            case "look":
                for reader in readers:
                    reader.refresh()
                    assert_same(reader, twin)
            case batch:
                publish(store, *batch)
                publish(twin, *batch)
    for feed in (store, *readers):
        feed.refresh()
        assert_same(feed, twin)
        feed.close()


def test_merging_leaves_no_rows_behind_and_needs_no_more_than_it_adds(tmp_path):
    store = FeedStore(tmp_path, settings())
    for round_ in range(20):
        publish(store, *(put(target, b"%d" % round_) for target in NAMES[round_ % 10 :: 10]))
        assert rows_left(tmp_path) <= 12
    store.close()
    with closing(sqlite3.connect(tmp_path / "catalogue.sqlite")) as db:
        assert db.execute("SELECT count(*) FROM entities").fetchone()[0] > 20


def test_few_targets_that_change_often_do_not_pile_up(tmp_path):
    """Also across restarts, which must not begin to count anew."""
    for _ in range(10):
        store = FeedStore(tmp_path, settings())
        for number in range(9):
            publish(store, put(NAMES[number % 2], b"%d" % number))
        assert rows_left(tmp_path) <= 32
        store.close()


def test_a_reader_that_missed_a_whole_merge_does_not_keep_what_it_had(tmp_path):
    store = FeedStore(tmp_path, settings())
    publish(store, put("/00", b"1"))
    reader = StoredFeed(tmp_path)
    reader.refresh()
    assert reader.entity("/00").ordinal == 0
    publish(store, put("/00", b"2"))
    for number in range(20):
        publish(store, put(NAMES[1 + number], b"x"))
    with closing(sqlite3.connect(tmp_path / "catalogue.sqlite")) as db:
        assert db.execute("SELECT min(number) FROM recent").fetchone()[0] > 2
    reader.refresh()
    assert reader.entity("/00").ordinal == 1
    reader.close()
    store.close()


def test_a_batch_that_was_taken_back_leaves_nothing_in_memory(tmp_path):
    store = FeedStore(tmp_path, settings())
    publish(store, *(put(target, b"{}") for target in NAMES[:6]))
    path = tmp_path / "pages" / "0"
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"{}", b"[]"))
    with pytest.raises(PageDamaged):
        publish(store, put("/00", b"2"), *(put(target, b"9") for target in NAMES[6:]), patch("/01"))
    path.write_bytes(whole)
    store.recover()
    twin = MemoryFeed(settings())
    publish(twin, *(put(target, b"{}") for target in NAMES[:6]))
    assert_same(store, twin)
    publish(store, patch("/00"))
    publish(twin, patch("/00"))
    assert_same(store, twin)
    store.close()
