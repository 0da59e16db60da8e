"""Pages are a pure function of the events: cut by count, by size, by delimiter and by gap, never by time."""

from __future__ import annotations

import hashlib
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import InvalidSetting
from gateway.core.event import Event, Method
from gateway.core.identity import FeedName
from gateway.core.multipart import read_parts
from gateway.core.pages import FeedSettings, Paginator, boundaries
from tests.feeds import documents, event, offset, settings


def test_a_page_is_cut_when_it_has_its_number_of_events_and_the_next_one_arrives():
    paginator = Paginator(settings(events_max=3))
    for number in range(3):
        paginator.add(event(number), offset(number))
    pages, _ = documents(paginator)
    assert [(page.events, page.sealed) for page in pages] == [(3, False)]
    paginator.add(event(3), offset(3))
    pages, _ = documents(paginator)
    assert [(page.number, page.events, page.sealed) for page in pages] == [(0, 3, True), (1, 1, False)]


def test_a_page_stays_under_its_size_unless_one_event_alone_is_larger():
    paginator = Paginator(settings(events_max=1000, bytes_max=2_000))
    bodies = [b"x" * size for size in (10, 500, 500, 500, 5_000, 10)]
    for number, body in enumerate(bodies):
        paginator.add(event(number, body=body), offset(number))
    paginator.seal()
    pages, data = documents(paginator)
    assert [page.length for page in pages] == [len(document) for document in data]
    assert all(page.length <= 2_000 or page.events == 1 for page in pages)
    assert any(page.length > 2_000 for page in pages)
    assert [
        part.body
        for page, document in zip(pages, data, strict=True)
        for part in read_parts(page.boundary, document)
    ] == bodies


def test_an_event_that_holds_the_open_pages_delimiter_gets_a_page_whose_boundary_it_lacks():
    feed = settings(events_max=1000)
    paginator = Paginator(feed)
    paginator.add(event(0), offset(0))
    first = paginator.page
    assert first is not None
    own = next(iter(boundaries(feed, first.generation, 1)))
    evil = f"--{first.boundary}\r\n--{first.boundary}--\r\n--{own}\r\n".encode()
    paginator.add(event(1, body=evil), offset(1))
    paginator.add(event(2), offset(2))
    paginator.seal()
    pages, data = documents(paginator)
    assert [page.events for page in pages] == [1, 2]
    assert pages[1].boundary not in (first.boundary, own)
    assert read_parts(pages[1].boundary, data[1])[0].body == evil


def test_a_gap_cuts_the_page_and_starts_a_generation_that_depends_on_both_sides():
    def generations(gap: bool, after: int) -> list[str]:
        paginator = Paginator(settings(events_max=1000))
        paginator.add(event(0), offset(0))
        paginator.add(event(after), offset(after), offset_before_gap=offset(0) if gap else None)
        pages, _ = documents(paginator)
        return [page.generation for page in pages]

    with_gap, without, other = generations(True, 5), generations(False, 5), generations(True, 6)
    assert len(without) == 1
    assert with_gap[0] == without[0] == other[0]
    assert len({with_gap[0], with_gap[1], other[1]}) == 3


def test_ordinals_have_no_holes_across_a_gap():
    paginator = Paginator(settings())
    assert paginator.add(event(0), offset(0)) == 0
    assert paginator.add(event(9), offset(9), offset_before_gap=offset(0)) == 1
    gaps = paginator.take().gaps
    assert [(gap.ordinal, gap.offset_before, gap.offset_after) for gap in gaps] == [(1, offset(0), offset(9))]


def test_a_feed_from_another_start_has_another_generation_even_with_an_equal_event():
    one, two = Paginator(settings()), Paginator(settings())
    one.add(event(1), offset(1))
    two.add(event(1), offset(2))
    assert one.page is not None
    assert two.page is not None
    assert one.page.generation != two.page.generation


def test_a_salt_changes_the_boundaries_and_nothing_else():
    pages = []
    for salt in ("", "pepper"):
        paginator = Paginator(settings(salt=salt))
        paginator.add(event(1), offset(1))
        pages += documents(paginator)[0]
    assert pages[0].boundary != pages[1].boundary
    assert pages[0].generation == pages[1].generation
    assert pages[0].length == pages[1].length


def test_the_recorded_hash_is_of_all_bytes_written_so_far():
    paginator = Paginator(settings(events_max=2))
    data: dict[int, bytes] = {}
    for number in range(7):
        paginator.add(event(number), offset(number))
        for write in paginator.take().writes:
            data[write.page.number] = data.get(write.page.number, b"") + write.data
            assert hashlib.sha256(data[write.page.number]).hexdigest() == write.page.sha256
            assert len(data[write.page.number]) == write.page.length


def test_the_greatest_time_never_falls_from_page_to_page():
    paginator = Paginator(settings(events_max=1))
    for number, modified in enumerate([50, None, 20, 70, 60]):
        paginator.add(Event(Method.PUT, "/a", None, b"", modified), offset(number))
    pages, _ = documents(paginator)
    assert [page.modified_ms_max for page in pages] == [50, 50, 50, 70, 70]


events = st.builds(
    Event,
    st.sampled_from(list(Method)),
    st.sampled_from(["/a", "/b/c", "/%20"]),
    st.sampled_from([None, "text/plain", "application/json"]),
    st.binary(max_size=300),
    st.one_of(st.none(), st.integers(0, 2**41)),
    st.just(()),
)


@given(
    st.lists(events, max_size=40),
    st.lists(st.integers(1, 7), max_size=40),
    st.integers(1, 5),
    st.integers(200, 1500),
)
def test_batches_and_restarts_leave_no_trace_in_the_bytes(history, batches, events_max, bytes_max):
    feed = settings(events_max=events_max, bytes_max=bytes_max)
    whole = Paginator(feed)
    for number, item in enumerate(history):
        whole.add(item, offset(number))
    expected = documents(whole)

    pieces, number = iter(batches), 0
    pages: dict[int, object] = {}
    data: dict[int, bytes] = {}
    restarted = Paginator(feed)
    while number < len(history):
        for item in history[number : number + next(pieces, 1)]:
            restarted.add(item, offset(number))
            number += 1
        last = None
        for write in restarted.take().writes:
            pages[write.page.number] = last = write.page
            data[write.page.number] = data.get(write.page.number, b"") + write.data
        assert last is not None
        restarted = Paginator(feed, last, data[last.number])
    assert (list(pages.values()), list(data.values())) == expected


@given(st.lists(events, min_size=1, max_size=30), st.integers(1, 5), st.integers(200, 1500))
def test_every_event_can_be_read_back_once_and_in_order(history, events_max, bytes_max):
    paginator = Paginator(settings(events_max=events_max, bytes_max=bytes_max))
    for number, item in enumerate(history):
        paginator.add(item, offset(number))
    paginator.seal()
    pages, data = documents(paginator)
    assert [page.first_ordinal for page in pages[1:]] == [
        before.next_ordinal for before, _ in pairwise(pages)
    ]
    parts = [
        part
        for page, document in zip(pages, data, strict=True)
        for part in read_parts(page.boundary, document)
    ]
    assert [part.body for part in parts] == [item.body for item in history]
    assert [part.about for part in parts] == [item.target for item in history]
    assert [part.value("Event-Type") for part in parts] == [f"http-equiv={item.method}" for item in history]
    assert [int(part.value("Content-ID").split(".")[0][1:]) for part in parts] == list(range(len(history)))


@pytest.mark.parametrize(
    "names", [("ETag",), ("content-length",), ("X-A\r\nX-B",), ("",), ("X A",), ("X-A", "x-a")], ids=repr
)
def test_extra_headers_are_names_of_their_own(names):
    with pytest.raises(InvalidSetting, match="cannot be had"):
        FeedSettings(FeedName("example.org", "events", "0"), extra_headers=names)
    FeedSettings(FeedName("example.org", "events", "0"), extra_headers=("traceparent", "X-A"))
