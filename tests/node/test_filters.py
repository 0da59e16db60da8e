"""The delivery-annotations filter."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.amqp.codec import Described, ULong, encode_value
from gateway.core.message import Symbol, Timestamp
from gateway.node.errors import Refused
from gateway.node.filters import Start, Wanted, parse_filters
from gateway.node.schema import Entry, offset_of
from tests.node.support import FILTER, starting

SEVEN = Symbol(offset_of(7))


def sequence(wanted: Wanted) -> int:
    return wanted.sequence(earliest=3, next_sequence=20)


def test_without_a_filter_only_new_events_are_wanted() -> None:
    for none in (None, {}):
        assert sequence(parse_filters(none)) == 20


@pytest.mark.parametrize(
    ("filters", "first"),
    [
        (starting(offset=Symbol("@earliest")), 3),
        (starting(offset="@earliest"), 3),
        (starting(offset=Symbol("@latest")), 20),
        (starting(offset=SEVEN), 7),
        (starting(offset=str(SEVEN)), 7),
        (starting(offset=Symbol(offset_of(25))), 25),
        (starting(timestamp=Timestamp(5)), 3),
        (starting(offset=SEVEN, timestamp=Timestamp(5)), 7),
    ],
    ids=lambda value: None,
)
def test_an_offset_is_where_to_start_inclusively(filters: dict[Any, Any], first: int) -> None:
    assert sequence(parse_filters(filters)) == first


def test_the_descriptor_decides_whatever_the_key() -> None:
    for descriptor in (FILTER, ULong(0x200), 0x200):
        wanted = {Symbol("anything"): Described(descriptor, {Symbol("event-streams-offset"): SEVEN})}
        assert sequence(parse_filters(wanted)) == 7


def test_an_unknown_filter_is_left_out_of_the_echo() -> None:
    known = Described(FILTER, {Symbol("event-streams-offset"): SEVEN})
    wanted = parse_filters(
        {
            Symbol("a"): Described(Symbol("example:filter"), "x"),
            Symbol("b"): known,
            Symbol("c"): "not described",
            Symbol("event-streams-delivery-annotations-filter"): Described(ULong(0x999), {}),
            Symbol("d"): Described([1], {}),
        }
    )
    assert wanted.accepted == {Symbol("b"): known}


def test_a_numeric_descriptor_is_echoed_as_the_ulong_that_it_was() -> None:
    wanted = parse_filters({Symbol("a"): Described(0x200, {Symbol("event-streams-offset"): SEVEN})})
    assert encode_value(wanted.accepted[Symbol("a")]).startswith(b"\0\x80\0\0\0\0\0\0\x02\0")


def test_several_filters_must_all_match() -> None:
    wanted = parse_filters(
        {
            **starting(offset=SEVEN),
            Symbol("other"): Described(
                FILTER,
                {
                    Symbol("event-streams-offset"): Symbol(offset_of(9)),
                    Symbol("event-streams-timestamp"): Timestamp(50),
                },
            ),
        }
    )
    assert sequence(wanted) == 9
    assert wanted.timestamp == 50
    assert not wanted.matches(Entry(10, 49, 0, b""))
    assert wanted.matches(Entry(10, 50, 0, b""))
    assert wanted.starts == (Start(7, None), Start(9, 50))


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("@earliest", "is not a map"),
        ({}, "is not a map of"),
        ({Symbol("event-streams-offset"): 7}, "neither one that this node has given out"),
        ({Symbol("event-streams-offset"): "7"}, "neither one that this node has given out"),
        ({Symbol("event-streams-offset"): "\u0667" * 20}, "neither one that this node has given out"),
        ({Symbol("event-streams-offset"): None}, "neither one that this node has given out"),
        ({Symbol("event-streams-timestamp"): "now"}, "no timestamp"),
        ({Symbol("event-streams-timestamp"): True}, "no timestamp"),
        ({Symbol("event-streams-partition"): "0"}, "can be asked for"),
    ],
    ids=repr,
)
def test_a_malformed_filter_refuses_the_attach_with_the_reason(value: Any, problem: str) -> None:
    with pytest.raises(Refused, match=problem) as caught:
        parse_filters({Symbol("f"): Described(FILTER, value)})
    assert caught.value.condition.name == "amqp:invalid-field"


def test_a_filter_set_that_is_no_map_is_refused() -> None:
    with pytest.raises(Refused, match="not a map"):
        parse_filters([1])
