"""The event log node over sockets: what goes in comes out, to whom, from where, and within limits."""

from __future__ import annotations

import asyncio
import resource
import socket
import struct
from pathlib import Path
from typing import Any

import cproton
import pytest

from gateway.amqp.codec import Described
from gateway.amqp.endpoints import Condition, Outcome
from gateway.amqp.sections import decode_message
from gateway.core.errors import InvalidSetting, StoreLocked
from gateway.core.message import Symbol, Timestamp
from gateway.node.errors import AddressInUse, PartitionsChanged
from gateway.node.schema import offset_of
from gateway.node.server import Node
from gateway.node.settings import LogSettings, NodeSettings
from tests.node.support import (
    EARLIEST,
    PARTITION,
    connect,
    event,
    run,
    running_node,
    starting,
    until,
)

ACCEPTED = (Outcome.ACCEPTED, None)
TWO = [LogSettings("events", 2)]
FOUR = [LogSettings("events", 4)]


def test_what_is_sent_is_received_with_the_annotations_of_the_log(tmp_path: Path) -> None:
    moments = iter(range(1000, 2000))

    async def scenario() -> None:
        async with running_node(tmp_path, clock=lambda: next(moments)) as (_, port):
            peer = await connect(port)
            assert peer.connection.remote_capabilities == ["AMQP_EVENT_STREAMS_V1_0"]
            sender = await peer.sender("events")
            sent = [
                event(b"one", header=[True, 7]),
                event(b"two", delivery_annotations={Symbol("x-opt-hop"): 1}),
                event(b"three", footer={Symbol("x-opt-sum"): 5}),
            ]
            for message in sent:
                assert await sender.send(message) == [ACCEPTED]
            receiver = await peer.receiver("events", filters=EARLIEST)
            received = await receiver.messages(3)
            for number, (message, original) in enumerate(zip(received, sent, strict=True)):
                assert message == decode_message(original)._replace(
                    delivery_annotations={
                        "event-streams-offset": offset_of(number),
                        "event-streams-timestamp": 1000 + number,
                        "event-streams-partition": "0",
                    }
                )
                annotations = message.delivery_annotations
                assert annotations is not None
                assert isinstance(annotations["event-streams-offset"], Symbol)
                assert isinstance(annotations["event-streams-timestamp"], Timestamp)
                assert isinstance(annotations["event-streams-partition"], Symbol)
            await peer.close()

    run(scenario)


def test_a_link_without_a_filter_gets_new_events_only_and_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_node(tmp_path) as (_, port):
            peer = await connect(port)
            sender = await peer.sender("events")
            await sender.send(event(b"old"))
            receiver = await peer.receiver("events")
            await sender.send(event(b"new 1"))
            assert await receiver.bodies(1) == [b"new 1"]
            await sender.send(event(b"new 2"))
            assert await receiver.bodies(2) == [b"new 1", b"new 2"]
            await peer.close()

    run(scenario)


@pytest.mark.parametrize(
    ("filters", "first"),
    [
        (starting(offset=Symbol("@earliest")), 0),
        (starting(offset=Symbol(offset_of(0))), 0),
        (starting(offset=Symbol(offset_of(7))), 7),
        (starting(timestamp=Timestamp(1000)), 0),
        (starting(timestamp=Timestamp(1033)), 4),
        (starting(timestamp=Timestamp(1030)), 3),
        (starting(offset=Symbol(offset_of(2)), timestamp=Timestamp(1050)), 5),
        (starting(offset=Symbol(offset_of(6)), timestamp=Timestamp(1050)), 6),
        (starting(offset=Symbol("@latest")), 10),
        (starting(timestamp=Timestamp(1120)), 12),
        (starting(offset=Symbol(offset_of(11))), 11),
        (starting(offset=Symbol("@latest"), timestamp=Timestamp(1110)), 11),
    ],
    ids=range(12),
)
def test_a_filter_gives_the_events_at_or_after_it(
    tmp_path: Path, filters: dict[Any, Any], first: int
) -> None:
    moments = iter(range(1000, 9000, 10))

    async def scenario() -> None:
        # So little is kept in memory that most is read from disk.
        settings = NodeSettings(tail_messages_max=4, read_messages_max=3)
        async with running_node(tmp_path, settings=settings, clock=lambda: next(moments)) as (_, port):
            peer = await connect(port)
            sender = await peer.sender("events")
            for number in range(10):
                await sender.send(event(b"%d" % number))
            receiver = await peer.receiver("events", filters=filters)
            assert receiver.link.remote_filter == filters
            await receiver.bodies(max(10 - first, 0))
            for number in range(10, 15):
                await sender.send(event(b"%d" % number))
            assert await receiver.bodies(15 - first) == [b"%d" % n for n in range(first, 15)]
            await peer.close()

    run(scenario)


def test_an_unknown_filter_is_not_echoed_and_a_malformed_one_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_node(tmp_path) as (_, port):
            peer = await connect(port)
            unknown = {Symbol("x"): Described(Symbol("example:filter"), "y")}
            receiver = await peer.receiver("events", filters={**EARLIEST, **unknown})
            assert receiver.link.remote_filter == EARLIEST
            receiver = await peer.receiver("events", filters=unknown)
            assert receiver.link.remote_filter is None
            refused = await peer.receiver("events", filters=starting(offset="7"))
            await until(lambda: refused.closed)
            assert refused.closed is not None
            assert refused.closed.name == "amqp:invalid-field"
            assert "neither one that this node has given out" in refused.closed.description
            await peer.close()

    run(scenario)


def test_receivers_are_spread_over_partitions_and_told_which(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_node(tmp_path, logs=FOUR) as (_, port):
            peer = await connect(port)
            assigned = []
            for _ in range(4):
                receiver = await peer.receiver("events")
                assigned.append(receiver.link.remote_properties[PARTITION])
            assert sorted(assigned) == ["0", "1", "2", "3"]
            asked = await peer.receiver("events", properties={PARTITION: Symbol("2")})
            assert asked.link.remote_properties == {"event-streams-partition": "2"}
            assert isinstance(asked.link.remote_properties[PARTITION], Symbol)
            await peer.close()
            # Those that are gone count no more.
            peer = await connect(port)
            receiver = await peer.receiver("events")
            assert receiver.link.remote_properties[PARTITION] == "0"
            await peer.close()

    run(scenario)


def test_events_go_to_the_partition_of_their_link_annotation_or_key(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_node(tmp_path, logs=TWO) as (_, port):
            peer = await connect(port)
            bound = await peer.sender("events", properties={PARTITION: Symbol("1")})
            free = await peer.sender("events")
            assert bound.link.remote_properties[PARTITION] == "1"
            assert free.link.remote_properties == {}

            def to(partition: str, body: bytes) -> bytes:
                return event(body, delivery_annotations={PARTITION: Symbol(partition)})

            assert await bound.send(event(b"by link"), to("1", b"both")) == [ACCEPTED] * 2
            [(outcome, condition)] = await bound.send(to("0", b"against the link"))
            assert outcome is Outcome.REJECTED
            assert condition is not None
            assert condition.name == "amqp:not-allowed"
            assert await free.send(to("1", b"by annotation"), to("0", b"zero")) == [ACCEPTED] * 2
            [(outcome, condition)] = await free.send(to("2", b"nowhere"))
            assert condition == Condition("amqp:not-found", "log events has no partition 2; it has 0 to 1")
            receiver = await peer.receiver("events", filters=EARLIEST, properties={PARTITION: Symbol("1")})
            assert await receiver.bodies(3) == [b"by link", b"both", b"by annotation"]
            other = await peer.receiver("events", filters=EARLIEST, properties={PARTITION: Symbol("0")})
            assert await other.bodies(1) == [b"zero"]
            await peer.close()

    run(scenario)


def test_what_cannot_be_attached_is_refused_with_a_reason(tmp_path: Path) -> None:
    async def scenario() -> None:
        logs = [LogSettings("events"), LogSettings("orders", 2)]
        async with running_node(tmp_path, logs=logs) as (_, port):
            peer = await connect(port)
            none = {PARTITION: Symbol("9")}
            cases = [
                (await peer.sender("nothing"), "amqp:not-found", "logs are events, orders"),
                (await peer.receiver("nothing"), "amqp:not-found", "logs are events, orders"),
                (await peer.receiver("x/$info"), "amqp:not-found", "no log x;"),
                (await peer.sender(None), "amqp:not-implemented", "no anonymous terminus"),
                (await peer.receiver(None), "amqp:not-implemented", "no anonymous terminus"),
                (await peer.sender("events/$info"), "amqp:not-allowed", "not be written"),
                (await peer.sender("orders", properties=none), "amqp:not-found", "0 to 1"),
                (await peer.receiver("events", properties=none), "amqp:not-found", "only 0"),
            ]
            for end, name, text in cases:
                await until(lambda end=end: end.closed)
                assert end.closed is not None
                assert end.closed.name == name
                assert text in end.closed.description
            sender = await peer.sender("events")
            assert await sender.send(event(b"the connection is none the worse")) == [ACCEPTED]
            await peer.close()

    run(scenario)


@pytest.mark.parametrize(
    "address",
    ["events", "/events", "amqp://127.0.0.1/events", "amqps://example.org:5671/events"],
)
def test_an_address_may_be_a_uri(tmp_path: Path, address: str) -> None:
    async def scenario() -> None:
        async with running_node(tmp_path) as (_, port):
            peer = await connect(port)
            sender = await peer.sender(address)
            assert await sender.send(event(b"x")) == [ACCEPTED]
            receiver = await peer.receiver(address, filters=EARLIEST)
            assert receiver.link.remote_source_address == address
            assert await receiver.bodies(1) == [b"x"]
            await peer.close()

    run(scenario)


def test_the_runtime_information_names_partitions_and_offsets(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_node(tmp_path, logs=TWO) as (_, port):
            peer = await connect(port)
            sender = await peer.sender("events", properties={PARTITION: Symbol("1")})
            await sender.send(event(b"a"), event(b"b"), event(b"c"))
            for settled in (False, True):
                receiver = await peer.receiver("events/$info", settled=settled)
                [message] = await receiver.messages(1)
                assert message.body == {
                    "partitions": [
                        {"partition": "0", "earliest-offset": None, "latest-offset": None},
                        {
                            "partition": "1",
                            "earliest-offset": offset_of(0),
                            "latest-offset": offset_of(2),
                        },
                    ]
                }
                assert isinstance(message.body["partitions"][1]["latest-offset"], Symbol)
                receiver.drain(10)
                await until(lambda receiver=receiver: receiver.link.credit == 0)
                assert len(receiver.raw) == 1
            await peer.close()

    run(scenario)


def test_no_more_is_sent_than_credit_allows_and_drain_gives_the_rest_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_node(tmp_path) as (_, port):
            peer = await connect(port)
            sender = await peer.sender("events")
            await sender.send(*(event(b"%d" % number) for number in range(20)))
            receiver = await peer.receiver("events", filters=EARLIEST, credit=0)
            await asyncio.sleep(0.05)
            assert receiver.raw == []
            receiver.flow(3)
            assert len(await receiver.messages(3)) == 3
            await asyncio.sleep(0.05)
            assert len(receiver.raw) == 3
            receiver.drain(50)
            await until(lambda: receiver.link.credit == 0)
            assert len(receiver.raw) == 20
            receiver.link.endpoint.drain_mode = False
            receiver.flow(2)
            await sender.send(event(b"20"))
            assert len(await receiver.messages(21)) == 21
            await peer.close()

    run(scenario)


def test_a_drain_at_the_end_of_the_log_is_answered_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_node(tmp_path) as (_, port):
            peer = await connect(port)
            receiver = await peer.receiver("events", filters=EARLIEST, credit=0)
            receiver.drain(7)
            await until(lambda: receiver.link.credit == 0)
            assert receiver.raw == []
            await peer.close()

    run(scenario)


def test_a_settled_link_is_fed_settled_and_leaves_nothing_behind(tmp_path: Path) -> None:
    async def scenario() -> None:
        settings = NodeSettings(unsettled_max=10)
        async with running_node(tmp_path, settings=settings) as (_, port):
            peer = await connect(port)
            sender = await peer.sender("events", settled=True)
            await sender.send(*(event(b"%d" % number) for number in range(200)))
            receiver = await peer.receiver("events", filters=EARLIEST, settled=True)
            assert await receiver.bodies(200) == [b"%d" % number for number in range(200)]
            assert sender.link.unsettled == receiver.link.unsettled == 0
            await peer.close()

    run(scenario)


@pytest.mark.parametrize("outcome", [Outcome.ACCEPTED, Outcome.RELEASED, Outcome.REJECTED, Outcome.MODIFIED])
def test_unsettled_deliveries_are_bounded_and_any_outcome_goes_on(tmp_path: Path, outcome: Outcome) -> None:
    async def scenario() -> None:
        settings = NodeSettings(unsettled_max=10)
        async with running_node(tmp_path, settings=settings) as (_, port):
            peer = await connect(port)
            sender = await peer.sender("events")
            await sender.send(*(event(b"%d" % number) for number in range(30)))
            receiver = await peer.receiver("events", filters=EARLIEST, outcome=None)
            await receiver.messages(10)
            await asyncio.sleep(0.05)
            assert len(receiver.raw) == 10
            while len(receiver.raw) < 30 or receiver.held:
                for delivery in receiver.held:
                    delivery.settle(outcome)
                receiver.held.clear()
                peer.connection.flush()
                await asyncio.sleep(0.005)
            assert await receiver.bodies(30) == [b"%d" % number for number in range(30)]
            await peer.close()

    run(scenario)


def test_a_receiver_that_stops_reading_is_not_buffered_for(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_node(tmp_path) as (node, port):
            peer, reader = await connect(port), await connect(port, receive_buffer=65_536)
            sender = await peer.sender("events")
            block = event(b"b" * 100_000)
            for _ in range(4):
                await sender.send(*([block] * 50))
            receiver = await reader.receiver("events", filters=EARLIEST, credit=5)
            await receiver.messages(1)
            reader.connection._socket.pause_reading()
            receiver.flow(1000)
            await asyncio.sleep(0.2)
            buffered = max(
                connection._socket.get_write_buffer_size()
                + sum(link.outgoing_bytes for link in connection.links)
                for connection in node._handler._connections
            )
            limits = NodeSettings()
            assert buffered < limits.socket_output_bytes_max + limits.link_output_bytes_max + 300_000
            # The others do not wait for it.
            assert await sender.send(event(b"meanwhile")) == [ACCEPTED]
            reader.connection._socket.resume_reading()
            assert len(await receiver.bodies(201)) == 201
            await reader.close()
            await peer.close()

    run(scenario)


def test_a_message_of_eight_megabytes_comes_and_goes_in_frames_of_four_kilobytes(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        body = bytes(range(256)) * (8 * 4096)
        async with running_node(tmp_path) as (_, port):
            peer = await connect(port, frame_bytes_max=4096)
            sender = await peer.sender("events")
            assert sender.link.endpoint.remote_max_message_size == 16 * 1024 * 1024
            assert await sender.send(event(body), event(b"small"), event(body)) == [ACCEPTED] * 3
            receiver = await peer.receiver("events", filters=EARLIEST)
            assert await receiver.bodies(3) == [body, b"small", body]
            await peer.close()

    run(scenario)


@pytest.mark.parametrize("size", [20_001, 500_000], ids=["one frame", "many frames"])
def test_a_message_above_the_limit_is_rejected_and_stops_no_other(tmp_path: Path, size: int) -> None:
    async def scenario() -> None:
        settings = NodeSettings(message_bytes_max=20_000, session_bytes_max=300_000)
        async with running_node(tmp_path, settings=settings) as (_, port):
            peer = await connect(port)
            sender, other = await peer.sender("events"), await peer.sender("events")
            small = [event(b"%d" % number) for number in range(100)]
            first, (outcome, condition), *rest = await sender.send(event(b"fits"), event(b"x" * size), *small)
            assert first == ACCEPTED
            assert outcome is Outcome.REJECTED
            assert condition == Condition(
                "amqp:link:message-size-exceeded", "a message is larger than the link's 20000 bytes"
            )
            assert rest == [ACCEPTED] * 100
            assert await other.send(event(b"other")) == [ACCEPTED]
            receiver = await peer.receiver("events", filters=EARLIEST)
            assert len(await receiver.bodies(102)) == 102
            await peer.close()

    run(scenario)


def test_a_message_without_end_is_not_kept(tmp_path: Path) -> None:
    async def scenario() -> None:
        settings = NodeSettings(message_bytes_max=20_000, session_bytes_max=300_000)
        async with running_node(tmp_path, settings=settings) as (node, port):
            peer = await connect(port)
            sender, other = await peer.sender("events"), await peer.sender("events")
            await until(lambda: sender.link.credit > 0)
            cproton.pn_delivery(sender.link.impl, b"endless")
            for _ in range(100):
                cproton.pn_link_send(sender.link.impl, b"x" * 65_536)
                peer.connection.flush()
                await asyncio.sleep(0)
            await until(lambda: sender.link.outgoing_bytes == 0)
            assert await other.send(event(b"other")) == [ACCEPTED]
            held = [link.incoming_bytes for c in node._handler._connections for link in c.links]
            assert max(held) < 100_000
            await peer.close()

    run(scenario)


def test_links_that_fill_their_session_with_unfinished_messages_do_not_hang_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        settings = NodeSettings(message_bytes_max=300_000, session_bytes_max=600_000)
        async with running_node(tmp_path, settings=settings) as (_, port):
            peer = await connect(port)
            first, second = await peer.sender("events"), await peer.sender("events")
            await until(lambda: first.link.credit > 0 and second.link.credit > 0)
            message = event(b"x" * 295_000)
            for end in (first, second):
                end.numbers[cproton.pn_delivery(end.link.impl, b"u")] = -1
                cproton.pn_link_send(end.link.impl, message[:290_000])
                peer.connection.flush()
            await until(lambda: second.link.outgoing_bytes == 0)
            for end in (first, second):
                cproton.pn_link_send(end.link.impl, message[290_000:])
                cproton.pn_link_advance(end.link.impl)
                peer.connection.flush()
            await until(lambda: first.outcomes and second.outcomes)
            assert first.outcomes[-1] == ACCEPTED
            outcome, condition = second.outcomes[-1]
            assert outcome is Outcome.REJECTED
            assert condition is not None
            assert condition.name == "amqp:resource-limit-exceeded"
            assert await second.send(event(b"after")) == [ACCEPTED]
            receiver = await peer.receiver("events", filters=EARLIEST)
            assert await receiver.bodies(2) == [b"x" * 295_000, b"after"]
            await peer.close()

    run(scenario)


def test_an_event_larger_than_a_receiver_takes_ends_that_link_with_its_offset(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_node(tmp_path) as (_, port):
            peer = await connect(port)
            sender = await peer.sender("events")
            await sender.send(event(b"small"), event(b"x" * 5000))
            original = peer.connection.receiver

            def limited(*arguments: Any) -> Any:
                link = original(*arguments)
                link.endpoint.max_message_size = 1000
                return link

            peer.connection.receiver = limited  # type: ignore[method-assign]
            receiver = await peer.receiver("events", filters=EARLIEST)
            await until(lambda: receiver.closed)
            assert receiver.closed is not None
            assert receiver.closed.name == "amqp:link:message-size-exceeded"
            assert offset_of(1) in receiver.closed.description
            assert len(receiver.raw) == 1
            await peer.close()

    run(scenario)


def test_aborted_transfers_leave_no_event(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_node(tmp_path) as (_, port):
            peer = await connect(port, frame_bytes_max=4096)
            sender = await peer.sender("events")
            await sender.send(event(b"first"))
            await until(lambda: sender.link.credit > 0)
            delivery = cproton.pn_delivery(sender.link.impl, b"aborted")
            cproton.pn_link_send(sender.link.impl, event(b"x" * 100_000)[:50_000])
            peer.connection.flush()
            await asyncio.sleep(0.02)
            cproton.pn_delivery_abort(delivery)
            peer.connection.flush()
            assert await sender.send(event(b"second")) == [ACCEPTED]
            receiver = await peer.receiver("events", filters=EARLIEST)
            assert await receiver.bodies(2) == [b"first", b"second"]
            await peer.close()

    run(scenario)


@pytest.mark.parametrize(
    "data",
    [b"", b"\0", b"junk", b"\0\x53\x75\xa0\xff", event(b"x")[:-1], event(b"x") + event(b"y")],
    ids=["empty", "nul", "junk", "short", "cut", "doubled"],
)
def test_a_malformed_message_is_rejected_and_the_next_one_taken(tmp_path: Path, data: bytes) -> None:
    async def scenario() -> None:
        async with running_node(tmp_path) as (_, port):
            peer = await connect(port)
            sender = await peer.sender("events")
            [(outcome, condition), good] = await sender.send(data, event(b"good"))
            assert outcome is Outcome.REJECTED
            assert condition is not None
            assert condition.name == "amqp:decode-error"
            assert good == ACCEPTED
            await peer.close()

    run(scenario)


def test_many_events_keep_their_order_through_windows_and_frames(tmp_path: Path) -> None:
    async def scenario() -> None:
        settings = NodeSettings(credit_window=10, read_messages_max=7, tail_messages_max=20)
        async with running_node(tmp_path, settings=settings) as (_, port):
            peer = await connect(port)
            sender = await peer.sender("events")
            following = await peer.receiver("events", filters=EARLIEST)
            bodies = [b"%d " % number + b"x" * (number % 900) for number in range(2000)]
            assert await sender.send(*map(event, bodies)) == [ACCEPTED] * 2000
            receiver = await peer.receiver("events", filters=EARLIEST)
            assert await receiver.bodies(2000) == bodies
            assert await following.bodies(2000) == bodies
            await peer.close()

    run(scenario)


def test_a_small_backlog_holds_senders_back_without_losing_an_event(tmp_path: Path) -> None:
    async def scenario() -> None:
        settings = NodeSettings(
            backlog_bytes_max=20_000, message_bytes_max=100_000, session_bytes_max=400_000
        )
        async with running_node(tmp_path, settings=settings) as (_, port):
            peer = await connect(port)
            ends = [await peer.sender("events") for _ in range(3)]
            block = event(b"x" * 9000)
            outcomes = await asyncio.gather(*(end.send(*([block] * 100)) for end in ends))
            assert outcomes == [[ACCEPTED] * 100] * 3
            await peer.close()

    run(scenario)


def test_a_full_disk_rejects_events_and_goes_on_feeding_receivers(tmp_path: Path) -> None:
    """The limit on the size of files stands for the disk: the kernel refuses the write."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    async def scenario() -> None:
        async with running_node(tmp_path) as (_, port):
            peer = await connect(port)
            sender = await peer.sender("events")
            await sender.send(event(b"before"))
            resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, hard))
            try:
                [(outcome, condition)] = await sender.send(event(b"x" * 4_000_000))
                assert outcome is Outcome.REJECTED
                assert condition is not None
                assert condition.name == "amqp:resource-limit-exceeded"
                receiver = await peer.receiver("events", filters=EARLIEST)
                assert await receiver.bodies(1) == [b"before"]
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            assert await sender.send(event(b"after")) == [ACCEPTED]
            assert await receiver.bodies(2) == [b"before", b"after"]
            await peer.close()

    run(scenario)


def test_connections_and_links_are_limited_with_a_reason(tmp_path: Path) -> None:
    async def scenario() -> None:
        settings = NodeSettings(connections_max=2, links_per_connection_max=2)
        async with running_node(tmp_path, settings=settings) as (_, port):
            first, second = await connect(port), await connect(port)
            third = await connect(port)
            await until(lambda: third.ended)
            assert third.condition == Condition(
                "amqp:resource-limit-exceeded", "the node has its 2 connections"
            )
            ends = [await first.sender("events") for _ in range(3)]
            await until(lambda: ends[2].closed)
            assert ends[2].closed == Condition("amqp:resource-limit-exceeded", "a connection has 2 links")
            await second.close()
            fourth = await connect(port)
            assert (await fourth.sender("events")).opened
            await fourth.close()
            await first.close()

    run(scenario)


def test_sockets_far_beyond_the_limit_are_closed_without_a_word(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_node(tmp_path, settings=NodeSettings(connections_max=2)) as (node, port):
            streams = [await asyncio.open_connection("127.0.0.1", port) for _ in range(12)]
            handler = node._handler
            await until(lambda: len(handler._connections) == 4)
            for reader, _ in streams[4:]:
                assert await reader.read() == b""
            for _, writer in streams:
                writer.close()
            await until(lambda: not handler._connections)
            peer = await connect(port)
            assert (await peer.sender("events")).opened
            await peer.close()

    run(scenario)


def test_a_client_without_sasl_is_served(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_node(tmp_path) as (_, port):
            peer = await connect(port, sasl=False)
            sender = await peer.sender("events")
            assert await sender.send(event(b"x")) == [ACCEPTED]
            await peer.close()

    run(scenario)


def test_stopping_keeps_what_was_accepted_and_tells_the_peers(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_node(tmp_path) as (node, port):
            peer = await connect(port)
            sender = await peer.sender("events")
            receiver = await peer.receiver("events")
            bodies = [b"%d" % number for number in range(3000)]
            sending = asyncio.ensure_future(sender.send(*map(event, bodies)))
            await until(lambda: len(sender.outcomes) > 300)
            await node.stop()
            await sending
            assert peer.condition is not None
            assert peer.condition.name == "amqp:connection:forced"
            assert receiver.closed == sender.closed == peer.condition
            accepted = [
                bodies[number]
                for number, (outcome, _) in sender.outcomes.items()
                if outcome is Outcome.ACCEPTED
            ]
            assert {outcome for outcome, _ in sender.outcomes.values()} <= {
                Outcome.ACCEPTED,
                Outcome.RELEASED,
            }
        async with running_node(tmp_path) as (_, port):
            peer = await connect(port)
            reader = await peer.receiver("events", filters=EARLIEST)
            assert await reader.bodies(len(accepted)) == sorted(accepted, key=int)
            await peer.close()

    run(scenario)


def test_several_logs_are_kept_apart(tmp_path: Path) -> None:
    async def scenario() -> None:
        logs = [LogSettings("events"), LogSettings("orders", 2)]
        async with running_node(tmp_path, logs=logs) as (_, port):
            peer = await connect(port)
            events, orders = await peer.sender("events"), await peer.sender("orders")
            await events.send(event(b"event"))
            await orders.send(event(b"order", delivery_annotations={PARTITION: Symbol("1")}))
            receiver = await peer.receiver("events", filters=EARLIEST)
            assert await receiver.bodies(1) == [b"event"]
            one = {PARTITION: Symbol("1")}
            receiver = await peer.receiver("orders", filters=EARLIEST, properties=one)
            assert await receiver.bodies(1) == [b"order"]
            await peer.close()
        assert sorted(path.name for path in (tmp_path / "log").glob("*.sqlite")) == [
            "events.sqlite",
            "orders.sqlite",
        ]

    run(scenario)


def test_a_node_that_cannot_start_says_why_and_leaves_nothing_open(tmp_path: Path) -> None:
    async def scenario() -> None:
        brief = NodeSettings(lock_wait_ms=0)
        async with running_node(tmp_path, logs=TWO) as (_, port):
            with pytest.raises(StoreLocked, match=r"another process writes to .*, process"):
                await Node(brief, TWO, tmp_path).start("127.0.0.1", 0)
            with pytest.raises(AddressInUse, match=f"cannot listen on 127.0.0.1:{port}"):
                await Node(brief, TWO, tmp_path / "other").start("127.0.0.1", port)
            async with running_node(tmp_path / "other", logs=TWO):
                pass
        with pytest.raises(PartitionsChanged, match="2 partitions"):
            await Node(brief, FOUR, tmp_path).start("127.0.0.1", 0)
        async with running_node(tmp_path, logs=TWO):
            pass

    run(scenario)


def test_a_node_needs_logs_of_different_names(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match="at least one log"):
        Node(NodeSettings(), [], tmp_path)
    with pytest.raises(InvalidSetting, match="same name"):
        Node(NodeSettings(), [LogSettings("a"), LogSettings("a", 2)], tmp_path)
    with pytest.raises(InvalidSetting, match="connections_max"):
        NodeSettings(connections_max=0)
    with pytest.raises(InvalidSetting, match="session_bytes_max"):
        NodeSettings(session_bytes_max=1000)


def test_garbage_on_the_socket_harms_nobody_else(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_node(tmp_path) as (_, port):
            peer = await connect(port)
            sender = await peer.sender("events")
            header = b"AMQP\0\1\0\0"
            for garbage in (
                b"GET / HTTP/1.1\r\n\r\n",
                b"\0" * 5000,
                header + struct.pack(">I", 2**31) + b"\2\0\0\0" + b"x" * 100,
                header + b"\0\0\0\x0b\2\0\0\0\0\x53\x10",
            ):
                with socket.create_connection(("127.0.0.1", port)) as raw:
                    raw.sendall(garbage)
                    await asyncio.sleep(0.02)
                assert await sender.send(event(b"x")) == [ACCEPTED]
            await peer.close()

    run(scenario)


def test_a_lost_receiver_leaves_nothing_behind(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_node(tmp_path) as (node, port):
            for _ in range(5):
                peer = await connect(port)
                await peer.receiver("events", filters=EARLIEST)
                await peer.sender("events")
                peer.connection.abort()
            log = node._logs["events"]
            handler = node._handler
            await until(lambda: not handler._connections)
            assert not log.feeds
            assert not log.intakes
            assert not log.store.partitions[0].followers
            assert not handler._links

    run(scenario)
