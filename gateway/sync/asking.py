"""What a reader of a feed asks for, what it takes for an answer, and how long it bears with the rest."""

from __future__ import annotations

from dataclasses import dataclass, field

from .fetch import NOT_NOW, REDIRECTS, Answer, Fetcher, FetchFailed, FetchSettings
from .reading import Document, read_document
from .second_look import ACCEPT

_NO_CACHE = {"Cache-Control": "no-cache"}


@dataclass(frozen=True, slots=True)
class ReaderSettings:
    """Limits of a reader of one feed; times in seconds.

    While nothing comes, the subscription document is asked for again after `poll_s_min`, more and more
    seldom up to `poll_s_max`; a server that can hold the request back until there is news is asked to do so
    for `wait_s`. After trouble the reader waits `trouble_s_min`, twice as long each time up to
    `trouble_s_max`. A broken feed, and any trouble of a reader that does not follow, is given up after
    `tries_max` times in a row, an event that is not found after `lost_tries_max`. `ahead_max` documents with
    about `ahead_bytes_max` bytes are fetched ahead.
    """

    fetch: FetchSettings = field(
        default_factory=lambda: FetchSettings(
            agent="wes-sync", request_s=600.0, retries_max=1, retry_after_s=0.1
        )
    )
    poll_s_min: float = 0.1
    poll_s_max: float = 5.0
    wait_s: int = 25
    trouble_s_min: float = 0.2
    trouble_s_max: float = 30.0
    tries_max: int = 8
    lost_tries_max: int = 5
    ahead_max: int = 4
    ahead_bytes_max: int = 64 * 1024 * 1024
    documents_max: int = 1_000_000


class Refused(FetchFailed):
    """An answer that holds no document; worth another try after `retry_after_s` seconds, if it says so."""

    def __init__(self, answer: Answer) -> None:
        if answer.status in REDIRECTS:
            what = "redirects without an end"
        elif answer.status == 200:
            what = f"is {answer.header('Content-Type')}, not a multipart document"
        else:
            what = f"answers {answer.status}"
        super().__init__(f"{answer.url} {what}")
        self.status = answer.status
        self.retry_after_s = answer.retry_after_s() if answer.status in NOT_NOW else None

    @property
    def for_good(self) -> bool:
        """Whether nothing else is to be expected of a URL that has never led to a feed."""
        return self.status == 200 or (400 <= self.status < 500 and self.status not in (408, 425, 429))

    @property
    def not_there(self) -> bool:
        """Whether the server says that there is no such document."""
        return self.status in (404, 410)


class Asker:
    """Asks for documents of one feed; while it is `fresh`, past the caches on the way (RFC 9111, 5.2.1.4).

    Its methods raise FetchFailed (Refused for an answer without a document) and FeedBroken.
    """

    def __init__(self, fetcher: Fetcher, origin: str) -> None:
        self.fetcher = fetcher
        self.fresh = False
        self._origin = origin

    async def get(self, url: str) -> Document:
        """The document that `url` leads to."""
        return self.read(url, await self.fetcher.follow(url, self._headers()))

    async def head(self, url: str) -> Answer:
        """The links of that document, without its body if the server can do that; 410 is an answer, too."""
        answer = await self.fetcher.follow(url, self._headers(), method="HEAD")
        if answer.status in (405, 501) or (answer.status == 200 and "Link" not in answer.headers):
            answer = await self.fetcher.follow(url, self._headers())
        if answer.status not in (200, 204, 410):
            raise Refused(answer)
        return answer

    async def news(
        self, url: str, etag: str | None, *, wait_s: int, entries: bool
    ) -> tuple[Document | None, bool]:
        """The subscription document if it has another ETag, and whether the server knows how to wait.

        With `entries`, a server that can (RFC 3229) sends only those that are new.
        """
        headers = self._headers() | {"Prefer": f"wait={wait_s}"}
        # aiohttp reads any bytes in a header, and sends text only.
        if etag is not None and etag.isascii():
            headers["If-None-Match"] = etag
            if entries:
                headers["A-IM"] = "feed"
        answer = await self.fetcher.fetch(url, headers=headers, wait_s=wait_s)
        waited = "wait" in answer.headers.get("Preference-Applied", "")
        if answer.status == 304 and "If-None-Match" in headers:
            return None, waited
        if answer.status in REDIRECTS:
            return await self.get(url), waited
        if answer.status == 226 and "A-IM" in headers:
            return read_document(url, answer, self._origin), waited
        return self.read(url, answer), waited

    def read(self, url: str, answer: Answer) -> Document:
        """The document in an answer that `url` led to."""
        if answer.status == 204 or (answer.status == 200 and answer.media_type.startswith("multipart/")):
            return read_document(url, answer, self._origin)
        raise Refused(answer)

    def _headers(self) -> dict[str, str]:
        return ACCEPT | _NO_CACHE if self.fresh else ACCEPT
