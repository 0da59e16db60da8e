"""A line is exactly one event, its body is the bytes that stand in it, and what is wrong is said."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import InvalidEvent
from gateway.core.event import Event, Method
from gateway.core.eventline import cloud_target, parse_event_line

CLOUD = {"specversion": "1.0", "id": "1", "source": "/products", "type": "org.example.changed"}


def parse(**members):
    return parse_event_line(json.dumps(members).encode())


def cloud(**members):
    return parse(**CLOUD | members)


def test_a_plain_line_becomes_its_event():
    line = b'{"method":"PUT","target":"/a","content_type":"application/json","body":{"x":1}}'
    assert parse_event_line(line) == Event(Method.PUT, "/a", "application/json", b'{"x":1}')


@pytest.mark.parametrize(
    "raw",
    [
        b"1.10",
        b"1e400",
        b"0.1000000000000000055",
        b"-0",
        b"9" * 5000,
        b"null",
        b"false",
        b'"text"',
        b'""',
        b"[]",
        b'{ "a" : 1.0,\t"a":2 }',
        b'{"\\u0061":"\\ud83d\\ude00\\/"}',
        b'"\\ud800"',
        '{"\u00e4":"\u20ac\U0001f600"}'.encode(),
        b'{"a":{"b":[{},[],"}",{"c":"]"}]}}',
    ],
)
def test_a_json_body_keeps_the_bytes_that_stand_in_the_line(raw):
    line = b' { "method" : "PUT" , "body" : \t' + raw + b' , "target" : "/a" } \r'
    assert parse_event_line(line) == Event(Method.PUT, "/a", "application/json", raw)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(json_values, st.booleans(), st.sampled_from([None, 1]), st.booleans())
def test_any_json_body_is_cut_out_exactly(value, ascii_only, indent, first):
    raw = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    members = ['"method":"POST"', '"target":"/t"']
    members.insert(0 if first else 2, f'"body":{raw}')
    line = "{" + ",".join(members) + "}"
    assert parse_event_line(line.encode("utf-8", "surrogatepass")).body == raw.encode()


def test_the_other_kinds_of_body_have_their_own_media_types():
    text = parse(method="POST", target="/a", body_text="h\u00e4\n")
    assert (text.content_type, text.body) == ("text/plain; charset=utf-8", "h\u00e4\n".encode())
    data = bytes(range(256))
    binary = parse(method="PUT", target="/a", body_base64=base64.b64encode(data).decode())
    assert (binary.content_type, binary.body) == ("application/octet-stream", data)
    typed = parse(method="PUT", target="/a", content_type="image/png", body_base64="AA==")
    assert (typed.content_type, typed.body) == ("image/png", b"\0")


def test_a_body_may_be_missing_or_empty():
    assert parse(method="POST", target="/a") == Event(Method.POST, "/a", None, b"")
    assert parse(method="PUT", target="/a", body_text="").body == b""
    assert parse(method="DELETE", target="/a") == Event(Method.DELETE, "/a", None, b"")
    assert parse(method="DELETE", target="/a", content_type="text/plain", body=None).body == b""


def test_a_target_is_percent_encoded():
    assert parse(method="PUT", target="/\u00e4 b").target == "/%C3%A4%20b"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"", "must start with '{'"),
        (b"[]", "must start with '{'"),
        (b"\xef\xbb\xbf{}", "must start with '{'"),
        (b"{", "double quotes"),
        (b"{}", "no method"),
        (b'{"method":"PUT"}', "no target"),
        (b'{"method":"PUT","target":"/a",}', "double quotes"),
        (b'{"method" "PUT"}', "':' is missing"),
        (b'{"method":"PUT" "target":"/a"}', "',' or '}' is missing"),
        (b'{"method":"PUT","target":"/a"} x', "goes on"),
        (b'{"method":"PUT","target":"/a"}{}', "goes on"),
        (b'{"method":"PUT","target":"/a","body":}', "Expecting value"),
        (b'{"method":"PUT","target":"/a","body":{"a"}}', "not JSON"),
        (b'{"method":"PUT","target":"/a","body":NaN}', "NaN is not JSON"),
        (b'{"method":"PUT","target":"/a","body":[-Infinity]}', "-Infinity is not JSON"),
        (b'{"method":"PUT","target":"/a","body":"' + b"\x01" + b'"}', "not JSON"),
        (b'{"method":"PUT","target":"/a","body":"\xff"}', "UTF-8"),
        (b'{"method":"PUT","target":"/a","body":' + b"[" * 200_000, "too deeply"),
        (b'{"method":"PUT","method":"PUT","target":"/a"}', "there twice"),
        (b'{"method":"PUT","target":"/a","Body":1}', "unknown key 'Body'"),
        (b'{"method":"PUT","target":"/a","body":1,"body_text":"1"}', "one body"),
        (b'{"method":"PUT","target":"/a","body_text":1}', "not text"),
        (b'{"method":"PUT","target":"/a","body_text":null}', "no body_text"),
        (b'{"method":"PUT","target":"/a","body_text":"\\ud800"}', "surrogate"),
        (b'{"method":"PUT","target":"/a","body_base64":"A"}', "not Base64"),
        (b'{"method":"PUT","target":"/a","body_base64":"\\u00e4"}', "not Base64"),
        (b'{"method":"put","target":"/a"}', "PUT, POST, PATCH or DELETE"),
        (b'{"method":1,"target":"/a"}', "quotation marks"),
        (b'{"method":"PUT","target":"a"}', "start with '/'"),
        (b'{"method":"PUT","target":"/a\\r\\nX: y"}', "control character"),
        (b'{"method":"PUT","target":"/a","content_type":"x"}', "not a media type"),
        (b'{"method":"PUT","target":"/a","content_type":"a/b\\r\\nX: y"}', "not a media type"),
        (b'{"method":"DELETE","target":"/a","body":{}}', "leave out body"),
        (b'{"method":"DELETE","target":"/a","body_text":"x"}', "leave out body_text"),
    ],
)
def test_what_is_wrong_with_a_line_is_said(line, said):
    with pytest.raises(InvalidEvent) as caught:
        parse_event_line(line)
    assert said in str(caught.value)
    assert len(str(caught.value)) < 300


@given(st.binary(max_size=60) | st.text(max_size=60).map(lambda text: text.encode("utf-8", "replace")))
def test_no_line_makes_anything_but_an_event_or_a_reason(line):
    for text in (line, b'{"method":"PUT","target":"/a","body":' + line + b"}"):
        try:
            assert isinstance(parse_event_line(text), Event)
        except InvalidEvent as error:
            assert str(error)  # noqa: PT017 - both ways out are right


# CloudEvents


def test_a_cloud_event_with_json_data_keeps_its_bytes():
    line = (
        b'{"specversion":"1.0","id":"1","source":"/products","subject":"7","type":"org.example.changed",'
        b'"data":{"price": 1.10}}'
    )
    event = parse_event_line(line)
    assert event == Event(Method.PUT, "/products/7", "application/json", b'{"price": 1.10}')


def test_data_of_another_type_is_the_text_itself():
    event = cloud(datacontenttype="application/xml", data="<a/>")
    assert (event.content_type, event.body) == ("application/xml", b"<a/>")
    event = cloud(datacontenttype="application/vnd.acme+json; v=1", data="text")
    assert (event.content_type, event.body) == ("application/vnd.acme+json; v=1", b'"text"')
    event = cloud(datacontenttype="image/png", data_base64="AAE=")
    assert (event.content_type, event.body) == ("image/png", b"\0\1")
    assert cloud(data_base64="AAE=").content_type == "application/octet-stream"
    assert cloud().body == b""


@pytest.mark.parametrize(
    ("members", "method"),
    [
        ({}, Method.PUT),
        ({"type": "org.example.deleted"}, Method.DELETE),
        ({"type": "org.example.removed"}, Method.DELETE),
        ({"type": "deleted"}, Method.PUT),
        ({"type": "org.example.deleted.later"}, Method.PUT),
        ({"type": "org.example.deleted", "httpequiv": "POST", "data": 1}, Method.POST),
        ({"httpequiv": "PATCH"}, Method.PATCH),
    ],
)
def test_the_verb_of_a_cloud_event_is_its_extension_or_follows_from_its_type(members, method):
    assert cloud(**members).method is method


@pytest.mark.parametrize(
    ("source", "subject", "target"),
    [
        ("/products", "7", "/products/7"),
        ("/products/", "7", "/products/7"),
        ("/products", None, "/products"),
        ("/products?x=1", None, "/products?x=1"),
        ("/products", "a/b c", "/products/a/b%20c"),
        ("https://example.org/products", "7", "/products/7"),
        ("https://example.org", "7", "/7"),
        ("https://example.org", None, "/"),
        ("urn:example:products", "/products/7", "/products/7"),
        ("anything at all", "/products/7", "/products/7"),
    ],
)
def test_the_target_of_a_cloud_event_is_its_subject_or_joined_with_its_source(source, subject, target):
    assert cloud_target(source, subject) == target


@pytest.mark.parametrize(
    ("source", "subject"),
    [
        ("urn:example:products", None),
        ("urn:example:products", "7"),
        ("products", "7"),
        ("mailto:a@example.org", "7"),
        ("/products?x=1", "7"),
        ("/products#x", "7"),
        ("http://[", "7"),
        ("/products", "../7"),
    ],
)
def test_a_cloud_event_that_names_no_path_is_refused(source, subject):
    with pytest.raises(InvalidEvent):
        cloud_target(source, subject)


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ({"specversion": "0.3"}, "CloudEvents 1.0"),
        ({"specversion": 1.0}, "not text"),
        ({"id": ""}, "id is empty"),
        ({"type": None}, "no type"),
        ({"data": 1, "data_base64": "AA=="}, "one body"),
        ({"datacontenttype": "text/plain", "data": {"a": 1}}, "write a string"),
        ({"datacontenttype": "text"}, "not a media type"),
        ({"type": "a.deleted", "data": {}}, "leave out data"),
        ({"httpequiv": "GET"}, "PUT, POST, PATCH or DELETE"),
        ({"Subject": "x"}, "lower-case"),
        ({"data_base64": "?"}, "not Base64"),
    ],
)
def test_what_is_wrong_with_a_cloud_event_is_said(members, said):
    with pytest.raises(InvalidEvent, match=said):
        cloud(**members)


def test_the_place_that_an_event_had_in_a_feed_is_not_read():
    place = {"partition": "0", "ordinal": 7, "content_id": "<7.x@y>", "entry": "/feeds/events/0/events/7"}
    place["last_modified"] = "Tue, 14 Nov 2023 22:13:20 GMT"
    event = parse(**place, method="PUT", target="/a", content_type="text/plain", body=1)
    assert event == Event(Method.PUT, "/a", "text/plain", b"1")


def test_headers_that_belong_to_the_body_are_read():
    event = parse(method="PUT", target="/a", body_base64="H4sI", extra_headers=[["Content-Encoding", "gzip"]])
    assert event.extra_headers == (("Content-Encoding", "gzip"),)
