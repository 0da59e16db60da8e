"""Writers and a reader that go on while processes are killed around them, and remember what they were told.

A writer never sends an event twice. What it was told of each is one of three: the event is kept, it is not,
or nobody knows. The reader remembers every archive document that it has ever seen and reads old ones again.
"""

from __future__ import annotations

import asyncio
import hashlib
import http.client
import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import Enum

from gateway.amqp.sections import encode_message
from gateway.amqp.sender import LogSender
from gateway.core.errors import GatewayError, LogUnavailable, MessageRefused
from tests.acceptance.support import Response, call, get, message

AWAY = (OSError, http.client.HTTPException)
UNANSWERED_MAX = 50
PAUSE_S = 0.02


class Told(Enum):
    """What a writer was told of an event."""

    KEPT = "kept"
    NOT_KEPT = "not kept"
    UNKNOWN = "unknown"


class Writer(threading.Thread, ABC):
    """Publishes about one target until `stop`; `told` says what it was told of each of its events."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name)
        self.target = f"/writers/{name}"
        self.told: dict[int, Told] = {}
        self.surprise: BaseException | None = None
        self._stopping = threading.Event()

    def stop(self) -> None:
        self._stopping.set()

    def count(self, what: Told) -> int:
        return list(self.told.values()).count(what)

    def body(self, number: int) -> bytes:
        return b"%d %b" % (number, b"." * (number * 37 % 300))

    def run(self) -> None:
        try:
            self.write()
        except BaseException as error:
            self.surprise = error

    @abstractmethod
    def write(self) -> None:
        """Send events until told to stop."""


class HttpWriter(Writer):
    """One PUT after the other; `base` is where the gateway is now."""

    def __init__(self, name: str, base: Callable[[], str]) -> None:
        super().__init__(name)
        self._base = base

    def write(self) -> None:
        while not self._stopping.is_set():
            number = len(self.told)
            self.told[number] = self._publish(number)
            if self.told[number] is not Told.KEPT:
                self._stopping.wait(PAUSE_S)

    def _publish(self, number: int) -> Told:
        try:
            headers = {"Content-Type": "text/plain"}
            answer = call(self._base(), "PUT", self.target, self.body(number), headers)
        except ConnectionRefusedError:
            return Told.NOT_KEPT
        except AWAY:
            return Told.UNKNOWN
        if answer.status in (201, 202):
            return Told.KEPT
        assert answer.status in (503, 504), answer
        # Who is told to try again may do so: nothing is half done. Nobody is told so where nobody knows.
        assert (answer.header("Retry-After") is not None) == (answer.status == 503), answer
        return Told.NOT_KEPT if answer.status == 503 else Told.UNKNOWN


class AmqpWriter(Writer):
    """Many events under way on one link, connected again and again; `url` is where the node is now."""

    def __init__(self, name: str, url: Callable[[], str]) -> None:
        super().__init__(name)
        self._url = url

    def write(self) -> None:
        asyncio.run(self._write())

    async def _write(self) -> None:
        while not self._stopping.is_set():
            sender = LogSender(self._url(), "events")
            try:
                await sender.connect()
            except LogUnavailable:
                await asyncio.sleep(PAUSE_S)
                continue
            under_way: set[asyncio.Task[None]] = set()
            while not self._stopping.is_set() and sender.connected:
                number = len(self.told)
                self.told[number] = Told.UNKNOWN
                data = encode_message(message(self.body(number), target=self.target, group_id=self.target))
                task = asyncio.create_task(self._learn(number, await sender.send(data)))
                under_way.add(task)
                task.add_done_callback(under_way.discard)
                if len(under_way) >= UNANSWERED_MAX:
                    await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
                await asyncio.sleep(0.002)
            if under_way:
                await asyncio.wait(under_way)
            sender.abort()
            await sender.ended

    async def _learn(self, number: int, answer: asyncio.Future[None]) -> None:
        try:
            await answer
        except (LogUnavailable, MessageRefused):
            self.told[number] = Told.NOT_KEPT
        except GatewayError:
            pass
        else:
            self.told[number] = Told.KEPT


class Reader(threading.Thread):
    """Reads archive documents, new ones and old ones again, and notes each that is not as it was."""

    def __init__(self, base: Callable[[], str], partitions: list[str], seed: int) -> None:
        super().__init__(name="reader")
        self.seen: dict[str, object] = {}
        self.changed: list[str] = []
        self.reads = 0
        self.surprise: BaseException | None = None
        self._base = base
        self._next = dict.fromkeys(partitions, 0)
        self._random = random.Random(seed)
        self._stopping = threading.Event()

    def stop(self) -> None:
        self._stopping.set()

    def run(self) -> None:
        try:
            while not self._stopping.wait(PAUSE_S):
                try:
                    self._look()
                except AWAY:
                    continue
        except BaseException as error:
            self.surprise = error

    def look_at_all(self) -> None:
        """Read again every document that was ever read."""
        for path in self.seen:
            self._compare(path, get(self._base(), path))

    def _look(self) -> None:
        for partition, number in self._next.items():
            path = f"/feeds/events/{partition}/archive/{number}"
            answer = get(self._base(), path)
            self.reads += 1
            if answer.status == 200:
                self.seen[path] = _trace(answer)
                self._next[partition] = number + 1
            else:
                assert answer.status in (302, 404), answer
        if self.seen:
            path = self._random.choice(list(self.seen))
            self._compare(path, get(self._base(), path))

    def _compare(self, path: str, answer: Response) -> None:
        self.reads += 1
        if _trace(answer) != self.seen[path]:
            self.changed.append(f"{path}: {answer.status} {answer.headers}, was {self.seen[path]}")


def _trace(answer: Response) -> object:
    return answer.status, answer.undated, hashlib.sha256(answer.body).hexdigest()
