"""From a sent message to its place in a feed: who waits for which message to become visible.

The message id travels with the message through the log, so this works with any broker, and whichever
partition the log chose. A log that gives back a message byte for byte saves its decoding besides.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import NamedTuple, TypeGuard

from gateway.core.errors import GatewayError, OutcomeUnknown
from gateway.core.event import Event
from gateway.core.identity import ContentID
from gateway.core.mapping import as_mapped

from .sections import behind_delivery_annotations

LATE_KEPT_S, LATE_UNKNOWN_S = 600.0, 10.0
"""Until a late message is taken for lost: one that the log has said it keeps, and any other."""

SENT_BYTES_MAX = 64 * 1024
"""Of a message that is known again by its bytes; a larger one is decoded, as it costs memory till then."""


class Sent(NamedTuple):
    """A message as it was sent: its id, and the event that the native mapping makes of it."""

    message_id: str
    event: Event


class Publication:
    """One event on its way: sent, accepted by the log, visible in its feed; also the sender's `Answer`.

    `visible` resolves to the event's identity, or to None if it was accepted and is not visible in time. It
    raises what kept the event from the log. `accepted` is set once the log has said that it has the event. An
    unknown outcome is not the end: if the log has the event, it will become visible.
    """

    __slots__ = ("_deadline", "accepted", "data", "target", "visible")

    def __init__(
        self, visible: asyncio.Future[ContentID | None], target: str, data: bytes, deadline: float
    ) -> None:
        self.accepted = False
        self.target = target
        self.data = data
        self._deadline = deadline
        self.visible = visible

    def done(self) -> bool:
        return self.visible.done()

    def set_result(self, _: None) -> None:
        self.accepted = True

    def set_exception(self, error: GatewayError) -> None:
        if not isinstance(error, OutcomeUnknown) and not self.visible.done():
            self.visible.set_exception(error)

    def expired(self, now: float) -> bool:
        """Whether its time is over; then it is resolved with what is known."""
        if now < self._deadline:
            return False
        if self.visible.done():
            return True
        if self.accepted:
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
    """Messages that somebody waits for; shared by the publisher and the ingests of a log.

    One that nobody waits for any more, and that may be in the log all the same, is *late*: it is remembered
    until it becomes visible, or until so much time has passed with nothing in its way that it was lost.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, Publication] = {}
        self._sent: dict[bytes, Sent] = {}
        self._late: dict[str, tuple[str, float]] = {}
        self._late_targets: Counter[str] = Counter()
        self._unhindered_s = 0.0
        self._loop = asyncio.get_running_loop()

    def __len__(self) -> int:
        return len(self._waiting) + len(self._late)

    def expect(self, message_id: str, event: Event, data: bytes, *, deadline: float) -> Publication:
        """A publication to wait for, until `deadline` on the event loop's clock; `data` is what is sent."""
        publication = Publication(self._loop.create_future(), event.target, data, deadline)
        self._waiting[message_id] = publication
        if len(data) <= SENT_BYTES_MAX:
            self._sent[data] = Sent(message_id, as_mapped(event))
        return publication

    def sent(self, data: bytes) -> Sent | None:
        """What is known of a message from the log that is waited for and came back unchanged, else None."""
        return self._sent.get(behind_delivery_annotations(data)) if self._sent else None

    def expect_late(self, message_id: str, target: str, *, kept: bool) -> None:
        """Nobody waits for the message, which is in the log (`kept`) or may be.

        For a message that is asked for, or late already; one that was resolved meanwhile is not late.
        """
        if self._end_wait(message_id) is None and message_id not in self._late:
            return
        if message_id not in self._late:
            self._late_targets[target] += 1
        self._late[message_id] = target, self._unhindered_s + (LATE_KEPT_S if kept else LATE_UNKNOWN_S)

    def send_late(self, message_id: str, target: str) -> None:
        """Nobody will wait for the message, which is about to be sent."""
        self._late_targets[target] += 1
        self._late[message_id] = target, self._unhindered_s + LATE_KEPT_S

    def forget(self, message_id: str) -> None:
        """The message is not in the log and will never be."""
        self._end_wait(message_id)
        self._forget_late(message_id)

    def unsettled(self, target: str) -> bool:
        """Whether a late message is about `target`."""
        return target in self._late_targets

    def expire(self, now: float, unhindered_s: float) -> None:
        """Resolve those whose time is over; all wait equally long, so the oldest come first.

        `unhindered_s` has passed since the last call with nothing that keeps messages from becoming visible.
        """
        overdue = []
        for message_id, publication in self._waiting.items():
            if not publication.expired(now):
                break
            overdue.append(message_id)
        for message_id in overdue:
            publication = self._waiting[message_id]
            self.expect_late(message_id, publication.target, kept=publication.accepted)
        self._unhindered_s += unhindered_s
        for message_id in [name for name, (_, end_s) in self._late.items() if end_s <= self._unhindered_s]:
            self._forget_late(message_id)

    def expects(self, message_id: object) -> TypeGuard[str]:
        """Whether anybody asks for the message; ids of foreign producers are of any type."""
        return isinstance(message_id, str) and (message_id in self._waiting or message_id in self._late)

    def resolve(self, message_id: str, outcome: ContentID | GatewayError) -> None:
        """Tell whoever waits what became of the message."""
        publication = self._end_wait(message_id)
        if publication is None:
            self._forget_late(message_id)
        elif publication.visible.done():
            return
        elif isinstance(outcome, ContentID):
            publication.visible.set_result(outcome)
        else:
            publication.visible.set_exception(outcome)

    def _end_wait(self, message_id: str) -> Publication | None:
        publication = self._waiting.pop(message_id, None)
        if publication is not None:
            self._sent.pop(publication.data, None)
        return publication

    def _forget_late(self, message_id: str) -> None:
        late = self._late.pop(message_id, None)
        if late is not None:
            target, _ = late
            self._late_targets[target] -= 1
            if not self._late_targets[target]:
                del self._late_targets[target]
