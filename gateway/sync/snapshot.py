"""Snapshots over HTTP: where they are, what an index tells, and parts that are what it tells.

An index of this project names the events that its snapshot holds, and size, SHA-256, count and digest of each
part; a part that is anything else is asked for again, and then its snapshot is not used. An index of another
server of the draft has URIs only: a part of it is whole, or it is asked for again.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, TypeVar
from urllib.parse import quote

from gateway.core.errors import DecodeError, GatewayError
from gateway.core.multipart import boundary_of
from gateway.core.snapshots import FeedPoint, Held, SnapshotPart, read_index, read_part

from .asking import ReaderSettings
from .copy import SnapshotName
from .fetch import NOT_NOW, Answer, Fetcher, FetchFailed, InvalidLink, resolve
from .reading import FeedBroken
from .urls import origin_of

PART_TRIES_MAX = 3
"""So often a part is asked for until it is what it must be."""
URIS_MAX = 1_000_000

T = TypeVar("T")

_ACCEPT_INDEX = {"Accept": "application/json", "Cache-Control": "no-cache"}
_ACCEPT_PART = {"Accept": "multipart/package, multipart/*;q=0.5"}
_MAY_PASS = NOT_NOW | {408, 425, 502, 504}
_NOT_THERE = (404, 410)


class SnapshotUnusable(GatewayError):
    """The snapshot that was named is not there, or is none that this copy can begin with."""


class Unused(Exception):
    """Why a snapshot is not used, or not any more."""


class PartAt(NamedTuple):
    """A part: its URI as the index has it, its URL, and what the index tells of it, None on other servers."""

    uri: str
    url: str
    told: SnapshotPart | None


@dataclass(frozen=True, slots=True)
class Index:
    """An index as read; `log` and `feeds` are None on servers other than this project's."""

    name: SnapshotName
    log: str | None
    feeds: tuple[FeedPoint, ...] | None
    parts: tuple[PartAt, ...]


def index_in(answer: Answer) -> Index:
    """The index in an answer; raises DecodeError if there is none, or one with parts of another server."""
    try:
        content = json.loads(answer.body)
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"{answer.url} is not the index of a snapshot: {error}") from None
    if isinstance(content, dict) and "feeds" in content:
        return _own_index(answer)
    try:
        started, uris = content["started"], content["uris"]
        if type(started) is not int or type(uris) is not list or len(uris) > URIS_MAX:
            raise ValueError("started and uris are not what they must be")
        # A URI that comes twice has the same entities.
        parts = tuple(PartAt(uri, resolve(answer.url, str(uri)), None) for uri in dict.fromkeys(uris))
        name = SnapshotName(answer.url, str(content["id"]), None, started)
    except (KeyError, TypeError, ValueError) as error:
        raise DecodeError(f"{answer.url} is not the index of a snapshot: {error!r}") from None
    for part in parts:
        # Whoever writes an index must not send its readers to any address.
        if origin_of(part.url) != origin_of(answer.url):
            raise DecodeError(f"{answer.url} has a part at {part.url}, which is not of its own server")
    return Index(name, None, None, parts)


def _own_index(answer: Answer) -> Index:
    try:
        index = read_index(answer.body)
    except DecodeError as error:
        raise DecodeError(f"{answer.url}: {error}") from None
    covered = {feed.partition for feed in index.feeds}
    if not covered.issuperset(part.partition for part in index.parts):
        raise DecodeError(f"{answer.url} has parts of a partition that is not among its feeds")
    parts = tuple(PartAt(part.uri, resolve(answer.url, part.uri), part) for part in index.parts)
    name = SnapshotName(answer.url, index.id, index.digest, index.started)
    return Index(name, index.log, index.feeds, parts)


class SnapshotPlace:
    """Where the snapshots are: in the `collection` that a log document names, or one with a `named` index."""

    def __init__(
        self, fetcher: Fetcher, settings: ReaderSettings, *, collection: str | None, named: str | None
    ) -> None:
        self._fetcher = fetcher
        self._settings = settings
        self._collection = collection
        self._named = named

    def refusal(self, what: str) -> Unused | SnapshotUnusable:
        """What to raise for a snapshot that cannot be of this copy: the user's mistake if it was named."""
        return (
            Unused(what) if self._named is None else SnapshotUnusable(f"{what}: name another index, or none")
        )

    async def newest(self) -> Index | None:
        """The newest index, None while there is none; the one that was named, if one was.

        Raises FetchFailed, Unused if what is there is no index, and SnapshotUnusable for one that was named.
        """
        if self._named is None:
            found = None if self._collection is None else await self._get(f"{self._collection}/latest")
            return found and replace(found, name=found.name._replace(url=self._url(found.name.id)))
        try:
            found = await self._get(self._named)
        except Unused as error:
            raise SnapshotUnusable(f"{error}: name another index, or none") from None
        if found is None:
            raise SnapshotUnusable(f"{self._named} is not there: name the URL of an index, or none")
        return found

    async def again(self, snapshot: SnapshotName) -> Index | None:
        """The index of a snapshot that was begun, None if it is not there any more; raises FetchFailed."""
        url = self._named or self._url(snapshot.id)
        try:
            found = await self._get(url)
        except Unused:
            return None
        return found if found is not None and found.name.key == snapshot.key else None

    async def part(self, part: PartAt) -> tuple[list[Held], int]:
        """The entities of a part that is what its index tells, and its size in bytes.

        What is not is asked for again, past all caches. Raises FetchFailed if its server cannot be asked, and
        Unused if the part is not there or stays wrong.
        """
        settings = self._settings
        bytes_max = settings.fetch.body_bytes_max
        if part.told is not None and part.told.size > bytes_max:
            raise Unused(f"{part.url} has {part.told.size} bytes; at most {bytes_max} are taken")
        tries = 0
        while True:
            try:
                ask = partial(_ask_part, self._fetcher, part, fresh=tries > 0)
                answer = await patiently(settings, ask)
                return _entities(part, answer), len(answer.body)
            except Unused:
                tries += 1
                if tries == PART_TRIES_MAX:
                    raise
            await asyncio.sleep(_wait_s(settings, tries))

    def _url(self, id_: str) -> str:
        return f"{self._collection}/{quote(id_, safe=':')}"

    async def _get(self, url: str) -> Index | None:
        return await patiently(self._settings, lambda: self._ask(url))

    async def _ask(self, url: str) -> Index | None:
        answer = await self._fetcher.follow(url, _ACCEPT_INDEX)
        if answer.status in _NOT_THERE:
            return None
        if answer.status in _MAY_PASS or answer.status >= 500:
            raise FetchFailed(f"{answer.url} answers {answer.status}")
        if answer.status != 200:
            raise Unused(f"{answer.url} answers {answer.status}")
        try:
            return index_in(answer)
        except DecodeError as error:
            raise Unused(str(error)) from None


async def _ask_part(fetcher: Fetcher, part: PartAt, *, fresh: bool) -> Answer:
    headers = _ACCEPT_PART | ({"Cache-Control": "no-cache"} if fresh else {})
    answer = await fetcher.follow(part.url, headers, within=origin_of(part.url))
    if answer.status in _MAY_PASS:
        raise FetchFailed(f"{answer.url} answers {answer.status}")
    if answer.status != 200:
        gone = "is not there any more: it" if answer.status in _NOT_THERE else "cannot be had: it"
        raise Unused(f"{part.url} {gone} answers {answer.status}")
    return answer


def _entities(part: PartAt, answer: Answer) -> list[Held]:
    told, body = part.told, answer.body
    try:
        if told is None:
            return list(read_part(boundary_of(answer.headers.get("Content-Type", "")), body))
        if len(body) != told.size:
            raise Unused(f"{part.url} has {len(body)} bytes, and its index tells {told.size}")
        if hashlib.sha256(body).hexdigest() != told.sha256:
            raise Unused(f"{part.url} does not have the SHA-256 that its index tells")
        found = list(read_part(told.boundary, body))
    except DecodeError as error:
        raise Unused(f"{part.url}: {error}") from None
    if len(found) != told.count:
        raise Unused(f"{part.url} has {len(found)} entities, and its index tells {told.count}")
    return found


async def patiently(settings: ReaderSettings, ask: Callable[[], Awaitable[T]]) -> T:
    """What `ask` gives; FetchFailed and FeedBroken are raised when they came `tries_max` times in a row."""
    tries = 0
    while True:
        try:
            return await ask()
        except InvalidLink:
            raise
        except (FetchFailed, FeedBroken):
            tries += 1
            if tries >= settings.tries_max:
                raise
        await asyncio.sleep(_wait_s(settings, tries))


def _wait_s(settings: ReaderSettings, tries: int) -> float:
    return min(settings.trouble_s_min * 2.0 ** min(tries - 1, 30), settings.trouble_s_max)
