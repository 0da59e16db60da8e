"""Clients that are slow, silent or too much: cut or refused within the limits, and nobody else notices."""

from __future__ import annotations

import socket
import time
from contextlib import closing

import pytest

from tests.acceptance.support import Response, call, get, put, running, until
from tests.servers import gateway

STALL_S, HEADERS_S, BODY_S = 1, 1, 1
BODY_BYTES_MAX = 9_000_000
SWEEP_S = 1
LIMITS = {
    "WES_HTTP_STALL_TIME_MAX_S": str(STALL_S),
    "WES_HTTP_HEADERS_TIME_MAX_S": str(HEADERS_S),
    "WES_HTTP_BODY_TIME_MAX_S": str(BODY_S),
    "WES_HTTP_BODY_BYTES_MAX": str(BODY_BYTES_MAX),
}
LARGE = b"x" * 8_000_000


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with running(gateway(tmp_path_factory.mktemp("clients") / "data", **LIMITS)) as server:
        assert put(server.http, "/things/large", LARGE).status == 201
        assert put(server.http, "/things/small", b"small").status == 201
        yield server


def connect(base: str) -> socket.socket:
    host, _, port = base.removeprefix("http://").partition(":")
    client = socket.socket()
    # Little room at this end, so that the server soon has to wait.
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    client.settimeout(20)
    client.connect((host, int(port)))
    return client


def answer_to(base: str, *pieces: bytes) -> Response:
    """The answer to raw bytes, as far as its Content-Length goes."""
    with closing(connect(base)) as client:
        for piece in pieces:
            client.sendall(piece)
        data = b""
        while b"\r\n\r\n" not in data:
            chunk = receive(client)
            assert chunk, data
            data += chunk
        head, _, body = data.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        answer = Response(int(first.split()[1]), [tuple(line.split(": ", 1)) for line in lines], body)
        while len(body) < int(answer.header("Content-Length")):
            body += receive(client)
        return answer._replace(body=body)


def receive(client: socket.socket) -> bytes:
    try:
        return client.recv(65_536)
    except ConnectionError:
        return b""


def is_cut(client: socket.socket) -> bool:
    """Whether the other end has ended the connection, without reading from it."""
    try:
        client.send(b"x")
    except (BrokenPipeError, ConnectionError):
        return True
    return False


def test_a_client_that_stops_reading_is_cut_and_disturbs_nobody(server):
    request = b"GET /feeds/events/0/archive/0 HTTP/1.1\r\nHost: example.org\r\n\r\n"
    stalled = [connect(server.http) for _ in range(5)]
    try:
        started = time.monotonic()
        for client in stalled:
            client.sendall(request)
        slowest, answers = 0.0, 0
        while not all(is_cut(client) for client in stalled):
            before = time.monotonic()
            assert get(server.http, "/feeds/events/0/latest").status == 200
            slowest = max(slowest, time.monotonic() - before)
            answers += 1
            assert before - started < STALL_S + 2 * SWEEP_S + 3
            time.sleep(0.02)
        took_s = time.monotonic() - started
        assert took_s >= STALL_S * 0.9
        assert slowest < 0.5, slowest
        assert answers > 10
    finally:
        for client in stalled:
            client.close()
    assert len(get(server.http, "/feeds/events/0/archive/0").body) > len(LARGE)


@pytest.mark.slow
def test_a_client_that_reads_slowly_gets_all_of_it(server):
    expected = get(server.http, "/feeds/events/0/archive/0").body
    with closing(connect(server.http)) as client:
        client.sendall(b"GET /feeds/events/0/archive/0 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        data = b""
        pause_until = time.monotonic() + 3 * STALL_S
        while chunk := client.recv(65_536):
            data += chunk
            if time.monotonic() < pause_until:
                time.sleep(0.05)
    assert data.endswith(expected[-1_000:])
    assert data.partition(b"\r\n\r\n")[2] == expected


def test_a_connection_on_which_nothing_comes_is_cut(server):
    with closing(connect(server.http)) as client:
        started = time.monotonic()
        assert receive(client) == b""
        assert HEADERS_S * 0.9 <= time.monotonic() - started < HEADERS_S + 2 * SWEEP_S + 3


@pytest.mark.parametrize("start", [b"GET /", b"GET / HTTP/1.1\r\nHost: example.org\r\nX-Slow: "])
def test_slow_headers_are_cut(server, start):
    with closing(connect(server.http)) as client:
        client.sendall(start)
        started = time.monotonic()
        until(lambda: is_cut(client), within_s=HEADERS_S + 2 * SWEEP_S + 3, every_s=0.1)
        assert time.monotonic() - started >= HEADERS_S * 0.9
    assert get(server.http, "/livez").status == 200


def test_slow_headers_of_a_second_request_are_cut(server):
    with closing(connect(server.http)) as client:
        client.sendall(b"GET /livez HTTP/1.1\r\nHost: example.org\r\n\r\n")
        assert b"200 OK" in client.recv(4_096)
        client.sendall(b"GET /livez HTTP/1.1\r\nX-Slow: ")
        until(lambda: is_cut(client), within_s=HEADERS_S + 2 * SWEEP_S + 3, every_s=0.1)


def test_a_slow_body_is_answered_with_408_and_publishes_nothing(server):
    before = get(server.http, "/feeds/events").json["position"]
    started = time.monotonic()
    answer = answer_to(
        server.http,
        b"PUT /things/slow HTTP/1.1\r\nHost: example.org\r\nContent-Length: 100\r\n\r\nonly a part",
    )
    assert answer.status == 408
    assert "did not arrive in time" in answer.detail
    assert answer.header("Connection") == "close"
    assert BODY_S * 0.9 <= time.monotonic() - started < BODY_S + 3
    assert get(server.http, "/feeds/events").json["position"] == before


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_that_is_too_large_is_answered_with_413_and_publishes_nothing(server, chunked):
    before = get(server.http, "/feeds/events").json["position"]
    body = b"x" * (BODY_BYTES_MAX + 1)
    if chunked:
        sent = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        head = b"PUT /things/1 HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
        answer = answer_to(server.http, head, sent)
    else:
        answer = call(server.http, "PUT", "/things/1", body, {"Content-Type": "text/plain"})
    assert answer.status == 413
    assert str(BODY_BYTES_MAX) in answer.detail
    assert get(server.http, "/feeds/events").json["position"] == before


def test_a_body_of_the_largest_size_is_published(server):
    assert put(server.http, "/things/1", b"x" * BODY_BYTES_MAX).status == 201


REQUEST = b"GET /livez HTTP/1.1\r\nHost: example.org\r\nConnection: close\r\n%b\r\n"


@pytest.mark.parametrize(
    "request_bytes",
    [
        REQUEST % b"".join(b"X-%d: y\r\n" % number for number in range(1_000)),
        REQUEST % (b"X-Long: " + b"y" * 20_000 + b"\r\n"),
        REQUEST % (b"X" * 20_000 + b": y\r\n"),
        b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: example.org\r\n\r\n",
        b"not a request\r\n\r\n",
        REQUEST % b"Content-Length: 5\r\nContent-Length: 6\r\n",
        REQUEST % b"Content-Length: -1\r\n",
        REQUEST % b"X: a\x00b\r\n",
        REQUEST % b"X y: z\r\n",
        b"GET /livez HTTP/9.9\r\nHost: example.org\r\n\r\n",
    ],
    ids=[
        "too many headers",
        "too long a value",
        "too long a name",
        "too long a path",
        "no request",
        "two lengths",
        "negative length",
        "NUL in a value",
        "space in a name",
        "version from the future",
    ],
)
def test_a_request_that_no_server_should_take_is_a_problem_of_the_client(server, request_bytes):
    answer = answer_to(server.http, request_bytes)
    assert 400 <= answer.status < 500 or answer.status == 505, answer
    assert answer.detail
    assert "Traceback" not in server.log()


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/a%0d%0ab", {}),
        ("/things/%ff%00", {}),
        ("/" + "a" * 5_000, {}),
        ("/things/../1", {}),
        ("//example.org/1", {}),
        ("/things/%zz", {}),
        ("/things/1", {"Content-Type": "no media type"}),
        ("/things/1", {"Content-Type": "text/plain; x=" + "y" * 5_000}),
    ],
)
def test_a_target_or_type_that_no_entry_could_have_is_refused_and_publishes_nothing(server, path, headers):
    before = get(server.http, "/feeds/events").json["position"]
    answer = call(server.http, "PUT", path, b"x", {"Content-Type": "text/plain"} | headers)
    if answer.status == 201:
        # What is percent-encoded is harmless, and stays encoded.
        assert f"<{path}>" in answer.header("Link")
        return
    assert answer.status == 400, answer
    assert answer.detail
    assert get(server.http, "/feeds/events").json["position"] == before
