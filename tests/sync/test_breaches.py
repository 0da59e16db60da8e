"""Every kind of breach, by a server that misbehaves in exactly that way and in no other."""

from collections.abc import Callable

import pytest

from gateway.sync.breaches import Rule
from tests.sync.feed_server import LATEST, Feed, OurFeed, check_feed

CASES: list[tuple[str, set[Rule], Callable[[], Feed | tuple[Feed, str]]]] = []


def breaks(*rules: Rule):
    """Register a function that makes a feed which breaks `rules`, and the path to enter at, if another.

    The first rule is what it is about; the others cannot be kept then.
    """

    def register(make):
        CASES.append((make.__name__, rules, make))
        return make

    return register


def archived(feed: Feed, request) -> int | None:
    """The number of the archive document that is asked for."""
    pages = range(len(feed.pages) - 1)
    return next((page for page in pages if request.path == feed.archive(page)), None)


def twisted(make_twist, *sizes, kind=Feed):
    feed = kind(*(sizes or (2, 2, 2)))
    feed.twist = lambda request, reply: make_twist(feed, request, reply)
    return feed


# Documents and their parts


@breaks(Rule.DOCUMENT_STATUS)
def an_archive_document_is_missing():
    def twist(feed, request, reply):
        if archived(feed, request) == 0:
            reply.status, reply.body = 404, b""

    return twisted(twist)


@breaks(Rule.DOCUMENT_STATUS)
def an_archive_document_is_there_only_once():
    def twist(feed, request, reply):
        if archived(feed, request) == 0 and feed.looks(request) > 1:
            reply.status, reply.body = 404, b""

    return twisted(twist)


@breaks(Rule.DOCUMENT_TYPE)
def an_archive_document_is_of_another_type():
    def twist(feed, request, reply):
        if archived(feed, request) == 0:
            reply.headers["Content-Type"] = "text/html"

    return twisted(twist)


@breaks(Rule.DOCUMENT_TYPE)
def the_subscription_document_is_of_another_type():
    return twisted(lambda f, q, r: r.headers.update({"Content-Type": "text/html"}), 1)


def rewritten(change):
    """A feed whose documents are all changed by `change`."""

    def twist(feed, request, reply):
        if reply.body and reply.status == 200:
            reply.body = change(reply.body)

    return lambda: twisted(twist, 2)


for name, change in {
    "a_document_is_cut_short": lambda body: body[: body.rindex(b"--gc0p")],
    "a_document_uses_bare_line_feeds": lambda body: body.replace(b"\r\n", b"\n"),
    "a_document_lacks_its_delimiters": lambda body: b"nothing",
    "a_document_has_no_part": lambda body: b"--gc0p4Jq0M:2Yt08jU534c0p--\r\n",
    "a_header_line_has_no_colon": lambda body: body.replace(b"Content-Type: ", b"Content-Type "),
    "a_header_line_is_not_ascii": lambda body: body.replace(b"PUT\r\n", b"PUT\r\nX: \xc3\xa4\r\n"),
}.items():
    make = rewritten(change)
    make.__name__ = name
    breaks(Rule.MULTIPART_MALFORMED)(make)


@breaks(Rule.MULTIPART_MALFORMED)
def a_body_has_a_line_that_starts_with_the_delimiter():
    feed = Feed(2)
    body = b"one\r\n--gc0p4Jq0M:2Yt08jU534c0p-and-more\r\ntwo"
    feed.pages[0][0].body = body
    feed.pages[0][0].replace("Content-Length", str(len(body)))
    return feed


@breaks(Rule.MULTIPART_MALFORMED)
def a_boundary_with_a_colon_is_not_quoted():
    def twist(feed, request, reply):
        if "Content-Type" in reply.headers:
            reply.headers["Content-Type"] = f"multipart/mixed; boundary={feed.boundary}"

    return twisted(twist, 2)


@breaks(Rule.MULTIPART_MALFORMED)
def a_boundary_is_too_long():
    feed = Feed(1)
    feed.boundary = "b" * 71
    return feed


@breaks(Rule.MULTIPART_MALFORMED)
def a_content_type_has_no_boundary():
    return twisted(lambda f, q, r: r.headers.update({"Content-Type": "multipart/mixed"}), 2)


def edited(edit, *sizes):
    feed = Feed(*(sizes or (2, 2)))
    edit(feed.pages[0][0])
    return feed


@breaks(Rule.PART_LENGTH)
def a_part_claims_another_length():
    return edited(lambda entry: entry.replace("Content-Length", "9"))


@breaks(Rule.PART_LENGTH)
def a_part_claims_no_number():
    return edited(lambda entry: entry.replace("Content-Length", "nnn"))


@breaks(Rule.PART_DATE)
def a_part_has_a_date_that_is_none():
    return edited(lambda entry: entry.replace("Last-Modified", "yesterday"))


# Content-ID and order


@breaks(Rule.CONTENT_ID_MISSING)
def an_entry_has_no_content_id():
    def edit(entry):
        entry.without("Content-ID")
        entry.headers.remove(("Link", "</changes/1000>;rel=self"))

    feed = edited(edit, 1)
    return feed


@breaks(Rule.CONTENT_ID_FORM)
def a_content_id_has_no_angle_brackets():
    return edited(lambda entry: entry.replace("Content-ID", "1000"))


@breaks(Rule.CONTENT_ID_FORM)
def an_entry_has_two_content_ids():
    return edited(lambda entry: entry.headers.append(("Content-ID", "<x@example.org>")))


@breaks(Rule.CONTENT_ID_REPEATED)
def a_content_id_occurs_in_two_documents():
    feed = Feed(2, 2, 2, entry_links=False)
    feed.pages[2][0].replace("Content-ID", feed.content_id(feed.pages[0][1].name))
    return feed


@breaks(Rule.CONTENT_ID_REPEATED)
def a_content_id_occurs_twice_in_one_document():
    feed = Feed(2, entry_links=False)
    feed.pages[0][1].replace("Content-ID", feed.content_id(feed.pages[0][0].name))
    return feed


@breaks(Rule.ORDER_CHANGED, Rule.NEWEST_FIRST)
def entries_of_the_subscription_document_change_places():
    def twist(feed, request, reply):
        if request.path == LATEST and request.method == "GET" and feed.looks(request) == 1:
            feed.pages[-1].reverse()

    return twisted(twist)


@breaks(Rule.ORDER_CHANGED)
def a_new_entry_is_put_in_front_of_the_others():
    def twist(feed, request, reply):
        if request.path == LATEST and feed.looks(request) == 1:
            feed.pages[-1].insert(0, feed.entry())

    return twisted(twist)


@breaks(Rule.ORDER_CHANGED)
def an_entry_is_lost_when_the_page_turns():
    def twist(feed, request, reply):
        if request.path == LATEST and feed.looks(request) == 1:
            feed.pages[-1].pop(0)
            feed.pages.append([feed.entry()])

    return twisted(twist)


@breaks(Rule.ORDER_CHANGED)
def entries_of_an_archive_document_change_places():
    def twist(feed, request, reply):
        if archived(feed, request) == 1 and feed.looks(request) == 1:
            feed.pages[1].reverse()

    return twisted(twist)


@breaks(Rule.NEWEST_FIRST)
def a_document_has_its_newest_entry_first():
    feed = Feed(3)
    feed.pages[0].reverse()
    return feed


# Targets and event types


@breaks(Rule.ABOUT_MISSING)
def an_entry_has_no_target():
    return edited(lambda entry: entry.headers.pop(0))


@breaks(Rule.EVENT_TYPE_MISSING)
def an_entry_has_no_event_type():
    return edited(lambda entry: entry.without("Event-Type"))


for value in ("PUT", "http-equiv", "http-equiv=PUT, http-equiv=POST", "http equiv=PUT", "=PUT"):

    def make(value=value):
        return edited(lambda entry: entry.replace("Event-Type", value))

    make.__name__ = f"an event type is written as {value}"
    breaks(Rule.EVENT_TYPE_FORM)(make)

for value in ("GET", "HEAD", "put", "WRITE"):

    def make(value=value):
        return edited(lambda entry: entry.replace("Event-Type", f"http-equiv={value}"))

    make.__name__ = f"an event has the method {value}"
    breaks(Rule.EVENT_TYPE_METHOD)(make)


@breaks(Rule.EVENT_TYPE_FAMILIES)
def a_feed_mixes_families():
    return edited(lambda entry: entry.replace("Event-Type", "acme=moved"))


# Entry links


@breaks(Rule.SELF_PARTLY)
def only_some_entries_have_an_entry_link():
    return edited(lambda entry: entry.headers.pop(1))


def redirecting(change):
    """A feed whose answers to entry links are changed by `change`."""

    def twist(feed, request, reply):
        if request.path.startswith("/changes/"):
            change(feed, request, reply)

    return twisted(twist, 2, 1)


@breaks(Rule.SELF_STATUS)
def entry_links_answer_with_the_document_itself():
    def change(feed, request, reply):
        reply.status = 200

    return redirecting(change)


@breaks(Rule.SELF_STATUS)
def entry_links_are_not_found():
    def change(feed, request, reply):
        reply.status = 404

    return redirecting(change)


@breaks(Rule.SELF_REDIRECT)
def an_archived_entry_is_answered_with_302():
    def change(feed, request, reply):
        reply.status = 302

    return redirecting(change)


@breaks(Rule.SELF_REDIRECT)
def an_entry_of_the_subscription_document_is_answered_with_301():
    def change(feed, request, reply):
        reply.status = 301

    return redirecting(change)


@breaks(Rule.SELF_REDIRECT)
def entry_links_are_answered_with_307():
    def change(feed, request, reply):
        reply.status = 307

    return redirecting(change)


@breaks(Rule.SELF_LOCATION)
def a_redirect_has_no_location():
    def change(feed, request, reply):
        reply.headers.clear()

    return redirecting(change)


@breaks(Rule.SELF_LOCATION)
def archived_entries_lead_to_the_subscription_document():
    def change(feed, request, reply):
        reply.status, reply.headers = 302, {"Location": f"{LATEST}#x"}

    return redirecting(change)


@breaks(Rule.SELF_LOCATION)
def entry_links_lead_to_a_document_without_the_entry():
    def twist(feed, request, reply):
        if reply.status == 301:
            reply.headers = {"Location": f"{feed.archive(0)}#x"}

    return twisted(twist)


@breaks(Rule.SELF_LOCATION)
def entry_links_lead_nowhere():
    def change(feed, request, reply):
        reply.headers = {"Location": "/nowhere#x"}

    return redirecting(change)


@breaks(Rule.SELF_FRAGMENT)
def a_location_does_not_name_the_entry():
    def change(feed, request, reply):
        reply.headers["Location"] = reply.headers["Location"].partition("#")[0]

    return redirecting(change)


@breaks(Rule.SELF_CACHED)
def a_302_may_be_cached_for_an_hour():
    def change(feed, request, reply):
        reply.headers["Cache-Control"] = "max-age=3600"

    return redirecting(change)


# Links between documents


@breaks(Rule.PREV_ARCHIVE_MISSING)
def documents_say_prev_as_in_the_example_of_the_draft():
    def twist(feed, request, reply):
        if "Link" in reply.headers:
            reply.headers["Link"] = reply.headers["Link"].replace("prev-archive", "prev")

    return twisted(twist)


@breaks(Rule.PREV_ARCHIVE_MISSING)
def an_archive_document_is_not_reached_from_the_subscription_document():
    def twist(feed, request, reply):
        if request.path == LATEST and reply.status == 200:
            reply.headers["Link"] = f"<{LATEST}>; rel=current"

    feed = twisted(twist)
    return feed, feed.archive(0)


def linked(page, link):
    """A feed whose archive document `page` has other links."""

    def twist(feed, request, reply):
        if archived(feed, request) == page and reply.status == 200:
            reply.headers["Link"] = link(feed, reply.headers["Link"])

    return twisted(twist, 2, 2, 2, 2)


@breaks(Rule.NEXT_ARCHIVE_MISSING)
def an_archive_document_has_no_next_archive():
    return linked(0, lambda feed, link: link.replace("next-archive", "next"))


@breaks(Rule.CURRENT_MISSING)
def an_archive_document_has_no_current():
    return linked(0, lambda feed, link: link.replace("current", "up"))


@breaks(Rule.CURRENT_WRONG)
def an_archive_document_names_another_subscription_document():
    return linked(0, lambda feed, link: link.replace(LATEST, feed.archive(1)))


@breaks(Rule.DOCUMENT_STATUS)
def current_leads_nowhere():
    return linked(0, lambda feed, link: link.replace(LATEST, "/nowhere"))


@breaks(Rule.LINKS_DISAGREE)
def next_archive_skips_a_document():
    return linked(0, lambda feed, link: link.replace(feed.archive(1), feed.archive(2)))


@breaks(Rule.LINKS_DISAGREE)
def the_newest_archive_document_leads_back():
    return linked(2, lambda feed, link: f"{link}, <{feed.archive(0)}>; rel=next-archive")


@breaks(Rule.LINKS_DISAGREE)
def prev_archive_leads_elsewhere_the_second_time():
    def twist(feed, request, reply):
        if request.path == LATEST and feed.count[f"GET {LATEST}"] > 1 and reply.status == 200:
            reply.headers["Link"] = reply.headers["Link"].replace("2013/01", "2013/00")

    return twisted(twist)


@breaks(Rule.LINKS_CIRCLE)
def prev_archive_goes_in_a_circle():
    return linked(0, lambda feed, link: f"{link}, <{feed.archive(2)}>; rel=prev-archive")


# Documents that must not change, and caching


@breaks(Rule.ARCHIVE_ENTRIES_CHANGED)
def an_archive_document_loses_an_entry():
    def twist(feed, request, reply):
        if archived(feed, request) == 0 and feed.looks(request) == 1:
            feed.pages[0].pop()

    return twisted(twist)


@breaks(Rule.ARCHIVE_BYTES_CHANGED)
def an_archive_document_gets_another_boundary():
    def twist(feed, request, reply):
        if archived(feed, request) == 1 and request.method == "GET":
            feed.boundary = "another"

    return twisted(twist)


@breaks(Rule.ETAG_STALE, Rule.ARCHIVE_BYTES_CHANGED)
def an_archive_document_changes_and_its_etag_does_not():
    def twist(feed, request, reply):
        if archived(feed, request) == 0 and feed.looks(request) > 1 and reply.status == 200:
            reply.body += b" which grew"

    return twisted(twist)


@breaks(Rule.ETAG_STALE)
def the_subscription_document_changes_and_its_etag_does_not():
    def twist(feed, request, reply):
        if "ETag" in reply.headers and request.path == LATEST:
            reply.headers["ETag"] = '"always"'
        if request.headers.get("If-None-Match") == '"always"':
            reply.status, reply.body = 304, b""
        elif request.path == LATEST and feed.looks(request) == 1:
            feed.add(page_max=100)

    return twisted(twist)


@breaks(Rule.ETAG_RESTLESS)
def the_etag_changes_with_each_request():
    def twist(feed, request, reply):
        if archived(feed, request) == 0 and "ETag" in reply.headers:
            served = feed.count[f"GET {request.path}"]
            reply.headers["ETag"] = f'"{min(served, 2)}"'
            if request.headers.get("If-None-Match"):
                reply.status, reply.body = 304, b""

    return twisted(twist)


@breaks(Rule.ETAG_RESTLESS)
def the_etag_of_the_subscription_document_changes_with_each_request():
    def twist(feed, request, reply):
        if request.path == LATEST:
            reply.headers["ETag"] = f'"{feed.count.total()}"'

    return twisted(twist)


@breaks(Rule.ETAG_FORM)
def an_etag_has_no_quotes():
    def twist(feed, request, reply):
        if "ETag" in reply.headers:
            reply.headers["ETag"] = "abc"
            if request.headers.get("If-None-Match") == "abc":
                reply.status, reply.body = 304, b""

    return twisted(twist, 2)


@breaks(Rule.ETAG_MISSING)
def the_subscription_document_has_no_etag():
    return twisted(lambda f, q, r: r.headers.pop("ETag", None))


@breaks(Rule.ARCHIVE_HEADERS_CHANGED)
def a_header_of_an_archive_document_changes():
    def twist(feed, request, reply):
        if archived(feed, request) == 0:
            reply.headers["Last-Modified"] = "Sat, 11 Jan 2014 05:00:13 GMT"
            if feed.count[f"GET {request.path}"] > 1:
                reply.headers["Last-Modified"] = "Sat, 11 Jan 2014 05:00:14 GMT"

    return twisted(twist)


for value in ("no-store", "no-cache", "private, max-age=60", "max-age=0"):

    def make(value=value):
        def twist(feed, request, reply):
            if archived(feed, request) is not None:
                reply.headers["Cache-Control"] = value

        return twisted(twist)

    make.__name__ = f"archive documents say Cache-Control: {value}"
    breaks(Rule.ARCHIVE_NOT_CACHEABLE)(make)


@breaks(Rule.SUBSCRIPTION_IMMUTABLE)
def the_subscription_document_claims_to_be_immutable():
    def twist(feed, request, reply):
        if request.path == LATEST:
            reply.headers["Cache-Control"] = "max-age=31536000, immutable"

    return twisted(twist)


# Conditional requests and HEAD


@breaks(Rule.CONDITIONAL_IGNORED)
def if_none_match_is_ignored():
    def twist(feed, request, reply):
        if reply.status == 304:
            reply.status, reply.body = 200, feed.answer(request).body
            reply.headers = feed.answer(request).headers

    return twisted(twist)


@breaks(Rule.NOT_MODIFIED_HEADERS)
def a_304_has_no_etag():
    def twist(feed, request, reply):
        if reply.status == 304:
            reply.headers.pop("ETag")

    return twisted(twist)


@breaks(Rule.HEAD_STATUS)
def head_is_not_allowed():
    def twist(feed, request, reply):
        if request.method == "HEAD":
            reply.status = 405

    return twisted(twist)


@breaks(Rule.HEAD_LENGTH)
def head_claims_another_length():
    def twist(feed, request, reply):
        if request.method == "HEAD" and reply.status == 200:
            reply.headers["Content-Length"] = "5"

    return twisted(twist)


@breaks(Rule.HEAD_HEADERS)
def head_has_another_etag():
    def twist(feed, request, reply):
        if request.method == "HEAD" and "ETag" in reply.headers:
            reply.headers["ETag"] = '"other"'

    return twisted(twist)


# What only our own URL space promises


@breaks(Rule.LOG_DOCUMENT)
def a_log_document_speaks_of_more_events():
    def twist(feed, request, reply):
        reply.body = reply.body.replace(b'"events": 6', b'"events": 7')

    return twisted(twist, kind=OurFeed), "/feeds/events"


def ours(change):
    def twist(feed, request, reply):
        if feed.archive(2) == request.path or "000000" in request.path:
            change(feed, request, reply)

    return twisted(twist, kind=OurFeed)


@breaks(Rule.BEYOND_END)
def what_is_not_there_yet_fails():
    def change(feed, request, reply):
        if reply.status == 404:
            reply.status = 500

    return ours(change)


@breaks(Rule.ERROR_CACHEABLE)
def what_is_not_there_yet_may_be_cached_as_missing():
    def change(feed, request, reply):
        if reply.status == 404:
            reply.headers.pop("Cache-Control")

    return ours(change)


@breaks(Rule.ERROR_CACHEABLE)
def the_way_from_the_open_page_may_be_cached():
    def change(feed, request, reply):
        if reply.status == 302:
            reply.headers["Cache-Control"] = "max-age=60"

    return ours(change)


@breaks(Rule.OPEN_ARCHIVE)
def the_open_page_leads_elsewhere():
    def twist(feed, request, reply):
        if request.path == feed.archive(2):
            reply.headers["Location"] = "/elsewhere"
        elif request.path == "/elsewhere":
            document = feed.document(2)
            reply.status, reply.headers, reply.body = 200, document.headers, document.body

    return twisted(twist, kind=OurFeed)


@pytest.mark.parametrize(("rules", "make"), [pytest.param(*case[1:], id=case[0]) for case in CASES])
def test_a_breach_is_reported_and_no_other(rules, make):
    made = make()
    feed, path = made if isinstance(made, tuple) else (made, None)
    breaches, summary = check_feed(feed, path)
    assert {breach.rule for breach in breaches} == set(rules)
    assert sum(summary.counts.values()) == len(breaches)
    assert all(breach.url and breach.detail for breach in breaches)


def test_every_rule_has_a_server_that_breaks_it():
    assert {rules[0] for _, rules, _ in CASES} == set(Rule)


def test_the_codes_of_rules_differ():
    assert len({rule.code for rule in Rule}) == len(Rule)
