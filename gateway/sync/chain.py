"""The documents of a feed and how they hang together: back over prev-archive, and forward again.

Every document names the one before it (draft, "Publishing Feeds"); that the one before names it as well
is only recommended, so what a walk back has seen is kept where the way forward would be lost.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from .asking import Asker, Refused
from .feed_walk import CURRENT, NEXT, PREV
from .fetch import Answer, FetchFailed, resolve
from .reading import Document, FeedBroken, feed_links

LINKS_CLAUSE = "draft, Publishing Feeds"

_LOG_OF_CURRENT = re.compile(r"(.*/feeds/[^/?#]+)/[^/?#]+/latest")


class Chain:
    """The chain of the feed whose subscription document is `current`; a document may name another one."""

    def __init__(
        self, asker: Asker, current: str, *, documents_max: int, on_trouble: Callable[[str], None]
    ) -> None:
        self.current = current
        self._asker = asker
        self._documents_max = documents_max
        self._on_trouble = on_trouble
        # The document after a document, where only prev-archive tells.
        self._after: dict[str, str] = {}

    def learn(self, document: Document) -> None:
        """Take over what `document` says of the feed."""
        self.current = document.links.get(CURRENT, self.current)

    def is_current(self, document: Document) -> bool:
        """Whether it is the subscription document."""
        return self.current in document.names

    def is_finished(self, document: Document) -> bool:
        """Whether another document came after it when it was read, so that it does not grow any more."""
        return NEXT in document.links or document.url in self._after

    def following(self, document: Document) -> str:
        """The URL of the document after `document`; of the last one, that of the subscription document."""
        url = self._after.get(document.url) or document.links.get(NEXT) or self.current
        if url in document.names and url != self.current:
            raise FeedBroken(document.url, "is its own next-archive", LINKS_CLAUSE)
        return url

    def following_head(self, head: Answer) -> str | None:
        """The same for the head of an answer; None where the row of archive documents ends."""
        if head.status != 200:
            return None
        url = self._after.get(head.url) or head.relations().get(NEXT)
        return None if url == self.current else url

    async def back(self, document: Document, content_id: str) -> tuple[Document, int] | None:
        """The document that holds an event, `document` or one before it, and the event's index."""
        seen: set[int] = set()
        while (index := document.index(content_id)) is None:
            before = await self.before(document, seen)
            if before is None:
                return None
            document = before
        return document, index

    async def first(self, document: Document) -> Document:
        """The first document of the feed that `document` is of."""
        if PREV in document.links:
            url = await self._first_of_log(document) or await self._walk_back(document)
            if url is not None:
                document = await self._asker.get(url)
        seen: set[int] = set()
        while PREV in document.links:
            # What told the first document was wrong, or there is nothing before it any more.
            before = await self.before(document, seen)
            if before is None:
                gone = document.links[PREV]
                self._on_trouble(f"{gone}, and what was before it, is gone: the feed is read from there on")
                break
            document = before
        return document

    async def before(self, document: Document, seen: set[int]) -> Document | None:
        """The document before `document`; None if there is none, or none any more."""
        url = document.links.get(PREV)
        if url is None:
            return None
        self._see(seen, url, document.url)
        try:
            before = await self._asker.get(url)
        except Refused as error:
            if error.status != 410:
                raise
            return None
        self._note(before.url, before.links, document.names)
        return before

    async def _walk_back(self, document: Document) -> str | None:
        """The URL of the first document that is still there, found by links alone; None if `document` is."""
        names, links = document.names, document.links
        found: str | None = None
        seen: set[int] = set()
        while PREV in links:
            url = links[PREV]
            self._see(seen, url, names[1])
            head = await self._asker.head(url)
            if head.status == 410:
                break
            links = feed_links(head)
            self._note(head.url, links, names)
            found, names = url, (url, head.url)
        return found

    async def _first_of_log(self, document: Document) -> str | None:
        """The URL of the first document as the log document of this project's servers has it."""
        match = _LOG_OF_CURRENT.fullmatch(self.current)
        if match is None or document.first is None:
            return None
        try:
            answer = await self._asker.fetcher.follow(match[1], {"Accept": "application/json"})
            if answer.status != 200:
                return None
            for partition in json.loads(answer.body)["partitions"]:
                links = partition["links"]
                if resolve(answer.url, links["current"]) == self.current:
                    return resolve(answer.url, links["first"])
        except (FetchFailed, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            pass  # It was worth a try: prev-archive leads there as well.
        return None

    def _see(self, seen: set[int], url: str, source: str) -> None:
        if hash(url) in seen:
            raise FeedBroken(source, f"prev-archive leads back to {url}", LINKS_CLAUSE)
        seen.add(hash(url))
        if len(seen) > self._documents_max:
            raise FeedBroken(source, f"has more than {self._documents_max} documents before it", LINKS_CLAUSE)

    def _note(self, url: str, links: dict[str, str], after: tuple[str, str]) -> None:
        """Keep which document comes after the one at `url`, unless that one says so itself.

        After the last archive document comes whatever is the subscription document by then.
        """
        if self.current not in after and links.get(NEXT) not in after:
            self._after[url] = after[1]
