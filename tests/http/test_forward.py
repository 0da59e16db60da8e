"""What a reader passes on, against a main process that says exactly what the test wants."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from gateway.http.connection import LimitedServer
from gateway.http.forward import Forwarder
from gateway.http.problems import problems
from gateway.http.settings import HttpSettings

KEPT = (
    b"HTTP/1.0 201 Created\r\nContent-Length: 2\r\nX-Two: 1\r\nConnection: keep-alive\r\nX-Two: 2\r\n\r\nok"
)
PUT = b"PUT /things/1 HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nbody"
GET = b"GET /readyz HTTP/1.1\r\nHost: h\r\n\r\n"


class MainProcess:
    """Takes whole requests, remembers them, and gives the answers that it was given, one after the other."""

    def __init__(self, *answers: bytes) -> None:
        self.answers = list(answers)
        self.requests: list[bytes] = []
        self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                self.requests.append(head + await reader.readexactly(length))
                answer = self.answers.pop(0)
                writer.write(answer)
                await writer.drain()
                if answer != KEPT:
                    return
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()


@asynccontextmanager
async def forwarding(main: MainProcess | None, limits: HttpSettings):
    """A server on TCP that forwards all; yields what sends raw bytes to it and returns all that comes."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "main.sock")
        upstream = None if main is None else await asyncio.start_unix_server(main.serve, path)
        forwarder = Forwarder(path, limits)

        def handle(request: web.BaseRequest):
            return problems(request, forwarder.handle)

        server = LimitedServer(web.Server(handle, auto_decompress=False), handle, limits)
        listening = await asyncio.get_running_loop().create_server(server, "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]

        async def send(data: bytes) -> bytes:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(data.replace(b"Host: h\r\n", b"Host: h\r\nConnection: close\r\n", 1))
            received = await reader.read()
            writer.close()
            await writer.wait_closed()
            return received

        try:
            yield send
        finally:
            listening.close()
            await server.shutdown(1)
            forwarder.close()
            if upstream is not None:
                upstream.close()
                await upstream.wait_closed()
            await asyncio.sleep(0)


def send_all(main: MainProcess | None, *requests: bytes, limits: HttpSettings | None = None) -> list[bytes]:
    """Send requests one after the other; the answers as they came."""

    async def scenario() -> list[bytes]:
        async with forwarding(main, limits or HttpSettings()) as send:
            return [await send(request) for request in requests]

    return asyncio.run(asyncio.wait_for(scenario(), 30))


def detail_of(answer: bytes) -> str:
    assert b"Content-Type: application/problem+json\r\n" in answer
    assert b"Cache-Control: no-store\r\n" in answer
    return json.loads(answer.partition(b"\r\n\r\n")[2])["detail"]


def test_a_request_goes_on_byte_for_byte_without_what_is_of_the_connection():
    main = MainProcess(KEPT)
    send_all(
        main,
        b"PUT /a%2Fb/?x=%20?#? HTTP/1.1\r\nHost: h\r\nX-Odd: \xe4\xff\r\nX-Two: 1\r\nx-TWO: 2\r\n"
        b"Connection: X-Hop, keep-alive\r\nX-Hop: 1\r\nKeep-Alive: 5\r\nTE: trailers\r\n"
        b"Content-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n",
    )
    assert main.requests == [
        b"PUT /a%2Fb/?x=%20?#? HTTP/1.0\r\nHost: h\r\nX-Odd: \xe4\xff\r\nX-Two: 1\r\nx-TWO: 2\r\n"
        b"Content-Encoding: gzip\r\nConnection: keep-alive\r\nContent-Length: 5\r\n\r\nabcde"
    ]


def test_an_answer_comes_back_unchanged():
    (answer,) = send_all(MainProcess(KEPT), PUT)
    head, _, body = answer.partition(b"\r\n\r\n")
    status, *headers = head.split(b"\r\n")
    assert status == b"HTTP/1.1 201 Created"
    assert headers[:3] == [b"Content-Length: 2", b"X-Two: 1", b"X-Two: 2"]
    assert b"keep-alive" not in head
    assert body == b"ok"


def test_a_connection_is_used_again_for_as_long_as_both_ends_keep_it():
    last = KEPT.replace(b"keep-alive", b"close")
    main = MainProcess(KEPT, KEPT, last, KEPT)
    assert all(answer.endswith(b"ok") for answer in send_all(main, PUT, PUT, PUT, PUT))
    assert (main.connections, len(main.requests)) == (2, 4)


@pytest.mark.parametrize("idle_s", [0.0, 60.0])
def test_a_connection_that_the_main_process_may_be_closing_is_not_used_again(idle_s):
    main = MainProcess(KEPT, KEPT)
    send_all(main, PUT, PUT, limits=HttpSettings(idle_time_max_s=idle_s))
    assert main.connections == (2 if idle_s == 0 else 1)


def test_an_answer_without_a_length_ends_with_its_connection():
    lines = b"".join(b"%099d\n" % number for number in range(7_000))
    main = MainProcess(b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\n" + lines)
    (answer,) = send_all(main, GET.replace(b"HTTP/1.1", b"HTTP/1.0"))
    assert answer.partition(b"\r\n\r\n")[2] == lines


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
def test_an_answer_that_has_no_body_needs_no_length(status):
    main = MainProcess(b'HTTP/1.0 %s\r\nETag: "1"\r\nConnection: keep-alive\r\n\r\n' % status)
    (answer,) = send_all(main, GET)
    assert answer.startswith(b'HTTP/1.1 %s\r\nETag: "1"\r\n' % status)
    assert b"Content-Length" not in answer


def test_while_the_main_process_is_away_nothing_is_sent_and_it_is_worth_trying_again():
    for answer in send_all(None, PUT, GET):
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"Retry-After: 1\r\n" in answer
        assert "nothing was sent" in detail_of(answer)


def ended(main: MainProcess) -> None:
    main.answers.append(b"")


def halted(main: MainProcess) -> None:
    main.answers.append(b"HTTP/1.0 201 Cre")


@pytest.mark.parametrize("end", [ended, halted])
def test_a_publication_without_an_answer_is_unknown_and_never_sent_twice(end: Callable[[MainProcess], None]):
    main = MainProcess(KEPT)
    end(main)
    _, answer = send_all(main, PUT, PUT)
    assert answer.startswith(b"HTTP/1.1 504 ")
    assert "whether the event was kept is not known" in detail_of(answer)
    assert len(main.requests) == 2


def test_a_read_without_an_answer_is_worth_trying_again():
    main = MainProcess(b"")
    (answer,) = send_all(main, GET)
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"Retry-After: 1\r\n" in answer
    assert len(main.requests) == 1


def test_an_answer_that_breaks_off_is_not_passed_off_as_whole_nor_followed_by_another():
    main = MainProcess(b"HTTP/1.0 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
    (answer,) = send_all(main, GET)
    assert b"Content-Length: 10\r\n" in answer
    assert answer.endswith(b"\r\n\r\nhalf")
