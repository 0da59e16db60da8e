"""Publishing events: into the log, and not answered before they are visible in their feed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable
from itertools import count

from gateway.core.errors import LogUnavailable, MessageRefused, OutcomeUnknown
from gateway.core.event import Event
from gateway.core.identity import ContentID

from .backoff import Backoff
from .client import Broker
from .native import encode_native
from .sender import LogSender
from .visibility import Visibility

EXPIRY_S = 0.25

_log = logging.getLogger("wes.publish")


class LogPublisher:
    """Publishes to one log; `run` keeps its connection up. See `gateway.http.live.Publisher`.

    `obstacle` says why events could not become visible now, or None; `behind` whether the feeds lack events
    that the log had before.
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
        behind: Callable[[], bool],
    ) -> None:
        self._sender = LogSender(broker, log)
        self._log = log
        self._visibility = visibility
        self._wait_max_s = wait_max_s
        self._pending_max = pending_max
        self._obstacle = obstacle
        self._behind = behind
        self._trouble = "not connected yet"
        self._loop = asyncio.get_running_loop()
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
        expiring = asyncio.create_task(self._expire())
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
            expiring.cancel()
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
        data = encode_native(event, message_id)
        if not wait:
            await self._accepted(data, message_id, event.target)
            return None
        deadline = self._loop.time() + self._wait_max_s
        publication = self._visibility.expect(message_id, event, data, deadline=deadline)
        self._sender.send_now(data, publication)
        try:
            return await publication.visible
        except (LogUnavailable, MessageRefused):
            self._visibility.forget(message_id)
            raise
        except BaseException:
            # No answer, or a request that was cancelled: the event may be on its way all the same.
            self._visibility.expect_late(message_id, event.target, kept=publication.accepted)
            raise

    def unsettled(self, target: str) -> bool:
        return self._behind() or self._visibility.unsettled(target)

    async def _accepted(self, data: bytes, message_id: str, target: str) -> None:
        answer: asyncio.Future[None] = self._loop.create_future()
        self._visibility.send_late(message_id, target)
        self._sender.send_now(data, answer)
        try:
            async with asyncio.timeout(self._wait_max_s):
                await answer
        except (LogUnavailable, MessageRefused):
            self._visibility.forget(message_id)
            raise
        except OutcomeUnknown:
            self._visibility.expect_late(message_id, target, kept=False)
            raise
        except TimeoutError:
            raise OutcomeUnknown("the log did not say in time whether it has the event") from None

    async def _expire(self) -> None:
        """One look at the clock for all who wait costs less than a timer for each."""
        while True:
            await asyncio.sleep(EXPIRY_S)
            hindered = self._behind() or (self.trouble or self._obstacle()) is not None
            self._visibility.expire(self._loop.time(), 0.0 if hindered else EXPIRY_S)
