"""Turns: a publication with a condition goes alone, others side by side; none is lost, none kept for ever."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from gateway.http.turns import Turns


def test_those_without_a_condition_go_side_by_side_and_one_with_it_alone():
    async def scenario():
        turns = Turns()
        assert turns.enter("/a", alone=False) is None
        assert turns.enter("/a", alone=False) is None
        alone = turns.enter("/a", alone=True)
        later = turns.enter("/a", alone=False)
        assert turns.enter("/b", alone=True) is None
        turns.leave("/a")
        assert not alone.done()
        turns.leave("/a")
        assert alone.done()
        assert not later.done()
        turns.leave("/a")
        assert later.done()
        turns.leave("/a")
        turns.leave("/b")
        assert turns.enter("/a", alone=True) is None

    asyncio.run(scenario())


def test_one_that_waits_too_long_has_no_turn_and_keeps_nobody():
    async def scenario():
        turns = Turns()
        assert turns.enter("/a", alone=True) is None
        late = turns.enter("/a", alone=True)
        next_one = turns.enter("/a", alone=False)
        with pytest.raises(TimeoutError):
            await turns.wait("/a", late, 0.01)
        turns.leave("/a")
        await turns.wait("/a", next_one, 1)
        turns.leave("/a")
        assert not turns._turns

    asyncio.run(scenario())


@hypothesis_settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(0, 3)), max_size=20))
def test_whatever_comes_goes_and_gives_up_no_two_meet_where_one_is_alone(people):
    async def scenario():
        turns = Turns()
        inside: list[bool] = []
        served = 0

        async def come(alone: bool, impatient: bool, stay: int) -> None:
            nonlocal served
            granted = turns.enter("/a", alone=alone)
            if granted is not None:
                try:
                    await turns.wait("/a", granted, 0.0005 if impatient else 10)
                except TimeoutError:
                    return
            assert not inside or not (alone or any(inside))
            inside.append(alone)
            for _ in range(stay):
                await asyncio.sleep(0)
            inside.remove(alone)
            served += 1
            turns.leave("/a")

        await asyncio.gather(*(come(*person) for person in people))
        assert served >= sum(not impatient for _, impatient, _ in people)
        assert not turns._turns

    asyncio.run(scenario())
