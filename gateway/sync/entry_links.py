"""Entry links followed: each must redirect to the document that really holds the entry.

302 while the entry stands in the subscription document, 301 once it is archived (draft, "The Event Entry
Link Relation"). The feed lives on meanwhile: an entry may be archived between the reading of its document
and the request for its link, so 301 is right for it, too, if the archive document holds it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from urllib.parse import urldefrag

from .breaches import Breach, Report, Rule
from .documents import Entry, freshness_s, read_document
from .fetch import REDIRECTS, Answer, Fetcher, InvalidLink, resolve
from .second_look import ACCEPT

DOCUMENTS_KEPT_MAX = 16
_TRIES_MAX = 3


class EntryLinks:
    """Follows entry links of one feed; `subscription` are the URLs of its subscription document."""

    def __init__(self, fetcher: Fetcher, report: Report, subscription: frozenset[str]) -> None:
        self.followed = 0
        self._fetcher = fetcher
        self._report = report
        self._subscription = subscription
        self._kept: OrderedDict[str, asyncio.Task[frozenset[bytes] | None]] = OrderedDict()

    async def check(self, entry: Entry, document: str, *, archived: bool) -> None:
        """Follow the link of `entry`, which was read from `document`."""
        assert entry.link is not None, "only entries with a link are followed"
        self.followed += 1
        for attempt in range(_TRIES_MAX):
            try:
                answer = await self._fetcher.fetch(entry.link)
                breach = await self._judge(entry, answer, document, archived=archived)
            except InvalidLink as error:
                self._report(Breach(Rule.SELF_STATUS, document, f"entry {entry.number}: {error}"))
                return
            # The page may turn between two requests; what is still wrong then is wrong.
            last = archived or attempt == _TRIES_MAX - 1
            if breach is None:
                break
            if last:
                self._report(breach)
                return
        self._check_details(entry, answer)

    async def _judge(self, entry: Entry, answer: Answer, document: str, *, archived: bool) -> Breach | None:
        link = answer.url
        shown = f"the entry link of {entry.content_id or f'entry {entry.number}'}"
        if answer.status not in REDIRECTS:
            return Breach(Rule.SELF_STATUS, link, f"{shown} is answered with {answer.status}, not 302 or 301")
        location = answer.headers.get("Location")
        if location is None:
            return Breach(Rule.SELF_LOCATION, link, f"{shown} redirects without a Location")
        to = resolve(link, location)
        to_subscription = to in self._subscription
        wanted = 302 if to_subscription else 301
        if archived and to_subscription:
            return Breach(
                Rule.SELF_LOCATION,
                link,
                f"{shown} leads to the subscription document, and the entry stands in {document}",
            )
        if answer.status != wanted and (archived or to_subscription or answer.status != 302):
            return Breach(
                Rule.SELF_REDIRECT,
                link,
                f"{shown} is answered with {answer.status}; an entry in "
                f"{'the subscription document' if to_subscription else 'an archive document'} needs {wanted}",
            )
        if to != document and not await self._holds(to, entry.key):
            return Breach(Rule.SELF_LOCATION, link, f"{shown} leads to {to}, which does not hold the entry")
        return None

    def _check_details(self, entry: Entry, answer: Answer) -> None:
        if not urldefrag(answer.headers.get("Location", ""))[1]:
            self._report(
                Breach(
                    Rule.SELF_FRAGMENT,
                    answer.url,
                    f"the Location for {entry.content_id} has no fragment that names the entry",
                )
            )
        if answer.status == 302 and (freshness_s(answer.headers) or 0) > 0:
            self._report(
                Breach(
                    Rule.SELF_CACHED,
                    answer.url,
                    "a 302 that is out of date once the entry is archived says Cache-Control: "
                    f"{answer.header('Cache-Control')}",
                )
            )

    async def _holds(self, url: str, key: bytes) -> bool:
        """Whether the document at `url` has that entry; one that was read earlier may have grown."""
        known = url in self._kept
        keys = await self._keys(url)
        if (keys is None or key not in keys) and known:
            self._kept.pop(url, None)
            keys = await self._keys(url)
        return keys is not None and key in keys

    async def _keys(self, url: str) -> frozenset[bytes] | None:
        task = self._kept.get(url)
        if task is None:
            task = asyncio.ensure_future(self._read(url))
            self._kept[url] = task
            if len(self._kept) > DOCUMENTS_KEPT_MAX:
                self._kept.popitem(last=False)
        else:
            self._kept.move_to_end(url)
        return await asyncio.shield(task)

    async def _read(self, url: str) -> frozenset[bytes] | None:
        answer = await self._fetcher.follow(url, headers=ACCEPT)
        reading = read_document(answer) if answer.status == 200 else None
        return None if reading is None else frozenset(reading.document.key_list())
