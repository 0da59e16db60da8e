"""`wes publish`: every line once, in order for each target, and never twice when the outcome is unknown."""

import gzip
import json
import os
import pty
import random
import select
import signal
import subprocess
import sys
import termios
import threading
import time
from collections import defaultdict
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from gateway.cli import main
from tests.walk import walk


class Recorder(ThreadingHTTPServer):
    """A gateway that keeps what it is sent; `decide` returns a status, or None to cut the connection."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, decide=lambda number, path: 200):
        super().__init__(("127.0.0.1", 0), Handler)
        self.decide = decide
        self.lock = threading.Lock()
        self.requests = []
        self.under_way = self.most_under_way = 0
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request, client_address):
        """A connection that a test cut is no news."""

    def bodies(self, path):
        return [body for method, to, content_type, body in self.requests if to == path]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def answer(self):
        server = self.server
        with server.lock:
            server.under_way += 1
            server.most_under_way = max(server.most_under_way, server.under_way)
            number = len(server.requests)
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            server.requests.append((self.command, self.path, self.headers["Content-Type"], body))
        status = server.decide(number, self.path)
        with server.lock:
            server.under_way -= 1
        if status is None:
            self.connection.close()
            self.close_connection = True
            return
        self.send_response(status)
        problem = b'{"detail": "the reason"}' if status >= 300 else b""
        if status in (429, 503):
            self.send_header("Retry-After", "0")
        if status < 300:
            self.send_header("Link", f'<{self.path}>; rel="about", </feeds/events/0/events/1>; rel="self"')
        self.send_header("Content-Length", str(len(problem)))
        self.end_headers()
        self.wfile.write(problem)

    do_GET = do_PUT = do_POST = do_PATCH = do_DELETE = answer

    def log_message(self, *args):
        pass


@contextmanager
def recorder(*args):
    server = Recorder(*args)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def line(number, target=None):
    return json.dumps({"method": "PUT", "target": target or f"/t/{number}", "body": number})


@pytest.fixture
def lines(tmp_path):
    """Write lines into a file, and return its name."""

    def write(*texts, name="events.ndjson"):
        data = "".join(f"{text}\n" for text in texts).encode()
        path = tmp_path / name
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return str(path)

    return write


def published(capsys):
    out, err = capsys.readouterr()
    return json.loads(out), err


def test_events_about_one_target_keep_their_order_and_others_go_side_by_side(lines, capsys):
    chance = random.Random(1)

    def slowly(number, path):
        time.sleep(chance.random() / 100)
        return 201

    targets = [f"/t/{chance.randrange(40)}" for _ in range(400)]
    file = lines(*(line(number, target) for number, target in enumerate(targets)))
    with recorder(slowly) as server:
        assert main(["publish", server.url, file, "--json"]) == 0
    expected = defaultdict(list)
    for number, target in enumerate(targets):
        expected[target].append(b"%d" % number)
    assert {path: server.bodies(path) for path in expected} == expected
    assert len(server.requests) == 400
    assert 4 < server.most_under_way <= 16
    result, _ = published(capsys)
    assert result["published"] == 400
    assert result["rate"] == pytest.approx(400 / result["seconds"], rel=0.05)


def test_requests_carry_method_type_and_body_of_their_lines(lines):
    file = lines(
        '{"method":"PUT","target":"/a?b=%20c","content_type":"application/json; v=1","body": 1.10 }',
        "",
        '{"method":"POST","target":"/p","body_text":"\\u00e4"}',
        '{"method":"PATCH","target":"/x","content_type":"application/merge-patch+json","body":{}}',
        "   ",
        '{"method":"PUT","target":"/e","content_type":"text/plain","body_text":""}',
        '{"method":"POST","target":"/n"}',
        '{"method":"DELETE","target":"/d"}',
        '{"specversion":"1.0","id":"1","source":"/s","type":"t","subject":"1","data":{ }}',
    )
    with recorder() as server:
        assert main(["publish", server.url + "/", file, "--parallel", "1"]) == 0
    assert server.requests == [
        ("PUT", "/a?b=%20c", "application/json; v=1", b"1.10"),
        ("POST", "/p", "text/plain; charset=utf-8", "\u00e4".encode()),
        ("PATCH", "/x", "application/merge-patch+json", b"{}"),
        ("PUT", "/e", "text/plain", b""),
        ("POST", "/n", None, b""),
        ("DELETE", "/d", None, b""),
        ("PUT", "/s/1", "application/json", b"{ }"),
    ]


def test_several_files_and_options_between_them_are_read_in_order(lines, capsys):
    one, two = lines(line(1, "/t")), lines(line(2, "/t"), line(3, "/t"), name="two.ndjson.gz")
    with recorder() as server:
        assert main(["publish", server.url, one, "--parallel", "2", two, "--json"]) == 0
    assert server.bodies("/t") == [b"1", b"2", b"3"]


def test_a_last_line_without_a_line_break_counts(tmp_path):
    file = tmp_path / "x"
    file.write_text(line(1, "/t") + "\r\n" + line(2, "/t"))
    with recorder() as server:
        assert main(["publish", server.url, str(file)]) == 0
    assert server.bodies("/t") == [b"1", b"2"]


def test_a_line_longer_than_what_is_read_at_once_is_whole(lines):
    text = "x" * 300_000
    with recorder() as server:
        file = lines(line(1, "/t"), json.dumps({"method": "PUT", "target": "/t", "body_text": text}))
        assert main(["publish", server.url, file]) == 0
    assert server.bodies("/t") == [b"1", text.encode()]


@pytest.mark.parametrize("status", [503, 429])
def test_not_now_is_repeated_until_it_is_taken(status, lines, capsys):
    with recorder(lambda number, path: status if number % 3 else 200) as server:
        file = lines(*(line(number, "/t") for number in range(10)))
        assert main(["publish", server.url, file, "--json"]) == 0
    taken = [body for i, (*_, body) in enumerate(server.requests) if i % 3 == 0]
    assert taken == [b"%d" % number for number in range(10)]
    assert published(capsys)[0]["published"] == 10


def test_a_kept_connection_that_breaks_never_makes_a_second_event(lines, capsys):
    """A PUT is idempotent for HTTP, and clients like to send it again by themselves; an event is not."""
    with recorder(lambda number, path: None if number == 2 else 201) as server:
        file = lines(*(line(number, "/t") for number in range(5)))
        assert main(["publish", server.url, file, "--json"]) == 1
    assert server.bodies("/t") == [b"0", b"1", b"2"]
    result, err = published(capsys)
    assert (result["published"], result["line"], result["outcome"]) == (2, 3, "unknown")
    assert result["file"] == file
    assert f"{file}:3: sent to" in err
    assert "2 events are acknowledged, among them all in front of that line" in err


@pytest.mark.parametrize(
    ("status", "outcome"),
    [(400, "refused"), (404, "refused"), (302, "refused"), (500, "unknown"), (504, "unknown")],
)
def test_any_other_answer_stops_and_its_reason_is_told(status, outcome, lines, capsys):
    with recorder(lambda number, path: status if number == 1 else 201) as server:
        file = lines(*(line(number, "/t") for number in range(5)))
        assert main(["publish", server.url, file, "--json"]) == 1
    assert server.bodies("/t") == [b"0", b"1"]
    result, err = published(capsys)
    assert (result["published"], result["line"], result["outcome"]) == (1, 2, outcome)
    assert f"answered with {status}, the reason" in err


def test_what_was_under_way_beside_a_failure_is_named(lines, capsys):
    gate = threading.Event()

    def decide(number, path):
        if path == "/bad":
            return 400
        gate.wait(0.3)
        return 201

    with recorder(decide) as server:
        file = lines(line(0, "/a"), line(1, "/a"), line(2, "/bad"), *(line(n, "/a") for n in (3, 4)))
        assert main(["publish", server.url, file, "--json"]) == 1
    result, err = published(capsys)
    assert (result["published"], result["line"]) == (1, 3)
    assert f"Not sent, in front of that line: {file}:2" in err
    assert server.bodies("/a") == [b"0"]


def test_a_bad_line_stops_before_anything_behind_it_and_after_all_in_front(lines, capsys):
    with recorder() as server:
        file = lines(*(line(n) for n in range(100)), '{"method":"PUT"}', line(200), line(201))
        assert main(["publish", server.url, file, "--json"]) == 1
    assert sorted(body for *_, body in server.requests) == sorted(b"%d" % n for n in range(100))
    result, err = published(capsys)
    assert (result["published"], result["line"], result["outcome"]) == (100, 101, "bad_line")
    assert f"{file}:101: no target" in err
    assert "100 events are acknowledged, among them all in front of that line" in err


def test_a_broken_gzip_file_is_named(tmp_path, capsys):
    file = tmp_path / "x.gz"
    file.write_bytes(gzip.compress((line(1) + "\n").encode())[:-4])
    with recorder() as server:
        assert main(["publish", server.url, str(file)]) == 1
    assert f"{file}: reading failed" in capsys.readouterr().err


def test_nothing_is_sent_when_a_file_is_missing_or_the_url_is_wrong(lines, tmp_path, capsys):
    with recorder() as server:
        assert main(["publish", server.url, lines(line(1)), str(tmp_path / "none")]) == 2
        assert "none: No such file" in capsys.readouterr().err
        assert main(["publish", f"{server.url}/?q=1", lines(line(1))]) == 2
    for url in ("ftp://example.org", "example.org", "http://", "http:///x"):
        assert main(["publish", url, lines(line(1))]) == 2
    assert server.requests == []


def test_a_gateway_that_is_not_there_is_said_to_be_so(lines, capsys):
    with recorder() as server:
        pass
    assert main(["publish", server.url, lines(line(1))]) == 1
    assert "cannot be reached" in capsys.readouterr().err
    assert main(["publish", server.url.replace("http", "amqp"), lines(line(1))]) == 1


def test_a_log_that_is_named_is_the_only_one_that_events_may_go_to(lines, capsys):
    with recorder() as server:
        assert main(["publish", server.url, "--log", "events", lines(line(1))]) == 0
        assert main(["publish", server.url, "--log", "other", lines(line(1))]) == 1
        assert "not to the log other" in capsys.readouterr().err
    with recorder(lambda number, path: 404) as server:
        assert main(["publish", server.url, "--log", "other", lines(line(1))]) == 1
        assert "is other a log there?" in capsys.readouterr().err


def command(*arguments, **more):
    return subprocess.Popen(
        [sys.executable, "-m", "gateway", "publish", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **more,
    )


def test_lines_from_standard_input_are_sent_as_they_come():
    with recorder() as server:
        process = command(server.url)
        for number in range(3):
            process.stdin.write(line(number, "/t") + "\n")
            process.stdin.flush()
            deadline = time.monotonic() + 20
            while len(server.requests) <= number and time.monotonic() < deadline:
                time.sleep(0.01)
            assert server.bodies("/t")[-1] == b"%d" % number
        out, err = process.communicate(timeout=20)
    assert process.returncode == 0
    assert out.startswith("published 3 events to http://127.0.0.1:")
    assert err == "", "no bar where there is no terminal"


def test_a_terminal_shows_progress_and_the_result_stays_clean(lines):
    ours, theirs = pty.openpty()
    # A new pseudo-terminal has no columns, and then there is no room for a bar.
    termios.tcsetwinsize(theirs, (24, 80))
    with recorder(lambda number, path: time.sleep(0.02) or 201) as server:
        file = lines(*(line(number, "/t") for number in range(50)))
        process = subprocess.run(
            [sys.executable, "-m", "gateway", "publish", server.url, file, "--json"],
            stdout=subprocess.PIPE,
            stderr=theirs,
            check=True,
        )
    assert select.select([ours], [], [], 0)[0], "something was written"
    assert b" events" in os.read(ours, 65536)
    os.close(theirs)
    os.close(ours)
    assert json.loads(process.stdout)["published"] == 50


def test_a_silent_pipe_does_not_keep_a_failed_publication_alive():
    with recorder(lambda number, path: 400) as server:
        process = command(server.url)
        process.stdin.write(line(1) + "\n" + line(2) + "\n")
        process.stdin.flush()
        deadline = time.monotonic() + 20
        while not server.requests and time.monotonic() < deadline:
            time.sleep(0.01)
        assert process.wait(20) == 1
        _, err = process.communicate()
    assert "standard input:1: answered with 400" in err
    assert "Fatal" not in err


def test_an_interrupted_publication_says_how_far_it_came():
    with recorder() as server:
        process = command(server.url, "--json")
        process.stdin.write(line(1) + "\n")
        process.stdin.flush()
        deadline = time.monotonic() + 20
        while not server.requests and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    assert process.returncode == 1
    assert json.loads(out)["published"] == 1
    assert "interrupted" in err
    assert "Traceback" not in err


def test_amqp_without_its_extra_is_said_in_a_sentence(lines):
    code = (
        "import sys; sys.modules['proton'] = sys.modules['cproton'] = None\n"
        "from gateway.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "publish", "amqp://127.0.0.1:1", lines(line(1))],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert 'pip install "web-event-sourcing[gateway]"' in done.stderr
    assert "Traceback" not in done.stderr


def test_events_published_either_way_are_in_the_feed_as_their_lines_say(start_gateway, lines, capsys):
    gateway = start_gateway("--archive-events-max", "50")
    members = [
        {"method": "PUT", "target": f"/t/{n % 7}", "content_type": "application/json", "body": n}
        for n in range(300)
    ]
    members[5::10] = [{"method": "DELETE", "target": f"/t/{n}"} for n in range(30)]
    file = lines(*map(json.dumps, members))
    expected = [(m["target"], m["method"], str(m.get("body", "")).encode()) for m in members]
    assert main(["publish", gateway.amqp, file, "--json"]) == 0
    assert published(capsys)[0]["published"] == 300
    deadline = time.monotonic() + 30
    while len(walk(gateway.http, "events")["0"]) < 300 and time.monotonic() < deadline:
        time.sleep(0.05)
    events = walk(gateway.http, "events")["0"]
    assert [(e.target, e.method, e.body) for e in events] == expected, "one link, one order"
    assert main(["publish", gateway.http, file, "--json"]) == 0
    again = walk(gateway.http, "events")["0"][300:]
    for target in {m["target"] for m in members}:
        wanted = [(method, body) for to, method, body in expected if to == target]
        assert [(e.method, e.body) for e in again if e.target == target] == wanted
    capsys.readouterr()
    assert main(["check", f"{gateway.http}/feeds/events", "--strict", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["events"] == 600
