"""The storage contract, kept alike by the file store and its in-memory twin."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from gateway.core.errors import PageDamaged
from gateway.core.pages import Batch, Gap, LogPosition, Paginator, Quarantined
from gateway.storage.contract import FeedWriter
from gateway.storage.filestore import FeedStore
from gateway.storage.memory import MemoryFeed
from tests.feeds import TIME_MS, batch_of, event, offset, settings

Make = Callable[[], FeedWriter]


@pytest.fixture(params=["files", "memory"])
def store(request, tmp_path) -> Iterator[FeedWriter]:
    made = FeedStore(tmp_path / "feed", settings()) if request.param == "files" else MemoryFeed(settings())
    yield made
    made.close()


def fill(store: FeedWriter, numbers: range) -> None:
    head = store.head
    store.append(batch_of(Paginator(store.settings, head.page, head.data), numbers))


def test_a_new_feed_is_empty(store):
    assert store.head.page is None
    assert store.head.next_ordinal == 0
    assert store.head.last_ordinal is None
    assert store.page(0) is store.page_of(0) is store.page_since(0) is None
    assert store.gaps() == store.quarantine() == store.damaged_pages() == []


def test_what_was_appended_is_at_the_head(store):
    fill(store, range(2))
    assert store.head.last_ordinal == 1
    assert store.head.position == LogPosition(offset(1), "0" * 64)
    assert store.head.data.count(b"Content-ID") == 2
    assert len(store.head.data) == store.head.page.length


def test_the_head_is_a_value_that_later_appends_leave_alone(store):
    fill(store, range(1))
    before = store.head
    data = before.data
    fill(store, range(1, 3))
    assert before.data == data
    assert before.last_ordinal == 0
    assert store.head.data.startswith(data)


def test_sealed_pages_are_read_whole_and_found_by_number_ordinal_and_time(store):
    fill(store, range(8))
    first, second, third = (store.page(number) for number in range(3))
    assert [page.sealed for page in (first, second, third)] == [True, True, False]
    assert store.read(first).endswith(f"--{first.boundary}--\r\n".encode())
    assert [store.page_of(ordinal).number for ordinal in range(8)] == [0, 0, 0, 1, 1, 1, 2, 2]
    assert store.page_of(8) is store.page_of(-1) is store.page(3) is None
    assert store.page_since(0) == first
    assert store.page_since(TIME_MS + 2000) == first
    assert store.page_since(TIME_MS + 2001) == second
    assert store.page_since(TIME_MS + 7000) == third
    assert store.page_since(TIME_MS + 7001) is None


def test_many_batches_give_the_same_pages_as_one(store):
    for number in range(8):
        fill(store, range(number, number + 1))
    one = MemoryFeed(settings())
    fill(one, range(8))
    assert [store.page(number) for number in range(3)] == [one.page(number) for number in range(3)]
    assert [store.read(store.page(number)) for number in range(2)] == [
        one.read(one.page(number)) for number in range(2)
    ]
    assert store.head.data == one.head.data


def test_gaps_and_quarantined_messages_are_kept_in_order(store):
    gaps = (Gap(1, "a", "c"), Gap(5, "d", "f"))
    items = [
        Quarantined(offset(number), None if number else 7, f"reason {number}", b"\x00raw")
        for number in range(5)
    ]
    store.append(Batch(gaps=gaps[:1], quarantined=tuple(items[:3]), position=LogPosition("c", "x", "b")))
    store.append(Batch(gaps=gaps[1:], quarantined=tuple(items[3:])))
    assert store.gaps() == list(gaps)
    assert store.quarantine() == list(enumerate(items, 1))
    assert store.quarantine(after=1, limit=2) == [(2, items[1]), (3, items[2])]
    assert store.head.quarantined == 5
    assert store.head.position == LogPosition("c", "x", "b")


def test_a_damaged_page_is_named_not_served_and_put_back_by_its_own_bytes_only(store, tmp_path):
    fill(store, range(4))
    page = store.page(0)
    data = store.read(page)
    assert store.verify(page)
    if isinstance(store, MemoryFeed):
        store._data[0] = b"x" * len(data)
    else:
        (tmp_path / "feed" / "pages" / "0").write_bytes(b"x" * len(data))
    assert not store.verify(page)
    assert store.damaged_pages() == [page]
    with pytest.raises(PageDamaged, match="page 0"):
        store.read(page)
    with pytest.raises(ValueError, match="not the bytes"):
        store.replace(page, data[:-1])
    store.replace(page, data)
    assert store.read(page) == data
    assert store.damaged_pages() == []


def test_events_of_any_size_are_kept(store):
    paginator = Paginator(store.settings)
    paginator.add(event(0, body=b"x" * 9_000_000), offset(0))
    paginator.add(event(1, body=b""), offset(1))
    store.append(paginator.take())
    assert store.page(0).length > 9_000_000
    assert len(store.read(store.page(0))) == store.page(0).length


def test_what_is_staged_is_visible_with_its_commit(store):
    batch = batch_of(Paginator(store.settings), range(3))
    store.stage(batch)
    assert store.head.next_ordinal == 0
    assert store.page_of(0) is None
    store.commit()
    assert store.head.next_ordinal == 3
    assert store.page_of(2) is not None
