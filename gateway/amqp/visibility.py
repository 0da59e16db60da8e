"""From a sent message to its place in a feed: who waits for which message to become visible.

The message id travels with the message through the log, so this works with any broker, and whichever
partition the log chose.
"""

from __future__ import annotations

import asyncio

from gateway.core.errors import GatewayError
from gateway.core.identity import ContentID

Waiting = asyncio.Future[ContentID]


class Visibility:
    """Message ids that somebody waits for; shared by the publisher and the ingests of a log."""

    def __init__(self) -> None:
        self._waiting: dict[str, Waiting] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def expect(self, message_id: str) -> Waiting:
        """A future that resolves to the event's identity once it is visible."""
        waiting = self._waiting[message_id] = asyncio.get_running_loop().create_future()
        return waiting

    def forget(self, message_id: str) -> None:
        self._waiting.pop(message_id, None)

    def expects(self, message_id: object) -> bool:
        """Whether anybody waits for the message; ids of foreign producers are of any type."""
        return isinstance(message_id, str) and message_id in self._waiting

    def visible(self, message_id: str, identity: ContentID) -> None:
        waiting = self._waiting.pop(message_id, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(identity)

    def failed(self, message_id: str, error: GatewayError) -> None:
        waiting = self._waiting.pop(message_id, None)
        if waiting is not None and not waiting.done():
            waiting.set_exception(error)
