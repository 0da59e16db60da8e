"""A broker that misbehaves: each event is in the feed once, in order, or the feed says what is missing."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator

import pytest

from gateway.amqp.client import parse_broker
from gateway.amqp.ingest import Ingest
from gateway.amqp.visibility import Visibility
from gateway.core.identity import FeedName
from gateway.core.mapping import native_mapping
from gateway.core.multipart import closing_delimiter, read_parts
from gateway.core.pages import Batch, FeedSettings
from gateway.storage.memory import MemoryFeed
from tests.acceptance.broker import (
    Broker,
    Script,
    abort_a_message,
    close_after,
    detach_after,
    native,
    offset,
    send_again_later,
    send_garbage,
    send_in_this_order,
    send_unplaced,
    vanish_inside_a_message,
)
from tests.acceptance.support import (
    WAIT_S,
    checked,
    entries,
    events_in,
    gateway_on,
    get,
    log_document,
    put,
    running,
    until,
    until_ready,
    until_unready,
    wes,
)

pytestmark = pytest.mark.slow

BODIES = [b"number %d" % number for number in range(10)]
LARGE = b"x" * 300_000


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(frame_bytes_max=4_096) as broker:
        broker.add(*BODIES)
        yield broker


def bodies(base: str) -> list[bytes]:
    return [part.body for part in entries(base)]


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (close_after(4), "amqp:connection:forced: maintenance"),
        (detach_after(4), "amqp:link:detach-forced: moved elsewhere"),
        (vanish_inside_a_message(4), "the connection was closed"),
        (vanish_inside_a_message(0), "the connection was closed"),
        (send_garbage, "amqp:connection:framing-error"),
    ],
    ids=["closes", "detaches", "vanishes inside a message", "vanishes inside the first", "sends garbage"],
)
def test_the_gateway_goes_on_where_a_broker_broke_off(broker: Broker, tmp_path, script: Script, reason):
    broker.messages[4] = (4, native(4, LARGE))
    broker.add(*BODIES)
    broker.scripts = [script]
    with running(
        gateway_on(broker.url, tmp_path / "data", "--archive-events-max", "3"), ready=False
    ) as gateway:
        until(lambda: events_in(gateway.http) == len(broker.messages))
        assert bodies(gateway.http) == [*BODIES[:4], LARGE, *BODIES[5:], *BODIES]
        assert "ingest_interrupted" in gateway.log()
        assert reason in gateway.log()
        assert broker.starts[0] == "@earliest"
        # It asks for the last message that it has made durable, which is not always the last that was sent.
        assert len(broker.starts) == 2
        assert broker.starts[1] in ("@earliest", *(offset(number) for number in range(5)))
        until_ready(gateway.http)
        checked(gateway.http)


def test_a_message_that_the_broker_gives_up_on_leaves_nothing_behind(broker: Broker, tmp_path):
    broker.add(LARGE)
    broker.scripts = [abort_a_message(10)]
    with running(gateway_on(broker.url, tmp_path / "data")) as gateway:
        until(lambda: events_in(gateway.http) == len(broker.messages))
        assert bodies(gateway.http) == [*BODIES, LARGE]
        assert len(broker.starts) == 1


def test_what_comes_again_is_dropped(broker: Broker, tmp_path):
    broker.scripts = [send_in_this_order(0, 0, 1, 2, 1, 2, 3, 0, 4, 4, 5)]
    with running(gateway_on(broker.url, tmp_path / "data")) as gateway:
        until(lambda: events_in(gateway.http) >= len(BODIES))
        assert bodies(gateway.http) == BODIES
        # From the beginning again, though a later offset was asked for.
        broker.scripts = [send_in_this_order(*range(len(BODIES)))]
        broker.drop_connections()
        broker.add(b"last", first=len(BODIES))
        until(lambda: events_in(gateway.http) > len(BODIES))
        assert bodies(gateway.http) == [*BODIES, b"last"]
        assert broker.starts == ["@earliest", offset(len(BODIES) - 1)]
        assert log_document(gateway.http)["partitions"][0]["gaps"] == []
        checked(gateway.http)


def test_a_gap_is_shown_with_both_offsets_and_starts_a_new_generation(broker: Broker, tmp_path):
    with running(gateway_on(broker.url, tmp_path / "data")) as gateway:
        until(lambda: events_in(gateway.http) == len(BODIES))
        before = get(gateway.http, "/feeds/events/0/latest")
        generation = log_document(gateway.http)["partitions"][0]["generation"]
        broker.messages.clear()
        broker.add(*BODIES, first=25)
        broker.drop_connections()
        until(lambda: events_in(gateway.http) == 2 * len(BODIES))

        shown = log_document(gateway.http)["partitions"][0]
        assert shown["gaps"] == [{"ordinal": 10, "offset_before": offset(9), "offset_after": offset(25)}]
        assert shown["generation"] != generation
        archive = get(gateway.http, "/feeds/events/0/archive/0")
        assert archive.body == before.body
        identities = [part.value("Content-ID").split("@")[0] for part in entries(gateway.http)]
        assert identities == [
            *(f"<{ordinal}.{generation}" for ordinal in range(10)),
            *(f"<{ordinal}.{shown['generation']}" for ordinal in range(10, 20)),
        ]
        assert (
            f"gap log=events partition=0 offset_before={offset(9)} offset_after={offset(25)}" in gateway.log()
        )
        checked(gateway.http)

        # A restart neither forgets the gap nor finds it again.
        gateway.stop()
        gateway.start()
        assert log_document(gateway.http)["partitions"][0] == shown


def test_a_gap_in_front_of_a_message_for_the_quarantine_is_not_forgotten(broker: Broker, tmp_path):
    with running(gateway_on(broker.url, tmp_path / "data")) as gateway:
        until(lambda: events_in(gateway.http) == len(BODIES))
        broker.messages[:] = [(25, b"\x00\x53\x77\x40")]
        broker.drop_connections()
        until(lambda: log_document(gateway.http)["partitions"][0]["quarantined"] == 1)
        gateway.kill()
        broker.add(b"after the gap", first=26)
        gateway.start()
        until(lambda: events_in(gateway.http) == len(BODIES) + 1)
        gaps = log_document(gateway.http)["partitions"][0]["gaps"]
        assert gaps == [{"ordinal": 10, "offset_before": offset(9), "offset_after": offset(26)}]
        checked(gateway.http)


def test_a_broker_that_drops_the_filter_in_silence_is_not_read(broker: Broker, tmp_path):
    broker.echo_filter = False
    with running(gateway_on(broker.url, tmp_path / "data"), ready=False) as gateway:
        reasons = until_unready(gateway.http, "filter")
        assert "does not know the event-streams delivery-annotations filter" in reasons
        assert events_in(gateway.http) == 0
        answer = put(gateway.http, "/things/1", b"one")
        assert answer.status == 503
        assert "nothing was published" in answer.detail
        broker.echo_filter = True
        until_ready(gateway.http)
        until(lambda: events_in(gateway.http) == len(BODIES))


def test_a_put_whose_outcome_nobody_knows_is_not_sent_again(broker: Broker, tmp_path):
    published: list[object] = []

    def take_and_vanish(connection) -> bool:
        published.append(connection)
        connection.abort()
        return False

    broker.settle_published = take_and_vanish
    options = {"WES_HTTP_PUBLISH_WAIT_MAX_S": "1"}
    with running(gateway_on(broker.url, tmp_path / "data", **options)) as gateway:
        answer = put(gateway.http, "/things/1", b"one")
        assert answer.status == 504, answer
        assert answer.header("Retry-After") is None
        assert "look into the feed before you send it again" in answer.detail
        until_ready(gateway.http)
        assert len(published) == 1
        broker.settle_published = lambda _: True
        assert put(gateway.http, "/things/2", b"two").status == 201
        assert bodies(gateway.http) == [*BODIES, b"two"]


def test_a_put_that_the_log_kept_before_it_vanished_is_answered_once_it_is_visible(broker: Broker, tmp_path):
    def keep_and_vanish(connection) -> bool:
        # The settlement never leaves the engine.
        connection.abort()
        broker.settle_published = lambda _: True
        return True

    broker.settle_published = keep_and_vanish
    with running(gateway_on(broker.url, tmp_path / "data")) as gateway:
        answer = put(gateway.http, "/things/1", b"one")
        assert answer.status == 201, answer
        assert bodies(gateway.http) == [*BODIES, b"one"]


class SlowFeed(MemoryFeed):
    """A feed whose disk takes a while."""

    def append(self, batch: Batch) -> None:
        time.sleep(0.3)
        super().append(batch)


def test_what_comes_again_while_it_is_being_written_is_dropped(broker: Broker):
    broker.scripts = [send_again_later(0, 1, 2, wait_s=0.1)]
    feed = SlowFeed(FeedSettings(FeedName("localhost", "events", "0")))

    async def ingesting() -> None:
        changed = asyncio.Event()
        node = parse_broker(broker.url)
        ingest = Ingest(node, feed, native_mapping(), Visibility(), changed=changed.set)
        running = asyncio.create_task(ingest.run())
        while feed.head.next_ordinal < len(BODIES):
            await changed.wait()
            changed.clear()
        ingest.stop()
        await running

    asyncio.run(asyncio.wait_for(ingesting(), WAIT_S))
    page = feed.head.page
    parts = read_parts(page.boundary, feed.head.data + closing_delimiter(page.boundary))
    assert [part.body for part in parts] == BODIES


def test_a_message_without_an_offset_is_set_aside_and_the_feed_goes_on(broker: Broker, tmp_path):
    broker.scripts = [send_unplaced(after=4)]
    with running(gateway_on(broker.url, tmp_path / "data")) as gateway:
        until(lambda: events_in(gateway.http) == len(BODIES))
        assert bodies(gateway.http) == BODIES
        assert log_document(gateway.http)["partitions"][0]["quarantined"] == 1
        listed = json.loads(wes("quarantine", "list", "--json", "--data", gateway.data).stdout)
        assert listed["offset"] == offset(3)
        assert "has no event-streams-offset" in listed["reason"]
        # It was not taken for the message before it, so the feed goes on after that.
        broker.drop_connections()
        broker.add(b"last")
        until(lambda: events_in(gateway.http) == len(BODIES) + 1)
        checked(gateway.http)


def test_events_are_settled_only_when_they_are_durable(broker: Broker, tmp_path):
    with running(gateway_on(broker.url, tmp_path / "data")) as gateway:
        until(lambda: len(broker.settled) == len(BODIES))
        assert events_in(gateway.http) == len(BODIES)
        gateway.kill()
        gateway.start()
        assert bodies(gateway.http) == BODIES
