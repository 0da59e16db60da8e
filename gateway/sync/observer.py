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

    def snapshot_begun(self, partition: str, snapshot: str, *, entities: int, events: int) -> None:
        """The partition begins with the snapshot of that id, in place of its first events.

        So many of its entities are still to come; both numbers are 0 where they are not told.
        """

    def loaded(self, entities: int) -> None:
        """So many entities of a snapshot are in the copy now."""

    def snapshot_left(self, partition: str, snapshot: str, reason: str) -> None:
        """That snapshot is not used, or not any more; a newer one is looked for."""

    def compared(self, verdict: Verdict) -> None:
        """The copy was compared with the digests of its gateway."""
