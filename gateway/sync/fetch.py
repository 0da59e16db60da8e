"""Requests to a server that is not trusted: everything has a limit, and "not now" is heard a few times.

Only GET and HEAD are sent, so a request may be repeated (RFC 9110, 9.2.1).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from urllib.parse import urldefrag, urljoin, urlsplit

import aiohttp
from multidict import CIMultiDictProxy
from yarl import URL

from gateway import __version__
from gateway.core.errors import GatewayError

REDIRECTS = frozenset({301, 302, 303, 307, 308})
_NOT_NOW = frozenset({429, 503})


class FetchFailed(GatewayError):
    """A server could not be asked, or its answer was too long, too slow or broken off."""


class InvalidLink(FetchFailed):
    """A link that is no http URL, so that it cannot be followed."""


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """Limits of a reader; times in seconds. `parallel` is the number of requests at one time."""

    parallel: int = 16
    connect_s: float = 10.0
    request_s: float = 60.0
    body_bytes_max: int = 256 * 1024 * 1024
    redirects_max: int = 5
    retries_max: int = 5
    retry_after_s: float = 1.0
    retry_after_max_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Answer:
    """One response, whole. `url` is what was asked for."""

    url: str
    status: int
    headers: CIMultiDictProxy[str]
    body: bytes

    def header(self, name: str) -> str | None:
        """All values of a header in one, or None."""
        values = self.headers.getall(name, [])
        return ", ".join(values) if values else None

    @property
    def media_type(self) -> str:
        """Type and subtype in lower case."""
        return self.headers.get("Content-Type", "").partition(";")[0].strip().lower()


def resolve(base: str, link: str) -> str:
    """The absolute URL of `link` in a document from `base` (RFC 3986, 5), without its fragment.

    A link that is no URL at all comes back as it is; `fetch` refuses it.
    """
    try:
        return urldefrag(urljoin(base, link.strip()))[0]
    except ValueError:
        return link


class Fetcher:
    """Asks servers. Use it as an asynchronous context manager."""

    def __init__(self, settings: FetchSettings, on_request: Callable[[], None] = lambda: None) -> None:
        self._settings = settings
        self._on_request = on_request
        self.requests = 0
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> Fetcher:
        settings = self._settings
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=settings.parallel),
            timeout=aiohttp.ClientTimeout(total=settings.request_s, sock_connect=settings.connect_s),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={
                # Bytes are compared, so they are asked for as they are.
                "Accept-Encoding": "identity",
                "User-Agent": f"wes-check/{__version__}",
            },
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._session.close()

    async def fetch(self, url: str, *, method: str = "GET", headers: dict[str, str] | None = None) -> Answer:
        """The answer to one request, redirects not followed; raises FetchFailed or InvalidLink."""
        settings = self._settings
        parsed = _url(url)
        for attempt in range(settings.retries_max + 1):
            last = attempt == settings.retries_max
            try:
                answer = await self._ask(parsed, url, method, headers)
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                if last or isinstance(error, TimeoutError | aiohttp.ClientConnectorError):
                    raise FetchFailed(f"{url}: {_text(error)}") from None
                await asyncio.sleep(settings.retry_after_s)
                continue
            if answer.status not in _NOT_NOW or last:
                return answer
            await asyncio.sleep(_retry_after_s(answer, settings))
        raise AssertionError("the last attempt returns or raises")

    async def follow(self, url: str, headers: dict[str, str] | None = None) -> Answer:
        """The answer at the end of the redirects; itself a redirect if there are too many of them."""
        for _ in range(self._settings.redirects_max):
            answer = await self.fetch(url, headers=headers)
            location = answer.headers.get("Location")
            if answer.status not in REDIRECTS or location is None:
                return answer
            url = resolve(url, location)
        return await self.fetch(url, headers=headers)

    async def _ask(self, url: URL, asked: str, method: str, headers: dict[str, str] | None) -> Answer:
        self.requests += 1
        self._on_request()
        async with self._session.request(method, url, headers=headers, allow_redirects=False) as response:
            chunks: list[bytes] = []
            length = 0
            while chunk := await response.content.readany():
                length += len(chunk)
                if length > self._settings.body_bytes_max:
                    raise FetchFailed(
                        f"{asked}: the answer has more than {self._settings.body_bytes_max} bytes"
                    )
                chunks.append(chunk)
            return Answer(asked, response.status, response.headers, b"".join(chunks))


def _url(url: str) -> URL:
    try:
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
            raise InvalidLink(f"{url[:200]!r} is not an http URL")
        # As it was written, where that is possible: another spelling may be another resource.
        return URL(url, encoded=url.isascii() and url.isprintable() and " " not in url)
    except ValueError as error:
        raise InvalidLink(f"{url[:200]!r} is not a URL: {error}") from None


def _retry_after_s(answer: Answer, settings: FetchSettings) -> float:
    text = answer.headers.get("Retry-After", "")
    seconds = float(text) if text.isascii() and text.isdigit() else settings.retry_after_s
    return min(seconds, settings.retry_after_max_s)


def _text(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no whole answer in time"
    return str(error) or type(error).__name__
