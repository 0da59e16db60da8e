"""A feed of another kind passes clean, in every state and while it grows; and the limits hold."""

import asyncio

import pytest

from gateway.sync.check import CheckFailed, check
from gateway.sync.feed_check import CheckSettings
from gateway.sync.fetch import FetchFailed, FetchSettings
from tests.sync.feed_server import LATEST, Feed, OurFeed, check_feed, serving

FAST = FetchSettings(retry_after_s=0.01, retries_max=3, request_s=0.5)


def codes(breaches):
    return {breach.rule.code for breach in breaches}


def test_a_plain_feed_of_the_draft_passes_clean():
    breaches, summary = check_feed(Feed(3, 3, 2))
    assert breaches == []
    facts = summary.as_json()
    assert (facts["feeds"], facts["documents"], facts["events"]) == (1, 3, 8)
    assert facts["entry_links"] == facts["entry_links_followed"] == 8
    assert facts["notes"] == []


def test_a_feed_without_entry_links_passes_clean():
    breaches, summary = check_feed(Feed(2, 1, entry_links=False))
    assert breaches == []
    assert summary.as_json()["entry_links"] == 0


@pytest.mark.parametrize("sizes", [(1,), (5,), (0,), (3, 0)])
def test_a_feed_with_one_document_or_an_empty_one_passes_clean(sizes):
    breaches, summary = check_feed(Feed(*sizes))
    assert breaches == []
    assert summary.as_json()["events"] == sum(sizes)


def test_a_feed_of_our_own_shape_passes_clean_from_every_way_in():
    for path in ("/", "/feeds/events", "/feeds/events/0/latest", "/feeds/events/0/archive/1"):
        breaches, summary = check_feed(OurFeed(3, 3, 2), path)
        assert breaches == [], path
        assert summary.as_json()["events"] == 8


def test_the_walk_starts_from_any_document_of_the_feed():
    feed = Feed(2, 2, 2)
    breaches, summary = check_feed(feed, feed.archive(0))
    assert breaches == []
    assert summary.feeds[0].url.endswith(LATEST)


def test_an_archive_document_that_names_no_current_is_left_over_next_archive():
    feed = OurFeed(2, 2, 2)
    feed.twist = lambda request, reply: reply.headers.update(
        Link=reply.headers.get("Link", "").replace("rel=current", "rel=up")
    )
    breaches, summary = check_feed(feed, feed.archive(0))
    assert codes(breaches) == {"current-missing"}
    assert summary.as_json()["events"] == 6


def test_a_feed_that_grows_and_turns_its_page_during_the_check_passes_clean():
    for kind in (Feed, OurFeed):
        for every in (1, 2, 3, 5, 7):
            feed = kind(3, 3, 1)

            def grow(request, reply, feed=feed, every=every):
                if sum(feed.count.values()) % every == 0:
                    feed.add(page_max=3)

            feed.twist = grow
            breaches, summary = check_feed(feed)
            assert breaches == [], (kind, every)
            assert summary.as_json()["events"] >= 7


def test_a_feed_that_turns_its_page_at_every_request_is_told_apart_from_a_broken_one():
    feed = Feed(3, 3, 3)

    def grow(request, reply):
        for _ in range(3):
            feed.add(page_max=3)

    feed.twist = grow
    breaches, summary = check_feed(feed)
    assert breaches == []
    assert "changed too often" in summary.as_json()["notes"][0]


def test_a_location_that_spells_the_document_otherwise_is_followed_to_the_entry():
    feed = Feed(2, 2, 2)
    archive = feed.archive

    def other_spelling(request, reply):
        if request.path.endswith("/") and request.path.startswith("/products/changes/2013/"):
            page = int(request.path.rstrip("/")[-2:])
            document = feed.document(page)
            reply.status, reply.headers, reply.body = 200, document.headers, document.body
        elif reply.status == 301:
            reply.headers["Location"] = reply.headers["Location"].replace("#", "/#")

    feed.twist = other_spelling
    breaches, _ = check_feed(feed)
    assert breaches == []
    assert feed.count[f"GET {archive(0)}/"] == 1, "a document is read once for all its entries"


def test_the_sample_bounds_the_entry_links_and_the_summary_says_so():
    breaches, summary = check_feed(Feed(50, 50, 10), settings=CheckSettings(sample=11))
    assert breaches == []
    facts = summary.as_json()
    assert facts["entry_links"] == 110
    assert 11 <= facts["entry_links_followed"] <= 11 + 2 * 3


def test_not_now_is_heard_and_the_request_repeated():
    feed = Feed(2, 1)

    def busy(request, reply):
        if feed.looks(request) % 2:
            reply.status, reply.headers, reply.body = 503, {"Retry-After": "0"}, b""

    feed.twist = busy
    breaches, _ = check_feed(feed)
    assert breaches == []


def test_not_now_is_heard_only_so_many_times():
    feed = Feed(2, 1)

    def busy(request, reply):
        if request.path == feed.archive(0):
            reply.status, reply.headers, reply.body = 429, {"Retry-After": "0"}, b""

    feed.twist = busy
    breaches, _ = check_feed(feed, fetch_settings=FAST)
    assert codes(breaches) == {"document-status"}
    assert feed.count[f"GET {feed.archive(0)}"] == FAST.retries_max + 1


def test_what_is_gone_for_good_ends_the_walk_without_a_breach():
    feed = OurFeed(2, 2, 2)

    def retained(request, reply):
        if request.path == feed.archive(0):
            reply.status, reply.headers, reply.body = 410, {"Cache-Control": "no-store"}, b""

    feed.twist = retained
    breaches, summary = check_feed(feed)
    assert breaches == []
    assert summary.as_json()["events"] == 4
    assert "gone" in summary.as_json()["notes"][0]


@pytest.mark.parametrize(
    ("status", "content_type", "body", "said"),
    [
        (404, "text/plain", b"", "answers 404"),
        (200, "application/json", b"[]", "not a JSON object"),
        (200, "application/json", b"{", "not JSON"),
        (200, "application/json", b"{}", "neither a feed document nor"),
        (200, "application/json", b'{"partitions": [{"partition": "0"}]}', "links.current"),
    ],
)
def test_a_url_without_a_feed_is_said_to_have_none(status, content_type, body, said):
    feed = Feed(1)

    def other(request, reply):
        reply.status, reply.headers, reply.body = status, {"Content-Type": content_type}, body

    feed.twist = other
    with pytest.raises(CheckFailed, match=said):
        check_feed(feed)


@pytest.mark.slow
def test_a_server_that_cannot_be_reached_or_does_not_answer_is_said_to_be_so():
    async def silent(request):
        await asyncio.sleep(5)

    async def scenario():
        async with serving(silent) as url:
            with pytest.raises(FetchFailed, match="in time"):
                await check(f"{url}/feed", print, fetch_settings=FAST)
            await asyncio.sleep(0)
        with pytest.raises(FetchFailed, match="Cannot connect"):
            await check(f"{url}/feed", print, fetch_settings=FAST)

    asyncio.run(asyncio.wait_for(scenario(), 20))


def test_an_answer_that_is_too_long_is_not_read_to_its_end():
    feed = Feed(100)
    with pytest.raises(FetchFailed, match="more than 1000 bytes"):
        check_feed(feed, fetch_settings=FetchSettings(body_bytes_max=1000))


def test_a_password_is_sent_and_stands_nowhere():
    feed, seen, breaches = OurFeed(2, 1), [], []
    feed.pages[0][0].without("Event-Type")

    async def handle(request):
        seen.append(request.headers.get("Authorization"))
        return await feed.handle(request)

    async def scenario():
        async with serving(handle) as url:
            return await check(url.replace("//", "//me:secret@") + "/", breaches.append)

    summary = asyncio.run(scenario())
    assert set(seen) == {"Basic bWU6c2VjcmV0"}
    assert breaches
    assert "secret" not in f"{breaches} {summary}"


def test_redirects_in_a_circle_end():
    feed = Feed(1)

    def circle(request, reply):
        reply.status, reply.headers, reply.body = 302, {"Location": LATEST}, b""

    feed.twist = circle
    with pytest.raises(CheckFailed, match="answers 302"):
        check_feed(feed, fetch_settings=FAST)


@pytest.mark.parametrize("link", ["ftp://example.org/x", "http://[", "javascript:alert(1)"])
def test_a_link_that_is_no_http_url_is_a_breach_and_the_check_goes_on(link):
    feed = Feed(1, 1)
    feed.twist = lambda request, reply: reply.headers.update(Link=f"<{link}>; rel=prev-archive")
    breaches, summary = check_feed(feed, fetch_settings=FAST)
    assert codes(breaches) == {"document-status"}
    assert summary.as_json()["events"] == 1
    feed = Feed(1)
    feed.pages[0][0].headers[1] = ("Link", f"<{link}>; rel=self")
    breaches, _ = check_feed(feed, fetch_settings=FAST)
    assert codes(breaches) == {"self-status"}
