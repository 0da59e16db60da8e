"""From a sent message to its place in a feed: who waits for which message to become visible.

The message id travels with the message through the log, so this works with any broker, and whichever
partition the log chose.
"""

from __future__ import annotations

import asyncio

from gateway.core.errors import GatewayError, OutcomeUnknown
from gateway.core.identity import ContentID


class Publication:
    """One event on its way: sent, accepted by the log, visible in its feed; also the sender's `Answer`.

    `visible` resolves to the event's identity, or to None if it was accepted and is not visible in time. It
    raises what kept the event from the log. An unknown outcome is not the end: if the log has the event, it
    will become visible.
    """

    __slots__ = ("_accepted", "_deadline", "visible")

    def __init__(self, visible: asyncio.Future[ContentID | None], deadline: float) -> None:
        self._accepted = False
        self._deadline = deadline
        self.visible = visible

    def done(self) -> bool:
        return self.visible.done()

    def set_result(self, _: None) -> None:
        self._accepted = True

    def set_exception(self, error: GatewayError) -> None:
        if not isinstance(error, OutcomeUnknown) and not self.visible.done():
            self.visible.set_exception(error)

    def expired(self, now: float) -> bool:
        """Whether its time is over; then it is resolved with what is known."""
        if now < self._deadline:
            return False
        if self.visible.done():
            return True
        if self._accepted:
            self.visible.set_result(None)
        else:
            self.visible.set_exception(
                OutcomeUnknown(
                    "the log did not say in time whether it has the event; look into the feed before you"
                    " send it again"
                )
            )
        return True


class Visibility:
    """Messages that somebody waits for; shared by the publisher and the ingests of a log."""

    def __init__(self) -> None:
        self._waiting: dict[str, Publication] = {}
        self._loop = asyncio.get_running_loop()

    def __len__(self) -> int:
        return len(self._waiting)

    def expect(self, message_id: str, *, deadline: float) -> Publication:
        """A publication to wait for, until `deadline` on the event loop's clock."""
        publication = Publication(self._loop.create_future(), deadline)
        self._waiting[message_id] = publication
        return publication

    def forget(self, message_id: str) -> None:
        self._waiting.pop(message_id, None)

    def expire(self, now: float) -> None:
        """Resolve those whose time is over; all wait equally long, so the oldest come first."""
        overdue = []
        for message_id, publication in self._waiting.items():
            if not publication.expired(now):
                break
            overdue.append(message_id)
        for message_id in overdue:
            del self._waiting[message_id]

    def expects(self, message_id: object) -> bool:
        """Whether anybody waits for the message; ids of foreign producers are of any type."""
        return isinstance(message_id, str) and message_id in self._waiting

    def resolve(self, message_id: str, outcome: ContentID | GatewayError) -> None:
        """Tell whoever waits what became of the message."""
        publication = self._waiting.pop(message_id, None)
        if publication is None or publication.visible.done():
            return
        if isinstance(outcome, ContentID):
            publication.visible.set_result(outcome)
        else:
            publication.visible.set_exception(outcome)
