"""Messages of every kind and size from a sender into a page; what fits nothing goes to the quarantine."""

from __future__ import annotations

import asyncio
import base64
import json
from uuid import UUID

import pytest

from gateway.amqp.client import Broker, parse_broker
from gateway.amqp.ingest import Ingest
from gateway.amqp.sections import decode_message, encode_message
from gateway.amqp.visibility import Visibility
from gateway.core.errors import MessageRefused
from gateway.core.identity import FeedName
from gateway.core.mapping import native_mapping
from gateway.core.message import BodyKind, Message, Properties, Symbol, Timestamp
from gateway.core.multipart import closing_delimiter, read_parts
from gateway.core.pages import FeedSettings
from gateway.storage.memory import MemoryFeed
from tests.acceptance.support import (
    WAIT_S,
    checked,
    entries,
    events_in,
    gateway_on,
    get,
    log_document,
    message,
    put,
    running,
    send,
    until,
    wes,
)
from tests.servers import gateway, log_node

LARGE = bytes(range(256)) * (8 * 1024 * 1024 // 256)
SMALL_FRAMES = 4_096


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with running(gateway(tmp_path_factory.mktemp("messages") / "data")) as server:
        yield server


def published(server, *messages: Message | bytes):
    """Send messages; the entries that they became."""
    before = events_in(server.http)
    outcomes = send(server.amqp, messages)
    assert outcomes == [None] * len(messages)
    until(lambda: events_in(server.http) == before + len(messages))
    return entries(server.http)[before:]


def bodied(kind: BodyKind, body, **properties) -> Message:
    given = {"subject": "PUT", "to": "/things/1"} | properties
    return Message(properties=Properties(**given), body_kind=kind, body=body)


JSON = "application/json"
OCTETS = "application/octet-stream"
TEXT = "text/plain; charset=utf-8"


@pytest.mark.parametrize(
    ("kind", "body", "content_type", "expected"),
    [
        (BodyKind.DATA, [b"one, ", b"", b"two, ", b"three"], OCTETS, b"one, two, three"),
        (BodyKind.DATA, [b""], None, b""),
        (BodyKind.NONE, None, None, b""),
        (BodyKind.VALUE, None, None, b""),
        (BodyKind.VALUE, "Grüße", TEXT, "Grüße".encode()),
        (BodyKind.VALUE, b"\x00\xff", OCTETS, b"\x00\xff"),
        (BodyKind.VALUE, 42, JSON, b"42"),
        (BodyKind.VALUE, {"a": 1, "b": [True, None, 1.5]}, JSON, b'{"a":1,"b":[true,null,1.5]}'),
        (BodyKind.VALUE, {Symbol("key"): Symbol("value")}, JSON, b'{"key":"value"}'),
        (BodyKind.VALUE, {"at": Timestamp(1_700_000_000_000)}, JSON, b'{"at":1700000000000}'),
        (BodyKind.VALUE, {"id": UUID(int=1)}, JSON, b'{"id":"00000000-0000-0000-0000-000000000001"}'),
        (BodyKind.VALUE, {"raw": b"\x00\xff"}, JSON, b'{"raw":"AP8="}'),
        (BodyKind.SEQUENCE, [[1, "two"], [{"three": 3}]], JSON, b'[1,"two",{"three":3}]'),
    ],
)
def test_a_body_of_any_kind_becomes_bytes(server, kind, body, content_type, expected):
    (entry,) = published(server, bodied(kind, body))
    assert entry.body == expected
    assert entry.value("Content-Type") == content_type
    assert entry.value("Content-Length") == str(len(expected))


def test_the_media_type_that_a_message_names_wins(server):
    body = {"name": "patched"}
    (entry,) = published(
        server, bodied(BodyKind.VALUE, body, content_type="application/merge-patch+json", subject="PATCH")
    )
    assert entry.value("Event-Type") == "http-equiv=PATCH"
    assert entry.value("Content-Type") == "application/merge-patch+json"
    assert json.loads(entry.body) == body


def test_a_delete_has_no_body_whatever_its_message_has(server):
    (entry,) = published(server, message(b"left out", subject="DELETE"))
    assert entry.value("Event-Type") == "http-equiv=DELETE"
    assert entry.value("Content-Type") is None
    assert entry.body == b""


@pytest.mark.parametrize("delimiter", [b"--%s", b"\r\n--%s\r\n", b"\r\n--%s--\r\n"])
def test_a_body_that_holds_the_page_s_own_delimiter_is_one_body(server, delimiter):
    published(server, message(b"open page"))
    content_type = get(server.http, "/feeds/events/0/latest").header("Content-Type")
    boundary = content_type.partition("boundary=")[2].encode()
    body = b"before " + delimiter % boundary + b" after"
    first, second = published(server, message(body), message(body))
    assert first.body == second.body == body
    checked(server.http)


UNMAPPABLE = [
    (Message(body_kind=BodyKind.DATA, body=[b"x"]), "no method"),
    (message(b"x", subject="GET"), "'GET' is not a method of an event"),
    (message(b"x", to=None), "no target"),
    (message(b"x", target="no path"), "is not a path"),
    (message(b"x", target="//example.org/1"), "starts with '//'"),
    (message(b"x", target="/a\r\nX: y"), "holds a control character"),
    (message(b"x", target="/a\x00"), "holds a control character"),
    (message(b"x", target="/../a"), "segment"),
    (message(b"x", content_type="text/plain\r\nX: y"), "is not a media type"),
    (message(b"x")._replace(application_properties={"Event-Type": "other=PUT"}), "is not of the family"),
    (message(b"x")._replace(application_properties={"about": 7}), "target is of type int"),
    (bodied(BodyKind.VALUE, {1: "one"}), "a key that is not a string"),
    (bodied(BodyKind.VALUE, float("nan")), "which JSON cannot write"),
]


@pytest.mark.slow
def test_what_fits_nothing_goes_to_the_quarantine_and_the_feed_goes_on(tmp_path):
    # The node checks framing only: a property of the wrong type is for the gateway to find.
    mistyped = encode_message(message(b"x")).replace(b"\xa1\x03PUT", b"\xa0\x03PUT")
    decodable = [item for item, _ in UNMAPPABLE]
    reasons = [reason for _, reason in UNMAPPABLE]
    with running(gateway(tmp_path / "data")) as server:
        assert send(server.amqp, [message(b"first")]) == [None]
        assert send(server.amqp, [*decodable, mistyped]) == [None] * (len(decodable) + 1)
        assert put(server.http, "/things/last", b"last").status == 201
        assert [entry.body for entry in entries(server.http)] == [b"first", b"last"]
        shown = log_document(server.http)["partitions"][0]
        assert shown["quarantined"] == len(decodable) + 1
        assert shown["events"] == 2
        assert shown["gaps"] == []
        assert server.log().count("message_quarantined") == len(decodable) + 1

        data = ("--data", server.data)
        listed = [json.loads(line) for line in wes("quarantine", "list", "--json", *data).stdout.splitlines()]
        assert [item["number"] for item in listed] == list(range(1, len(decodable) + 2))
        assert [item["offset"] for item in listed] == [f"{n:020d}" for n in range(1, len(decodable) + 2)]
        for item, reason in zip(listed, [*reasons, "property subject has the wrong type"], strict=True):
            assert reason in item["reason"], item
        plain = wes("quarantine", "list", *data).stdout.splitlines()
        assert len(plain) == len(listed)
        assert "no method" in plain[0]

        exported = [json.loads(line) for line in wes("quarantine", "export", *data).stdout.splitlines()]
        raw = [base64.b64decode(item["message_base64"]) for item in exported]
        for sent, kept in zip(decodable, raw, strict=False):
            kept = decode_message(kept)
            assert kept.delivery_annotations["event-streams-partition"] == "0"
            assert encode_message(kept._replace(delivery_annotations=None)) == encode_message(sent)
        assert raw[-1].endswith(mistyped)

        one = wes("quarantine", "show", "2", "--json", *data)
        assert one.returncode == 0
        assert base64.b64decode(json.loads(one.stdout)["message_base64"]) == raw[1]
        missing = wes("quarantine", "show", "99", *data)
        assert missing.returncode == 1
        assert "there is no message 99" in missing.stderr

        server.stop()
        server.start()
        assert log_document(server.http)["partitions"][0] == shown
        checked(server.http)


def test_a_message_of_broken_sections_is_rejected_by_the_node(server):
    broken = [b"", b"\x00", b"\x00\x53\x75\xb0\x7f\xff\xff\xffx", b"\x00\x53\x99\x45", b"plain text"]
    broken.append(b"\x00\x53\x75\xa0\x01x\x00\x53\x73\xc0\x01\x00")
    before = events_in(server.http)
    outcomes = send(server.amqp, broken)
    assert all(isinstance(outcome, MessageRefused) for outcome in outcomes), outcomes
    assert all("amqp:decode-error" in str(outcome) for outcome in outcomes), outcomes
    assert events_in(server.http) == before
    assert put(server.http, "/things/1", b"next").status == 201


@pytest.mark.slow
def test_bodies_of_8_mib_go_through_frames_of_4_kib_into_pages(tmp_path):
    """Producer to node, and publisher to node: the node says how large a frame may be."""
    node = log_node(tmp_path / "node")
    node.environment = {"WES_NODE_FRAME_BYTES_MAX": str(SMALL_FRAMES)}
    with running(node), running(gateway_on(node.amqp, tmp_path / "gateway")) as server:
        assert put(server.http, "/things/1", b"before").status == 201
        answer = put(server.http, "/things/2", LARGE, OCTETS)
        assert answer.status == 201, answer
        assert send(node.amqp, [message(LARGE[1:] + b"x", target="/things/3")]) == [None]
        assert put(server.http, "/things/4", b"after").status == 201
        assert [entry.body for entry in entries(server.http)] == [
            b"before",
            LARGE,
            LARGE[1:] + b"x",
            b"after",
        ]
        checked(server.http)


@pytest.mark.slow
def test_bodies_of_8_mib_are_read_from_frames_of_4_kib(tmp_path):
    """Node to gateway: the gateway says how large a frame may be; the window is half of a body."""
    with running(log_node(tmp_path / "node")) as node:
        sent = [b"before", LARGE, LARGE[1:], b"after"]
        assert send(node.amqp, [message(body) for body in sent]) == [None] * len(sent)
        read = asyncio.run(asyncio.wait_for(ingested(parse_broker(node.amqp), len(sent)), WAIT_S))
    assert read == sent


async def ingested(broker: Broker, count: int) -> list[bytes]:
    """The bodies of the first events of a log, by way of an ingest that takes small frames only."""
    broker = Broker(broker.host, broker.port, frame_bytes_max=SMALL_FRAMES)
    feed = MemoryFeed(FeedSettings(FeedName("localhost", "events", "0"), archive_bytes_max=1 << 30))
    changed = asyncio.Event()
    ingest = Ingest(broker, feed, native_mapping(), Visibility(), changed=changed.set)
    task = asyncio.create_task(ingest.run())
    while feed.head.next_ordinal < count:
        await changed.wait()
        changed.clear()
    ingest.stop()
    await task
    page = feed.head.page
    parts = read_parts(page.boundary, feed.head.data + closing_delimiter(page.boundary))
    return [part.body for part in parts]


def test_a_body_that_is_larger_than_the_log_takes_is_refused_and_the_next_is_not(tmp_path):
    node = log_node(tmp_path / "node")
    node.environment = {"WES_NODE_MESSAGE_BYTES_MAX": "100000"}
    with running(node), running(gateway_on(node.amqp, tmp_path / "gateway")) as server:
        answer = put(server.http, "/things/1", b"x" * 200_000)
        assert answer.status in (413, 422), answer
        assert "100000 bytes" in answer.detail
        until(lambda: put(server.http, "/things/2", b"next").status == 201)
        assert [entry.body for entry in entries(server.http)] == [b"next"]
