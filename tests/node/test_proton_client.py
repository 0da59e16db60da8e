"""The node against proton's own blocking client and container, each in a thread of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import proton
import pytest
from proton.handlers import MessagingHandler
from proton.reactor import Container, LinkOption
from proton.utils import BlockingConnection, LinkDetached, SendException

from gateway.node.schema import offset_of
from gateway.node.settings import LogSettings
from tests.node.support import run, running_node

FILTER = proton.symbol("amqp:event-streams-delivery-annotations-filter")


class Starting(LinkOption):
    """A link option that asks for a filter and a partition."""

    def __init__(self, value: dict[Any, Any], partition: str | None = None) -> None:
        self.value = value
        self.partition = partition

    def apply(self, link: proton.Link) -> None:
        if link.is_receiver:
            link.source.filter.put_dict({proton.symbol("f"): proton.Described(FILTER, self.value)})
        if self.partition is not None:
            link.properties = {proton.symbol("event-streams-partition"): proton.symbol(self.partition)}


EARLIEST = Starting({proton.symbol("event-streams-offset"): proton.symbol("@earliest")})


def against_a_node(tmp_path: Path, client: Callable[[str], None], *, partitions: int = 1) -> None:
    """Run `client` in a thread, with the URL of a node that runs in this one."""

    async def scenario() -> None:
        logs = [LogSettings("events", partitions)]
        async with running_node(tmp_path, logs=logs) as (_, port):
            await asyncio.to_thread(client, f"amqp://127.0.0.1:{port}")

    run(scenario)


def test_a_blocking_client_sends_and_receives(tmp_path: Path) -> None:
    def client(url: str) -> None:
        connection = BlockingConnection(url, timeout=5)
        sender = connection.create_sender("events")
        for number in range(20):
            delivery = sender.send(proton.Message(body=f"event {number}", subject="PUT"))
            assert delivery.remote_state == proton.Delivery.ACCEPTED
        receiver = connection.create_receiver("events", options=EARLIEST, credit=5)
        for number in range(20):
            message = receiver.receive(timeout=5)
            receiver.accept()
            assert message.body == f"event {number}"
            assert message.instructions["event-streams-offset"] == offset_of(number)
            assert isinstance(message.instructions["event-streams-timestamp"], proton.timestamp)
        connection.close()

    against_a_node(tmp_path, client)


def test_a_blocking_client_is_told_why_it_is_refused(tmp_path: Path) -> None:
    def client(url: str) -> None:
        connection = BlockingConnection(url, timeout=5)
        with pytest.raises(LinkDetached, match="there is no log nothing; the logs are events"):
            connection.create_receiver("nothing")
        with pytest.raises(LinkDetached, match="no partition 7; it has 0 to 1"):
            connection.create_sender("events", name="a", options=Starting({}, "7"))
        sender = connection.create_sender("events", name="b")
        wrong = {proton.symbol("event-streams-partition"): proton.symbol("7")}
        with pytest.raises(SendException):
            sender.send(proton.Message(body="x", instructions=wrong))
        connection.close()

    against_a_node(tmp_path, client, partitions=2)


def test_a_container_streams_both_ways_at_once(tmp_path: Path) -> None:
    class Echo(MessagingHandler):
        def __init__(self, url: str) -> None:
            super().__init__(prefetch=50)
            self.url = url
            self.sent = self.accepted = 0
            self.received: list[str] = []

        def on_start(self, event: proton.Event) -> None:
            connection = event.container.connect(self.url, reconnect=False)
            event.container.create_receiver(connection, "events", options=EARLIEST)
            event.container.create_sender(connection, "events")

        def on_sendable(self, event: proton.Event) -> None:
            while event.sender.credit and self.sent < 1000:
                event.sender.send(proton.Message(body=f"{self.sent}"))
                self.sent += 1

        def on_accepted(self, event: proton.Event) -> None:
            self.accepted += 1

        def on_message(self, event: proton.Event) -> None:
            self.received.append(event.message.body)
            if len(self.received) == 1000:
                event.connection.close()

    def client(url: str) -> None:
        handler = Echo(url)
        Container(handler).run()
        assert handler.received == [f"{number}" for number in range(1000)]

    against_a_node(tmp_path, client)
