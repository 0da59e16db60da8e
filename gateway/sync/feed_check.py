"""One feed walked from end to end and back, and judged.

First back from the subscription document over prev-archive; then each archive document a second time,
oldest first, with its entry links; then the subscription document again and whatever was archived in the
meantime. A feed may grow all the while: what was read of the subscription document must come back as the
beginning of what stands behind the archive documents that were known before.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from .breaches import Breach, Report, Rule
from .documents import KEY_BYTES, Entry, FeedDocument, Reading
from .entry_links import EntryLinks
from .feed_walk import CURRENT, NEXT, PREV, FeedWalk
from .fetch import Answer, Fetcher
from .probes import probe
from .second_look import SecondLook
from .tasks import for_each

_TRIES_MAX = 3


@dataclass(frozen=True, slots=True)
class CheckSettings:
    """`sample` is the number of entry links followed in each feed, None for all of them.

    `content_ids_max` bounds the Content-IDs that are remembered to find repeated ones, about 100 bytes each;
    `documents_max` the documents of a feed, `documents_new_max` those that appear during the check, and
    `currents_max` the different `current` links that are followed.
    """

    parallel: int = 16
    sample: int | None = 50_000
    content_ids_max: int = 20_000_000
    documents_max: int = 1_000_000
    documents_new_max: int = 10_000
    currents_max: int = 4


@dataclass(slots=True)
class FeedSummary:
    """What was looked at in one feed; `notes` say what could not be checked."""

    url: str
    documents: int = 0
    events: int = 0
    entry_links: int = 0
    entry_links_followed: int = 0
    notes: list[str] = field(default_factory=list)


class FeedCheck:
    """Checks one feed; breaches go to `report` as they are found."""

    def __init__(self, fetcher: Fetcher, report: Report, settings: CheckSettings) -> None:
        self.summary = FeedSummary("")
        self._fetcher = fetcher
        self._report = report
        self._settings = settings
        self._walk = FeedWalk(fetcher, report, self.summary.notes)
        self._second = SecondLook(fetcher, report)
        self._keys: set[bytes] = set()
        self._families: set[str] = set()

    async def run(self, start: Answer) -> FeedSummary:
        """Check the feed that the document in `start` belongs to; raises FetchFailed."""
        self.summary.url = start.url
        found = await self._walk.subscription(start)
        if found is not None:
            first, current = found
            self.summary.url = current
            self._accept(first)
            chain: list[FeedDocument] = []
            async for reading in self._walk.back(
                first.document, known=frozenset(), documents_max=self._settings.documents_max
            ):
                self._accept(reading)
                chain.append(reading.document)
            chain.reverse()
            reached = {current, first.document.url, *(document.url for document in chain)}
            if start.url not in reached and not self._walk.broken:
                self._breach(
                    Rule.PREV_ARCHIVE_MISSING,
                    start.url,
                    f"no chain of {PREV} links leads here from {current}",
                )
            await self._judge(first, current, chain)
        return self.summary

    async def _judge(self, first: Reading, current: str, chain: list[FeedDocument]) -> None:
        summary = self.summary
        links = EntryLinks(self._fetcher, self._report, frozenset({current, first.document.url}))
        stride = self._stride(summary.events)
        for document in chain:
            await self._look_again(document, links, stride, newest=document is chain[-1])
        latest, new = await self._catch_up(first, current, chain)
        for document in new:
            await self._look_again(document, links, stride, newest=document is new[-1])
        await self._follow(latest, links, stride, archived=False)
        chain += new
        await self._judge_next(chain, current)
        await self._judge_current(chain, current, latest.document)
        self._judge_families()
        if not await self._second.subscription(current):
            summary.notes.append(f"{current} changed too often for its ETag to be judged")
        await probe(self._fetcher, self._report, current, chain[-1].url if chain else None)
        summary.documents = len(chain) + 1
        summary.entry_links_followed = links.followed

    def _accept(
        self,
        reading: Reading,
        *,
        known: set[bytes] | None = None,
        told: frozenset[tuple[Rule, str]] = frozenset(),
    ) -> None:
        """Take a document into the feed, less what was told of it before, and each `known` entry once."""
        for breach in reading.breaches:
            if (breach.rule, breach.detail) not in told:
                self._report(breach)
        summary = self.summary
        self._families |= reading.document.families
        for entry in reading.entries:
            if known and entry.key in known:
                known.discard(entry.key)
                continue
            summary.events += 1
            summary.entry_links += entry.link is not None
            if entry.content_id is None:
                continue
            if entry.key in self._keys:
                self._breach(
                    Rule.CONTENT_ID_REPEATED,
                    reading.document.url,
                    f"entry {entry.number}: {entry.content_id} occurs more than once in the feed",
                )
            elif len(self._keys) < self._settings.content_ids_max:
                self._keys.add(entry.key)

    async def _look_again(
        self, document: FeedDocument, links: EntryLinks, stride: int, *, newest: bool
    ) -> None:
        reading = await self._second.archive(document, newest=newest)
        if reading is not None and reading.document.keys == document.keys:
            await self._follow(reading, links, stride, archived=True)

    async def _follow(self, reading: Reading, links: EntryLinks, stride: int, *, archived: bool) -> None:
        """Follow every `stride`-th entry link of a document, and the last one."""
        last = len(reading.entries) - 1
        chosen = (
            entry
            for entry in reading.entries
            if entry.link is not None and (entry.number % stride == 0 or entry.number == last)
        )

        async def follow(entry: Entry) -> None:
            await links.check(entry, reading.document.url, archived=archived)

        await for_each(chosen, follow, parallel=self._settings.parallel)

    def _stride(self, events: int) -> int:
        sample = self._settings.sample
        return 1 if sample is None else max(1, -(-events // max(1, sample)))

    async def _catch_up(
        self, first: Reading, current: str, chain: list[FeedDocument]
    ) -> tuple[Reading, list[FeedDocument]]:
        """The subscription document again, and what was archived since `first`, oldest first."""
        latest = await self._walk.follow(current, "the second look at the subscription document")
        if latest is None:
            return first, []
        seen = first.document
        new: list[Reading] = []
        if latest.document.links.get(PREV) != seen.links.get(PREV):
            async for reading in self._walk.back(
                latest.document,
                known=frozenset(document.url for document in chain),
                documents_max=self._settings.documents_new_max,
            ):
                new.append(reading)
            new.reverse()
            oldest = (new[0] if new else latest).document
            if chain and oldest.links.get(PREV) != chain[-1].url and not self._walk.broken:
                self._breach(
                    Rule.LINKS_DISAGREE,
                    oldest.url,
                    f"{PREV} led to {chain[-1].url} before, and leads to {oldest.links.get(PREV)} now",
                )
        keys = b"".join(reading.document.keys for reading in (*new, latest))
        if not keys.startswith(seen.keys):
            self._breach(
                Rule.ORDER_CHANGED,
                current,
                f"the {seen.entries} entries that it had are not the first of the "
                f"{len(keys) // KEY_BYTES} that stand in their place now",
            )
        self._second.compare_states(first.document, latest.document)
        told = frozenset((breach.rule, breach.detail) for breach in first.breaches)
        known = set(seen.key_list())
        for reading in (*new, latest):
            self._accept(reading, known=known, told=told)
        return latest, [reading.document for reading in new]

    async def _judge_next(self, chain: list[FeedDocument], current: str) -> None:
        """next-archive leads from each archive document to the one that led back to it."""
        for document, following in pairwise(chain):
            url = document.links.get(NEXT)
            if url is None:
                # It may have been the newest one when it was read.
                again = await self._walk.follow(document.url, "the document")
                url = None if again is None else again.document.links.get(NEXT)
            if url is None:
                self._breach(Rule.NEXT_ARCHIVE_MISSING, document.url, f"has no {NEXT} link")
            elif url != following.url:
                reading = await self._walk.follow(url, f"{NEXT} of {document.url}")
                if reading is not None and reading.document.keys != following.keys:
                    self._breach(
                        Rule.LINKS_DISAGREE,
                        document.url,
                        f"{NEXT} leads to {url}, and {following.url} has this as its {PREV}",
                    )
        if chain and NEXT in chain[-1].links:
            await self._judge_newest(chain[-1], current)

    async def _judge_newest(self, newest: FeedDocument, current: str) -> None:
        """What follows the newest archive document starts like the subscription document, or is it."""
        url = newest.links[NEXT]
        for attempt in range(_TRIES_MAX):
            shown = f"{NEXT} of {newest.url}"
            following = await self._walk.follow(url, shown)
            latest = await self._walk.follow(current, "the subscription document")
            if following is None or latest is None:
                return
            # The page may have turned between the two requests, or before them.
            if (
                following.document.keys[:KEY_BYTES] == latest.document.keys[:KEY_BYTES]
                or following.document.links.get(PREV) == newest.url
            ):
                return
            if attempt == _TRIES_MAX - 1:
                self._breach(
                    Rule.LINKS_DISAGREE, newest.url, f"{NEXT} leads to {url}, which does not follow it"
                )

    async def _judge_current(self, chain: list[FeedDocument], current: str, latest: FeedDocument) -> None:
        """Every archive document names the subscription document of this feed."""
        others: dict[str, str] = {}
        for document in chain:
            url = document.links.get(CURRENT)
            if url is None:
                self._breach(Rule.CURRENT_MISSING, document.url, f"has no link rel={CURRENT}")
            elif url not in (current, latest.url) and len(others) < self._settings.currents_max:
                others.setdefault(url, document.url)
        for url, document_url in others.items():
            reading = await self._walk.follow(url, f"{CURRENT} of {document_url}")
            if reading is not None and latest.keys[-KEY_BYTES:] not in reading.document.key_list():
                again = await self._walk.follow(current, "the subscription document")
                if again is None or again.document.keys[:KEY_BYTES] != reading.document.keys[:KEY_BYTES]:
                    self._breach(
                        Rule.CURRENT_WRONG,
                        document_url,
                        f"{CURRENT} leads to {url}, which does not hold the newest entries",
                    )

    def _judge_families(self) -> None:
        summary = self.summary
        if len(self._families) > 1:
            names = ", ".join(sorted(self._families))
            self._breach(Rule.EVENT_TYPE_FAMILIES, summary.url, f"events are of several families: {names}")
        if 0 < summary.entry_links < summary.events:
            self._breach(
                Rule.SELF_PARTLY,
                summary.url,
                f"{summary.entry_links} of {summary.events} entries have an entry link; all must have one, "
                "or none",
            )

    def _breach(self, rule: Rule, url: str, detail: str) -> None:
        self._report(Breach(rule, url, detail))
