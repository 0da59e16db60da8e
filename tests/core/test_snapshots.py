"""The form of snapshots: parts that can be read back, an index that cannot contradict itself."""

import json
from dataclasses import replace
from hashlib import sha256

import pytest

from gateway.core.errors import DecodeError
from gateway.core.snapshots import (
    BUCKETS_MAX,
    PART_BYTES,
    PART_ENTITIES,
    DeltaTable,
    FeedPoint,
    SnapshotIndex,
    SnapshotPart,
    bucket_of,
    buckets_for,
    held,
    part_boundary,
    read_index,
    read_part,
    render_part,
)
from gateway.core.state import UNKNOWN, Digest, Entity, Kind, etag_of


def entity(body, content_type="application/json", extra=()):
    return Entity(Kind.PRESENT, etag_of(content_type, body), content_type, body, extra)


ITEMS = [
    held("/a", entity(b'{"a":1}'), "/feeds/events/0/events/3", 1_435_000_000_123),
    held("/b", entity(b"", None), "/feeds/events/0/events/1", None),
    held("/c", entity(b"\r\n--x\r\n\r\n", "text/plain"), "/feeds/events/0/events/2", 0),
    held("/d", UNKNOWN, "/feeds/events/0/events/9", 1_000),
    held("/e", entity(b"\x00\xff", extra=(("Content-Encoding", "gzip"),)), "/feeds/events/0/events/4", 1_000),
]


def test_what_is_rendered_is_read():
    document = b"".join(render_part("b" * 40, ITEMS))
    assert list(read_part("b" * 40, document)) == ITEMS


def test_a_part_has_the_form_of_the_drafts_example():
    document = b"".join(render_part("bound", ITEMS[:1]))
    assert document == (
        b"--bound\r\n"
        b"Content-Disposition: inline\r\n"
        b"Content-Type: application/json\r\n"
        b"Content-Location: /a\r\n"
        b'ETag: "' + etag_of("application/json", b'{"a":1}')[1:-1].encode() + b'"\r\n'
        b"Last-Modified: Mon, 22 Jun 2015 19:06:40 GMT\r\n"
        b'Link: </feeds/events/0/events/3>; rel="via"\r\n'
        b"Content-Length: 7\r\n"
        b"\r\n"
        b'{"a":1}\r\n'
        b"--bound--\r\n"
    )


def test_the_drafts_own_example_is_read_though_its_first_delimiter_is_missing():
    document = (
        b"Content-Disposition: inline\r\n"
        b"Content-Type: application/vnd.acme.product+json\r\n"
        b"Content-Location: /products/16325906:001:99999\r\n"
        b'ETag: W/"12345678"\r\n'
        b"Content-Length: 2\r\n"
        b"\r\n"
        b"{}\r\n"
        b"--_--------1435019846753\r\n"
        b"Content-Location: /product/16326538:001:99999\r\n"
        b"\r\n"
        b"[]\r\n"
        b"--_--------1435019846753--\r\n"
    )
    first, second = read_part("_--------1435019846753", document)
    assert (first.target, first.entity.body, first.validator) == (
        "/products/16325906:001:99999",
        b"{}",
        'W/"12345678"',
    )
    assert first.entity.etag == etag_of("application/vnd.acme.product+json", b"{}")
    assert (second.target, second.entry, second.validator) == ("/product/16326538:001:99999", None, None)


@pytest.mark.parametrize("cut", [5, 10, 30, 100])
def test_a_part_that_is_cut_short_is_refused(cut):
    document = b"".join(render_part("bound", ITEMS))
    with pytest.raises(DecodeError):
        list(read_part("bound", document[:-cut]))


def test_an_entity_that_holds_the_delimiter_is_refused():
    with pytest.raises(ValueError, match="holds the delimiter"):
        list(render_part("bound", [held("/a", entity(b"--bound"), "/feeds/e/0/events/0", None)]))


def test_entities_out_of_order_are_refused():
    with pytest.raises(ValueError, match="comes behind"):
        list(render_part("bound", reversed(ITEMS)))


def test_the_boundary_depends_on_what_the_part_holds():
    digests = [Digest(1, 1), Digest(1, 2), Digest(2, 1)]
    seen = {part_boundary(log, partition, digest) for log in "ab" for partition in "01" for digest in digests}
    assert len(seen) == 12
    assert all(len(boundary) == 40 for boundary in seen)


def test_a_partition_is_cut_by_what_it_holds():
    assert buckets_for(0, 0) == 1
    assert buckets_for(PART_ENTITIES, PART_BYTES) == 1
    assert buckets_for(PART_ENTITIES + 1, 0) == 2
    assert buckets_for(5 * PART_ENTITIES, 0) == 8
    assert buckets_for(1, 3 * PART_BYTES) == 4
    assert buckets_for(10**12, 0) == BUCKETS_MAX


def test_twice_as_many_buckets_cut_each_in_two():
    for number in range(1000):
        target = f"/item/{number}"
        assert bucket_of(target, 1) == 0
        assert bucket_of(target, 8) // 2 == bucket_of(target, 4)
    assert {bucket_of(f"/item/{number}", 16) for number in range(1000)} == set(range(16))


DIGEST = Digest(3, 7)
INDEX = SnapshotIndex(
    id="2015-06-23T00:36:45.885Z",
    log="events",
    started=1_435_019_805_885,
    completed=1_435_019_872_400,
    feeds=(
        FeedPoint("0", 41, "/feeds/events/0/events/41", "<41.0@0.events.x>", "/feeds/events/0/archive/2"),
    ),
    parts=(
        SnapshotPart(
            "/snapshots/events/2015-06-23T00:36:45.885Z/0",
            "0",
            100,
            sha256(b"").hexdigest(),
            "b",
            3,
            DIGEST.hex(),
        ),
    ),
    entities=3,
    digest=DIGEST.hex(),
    delta={"events": DeltaTable("events/delta/events", 4)},
)


def test_an_index_is_read_as_it_was_written_and_has_the_drafts_fields():
    document = INDEX.to_json()
    assert read_index(document) == INDEX
    content = json.loads(document)
    assert content["uris"] == ["/snapshots/events/2015-06-23T00:36:45.885Z/0"]
    assert (content["started"], content["completed"]) == (1_435_019_805_885, 1_435_019_872_400)


def _with(**fields):
    return json.dumps(json.loads(INDEX.to_json()) | fields).encode()


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"[]",
        b"{}",
        b"\xff",
        _with(entities=4),
        _with(digest="0" * 64),
        _with(digest="x"),
        _with(uris=[]),
        _with(id="../../etc"),
        _with(id=None),
        _with(started=-1),
        _with(started=True),
        _with(feeds=[{"partition": "0"}]),
        _with(feeds=json.loads(INDEX.to_json())["feeds"] * 2),
        replace(INDEX, log="a/b").to_json(),
    ],
)
def test_an_index_that_is_none_is_refused(document):
    with pytest.raises(DecodeError):
        read_index(document)


@pytest.mark.parametrize(
    ("links", "entry"),
    [
        (['</e/1>; rel="via"'], "/e/1"),
        (["<http://other.example.org/e/1>;rel=via"], "http://other.example.org/e/1"),
        (['</a>; rel="about", </e/1>; rel="via"'], "/e/1"),
        (['</a>; rel="about"', '</e/1>; rel="via"', '</e/2>; rel="via"'], "/e/1"),
        (['</a>; rel="about"'], None),
    ],
)
def test_the_event_of_an_entity_is_found_however_its_link_is_written(links, entry):
    lines = "".join(f"link: {link}\r\n" for link in links)
    document = f"--b\r\ncontent-location: /t\r\n{lines}etag: W/1\r\nX-More: y\r\n\r\n1\r\n--b--\r\n"
    (found,) = read_part("b", document.encode())
    assert (found.target, found.entry, found.validator) == ("/t", entry, "W/1")
    assert found.entity.extra_headers == (("X-More", "y"),)
