"""Documents asked for before they are needed, along the links of those that are still on their way.

The next document is asked for as soon as the head of the one before it names it, so that catching up takes
the time of the bytes, not of the round trips.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from .fetch import REDIRECTS, Answer, Fetcher


class Ahead:
    """Fetches at most `documents_max` documents ahead, and none while those at hand pass `bytes_max`.

    `following` tells the URL of the document after the one whose head it gets; None ends the row.
    """

    def __init__(
        self,
        fetcher: Fetcher,
        following: Callable[[Answer], str | None],
        *,
        headers: dict[str, str],
        documents_max: int,
        bytes_max: int,
    ) -> None:
        self._fetcher = fetcher
        self._following = following
        self._headers = headers
        self._documents_max = documents_max
        self._bytes_max = bytes_max
        self._row: deque[tuple[str, asyncio.Task[Answer]]] = deque()
        self._taken = asyncio.Event()
        self._runner: asyncio.Task[None] | None = None

    async def get(self, url: str) -> Answer:
        """The answer at `url`, redirects followed; raises FetchFailed."""
        if not self._row or self._row[0][0] != url:
            await self.drop()
            self._runner = asyncio.create_task(self._run(url, self._launch(url)))
        task = self._row[0][1]
        answer = await asyncio.shield(task)
        self._row.popleft()
        self._taken.set()
        return answer

    async def drop(self) -> None:
        """Forget what was fetched, and fetch no more."""
        tasks: list[asyncio.Task[Answer] | asyncio.Task[None]] = [task for _, task in self._row]
        self._row.clear()
        if self._runner is not None:
            tasks.append(self._runner)
            self._runner = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _launch(self, url: str) -> asyncio.Future[Answer]:
        head: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        def on_head(answer: Answer) -> None:
            if answer.status not in REDIRECTS and not head.done():
                head.set_result(answer)

        task = asyncio.create_task(self._fetcher.follow(url, self._headers, on_head=on_head))
        # Without a head there is nothing to go on from, and get() tells why.
        task.add_done_callback(lambda _: head.cancel())
        self._row.append((url, task))
        return head

    async def _run(self, url: str, head: asyncio.Future[Answer]) -> None:
        while True:
            await asyncio.wait((head,))
            following = None if head.cancelled() else self._following(head.result())
            if following is None:
                return
            while len(self._row) > self._documents_max or self._bytes() > self._bytes_max:
                self._taken.clear()
                await self._taken.wait()
            head = self._launch(following)

    def _bytes(self) -> int:
        done = (task for _, task in self._row if task.done() and not task.cancelled())
        return sum(len(task.result().body) for task in done if task.exception() is None)
