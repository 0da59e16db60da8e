"""The events of a feed come out once and in order, whoever serves it and however its documents are linked."""

import asyncio
import gzip
import json
import time
import urllib.request
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web
from multidict import CIMultiDict, CIMultiDictProxy

from gateway.cli import main
from gateway.core.event import Method
from gateway.sync import FeedBroken, Position, ReaderSettings, documents, feed
from gateway.sync.fetch import Answer, FetchFailed
from gateway.sync.reading import read_document
from gateway.sync.urls import origin_of
from tests.sync.faulty_server import QUICK, NumberedFeed, content_ids
from tests.sync.feed_server import Entry, Feed, OurFeed, serving

DATA = Path(__file__).parent.parent / "data"


def read(source, position=None, *, path=None, settings=QUICK):
    """All events that `source` has, and what was told of trouble."""

    async def scenario():
        async with serving(source.handle) as url:
            events = feed(
                url + (path or source.latest),
                position,
                follow=False,
                settings=settings,
                on_trouble=troubles.append,
            )
            return [event async for event in events]

    troubles = []
    return asyncio.run(scenario()), troubles


def ids(events):
    return [event.content_id for event in events]


class WithoutNext(Feed):
    """Archive documents that only lead back."""

    def links(self, page):
        return [link for link in super().links(page) if "next-archive" not in link]


class WithoutCurrent(Feed):
    """Documents that do not name the subscription document."""

    def links(self, page):
        return [link for link in super().links(page) if "current" not in link]


class WithPrev(Feed):
    """Relations as in the draft's own example."""

    def links(self, page):
        return [link.replace("prev-archive", "prev") for link in super().links(page)]


class OneUrlForEach(Feed):
    """Every document keeps its URL from the beginning; the subscription document's redirects to it."""

    def answer(self, request):
        last = len(self.pages) - 1
        if request.path == self.archive(last):
            return self.document(last)
        reply = super().answer(request)
        if request.path == self.latest:
            reply.status, reply.headers, reply.body = 302, {"Location": self.archive(last)}, b""
        return reply


KINDS = {
    "plain": Feed,
    "no entry links": lambda *sizes: Feed(*sizes, entry_links=False),
    "no next-archive": WithoutNext,
    "no next-archive, no entry links": lambda *sizes: WithoutNext(*sizes, entry_links=False),
    "no current": WithoutCurrent,
    "prev": WithPrev,
    "one URL for each": OneUrlForEach,
    "one URL for each, no entry links": lambda *sizes: OneUrlForEach(*sizes, entry_links=False),
    "our URLs": OurFeed,
    "ours": NumberedFeed,
}
every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


@every_kind
@pytest.mark.parametrize("sizes", [(1,), (3,), (3, 3, 2), (1, 1, 1, 1, 1, 1, 1), (2, 9, 1)], ids=str)
def test_every_event_comes_once_in_order(kind, sizes):
    source = kind(*sizes)
    events, troubles = read(source)
    assert ids(events) == content_ids(source)
    assert troubles == []


@every_kind
def test_reading_goes_on_behind_any_event(kind):
    source = kind(3, 2, 3, 1)
    events, _ = read(source)
    for index, event in enumerate(events):
        rest, troubles = read(source, event.position)
        assert ids(rest) == content_ids(source)[index + 1 :], event.content_id
        assert troubles == []


@every_kind
def test_a_position_survives_json(kind):
    source = kind(2, 2)
    events, _ = read(source)
    position = Position(*json.loads(json.dumps(events[0].position)))
    assert ids(read(source, position)[0]) == content_ids(source)[1:]


# From an archive document that does not name the subscription document, nothing leads to it.
@pytest.mark.parametrize("name", sorted(KINDS.keys() - {"no current"}))
def test_reading_starts_at_the_first_event_from_any_document(name):
    source = KINDS[name](2, 2, 2)
    assert ids(read(source, path=source.archive(1))[0]) == content_ids(source)


@every_kind
@pytest.mark.parametrize("every", [1, 2, 3, 5])
def test_a_feed_that_grows_at_every_few_requests_is_read_without_a_gap(kind, every):
    source = kind(3, 3, 1)

    def grow(request, reply):
        if sum(source.count.values()) % every == 0 and source.number < 60:
            source.add(page_max=3)

    source.twist = grow
    events, _ = read(source)
    assert ids(events) == content_ids(source)[: len(events)]
    assert len(events) >= 7


@pytest.mark.slow
@every_kind
@pytest.mark.parametrize("at_once", [1, 2, 7])
def test_following_gives_every_event_as_it_comes(kind, at_once):
    source = kind(2, 1)
    wanted = 40

    async def scenario():
        async with (
            serving(source.handle) as url,
            aclosing(feed(url + source.latest, settings=QUICK)) as events,
        ):
            got = []
            async for event in events:
                got.append(event.content_id)
                if got == content_ids(source) and len(got) < wanted:
                    await asyncio.sleep(0.02)
                    for _ in range(at_once):
                        source.add(page_max=3)
                elif len(got) >= wanted:
                    return got

    assert asyncio.run(scenario()) == content_ids(source)[:wanted]


@every_kind
def test_an_empty_feed_is_followed_until_it_has_events(kind):
    source = kind(0)

    async def scenario():
        async with (
            serving(source.handle) as url,
            aclosing(documents(url + source.latest, settings=QUICK)) as slices,
        ):
            got = []
            async for found in slices:
                if not found.events:
                    assert found.caught_up
                    for _ in range(5):
                        source.add(page_max=2)
                got += ids(found.events)
                if len(got) == 5:
                    return got

    assert asyncio.run(scenario()) == content_ids(source)


@every_kind
def test_a_new_page_without_events_is_no_trouble(kind):
    source = kind(2, 0)
    events, troubles = read(source)
    assert ids(events) == content_ids(source)
    assert troubles == []

    async def scenario():
        async with (
            serving(source.handle) as url,
            aclosing(documents(url + source.latest, settings=QUICK)) as slices,
        ):
            got = []
            async for found in slices:
                got += ids(found.events)
                if found.caught_up and len(got) == 2:
                    asyncio.get_running_loop().call_later(0.1, source.pages[-1].append, source.entry())
                if len(got) == 3:
                    return got

    assert asyncio.run(scenario()) == content_ids(source)


def test_slices_are_documents_and_the_last_one_is_caught_up():
    source = NumberedFeed(3, 3, 2)

    async def scenario():
        async with serving(source.handle) as url:
            return [found async for found in documents(url + source.latest, follow=False, settings=QUICK)]

    slices = asyncio.run(scenario())
    assert [len(found.events) for found in slices] == [3, 3, 2]
    assert [found.caught_up for found in slices] == [False, False, True]
    assert [found.document.rpartition("/")[2] for found in slices] == ["0", "1", "latest"]
    assert {found.generation for found in slices} == {source.generation}


def test_an_event_has_all_that_its_part_says():
    source = Feed(0)
    source.pages = [
        [
            Entry(
                "1",
                [
                    ("link", '<http://shop.example.org/a>; title="x, y"; rel=about, <../e/1>; rel="x self"'),
                    ("Event-Type", 'HTTP-EQUIV="PATCH"'),
                    ("content-id", "<abc@example.org>"),
                    ("Content-Type", "application/merge-patch+json"),
                    ("Content-Language", "en"),
                    ("X-Other", "1"),
                    ("Last-Modified", "Sat, 09 Jan 2014 15:02:23 GMT"),
                ],
                b'\r\n{"a":1}\r\n',
            ),
            Entry(
                "2",
                [
                    ("Content-ID", "<def@example.org>"),
                    ("Link", '<//shop.example.org/b>; rel="about"'),
                    ("Event-Type", "acme=moved"),
                ],
                b"",
            ),
            Entry(
                "3",
                [
                    ("Content-ID", "<ghi@example.org>"),
                    ("Link", '<relative>; rel="about"'),
                    ("Event-Type", "http-equiv=LOCK"),
                ],
                b"",
            ),
        ]
    ]
    (one, two, three), _ = read(source)
    assert (one.method, one.event_type) == (Method.PATCH, 'HTTP-EQUIV="PATCH"')
    assert (one.target, one.entry) == ("http://shop.example.org/a", "/products/e/1")
    assert (one.body, one.content_type) == (b'\r\n{"a":1}\r\n', "application/merge-patch+json")
    assert one.last_modified == "Sat, 09 Jan 2014 15:02:23 GMT"
    assert one.extra_headers == (("Content-Language", "en"), ("X-Other", "1"))
    assert (one.ordinal, one.position) == (None, ("<abc@example.org>", "/products/e/1"))
    assert (two.method, two.event_type, two.target) == (None, "acme=moved", "http://shop.example.org/b")
    assert (two.entry, two.content_type, two.body, two.last_modified) == (None, None, b"", None)
    assert (three.method, three.event_type, three.target) == (
        None,
        "http-equiv=LOCK",
        "/products/changes/relative",
    )


def test_a_path_on_another_server_is_not_taken_for_one_of_the_feeds_own():
    source = Feed(2)

    async def scenario():
        async with serving(source.handle) as other:

            async def redirect(request):
                raise web.HTTPFound(other + source.latest)

            async with serving(redirect) as url:
                events = [event async for event in feed(url + "/way/in", follow=False, settings=QUICK)]
                assert [event.target for event in events] == [f"{other}/products/0", f"{other}/products/1"]
                assert events[0].entry == f"{other}/changes/1000"
                rest = feed(url + "/way/in", events[0].position, follow=False, settings=QUICK)
                assert ids([event async for event in rest]) == ids(events[1:])

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("asked", "own"),
    [
        ("http://me:secret@example.org/latest", "http://example.org"),
        ("http://example.org/latest", "http://me:secret@example.org"),
        ("http://example.org:80/latest", "http://example.org"),
        ("http://example.org/latest", "http://EXAMPLE.org:80"),
        ("https://example.org/latest", "https://example.org:443"),
        ("https://example.org/latest", "https://example.org:"),
        ("http://[::1]:80/latest", "http://[::1]"),
    ],
)
def test_absolute_links_of_the_feeds_own_server_are_given_as_paths(asked, own):
    assert origin_of(asked) == origin_of(own)
    assert targets(asked, f"{own}/a?b=//c#d", "/e") == ["/a?b=//c#d", "/e"]
    # None of these is a path that can stand alone.
    whole = [f"{own}//elsewhere/a", own, f"{own}?a/b"]
    assert targets(asked, *whole) == whole


@pytest.mark.parametrize(
    ("asked", "other"),
    [
        ("http://example.org/latest", "http://example.org:443"),
        ("http://example.org/latest", "https://example.org:80"),
        ("http://example.org/latest", "http://example.org@example.net"),
        ("http://example.org/latest", "http://example.org.example.net"),
        ("http://example.org/latest", "http://example.org:8"),
    ],
)
def test_absolute_links_of_other_servers_stay_as_they_are(asked, other):
    assert targets(asked, f"{other}/a") == [f"{other}/a"]


def targets(url, *links):
    """The targets of a document at `url` with these links."""
    feed = Feed(len(links))
    for entry, link in zip(feed.pages[0], links, strict=True):
        entry.headers[0] = ("Link", f'<{link}>; rel="about"')
    reply = feed.document(0)
    answer = Answer(url, 200, CIMultiDictProxy(CIMultiDict(reply.headers)), reply.body)
    return [event.target for event in read_document(url, answer, origin_of(url)).events]


def test_a_password_is_sent_and_stands_in_nothing_that_comes_out():
    source, seen, troubles = Feed(2, 2), [], []

    async def handle(request):
        seen.append(request.headers.get("Authorization"))
        return await source.handle(request)

    async def scenario():
        async with serving(handle) as url:
            url = url.replace("//", "//me:secret@") + source.latest
            events = [event async for event in feed(url, follow=False, settings=QUICK)]
            for spoil in (lambda reply: reply.headers.pop("Content-Type"), lambda reply: None):
                source.twist = lambda request, reply, spoil=spoil: (spoil(reply), setattr(reply, "body", b""))
                with pytest.raises((FetchFailed, FeedBroken)) as refused:
                    [e async for e in feed(url, follow=False, settings=QUICK, on_trouble=troubles.append)]
                troubles.append(str(refused.value))
            return events

    events = asyncio.run(scenario())
    assert ids(events) == content_ids(source)
    assert set(seen) == {"Basic bWU6c2VjcmV0"}
    assert troubles
    assert "secret" not in f"{events} {troubles}"


def test_a_part_without_a_body_does_not_swallow_the_next_one():
    source = Feed(3)
    for entry in source.pages[0]:
        entry.without("Content-Length")
    document = source.document(0)
    headers, separator, body = source.pages[0][1].rendered().partition(b"\r\n\r\n")
    document.body = document.body.replace(headers + separator + body + b"\r\n", headers + separator)

    def shorten(request, reply):
        if request.path == source.latest:
            reply.body = document.body

    source.twist = shorten
    events, _ = read(source)
    assert [event.body for event in events] == [b'{"id":"x"}', b"", b'{"id":"x"}']


def test_head_is_used_to_find_the_beginning_and_get_where_it_is_refused():
    source = Feed(2, 2, 2, 2)
    assert ids(read(source)[0]) == content_ids(source)
    assert [source.count[f"HEAD {source.archive(page)}"] for page in range(3)] == [1, 1, 1]

    for status in (405, 501, 200):
        refusing = Feed(2, 2, 2, 2)

        def refuse(request, reply, status=status):
            if request.method == "HEAD":
                reply.status, reply.headers, reply.body = status, {}, b""

        refusing.twist = refuse
        events, troubles = read(refusing)
        assert ids(events) == content_ids(refusing), status
        assert troubles == []


@pytest.mark.parametrize(
    ("partitions", "saved"),
    [
        ([{"links": {"current": "/x"}}, {"links": {"current": "latest", "first": "archive/0"}}], True),
        ([{"links": {"current": "latest", "first": "archive/1"}}], False),
        ([{"links": {"current": "latest"}}], False),
        ([{}], False),
        (3, False),
    ],
    ids=str,
)
def test_the_log_document_saves_the_walk_back_if_it_is_right(partitions, saved):
    source = NumberedFeed(2, 2, 2, 2)
    answer = source.answer

    def with_log_document(request):
        reply = answer(request)
        if request.path == "/feeds/events":
            text = json.dumps({"partitions": partitions})
            for name in ("latest", "archive/0", "archive/1"):
                text = text.replace(f'"{name}"', f'"/feeds/events/0/{name}"')
            reply.body = text.encode()
        return reply

    source.answer = with_log_document
    events, troubles = read(source)
    assert ids(events) == content_ids(source)
    assert troubles == []
    asked = [source.count[f"{method} {source.archive(1)}"] for method in ("HEAD", "GET")]
    assert (asked == [0, 1]) == saved


def test_history_that_is_gone_for_good_is_told_and_the_rest_is_read():
    source = Feed(2, 2, 2)

    def retained(request, reply):
        if request.path == source.archive(0):
            reply.status, reply.headers, reply.body = 410, {}, b""

    source.twist = retained
    events, troubles = read(source)
    assert ids(events) == content_ids(source)[2:]
    assert len(troubles) == 1
    assert "gone" in troubles[0]


def test_what_is_no_feed_is_refused_at_once():
    source = Feed(1)
    with pytest.raises(FetchFailed, match="answers 404"):
        read(source, path="/nothing")

    def page(request, reply):
        reply.headers["Content-Type"] = "text/html"

    source.twist = page
    with pytest.raises(FetchFailed, match="not a multipart document"):
        read(source)
    assert source.count[f"GET {source.latest}"] == 1
    with pytest.raises(FetchFailed, match="not an http URL"):
        asyncio.run(anext(feed("ftp://example.org/feed")))
    with pytest.raises(FetchFailed, match="not a URL"):
        asyncio.run(anext(feed("http://[")))


@pytest.mark.parametrize("header", ["Content-ID", "Event-Type", "Link"])
def test_an_entry_without_what_it_must_have_is_never_passed_on(header):
    source = Feed(2, 2)
    source.pages[1][1].without(header)
    with pytest.raises(FeedBroken) as caught:
        read(source)
    assert caught.value.clause.startswith("draft")


def test_polling_is_conditional_and_slows_down_while_nothing_comes():
    source = Feed(2, 1)

    async def scenario():
        settings = ReaderSettings(poll_s_min=0.02, poll_s_max=0.2)
        async with (
            serving(source.handle) as url,
            aclosing(feed(url + source.latest, settings=settings)) as events,
        ):
            for _ in range(3):
                await anext(events)
            waiting = asyncio.ensure_future(anext(events))
            await asyncio.sleep(1)
            before = source.count[f"GET {source.latest}"]
            source.add(page_max=9)
            return before, (await waiting).content_id

    before, content_id = asyncio.run(scenario())
    assert before <= 16
    assert content_id == content_ids(source)[-1]


def test_a_reader_that_is_left_asks_for_no_more():
    source = Feed(*[2] * 30)

    async def scenario():
        async with serving(source.handle) as url:
            async with aclosing(feed(url + source.latest, settings=QUICK)) as events:
                await anext(events)
            asked = sum(source.count.values())
            await asyncio.sleep(0.1)
            assert sum(source.count.values()) == asked
            assert len(asyncio.all_tasks()) == 1
            return sum(source.count[f"GET {source.archive(page)}"] for page in range(29))

    assert asyncio.run(scenario()) <= 1 + QUICK.ahead_max + 1


def test_what_is_fetched_ahead_is_bounded_in_bytes():
    source = Feed(*[1] * 12)
    for page in source.pages:
        page[0].body = b"x" * 1000
        page[0].without("Content-Length")
    settings = ReaderSettings(ahead_bytes_max=2000)

    async def scenario():
        async with (
            serving(source.handle) as url,
            aclosing(feed(url + source.latest, settings=settings)) as events,
        ):
            await anext(events)
            await asyncio.sleep(0.2)
            asked = sum(source.count[f"GET {source.archive(page)}"] for page in range(11))
            assert asked <= 5
            return 1 + len([event async for event in documents(url + source.latest, follow=False)])

    assert asyncio.run(scenario()) == 13


def test_the_documents_of_a_feed_are_limited():
    with pytest.raises(FeedBroken, match="more than 3 documents"):
        read(Feed(*[1] * 9), settings=replace(QUICK, documents_max=3, tries_max=1))


def publish(url, count, start=0):
    for number in range(start, start + count):
        request = urllib.request.Request(f"{url}/things/{number % 7}", method="PUT", data=b"%d" % number)
        urllib.request.urlopen(request).close()


def test_a_real_gateway_is_read_and_followed_without_a_round_of_asking(start_gateway):
    gateway = start_gateway("--archive-events-max", "10")
    publish(gateway.http, 25)

    async def scenario():
        async with aclosing(feed(f"{gateway.http}/feeds/events/0/latest")) as events:
            got = [await anext(events) for _ in range(25)]
            for batch in range(3):
                waiting = asyncio.ensure_future(anext(events))
                await asyncio.sleep(0.3)
                started = time.monotonic()
                await asyncio.to_thread(publish, gateway.http, 9, 25 + 9 * batch)
                got += [await waiting, *[await anext(events) for _ in range(8)]]
                assert time.monotonic() - started < 2
            return got

    got = asyncio.run(scenario())
    assert [event.ordinal for event in got] == list(range(52))
    assert [event.body for event in got] == [b"%d" % number for number in range(52)]
    assert {event.method for event in got} == {Method.PUT}
    assert got[13].target == "/things/6"


@pytest.mark.slow
def test_every_event_of_the_catalogue_comes_out_of_a_real_gateway_as_it_was_published(start_gateway):
    gateway = start_gateway()
    names = ["01-bookworm.ndjson.gz", "02-bookworm-to-trixie.ndjson.gz"]
    assert main(["publish", gateway.http, *(str(DATA / name) for name in names)]) == 0
    lines = [
        json.loads(line)
        for name in names
        for line in gzip.decompress((DATA / name).read_bytes()).splitlines()
    ]

    async def scenario():
        return [event async for event in feed(f"{gateway.http}/feeds/events/0/latest", follow=False)]

    events = asyncio.run(scenario())
    assert [event.ordinal for event in events] == list(range(len(lines)))
    published = [(line["method"], line["target"], line.get("body")) for line in lines]
    assert sorted(map(repr, published)) == sorted(
        repr((str(event.method), event.target, json.loads(event.body) if event.body else None))
        for event in events
    )
