"""What is told while a copy is made."""

from __future__ import annotations

from .verdict import Verdict


class Observer:
    """What is told while a copy is made; does nothing by itself."""

    def expected(self, events: int) -> None:
        """So many events are still to come."""

    def applied(self, events: int) -> None:
        """So many events are in the copy now."""

    def started_over(self, partition: str, reason: str) -> None:
        """The partition is made anew from the beginning of its feed."""

    def completed(self, partition: str) -> None:
        """What was made anew took the place of what was before."""

    def trouble(self, partition: str | None, text: str) -> None:
        """Something went wrong that is tried again, or cannot be had."""

    def compared(self, verdict: Verdict) -> None:
        """The copy was compared with the digests of its gateway."""
