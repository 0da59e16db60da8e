"""The URL space of feeds, and Link headers (RFC 8288): written here, read here, nowhere else.

Every link inside a document is an absolute path without a host, so that all replicas, and any cache in
front of them, give the same bytes.
"""

from __future__ import annotations

import re
from typing import NamedTuple

ARCHIVE_TYPE = "http://purl.org/syndication/history/1.0/archive"
"""What an archive document declares with rel="type" (RFC 5005, 4; RFC 6903), for want of fh:archive."""

# A first path segment of these is never an event target; `metrics` and the like are reserved for what comes.
RESERVED = frozenset({"", "feeds", "snapshots", "subscriptions", "livez", "readyz", "metrics"})

_ENTRY = re.compile(r"/feeds/[^/]+/[^/]+/events/(0|[1-9][0-9]{0,17})")
_NUMBER_DIGITS_MAX = 15
_LINK_TARGET = re.compile(r"\s*<([^>]*)>")
_LINK_PARAMETER = re.compile(
    r"\s*;\s*([A-Za-z0-9!#$&+.^_`|~*-]+)(?:\s*=\s*(?:\"((?:[^\"\\]|\\.)*)\"|([^\s;,\"]+)))?"
)


class FeedLinks(NamedTuple):
    """The paths of one feed (the URL table of the README)."""

    log: str
    partition: str

    @property
    def base(self) -> str:
        return f"/feeds/{self.log}/{self.partition}"

    @property
    def current(self) -> str:
        return f"{self.base}/latest"

    def archive(self, page: int) -> str:
        return f"{self.base}/archive/{page}"

    def entry(self, ordinal: int) -> str:
        return f"{self.base}/events/{ordinal}"


class SnapshotLinks(NamedTuple):
    """The paths of the snapshots of one log (the URL table of the README)."""

    log: str

    @property
    def base(self) -> str:
        return f"/snapshots/{self.log}"

    @property
    def newest(self) -> str:
        return f"{self.base}/latest"

    def snapshot(self, id_: str) -> str:
        return f"{self.base}/{id_}"

    def part(self, id_: str, number: int) -> str:
        return f"{self.base}/{id_}/{number}"


def parse_number(text: str) -> int | None:
    """The number of a page, an event or a part in its one spelling, so that one document has one URL."""
    if not (text.isascii() and text.isdigit()) or len(text) > _NUMBER_DIGITS_MAX:
        return None
    return int(text) if text == "0" or text[0] != "0" else None


def entry_ordinal(entry: str) -> int | None:
    """The ordinal in an entry link of this project's form, or None."""
    match = _ENTRY.fullmatch(entry)
    return None if match is None else int(match[1])


def log_path(log: str) -> str:
    """The path of the log document."""
    return f"/feeds/{log}"


def fragment(ordinal: int, generation: str) -> str:
    """The fragment that names an entry in its document: the left side of its Content-ID."""
    return f"{ordinal}.{generation}"


def subscription_links(links: FeedLinks, page: int) -> str:
    """The Link header of the subscription document while `page` is open (draft, "Publishing Feeds")."""
    header = f'<{links.current}>; rel="current"'
    if page > 0:
        header += f', <{links.archive(page - 1)}>; rel="prev-archive"'
    return header


def archive_links(links: FeedLinks, page: int) -> str:
    """The Link header of archive document `page`; it is the same for ever (RFC 5005, 4)."""
    header = f'<{links.current}>; rel="current"'
    if page > 0:
        header += f', <{links.archive(page - 1)}>; rel="prev-archive"'
    return f'{header}, <{links.archive(page + 1)}>; rel="next-archive", <{ARCHIVE_TYPE}>; rel="type"'


def newest_link(links: SnapshotLinks) -> str:
    """The Link header of whatever is, or was, one of the snapshots (RFC 5829, 3.2)."""
    return f'<{links.newest}>; rel="latest-version"'


def index_links(links: SnapshotLinks) -> str:
    """The Link header of a snapshot index; it is the same for ever (RFC 6573, 2.2)."""
    return f'<{links.base}>; rel="collection", {newest_link(links)}'


def part_links(links: SnapshotLinks, id_: str) -> str:
    """The Link header of a snapshot part: the index that it is of."""
    return f'<{links.snapshot(id_)}>; rel="index"'


class Link(NamedTuple):
    """One link of a Link header: the target as written, and its relation types in lower case."""

    target: str
    relations: frozenset[str]


def parse_links(header: str) -> list[Link]:
    """All links of a Link header value (RFC 8288, 3 and appendix B.2); what is malformed ends the list."""
    found: list[Link] = []
    position = 0
    while match := _LINK_TARGET.match(header, position):
        target, position = match[1], match.end()
        relations: frozenset[str] | None = None
        while parameter := _LINK_PARAMETER.match(header, position):
            position = parameter.end()
            # A second rel is ignored (RFC 8288, 3.3).
            if parameter[1].lower() == "rel" and relations is None:
                quoted = parameter[2]
                text = re.sub(r"\\(.)", r"\1", quoted) if quoted is not None else parameter[3] or ""
                relations = frozenset(text.lower().split())
        found.append(Link(target, relations or frozenset()))
        comma = re.compile(r"\s*,").match(header, position)
        if comma is None:
            break
        position = comma.end()
    return found


def link_by_relation(headers: list[str], relation: str) -> str | None:
    """The target of the first link with `relation` in several Link header values, or None."""
    for header in headers:
        for link in parse_links(header):
            if relation in link.relations:
                return link.target
    return None
