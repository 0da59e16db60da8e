"""A second look at a document: what must not have changed, and what may be asked about it.

An archive document is to be the same for ever, so every difference is a breach. A subscription document
may grow between any two requests, so it is judged only by requests between two equal copies of it.
"""

from __future__ import annotations

from .breaches import Breach, Report, Rule
from .documents import (
    FeedDocument,
    Reading,
    cache_directives,
    comparable_headers,
    freshness_s,
    read_document,
)
from .fetch import Answer, Fetcher
from .tasks import together

ACCEPT = {"Accept": "multipart/mixed, multipart/*;q=0.5"}

# What a 304 must repeat of the 200 (RFC 9110, 15.4.5); Date and Expires move with the time.
_REPEATED_BY_304 = ("cache-control", "content-location", "etag", "vary")
# The newest archive document may get its next-archive link at any moment.
_GROWING = frozenset({"link"})
_STEADY_TRIES_MAX = 5


class SecondLook:
    """Looks again at documents that were read before."""

    def __init__(self, fetcher: Fetcher, report: Report) -> None:
        self._fetcher = fetcher
        self._report = report

    async def archive(self, seen: FeedDocument, *, newest: bool) -> Reading | None:
        """Compare an archive document with what it was; its reading, or None if it is gone.

        The newest one may get its next-archive link in the meantime.
        """
        url = seen.url
        again, head, *conditional = await together(
            self._fetcher.fetch(url, headers=ACCEPT),
            self._fetcher.fetch(url, headers=ACCEPT, method="HEAD"),
            *([self._conditional(url, seen.etag)] if seen.etag else []),
        )
        reading = read_document(again) if again.status == 200 else None
        if reading is None:
            self._breach(Rule.DOCUMENT_STATUS, url, f"the second look was answered with {again.status}")
            return None
        self._compare(seen, reading.document, newest=newest)
        if (seen.sha256, seen.etag) == (reading.document.sha256, reading.document.etag):
            # Else it is told already that it changes, and nothing can be compared with it.
            self._judge_head(again, head, ignored=_GROWING if newest else frozenset())
            for answer in conditional:
                self._judge_conditional(again, answer)
        directives = cache_directives(again.headers)
        forbidding = [name for name in ("no-store", "no-cache", "private") if name in directives]
        if forbidding or freshness_s(again.headers) == 0:
            self._breach(
                Rule.ARCHIVE_NOT_CACHEABLE,
                url,
                f"an archive document never changes, and says Cache-Control: {again.header('Cache-Control')}",
            )
        return reading

    async def subscription(self, url: str) -> bool:
        """Judge HEAD, ETag and conditional requests; False if the document would not stay the same."""
        for _ in range(_STEADY_TRIES_MAX):
            before = await self._fetcher.follow(url, headers=ACCEPT)
            if before.status != 200:
                return before.status == 204
            etag = before.headers.get("ETag")
            head, *conditional = await together(
                self._fetcher.fetch(before.url, headers=ACCEPT, method="HEAD"),
                *([self._conditional(before.url, etag)] if etag else []),
            )
            after = await self._fetcher.fetch(before.url, headers=ACCEPT)
            self.compare_growing(before.url, before, after)
            if before.body != after.body or before.status != after.status:
                continue
            if etag is None:
                self._breach(Rule.ETAG_MISSING, before.url, "the subscription document has no ETag")
            if "immutable" in cache_directives(before.headers):
                self._breach(
                    Rule.SUBSCRIPTION_IMMUTABLE,
                    before.url,
                    f"a document that grows says Cache-Control: {before.header('Cache-Control')}",
                )
            if etag != after.headers.get("ETag"):
                return True
            self._judge_head(before, head)
            for answer in conditional:
                self._judge_conditional(before, answer)
            return True
        return False

    def compare_growing(self, url: str, one: Answer, two: Answer) -> None:
        """The ETag of a document changes if, and only if, the document changes."""
        etag_one, etag_two = one.headers.get("ETag"), two.headers.get("ETag")
        if etag_one is None or etag_two is None or one.status != 200 or two.status != 200:
            return
        if one.body != two.body and etag_one == etag_two:
            self._breach(Rule.ETAG_STALE, url, f"the document changed, and ETag: {etag_one} did not")
        elif one.body == two.body and etag_one != etag_two:
            self._breach(
                Rule.ETAG_RESTLESS,
                url,
                f"the document did not change, and its ETag did, from {etag_one} to {etag_two}",
            )

    def compare_states(self, one: FeedDocument, two: FeedDocument) -> None:
        """As `compare_growing`, for what was kept of two states of a subscription document."""
        if one.sha256 != two.sha256 and one.etag is not None and one.etag == two.etag:
            self._breach(Rule.ETAG_STALE, one.url, f"the document changed, and ETag: {one.etag} did not")

    async def _conditional(self, url: str, etag: str | None) -> Answer:
        return await self._fetcher.fetch(url, headers={**ACCEPT, "If-None-Match": etag or "*"})

    def _compare(self, seen: FeedDocument, again: FeedDocument, *, newest: bool) -> None:
        url = seen.url
        if seen.sha256 != again.sha256:
            if seen.keys != again.keys:
                same = sorted(seen.key_list()) == sorted(again.key_list())
                if same:
                    self._breach(Rule.ORDER_CHANGED, url, "its entries stand in another order now")
                else:
                    self._breach(
                        Rule.ARCHIVE_ENTRIES_CHANGED,
                        url,
                        f"it had {seen.entries} entries, and has {again.entries} now, not the same ones",
                    )
            else:
                self._breach(Rule.ARCHIVE_BYTES_CHANGED, url, "its bytes changed from one look to the next")
            if seen.etag is not None and seen.etag == again.etag:
                self._breach(Rule.ETAG_STALE, url, f"the document changed, and ETag: {seen.etag} did not")
        elif seen.etag is not None and again.etag is not None and seen.etag != again.etag:
            self._breach(
                Rule.ETAG_RESTLESS,
                url,
                f"the document did not change, and its ETag did, from {seen.etag} to {again.etag}",
            )
        ignored = frozenset({"etag", "content-length"}) | (_GROWING if newest else frozenset())
        changed = _different(seen.headers, again.headers, ignored)
        if changed and seen.sha256 == again.sha256:
            self._breach(Rule.ARCHIVE_HEADERS_CHANGED, url, f"these changed: {', '.join(changed)}")

    def _judge_head(self, answer: Answer, head: Answer, *, ignored: frozenset[str] = frozenset()) -> None:
        url = answer.url
        if head.status != answer.status:
            self._breach(
                Rule.HEAD_STATUS, url, f"GET is answered with {answer.status}, HEAD with {head.status}"
            )
            return
        length = head.headers.get("Content-Length")
        plain = "Content-Encoding" not in answer.headers
        if plain and length is not None and length != str(len(answer.body)):
            self._breach(
                Rule.HEAD_LENGTH,
                url,
                f"HEAD says Content-Length: {length}, and the document has {len(answer.body)} bytes",
            )
        different = _different(
            comparable_headers(answer.headers), comparable_headers(head.headers), ignored | {"content-length"}
        )
        if different:
            self._breach(Rule.HEAD_HEADERS, url, f"HEAD and GET differ in these: {', '.join(different)}")

    def _judge_conditional(self, answer: Answer, conditional: Answer) -> None:
        url = answer.url
        if conditional.status != 304:
            self._breach(
                Rule.CONDITIONAL_IGNORED,
                url,
                f"If-None-Match with its ETag {answer.headers.get('ETag')} is answered with "
                f"{conditional.status}, not 304",
            )
            return
        missing = [
            name
            for name in _REPEATED_BY_304
            if name in answer.headers and answer.header(name) != conditional.header(name)
        ]
        if missing:
            self._breach(
                Rule.NOT_MODIFIED_HEADERS,
                url,
                f"304 must repeat these headers of the 200: {', '.join(missing)}",
            )

    def _breach(self, rule: Rule, url: str, detail: str) -> None:
        self._report(Breach(rule, url, detail))


def _different(
    one: tuple[tuple[str, str], ...], two: tuple[tuple[str, str], ...], ignored: frozenset[str]
) -> list[str]:
    """The names of headers that are not the same in both."""
    return sorted({name for name, _ in set(one) ^ set(two)} - ignored)
