"""Places: a data folder and a gateway's URL tell the same of a log, and give each event once or fail."""

from __future__ import annotations

import pickle
import shutil
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.core.errors import InvalidSetting
from gateway.core.event import Event, Method
from gateway.core.multipart import Part, boundary_of, delimiter, read_parts
from gateway.core.snapshots import FeedPoint
from gateway.core.state import Digest, etag_of
from snapshots import asking, entries, places
from snapshots.folder_place import FolderPlace
from snapshots.places import FeedLost, open_place
from snapshots.server_place import ServerPlace
from tests.acceptance.support import put
from tests.feeds import TIME_MS, event
from tests.servers import Server, gateway
from tests.snapshots.written import LOG, Reply, Written, read_rows, twisted


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def feed(data: Path) -> Iterator[Written]:
    """A feed with 23 events in pages of 5."""
    with Written(data) as feed:
        feed.add(*(event(number) for number in range(23)))
        yield feed


@pytest.fixture
def server(data: Path, feed: Written) -> Iterator[Server]:
    """A gateway that serves the feed; there is no log behind it that it could grow from."""
    feed.close()
    server = gateway(data, "--archive-events-max", "5").start(ready=False)
    yield server
    server.stop()


def test_the_vector_of_a_folder_names_the_last_event_of_each_partition(data):
    with ExitStack() as stack:
        feeds = {name: stack.enter_context(Written(data, name)) for name in ("10", "2", "0")}
        stack.enter_context(Written(data, "7"))
        for count, feed in enumerate(feeds.values(), 4):
            feed.add(*(event(number) for number in range(count)))
        (data / "feeds" / LOG / "11").mkdir()

        vector = open_place(str(data), None).vector()

        assert [(point.partition, point.last) for point in vector.points] == [("0", 5), ("2", 4), ("10", 3)]
        assert vector.ends == {"0": 6, "2": 5, "10": 4}
        for point in vector.points:
            feed = feeds[point.partition]
            page = feed.store.page_of(point.last)
            parts = read_parts(page.boundary, _closed(feed, page.number))
            assert point.content_id == parts[-1].value("Content-ID")
            assert point.entry == parts[-1].entry
            assert point.document == f"/feeds/events/{point.partition}/archive/{page.number}"
        for feed in feeds.values():
            feed.store.refresh()
        digests = [feed.store.head.digest for feed in feeds.values()]
        assert vector.entities == sum(digest.entities for digest in digests)
        assert vector.digest == sum(digests[1:], digests[0]).hex()


def _closed(feed: Written, number: int) -> bytes:
    """A page as a whole document."""
    page = feed.store.page(number)
    data = feed.page_file(number).read_bytes()
    return data if page.sealed else data + b"--%s--\r\n" % page.boundary.encode()


def test_a_folder_and_its_gateway_tell_the_same(data, feed, server):
    with Written(data, "1") as second:
        second.add(event(1))
    server.stop()
    server.start(ready=False)
    folder, remote = open_place(str(data), None), open_place(f"{server.http}/", None)
    assert (remote.log, folder.log) == (LOG, LOG)
    assert open_place(f"{server.http}/feeds/{LOG}", None) == remote
    vector = folder.vector()
    assert [point.last for point in vector.points] == [22, 0]
    assert remote.vector() == vector
    assert remote.sealed() == folder.sealed() == {"0": 20, "1": 0}
    for ordinal in (0, 4, 5, 22):
        assert remote.fragment("0", ordinal) == folder.fragment("0", ordinal)
        assert remote.fragment("0", ordinal).startswith(f"{ordinal}.")
    for place in (folder, remote):
        assert place.holds(vector.points[0])
        assert not place.holds(replace(vector.points[0], content_id=vector.points[1].content_id))
        assert not place.holds(replace(vector.points[0], last=23))
        assert not place.holds(FeedPoint("5", 0, "/e", "<0.0@x>", "/d"))
        assert open_place(place.option()["from"], place.option()["log"]) == place
        for start in (0, 3, 5, 20, 21):
            for end in (start, 5, 6, 20, 23):
                if start <= end:
                    assert read_rows(place, "0", start, end) == feed.rows(start, end)
        with pytest.raises(FeedLost, match=r"has 23 events, and 24 are asked for"):
            place.ranges("0", 0, 24, 2)
        with pytest.raises(FeedLost, match="there is no event 23"):
            place.fragment("0", 23)


@pytest.mark.parametrize("remote", [False, True], ids=["folder", "server"])
def test_ranges_are_cut_at_documents_and_hold_each_event_once(data, feed, server, remote, monkeypatch):
    place = open_place(server.http if remote else str(data), None)
    monkeypatch.setattr(places, "RANGE_BYTES_MIN", 1)
    whole = place.ranges("0", 2, 23, 100)
    assert [(found.start, found.end) for found in whole] == [(2, 5), (5, 10), (10, 15), (15, 20), (20, 23)]
    three = place.ranges("0", 2, 23, 3)
    assert len(three) == 3
    assert [found.start for found in three][1:] == [found.end for found in three][:-1]
    copies = pickle.loads(pickle.dumps(three))  # noqa: S301 - as Spark hands them to tasks
    assert copies == three
    assert [n for found in copies for some in found.documents() for n in range(some.first, some.end)] == list(
        range(2, 23)
    )
    monkeypatch.undo()
    assert len(place.ranges("0", 2, 23, 100)) == 1


def test_every_kind_of_event_is_read_as_it_was_written(data):
    long = "/" + "x" * 1_999
    with Written(data, events_max=4, extra_headers=("Content-Language", "X-Trace")) as feed:
        feed.add(
            Event(Method.PUT, long, "text/plain; charset=utf-8", b"\r\n--\r\n\r\n", TIME_MS + 1),
            Event(Method.DELETE, "/a", None, b"", TIME_MS + 999),
            Event(Method.POST, "/b?q=1", "application/octet-stream", bytes(range(256)), None),
            Event(Method.PATCH, "/c", None, b"", None, (("Content-Encoding", "gzip"), ("X-Trace", "a: b"))),
            Event(
                Method.PUT, "/d%20", "x/y", b"Content-ID: <1.2@3>\r\n", TIME_MS, (("Content-Language", "de"),)
            ),
        )
        assert read_rows(open_place(str(data), LOG), "0", 0, 5) == feed.rows()


def test_an_event_that_holds_a_delimiter_is_read_whole(data):
    with Written(data, events_max=100) as feed:
        feed.add(event(0))
        boundary = feed.paginator.page.boundary
        body = b"a\r\n" + delimiter(boundary) + b"Content-ID: <9.9@0>\r\n\r\n"
        feed.add(event(1, body=body), event(2))
        assert read_rows(open_place(str(data), None), "0", 0, 3) == feed.rows()


def test_what_was_planned_is_read_the_same_after_the_page_grew_and_was_sealed(data, feed):
    place = FolderPlace.open(data, None)
    plan = place.ranges("0", 18, 23, 1)
    expected = feed.rows(18, 23)
    feed.add(*(event(number) for number in range(23, 24)))
    assert _rows(plan) == expected
    feed.add(*(event(number) for number in range(24, 40)))
    assert _rows(plan) == expected
    assert read_rows(place, "0", 18, 40) == feed.rows(18, 40)


def _rows(plan):
    found = [
        row for some in plan for batch in entries.batches("0", some.documents()) for row in batch.to_pylist()
    ]
    for row in found:
        del row["content_id"]
    return found


def test_over_http_what_was_planned_is_read_the_same_after_the_page_was_sealed(start_gateway):
    server = start_gateway("--archive-events-max", "4")
    for number in range(6):
        put(server.http, f"/things/{number}", b"%d" % number)
    place = open_place(server.http, None)
    vector = place.vector()
    plan = place.ranges("0", 1, vector.ends["0"], 1)
    bodies = [row["body"] for row in _rows(plan)]
    assert bodies == [b"1", b"2", b"3", b"4", b"5"]
    for number in range(6, 11):
        put(server.http, f"/things/{number}", b"%d" % number)
    assert [row["body"] for row in _rows(plan)] == bodies
    assert place.holds(vector.points[0])
    assert vector.points[0].document == "/feeds/events/0/archive/1"


@pytest.mark.parametrize("spoil", ["byte", "short", "long", "gone"])
@pytest.mark.parametrize("page", [1, 4], ids=["sealed", "open"])
def test_a_damaged_page_fails_the_read_and_is_named(data, feed, page, spoil):
    place = FolderPlace.open(data, None)
    plan = place.ranges("0", 0, 23, 1)
    path = feed.page_file(page)
    content = path.read_bytes()
    if spoil == "gone":
        path.unlink()
    elif spoil == "byte":
        path.write_bytes(content.replace(b'"number"', b'"numbeR"', 1))
    else:
        path.write_bytes(content[:-3] if spoil == "short" else content + b"more")
    if (page, spoil) == (4, "long"):
        # What follows in an open page is no event yet.
        assert _rows(plan) == feed.rows()
    else:
        with pytest.raises(FeedLost, match=rf"page {page} in .*/pages/{page} is damaged"):
            _rows(plan)


def test_another_feed_in_the_place_of_the_old_one_is_noticed(data, feed):
    place = FolderPlace.open(data, None)
    point = place.vector().points[0]
    assert place.holds(point)
    feed.close()
    shutil.rmtree(data)
    with Written(data) as other:
        other.add(*(event(number) for number in range(1, 30)))
        assert not place.holds(point)


def test_a_place_that_is_not_there_is_said(data, feed, monkeypatch):
    monkeypatch.setattr(asking, "RETRIES_MAX", 0)
    for from_, log, text in (
        (str(data / "no"), None, "there is no data folder"),
        (str(data), "orders", "there is no log orders in"),
        (str(data), "../events", "is not a name"),
        (str(data / "feeds"), None, "there is no log in"),
        ("http://127.0.0.1:9/", None, "cannot be read"),
    ):
        with pytest.raises(FeedLost, match=text):
            open_place(from_, log)
    (data / "feeds" / "orders").mkdir()
    with pytest.raises(FeedLost, match=r"there are 2 logs in .*: name one of events, orders"):
        open_place(str(data), None)
    for from_, log in (("", None), ("ftp://example.org/", None), ("http://example.org/x?y", None)):
        with pytest.raises(InvalidSetting):
            open_place(from_, log)
    with pytest.raises(InvalidSetting, match="is the log events, and the log orders is asked for"):
        open_place("http://example.org/feeds/events", "orders")


def test_a_server_that_is_no_gateway_is_said(server):
    def twist(path: str, reply: Reply) -> Reply:
        return Reply(200, [("Content-Length", "2")], b"[]" if path == "/" else b"{}")

    with twisted(server.http, twist) as url:
        with pytest.raises(FeedLost, match="is not a document of a gateway"):
            open_place(url, None)
        with pytest.raises(FeedLost, match="is not the log document of a gateway"):
            ServerPlace.open(url, "events").vector()
    with pytest.raises(FeedLost, match="404"):
        ServerPlace.open(server.http, "orders").vector()


def test_a_document_changed_on_the_way_fails_the_read_and_is_named(server, feed):
    def twist(path: str, reply: Reply) -> Reply:
        if path.endswith("/archive/1"):
            return reply._replace(body=reply.body.replace(b'"number"', b'"numbeR"', 1))
        return reply

    with twisted(server.http, twist) as url:
        place = open_place(url, None)
        assert read_rows(place, "0", 10, 23) == feed.rows(10, 23)
        with pytest.raises(FeedLost, match="/archive/1 is damaged: its SHA-256"):
            read_rows(place, "0", 0, 23)


def test_a_document_without_one_event_fails_the_read(server):
    def twist(path: str, reply: Reply) -> Reply:
        if not path.endswith("/archive/1"):
            return reply
        headers = [pair for pair in reply.headers if pair[0] not in ("ETag", "Content-Length")]
        boundary = boundary_of(dict(headers)["Content-Type"]).encode()
        pieces = reply.body.split(b"--" + boundary + b"\r\n")
        body = (b"--" + boundary + b"\r\n").join(pieces[:2] + pieces[3:])
        return Reply(200, [*headers, ("Content-Length", str(len(body)))], body)

    with (
        twisted(server.http, twist) as url,
        pytest.raises(FeedLost, match="not one series of /feeds/events/0"),
    ):
        read_rows(open_place(url, None), "0", 0, 23)


def test_an_answer_that_ends_early_or_comes_later_is_asked_for_again(server, feed, monkeypatch):
    monkeypatch.setattr(asking, "BROKEN_WAIT_S", 0.01)
    asked: dict[str, int] = {}

    def twist(path: str, reply: Reply) -> Reply | None:
        asked[path] = asked.get(path, 0) + 1
        if asked[path] > 1:
            return reply
        if "/archive/" in path and reply.status == 200:
            return None
        return Reply(503, [("Retry-After", "0"), ("Content-Length", "0")], b"")

    with twisted(server.http, twist) as url:
        assert read_rows(open_place(url, None), "0", 0, 23) == feed.rows()
    assert all(count > 1 for count in asked.values())


def test_documents_written_anew_on_the_way_are_read_with_the_parser_for_all_forms(server, feed):
    def rendered(part: Part) -> bytes:
        lines = [f"{name.lower()}:   {value}\r\n" for name, value in reversed(part.headers)]
        return "".join(lines).encode() + b"\r\n" + part.body + b"\r\n"

    def twist(path: str, reply: Reply) -> Reply:
        if reply.status != 200 or path.count("/") < 4:
            return reply
        headers = dict(reply.headers)
        parts = read_parts(boundary_of(headers["Content-Type"]), reply.body)
        body = b"".join(b"--other one\r\n" + rendered(part) for part in parts) + b"--other one--"
        content_type = 'multipart/mixed; boundary="other one"'
        return Reply(200, [("Content-Type", content_type), ("Content-Length", str(len(body)))], body)

    with twisted(server.http, twist) as url:
        assert read_rows(open_place(url, "events"), "0", 2, 23) == feed.rows(2, 23)


def test_a_batch_is_bounded_in_rows_and_bytes(data, monkeypatch):
    with Written(data, events_max=1000) as feed:
        feed.add(*(event(number, body=b"x" * 100) for number in range(50)))
        feed.add(event(50, body=b"y" * 2000), event(51))
        place = open_place(str(data), None)
        monkeypatch.setattr(entries, "BATCH_BYTES_MAX", 1000)
        sizes = [batch.num_rows for batch in _batches(place)]
        assert sum(sizes) == 52
        assert max(sizes) <= 1000 // 100
        assert 1 in sizes
        monkeypatch.undo()
        monkeypatch.setattr(entries, "BATCH_ROWS_MAX", 7)
        assert max(batch.num_rows for batch in _batches(place)) <= 7
        assert read_rows(place, "0", 0, 52) == feed.rows()


def _batches(place):
    return [
        batch for range_ in place.ranges("0", 0, 52, 1) for batch in entries.batches("0", range_.documents())
    ]


def test_a_body_of_8_mib_is_read_from_a_folder_and_over_http(data):
    with Written(data) as feed:
        feed.add(event(0), event(1, body=bytes(range(256)) * 32 * 1024), event(2))
        assert len(feed.events[1].body) == 8 << 20
        assert read_rows(open_place(str(data), None), "0", 0, 3) == feed.rows()
    server = gateway(data, "--archive-events-max", "5").start(ready=False)
    try:
        assert read_rows(open_place(server.http, None), "0", 0, 3) == feed.rows()
    finally:
        server.stop()


def test_a_reader_beside_the_writer_sees_each_event_up_to_its_vector(data):
    done = threading.Event()
    with Written(data, events_max=9) as feed:
        feed.add(event(0))

        def write() -> None:
            for number in range(1, 1500, 7):
                feed.add(*(event(n % 97, body=b"%d" % n) for n in range(number, number + 7)))
            done.set()

        writer = threading.Thread(target=write)
        writer.start()
        try:
            place, rounds = open_place(str(data), None), 0
            while not done.is_set() or not rounds:
                vector = place.vector()
                found = read_rows(place, "0", 0, vector.ends["0"])
                assert [row["ordinal"] for row in found] == list(range(vector.ends["0"]))
                assert _digest(found) == (vector.entities, vector.digest)
                assert place.holds(vector.points[0])
                rounds += 1
        finally:
            writer.join()
    assert found == feed.rows(0, len(found))


def _digest(found) -> tuple[int, str]:
    """The digest of what the rows make, by the core."""
    state = {row["target"]: etag_of(row["content_type"], row["body"]) for row in found}
    digest = Digest().with_changes((target, "", etag) for target, etag in state.items())
    return digest.entities, digest.hex()
