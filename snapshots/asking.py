"""GET, for the jobs: a pool of connections, bounded answers, bounded retries that obey Retry-After."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from typing import NamedTuple

import urllib3
from urllib3.exceptions import HTTPError, LocationParseError, MaxRetryError
from urllib3.util import Retry, Timeout

from .places import FeedLost

CONNECT_S_MAX = 10.0
READ_S_MAX = 60.0
"""Between two pieces of an answer."""
RETRIES_MAX = 8
RETRY_WAIT_S_MAX = 10.0
RETRY_AFTER_S_MAX = 60
BROKEN_TRIES_MAX = 3
"""How often an answer that ended early or does not hold what it says is asked for again."""
BROKEN_WAIT_S = 0.5
ANSWER_BYTES_MAX = 512 * 1024 * 1024

_NOT_NOW = (429, 502, 503, 504)
_PIECE_BYTES = 1 << 20


class Answer(NamedTuple):
    """An answer to a GET; `body` may be only its beginning, if no more was asked for."""

    url: str
    status: int
    headers: Mapping[str, str]
    body: bytes

    def lost(self, what: str) -> FeedLost:
        return FeedLost(f"{self.url} answers {self.status}: {what}")


class Asker:
    """GETs on one server; redirects are not followed. Not for several threads at a time."""

    def __init__(self) -> None:
        self._pool = urllib3.PoolManager(
            headers={"User-Agent": "web-event-sourcing-snapshots", "Accept-Encoding": "identity"},
            timeout=Timeout(connect=CONNECT_S_MAX, read=READ_S_MAX),
            retries=Retry(
                RETRIES_MAX,
                redirect=0,
                status_forcelist=_NOT_NOW,
                backoff_factor=0.1,
                backoff_max=RETRY_WAIT_S_MAX,
                retry_after_max=RETRY_AFTER_S_MAX,
                raise_on_redirect=False,
                raise_on_status=False,
            ),
        )

    def get(self, url: str, *, bytes_wanted: int | None = None) -> Answer:
        """The answer of `url`, or its first `bytes_wanted` bytes; raises FeedLost if there is none."""
        for attempt in range(1, BROKEN_TRIES_MAX + 1):
            try:
                return self._get(url, bytes_wanted)
            except LocationParseError as error:
                raise FeedLost(f"{url} is not a URL that can be asked: {error}") from error
            except (HTTPError, OSError) as error:
                # What the pool has tried several times is not tried again here.
                if attempt == BROKEN_TRIES_MAX or isinstance(error, MaxRetryError):
                    raise FeedLost(f"{url} cannot be read: {_reason(error)}") from error
            time.sleep(BROKEN_WAIT_S * attempt)
        raise AssertionError("the last try returns or raises")

    def _get(self, url: str, bytes_wanted: int | None) -> Answer:
        response = self._pool.request("GET", url, redirect=False, preload_content=False)
        # A connection whose answer was read to its end is back in the pool by then, and stays open.
        with closing(response):
            body = bytearray()
            while bytes_wanted is None or len(body) < bytes_wanted:
                piece = response.read(_PIECE_BYTES if bytes_wanted is None else bytes_wanted - len(body))
                if not piece:
                    break
                body += piece
                if len(body) > ANSWER_BYTES_MAX:
                    raise FeedLost(f"{url} has more than {ANSWER_BYTES_MAX} bytes")
            return Answer(url, response.status, response.headers, bytes(body))

    def close(self) -> None:
        """Close the connections."""
        self._pool.clear()


def _reason(error: Exception) -> object:
    return getattr(error, "reason", None) or error
