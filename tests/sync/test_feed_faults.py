"""Whatever happens to a feed's answers, the events that come out are the feed's, once, in order."""

import asyncio
import random
import time
from contextlib import aclosing
from dataclasses import replace
from email.utils import formatdate

import pytest

from gateway.sync import FeedBroken, Position, StartOver, documents, feed
from gateway.sync.fetch import FetchFailed
from tests.sync.faulty_server import QUICK, NumberedFeed, Wire, content_ids, rendered, wired
from tests.sync.feed_server import Feed

KINDS = {
    "plain": Feed,
    "no entry links": lambda *sizes: Feed(*sizes, entry_links=False),
    "ours": NumberedFeed,
}
every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def read(source, fault, position=None, *, settings=QUICK, events=None):
    """The Content-IDs of all events that a reader gets, and what it told of trouble."""
    got = [] if events is None else events
    troubles = []

    async def scenario():
        async with wired(source, fault) as url:
            address = url + source.latest
            async for event in feed(
                address, position, follow=False, settings=settings, on_trouble=troubles.append
            ):
                got.append(event.content_id)

    asyncio.run(scenario())
    return got, troubles


def at(source, index):
    """The position behind the event with that index."""
    entries = [entry for page in source.pages for entry in page]
    return Position(
        content_ids(source)[index],
        source.entry_path(entries[index].name) if source.entry_links else None,
    )


class Times:
    """Spoils the first `times` answers to GET for a path, or all of them."""

    def __init__(self, path, spoil, times=1):
        self.path = path
        self.spoil = spoil
        self.left = times
        self.at = []

    def __call__(self, request, reply):
        if request.method != "GET" or request.path != self.path:
            return None
        self.at.append(time.monotonic())
        if self.left == 0:
            return None
        self.left -= 1
        return self.spoil(request, reply)


def cut_with_length(request, reply):
    data = rendered(request, reply)
    return Wire([data[: -len(reply.body) // 2]], close=True)


def cut_at(part):
    """Without Content-Length, so that only the closing delimiter tells the end."""

    def spoil(request, reply):
        data = rendered(request, reply, ("Connection", "close"))
        data = data.replace(b"Content-Length: %d\r\n\r\n" % len(reply.body), b"\r\n")
        end = data.rindex(part) if isinstance(part, bytes) else int(len(data) - len(reply.body) * part)
        return Wire([data[:end]], close=True)

    return spoil


def cut_chunk(request, reply):
    head = rendered(request, reply, ("Transfer-Encoding", "chunked"))[: -len(reply.body) or None]
    head = head.replace(b"Content-Length: %d\r\n" % len(reply.body), b"")
    half = reply.body[: len(reply.body) // 2]
    return Wire([head, b"%x\r\n%s\r\n" % (len(half), half)], close=True)


def length(difference, *, close):
    def spoil(request, reply):
        return Wire(
            [rendered(request, reply, ("Content-Length", str(len(reply.body) + difference)))], close=close
        )

    return spoil


def short_with_poison(request, reply):
    """What is left of the document looks like an answer to the next request."""
    poison = b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\nContent-Type: text/plain\r\n\r\npoisoned"
    data = rendered(request, reply)
    return Wire([data + poison])


def part_length(difference):
    def spoil(request, reply):
        old = b"Content-Length: 10\r\n"
        assert old in reply.body
        reply.body = reply.body.replace(old, b"Content-Length: %d\r\n" % (10 + difference), 1)

    return spoil


def boundary_inside(body):
    def spoil(request, reply):
        boundary = reply.headers["Content-Type"].partition("boundary=")[2].strip('"').encode()
        data = body.replace(b"BOUNDARY", boundary)
        for old in (b"Content-Length: 10\r\n", b'{"id":"x"}'):
            new = data if old.startswith(b"{") else b"Content-Length: %d\r\n" % len(data)
            reply.body = reply.body.replace(old, new, 1)

    return spoil


def status(code, **headers):
    def spoil(request, reply):
        reply.status = code
        reply.headers = {name.replace("_", "-"): value for name, value in headers.items()}
        reply.body = b"<html>not now</html>"

    return spoil


def content_type(text):
    def spoil(request, reply):
        reply.headers["Content-Type"] = text

    return spoil


def slow_bytes(request, reply):
    return Wire([step for byte in rendered(request, reply) for step in (bytes([byte]), 0.01)])


def slow_start(request, reply):
    return Wire([2.0], close=True)


def slow_end(request, reply):
    data = rendered(request, reply)
    return Wire([data[:-5], 2.0], close=True)


def hang_up(request, reply):
    return Wire([], close=True)


def not_http(request, reply):
    return Wire([b"\x00\x01\x02 this is no answer\r\n\r\n"], close=True)


def circle(request, reply):
    reply.status, reply.headers, reply.body = 302, {"Location": request.path}, b""


def without_location(request, reply):
    reply.status, reply.headers, reply.body = 302, {}, b""


PASSING = {
    "cut short of its Content-Length": cut_with_length,
    "cut in the head": cut_at(b"Content-Type: multipart"),
    "cut in a header of a part": cut_at(b"Event-Type"),
    "cut in a body": cut_at(b'"id"'),
    "cut in the closing delimiter": cut_at(b"--\r\n"),
    "cut in half": cut_at(0.5),
    "cut in a chunk": cut_chunk,
    "Content-Length too long, connection kept": length(7, close=False),
    "Content-Length too long, connection closed": length(7, close=True),
    "Content-Length too short by little": length(-30, close=False),
    "Content-Length too short by much": length(-200, close=False),
    "Content-Length 0": lambda request, reply: length(-len(reply.body), close=False)(request, reply),
    "more than Content-Length": short_with_poison,
    "Content-Length of a part too long": part_length(1),
    "Content-Length of a part too short": part_length(-1),
    "Content-Length of a part no number": lambda request, reply: (
        part_length(float("nan"))
        and setattr(reply, "body", reply.body.replace(b"Content-Length: 10", b"Content-Length: ten"))
    ),
    "a boundary inside a body": boundary_inside(b"{}\r\n--BOUNDARY\r\nContent-ID: <x@y>\r\n\r\n{}"),
    "a line that begins with the boundary": boundary_inside(b"{}\r\n--BOUNDARYish\r\n{}"),
    "the end inside a body": boundary_inside(b"{}\r\n--BOUNDARY--\r\n{}"),
    "429": status(429),
    "503": status(503, Retry_After="0"),
    "500": status(500),
    "502, a page": status(502, Content_Type="text/html"),
    "404": status(404),
    "403": status(403),
    "200 with a page": status(200, Content_Type="text/html"),
    "200 with nothing": status(200),
    "no boundary": content_type("multipart/mixed"),
    "another boundary": content_type("multipart/mixed; boundary=other"),
    "slow bytes": slow_bytes,
    "no byte": slow_start,
    "no last byte": slow_end,
    "hung up": hang_up,
    "not HTTP": not_http,
    "redirects in a circle": circle,
    "a redirect to nowhere": without_location,
}


@pytest.mark.slow
@every_kind
@pytest.mark.parametrize("spoil", PASSING.values(), ids=PASSING)
@pytest.mark.parametrize("times", [1, 3])
def test_an_archive_document_that_is_spoilt_for_a_while_is_read_whole(kind, spoil, times):
    source = kind(4, 4, 4, 1)
    fault = Times(source.archive(1), spoil, times)
    got, _ = read(source, fault)
    assert got == content_ids(source)
    assert fault.left < times


@pytest.mark.slow
@every_kind
@pytest.mark.parametrize("spoil", PASSING.values(), ids=PASSING)
def test_a_subscription_document_that_is_spoilt_while_it_is_followed_is_read_whole(kind, spoil):
    source = kind(2, 1)
    fault = Times(source.latest, spoil, times=0)

    async def scenario():
        got = []
        async with (
            wired(source, fault) as url,
            aclosing(documents(url + source.latest, settings=QUICK)) as slices,
        ):
            async for found in slices:
                got += [event.content_id for event in found.events]
                if len(got) >= 8:
                    return got
                if got == content_ids(source):
                    source.add(page_max=3)
                    fault.left = 1

    assert asyncio.run(scenario()) == content_ids(source)


LASTING = {
    "Content-Length of a part too long": FeedBroken,
    "a boundary inside a body": FeedBroken,
    "the end inside a body": FeedBroken,
    "cut in half": FeedBroken,
    "no boundary": FeedBroken,
    "cut short of its Content-Length": FetchFailed,
    "redirects in a circle": FetchFailed,
    "503": FetchFailed,
    "404": FetchFailed,
    "slow bytes": FetchFailed,
    "hung up": FetchFailed,
}


@pytest.mark.slow
@every_kind
@pytest.mark.parametrize("name", LASTING)
def test_what_stays_spoilt_is_told_and_nothing_of_it_or_behind_it_comes_out(kind, name):
    source = kind(4, 4, 4, 1)
    got = []
    with pytest.raises(LASTING[name]):
        read(source, Times(source.archive(1), PASSING[name], times=-1), events=got)
    assert got == content_ids(source)[:4]


@every_kind
def test_any_mixture_of_faults_at_any_request_changes_nothing(kind):
    for seed in range(6):
        chance = random.Random(seed)
        source = kind(3, 3, 3, 3, 3, 3, 2)
        # Faults that take their time, and those that need a document, are left to the other tests.
        names = [name for name in PASSING if not name.startswith(("slow", "no ", "Content-Length"))]

        def fault(request, reply, source=source, chance=chance, names=names):
            first = sum(source.count.values()) == 1
            if request.method == "GET" and reply.status == 200 and not first and chance.random() < 0.3:
                return PASSING[chance.choice(names)](request, reply)
            return None

        settings = replace(QUICK, tries_max=1000, lost_tries_max=1000)
        got, _ = read(source, fault, settings=settings)
        assert got == content_ids(source), seed


@pytest.mark.slow
def test_any_byte_of_a_head_may_be_another_one():
    """Of a feed with ordinals: elsewhere nothing tells that a link was there."""
    for seed in range(60):
        chance = random.Random(seed)
        source = NumberedFeed(2, 2, 2, 1)

        def flip(request, reply, source=source, chance=chance):
            if sum(source.count.values()) == 1 or chance.random() < 0.6:
                return None
            data = bytearray(rendered(request, reply))
            place = chance.randrange(len(data) - (len(reply.body) if request.method == "GET" else 0))
            data[place] = chance.choice((chance.randrange(256), chance.choice(b' \t\r\n"<>;,=:0')))
            return Wire([bytes(data)], close=chance.random() < 0.3)

        got = []
        try:
            read(source, flip, settings=replace(QUICK, tries_max=60, lost_tries_max=60), events=got)
        except (FeedBroken, FetchFailed, StartOver):
            assert got == content_ids(source)[: len(got)], seed
        else:
            assert got == content_ids(source), seed


@pytest.mark.slow
@every_kind
@pytest.mark.parametrize("code", [429, 503])
def test_retry_after_is_heard(kind, code):
    source = kind(2, 2, 1)
    fault = Times(source.archive(1), status(code, Retry_After="1"))
    got, _ = read(source, fault)
    assert got == content_ids(source)
    assert fault.at[1] - fault.at[0] >= 0.99

    date = Times(source.archive(1), lambda request, reply: None)
    date.spoil = lambda request, reply: status(code, Retry_After=formatdate(time.time() + 2, usegmt=True))(
        request, reply
    )
    got, _ = read(source, date)
    assert got == content_ids(source)
    assert date.at[1] - date.at[0] >= 0.9


def test_retry_after_is_bounded():
    source = Feed(2, 2, 1)
    settings = replace(QUICK, fetch=replace(QUICK.fetch, retry_after_max_s=0.1))
    fault = Times(source.archive(1), status(503, Retry_After="100000"))
    started = time.monotonic()
    assert read(source, fault, settings=settings)[0] == content_ids(source)
    assert time.monotonic() - started < 5


@every_kind
def test_a_server_that_is_away_for_a_while_is_waited_for_by_a_follower(kind):
    source = kind(2, 2, 1)

    async def scenario():
        got, troubles = [], []
        away = True

        def fault(request, reply):
            return Wire([], close=True) if away else None

        async with (
            wired(source, fault) as url,
            aclosing(feed(url + source.latest, settings=QUICK, on_trouble=troubles.append)) as events,
        ):
            first = asyncio.ensure_future(anext(events))
            await asyncio.sleep(0.5)
            assert len(troubles) > QUICK.tries_max
            away = False
            got.append((await first).content_id)
            got += [(await anext(events)).content_id for _ in range(4)]
        return got

    assert asyncio.run(scenario()) == content_ids(source)


class Proxy:
    """A cache on the way that answers with an old subscription document, if it is not told `no-cache`."""

    def __init__(self, source, *, deaf=0):
        self.source = source
        self.old = None
        self.on = False
        self.deaf = deaf
        self.served = 0

    def __call__(self, request, reply):
        if request.path != self.source.latest or reply.status not in (200, 304):
            return
        if self.old is None:
            self.old = reply.status, dict(reply.headers), reply.body
        if not self.on:
            return
        if "no-cache" in request.headers.get("Cache-Control", "") and self.deaf == 0:
            return
        if "no-cache" in request.headers.get("Cache-Control", ""):
            self.deaf -= 1
        self.served += 1
        reply.status, headers, reply.body = self.old
        reply.headers = dict(headers)


@every_kind
@pytest.mark.parametrize("deaf", [0, 1])
@pytest.mark.parametrize("page_max", [3, 100])
def test_an_old_subscription_document_after_a_newer_one_brings_nothing_back(kind, deaf, page_max):
    source = kind(2, 1)

    async def scenario():
        proxy = Proxy(source, deaf=deaf)
        got = []
        async with (
            wired(source, proxy) as url,
            aclosing(documents(url + source.latest, settings=QUICK)) as slices,
        ):
            async for found in slices:
                got += [event.content_id for event in found.events]
                if len(got) >= 15:
                    break
                if got == content_ids(source):
                    proxy.on = not proxy.on and len(got) > 4
                    source.add(page_max=page_max)
                    source.add(page_max=page_max)
        assert proxy.served > 0
        return got

    assert asyncio.run(scenario()) == content_ids(source)[:15]


@pytest.mark.parametrize("kind", [Feed, NumberedFeed])  # Without entry links, nothing tells that it is old.
def test_an_old_subscription_document_at_the_end_of_catching_up_is_asked_for_again(kind):
    source = kind(2, 2)
    proxy = Proxy(source)
    assert read(source, proxy)[0] == content_ids(source)
    for _ in range(6):
        source.add(page_max=2)
    proxy.on = True
    assert read(source, proxy, at(source, 3))[0] == content_ids(source)[4:]
    assert proxy.served > 0


def test_a_proxy_that_never_lets_go_of_an_old_document_is_told_at_the_end():
    source = NumberedFeed(2, 2)
    proxy = Proxy(source, deaf=10**9)
    read(source, proxy)
    for _ in range(6):
        source.add(page_max=2)
    proxy.on = True
    got = []
    with pytest.raises(FetchFailed, match="older than what was read before"):
        read(source, proxy, at(source, 3), events=got)
    assert got == content_ids(source)[4:8]


@pytest.mark.parametrize("kind", [Feed, NumberedFeed])
@pytest.mark.parametrize("code", [404, 410])
def test_an_entry_link_that_leads_nowhere_for_good_means_to_start_over(kind, code):
    source = kind(2, 2, 2)
    position = at(source, 2)
    fault = Times(position.entry, status(code), times=-1)
    with pytest.raises(StartOver, match=f"answers {code}"):
        read(source, fault, position)
    assert len(fault.at) == QUICK.lost_tries_max

    for_now = Times(position.entry, status(code), times=2)
    got, troubles = read(source, for_now, position)
    assert got == content_ids(source)[3:]
    assert len(troubles) == 2


@every_kind
def test_a_position_that_the_feed_never_had_means_to_start_over(kind):
    source = kind(2, 2, 2)
    real = at(source, 2)
    with pytest.raises(StartOver):
        read(source, lambda request, reply: None, Position("<other@example.org>", real.entry))


@every_kind
def test_a_page_that_lacks_the_event_we_stand_on_means_to_start_over_if_it_stays_so(kind):
    source = kind(3, 3, 3)
    position = at(source, 4)

    def spoil(request, reply):
        reply.body = document_of(source, 1, source.pages[1][:1])

    with pytest.raises(StartOver, match=r"does not hold|no document"):
        read(source, Times(source.archive(1), spoil, times=-1), position)
    assert read(source, Times(source.archive(1), spoil, times=2), position)[0] == content_ids(source)[5:]


def foreign_generation(source):
    """The same feed as if it had been made anew from a later start."""
    other = NumberedFeed(*map(len, source.pages))
    other.generation = "f" * 16
    other.pages = []
    other.number = 0
    other.pages = [[other.entry() for _ in page] for page in source.pages]
    return other


def test_another_generation_at_our_place_means_to_start_over():
    source = NumberedFeed(3, 3, 3)
    with pytest.raises(StartOver, match="in place of"):
        read(foreign_generation(source), lambda request, reply: None, at(source, 4))


@pytest.mark.parametrize("documents_before", [1, 2])
def test_a_feed_that_is_made_anew_while_it_is_read_gives_no_event_of_the_new_one(documents_before):
    source = NumberedFeed(3, 3, 3, 3)
    other = foreign_generation(source)
    settings = replace(QUICK, ahead_max=0)
    got = []
    last = source.archive(documents_before - 1)

    def replaced(request, reply):
        if source.count[f"GET {last}"] > (request.path == last):
            new = other.answer(request)
            reply.status, reply.headers, reply.body = new.status, new.headers, new.body

    with pytest.raises(StartOver, match="in place of"):
        read(source, replaced, settings=settings, events=got)
    assert got == content_ids(source)[: 3 * documents_before]


def test_a_feed_that_is_made_anew_while_it_is_followed_gives_no_event_of_the_new_one():
    for pages in [(3, 2), (3, 1), (3, 3), (3, 3, 3), (1,), (0,)]:
        source = NumberedFeed(3, 2)
        other = NumberedFeed(*pages)
        other.generation = "f" * 16
        other.number = 0
        other.pages = [[other.entry() for _ in range(size)] for size in pages]
        new = [False]

        def replaced(request, reply, other=other, new=new):
            if new[0]:
                answer = other.answer(request)
                reply.status, reply.headers, reply.body = answer.status, answer.headers, answer.body

        async def scenario(source=source, replaced=replaced, new=new):
            got = []
            async with (
                wired(source, replaced) as url,
                aclosing(feed(url + source.latest, settings=QUICK)) as events,
            ):
                for _ in range(5):
                    got.append((await anext(events)).content_id)
                new[0] = True
                with pytest.raises(StartOver):
                    await anext(events)
            return got

        assert asyncio.run(scenario()) == content_ids(source), pages


def test_a_gap_in_the_log_starts_a_generation_and_is_read_over():
    source = NumberedFeed(2)
    ids = content_ids(source)
    for generation in ("b" * 16, "c" * 16):
        source.generation = generation
        page = [source.entry() for _ in range(2)]
        source.pages.append(page)
        ids += [source.content_id(entry.name) for entry in page]
    assert read(source, lambda request, reply: None)[0] == ids


def document_of(source, page, entries):
    """The body of a page as if it had these entries."""
    kept = source.pages[page]
    source.pages[page] = entries
    body = source.document(page).body
    source.pages[page] = kept
    return body


CHANGES = {
    "an event is missing at the beginning": lambda page, before: page[1:],
    "an event is missing in the middle": lambda page, before: [page[0], page[2]],
    "an event comes twice": lambda page, before: [page[0], page[1], page[1], page[2]],
    "an event of the page before comes again": lambda page, before: [before[1], *page],
    "two events changed places": lambda page, before: [page[1], page[0], page[2]],
    "the page before comes again": lambda page, before: before,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_an_archive_that_changed_is_never_applied(change):
    source = NumberedFeed(3, 3, 3)

    def spoil(request, reply):
        reply.body = document_of(source, 1, change(source.pages[1], source.pages[0]))

    assert read(source, Times(source.archive(1), spoil, times=2))[0] == content_ids(source)
    got = []
    with pytest.raises((FeedBroken, FetchFailed)):
        read(source, Times(source.archive(1), spoil, times=-1), events=got)
    assert got == content_ids(source)[:3]


@pytest.mark.parametrize("name", ["an event comes twice", "an event of the page before comes again"])
def test_an_event_that_comes_twice_in_a_foreign_feed_is_never_applied(name):
    source = Feed(3, 3, 3)

    def spoil(request, reply):
        reply.body = document_of(source, 1, CHANGES[name](source.pages[1], source.pages[0]))

    got = []
    with pytest.raises(FeedBroken):
        read(source, Times(source.archive(1), spoil, times=-1), events=got)
    assert got == content_ids(source)[:3]


def test_the_last_event_of_the_page_before_may_come_again_in_a_foreign_feed():
    source = Feed(3, 3, 3)
    body = document_of(source, 1, [source.pages[0][2], *source.pages[1]])

    def spoil(request, reply):
        reply.body = body

    assert read(source, Times(source.archive(1), spoil, times=-1))[0] == content_ids(source)


@pytest.mark.parametrize("entry_links", [True, False])
def test_a_next_archive_that_skips_a_document_loses_nothing(entry_links):
    source = Feed(2, 2, 2, 2, 1, entry_links=entry_links)

    def skip(request, reply):
        if request.path == source.archive(0) and "Link" in reply.headers:
            reply.headers["Link"] = reply.headers["Link"].replace(source.archive(1), source.archive(3))

    assert read(source, skip)[0] == content_ids(source)


@pytest.mark.parametrize("to", [0, 1])
def test_next_archive_links_in_a_circle_bring_nothing_twice(to):
    source = Feed(2, 2, 2, 2, 1)

    def circle_of_links(request, reply):
        if request.path == source.archive(2) and "Link" in reply.headers:
            reply.headers["Link"] = reply.headers["Link"].replace(source.archive(3), source.archive(to))

    got = []
    try:
        read(source, circle_of_links, events=got)
    except (FeedBroken, FetchFailed):
        assert got == content_ids(source)[:6]
    else:
        assert got == content_ids(source)


def test_prev_archive_links_in_a_circle_are_told():
    source = Feed(2, 2, 2, 2, 1)

    def circle_of_links(request, reply):
        if request.path == source.archive(0) and "Link" in reply.headers:
            reply.headers["Link"] += f', <{source.archive(2)}>; rel="prev-archive"'

    with pytest.raises(FeedBroken, match="leads back"):
        read(source, circle_of_links)


def test_what_follows_is_gone_means_to_start_over():
    source = NumberedFeed(2, 2, 2)
    got = []
    with pytest.raises(StartOver, match="gone"):
        read(source, Times(source.archive(1), status(410), times=-1), at(source, 0), events=got)
    assert got == content_ids(source)[1:2]


def test_a_server_that_only_says_that_it_waits_is_not_asked_without_a_pause():
    source = NumberedFeed(2)

    def pretend(request, reply):
        if "Prefer" in request.headers:
            reply.headers["Preference-Applied"] = "wait=25"

    async def scenario():
        async with (
            wired(source, pretend) as url,
            aclosing(feed(url + source.latest, settings=QUICK)) as events,
        ):
            for _ in range(2):
                await anext(events)
            waiting = asyncio.ensure_future(anext(events))
            await asyncio.sleep(0.5)
            asked = source.count[f"GET {source.latest}"]
            source.add(page_max=9)
            await waiting
            return asked

    assert asyncio.run(scenario()) < 60
