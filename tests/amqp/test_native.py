"""The native form as bytes, fingerprints of messages, and who waits for which message."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.amqp.fingerprint import fingerprint
from gateway.amqp.native import encode_native
from gateway.amqp.sections import (
    decode_message,
    encode_delivery_annotations,
    encode_message,
    leading_offset_and_time,
)
from gateway.amqp.visibility import LATE_KEPT_S, LATE_UNKNOWN_S, SENT_BYTES_MAX, Visibility
from gateway.core.errors import LogUnavailable, MessageRefused, OutcomeUnknown
from gateway.core.event import Event, Method
from gateway.core.identity import ContentID
from gateway.core.mapping import log_time, native_mapping, native_message

IDENTITY = ContentID(1, "0" * 16, "0", "things", "example.org")

targets = st.sampled_from(["/", "/a", "/" + "x" * 300])
types = st.one_of(st.none(), st.sampled_from(["text/plain", "a/b; c=" + "d" * 300]))
bodies = st.one_of(st.binary(max_size=20), st.integers(250, 260).map(bytes))
extras = st.sampled_from([(), (("traceparent", "00-1"),), (("Content-Encoding", "gzip"), ("x", "y"))])


def event(target):
    return Event(Method.PUT, target, "text/plain", b"x")


@given(st.builds(Event, st.sampled_from(Method), targets, types, bodies, st.none(), extras))
def test_the_short_way_to_the_bytes_gives_what_the_long_way_does(event):
    message = native_message(event, message_id="prefix-7", group_key=event.target)
    data = encode_native(event, "prefix-7")
    assert data == encode_message(message)
    assert decode_message(data) == message


coded = st.sampled_from([(), (("traceparent", "00-1"),), (("Content-Encoding", "gzip"), ("x", "y"))])
plain = st.sampled_from([(), (("traceparent", "00-1"),)])
published = st.one_of(
    st.builds(
        Event,
        st.sampled_from([Method.PUT, Method.PATCH, Method.POST]),
        targets,
        types,
        bodies,
        st.none(),
        coded,
    ),
    st.builds(Event, st.just(Method.DELETE), targets, st.none(), st.just(b""), st.none(), plain),
)


@given(published, st.sampled_from([None, 0, 1_700_000_000_123, -1]))
def test_a_message_known_by_its_bytes_is_the_event_that_its_decoding_would_give(published, time_ms):
    async def scenario():
        waiting = Visibility()
        data = encode_native(published, "prefix-7")
        waiting.expect("prefix-7", published, data, deadline=10)
        annotations = encode_delivery_annotations(offset="41", timestamp=time_ms or 0, partition="0")
        delivered = annotations + data
        sent = waiting.sent(delivered)
        mapped = native_mapping(("traceparent", "x"))(decode_message(delivered), time_ms)
        assert sent.message_id == "prefix-7"
        assert sent.event._replace(modified_ms=log_time(time_ms)) == mapped
        assert leading_offset_and_time(delivered) == ("41", time_ms or 0)
        # Whatever a log adds or changes, the message is decoded.
        for other in (
            delivered + b"\0",
            b"\0\x53\x70\x45" + delivered,
            delivered[:-1],
            data[1:],
            b"",
            b"\0\x53\x71\xc1",
        ):
            assert waiting.sent(other) is None
        waiting.resolve("prefix-7", IDENTITY)
        assert waiting.sent(delivered) is None

    asyncio.run(scenario())


@given(
    st.text("0123456789@", min_size=0, max_size=120),
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from([None, "0", "p" * 20]),
    st.data(),
)
def test_offset_and_time_are_read_from_annotations_of_our_own_form_and_no_other(
    offset, time_ms, partition, data
):
    annotations = encode_delivery_annotations(offset=offset, timestamp=time_ms, partition=partition)
    short = bool(offset) and annotations.startswith(b"\0\x53\x71\xc1")
    assert leading_offset_and_time(annotations + b"\0\x53\x75\xa0\0") == (
        (offset, time_ms) if short else None
    )
    length = data.draw(st.integers(0, 63 + len(offset)))
    assert leading_offset_and_time(annotations[:length]) is None
    assert leading_offset_and_time(b"\0\x53\x70\x45" + annotations) is None


def test_a_large_message_is_decoded_and_not_remembered():
    async def scenario():
        waiting = Visibility()
        large = event("/a")._replace(body=bytes(SENT_BYTES_MAX))
        data = encode_native(large, "1")
        waiting.expect("1", large, data, deadline=10)
        assert waiting.sent(data) is None

    asyncio.run(scenario())


def test_a_fingerprint_is_of_the_bare_message_and_of_nothing_that_a_node_adds():
    bare = encode_native(Event(Method.PUT, "/a", None, b"x"), "1")
    one, two = (encode_delivery_annotations(offset="1", timestamp=time, partition="0") for time in (1, 2))
    assert fingerprint(one + bare) == fingerprint(two + bare) == fingerprint(bare)
    other = encode_native(Event(Method.PUT, "/a", None, b"y"), "1")
    assert fingerprint(other) != fingerprint(bare)
    assert fingerprint(b"not a message") != fingerprint(b"not a message either")


def test_a_publication_resolves_with_its_identity_its_failure_or_the_end_of_its_time():
    async def scenario():
        waiting = Visibility()
        visible, refused, lost = (
            waiting.expect(name, event(f"/{name}"), name.encode(), deadline=10) for name in ("a", "b", "c")
        )
        accepted, silent = (
            waiting.expect(name, event(f"/{name}"), name.encode(), deadline=10) for name in ("d", "e")
        )
        assert waiting.expects("a")
        assert not waiting.expects(7)
        waiting.resolve("a", IDENTITY)
        assert await visible.visible == IDENTITY
        waiting.resolve("b", MessageRefused("quarantine"))
        with pytest.raises(MessageRefused):
            await refused.visible
        lost.set_exception(LogUnavailable("away"))
        with pytest.raises(LogUnavailable):
            await lost.visible
        accepted.set_result(None)
        waiting.expire(9.9, 0)
        assert not accepted.done()
        silent.set_exception(OutcomeUnknown("the connection ended"))
        assert not silent.done(), "it may still become visible"
        waiting.expire(10, 0)
        assert await accepted.visible is None
        with pytest.raises(OutcomeUnknown):
            await silent.visible
        waiting.forget("c")
        # What may be in the log is late until it is seen there, or for long enough with nothing in its way.
        assert len(waiting) == 2
        assert waiting.unsettled("/d")
        assert waiting.expects("e")
        waiting.resolve("e", IDENTITY)
        assert not waiting.unsettled("/e")
        waiting.expire(11, 0.0)
        assert waiting.unsettled("/d")
        # What was resolved in the same moment is not late.
        waiting.expect_late("e", "/e", kept=True)
        assert not waiting.unsettled("/e")
        waiting.expect("f", event("/f"), b"f", deadline=10)
        waiting.expect_late("f", "/f", kept=False)
        waiting.expire(12, LATE_UNKNOWN_S)
        assert not waiting.unsettled("/f")
        assert waiting.unsettled("/d")
        waiting.expire(13, LATE_KEPT_S)
        assert not waiting.unsettled("/d")
        assert len(waiting) == 0

    asyncio.run(scenario())
