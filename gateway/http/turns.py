"""Turns of the publications about one target: one that has a condition goes alone, others side by side.

A condition is decided on the target's current state, so nothing else about that target may be on its way
then: not before the condition is looked at, and not until its own event is visible (RFC 9110, 13.1).
"""

from __future__ import annotations

import asyncio
from collections import deque


class _Turn:
    """The publications about a target that are under way, and those that wait, first come first."""

    __slots__ = ("alone", "running", "waiting")

    def __init__(self, *, alone: bool) -> None:
        self.running = 1
        self.alone = alone
        self.waiting: deque[tuple[bool, asyncio.Future[None]]] = deque()


class Turns:
    """Who may publish about which target now."""

    def __init__(self) -> None:
        self._turns: dict[str, _Turn] = {}

    def enter(self, target: str, *, alone: bool) -> asyncio.Future[None] | None:
        """Take a turn, to be ended with `leave`; what is returned must be awaited first, by `wait`."""
        turn = self._turns.get(target)
        if turn is None:
            self._turns[target] = _Turn(alone=alone)
            return None
        if not alone and not turn.alone and not turn.waiting:
            turn.running += 1
            return None
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        turn.waiting.append((alone, granted))
        return granted

    async def wait(self, target: str, granted: asyncio.Future[None], timeout_s: float) -> None:
        """Wait until the turn has come; raises TimeoutError, and then there is none to leave."""
        try:
            async with asyncio.timeout(timeout_s):
                # A granted turn must not be lost with its waiter.
                await asyncio.shield(granted)
        except BaseException:
            if granted.done():
                self.leave(target)
            else:
                granted.cancel()
            raise

    def leave(self, target: str) -> None:
        """End a turn."""
        turn = self._turns[target]
        turn.running -= 1
        if turn.running:
            return
        waiting = turn.waiting
        turn.alone = False
        while waiting:
            alone, granted = waiting[0]
            if granted.cancelled():
                waiting.popleft()
            elif turn.running and (alone or turn.alone):
                return
            else:
                waiting.popleft()
                turn.running += 1
                turn.alone = alone
                granted.set_result(None)
        if not turn.running:
            del self._turns[target]
