"""`wes serve --workers N`: several processes on one address that no client can tell from one."""

from __future__ import annotations

import http.client
import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from gateway.core.snapshots import INDEX
from gateway.storage.snapshots import remove_snapshot
from tests import servers
from tests.acceptance.support import (
    WAIT_S,
    Response,
    archives,
    checked,
    entries,
    events_in,
    get,
    lasting_node,
    log_document,
    put,
    running,
    until,
    until_ready,
    wes,
)
from tests.servers import children, open_files
from tests.snapshot_folder import add_snapshot_of

# Each test starts processes and ends some of them by force.
pytestmark = pytest.mark.slow

WORKERS = 2
CONNECTIONS_MAX = 200
LATEST = "/feeds/events/0/latest"
LISTEN, ESTABLISHED = "0A", "01"


# Which process has which socket, as the kernel tells it


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        # It may go between the opening of the file and the reading.
        return False


def sockets(port: int, state: str, peer: int | None = None) -> set[str]:
    """The TCP sockets on a local port in that state, as they are called among open files."""
    found = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        ours, theirs = (int(fields[column].rpartition(":")[2], 16) for column in (1, 2))
        if ours == port and fields[3] == state and peer in (None, theirs):
            found.add(f"socket:[{fields[9]}]")
    return found


def port_of(server: servers.Server) -> int:
    port = urlsplit(server.http).port
    assert port is not None
    return port


def readers(server: servers.Server) -> list[int]:
    """The children that listen where the main process does."""
    listening = sockets(port_of(server), LISTEN)
    return [child for child in children(server.pid) if open_files(child) & listening]


class Connection:
    """A connection that stays open, and the process that has its other end."""

    def __init__(self, server: servers.Server) -> None:
        port = port_of(server)
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        assert self.ask("GET", "/livez").status == 200
        peer = self._connection.sock.getsockname()[1]
        processes = [server.pid, *children(server.pid)]
        other_end = sockets(port, ESTABLISHED, peer)
        (self.pid,) = [pid for pid in processes if open_files(pid) & other_end]

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> Response:
        self._connection.request(method, path, body, headers or {})
        response = self._connection.getresponse()
        return Response(response.status, response.getheaders(), response.read())

    def close(self) -> None:
        self._connection.close()


@contextmanager
def to_each(server: servers.Server) -> Iterator[dict[int, Connection]]:
    """A connection to each process that answers."""
    found: dict[int, Connection] = {}
    with ExitStack() as stack:
        for _ in range(CONNECTIONS_MAX):
            connection = stack.enter_context(closing(Connection(server)))
            found.setdefault(connection.pid, connection)
            if len(found) == WORKERS + 1:
                break
        assert len(found) == WORKERS + 1, f"only {sorted(found)} answer"
        yield found


def workers_gateway(folder: Path, *options: str, **environment: str) -> servers.Server:
    return servers.gateway(folder, "--workers", str(WORKERS), *options, **environment)


def fill(server: servers.Server, count: int) -> None:
    for number in range(count):
        assert put(server.http, f"/things/{number}", b"number %d" % number).status == 201


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[servers.Server]:
    with running(
        workers_gateway(
            tmp_path_factory.mktemp("workers") / "data", "--archive-events-max", "20", "--partitions", "1"
        )
    ) as started:
        fill(started, 50)
        yield started


# One address, one answer


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("GET", "/feeds/events/0/archive/0", {}),
        ("GET", "/feeds/events/0/archive/0", {"Range": "bytes=10-99"}),
        ("GET", "/feeds/events/0/archive/0", {"Accept": "image/png"}),
        ("HEAD", "/feeds/events/0/archive/1", {}),
        ("GET", "/feeds/events/0/archive/2", {}),
        ("GET", "/feeds/events/0/archive/3", {}),
        ("GET", "/feeds/events/0/archive/999", {}),
        ("GET", LATEST, {}),
        ("GET", LATEST, {"A-IM": "feed", "If-None-Match": '"45.x"'}),
        ("HEAD", LATEST, {}),
        ("GET", "/feeds/events/0/events/5", {}),
        ("GET", "/feeds/events/0/events/49", {}),
        ("GET", "/feeds/events/0/events/50", {}),
        ("GET", "/feeds/events/0?since=2020-01-01T00:00:00Z", {}),
        ("GET", "/feeds/events/0?since=yesterday", {}),
        ("GET", "/feeds/%65vents/0/latest", {}),
        ("GET", "/", {}),
        ("HEAD", "/", {}),
        ("GET", "/feeds/events", {}),
        ("GET", "/feeds/none/0/latest", {}),
        ("GET", "/feeds/events/7/latest", {}),
        ("GET", "/feeds/events/../latest", {}),
        ("GET", "/readyz", {}),
        ("GET", "/nowhere?x=%20y", {}),
        ("POST", LATEST, {}),
        ("OPTIONS", "/things/1", {}),
        ("PUT", "/things/1", {"Content-Type": "no media type"}),
        ("DELETE", "/things/%zz", {}),
    ],
)
def test_every_process_gives_the_same_answer(server, method, path, headers):
    with to_each(server) as connections:
        assert server.pid in connections
        one, *others = [each.ask(method, path, headers=headers) for each in connections.values()]
    for other in others:
        assert (other.status, other.undated, other.body) == (one.status, one.undated, one.body)


def test_every_process_serves_snapshots_from_their_folder_and_keeps_them_while_it_does(tmp_path):
    id_ = "2026-01-01T00:00:00.000Z"
    gateway = workers_gateway(tmp_path / "data")
    with running(gateway) as server:
        fill(server, 3)
        with to_each(server) as connections:
            for connection in connections.values():
                assert connection.ask("GET", "/snapshots/events/latest").status == 404
            index = add_snapshot_of(server.data, "events", id_)
            for path in ("", "/latest", f"/{id_}", f"/{id_}/0", f"/{id_}/1", "/none"):
                one, *others = [each.ask("GET", f"/snapshots/events{path}") for each in connections.values()]
                assert one.status == (404 if path in (f"/{id_}/1", "/none") else 200)
                for other in others:
                    assert (other.status, other.undated, other.body) == (one.status, one.undated, one.body)
            folder = server.data / "snapshots" / "events" / id_
            assert all(str(folder / INDEX) in open_files(pid) for pid in connections)
            assert connections.popitem()[1].ask("GET", index.parts[0].uri).body == (folder / "0").read_bytes()
            assert not remove_snapshot(folder)
    assert remove_snapshot(folder)


def test_snapshots_can_be_in_another_folder(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    with running(workers_gateway(tmp_path / "data", "--snapshots", str(elsewhere))) as server:
        fill(server, 3)
        index = add_snapshot_of(server.data, "events", "2026-01-01T00:00:00.000Z")
        with to_each(server) as connections:
            for connection in connections.values():
                assert connection.ask("GET", "/snapshots/events/latest").status == 404
            (server.data / "snapshots").rename(elsewhere)
            for connection in connections.values():
                answer = connection.ask("GET", "/snapshots/events/latest")
                assert (answer.status, answer.body) == (200, index.to_json())


@pytest.mark.parametrize("method", ["PUT", "POST", "PATCH", "DELETE"])
def test_every_process_publishes(server, method):
    body = None if method == "DELETE" else b"published"
    seen = []
    with to_each(server) as connections:
        for pid, connection in connections.items():
            answer = connection.ask(method, f"/by/{pid}?", body, {"Content-Type": "text/plain"})
            assert answer.status in (201, 204), answer
            links = answer.header("Link") or ""
            assert links.startswith(f'</by/{pid}?>; rel="about", </feeds/events/0/events/')
            seen.append([name for name, _ in answer.headers])
    assert seen.count(seen[0]) == WORKERS + 1


@pytest.mark.parametrize("rounds", [200])
def test_a_write_is_seen_by_the_next_read_wherever_it_goes(server, rounds):
    for number in range(rounds):
        written = put(server.http, "/rounds", b"%d" % number)
        assert written.status == 201
        content_id, entry = written.header("Content-ID"), written.header("Location")
        latest = get(server.http, LATEST)
        assert f"Content-ID: {content_id}".encode() in latest.body, f"round {number}"
        assert get(server.http, entry).status == 302
        ordinal = int(entry.rpartition("/")[2])
        assert log_document(server.http)["position"]["0"] == ordinal


def test_what_one_process_has_shown_no_other_takes_back(server):
    """Readers see a commit the moment it is made, and the main process must not lag behind them."""
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            put(server.http, "/busy", b"x")

    writers = [threading.Thread(target=write) for _ in range(3)]
    with to_each(server) as by_pid:
        connections = list(by_pid.values())
        for writer in writers:
            writer.start()
        try:
            last = -1
            for number in range(1_500):
                answer = connections[number % len(connections)].ask("HEAD", LATEST)
                ordinal = int((answer.header("ETag") or "").strip('"').partition(".")[0])
                assert ordinal >= last, f"request {number}"
                last = ordinal
                if number % 10 == 0:
                    document = connections[number // 10 % len(connections)].ask("GET", "/feeds/events")
                    assert document.json["position"]["0"] >= last
                    last = document.json["position"]["0"]
        finally:
            stop.set()
            for writer in writers:
                writer.join()


def test_a_long_poll_wakes_in_every_process(server):
    etag = get(server.http, LATEST).header("ETag")
    woken: dict[int, tuple[Response, float]] = {}

    def wait(pid: int, connection: Connection) -> None:
        answer = connection.ask("GET", LATEST, headers={"Prefer": "wait=20", "If-None-Match": etag})
        woken[pid] = answer, time.monotonic()

    with to_each(server) as connections:
        waiting = [threading.Thread(target=wait, args=each) for each in connections.items()]
        for thread in waiting:
            thread.start()
        time.sleep(0.3)
        assert not woken
        written = put(server.http, "/news", b"awaited")
        answered = time.monotonic()
        for thread in waiting:
            thread.join()
    for answer, at in woken.values():
        assert answer.status == 200
        assert (written.header("Content-ID") or "?").encode() in answer.body
        assert at - answered < 1
    assert len(woken) == WORKERS + 1


def test_readers_are_small_and_write_nothing(server):
    for pid in readers(server):
        assert "proton" not in Path(f"/proc/{pid}/maps").read_text()
        assert not [name for name in open_files(pid) if name.endswith("/lock")]


def test_a_second_server_is_not_let_onto_the_same_address(server, tmp_path):
    address = server.http.removeprefix("http://")
    for workers in ("0", "1"):
        done = wes(
            "serve", "--listen", address, "--amqp-listen", "127.0.0.1:0", "--workers", workers,
            "--data", tmp_path / "other", timeout_s=60,
        )  # fmt: skip
        assert done.returncode == 1
        assert f"cannot listen on {address}" in done.stderr


def test_the_documents_have_no_breach(server):
    summary = checked(server.http)
    print(summary)


# Processes that come and go


def test_a_killed_reader_is_started_again_and_only_its_own_connections_end(tmp_path):
    with running(workers_gateway(tmp_path / "data", "--archive-events-max", "5")) as server:
        fill(server, 12)
        page = archives(server.http)[0]
        victim, other = readers(server)
        with to_each(server) as connections:
            os.kill(victim, signal.SIGKILL)
            until(lambda: not alive(victim))
            with pytest.raises((http.client.HTTPException, OSError)):
                connections[victim].ask("GET", "/livez")
            asked = 0
            began = time.monotonic()
            while len(readers(server)) < WORKERS or asked < 100:
                assert time.monotonic() - began < WAIT_S, server.log()
                asked += 1
                assert get(server.http, "/feeds/events/0/archive/0").body == page.body
                assert put(server.http, "/meanwhile", b"%d" % asked).status == 201
                for pid in (server.pid, other):
                    assert connections[pid].ask("GET", "/feeds/events/0/archive/0").body == page.body
        assert victim not in readers(server)
        with to_each(server) as connections:
            assert set(connections) == {server.pid, *readers(server)}
        assert events_in(server.http) == 12 + asked
        assert 'process_restarted child="reader ' in server.log()


def test_nothing_is_left_behind_when_the_main_process_is_killed(tmp_path):
    # Not in tmp_path: a socket's path must be short.
    with tempfile.TemporaryDirectory(prefix="wes-test-") as temporary:
        gateway = workers_gateway(tmp_path / "data", TMPDIR=temporary)
        with running(gateway) as server:
            fill(server, 3)
            (folder,) = Path(temporary).iterdir()
            assert folder.stat().st_mode & 0o777 == 0o700
            left = children(server.pid)
            assert len(left) >= WORKERS + 1
            server.kill()
            until(lambda: not any(map(alive, left)), within_s=20)
            assert not folder.exists()
            server.start()
            assert events_in(server.http) == 3
        assert not list(Path(temporary).iterdir())


def test_a_stop_answers_what_is_under_way_and_ends_every_process(tmp_path):
    gateway = workers_gateway(tmp_path / "data")
    with running(gateway) as server:
        fill(server, 3)
        etag = get(server.http, LATEST).header("ETag")
        left = children(server.pid)
        answers: list[Response] = []

        def wait(connection: Connection) -> None:
            headers = {"Prefer": "wait=30", "If-None-Match": etag}
            answers.append(connection.ask("GET", LATEST, headers=headers))

        with to_each(server) as connections:
            waiting = [threading.Thread(target=wait, args=(each,)) for each in connections.values()]
            for thread in waiting:
                thread.start()
            time.sleep(0.3)
            began = time.monotonic()
            assert server.stop() == 0
            assert time.monotonic() - began < 5
            for thread in waiting:
                thread.join()
        assert [answer.status for answer in answers] == [304] * (WORKERS + 1)
        until(lambda: not any(map(alive, left)), within_s=5)
        assert "Traceback" not in server.log()
        assert "process_ended" not in server.log()


# What only the main process knows


def test_readers_ask_the_main_process_while_nothing_is_known_and_find_what_comes(tmp_path):
    node = lasting_node(tmp_path / "node")
    with running(node):
        amqp = node.amqp
    gateway = servers.gateway(
        tmp_path / "data", "--broker", amqp, "--listen", "127.0.0.1:0", "--workers", str(WORKERS),
        ports=False,
    )  # fmt: skip
    with running(gateway, ready=False) as server, to_each(server) as connections:
        for connection in connections.values():
            assert connection.ask("GET", LATEST).status == 404
            assert connection.ask("GET", "/readyz").status == 503
            unsent = connection.ask("PUT", "/things/1", b"x", {"Content-Type": "text/plain"})
            assert unsent.status == 503
            assert unsent.header("Retry-After")
        with running(node):
            until_ready(server.http)
            for connection in connections.values():
                assert connection.ask("GET", LATEST).status == 204
            fill(server, 1)
            for connection in connections.values():
                assert b"number 0" in connection.ask("GET", LATEST).body


def test_damage_that_a_reader_finds_is_repaired(tmp_path):
    with running(workers_gateway(tmp_path / "data", "--archive-events-max", "5")) as server:
        fill(server, 13)
        page = server.data / "feeds" / "events" / "0" / "pages" / "1"
        data = page.read_bytes()
        with to_each(server) as connections:
            connection = connections[readers(server)[0]]
            whole = connection.ask("GET", "/feeds/events/0/archive/0")
            page.write_bytes(data[:-9] + b"x" + data[-8:])
            damaged = connection.ask("GET", "/feeds/events/0/archive/1")
            assert damaged.status == 503
            assert "is damaged" in damaged.detail
            until(lambda: connection.ask("GET", "/feeds/events/0/archive/1").status == 200)
            assert page.read_bytes() == data
            assert connection.ask("GET", "/feeds/events/0/archive/0").body == whole.body


def test_a_body_of_any_size_goes_through_and_one_too_large_is_refused_alike(tmp_path):
    gateway = workers_gateway(tmp_path / "data", WES_HTTP_BODY_BYTES_MAX="3000000")
    with running(gateway) as server:
        for size, status in ((0, 201), (1, 201), (2_999_999, 201), (3_000_001, 413)):
            seen = []
            with to_each(server) as connections:
                for connection in connections.values():
                    answer = connection.ask("PUT", "/large", b"x" * size, {"Content-Type": "text/plain"})
                    assert answer.status == status, answer
                    seen.append((sorted(name for name, _ in answer.headers), answer.body))
            assert seen.count(seen[0]) == WORKERS + 1
        coded = {"Content-Type": "text/plain", "Content-Encoding": "gzip"}
        with to_each(server) as connections:
            for connection in connections.values():
                assert connection.ask("PUT", "/coded", b"not gzip at all", coded).status == 201
        found = [part for part in entries(server.http) if part.about == "/coded"]
        assert [part.value("Content-Encoding") for part in found] == ["gzip"] * (WORKERS + 1)
