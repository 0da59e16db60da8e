"""What a URL leads to: the feeds of a log, or a single feed of any server of the draft."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any, NamedTuple

from gateway.core.errors import GatewayError, InvalidEvent
from gateway.core.event import parse_name
from gateway.core.state import Digest

from .copy import Source
from .feed_walk import CURRENT
from .fetch import Answer, Fetcher, FetchFailed, resolve

ONE_FEED = "0"
"""The name of the partition where a URL leads to a single feed."""
PARTITIONS_MAX = 10_000

_ACCEPT_ANY = {"Accept": "application/json, multipart/mixed, multipart/*;q=0.9"}
_ACCEPT_LOG = {"Accept": "application/json", "Cache-Control": "no-cache"}
_DIGEST_HEX = 64


class NoSource(GatewayError):
    """There is no feed at the URL, or more than one log and none was named."""


class PartitionHead(NamedTuple):
    """What a log document says of a partition.

    `last` is None while it is empty; `digest` is None where the server tells none.
    """

    url: str
    last: int | None
    generation: str | None
    digest: Digest | None


class Found(NamedTuple):
    """A source, its partitions by name, and the URL of the log's snapshots, None if it names none.

    The partition of a single feed has no head to tell of.
    """

    source: Source
    partitions: dict[str, PartitionHead]
    snapshots: str | None = None


async def find_source(fetcher: Fetcher, url: str, log: str | None) -> Found:
    """What is at `url`: a service document, a log document or a feed document.

    `log` chooses among several logs. Raises NoSource, or FetchFailed.
    """
    answer = await _found(fetcher, url)
    if answer.status == 204 or answer.media_type.startswith("multipart/"):
        if log is not None:
            raise NoSource(f"{url} is a feed: give the URL of a gateway, or leave out --log")
        feed = answer.relations().get(CURRENT, answer.url)
        return Found(Source(feed, None), {ONE_FEED: PartitionHead(feed, None, None, None)})
    content = _content(answer)
    if isinstance(content.get("logs"), list):
        service = answer.url
        answer = await _found(fetcher, _log_url(answer, content["logs"], log))
        content = {}
        with suppress(NoSource):
            content = _content(answer)
        if not isinstance(content.get("partitions"), list):
            raise NoSource(
                f"{service} names {answer.url} as the document of a log, and it is none: give the URL of a"
                " log document or a feed document"
            )
    if not isinstance(content.get("partitions"), list):
        raise NoSource(f"{answer.url} is neither a feed document nor a service or log document")
    name = str(content.get("log", ""))
    if log is not None and log != name:
        raise NoSource(f"{answer.url} is the document of the log {name}, not of {log}")
    snapshots = content.get("snapshots")
    return Found(
        Source(answer.url, name),
        _partitions(answer, content),
        resolve(answer.url, snapshots) if isinstance(snapshots, str) and snapshots else None,
    )


async def _found(fetcher: Fetcher, url: str) -> Answer:
    """What the server has at `url`; raises FetchFailed, or NoSource if it has nothing there."""
    answer = await fetcher.follow(url, _ACCEPT_ANY)
    if answer.status not in (200, 204):
        raise (FetchFailed if answer.status >= 500 or answer.status == 429 else NoSource)(
            f"{answer.url} answers {answer.status}"
        )
    return answer


async def read_log(fetcher: Fetcher, source: Source) -> dict[str, PartitionHead]:
    """The partitions of a log as they are now; raises FetchFailed or NoSource."""
    answer = await fetcher.follow(source.url, _ACCEPT_LOG)
    if answer.status != 200:
        raise FetchFailed(f"{answer.url} answers {answer.status}")
    return _partitions(answer, _content(answer))


def _content(answer: Answer) -> dict[str, Any]:
    try:
        content = json.loads(answer.body)
    except (ValueError, RecursionError) as error:
        raise NoSource(f"{answer.url} is neither a feed document nor JSON: {error}") from None
    if not isinstance(content, dict):
        raise NoSource(f"{answer.url} is not a JSON object")
    return content


def _log_url(answer: Answer, logs: list[Any], wanted: str | None) -> str:
    hrefs = {str(log.get("log")): str(log.get("href", "")) for log in logs if isinstance(log, dict)}
    if wanted is None and len(hrefs) == 1:
        (wanted,) = hrefs
    known = ", ".join(sorted(hrefs)) or "none"
    if wanted is None:
        raise NoSource(f"{answer.url} has several logs: choose one with --log; there are: {known}")
    if wanted not in hrefs:
        raise NoSource(f"{answer.url} has no log {wanted}; there are: {known}")
    return resolve(answer.url, hrefs[wanted])


def _partitions(answer: Answer, content: dict[str, Any]) -> dict[str, PartitionHead]:
    found: dict[str, PartitionHead] = {}
    try:
        for partition in content["partitions"]:
            name = parse_name(partition["partition"], "partition")
            url = resolve(answer.url, partition["links"]["current"])
            last, generation = partition.get("last"), partition.get("generation")
            if type(last) not in (int, type(None)) or type(generation) not in (str, type(None)):
                raise ValueError(f"last is {last!r}, generation {generation!r}")
            found[name] = PartitionHead(url, last, generation, _digest(partition))
    except (KeyError, TypeError, AttributeError, ValueError, InvalidEvent) as error:
        raise NoSource(f"{answer.url} is not the document of a log: {error}") from None
    if len(found) > PARTITIONS_MAX:
        raise NoSource(f"{answer.url} names {len(found)} partitions; at most {PARTITIONS_MAX} are followed")
    return found


def _digest(partition: dict[str, Any]) -> Digest | None:
    entities, digest = partition.get("entities"), partition.get("digest")
    if type(entities) is not int or not isinstance(digest, str) or len(digest) != _DIGEST_HEX:
        return None
    return Digest(entities, int(digest, 16))
