"""Publishing over HTTP: one request for each event, many at a time, in order for each target.

Every target belongs to one worker, and a worker has one request under way, so two events about one
target never overtake each other.
"""

from __future__ import annotations

import asyncio
import json
import zlib
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

import aiohttp
from yarl import URL

from gateway import __version__
from gateway.core.errors import GatewayError
from gateway.core.event import Event
from gateway.core.links import link_by_relation, log_path
from gateway.sync.urls import without_user

from .ledger import Ledger, Outcome, PublishFailed

NOTHING_DONE = frozenset({429, 503})
"""Statuses that promise that the request was not acted on (RFC 6585, 4; RFC 9110, 15.6.4)."""


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Times in seconds; `waiting_max` is the number of events that wait for each worker."""

    connect_s: float = 10.0
    answer_s: float = 120.0
    idle_s: float = 5.0
    retries_max: int = 30
    retry_after_s: float = 1.0
    retry_after_max_s: float = 30.0
    waiting_max: int = 32
    problem_bytes_max: int = 4_096


LIMITS = HttpLimits()


class HttpSender:
    """Sends events to a gateway at `url`; see `gateway.cli.ledger.Sender`.

    With `log`, that log must exist, and an event that went to another one is a failure.
    """

    def __init__(
        self,
        url: str,
        ledger: Ledger,
        *,
        log: str | None,
        parallel: int,
        limits: HttpLimits = LIMITS,
    ) -> None:
        parts = urlsplit(url)
        self._base = urlunsplit(parts._replace(path=parts.path.rstrip("/")))
        self._shown = without_user(self._base)
        self._ledger = ledger
        self._log = log
        self._limits = limits
        self._parallel = parallel
        self._queues: list[asyncio.Queue[tuple[int, Event] | None]] = []
        self._workers: list[asyncio.Task[None]] = []
        self._session: aiohttp.ClientSession

    async def open(self) -> None:
        limits = self._limits
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=limits.answer_s, sock_connect=limits.connect_s),
            # A server may close an idle connection just when it is used again, and that outcome is unknown.
            connector=aiohttp.TCPConnector(limit=self._parallel, keepalive_timeout=limits.idle_s),
            headers={"User-Agent": f"wes-publish/{__version__}"},
        )
        # aiohttp sends PUT and DELETE again on its own when a kept connection breaks, as they are idempotent;
        # but here each one that arrives is an event.
        self._session._retry_connection = False
        if self._log is not None:
            await self._check_log(self._log)
        self._queues = [asyncio.Queue(limits.waiting_max) for _ in range(self._parallel)]
        self._workers = [asyncio.create_task(self._work(queue)) for queue in self._queues]

    async def put(self, ticket: int, event: Event) -> None:
        worker = zlib.crc32(event.target.encode()) % len(self._queues)
        await self._queues[worker].put((ticket, event))

    async def finish(self) -> None:
        for queue in self._queues:
            await queue.put(None)
        await asyncio.gather(*self._workers)

    async def close(self) -> None:
        for worker in self._workers:
            worker.cancel()
        await self._session.close()

    async def _check_log(self, log: str) -> None:
        url = f"{self._base}{log_path(log)}"
        try:
            async with self._session.get(URL(url), allow_redirects=False) as response:
                if response.status != 200:
                    raise GatewayError(
                        f"{without_user(url)} answers {response.status}: is {log} a log there?"
                    )
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise GatewayError(f"{self._shown} cannot be reached: {_text(error)}") from None

    async def _work(self, queue: asyncio.Queue[tuple[int, Event] | None]) -> None:
        while (item := await queue.get()) is not None:
            if self._ledger.over.is_set():
                continue
            ticket, event = item
            try:
                await self._publish(event)
            except PublishFailed as error:
                self._ledger.fail(ticket, error)
            else:
                self._ledger.succeed(ticket)

    async def _publish(self, event: Event) -> None:
        """Send until the answer is more than "not now"; raises PublishFailed."""
        limits = self._limits
        url = URL(f"{self._base}{event.target}", encoded=True)
        headers = list(event.extra_headers)
        if event.content_type is not None:
            headers.append(("Content-Type", event.content_type))
        for attempt in range(limits.retries_max + 1):
            try:
                async with self._session.request(
                    event.method.value,
                    url,
                    data=event.body or None,
                    headers=headers,
                    skip_auto_headers=("Content-Type",),
                    allow_redirects=False,
                ) as response:
                    if response.status not in NOTHING_DONE:
                        await self._judge(response)
                        return
                    reason = f"{response.status}, {await self._detail(response)}"
                    wait_s = _retry_after_s(response, limits)
            except aiohttp.ClientConnectorError as error:
                reason = f"{self._shown} cannot be reached: {_text(error)}"
                wait_s = limits.retry_after_s
                if not self._ledger.acknowledged:
                    raise PublishFailed(reason, Outcome.NOT_SENT) from None
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                raise PublishFailed(
                    f"sent to {self._shown}, but no answer came: {_text(error)}", Outcome.UNKNOWN
                ) from None
            if self._ledger.over.is_set():
                break
            if attempt < limits.retries_max:
                await asyncio.sleep(wait_s)
        raise PublishFailed(f"{reason} (tried {attempt + 1} times)", Outcome.NOT_SENT)

    async def _judge(self, response: aiohttp.ClientResponse) -> None:
        """Raise PublishFailed unless the answer says that the event is published."""
        status = response.status
        if 200 <= status < 300:
            entry = link_by_relation(response.headers.getall("Link", []), "self")
            if self._log is not None and not (entry or "").startswith(f"{log_path(self._log)}/"):
                raise PublishFailed(
                    f"the event went to {entry}, not to the log {self._log}: its target belongs to another",
                    Outcome.ELSEWHERE,
                )
            return
        reason = f"answered with {status}, {await self._detail(response)}"
        # A server error may come after the event was sent on; a redirect or client error comes instead.
        raise PublishFailed(reason, Outcome.UNKNOWN if status >= 500 else Outcome.REFUSED)

    async def _detail(self, response: aiohttp.ClientResponse) -> str:
        """What a problem document says (RFC 9457), else the reason phrase."""
        try:
            body = await response.content.read(self._limits.problem_bytes_max)
            detail = json.loads(body)["detail"]
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError, TypeError, KeyError):
            return response.reason or "no reason given"
        return str(detail)


def _retry_after_s(response: aiohttp.ClientResponse, limits: HttpLimits) -> float:
    """The seconds of Retry-After, in bounds; its other form, a date, is as good as none here."""
    text = response.headers.get("Retry-After", "")
    seconds = float(text) if text.isascii() and text.isdigit() else limits.retry_after_s
    return min(seconds, limits.retry_after_max_s)


def _text(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return str(error) or type(error).__name__
