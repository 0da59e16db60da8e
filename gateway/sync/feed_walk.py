"""The way through a feed: to its subscription document, and from there back over prev-archive.

A link that leads nowhere, to something else or in a circle is a breach, and ends the walk there; what was
read up to then is still judged.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from .breaches import Breach, Report, Rule
from .documents import FeedDocument, Reading, read_document
from .fetch import Answer, Fetcher, InvalidLink
from .second_look import ACCEPT

PREV, NEXT, CURRENT = "prev-archive", "next-archive", "current"


class FeedWalk:
    """Reads the documents of one feed; `notes` gets what could not be read and is no breach."""

    def __init__(self, fetcher: Fetcher, report: Report, notes: list[str]) -> None:
        self.broken = False
        """Whether the last walk back ended before it should have."""
        self._fetcher = fetcher
        self._report = report
        self._notes = notes

    async def subscription(self, start: Answer) -> tuple[Reading, str] | None:
        """The subscription document of the feed that `start` is of, and the URL that leads to it."""
        reading = self.read(start, "the document")
        seen = {start.url}
        while reading is not None:
            links = reading.document.links
            if CURRENT in links:
                if links[CURRENT] in seen:
                    break
                current = links[CURRENT]
                found = await self.follow(current, f"{CURRENT} of {reading.document.url}")
                return None if found is None else (found, current)
            # An archive document that does not name its subscription document: the chain ends there.
            if links.get(NEXT, start.url) in seen:
                break
            seen.add(links[NEXT])
            following = await self.follow(links[NEXT], f"{NEXT} of {reading.document.url}")
            if following is None:
                break
            reading = following
        return None if reading is None else (reading, reading.document.url)

    async def back(
        self, document: FeedDocument, *, known: frozenset[str], documents_max: int
    ) -> AsyncIterator[Reading]:
        """The archive documents before `document`, newest first, up to one in `known`."""
        self.broken = False
        visited = {document.url}
        count = 0
        while (url := self._previous(document)) is not None and url not in known:
            if url in visited:
                self._break(Rule.LINKS_CIRCLE, document.url, f"{PREV} leads back to {url}")
                return
            if count >= documents_max:
                self.broken = True
                self._notes.append(f"the walk ended before {url}, after {count} documents")
                return
            visited.add(url)
            reading = await self.follow(url, f"{PREV} of {document.url}", may_be_gone=True)
            if reading is None:
                self.broken = True
                return
            document = reading.document
            visited.add(document.url)
            count += 1
            yield reading

    async def follow(self, url: str, shown: str, *, may_be_gone: bool = False) -> Reading | None:
        """The document that the link `shown` leads to; None, and a breach, if it leads to none.

        One that `may_be_gone` is no breach when its server says that it was there once.
        """
        try:
            answer = await self._fetcher.follow(url, headers=ACCEPT)
        except InvalidLink as error:
            self._report(Breach(Rule.DOCUMENT_STATUS, url, f"{shown}: {error}"))
            return None
        if may_be_gone and answer.status == 410:
            self._notes.append(f"{url}, and what was before it, is gone (410)")
            return None
        return self.read(answer, shown)

    def read(self, answer: Answer, shown: str) -> Reading | None:
        """The document in `answer`; None, and a breach, if there is none in it."""
        if answer.status not in (200, 204):
            self._report(Breach(Rule.DOCUMENT_STATUS, answer.url, f"{shown} answers {answer.status}"))
            return None
        reading = read_document(answer)
        if reading is None:
            self._report(
                Breach(
                    Rule.DOCUMENT_TYPE,
                    answer.url,
                    f"{shown} has Content-Type: {answer.header('Content-Type')}, which is not multipart",
                )
            )
        return reading

    def _previous(self, document: FeedDocument) -> str | None:
        url = document.links.get(PREV)
        if url is None and (url := document.links.get("prev")) is not None:
            # The draft's own example says so, and its text does not.
            self._report(
                Breach(
                    Rule.PREV_ARCHIVE_MISSING,
                    document.url,
                    'has a link with rel="prev", not rel="prev-archive"',
                )
            )
        return url

    def _break(self, rule: Rule, url: str, detail: str) -> None:
        self.broken = True
        self._report(Breach(rule, url, detail))
