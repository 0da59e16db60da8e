"""The rules that a feed must keep, each with its level and its clause, and what it means to break one.

"draft" is draft-kiessling-web-eventsourcing-00, with the heading of the section. A rule has the level
MUST where the clause says so, or where the text of a specification would be untrue otherwise; SHOULD is
what the clause recommends, or what harms readers although no clause forbids it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum


class Level(Enum):
    """How much a breach weighs (RFC 2119)."""

    MUST = "MUST"
    SHOULD = "SHOULD"


class Rule(Enum):
    """What can be broken: a code for programs, a level, and the clause."""

    DOCUMENT_STATUS = "document-status", Level.MUST, "RFC 5005, 4"
    DOCUMENT_TYPE = "document-type", Level.MUST, "draft, Change Event Feeds"
    MULTIPART_MALFORMED = "multipart-malformed", Level.MUST, "RFC 2046, 5.1.1"
    PART_LENGTH = "part-length", Level.MUST, "RFC 9110, 8.6"
    PART_DATE = "part-date", Level.SHOULD, "RFC 9110, 8.8.2"
    CONTENT_ID_MISSING = "content-id-missing", Level.MUST, "draft, The Content-ID header"
    CONTENT_ID_FORM = "content-id-form", Level.SHOULD, "RFC 2045, 7"
    CONTENT_ID_REPEATED = "content-id-repeated", Level.MUST, "draft, The Content-ID header"
    ORDER_CHANGED = "order-changed", Level.MUST, "draft, The Content-ID header"
    NEWEST_FIRST = "newest-first", Level.SHOULD, "draft, The Content-ID header"
    ABOUT_MISSING = "about-missing", Level.MUST, "draft, The Event Target Link Relation"
    EVENT_TYPE_MISSING = "event-type-missing", Level.MUST, "draft, The Event-Type HTTP Header"
    EVENT_TYPE_FORM = "event-type-form", Level.MUST, "draft, The Event-Type HTTP Header"
    EVENT_TYPE_METHOD = "event-type-method", Level.MUST, "draft, The Event-Type family http-equiv"
    EVENT_TYPE_FAMILIES = "event-type-families", Level.SHOULD, "draft, The Event-Type HTTP Header"
    SELF_PARTLY = "self-partly", Level.MUST, "draft, The Event Entry Link Relation"
    SELF_STATUS = "self-status", Level.MUST, "draft, The Event Entry Link Relation"
    SELF_REDIRECT = "self-redirect", Level.MUST, "draft, The Event Entry Link Relation"
    SELF_LOCATION = "self-location", Level.MUST, "draft, Resuming feed consumption at a given event"
    SELF_FRAGMENT = "self-fragment", Level.SHOULD, "draft, The Event Entry Link Relation"
    SELF_CACHED = "self-cached", Level.SHOULD, "RFC 9110, 15.4.3"
    PREV_ARCHIVE_MISSING = "prev-archive-missing", Level.MUST, "draft, Publishing Feeds"
    NEXT_ARCHIVE_MISSING = "next-archive-missing", Level.SHOULD, "draft, Publishing Feeds"
    CURRENT_MISSING = "current-missing", Level.SHOULD, "draft, Publishing Feeds"
    CURRENT_WRONG = "current-wrong", Level.MUST, "draft, Publishing Feeds"
    LINKS_DISAGREE = "links-disagree", Level.MUST, "draft, Publishing Feeds"
    LINKS_CIRCLE = "links-circle", Level.MUST, "draft, Publishing Feeds"
    ARCHIVE_ENTRIES_CHANGED = "archive-entries-changed", Level.SHOULD, "draft, Publishing Feeds"
    ARCHIVE_BYTES_CHANGED = "archive-bytes-changed", Level.SHOULD, "RFC 5005, 4"
    ARCHIVE_HEADERS_CHANGED = "archive-headers-changed", Level.SHOULD, "RFC 5005, 4"
    ARCHIVE_NOT_CACHEABLE = "archive-not-cacheable", Level.SHOULD, "RFC 9111, 3"
    SUBSCRIPTION_IMMUTABLE = "subscription-immutable", Level.MUST, "RFC 8246, 2"
    ETAG_MISSING = "etag-missing", Level.SHOULD, "draft, The ETag header"
    ETAG_FORM = "etag-form", Level.MUST, "RFC 9110, 8.8.3"
    ETAG_STALE = "etag-stale", Level.MUST, "RFC 9110, 8.8.1"
    ETAG_RESTLESS = "etag-restless", Level.SHOULD, "draft, The ETag header"
    CONDITIONAL_IGNORED = "conditional-ignored", Level.SHOULD, "draft, The ETag header"
    NOT_MODIFIED_HEADERS = "not-modified-headers", Level.MUST, "RFC 9110, 15.4.5"
    HEAD_STATUS = "head-status", Level.MUST, "RFC 9110, 9.3.2"
    HEAD_LENGTH = "head-length", Level.MUST, "RFC 9110, 8.6"
    HEAD_HEADERS = "head-headers", Level.SHOULD, "RFC 9110, 9.3.2"
    LOG_DOCUMENT = "log-document", Level.SHOULD, "README, the log document"
    OPEN_ARCHIVE = "open-archive", Level.SHOULD, "README, the URL space"
    BEYOND_END = "beyond-end", Level.SHOULD, "README, the URL space"
    ERROR_CACHEABLE = "error-cacheable", Level.SHOULD, "RFC 9110, 15.1"

    def __init__(self, code: str, level: Level, clause: str) -> None:
        self.code = code
        self.level = level
        self.clause = clause


@dataclass(frozen=True, slots=True)
class Breach:
    """A rule that was broken: at which URL, and how."""

    rule: Rule
    url: str
    detail: str

    def as_json(self) -> dict[str, str]:
        """The object that `wes check --json` prints."""
        return {
            "breach": self.rule.code,
            "clause": self.rule.clause,
            "level": self.rule.level.value,
            "url": self.url,
            "detail": self.detail,
        }


Report = Callable[[Breach], None]
