"""What keeps a server from starting is said in one sentence that tells what to do, and it exits with 1."""

from __future__ import annotations

import socket
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.support import gateway_on, get, put, running, wes
from tests.servers import gateway, log_node

FREE = ("--listen", "127.0.0.1:0", "--amqp-listen", "127.0.0.1:0")


@pytest.fixture
def taken() -> Iterator[str]:
    """An address on which somebody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture(scope="module")
def used(tmp_path_factory) -> Path:
    """A data folder with one event, and no process on it."""
    folder = tmp_path_factory.mktemp("used") / "data"
    with running(gateway(folder)) as server:
        assert put(server.http, "/things/1", b"one").status == 201
    return folder


@pytest.fixture
def data(used, tmp_path) -> Path:
    """A copy of it."""
    copy = tmp_path / "data"
    for file in used.rglob("*"):
        if file.is_file() and file.name != "lock":
            target = copy / file.relative_to(used)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.read_bytes())
    return copy


def refusal(*arguments: str | Path) -> str:
    """What `wes` says when it does not start."""
    done = wes(*arguments, timeout_s=30)
    assert done.returncode == 1, done
    assert "Traceback" not in done.stderr, done.stderr
    said = done.stderr.splitlines()[-1]
    assert said.startswith("wes: "), done.stderr
    return said


def test_a_taken_web_port_ends_the_start(taken, tmp_path):
    said = refusal("serve", "--data", tmp_path / "data", *FREE, "--listen", taken)
    assert f"cannot listen on {taken}" in said
    assert "--listen another" in said


def test_a_taken_web_port_leaves_a_running_gateway_alone(start_gateway, tmp_path):
    server = start_gateway()
    address = server.http.removeprefix("http://")
    assert "cannot listen on" in refusal("serve", "--data", tmp_path / "b", *FREE, "--listen", address)
    assert put(server.http, "/things/1", b"one").status == 201


@pytest.mark.parametrize("command", ["serve", "log"])
def test_a_taken_amqp_port_ends_the_start(taken, tmp_path, command):
    listen = ("--listen", "127.0.0.1:0") if command == "serve" else ()
    said = refusal(command, "--data", tmp_path / "data", *listen, "--amqp-listen", taken)
    assert f"cannot listen on {taken}" in said
    assert "choose another" in said


@pytest.mark.parametrize(
    ("file", "advice"),
    [
        ("feeds/events/0/catalogue.sqlite", "another --data folder"),
        ("log/events.sqlite", "another data folder"),
    ],
)
def test_a_data_folder_of_another_version_is_left_as_it_is(data, file, advice):
    path = data / file
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    before = path.read_bytes()
    said = refusal("serve", "--data", data, *FREE)
    assert str(path) in said
    assert "has format 99" in said
    assert "use the version that wrote it" in said
    assert advice in said
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("option", "value", "said_of_it"),
    [
        ("--archive-events-max", "7", "archive_events_max was 1000 and is now 7"),
        ("--archive-bytes-max", "9000", "archive_bytes_max was 262144 and is now 9000"),
        ("--authority", "feeds.example.org", "authority='localhost'"),
        ("--salt", "pepper", "salt was '' and is now 'pepper'"),
    ],
)
def test_pages_are_never_cut_in_two_ways(data, option, value, said_of_it):
    said = refusal("serve", "--data", data, *FREE, option, value)
    assert said_of_it in said
    assert "use the old settings, or another --data folder" in said


def test_a_log_keeps_its_number_of_partitions(data):
    said = refusal("serve", "--data", data, *FREE, "--partitions", "2")
    assert "log events has 1 partitions and cannot get 2" in said
    assert "start with 1" in said


@pytest.mark.slow
def test_a_data_folder_has_one_gateway(start_gateway, tmp_path):
    server = start_gateway(data=tmp_path / "data")
    assert put(server.http, "/things/1", b"one").status == 201
    said = refusal("serve", "--data", tmp_path / "data", *FREE)
    assert f"another process writes to {tmp_path / 'data' / 'log'}, process " in said
    assert "another --data folder" in said
    said = refusal("serve", "--data", tmp_path / "data", "--broker", server.amqp, "--listen", "127.0.0.1:0")
    assert f"another process writes to {tmp_path / 'data' / 'feeds' / 'events' / '0'}" in said
    assert "another --data folder" in said
    assert put(server.http, "/things/1", b"two").status == 201
    assert get(server.http, "/readyz").status == 200


def test_a_node_and_a_gateway_share_a_data_folder(tmp_path):
    node = log_node(tmp_path / "data")
    with running(node), running(gateway_on(node.amqp, tmp_path / "data")) as server:
        assert put(server.http, "/things/1", b"one").status == 201


@pytest.mark.slow
def test_a_killed_gateway_starts_again_at_once_though_a_client_of_its_node_hangs(tmp_path):
    server = gateway(tmp_path / "data")
    with running(server):
        assert put(server.http, "/things/1", b"one").status == 201
        host, _, port = server.amqp.removeprefix("amqp://").partition(":")
        with socket.create_connection((host, int(port))) as client:
            # An AMQP header and an open frame, and not a word more, whatever the node says.
            client.sendall(b"AMQP\x00\x01\x00\x00" + OPEN)
            assert client.recv(8) == b"AMQP\x00\x01\x00\x00"
            server.kill()
            server.start()
        assert put(server.http, "/things/1", b"two").status == 201


_BODY = b"\x00\x53\x10\xc0\x07\x01\xa1\x04hang"
OPEN = (8 + len(_BODY)).to_bytes(4, "big") + b"\x02\x00\x00\x00" + _BODY
