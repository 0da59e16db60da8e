"""What may be in an event is decided once; nothing that could break a header or a path gets through."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import InvalidEvent
from gateway.core.event import (
    TARGET_BYTES_MAX,
    Event,
    Method,
    header_text,
    parse_authority,
    parse_media_type,
    parse_method,
    parse_name,
    parse_target,
)
from gateway.core.identity import FeedName
from gateway.core.multipart import delimiter, part_renderer, read_parts


@pytest.mark.parametrize(
    ("given_target", "target"),
    [
        ("/", "/"),
        ("/products/1", "/products/1"),
        ("/products/1?colour=red&size=1", "/products/1?colour=red&size=1"),
        ("/a%20b", "/a%20b"),
        ("/a b", "/a%20b"),
        ("/größe", "/gr%C3%B6%C3%9Fe"),
        ('/<a>"b"', "/%3Ca%3E%22b%22"),
        ("/a//b", "/a//b"),
        ("/.well-known/x", "/.well-known/x"),
        ("/a..b", "/a..b"),
    ],
)
def test_a_target_is_a_path_with_what_uris_cannot_hold_percent_encoded(given_target, target):
    assert parse_target(given_target) == target
    assert parse_target(target) == target


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("", "not a path"),
        ("products/1", "not a path"),
        ("http://example.org/a", "not a path"),
        ("//example.org/a", "names a host"),
        ("/a\r\nX: 1", "control character"),
        ("/a\0", "control character"),
        ("/a\x7f", "control character"),
        ("/a#b", "fragment"),
        ("/a%", "two hex digits"),
        ("/a%zz", "two hex digits"),
        ("/a/../b", "segment"),
        ("/./a", "segment"),
        ("/a/..", "segment"),
        ("/a/..?x", "segment"),
        ("/\ud800", "not Unicode"),
        ("/" + "a" * TARGET_BYTES_MAX, "at most"),
    ],
)
def test_a_target_that_nobody_could_request_is_refused_with_the_reason(target, reason):
    with pytest.raises(InvalidEvent, match=reason):
        parse_target(target)


@pytest.mark.parametrize(
    "text", ["text/plain", "application/vnd.x+json; a=b", 'text/a; q="b c\\""', "a/b;c=d ;e=f"]
)
def test_a_media_type_is_kept_as_written(text):
    assert parse_media_type(text) == text


@pytest.mark.parametrize(
    "text", ["", "text", "text/", "/x", "text/plain\r\nX: 1", "text/plâin", "a/b; c", 'a/b;c="\0"']
)
def test_what_is_no_media_type_is_refused(text):
    with pytest.raises(InvalidEvent, match="not a media type"):
        parse_media_type(text)


@pytest.mark.parametrize("text", ["GET", "put", "", "PUT\r\n", None])
def test_only_the_unsafe_methods_in_capitals_are_methods_of_events(text):
    with pytest.raises(InvalidEvent, match="use PUT, POST, PATCH or DELETE"):
        parse_method(text)


def test_names_and_authorities_cannot_break_a_content_id_or_leave_their_folder():
    for bad in ("", ".", "..", "a.b", "a/b", "a b", "-a", "a" * 65, "ä"):
        with pytest.raises(InvalidEvent):
            parse_name(bad, "log")
    for bad in ("", "a b", "-a", "a..b", "a>b", "a@b", "ä.org"):
        with pytest.raises(InvalidEvent):
            parse_authority(bad)
    assert parse_name("events-2_x", "log") == "events-2_x"
    assert parse_authority("feeds.example.org") == "feeds.example.org"


@given(st.text(), st.text(), st.text(max_size=1000), st.binary(max_size=100))
def test_no_text_of_a_producer_adds_a_header_or_a_part(target, content_type, extra, body):
    try:
        event = Event(
            Method.PUT,
            parse_target(target),
            parse_media_type(content_type),
            body,
            extra_headers=(("X-Extra", header_text(extra)),),
        )
    except InvalidEvent:
        event = Event(Method.PUT, "/", None, body, extra_headers=(("X-Extra", header_text(extra)),))
    content = part_renderer(FeedName("example.org", "things", "0"))(0, "0" * 16, event)
    head = content[: content.index(b"\r\n\r\n")].decode("ascii")
    assert not re.search(r"[^\x20-\x7e\r\n]", head)
    names = [line.split(":")[0] for line in head.split("\r\n")]
    assert names[:4] == ["Content-ID", "Link", "Link", "Event-Type"]
    assert names[4:] in (["Content-Length", "X-Extra"], ["Content-Type", "Content-Length", "X-Extra"])
    boundary = "0123456789"
    if boundary.encode() not in content:
        document = delimiter(boundary) + content + f"--{boundary}--\r\n".encode()
        assert [part.body for part in read_parts(boundary, document)] == [body]


def test_blanks_around_a_media_type_are_no_part_of_it():
    for text in ("text/plain ", "\ttext/plain\t", " text/plain"):
        assert parse_media_type(text) == "text/plain"
    assert parse_media_type('a/b; c="\\ " ') == 'a/b; c="\\ "'
