"""Events as lines: what was written is what is read, and an earlier output is gone on with exactly."""

import io
import json
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import InvalidEvent
from gateway.core.event import Event, Method
from gateway.core.eventline import parse_event_line
from gateway.sync import FeedEvent, ndjson
from gateway.sync.copy import CopyMismatch
from gateway.sync.ndjson import NdjsonCopy, event_line, start_over_line

GENERATION = "0123456789abcdef"
URL = "http://feeds.example.org/feeds/events/0/latest"
DATE = "Tue, 14 Nov 2023 22:13:20 GMT"


def feed_event(ordinal, body=b"1", content_type="application/json", *, partition="0", headers=(), **fields):
    event = FeedEvent(
        Method.PUT,
        f"/t/{ordinal}",
        content_type,
        body,
        DATE,
        tuple(headers),
        f"<{ordinal}.{GENERATION}@{partition}.events.example.org>",
        f"/feeds/events/{partition}/events/{ordinal}",
        ordinal,
        URL,
        "http-equiv=PUT",
    )
    return event._replace(**fields)


def written(event):
    return event_line("0", event.ordinal, event)


# Lines


def test_a_line_says_where_the_event_stands_and_what_it_is():
    line = written(feed_event(7, b'{"n":1.10}', headers=[("Content-Language", "en")]))
    assert line == (
        b'{"partition":"0","ordinal":7,"content_id":"<7.0123456789abcdef@0.events.example.org>",'
        b'"entry":"/feeds/events/0/events/7","method":"PUT","target":"/t/7",'
        b'"content_type":"application/json","last_modified":"Tue, 14 Nov 2023 22:13:20 GMT",'
        b'"extra_headers":[["Content-Language","en"]],"body":{"n":1.10}}\n'
    )


@pytest.mark.parametrize(
    ("body", "key"),
    [
        (b'{"a":1.10,"a":[1e400,-0]}', "body"),
        (b'{ "a" : 1 }', "body"),
        (b'"\\ud800"', "body"),
        ('{"ü":"€"}'.encode(), "body"),
        (b"[" + b",".join([b"{}"] * 1000) + b"]", "body"),
        (b"9" * 10_000, "body"),
        (b'{"a":1}\n', "body_text"),
        (b'{\n"a":1}', "body_text"),
        (b'{\r"a":1}', "body_text"),
        (b" 1", "body_text"),
        (b"1\t", "body_text"),
        (b"\xef\xbb\xbf1", "body_text"),
        (b"NaN", "body_text"),
        (b'"\x01"', "body_text"),
        (b"{}}", "body_text"),
        (b'{},"x":{}', "body_text"),
        (b"plain", "body_text"),
        (b"\0\xe2\x80\xa8", "body_text"),
        (b"[" * 100_000 + b"]" * 100_000, "body_text"),
        (b"\xff", "body_base64"),
        (b'"\xff"', "body_base64"),
    ],
)
def test_a_body_stands_as_it_is_if_it_can_and_always_comes_back(body, key):
    line = written(feed_event(0, body, "text/plain"))
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert [name for name in ("body", "body_text", "body_base64") if name in json_keys(line)] == [key]
    assert parse_event_line(line) == Event(Method.PUT, "/t/0", "text/plain", body)


def json_keys(line):
    for key in (b',"body":', b',"body_text":', b',"body_base64":'):
        if key in line:
            return json.loads(line[: line.index(key)] + key + b"0}")
    return json.loads(line)


headers = st.sampled_from(
    [(), (("Content-Encoding", "gzip"),), (("traceparent", "00-1-2-01"), ("Content-Language", "en"))]
)


@given(
    st.sampled_from([Method.PUT, Method.POST, Method.PATCH]),
    st.binary(max_size=40)
    | st.text(max_size=20).map(str.encode)
    | st.recursive(st.integers() | st.text() | st.none(), st.lists).map(lambda v: json.dumps(v).encode()),
    st.sampled_from(["application/json", "text/plain", "application/octet-stream"]),
    headers,
)
def test_what_a_line_says_can_be_published_as_it_was(method, body, content_type, extra):
    event = feed_event(3, body, content_type, method=method, extra_headers=extra)
    assert parse_event_line(written(event)) == Event(
        method, "/t/3", content_type, body, extra_headers=tuple(extra)
    )


def test_a_delete_and_a_body_without_a_type_can_be_published():
    line = written(feed_event(1, b"", None, method=Method.DELETE))
    assert parse_event_line(line) == Event(Method.DELETE, "/t/1", None, b"")
    line = written(feed_event(1, b"{}", None))
    assert parse_event_line(line) == Event(Method.PUT, "/t/1", "application/octet-stream", b"{}")


def test_an_event_of_another_family_and_a_start_over_are_told_and_not_published():
    line = written(feed_event(1, b"{}", method=None, event_type="other=thing"))
    assert json.loads(line)["event_type"] == "other=thing"
    for refused in (line, start_over_line("0", "another generation")):
        with pytest.raises(InvalidEvent, match="unknown key"):
            parse_event_line(refused)


@pytest.mark.parametrize(
    "extra",
    [
        *([["Host", "x"]], [["transfer-encoding", "chunked"]], [["a b", "x"]], [["", "x"]], [["a", ""]]),
        *(
            [["a", "x\r\nb: y"]],
            [["a", "ü"]],
            [["a", 1]],
            [[1, "a"]],
            {"a": "b"},
            "a",
            [["a"]],
            None,
            [["a", 1.0]],
        ),
    ],
)
def test_extra_headers_that_cannot_be_sent_are_refused(extra):
    line = json.dumps({"method": "PUT", "target": "/a", "body": 1, "extra_headers": extra})
    with pytest.raises(InvalidEvent, match="extra_headers"):
        parse_event_line(line.encode())


# Going on


def output(*groups):
    """What a run writes for events by partition, and where its lines end."""
    stream = io.BytesIO()
    copy = NdjsonCopy(stream)
    for partition, events in groups:
        copy.begin(partition, URL)
        copy.apply(partition, events)
    return stream.getvalue()


def position_after(path, *partitions):
    found = []
    with closing(NdjsonCopy(io.BytesIO(), after=path)) as copy:
        for partition in partitions:
            copy.begin(partition, URL)
            found.append(copy.checkpoint(partition).ordinal)
    return found


@pytest.mark.parametrize("block_bytes", [1, 7, 64, 1 << 20])
def test_a_torn_last_line_is_cut_off_wherever_it_was_torn(tmp_path, monkeypatch, block_bytes):
    monkeypatch.setattr(ndjson, "BLOCK_BYTES", block_bytes)
    path = tmp_path / "out.ndjson"
    events = [feed_event(number, b'{"text":"line"}') for number in range(4)]
    whole = output(("0", events))
    start = whole.rindex(b"\n", 0, -1) + 1
    for end in (*range(start, start + 40), *range(len(whole) - 3, len(whole) + 1)):
        path.write_bytes(whole[:end])
        lines = whole[:end].count(b"\n")
        assert position_after(path, "0") == [lines - 1]
        stream = io.BytesIO()
        copy = NdjsonCopy(stream, after=path)
        copy.begin("0", URL)
        copy.apply("0", events[lines:])
        copy.close()
        assert path.read_bytes() + stream.getvalue() == whole


@pytest.mark.parametrize("block_bytes", [5, 1 << 20])
def test_each_partition_goes_on_behind_its_own_last_line(tmp_path, monkeypatch, block_bytes):
    monkeypatch.setattr(ndjson, "BLOCK_BYTES", block_bytes)
    path = tmp_path / "out.ndjson"
    one = [feed_event(number, partition="1") for number in range(3)]
    path.write_bytes(output(("1", one), ("0", [feed_event(number) for number in range(9)])))
    assert position_after(path, "0", "1", "2") == [8, 2, None]
    assert position_after(path, "2", "1") == [None, 2]


def test_lines_before_a_start_over_hold_no_more(tmp_path):
    path = tmp_path / "out.ndjson"
    before = output(("0", [feed_event(number) for number in range(9)]), ("1", [feed_event(0, partition="1")]))
    path.write_bytes(before + start_over_line("0", "gone"))
    assert position_after(path, "0", "1") == [None, 0]
    path.write_bytes(before + start_over_line("0", "gone") + written(feed_event(0)))
    assert position_after(path, "1", "0") == [0, 0]


def test_a_first_output_may_be_empty_torn_or_not_there(tmp_path):
    path = tmp_path / "out.ndjson"
    assert position_after(path, "0") == [None]
    path.write_bytes(b"")
    assert position_after(path, "0") == [None]
    path.write_bytes(output(("0", [feed_event(0)]))[:-20])
    assert position_after(path, "0") == [None]
    assert path.read_bytes() == b""


@pytest.mark.parametrize("content", [b"dear reader", b'{"a":1}\n', b'{"partition":"0"}\n', b"1\n" * 9])
def test_any_other_file_is_refused_and_not_touched(tmp_path, content):
    path = tmp_path / "letter.txt"
    path.write_bytes(content)
    with pytest.raises(CopyMismatch, match="is not what wes sync writes"):
        position_after(path, "0")
    assert path.read_bytes() == content
