"""The event log goes away, is killed, is replaced, or is sent nonsense: nothing half done, and all said."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from gateway.amqp.sections import encode_message
from gateway.amqp.sender import LogSender
from tests.acceptance.load import AmqpWriter, HttpWriter, Told
from tests.acceptance.support import (
    call,
    checked,
    embedded_node,
    entries,
    events_in,
    gateway_on,
    get,
    lasting_node,
    message,
    put,
    readiness,
    running,
    send,
    until,
    until_ready,
    until_unready,
)
from tests.servers import Server, gateway, log_node

pytestmark = pytest.mark.slow


@pytest.fixture
def pair(tmp_path):
    """A node that can be stopped and started again, and a gateway on it."""
    node = lasting_node(tmp_path / "node")
    options = {"WES_HTTP_PUBLISH_WAIT_MAX_S": "2"}
    with running(node, gateway_on(node.amqp or url(node), tmp_path / "gateway", **options)) as both:
        yield both


def url(node: Server) -> str:
    """Where a node that has not started yet will listen."""
    return f"amqp://{node.arguments[node.arguments.index('--amqp-listen') + 1]}"


def bodies(base: str) -> list[bytes]:
    return [part.body for part in entries(base)]


def unread_bytes(port: int) -> int:
    """What the process behind a port has been sent and has not read, in bytes."""
    waiting = 0
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if int(fields[1].split(":")[1], 16) == port:
            waiting += int(fields[4].split(":")[1], 16)
    return waiting


def test_while_the_log_is_away_a_put_is_refused_and_leaves_nothing_behind(pair):
    node, gateway = pair
    assert put(gateway.http, "/things/1", b"before").status == 201
    node.stop()
    until_unready(gateway.http, "log events")
    for method in ("PUT", "POST", "PATCH", "DELETE"):
        answer = call(gateway.http, method, "/things/1", b"" if method == "DELETE" else b"away")
        assert answer.status == 503
        assert int(answer.header("Retry-After")) >= 1
        assert "nothing was published: log events" in answer.detail
    assert bodies(gateway.http) == [b"before"]
    node.start()
    until_ready(gateway.http)
    assert put(gateway.http, "/things/1", b"after").status == 201
    assert bodies(gateway.http) == [b"before", b"after"]


@pytest.mark.parametrize("prefer", [None, "respond-async"])
def test_a_put_that_waits_while_the_node_is_killed_is_not_answered_as_done_nor_sent_again(pair, prefer):
    node, gateway = pair
    answers: list[object] = []
    headers = {"Content-Type": "text/plain"} | ({} if prefer is None else {"Prefer": prefer})
    port = int(node.amqp.rpartition(":")[2])
    os.kill(node.pid, signal.SIGSTOP)
    try:
        writer = threading.Thread(
            target=lambda: answers.append(call(gateway.http, "PUT", "/things/1", b"waits", headers))
        )
        writer.start()
        until(lambda: unread_bytes(port) > 0)
        assert not answers
    finally:
        node.kill()
    node.start()
    writer.join(30)
    (answer,) = answers
    assert answer.status == 504, answer
    assert answer.header("Retry-After") is None
    assert answer.detail
    until_ready(gateway.http)
    assert put(gateway.http, "/things/2", b"after").status == 201
    assert bodies(gateway.http) == [b"after"]


@pytest.mark.parametrize("prefer", [None, "respond-async"])
def test_a_put_to_a_log_that_does_not_answer_is_answered_in_time(pair, prefer):
    node, gateway = pair
    headers = {"Content-Type": "text/plain"} | ({} if prefer is None else {"Prefer": prefer})
    os.kill(node.pid, signal.SIGSTOP)
    try:
        started = time.monotonic()
        answer = call(gateway.http, "PUT", "/things/1", b"waits", headers)
        assert answer.status == 504, answer
        assert answer.header("Retry-After") is None
        assert "did not say" in answer.detail
        assert time.monotonic() - started < 4
    finally:
        os.kill(node.pid, signal.SIGCONT)
    # The node had been sent it, and keeps it now: the answer said that nobody knew.
    until(lambda: bodies(gateway.http) == [b"waits"])


@pytest.mark.parametrize("others", [[], [b"other"], [b"other 1", b"other 2", b"other 3", b"other 4"]])
def test_another_log_at_the_same_address_is_refused_and_readers_are_served(pair, tmp_path, others):
    node, gateway = pair
    for number in range(3):
        assert put(gateway.http, f"/things/{number}", b"%d" % number).status == 201
    before = get(gateway.http, "/feeds/events/0/latest")
    node.stop()
    other = log_node(tmp_path / "other", "--amqp-listen", url(node).removeprefix("amqp://"))
    with running(other):
        send(other.amqp, [message(body) for body in others])
        wanted = "ends at offset" if len(others) < 3 else "holds another message at offset"
        reasons = until_unready(gateway.http, wanted)
        assert "another --data folder" in reasons
        until(lambda: put(gateway.http, "/things/1", b"refused").detail.endswith("fills from this one"))
        after = get(gateway.http, "/feeds/events/0/latest")
        assert (after.undated, after.body) == (before.undated, before.body)
        assert events_in(gateway.http) == 3
    node.start()
    until_ready(gateway.http)
    assert put(gateway.http, "/things/1", b"again").status == 201
    assert bodies(gateway.http) == [b"0", b"1", b"2", b"again"]


HEADER = b"AMQP\x00\x01\x00\x00"
NONSENSE = {
    "not AMQP": b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n",
    "AMQP 0-9-1": b"AMQP\x00\x00\x09\x01",
    "a frame shorter than its header": HEADER + b"\x00\x00\x00\x03\x02\x00\x00\x00",
    "a frame whose data begins behind its end": HEADER + b"\x00\x00\x00\x08\x7f\x00\x00\x00",
    "a frame larger than allowed": HEADER + b"\x7f\xff\xff\xff\x02\x00\x00\x00" + b"x" * 1000,
    "an unknown performative": HEADER + b"\x00\x00\x00\x0c\x02\x00\x00\x00\x00\x53\xff\x45",
    "a transfer without a link": HEADER + b"\x00\x00\x00\x0c\x02\x00\x00\x00\x00\x53\x14\x45",
    "a frame cut in two": HEADER + b"\x00\x00\x01\x00\x02\x00\x00\x00\x00\x53\x10",
    "noise": bytes(range(256)) * 4,
}


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    with running(log_node(tmp_path_factory.mktemp("node") / "data")) as node:
        yield node


@pytest.mark.parametrize("nonsense", NONSENSE.values(), ids=NONSENSE.keys())
def test_nonsense_ends_its_own_connection_and_no_other(node: Server, nonsense: bytes):
    host, _, port = node.amqp.removeprefix("amqp://").partition(":")

    def speak() -> None:
        with socket.create_connection((host, int(port)), timeout=10) as client, suppress(ConnectionError):
            client.sendall(nonsense)
            client.shutdown(socket.SHUT_WR)
            while client.recv(4_096):
                pass

    async def others() -> None:
        sender = LogSender(node.amqp, "events")
        await sender.connect()
        await (await sender.send(encode_message(message(b"before"))))
        await asyncio.to_thread(speak)
        await (await sender.send(encode_message(message(b"after"))))
        assert sender.connected
        await sender.close()

    asyncio.run(asyncio.wait_for(others(), 20))
    assert "handler_failed" not in node.log(), node.log()


def test_an_embedded_node_that_is_killed_again_and_again_is_back_at_once_each_time(tmp_path):
    with running(gateway(tmp_path / "data")) as server:
        slowest = 0.0
        for number in range(7):
            assert put(server.http, f"/things/{number}", b"%d" % number).status == 201
            # It has run for a while, so it is not one that fails at its start.
            time.sleep(1.1)
            killed = embedded_node(server)
            started = time.monotonic()
            os.kill(killed, signal.SIGKILL)
            until(lambda killed=killed: embedded_node(server) not in (None, killed))
            slowest = max(slowest, time.monotonic() - started)
            until_ready(server.http)
        assert slowest < 2, slowest
        assert bodies(server.http) == [b"%d" % number for number in range(7)]


@pytest.mark.parametrize("embedded", [True, False], ids=["embedded", "separate"])
def test_sigterm_drains_under_load_and_loses_nothing(tmp_path, embedded):
    if embedded:
        servers = [gateway(tmp_path / "gateway", "--partitions", "2")]
    else:
        node = lasting_node(tmp_path / "node", "--partitions", "2")
        servers = [node, gateway_on(url(node), tmp_path / "gateway")]
    serving = servers[-1]
    with running(*servers):
        base = serving.http
        amqp = servers[0].amqp
        http_writers = [HttpWriter(f"http-{number}", lambda: base) for number in range(4)]
        writers = [*http_writers, AmqpWriter("amqp", lambda: amqp)]
        for writer in writers:
            writer.start()
        until(lambda: all(writer.count(Told.KEPT) > 50 for writer in writers))
        started = time.monotonic()
        assert serving.stop() == 0
        took_s = time.monotonic() - started
        for writer in writers:
            writer.stop()
        for writer in writers:
            writer.join()
            assert writer.surprise is None, writer.surprise
        assert took_s < 10
        assert "Traceback" not in serving.log(), serving.log()
        assert readiness_is_gone(base)
        serving.start()
        kept = sum(writer.count(Told.KEPT) for writer in writers)
        until(lambda: events_in(serving.http) >= kept)
        found = {writer.target: [] for writer in writers}
        for partition in ("0", "1"):
            for part in entries(serving.http, partition):
                found[part.about].append(int(part.body.split()[0]))
        for writer in writers:
            numbers = found[writer.target]
            assert numbers == sorted(set(numbers))
            assert {n for n, told in writer.told.items() if told is Told.KEPT} <= set(numbers)
        # A request that was under way was answered; only those that came later were refused.
        assert all(writer.count(Told.UNKNOWN) <= 1 for writer in http_writers)
        checked(serving.http)


def readiness_is_gone(base: str) -> bool:
    try:
        readiness(base)
    except OSError:
        return True
    return False
