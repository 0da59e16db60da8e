"""The replayer finds every difference, tried on a server that answers exactly what a test tells it."""

import socket
import threading
from pathlib import Path

import pytest

from tests.spec_examples.examples import ExampleError, Mismatch, read, replay

RESPONSE = (
    b"HTTP/1.1 200 OK\r\nContent-Type: multipart/mixed; boundary=b1\r\nX-Other: 1\r\n"
    b'Link: </a>; rel="about"\r\nLink: </b>; rel="self"\r\nContent-Length: 34\r\n\r\n'
    b"--b1\r\nA: 1\r\n\r\nbody\r\n--b1--\r\nmore\r\n"
)
EXAMPLE = """# An example
#
# Of a server.

=== request
PUT /things/1 HTTP/1.1
Host: {host}
Content-Length: 6

line1
2

=== response
HTTP/1.1 200 OK
Content-Type: multipart/mixed; boundary={boundary}
Link: </a>; rel="about"
Link: </{entry}>; rel="self"

--{boundary}
A: {*}

body
--{boundary}--
more
"""


class Server:
    """Answers each connection with the next of the given bytes; keeps what it was sent."""

    def __init__(self, *responses: bytes) -> None:
        self.requests: list[bytes] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, args=(responses,), daemon=True)
        self._thread.start()

    def _serve(self, responses):
        for response in responses:
            connection, _ = self._socket.accept()
            with connection:
                self.requests.append(connection.recv(65536))
                connection.sendall(response)

    def close(self):
        self._thread.join(10)
        self._socket.close()


def run(text: str, *responses: bytes, folder: Path) -> list[bytes]:
    path = folder / "example.http"
    path.write_text(text)
    server = Server(*responses)
    try:
        assert replay(read(path), server.url) == text.count("=== response")
    finally:
        server.close()
    return server.requests


def test_a_response_that_is_as_written_passes_and_the_request_is_sent_as_written(tmp_path):
    (request,) = run(EXAMPLE, RESPONSE, folder=tmp_path)
    head, _, body = request.partition(b"\r\n\r\n")
    assert head.startswith(b"PUT /things/1 HTTP/1.1\r\nHost: 127.0.0.1:")
    assert head.endswith(b"\r\nContent-Length: 6")
    assert body == b"line1\n2"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"200 OK", b"201 OK"),
        (b"boundary=b1", b"boundary=b2"),
        (b'Link: </b>; rel="self"\r\n', b""),
        (b'</a>; rel="about"', b'</c>; rel="about"'),
        (b'Link: </b>; rel="self"', b'Link: </b>; rel="self"\r\nLink: </c>; rel="self"'),
        (b"body\r\n--b1--\r\nmore", b"bodY\r\n--b1--\r\nmore"),
        (b"body\r\n--b1--\r\nmore", b"body\n--b1--\r\nmore\n"),
        (b"A: 1\r\n\r\nbody", b"A: 1\r\n\r\n\r\nbo"),
    ],
)
def test_a_response_that_differs_is_a_mismatch(old, new, tmp_path):
    assert old in RESPONSE
    with pytest.raises(Mismatch, match=r"example\.http:13"):
        run(EXAMPLE, RESPONSE.replace(old, new), folder=tmp_path)


def test_a_value_that_was_noted_must_be_the_same_later(tmp_path):
    exchange = "=== request\nGET / HTTP/1.1\nHost: {host}\n\n=== response\nHTTP/1.1 200 OK\nETag: {etag}\n"
    text = f"# Two\n\n{exchange}\n{exchange}"
    answer = b"HTTP/1.1 200 OK\r\nETag: %s\r\nContent-Length: 0\r\n\r\n"
    run(text, answer % b"a", answer % b"a", folder=tmp_path)
    with pytest.raises(Mismatch):
        run(text, answer % b"a", answer % b"b", folder=tmp_path)


def test_json_is_compared_without_white_space_between_its_tokens(tmp_path):
    text = (
        "# JSON\n\n=== request\nGET / HTTP/1.1\n\n=== response\nHTTP/1.1 200 OK\n"
        'Content-Type: application/json\n\n{\n  "a b": [1, "{value}"]\n}\n'
    )
    answer = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
    for body in (b'{"a b":[1,"x"]}', b'{ "a b" : [ 1,\n"x" ] }\n'):
        run(text, answer % (len(body), body), folder=tmp_path)
    for body in (b'{"ab":[1,"x"]}', b'{"a b":[1,"x"],"c":1}', b'{"a b":[1,"x y"]}', b""):
        with pytest.raises(Mismatch):
            run(text, answer % (len(body), body), folder=tmp_path)


def test_an_exchange_can_take_place_while_another_waits(tmp_path):
    exchange = "\n=== request\nGET /2 HTTP/1.1\n\n=== response\nHTTP/1.1 204 No Content\n"
    text = (
        f"# Waiting\n\n=== request slow\nGET /1 HTTP/1.1\n{exchange}"
        "\n=== response slow\nHTTP/1.1 200 OK\n\nlate\n"
    )
    late = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nlate"
    requests = run(text, late, b"HTTP/1.1 204 No Content\r\n\r\n", folder=tmp_path)
    assert [request.split(b" ")[1] for request in requests] == [b"/1", b"/2"]


@pytest.mark.parametrize(
    "text",
    [
        "no title",
        "# Title\n\nstray text\n\n=== request\nGET / HTTP/1.1\n\n=== response\nHTTP/1.1 200 OK\n",
        "# Title\n\n=== response\nHTTP/1.1 200 OK\n",
        "# Title\n\n=== request\nGET / HTTP/1.1\n",
        "# Title\n\n=== request\nGET / HTTP/1.1\n\n=== request\nGET / HTTP/1.1\n",
        "# Title\n\n=== requests\nGET / HTTP/1.1\n",
        "# Title\n\n=== request\n\n=== response\nHTTP/1.1 200 OK\n",
        "# Title\n",
        "# Title\n\n=== snapshot 2026-01-01T00:00:00.000Z\n",
        "# Title\n\n=== snapshot\n\n=== request\nGET / HTTP/1.1\n\n=== response\nHTTP/1.1 200 OK\n",
        "# Title\n\n=== snapshot 2026\ntext\n=== request\nGET / HTTP/1.1\n\n=== response\nHTTP/1.1 200 OK\n",
    ],
)
def test_a_file_out_of_format_is_refused(text, tmp_path):
    path = tmp_path / "example.http"
    path.write_text(text)
    with pytest.raises(ExampleError, match=r"example\.http"):
        read(path)


def test_a_snapshot_is_made_between_the_exchanges_where_it_stands(tmp_path):
    exchange = "\n=== request\nGET / HTTP/1.1\n\n=== response\nHTTP/1.1 204 No Content\n"
    path = tmp_path / "example.http"
    path.write_text(f"# Snapshots\n{exchange}\n=== snapshot 2026-01-01T00:00:00.000Z\n{exchange}")
    server = Server(b"HTTP/1.1 204 No Content\r\n\r\n", b"HTTP/1.1 204 No Content\r\n\r\n")
    made = []
    try:
        assert replay(read(path), server.url, lambda id_: made.append((id_, len(server.requests)))) == 2
    finally:
        server.close()
    assert made == [("2026-01-01T00:00:00.000Z", 1)]


def test_a_placeholder_in_a_request_needs_a_value(tmp_path):
    path = tmp_path / "example.http"
    path.write_text("# T\n\n=== request\nGET /{page} HTTP/1.1\n\n=== response\nHTTP/1.1 200 OK\n")
    with pytest.raises(ExampleError, match="page"):
        replay(read(path), "http://127.0.0.1:1")
