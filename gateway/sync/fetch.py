"""Requests to a server that is not trusted: everything has a limit, and "not now" is heard a few times.

Only GET and HEAD are sent, so a request may be repeated (RFC 9110, 9.2.1).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import TracebackType
from urllib.parse import urldefrag, urljoin, urlsplit

import aiohttp
from multidict import CIMultiDictProxy
from yarl import URL

from gateway import __version__
from gateway.core.errors import GatewayError
from gateway.core.links import parse_links
from gateway.core.times import parse_http_date

from .urls import Login, login_of, origin_of, without_user

REDIRECTS = frozenset({301, 302, 303, 307, 308})
NOT_NOW = frozenset({429, 503})

# What may lie unread before the sender is held back; documents are read whole.
_READ_BYTES = 1024 * 1024


class FetchFailed(GatewayError):
    """A server could not be asked, or its answer was too long, too slow or broken off."""


class InvalidLink(FetchFailed):
    """A link that is no http URL, so that it cannot be followed."""


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """Limits of a reader; times in seconds.

    `parallel` is the number of requests at one time, `request_s` bounds a request as a whole, and `read_s`
    the time without a byte. `agent` is the name in User-Agent. `login` goes to its own server only.
    """

    agent: str = "wes-check"
    parallel: int = 16
    connect_s: float = 10.0
    read_s: float = 30.0
    request_s: float = 60.0
    body_bytes_max: int = 256 * 1024 * 1024
    redirects_max: int = 5
    retries_max: int = 5
    retry_after_s: float = 1.0
    retry_after_max_s: float = 30.0
    login: Login | None = field(default=None, repr=False)


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

    def relations(self) -> dict[str, str]:
        """Each relation type of the Link headers, with the first target that has it, as an absolute URL."""
        found: dict[str, str] = {}
        for value in self.headers.getall("Link", []):
            for link in parse_links(value):
                for relation in link.relations:
                    found.setdefault(relation, resolve(self.url, link.target))
        return found

    def retry_after_s(self) -> float | None:
        """What Retry-After says (RFC 9110, 10.2.3), in seconds from now; None if it says nothing."""
        text = self.headers.get("Retry-After", "").strip()
        if text.isascii() and text.isdigit():
            return float(text[:9])
        moment_ms = parse_http_date(text)
        return None if moment_ms is None else max(0.0, moment_ms / 1000 - time.time())


OnHead = Callable[[Answer], None]


def resolve(base: str, link: str) -> str:
    """The absolute URL of `link` in a document from `base` (RFC 3986, 5), without user info and fragment.

    A link that is no URL at all comes back as it is; `fetch` refuses it.
    """
    try:
        return without_user(urldefrag(urljoin(base, link.strip()))[0])
    except ValueError:
        return without_user(link)


def enter(url: str, settings: FetchSettings) -> tuple[str, FetchSettings]:
    """A URL that a user gave, without user info, and `settings` with the login that this asked for.

    So no URL that is asked for, shown or kept has a password in it.
    """
    login = login_of(url)
    return without_user(url), settings if login is None else replace(settings, login=login)


class Fetcher:
    """Asks servers. Use it as an asynchronous context manager."""

    def __init__(self, settings: FetchSettings, on_request: Callable[[], None] = lambda: None) -> None:
        self._settings = settings
        self._on_request = on_request
        self.requests = 0
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> Fetcher:
        self._session = self._new_session()
        return self

    def _new_session(self) -> aiohttp.ClientSession:
        settings = self._settings
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=settings.parallel),
            timeout=self._timeout(0.0),
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=_READ_BYTES,
            headers={
                # Bytes are compared, so they are asked for as they are.
                "Accept-Encoding": "identity",
                "User-Agent": f"{settings.agent}/{__version__}",
            },
        )

    def _timeout(self, wait_s: float) -> aiohttp.ClientTimeout:
        settings = self._settings
        return aiohttp.ClientTimeout(
            total=settings.request_s + wait_s,
            sock_connect=settings.connect_s,
            sock_read=settings.read_s + wait_s,
        )

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._session.close()

    async def reconnect(self) -> None:
        """Use none of the connections again: after a broken answer, what comes next on them is not sure."""
        session, self._session = self._session, self._new_session()
        await session.close()

    async def fetch(
        self,
        url: str,
        *,
        method: str = "GET",
        headers: dict[str, str] | None = None,
        wait_s: float = 0.0,
        on_head: OnHead | None = None,
    ) -> Answer:
        """The answer to one request, redirects not followed; raises FetchFailed or InvalidLink.

        `wait_s` is how much longer than usual the server may take. `on_head` is called with the answer
        before it has a body, once for each time that the request is sent.
        """
        settings = self._settings
        parsed = _url(url)
        for attempt in range(settings.retries_max + 1):
            last = attempt == settings.retries_max
            try:
                answer = await self._ask(parsed, url, method, headers, wait_s, on_head)
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                if last or isinstance(error, TimeoutError | aiohttp.ClientConnectorError):
                    raise FetchFailed(f"{url}: {_text(error)}") from None
                await asyncio.sleep(settings.retry_after_s)
                continue
            if answer.status not in NOT_NOW or last:
                return answer
            retry_s = answer.retry_after_s()
            await asyncio.sleep(
                min(settings.retry_after_s if retry_s is None else retry_s, settings.retry_after_max_s)
            )
        raise AssertionError("the last attempt returns or raises")

    async def follow(
        self,
        url: str,
        headers: dict[str, str] | None = None,
        *,
        method: str = "GET",
        on_head: OnHead | None = None,
        within: str | None = None,
    ) -> Answer:
        """The answer at the end of the redirects; itself a redirect if there are too many of them.

        The same for one that leads out of the origin `within`. `on_head` is called as in `fetch`, for each of
        the answers.
        """
        for _ in range(self._settings.redirects_max):
            answer = await self.fetch(url, method=method, headers=headers, on_head=on_head)
            location = answer.headers.get("Location")
            if answer.status not in REDIRECTS or location is None:
                return answer
            following = resolve(url, location)
            if within is not None and origin_of(following) != within:
                return answer
            url = following
        return await self.fetch(url, method=method, headers=headers, on_head=on_head)

    async def _ask(
        self,
        url: URL,
        asked: str,
        method: str,
        headers: dict[str, str] | None,
        wait_s: float,
        on_head: OnHead | None,
    ) -> Answer:
        self.requests += 1
        self._on_request()
        timeout = self._timeout(wait_s)
        login = self._settings.login
        if login is not None and origin_of(asked) == login.origin:
            headers = {**(headers or {}), "Authorization": login.authorization}
        async with self._session.request(
            method, url, headers=headers, allow_redirects=False, timeout=timeout
        ) as response:
            if on_head is not None:
                on_head(Answer(asked, response.status, response.headers, b""))
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


def _text(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no whole answer in time"
    return str(error) or type(error).__name__
