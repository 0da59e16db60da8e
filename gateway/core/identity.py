"""Who an event is: its Content-ID, and the generation that tells one run of a feed from another.

Draft, "The Content-ID header": each entry is identified by a unique id, and events do not move relative
to each other. An ordinal alone would not be unique, because a feed that is rebuilt from a later start
would give the same ordinals to other events. The generation, a hash of the feed's first event, prevents
that; a gap starts a new one that is hashed from the old one and the first event after the gap.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import NamedTuple

from .event import Event, parse_authority, parse_name

GENERATION_HEX = 16

_CONTENT_ID = re.compile(
    r"<(0|[1-9][0-9]*)\.([0-9a-f]{16})@([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)\.([A-Za-z0-9.-]+)>"
)


class ContentID(NamedTuple):
    """The fields of a Content-ID of ours."""

    ordinal: int
    generation: str
    partition: str
    log: str
    authority: str

    def __str__(self) -> str:
        return f"<{self.ordinal}.{self.generation}@{self.partition}.{self.log}.{self.authority}>"


def parse_content_id(text: str) -> ContentID | None:
    """The fields of `text` if it is a Content-ID of ours, else None: other servers have other forms."""
    match = _CONTENT_ID.fullmatch(text)
    if match is None:
        return None
    return ContentID(int(match[1]), match[2], match[3], match[4], match[5])


@dataclass(frozen=True, slots=True)
class FeedName:
    """What names a feed: the authority that answers for it, the log, and the partition of the log."""

    authority: str
    log: str
    partition: str

    def __post_init__(self) -> None:
        parse_authority(self.authority)
        parse_name(self.log, "log")
        parse_name(self.partition, "partition")


def first_generation(event: Event, offset: str) -> str:
    """The generation of a feed that starts with `event`, which the log keeps at `offset`."""
    return _generation("", event, offset)


def generation_after_gap(generation: str, event: Event, offset: str) -> str:
    """The generation that follows `generation` when `event` is the first one after a gap."""
    return _generation(generation, event, offset)


def _generation(before: str, event: Event, offset: str) -> str:
    digest = hashlib.sha256()
    modified = "" if event.modified_ms is None else str(event.modified_ms)
    fields = (before, offset, event.method.value, event.target, event.content_type or "", modified)
    for field in (*(field.encode() for field in fields), event.body):
        # The length in front keeps two different lists of fields from giving the same bytes.
        digest.update(b"%d:" % len(field))
        digest.update(field)
    return digest.hexdigest()[:GENERATION_HEX]
