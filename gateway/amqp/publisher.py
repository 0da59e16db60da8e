"""Publishing events: into the log, and not answered before they are visible in their feed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable
from itertools import count

from gateway.core.errors import LogUnavailable, OutcomeUnknown
from gateway.core.event import Event
from gateway.core.identity import ContentID
from gateway.core.mapping import native_message

from .client import Backoff, Broker
from .sections import encode_message
from .sender import Answer, LogSender
from .visibility import Visibility

_log = logging.getLogger("wes.publish")


class LogPublisher:
    """Publishes to one log; `run` keeps its connection up. See `gateway.http.live.Publisher`.

    `obstacle` says why events could not become visible now, or None.
    """

    def __init__(
        self,
        broker: Broker,
        log: str,
        visibility: Visibility,
        *,
        wait_max_s: float,
        pending_max: int,
        obstacle: Callable[[], str | None],
    ) -> None:
        self._sender = LogSender(broker, log)
        self._log = log
        self._visibility = visibility
        self._wait_max_s = wait_max_s
        self._pending_max = pending_max
        self._obstacle = obstacle
        self._trouble = "not connected yet"
        # Ids of different processes, and of one process after a restart, must never meet.
        self._prefix = secrets.token_hex(8)
        self._numbers = count()

    @property
    def trouble(self) -> str | None:
        """Why nothing can be published now, or None."""
        return None if self._sender.connected else f"log {self._log}: {self._trouble}"

    async def run(self) -> None:
        """Connect, and connect again, until cancelled; then close."""
        backoff = Backoff()
        try:
            while True:
                try:
                    await self._sender.connect()
                except LogUnavailable as error:
                    self._trouble = str(error)
                    _log.warning("log_unavailable", extra={"log": self._log, "reason": str(error)})
                else:
                    backoff.reset()
                    self._trouble = await self._sender.ended
                    _log.warning("log_disconnected", extra={"log": self._log, "reason": self._trouble})
                await asyncio.sleep(backoff.next_s())
        finally:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(2):
                    await self._sender.close()
            self._sender.abort()

    async def publish(self, event: Event, *, wait: bool) -> ContentID | None:
        trouble = self.trouble or self._obstacle()
        if trouble is not None:
            raise LogUnavailable(f"nothing was published: {trouble}")
        if len(self._visibility) >= self._pending_max:
            raise LogUnavailable("nothing was published: too many events wait for the log")
        message_id = f"{self._prefix}-{next(self._numbers)}"
        message = native_message(event, message_id=message_id, group_key=event.target)
        data = encode_message(message)
        if not wait:
            async with self._limit():
                await self._sender.send_now(data)
            return None
        visible = self._visibility.expect(message_id)
        answer = self._sender.send_now(data)
        # An unknown outcome may still turn out well: if the log has the event, it will become visible.
        answer.add_done_callback(lambda done: self._answered(message_id, done))
        try:
            async with self._limit():
                return await visible
        except TimeoutError:
            if answer.done() and answer.exception() is None:
                return None
            raise OutcomeUnknown(
                f"the log did not say within {self._wait_max_s:g} s whether it has the event;"
                " look into the feed before you send it again"
            ) from None
        finally:
            self._visibility.forget(message_id)

    def _limit(self) -> asyncio.Timeout:
        return asyncio.timeout(self._wait_max_s)

    def _answered(self, message_id: str, answer: Answer) -> None:
        error = answer.exception()
        if isinstance(error, LogUnavailable):
            self._visibility.failed(message_id, LogUnavailable(f"nothing was published: {error}"))
        elif error is not None and not isinstance(error, OutcomeUnknown):
            self._visibility.failed(message_id, error)  # type: ignore[arg-type]
