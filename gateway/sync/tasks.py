"""Several requests at one time, none left running when one of them fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


async def together(*coroutines: Coroutine[Any, Any, T]) -> list[T]:
    """The results of all, in order; the first error ends the others and is raised as it is."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(coroutine) for coroutine in coroutines]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


async def for_each(items: Iterable[T], action: Callable[[T], Awaitable[None]], *, parallel: int) -> None:
    """Run `action` on every item, at most `parallel` at a time."""
    waiting = iter(items)

    async def work() -> None:
        for item in waiting:
            await action(item)

    await together(*(work() for _ in range(parallel)))
