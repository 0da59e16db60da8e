"""Which partition an event goes to."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.amqp.sections import section_spans
from gateway.core.message import Symbol
from gateway.node.errors import Refused
from gateway.node.partitioning import PARTITION, Partitioner
from tests.node.support import event


def choose(partitioner: Partitioner, data: bytes, *, wanted: Any = None, bound: int | None = None) -> int:
    annotations = None if wanted is None else {PARTITION: wanted}
    return partitioner.choose(data, section_spans(data), annotations, bound=bound)


def partitioner(count: int = 4) -> Partitioner:
    return Partitioner("events", [str(position) for position in range(count)])


def test_a_key_always_goes_to_the_same_partition() -> None:
    """The numbers are part of the contract (`printf KEY | b2sum -l 64`, modulo 4): events must not move."""
    keys = ["/products/1", "/products/2", "/products/3", "", "ключ", "x" * 1000]
    found = [choose(partitioner(), event(b"x", group_id=key)) for key in keys]
    assert found == [choose(partitioner(), event(b"other", group_id=key)) for key in keys]
    assert found == [1, 2, 0, 0, 0, 3]


def test_many_keys_use_all_partitions_about_equally() -> None:
    counts = [0] * 4
    for number in range(4000):
        counts[choose(partitioner(), event(b"x", group_id=f"/products/{number}"))] += 1
    assert min(counts) > 850


def test_without_a_key_events_are_spread_in_turn() -> None:
    spread = partitioner()
    found = [choose(spread, event(b"x")) for _ in range(8)]
    assert sorted(found) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert found[:4] == found[4:]


@pytest.mark.parametrize("name", ["event-streams-key", "event-streams-group-key"])
def test_the_annotation_of_either_name_comes_before_the_group_id(name: str) -> None:
    by_group = choose(partitioner(), event(b"x", group_id="/products/3"))
    annotated = event(b"x", group_id="/products/1", annotations={Symbol(name): "/products/3"})
    assert choose(partitioner(), annotated) == by_group


def test_a_key_that_is_no_text_is_a_key_all_the_same() -> None:
    data = event(b"x", annotations={Symbol("event-streams-key"): 12345})
    assert len({choose(partitioner(), data) for _ in range(5)}) == 1


def test_the_producer_decides_by_link_or_annotation() -> None:
    data = event(b"x", group_id="/products/1")
    assert choose(partitioner(), data, wanted=Symbol("2")) == 2
    assert choose(partitioner(), data, bound=0) == 0
    assert choose(partitioner(), data, wanted="2", bound=2) == 2


def test_an_annotation_against_the_links_partition_is_refused() -> None:
    with pytest.raises(Refused, match=r"amqp:not-allowed: the event asks for partition 1, .* bound to 2"):
        choose(partitioner(), event(b"x"), wanted=Symbol("1"), bound=2)


@pytest.mark.parametrize("wanted", [Symbol("4"), Symbol(""), 1, b"1", ["1"], {"1": 1}], ids=repr)
def test_an_unknown_partition_is_refused_and_the_known_ones_named(wanted: Any) -> None:
    with pytest.raises(Refused, match=r"amqp:not-found: log events has no partition .* 0 to 3"):
        choose(partitioner(), event(b"x"), wanted=wanted)
