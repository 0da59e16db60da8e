"""Links, identities, times, negotiation, and the reading of documents."""

from __future__ import annotations

import pytest

from gateway.core.errors import DecodeError
from gateway.core.identity import ContentID, parse_content_id
from gateway.core.links import FeedLinks, archive_links, link_by_relation, parse_links, subscription_links
from gateway.core.multipart import boundary_of, read_parts
from gateway.core.negotiation import acceptable, preferences
from gateway.core.times import http_date, parse_http_date, parse_rfc3339

LINKS = FeedLinks("things", "0")


def test_a_content_id_is_read_back_and_others_forms_are_none():
    identity = ContentID(7, "0123456789abcdef", "0", "things", "example.org")
    assert str(identity) == "<7.0123456789abcdef@0.things.example.org>"
    assert parse_content_id(str(identity)) == identity
    assert parse_content_id("<1234@products.example.org>") is None
    assert parse_content_id("<07.0123456789abcdef@0.things.example.org>") is None


def test_the_first_page_has_no_predecessor_and_an_archive_always_a_successor():
    assert link_by_relation([archive_links(LINKS, 0)], "prev-archive") is None
    assert link_by_relation([archive_links(LINKS, 0)], "next-archive") == "/feeds/things/0/archive/1"
    assert link_by_relation([archive_links(LINKS, 3)], "prev-archive") == "/feeds/things/0/archive/2"
    assert link_by_relation([archive_links(LINKS, 3)], "current") == "/feeds/things/0/latest"
    assert link_by_relation([subscription_links(LINKS, 0)], "prev-archive") is None
    assert link_by_relation([subscription_links(LINKS, 2)], "prev-archive") == "/feeds/things/0/archive/1"
    assert link_by_relation([subscription_links(LINKS, 2)], "next-archive") is None


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("</a>;rel=self", [("/a", {"self"})]),
        ('</a>; rel="self about"', [("/a", {"self", "about"})]),
        ('</a,b>; title="x, y"; rel="SELF", <c>; rel=d', [("/a,b", {"self"}), ("c", {"d"})]),
        ('</a>; rel="one"; rel="two"', [("/a", {"one"})]),
        ("</a>", [("/a", set())]),
        ("junk", []),
        ('</a>; rel="x" junk, </b>; rel=y', [("/a", {"x"})]),
    ],
)
def test_link_headers_are_read_in_all_their_forms(header, expected):
    assert [(link.target, set(link.relations)) for link in parse_links(header)] == expected


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        (None, True),
        ("", True),
        ("*/*", True),
        ("multipart/mixed", True),
        ("Multipart/*;q=0.1", True),
        ("text/html, multipart/mixed;q=0.5", True),
        ("text/html", False),
        ("multipart/mixed;q=0", False),
        ("*/*, multipart/mixed;q=0", False),
        ("multipart/*;q=0, multipart/mixed", True),
        ("multipart/mixed;boundary=x", True),
        ("garbage", False),
    ],
)
def test_the_most_specific_range_decides_what_is_acceptable(accept, expected):
    assert acceptable(accept, "multipart/mixed") is expected


def test_preferences_are_read_from_several_headers_and_the_first_counts():
    assert preferences(["respond-async, wait=10", 'wait=20; x=y, Return="minimal"']) == {
        "respond-async": "",
        "wait": "10",
        "return": "minimal",
    }


def test_http_dates_go_there_and_back():
    assert http_date(1_700_000_000_999) == "Tue, 14 Nov 2023 22:13:20 GMT"
    assert parse_http_date("Tue, 14 Nov 2023 22:13:20 GMT") == 1_700_000_000_000
    assert parse_http_date("14 November") is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2023-11-14T22:13:20Z", 1_700_000_000_000),
        ("2023-11-14T23:13:20+01:00", 1_700_000_000_000),
        ("2023-11-14T23:13:20 01:00", 1_700_000_000_000),
        ("2023-11-14T22:13:20.0001Z", 1_700_000_000_001),
        ("2023-11-14t22:13:20.5z", 1_700_000_000_500),
    ],
)
def test_rfc_3339_times_are_read_and_rounded_up_to_the_millisecond(text, expected):
    assert parse_rfc3339(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "yesterday", "2023-11-14", "2023-11-14T22:13:20", "2023-11-14 22:13:20Z", "2023-13-14T22:13:20Z"],
)
def test_what_is_not_an_rfc_3339_time_is_refused(text):
    with pytest.raises(ValueError):  # noqa: PT011 - whatever datetime says of it
        parse_rfc3339(text)


DOCUMENT = (
    b'preamble\r\n--b\r\nContent-ID: <1>\r\nLink: </a>;rel="about"\r\nLink: </e/1>; rel=self\r\n\r\nbody\r\n'
    b"--b\r\nContent-Length: 0\r\n\r\n\r\n--b--\r\nepilogue"
)


def test_any_servers_parts_are_read():
    first, second = read_parts("b", DOCUMENT)
    assert (first.body, first.about, first.entry, first.value("content-id")) == (b"body", "/a", "/e/1", "<1>")
    assert (second.body, second.value("content-length")) == (b"", "0")


def test_a_document_cut_short_anywhere_is_refused():
    end = DOCUMENT.index(b"--b--") + 5
    for length in range(end):
        with pytest.raises(DecodeError):
            read_parts("b", DOCUMENT[:length])


@pytest.mark.parametrize("length", [b"3", b"5", b"-1", b"x"])
def test_a_part_whose_length_is_a_lie_is_refused(length):
    with pytest.raises(DecodeError):
        read_parts("b", b"--b\r\nContent-Length: " + length + b"\r\n\r\nbody\r\n--b--\r\n")


def test_a_boundary_is_found_in_any_spelling_and_missed_in_none():
    assert boundary_of("multipart/mixed; boundary=abc") == "abc"
    assert boundary_of('Multipart/Mixed; charset=x; BOUNDARY="a b:c"') == "a b:c"
    for bad in ("text/plain; boundary=abc", "multipart/mixed", ""):
        with pytest.raises(DecodeError):
            boundary_of(bad)
