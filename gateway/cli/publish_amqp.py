"""Publishing over AMQP: one link, so the log has the events in the order of their lines."""

from __future__ import annotations

import asyncio
import secrets

from gateway.amqp.sections import encode_message
from gateway.amqp.sender import LogSender
from gateway.core.errors import GatewayError, LogUnavailable, MessageRefused, OutcomeUnknown
from gateway.core.event import Event
from gateway.core.mapping import native_message

from .ledger import Ledger, Outcome, PublishFailed

ANSWER_MAX_S = 120.0
"""From sending an event to the log's answer, and for which the log may take no events at all."""


class AmqpSender:
    """Sends events to the log `log` of the node at `url`; see `gateway.cli.ledger.Sender`."""

    def __init__(self, url: str, ledger: Ledger, *, log: str) -> None:
        self._ledger = ledger
        self._url = url
        self._log = log
        # The ids of two runs must not meet.
        self._run = secrets.token_hex(8)
        self._answers: asyncio.Queue[tuple[int, asyncio.Future[None]] | None] = asyncio.Queue()
        self._reader: asyncio.Task[None] | None = None
        self._sender: LogSender | None = None

    async def open(self) -> None:
        self._sender = LogSender(self._url, self._log)
        await self._sender.connect()
        self._reader = asyncio.create_task(self._read_answers())

    async def put(self, ticket: int, event: Event) -> None:
        assert self._sender is not None, "opened before anything is put"
        message = native_message(event, message_id=f"{self._run}-{ticket}", group_key=event.target)
        try:
            async with asyncio.timeout(ANSWER_MAX_S):
                answer = await self._sender.send(encode_message(message))
        except TimeoutError:
            self._ledger.fail(ticket, PublishFailed("the log took no events for too long", Outcome.NOT_SENT))
            return
        # Unbounded, but the sender lets only so many events be unanswered.
        self._answers.put_nowait((ticket, answer))

    async def finish(self) -> None:
        self._answers.put_nowait(None)
        if self._reader is not None:
            await self._reader

    async def close(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
        if self._sender is not None:
            try:
                async with asyncio.timeout(ANSWER_MAX_S):
                    await self._sender.close()
            except (TimeoutError, GatewayError):
                # Every event has its outcome already.
                self._sender.abort()

    async def _read_answers(self) -> None:
        while (item := await self._answers.get()) is not None:
            ticket, answer = item
            try:
                async with asyncio.timeout(ANSWER_MAX_S):
                    await answer
            except MessageRefused as error:
                self._ledger.fail(ticket, PublishFailed(str(error), Outcome.REFUSED))
            except LogUnavailable as error:
                self._ledger.fail(ticket, PublishFailed(str(error), Outcome.NOT_SENT))
            except OutcomeUnknown as error:
                self._ledger.fail(ticket, PublishFailed(str(error), Outcome.UNKNOWN))
            except TimeoutError:
                self._ledger.fail(ticket, PublishFailed("the log did not answer in time", Outcome.UNKNOWN))
            else:
                self._ledger.succeed(ticket)
