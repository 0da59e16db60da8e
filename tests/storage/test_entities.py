"""Current state in storage: the file store and its in-memory twin keep it alike, and as a plain fold does."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from gateway.core.errors import PageDamaged
from gateway.core.event import Event, Method
from gateway.core.pages import Paginator
from gateway.core.state import DELETED, UNKNOWN, Digest, Entity, Kind, apply, etag_of
from gateway.storage.contract import FeedReader, FeedWriter
from gateway.storage.filestore import FeedStore, StoredFeed
from gateway.storage.memory import MemoryFeed
from gateway.storage.records import packed
from gateway.storage.shared import SharedTargets
from tests.feeds import TIME_MS, batch_with, settings
from tests.servers import open_files

JSON = "application/json"
MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"


@pytest.fixture(params=["files", "memory"])
def store(request, tmp_path) -> Iterator[FeedWriter]:
    made = FeedStore(tmp_path / "feed", settings()) if request.param == "files" else MemoryFeed(settings())
    yield made
    made.close()


def put(target: str, body: bytes, content_type: str | None = JSON) -> Event:
    return Event(Method.PUT, target, content_type, body, TIME_MS)


def patch(target: str, body: bytes, content_type: str = MERGE) -> Event:
    return Event(Method.PATCH, target, content_type, body, TIME_MS + 5)


def publish(store: FeedWriter, *events: Event) -> None:
    head = store.head
    store.append(batch_with(Paginator(store.settings, head.page, head.data), *events))


def entity(store: FeedReader, target: str) -> Entity | None:
    record = store.entity(target)
    return None if record is None else store.representation(record)


def expected(*events: Event) -> dict[str, Entity]:
    """What a plain fold of the events gives."""
    state: dict[str, Entity | None] = {}
    for event in events:
        state[event.target] = apply(state.get(event.target), event)
    return {target: entity for target, entity in state.items() if entity is not None}


def digest_of(entities: dict[str, Entity]) -> Digest:
    digest = Digest()
    for target, entity in entities.items():
        digest = digest.with_change(target, "", entity.etag)
    return digest


def test_a_put_is_the_state_and_the_record_tells_where_it_is_from(store):
    publish(store, put("/a", b"1"), put("/b", b"2"), put("/a", b"3"))
    record = store.entity("/a")
    assert (record.kind, record.ordinal, record.modified_ms) == (Kind.PRESENT, 2, TIME_MS)
    assert entity(store, "/a").body == b"3"
    assert entity(store, "/b") == apply(None, put("/b", b"2"))
    assert store.entity("/c") is None
    assert store.head.digest == digest_of(expected(put("/b", b"2"), put("/a", b"3")))


def test_a_deleted_target_is_remembered_and_a_post_is_no_state(store):
    publish(
        store, put("/a", b"1"), Event(Method.DELETE, "/a", None, b""), Event(Method.DELETE, "/b", None, b"")
    )
    publish(store, Event(Method.POST, "/c", JSON, b"{}"))
    assert entity(store, "/a") == entity(store, "/b") == DELETED
    assert store.entity("/c") is None
    assert store.head.digest == Digest()


def test_patches_build_on_each_other_within_a_batch_and_across(store):
    publish(store, put("/a", b'{"n": 1.10}'), patch("/a", b'{"m": 2}'))
    assert entity(store, "/a").body == b'{"m":2,"n":1.10}'
    publish(store, patch("/a", b'{"m": null}'), patch("/b", b'{"x": {"y": null}}'))
    assert entity(store, "/a").body == b'{"n":1.10}'
    assert entity(store, "/b") == apply(None, patch("/b", b'{"x": {}}'))
    publish(store, put("/a", b"plain", "text/plain"), patch("/a", b"{}"))
    assert entity(store, "/a") == UNKNOWN
    publish(store, put("/a", b"again"))
    assert entity(store, "/a").body == b"again"


def test_extra_headers_belong_to_the_state(store):
    made = put("/a", b"\x1f\x8b")._replace(extra_headers=(("Content-Encoding", "gzip"), ("X-Note", "a: b")))
    publish(store, made)
    assert entity(store, "/a").extra_headers == made.extra_headers


def test_a_record_of_before_gives_its_own_body_or_none(store):
    publish(store, put("/a", b"{}"), patch("/a", b'{"x": 1}'))
    before = store.entity("/a")
    publish(store, put("/a", b"2"))
    assert store.representation(before) is None
    assert entity(store, "/a").body == b"2"


def test_a_reader_elsewhere_and_a_restart_see_the_same(tmp_path):
    store = FeedStore(tmp_path, settings())
    publish(store, put("/a", b"1"), put("/b", b"{}"), patch("/b", b'{"x": 1}'))
    reader = StoredFeed(tmp_path)
    reader.refresh()
    for target in ("/a", "/b"):
        assert entity(reader, target) == entity(store, target)
    assert reader.head.digest == store.head.digest != Digest()
    reader.close()
    head = store.head
    store.close()
    store = FeedStore(tmp_path, settings())
    assert store.head == head
    store.close()


def test_a_damaged_page_is_not_taken_for_the_state(tmp_path):
    store = FeedStore(tmp_path, settings())
    publish(store, put("/a", b"first"), put("/b", b"{}"), put("/c", b"2"), put("/d", b"3"))
    path = tmp_path / "pages" / "0"
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"first", b"flrst").replace(b"{}", b"[]"))
    with pytest.raises(PageDamaged):
        entity(store, "/a")
    assert [page.number for page in store.damaged_pages()] == [0]
    head = store.head
    # What builds on a damaged body waits for its repair, and nothing of its batch is kept.
    with pytest.raises(PageDamaged):
        publish(store, put("/e", b"5"), patch("/b", b'{"x": 1}'))
    assert store.head == head
    store.replace(store.page(0), whole)
    publish(store, put("/e", b"5"), patch("/b", b'{"x": 1}'))
    assert entity(store, "/b").body == b'{"x":1}'
    store.close()


@pytest.mark.parametrize("others", [0, 4], ids=["grows", "is sealed"])
def test_a_damaged_open_page_is_named_as_it_was_committed(tmp_path, others):
    store = FeedStore(tmp_path, settings())
    publish(store, put("/a", b"{}"))
    path = tmp_path / "pages" / "0"
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"{}", b"[]"))
    # Its repair is of what is committed, not of the batch that found the damage.
    changes = patch("/a", b'{"x": 1}'), *[put(f"/{number}", b"1") for number in range(others)]
    with pytest.raises(PageDamaged):
        publish(store, *changes)
    assert store.damaged_pages() == [store.head.page]
    store.replace(store.head.page, whole)
    publish(store, *changes)
    assert entity(store, "/a").body == b'{"x":1}'
    assert store.verify(store.page(0)) is True
    assert f"{path} (deleted)" not in open_files(os.getpid())
    store.close()


def test_state_that_was_lost_or_falsified_is_made_again_from_the_pages(tmp_path):
    store = FeedStore(tmp_path, settings())
    publish(
        store, put("/a", b"1"), put("/b", b"{}"), patch("/b", b'{"x": 1}'), put("/c", b"2"), put("/d", b"x")
    )
    publish(store, patch("/d", b"{}"), Event(Method.DELETE, "/a", None, b"", TIME_MS + 1))
    head, records = store.head, [store.entity(f"/{name}") for name in "abcd"]
    assert store.rebuild_state() == 0
    assert (store.head, [store.entity(f"/{name}") for name in "abcd"]) == (head, records)
    store.close()
    database = sqlite3.connect(tmp_path / "catalogue.sqlite")
    database.execute("DELETE FROM entities WHERE target = '/a'")
    wrong = packed(records[2]._replace(etag=etag_of(None, b"x"), ordinal=0))
    database.execute("UPDATE entities SET record = ? WHERE target = '/c'", (wrong,))
    database.execute("UPDATE patched SET body = '[]'")
    database.execute("UPDATE digest SET entities = 7")
    database.commit()
    database.close()
    store = FeedStore(tmp_path, settings())
    assert store.head.digest != head.digest
    assert store.rebuild_state() == 3
    assert store.head.digest == head.digest
    # Of what was lost, the page knows the time to the second.
    assert store.entity("/a") == records[0]._replace(modified_ms=TIME_MS)
    assert [store.entity(f"/{name}") for name in "bcd"] == records[1:]
    assert entity(store, "/b").body == b'{"x":1}'
    store.close()
    store = FeedStore(tmp_path, settings())
    assert store.head.digest == head.digest
    store.close()


def test_a_damaged_page_ends_a_rebuild_and_changes_nothing(tmp_path):
    store = FeedStore(tmp_path, settings())
    publish(store, put("/a", b"first"), put("/b", b"2"), put("/c", b"3"), put("/d", b"4"))
    path = tmp_path / "pages" / "0"
    path.write_bytes(path.read_bytes().replace(b"first", b"flrst"))
    head, record = store.head, store.entity("/d")
    with pytest.raises(PageDamaged):
        store.rebuild_state()
    assert (store.head, store.entity("/d")) == (head, record)
    publish(store, put("/d", b"5"))
    assert entity(store, "/d").body == b"5"
    store.close()


TARGETS = st.sampled_from(["/a", "/b", "/c"])
EVENTS = st.one_of(
    st.builds(put, TARGETS, st.sampled_from([b'{"a":1}', b"[1]", b"no json", b""])),
    st.builds(
        patch, TARGETS, st.sampled_from([b'{"a":{"b":null}}', b'{"c":1.0}', b"broken"]), st.just(MERGE)
    ),
    st.builds(
        patch,
        TARGETS,
        st.sampled_from([b'[{"op":"add","path":"/z","value":1}]', b'[{"op":"test","path":"","value":1}]']),
        st.just(JSON_PATCH),
    ),
    st.builds(patch, TARGETS, st.just(b"s/a/b/"), st.just("text/plain")),
    TARGETS.map(lambda target: Event(Method.DELETE, target, None, b"", TIME_MS)),
    TARGETS.map(lambda target: Event(Method.POST, target, JSON, b"{}", TIME_MS)),
)


@hypothesis_settings(max_examples=50, deadline=None)
@given(batches=st.lists(st.lists(EVENTS, min_size=1, max_size=6), max_size=6), restart=st.booleans())
def test_any_history_in_any_batches_gives_what_a_plain_fold_gives(tmp_path_factory, batches, restart):
    folder: Path = tmp_path_factory.mktemp("feed")
    store, twin = FeedStore(folder, settings(events_max=4)), MemoryFeed(settings(events_max=4))
    for batch in batches:
        publish(store, *batch)
        publish(twin, *batch)
        if restart:
            store.close()
            store = FeedStore(folder, settings(events_max=4))
    wanted = expected(*(event for batch in batches for event in batch))
    for target in ("/a", "/b", "/c"):
        assert entity(store, target) == entity(twin, target) == wanted.get(target)
        assert store.entity(target) == twin.entity(target)
    assert store.head.digest == twin.head.digest == digest_of(wanted)
    assert store.rebuild_state() == twin.rebuild_state() == 0
    assert store.head.digest == digest_of(wanted)
    store.close()


def test_a_count_of_shared_targets_that_failed_counts_nothing_twice():
    one, two = MemoryFeed(settings(partition="0")), MemoryFeed(settings(partition="1"))
    publish(one, put("/a", b"1"))
    publish(two, put("/a", b"1"), put("/b", b"1"))

    class Failing(MemoryFeed):
        def targets_from(self, start, end, after, limit):
            raise sqlite3.OperationalError("disk I/O error")

    counted = SharedTargets()
    broken = Failing(settings(partition="1"))
    publish(broken, put("/a", b"1"), put("/b", b"1"))
    with pytest.raises(sqlite3.OperationalError):
        counted.count({"0": one, "1": broken}, {"0": 1, "1": 2})
    assert counted.count({"0": one, "1": two}, {"0": 1, "1": 2}) == 1
