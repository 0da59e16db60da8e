"""A writer for tests that kill: events of all kinds, over HTTP, for as long as it takes."""

from __future__ import annotations

import random
import threading

from tests.acceptance.support import call
from tests.servers import Server

TARGETS = 40
MERGE_PATCH, JSON_PATCH = "application/merge-patch+json", "application/json-patch+json"


class Publishing(threading.Thread):
    """Events of every method about a few targets, until told to stop; it waits for a gateway that is away."""

    def __init__(self, gateway: Server, seed: int) -> None:
        super().__init__()
        self._gateway = gateway
        self._stopping = threading.Event()
        self._chance = random.Random(seed)
        self.published = 0

    def stop(self) -> None:
        self._stopping.set()
        self.join()

    def run(self) -> None:
        while not self._stopping.is_set():
            method, content_type, body = self._event()
            headers = {} if content_type is None else {"Content-Type": content_type}
            target = f"/t/{self._chance.randrange(TARGETS)}"
            try:
                answer = call(self._gateway.http, method, target, body, headers, timeout_s=10)
            except OSError:
                self._stopping.wait(0.05)
            else:
                self.published += answer.status in (201, 204)

    def _event(self) -> tuple[str, str | None, bytes | None]:
        number = self._chance.randrange(1_000)
        kind = self._chance.choices(["PUT", "MERGE", "PATCH", "DIFF", "DELETE", "POST"], [8, 6, 3, 1, 2, 1])[
            0
        ]
        if kind == "MERGE":
            return "PATCH", MERGE_PATCH, b'{"m%d": %d.10}' % (number % 5, number)
        if kind == "PATCH":
            return "PATCH", JSON_PATCH, b'[{"op": "add", "path": "/p", "value": %d}]' % number
        if kind == "DIFF":
            return "PATCH", "text/x-diff", b"%d" % number
        if kind == "DELETE":
            return "DELETE", None, None
        return kind, "application/json", b'{"n": %d}' % number
