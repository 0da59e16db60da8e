"""Sending messages to a log: at most once, with the outcome of each.

What was handed to the connection and not answered has an unknown outcome, and is never sent again here:
only the caller knows whether an event may appear twice. What still waited for credit was not sent.
"""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import count
from typing import Any, Protocol

from gateway.core.errors import GatewayError, LogUnavailable, MessageRefused, OutcomeUnknown

from .client import Broker, Client, LinkOwner, parse_broker
from .dialects import event_streams
from .endpoints import AmqpDelivery, AmqpLink, Condition, Outcome

UNANSWERED_MAX = 1_000
GATHER_S = 0.001
QUEUED_BYTES_MAX = 32 * 1024 * 1024
OUT_OF_RESOURCES = "amqp:resource-limit-exceeded"


class Answer(Protocol):
    """Who waits for the outcome of a message; a future is one."""

    def done(self) -> bool: ...

    def set_result(self, result: None, /) -> None: ...

    def set_exception(self, error: GatewayError, /) -> None: ...


class LogSender(LinkOwner):
    """A sending link to a log, on a connection of its own.

    `url` is `amqp[s]://…`, `address` the log, `partition` one of its partitions or None, where the log
    chooses by the message's group key.
    """

    def __init__(self, url: str | Broker, address: str, partition: str | None = None) -> None:
        self._broker = parse_broker(url) if isinstance(url, str) else url
        self._address = address
        self._partition = partition
        self._loop = asyncio.get_running_loop()
        self._client: Client | None = None
        self._link: AmqpLink | None = None
        self._tags = count()
        self._answers: dict[Any, Answer] = {}
        """Who waits for which delivery, by the engine's object for it."""
        self._queue: deque[tuple[bytes, Answer]] = deque()
        self._queued_bytes = 0
        self._room = asyncio.Event()
        self._room.set()
        self._flushing = False
        self.ended: asyncio.Future[str]

    @property
    def connected(self) -> bool:
        """Whether messages can be sent."""
        return self._link is not None and self._link.alive

    async def connect(self) -> None:
        """Connect and attach; raises LogUnavailable. May be called again after the link has ended."""
        self.ended = self._loop.create_future()
        client = await Client.connect(self._broker, "wes-sender")
        try:
            link = client.connection.sender(client.connection.session(), f"to-{self._address}")
            link.set_source("wes-sender")
            link.set_target(self._address)
            if self._partition is not None:
                link.set_properties(event_streams.link_properties(self._partition))
            await client.attach(link, self)
        except BaseException:
            client.abort()
            raise
        self._client, self._link = client, link

    async def send(self, data: bytes) -> asyncio.Future[None]:
        """Send an encoded message once there is room; the future resolves when the log has it.

        The future raises MessageRefused if the log refused it, OutcomeUnknown if the connection ended before
        the answer, LogUnavailable if it ended before the message was sent.
        """
        while not self._room.is_set():
            await self._room.wait()
        answer: asyncio.Future[None] = self._loop.create_future()
        # An answer that nobody waits for any more is no news.
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())
        self.send_now(data, answer)
        return answer

    def send_now(self, data: bytes, answer: Answer) -> None:
        """`send` without waiting for room, with the outcome to `answer`."""
        if not self.connected:
            answer.set_exception(LogUnavailable(f"not connected to {self._broker}"))
            return
        self._queue.append((data, answer))
        self._queued_bytes += len(data)
        self._set_room()
        if not self._flushing:
            self._flushing = True
            # As in Nagle's algorithm: what is sent while answers are awaited gathers a moment and leaves in
            # one write, so that the log can commit it together; a lone message does not wait.
            self._loop.call_later(GATHER_S if self._answers else 0, self._send_queued)

    async def close(self) -> None:
        """Close in good order; what was not answered has an unknown outcome."""
        if self._client is not None:
            await self._client.close()

    def abort(self) -> None:
        """Cut the connection."""
        if self._client is not None:
            self._client.abort()

    # LinkOwner

    def on_flow(self, link: AmqpLink) -> None:
        self._transfer()

    def on_delivery(self, link: AmqpLink, delivery: AmqpDelivery) -> None:
        outcome = delivery.outcome
        if outcome is None or outcome is Outcome.RECEIVED:
            if not delivery.settled:
                return
            error: GatewayError | None = OutcomeUnknown("the log settled without an outcome")
        else:
            error = None if outcome is Outcome.ACCEPTED else _refusal(outcome, delivery.condition)
        answer = self._answers.pop(delivery.impl, None)
        delivery.settle()
        if answer is not None and not answer.done():
            if error is None:
                answer.set_result(None)
            else:
                answer.set_exception(error)
        self._set_room()

    def on_closed(self, reason: str) -> None:
        queue, answers = self._queue, self._answers
        self._queue, self._answers, self._queued_bytes = deque(), {}, 0
        for _, answer in queue:
            _fail(answer, LogUnavailable(f"nothing was published: {self._broker}: {reason}"))
        for answer in answers.values():
            _fail(answer, OutcomeUnknown(f"{self._broker} went away before its answer: {reason}"))
        self._room.set()
        if self._client is not None:
            self._client.connection.close()
        if not self.ended.done():
            self.ended.set_result(reason)

    def _send_queued(self) -> None:
        self._flushing = False
        if self._link is not None and self._link.alive:
            self._transfer()
            self._link.connection.flush()

    def _transfer(self) -> None:
        link, queue = self._link, self._queue
        if link is None:
            return
        while queue and link.alive and link.credit > 0:
            data, answer = queue.popleft()
            self._queued_bytes -= len(data)
            if answer.done():
                continue
            delivery = link.send(data, b"%d" % next(self._tags), settled=False)
            assert delivery is not None, "an unsettled transfer has a delivery"
            self._answers[delivery.impl] = answer
        self._set_room()

    def _set_room(self) -> None:
        unanswered = len(self._answers) + len(self._queue)
        if unanswered < UNANSWERED_MAX and self._queued_bytes < QUEUED_BYTES_MAX:
            self._room.set()
        else:
            self._room.clear()


def _refusal(outcome: Outcome, condition: Condition | None) -> GatewayError:
    """Why the log did not keep a message: for what it is, or because the log cannot keep any now."""
    reason = f"{condition.name}: {condition.description}" if condition else outcome.name.lower()
    if outcome is Outcome.REJECTED and (condition is None or condition.name != OUT_OF_RESOURCES):
        return MessageRefused(f"the log refused the message: {reason}")
    return LogUnavailable(f"nothing was published: the log keeps no messages now: {reason}")


def _fail(answer: Answer, error: GatewayError) -> None:
    if not answer.done():
        answer.set_exception(error)
