"""The driver: two engines joined in memory, and the same over sockets."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from proton import Session

from gateway.amqp.codec import Described, ULong
from gateway.amqp.driver import AmqpConnection, ConnectionSettings, EngineHandler
from gateway.amqp.endpoints import AmqpDelivery, AmqpLink, Condition, Outcome
from gateway.core.errors import DecodeError, InvalidSetting
from gateway.core.message import Symbol


class Wire(asyncio.Transport):
    """One end of a connection in memory: what is written comes to the peer a moment later."""

    def __init__(self, own: asyncio.Protocol, *, piece_bytes: int = 65_536) -> None:
        super().__init__()
        self.own = own
        self.peer: Wire | None = None
        self.piece_bytes = piece_bytes
        self.closed = False
        self.loop = asyncio.get_running_loop()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def write(self, data: Any) -> None:
        raw = bytes(data)
        for at in range(0, len(raw), self.piece_bytes):
            self.loop.call_soon(self._arrive, raw[at : at + self.piece_bytes])

    def _arrive(self, data: bytes) -> None:
        assert self.peer is not None
        if not self.peer.closed:
            self.peer.own.data_received(data)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.loop.call_soon(self.own.connection_lost, None)
            if self.peer is not None:
                self.loop.call_soon(self.peer.close)

    def abort(self) -> None:
        self.close()


def join(client: AmqpConnection, server: AmqpConnection, *, piece_bytes: int = 65_536) -> None:
    left = Wire(client, piece_bytes=piece_bytes)
    right = Wire(server, piece_bytes=piece_bytes)
    left.peer, right.peer = right, left
    server.connection_made(right)
    client.connection_made(left)


async def until(condition: Callable[[], object], *, within_s: float = 5.0) -> None:
    deadline = asyncio.get_running_loop().time() + within_s
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "it did not come about in time"
        await asyncio.sleep(0.001)


class Sink(EngineHandler):
    """A server that takes every link and keeps what it is sent."""

    def __init__(self, *, credit: int = 10) -> None:
        self.credit = credit
        self.messages: list[bytes] = []
        self.outcome: Outcome | None = Outcome.ACCEPTED
        self.condition: Condition | None = None
        self.links: list[AmqpLink] = []
        self.aborted = 0
        self.errors: list[str] = []
        self.ends: list[str] = []

    def on_session_opened(self, connection: AmqpConnection, session: Session) -> None:
        session.open()

    def on_link_opened(self, link: AmqpLink) -> None:
        self.links.append(link)
        link.set_target(link.remote_target_address or "")
        link.open()
        link.flow(self.credit)

    def on_delivery(self, link: AmqpLink, delivery: AmqpDelivery) -> None:
        if not delivery.readable or delivery.partial:
            return
        if delivery.aborted:
            self.aborted += 1
            delivery.settle()
        else:
            self.messages.append(delivery.take())
            delivery.settle(self.outcome, condition=self.condition)
        link.flow(1)

    def on_transport_error(self, connection: AmqpConnection, text: str) -> None:
        self.errors.append(text)

    def on_disconnected(self, connection: AmqpConnection, reason: str) -> None:
        self.ends.append(reason)


class Source(EngineHandler):
    """A client that sends what it is given as far as there is credit."""

    def __init__(self, messages: list[bytes], *, settled: bool = False) -> None:
        self.messages = messages
        self.settled = settled
        self.sent = 0
        self.outcomes: list[tuple[Outcome | None, Condition | None]] = []
        self.link: AmqpLink | None = None
        self.closed: list[Condition | None] = []
        self.links_closed: list[Condition | None] = []
        self.errors: list[str] = []
        self.ends: list[str] = []

    def on_connection_opened(self, connection: AmqpConnection) -> None:
        self.link = connection.sender(connection.session(), "source")
        self.link.set_source("here")
        self.link.set_target("there")
        self.link.open()

    def on_link_flow(self, link: AmqpLink) -> None:
        while self.sent < len(self.messages) and link.credit > 0:
            link.send(self.messages[self.sent], b"%d" % self.sent, settled=self.settled)
            self.sent += 1

    def on_delivery(self, link: AmqpLink, delivery: AmqpDelivery) -> None:
        self.outcomes.append((delivery.outcome, delivery.condition))
        delivery.settle()

    def on_link_closed(self, link: AmqpLink, condition: Condition | None) -> None:
        self.links_closed.append(condition)

    def on_connection_closed(self, connection: AmqpConnection, condition: Condition | None) -> None:
        self.closed.append(condition)

    def on_transport_error(self, connection: AmqpConnection, text: str) -> None:
        self.errors.append(text)

    def on_disconnected(self, connection: AmqpConnection, reason: str) -> None:
        self.ends.append(reason)


def pair(
    source: EngineHandler, sink: EngineHandler, **settings: Any
) -> tuple[AmqpConnection, AmqpConnection]:
    client = AmqpConnection(source, ConnectionSettings("client", **settings), server=False)
    server = AmqpConnection(sink, ConnectionSettings("server"), server=True)
    return client, server


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(scenario(), 20)

    asyncio.run(bounded())


@pytest.mark.parametrize("piece_bytes", [1, 7, 65_536])
def test_messages_arrive_whole_and_in_order_however_the_bytes_are_cut(piece_bytes: int) -> None:
    async def scenario() -> None:
        messages = [b"message %d" % number for number in range(50)]
        source, sink = Source(messages), Sink(credit=5)
        client, server = pair(source, sink)
        join(client, server, piece_bytes=piece_bytes)
        await until(lambda: len(source.outcomes) == 50)
        assert sink.messages == messages
        assert source.outcomes == [(Outcome.ACCEPTED, None)] * 50
        client.close()
        await until(lambda: source.ends and sink.ends)
        assert len(source.ends) == len(sink.ends) == 1
        assert source.errors == sink.errors == []

    run(scenario)


def test_a_message_of_eight_megabytes_goes_through_frames_of_four_kilobytes() -> None:
    async def scenario() -> None:
        message = bytes(range(256)) * (8 * 4096)
        source, sink = Source([message, b"small", message]), Sink()
        client, server = pair(source, sink, frame_bytes_max=4096)
        join(client, server)
        await until(lambda: len(source.outcomes) == 3, within_s=15)
        assert sink.messages == [message, b"small", message]
        client.abort()

    run(scenario)


def test_settled_messages_arrive_and_leave_nothing_behind() -> None:
    async def scenario() -> None:
        source, sink = Source([b"x"] * 1000, settled=True), Sink(credit=100)
        client, server = pair(source, sink)
        join(client, server)
        await until(lambda: len(sink.messages) == 1000)
        assert source.link is not None
        assert source.link.unsettled == 0
        assert sink.links[0].unsettled == 0
        client.abort()

    run(scenario)


def test_a_rejection_carries_its_condition_to_the_sender() -> None:
    async def scenario() -> None:
        source, sink = Source([b"x"]), Sink()
        sink.outcome = Outcome.REJECTED
        sink.condition = Condition("amqp:not-allowed", "not today")
        client, server = pair(source, sink)
        join(client, server)
        await until(lambda: source.outcomes)
        assert source.outcomes == [(Outcome.REJECTED, sink.condition)]
        client.abort()

    run(scenario)


def test_a_settled_delivery_may_be_settled_again_even_when_its_link_is_gone() -> None:
    async def scenario() -> None:
        held: list[AmqpDelivery] = []

        class Holding(Sink):
            def on_delivery(self, link: AmqpLink, delivery: AmqpDelivery) -> None:
                if delivery.readable and not delivery.partial:
                    delivery.take()
                    held.append(delivery)

        source, sink = Source([b"1", b"2"]), Holding()
        client, server = pair(source, sink)
        join(client, server)
        await until(lambda: len(held) == 2)
        held[0].settle(Outcome.ACCEPTED)
        held[0].settle(Outcome.REJECTED)
        server.flush()
        await until(lambda: source.outcomes)
        assert source.outcomes == [(Outcome.ACCEPTED, None)]
        client.abort()
        await until(lambda: sink.ends)
        assert not held[1].link.alive
        held[1].settle(Outcome.ACCEPTED)
        server.flush()

    run(scenario)


def test_attach_carries_filters_and_properties_as_the_values_of_the_core() -> None:
    async def scenario() -> None:
        descriptor = Symbol("amqp:event-streams-delivery-annotations-filter")
        wanted = {Symbol("start"): Described(descriptor, {Symbol("event-streams-offset"): "@earliest"})}
        seen: list[Any] = []
        answers: list[Any] = []

        class Asking(EngineHandler):
            def on_connection_opened(self, connection: AmqpConnection) -> None:
                assert connection.remote_capabilities == ["AMQP_EVENT_STREAMS_V1_0"]
                assert connection.remote_container == "server"
                link = connection.receiver(connection.session(), "in")
                link.set_source("events", filters=wanted)
                link.set_target("here")
                link.set_properties({Symbol("event-streams-epoch"): ULong(3)})
                link.open()

            def on_link_opened(self, link: AmqpLink) -> None:
                answers.append((link.remote_source_address, link.remote_filter, link.remote_properties))

        class Answering(EngineHandler):
            def on_session_opened(self, connection: AmqpConnection, session: Session) -> None:
                session.open()

            def on_link_opened(self, link: AmqpLink) -> None:
                seen.append((link.remote_source_address, link.remote_filter, link.remote_properties))
                link.set_source("events")
                link.set_properties({Symbol("event-streams-partition"): Symbol("0")})
                link.open()

        client = AmqpConnection(Asking(), ConnectionSettings("client"), server=False)
        settings = ConnectionSettings("server", offered_capabilities=("AMQP_EVENT_STREAMS_V1_0",), sasl=False)
        server = AmqpConnection(Answering(), settings, server=True)
        client = AmqpConnection(Asking(), ConnectionSettings("client", sasl=False), server=False)
        join(client, server)
        await until(lambda: answers)
        assert seen == [("events", wanted, {"event-streams-epoch": 3})]
        assert answers == [("events", None, {"event-streams-partition": "0"})]
        assert isinstance(answers[0][2]["event-streams-partition"], Symbol)
        client.abort()

    run(scenario)


def test_a_refused_link_closes_with_its_condition_and_the_connection_stays() -> None:
    async def scenario() -> None:
        class Refusing(Sink):
            def on_link_opened(self, link: AmqpLink) -> None:
                link.refuse(Condition("amqp:not-found", "no such log"))

        source, sink = Source([b"x"]), Refusing()
        client, server = pair(source, sink)
        join(client, server)
        await until(lambda: source.links_closed)
        assert source.links_closed == [Condition("amqp:not-found", "no such log")]
        assert client.links == []
        await until(lambda: not server.links)
        assert not client.closing
        client.abort()

    run(scenario)


def test_links_that_come_and_go_leave_nothing_on_either_end() -> None:
    async def scenario() -> None:
        opened, closed = [], []

        class Cycling(EngineHandler):
            session: Session = None

            def on_connection_opened(self, connection: AmqpConnection) -> None:
                self.session = connection.session()
                self.attach(connection)

            def attach(self, connection: AmqpConnection) -> None:
                link = connection.sender(self.session, f"link-{len(opened)}")
                link.set_target("there")
                link.open()

            def on_link_opened(self, link: AmqpLink) -> None:
                opened.append(link.name)
                link.close()

            def on_link_closed(self, link: AmqpLink, condition: Condition | None) -> None:
                closed.append(link.name)
                if len(closed) < 300:
                    self.attach(link.connection)

        client, server = pair(Cycling(), Sink())
        join(client, server)
        await until(lambda: len(closed) == 300)
        assert opened == closed
        await until(lambda: not server.links)
        assert client.links == []
        client.abort()

    run(scenario)


def test_the_end_of_a_session_ends_its_links() -> None:
    async def scenario() -> None:
        ended: list[str] = []

        class Watching(Sink):
            def on_link_closed(self, link: AmqpLink, condition: Condition | None) -> None:
                ended.append(link.name)

            def on_session_closed(
                self, connection: AmqpConnection, session: Session, condition: Condition | None
            ) -> None:
                ended.append("session")

        source, sink = Source([b"x"]), Watching()
        client, server = pair(source, sink)
        join(client, server)
        await until(lambda: source.outcomes)
        assert source.link is not None
        source.link.endpoint.session.close()
        client.flush()
        await until(lambda: len(ended) == 2)
        assert ended == ["source", "session"]
        assert server.links == []
        client.abort()

    run(scenario)


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"AMQP\x00\x01\x00\x00" + b"\x00\x00\x00\x10\x02\x00\x00\x00\x00\x53\x99\xc0\x01\x00\x00\x00",
        b"AMQP\x00\x01\x00\x00" + struct.pack(">I", 0xFFFFFFFF) + b"\x02\x00\x00\x00",
    ],
    ids=["http", "unknown performative", "frame of four gigabytes"],
)
def test_a_malformed_frame_ends_the_connection_with_a_text(garbage: bytes) -> None:
    async def scenario() -> None:
        sink = Sink()
        loop = asyncio.get_running_loop()
        settings = ConnectionSettings("server", close_wait_ms=200)
        server = await loop.create_server(lambda: AmqpConnection(sink, settings, server=True), "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(garbage)
        await reader.read()
        await until(lambda: sink.ends)
        assert len(sink.errors) == len(sink.ends) == 1
        assert sink.errors[0].startswith("amqp:")
        assert sink.ends == sink.errors
        writer.close()
        server.close()

    run(scenario)


def test_a_lost_connection_is_told_once_to_each_end() -> None:
    async def scenario() -> None:
        source, sink = Source([b"x"]), Sink()
        client, server = pair(source, sink)
        join(client, server)
        await until(lambda: source.outcomes)
        client.abort()
        client.abort()
        client.close()
        await until(lambda: source.ends and sink.ends)
        await asyncio.sleep(0.01)
        assert len(source.ends) == len(sink.ends) == 1
        assert client.closing
        assert not client.writable

    run(scenario)


def test_close_carries_a_condition_to_the_peer() -> None:
    async def scenario() -> None:
        source, sink = Source([b"x"]), Sink()
        client, server = pair(source, sink)
        join(client, server)
        await until(lambda: source.outcomes)
        server.close(Condition("amqp:connection:forced", "shutting down"))
        await until(lambda: source.ends and sink.ends)
        assert source.closed == [Condition("amqp:connection:forced", "shutting down")]
        assert source.ends == ["amqp:connection:forced: shutting down"]

    run(scenario)


def test_a_server_can_refuse_a_connection_when_it_opens() -> None:
    async def scenario() -> None:
        class Full(Sink):
            def on_connection_opened(self, connection: AmqpConnection) -> None:
                connection.close(Condition("amqp:resource-limit-exceeded", "full"))

        source, sink = Source([]), Full()
        client, server = pair(source, sink)
        join(client, server)
        await until(lambda: source.ends and sink.ends)
        assert source.closed == [Condition("amqp:resource-limit-exceeded", "full")]

    run(scenario)


@pytest.mark.parametrize(
    ("error", "name"),
    [(DecodeError("bad"), "amqp:decode-error"), (ValueError("bug"), "amqp:internal-error")],
)
def test_an_error_in_a_handler_closes_the_connection_with_a_condition(error: Exception, name: str) -> None:
    async def scenario() -> None:
        class Failing(Sink):
            def on_delivery(self, link: AmqpLink, delivery: AmqpDelivery) -> None:
                raise error

        source, sink = Source([b"x"]), Failing()
        client, server = pair(source, sink)
        join(client, server)
        await until(lambda: source.ends and sink.ends)
        assert source.closed[0] is not None
        assert source.closed[0].name == name

    run(scenario)


def test_a_silent_peer_is_noticed_by_the_idle_timeout() -> None:
    async def scenario() -> None:
        sink = Sink()
        loop = asyncio.get_running_loop()
        settings = ConnectionSettings("server", idle_timeout_ms=100, close_wait_ms=50)
        server = await loop.create_server(lambda: AmqpConnection(sink, settings, server=True), "127.0.0.1", 0)
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        # An open frame with container-id "a", then silence.
        writer.write(b"AMQP\0\1\0\0" + b"\0\0\0\x11\2\0\0\0\0\x53\x10\xc0\x04\x01\xa1\x01a")
        await until(lambda: sink.ends)
        assert "amqp:resource-limit-exceeded" in sink.ends[0]
        writer.close()
        server.close()

    run(scenario)


def test_heartbeats_keep_an_idle_connection() -> None:
    async def scenario() -> None:
        source, sink = Source([]), Sink()
        client = AmqpConnection(source, ConnectionSettings("client", idle_timeout_ms=80), server=False)
        server = AmqpConnection(sink, ConnectionSettings("server", idle_timeout_ms=80), server=True)
        join(client, server)
        await asyncio.sleep(0.4)
        assert source.ends == sink.ends == []
        client.abort()

    run(scenario)


def test_a_peer_that_never_opens_is_cut_off() -> None:
    async def scenario() -> None:
        sink = Sink()
        loop = asyncio.get_running_loop()
        settings = ConnectionSettings("server", open_wait_ms=50)
        server = await loop.create_server(lambda: AmqpConnection(sink, settings, server=True), "127.0.0.1", 0)
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        await until(lambda: sink.ends)
        assert "has not opened within 50 ms" in sink.ends[0]
        writer.close()
        server.close()

    run(scenario)


def test_nothing_is_taken_from_the_engine_while_the_peer_does_not_read() -> None:
    async def scenario() -> None:
        block = b"b" * 65_536
        loop = asyncio.get_running_loop()

        class Flooding(EngineHandler):
            """Sends for as long as it may, as a node does."""

            def __init__(self) -> None:
                self.link: AmqpLink | None = None
                self.sent = 0

            def on_session_opened(self, connection: AmqpConnection, session: Session) -> None:
                session.open()

            def on_link_opened(self, link: AmqpLink) -> None:
                link.set_source("flood")
                link.open()
                self.link = link

            def on_link_flow(self, link: AmqpLink) -> None:
                loop.call_soon(self.pump, link)

            def on_writable(self, connection: AmqpConnection) -> None:
                loop.call_soon(self.pump, self.link)

            def on_batch(self, connection: AmqpConnection) -> None:
                if self.link is not None:
                    loop.call_soon(self.pump, self.link)

            def pump(self, link: AmqpLink) -> None:
                before = self.sent
                while link.connection.writable and link.outgoing_bytes < 131_072 and link.credit > 0:
                    link.send(block, b"%d" % self.sent, settled=True)
                    self.sent += 1
                link.connection.flush()
                if self.sent > before:
                    loop.call_soon(self.pump, link)

        class Draining(EngineHandler):
            def __init__(self) -> None:
                self.received = 0

            def on_connection_opened(self, connection: AmqpConnection) -> None:
                link = connection.receiver(connection.session(), "flood")
                link.set_source("flood")
                link.open()
                link.flow(1000)

            def on_delivery(self, link: AmqpLink, delivery: AmqpDelivery) -> None:
                if delivery.readable and not delivery.partial:
                    self.received += len(delivery.take())
                    delivery.settle()

        flooding, draining = Flooding(), Draining()
        connections: list[AmqpConnection] = []

        def accept() -> AmqpConnection:
            connections.append(AmqpConnection(flooding, ConnectionSettings("server"), server=True))
            return connections[0]

        server = await loop.create_server(accept, "127.0.0.1", 0)
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)  # or the kernel takes it all
        raw.setblocking(False)
        await loop.sock_connect(raw, server.sockets[0].getsockname())
        transport, client = await loop.create_connection(
            lambda: AmqpConnection(draining, ConnectionSettings("client"), server=False), sock=raw
        )
        await until(lambda: draining.received > 0)
        transport.pause_reading()
        stuck = -1
        while stuck != flooding.sent:
            stuck = flooding.sent
            await asyncio.sleep(0.1)
        assert stuck < 300
        assert not connections[0].writable
        transport.resume_reading()
        await until(lambda: draining.received == 1000 * len(block), within_s=10)
        client.close()
        server.close()

    run(scenario)


def test_sasl_plain_is_offered_by_a_client_with_a_password_and_never_printed() -> None:
    async def scenario() -> None:
        settings = ConnectionSettings("client", user="guest", password="secret-word")
        assert "secret-word" not in repr(settings)
        received = bytearray()

        class Recording(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                self.transport = transport
                # SASL header, then sasl-mechanisms with PLAIN.
                frame = b"\2\1\0\0\0\x53\x40\xc0\x0a\x01\xe0\x07\x01\xb3\0\0\0\x05PLAIN"
                frame = b"\2\1\0\0\0\x53\x40\xc0\x08\x01\xa3\x05PLAIN"
                transport.write(  # type: ignore[attr-defined]
                    b"AMQP\3\1\0\0" + struct.pack(">I", len(frame) + 4) + frame
                )

            def data_received(self, data: bytes) -> None:
                received.extend(data)

        loop = asyncio.get_running_loop()
        server = await loop.create_server(Recording, "127.0.0.1", 0)
        source = Source([])
        _, client = await loop.create_connection(
            lambda: AmqpConnection(source, settings, server=False),
            *server.sockets[0].getsockname(),
        )
        await until(lambda: b"\0guest\0secret-word" in received)
        client.abort()
        await until(lambda: source.ends)
        server.close()

    run(scenario)


def test_tls_is_that_of_asyncio(tmp_path: Path) -> None:
    key, certificate = str(tmp_path / "key.pem"), str(tmp_path / "certificate.pem")
    subject = ["-subj", "/CN=example.org", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(
        [
            *["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"],
            *["-keyout", key, "-out", certificate, *subject],
        ],
        check=True,
        capture_output=True,
    )
    offered = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    offered.load_cert_chain(certificate, key)
    trusted = ssl.create_default_context(cafile=certificate)

    async def scenario() -> None:
        messages = [b"m" * 300_000, b"last"]
        source, sink = Source(messages), Sink()
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: AmqpConnection(sink, ConnectionSettings("server"), server=True),
            "127.0.0.1",
            0,
            ssl=offered,
        )
        _, client = await loop.create_connection(
            lambda: AmqpConnection(source, ConnectionSettings("client"), server=False),
            *server.sockets[0].getsockname(),
            ssl=trusted,
        )
        await until(lambda: len(source.outcomes) == 2)
        assert sink.messages == messages
        client.close()
        await until(lambda: source.ends and sink.ends)
        assert source.errors == sink.errors == []
        assert client.peer.startswith("127.0.0.1:")
        client.abort()
        server.close()

    run(scenario)


def test_settings_check_themselves() -> None:
    with pytest.raises(InvalidSetting, match="frame_bytes_max"):
        ConnectionSettings("a", frame_bytes_max=100)
    with pytest.raises(InvalidSetting, match="password"):
        ConnectionSettings("a", user="guest")
