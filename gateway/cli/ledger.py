"""Which lines of a publication are acknowledged, and which are not, and why.

Events are under way side by side, so what is acknowledged when something stops them is not always a
beginning of the input. The ledger knows exactly, so that a person can go on without loss or double.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum
from typing import Protocol

from gateway.core.errors import GatewayError
from gateway.core.event import Event

from .lines import Line

PLACES_SHOWN_MAX = 10


class Outcome(Enum):
    """What became of an event that was not published; the text completes a sentence."""

    BAD_LINE = "nothing of it was sent"
    NOT_SENT = "it was not sent"
    REFUSED = "it was refused"
    ELSEWHERE = "it is published there"
    UNKNOWN = "whether the log has it is unknown"


class PublishFailed(GatewayError):
    """An event could not be published, or nobody knows whether it was."""

    def __init__(self, reason: str, outcome: Outcome) -> None:
        super().__init__(reason)
        self.outcome = outcome


class Sender(Protocol):
    """A way into the log. After the first failure it takes events and drops them."""

    async def open(self) -> None:
        """Connect; raises GatewayError."""

    async def put(self, ticket: int, event: Event) -> None:
        """Take an event, once there is room; its outcome goes to the ledger."""

    async def finish(self) -> None:
        """Return when nothing is under way any more."""

    async def close(self) -> None:
        """Let go of connections."""


class Ledger:
    """The tickets of all lines; `begin` is called in the order of the lines.

    `on_acknowledged` is called for each acknowledged event.
    """

    def __init__(self, on_acknowledged: Callable[[], None] = lambda: None) -> None:
        self.acknowledged = 0
        self.over = asyncio.Event()
        """Set when something failed, so that nothing more may be sent."""
        self.failures: dict[int, PublishFailed] = {}
        self._on_acknowledged = on_acknowledged
        self._next = 0
        self._pending: dict[int, Line] = {}

    def begin(self, line: Line) -> int:
        """A ticket for the event of `line`."""
        ticket = self._next
        self._next += 1
        self._pending[ticket] = line
        return ticket

    def succeed(self, ticket: int) -> None:
        """The log has the event."""
        del self._pending[ticket]
        self.acknowledged += 1
        self._on_acknowledged()

    def fail(self, ticket: int, error: PublishFailed) -> None:
        """The event is not published, or may not be."""
        self.failures[ticket] = error
        self.over.set()

    def first_failure(self) -> tuple[Line, PublishFailed] | None:
        """The failure that stands first in the input."""
        if not self.failures:
            return None
        ticket = min(self.failures)
        return self._pending[ticket], self.failures[ticket]

    def explain(self) -> str | None:
        """What failed, what is acknowledged, what of the rest may be in the log; None if nothing failed."""
        first = self.first_failure()
        if first is None:
            return None
        line, error = first
        ticket = min(self.failures)
        text = f"{line.place}: {error}; {error.outcome.value}. {self.acknowledged:,} events are acknowledged"
        unsent = [t for t in self._pending if t < ticket]
        last_acknowledged = self._last_acknowledged()
        if not unsent:
            text += ", among them all in front of that line"
        elif unsent:
            text += f". Not sent, in front of that line: {self._places(unsent)}"
        unknown = [t for t, e in self.failures.items() if e.outcome is Outcome.UNKNOWN]
        unknown = sorted(t for t in unknown if t != ticket)
        if unknown:
            text += f". Unknown as well: {self._places(unknown)}"
        between = [t for t in self._pending if ticket < t < last_acknowledged and t not in self.failures]
        if between:
            text += f". Not sent, behind that line: {self._places(between)}"
        return text

    def _last_acknowledged(self) -> int:
        """The last ticket that waits for nothing any more."""
        ticket = self._next - 1
        while ticket in self._pending:
            ticket -= 1
        return ticket

    def _places(self, tickets: list[int]) -> str:
        places = [self._pending[ticket].place for ticket in sorted(tickets)[:PLACES_SHOWN_MAX]]
        more = len(tickets) - len(places)
        return ", ".join(places) + (f" and {more} more" if more else "")
