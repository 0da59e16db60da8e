"""Requests that only make sense on the URL space of this project: what is not there must not be cached.

Other servers name their documents as they like, so nothing is asked of them here.
"""

from __future__ import annotations

import re

from .breaches import Breach, Report, Rule
from .documents import freshness_s
from .fetch import Answer, Fetcher, resolve
from .second_look import ACCEPT

FAR = 10**12
"""A page and an ordinal that no feed has yet."""

_LATEST = re.compile(r"(.*/feeds/[^/?#]+/[^/?#]+)/latest")
_ARCHIVE = re.compile(r"(.*/archive/)([0-9]+)")


async def probe(fetcher: Fetcher, report: Report, current: str, newest: str | None) -> None:
    """Ask for what lies beyond the feed at `current`, whose newest archive document is `newest`."""
    match = _LATEST.fullmatch(current)
    if match is None:
        return
    for url in (f"{match[1]}/archive/{FAR}", f"{match[1]}/events/{FAR}"):
        answer = await fetcher.fetch(url, headers=ACCEPT)
        if answer.status != 404:
            report(Breach(Rule.BEYOND_END, url, f"is not there yet, and answers {answer.status}"))
        _not_cacheable(report, answer)
    await _probe_open_page(fetcher, report, current, match[1], newest)


async def _probe_open_page(
    fetcher: Fetcher, report: Report, current: str, base: str, newest: str | None
) -> None:
    """The archive URL of the page that still grows leads to the subscription document, for now."""
    page = 0
    if newest is not None:
        match = _ARCHIVE.fullmatch(newest)
        if match is None:
            return
        page = int(match[2]) + 1
    url = f"{base}/archive/{page}"
    answer = await fetcher.fetch(url, headers=ACCEPT)
    if answer.status == 200:
        return  # It was sealed in the meantime.
    location = resolve(url, answer.headers.get("Location", ""))
    if answer.status != 302 or location != current:
        report(
            Breach(
                Rule.OPEN_ARCHIVE,
                url,
                f"is the page that grows, and answers {answer.status} to {location}, not 302 to {current}",
            )
        )
    _not_cacheable(report, answer)


def _not_cacheable(report: Report, answer: Answer) -> None:
    """404 may be kept by a cache that is not told otherwise; 302 only if it says so (RFC 9110, 15.1)."""
    fresh = freshness_s(answer.headers)
    heuristic = answer.status in (301, 404, 410)
    if (fresh is None and heuristic) or (fresh is not None and fresh > 0):
        report(
            Breach(
                Rule.ERROR_CACHEABLE,
                answer.url,
                f"{answer.status} may be kept by caches: Cache-Control: {answer.header('Cache-Control')}",
            )
        )
