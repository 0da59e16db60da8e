"""`wes check`: any server's feeds, walked and judged by the clauses of the draft.

The URL may be a document of a feed, or one of this project's log or service documents, which stand for all
feeds below them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gateway.core.errors import GatewayError

from .breaches import Breach, Level, Report, Rule
from .feed_check import CheckSettings, FeedCheck, FeedSummary
from .fetch import Answer, Fetcher, FetchSettings, enter, resolve

FEEDS_MAX = 10_000
_ACCEPT_ANY = {"Accept": "multipart/mixed, multipart/*;q=0.9, application/json;q=0.8"}


class CheckFailed(GatewayError):
    """There is nothing at the URL that could be checked."""


@dataclass(slots=True)
class CheckSummary:
    """What was checked, and how many breaches of each rule there were."""

    url: str
    feeds: list[FeedSummary] = field(default_factory=list)
    counts: Counter[Rule] = field(default_factory=Counter)
    requests: int = 0

    def count(self, level: Level) -> int:
        """The number of breaches of that level."""
        return sum(count for rule, count in self.counts.items() if rule.level is level)

    def as_json(self) -> dict[str, Any]:
        """The last object that `wes check --json` prints."""
        return {
            "checked": self.url,
            "feeds": len(self.feeds),
            "documents": sum(feed.documents for feed in self.feeds),
            "events": sum(feed.events for feed in self.feeds),
            "entry_links": sum(feed.entry_links for feed in self.feeds),
            "entry_links_followed": sum(feed.entry_links_followed for feed in self.feeds),
            "requests": self.requests,
            "must": self.count(Level.MUST),
            "should": self.count(Level.SHOULD),
            "breaches": {rule.code: count for rule, count in sorted(self.counts.items(), key=_code)},
            "notes": [note for feed in self.feeds for note in feed.notes],
        }


async def check(
    url: str,
    report: Report,
    *,
    settings: CheckSettings | None = None,
    fetch_settings: FetchSettings | None = None,
    on_request: Callable[[], None] = lambda: None,
) -> CheckSummary:
    """Check all feeds at `url`; each breach goes to `report` when it is found.

    Raises CheckFailed if there is no feed at `url`, FetchFailed if a server cannot be asked.
    """
    url, fetch_settings = enter(url, fetch_settings or FetchSettings())
    summary = CheckSummary(url)

    def counted(breach: Breach) -> None:
        summary.counts[breach.rule] += 1
        report(breach)

    async with Fetcher(fetch_settings, on_request) as fetcher:
        checker = _Checker(fetcher, counted, settings or CheckSettings(), summary)
        try:
            await checker.document(await fetcher.follow(url, headers=_ACCEPT_ANY))
        finally:
            summary.requests = fetcher.requests
    return summary


class _Checker:
    """Finds the feeds below a document and checks each."""

    def __init__(
        self, fetcher: Fetcher, report: Report, settings: CheckSettings, summary: CheckSummary
    ) -> None:
        self._fetcher = fetcher
        self._report = report
        self._settings = settings
        self._summary = summary

    async def document(self, answer: Answer) -> None:
        if answer.status not in (200, 204):
            raise CheckFailed(f"{answer.url} answers {answer.status}: give the URL of a feed document")
        if answer.media_type != "application/json":
            await self._feed(answer)
            return
        content = _json(answer)
        if isinstance(content.get("logs"), list):
            for log in _objects(content["logs"]):
                href = resolve(answer.url, str(log.get("href", "")))
                await self._log(await self._fetcher.follow(href, headers=_ACCEPT_ANY))
        elif isinstance(content.get("partitions"), list):
            await self._log(answer)
        else:
            raise CheckFailed(f"{answer.url} is neither a feed document nor a service or log document")

    async def _log(self, answer: Answer) -> None:
        """All feeds of a log document, and whether they have the events that it speaks of."""
        content = _json(answer)
        for partition in _objects(content.get("partitions")):
            links = partition.get("links")
            current = links.get("current") if isinstance(links, dict) else None
            if not isinstance(current, str):
                raise CheckFailed(f"{answer.url} names no links.current for {partition}")
            url = resolve(answer.url, current)
            feed = await self._feed(await self._fetcher.follow(url, headers=_ACCEPT_ANY))
            events = partition.get("events")
            if isinstance(events, int) and feed.events < events:
                self._report(
                    Breach(
                        Rule.LOG_DOCUMENT,
                        answer.url,
                        f"speaks of {events} events in {url}, which has {feed.events}",
                    )
                )

    async def _feed(self, answer: Answer) -> FeedSummary:
        if len(self._summary.feeds) >= FEEDS_MAX:
            raise CheckFailed(f"there are more than {FEEDS_MAX} feeds: check one log at a time")
        feed = FeedCheck(self._fetcher, self._report, self._settings)
        self._summary.feeds.append(feed.summary)
        return await feed.run(answer)


def _json(answer: Answer) -> dict[str, Any]:
    try:
        content = json.loads(answer.body)
    except ValueError as error:
        raise CheckFailed(f"{answer.url} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise CheckFailed(f"{answer.url} is not a JSON object")
    return content


def _objects(items: Any) -> list[dict[str, Any]]:
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


def _code(item: tuple[Rule, int]) -> str:
    return item[0].code
