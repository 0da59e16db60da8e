"""What the events of one document make of their targets; in memory, before anything is written.

On servers of this project an entity that the feed does not tell stays unknown, as it is to everybody, so that
digests agree. Elsewhere the target itself is asked. Its answer may be newer than the events that follow in
the feed, so a later PATCH is never applied to it: the target is asked again. The same goes for a snapshot
that does not tell which events it holds, until its feed has caught up (draft, "Initializing via Snapshots
and Feeds").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gateway.core.event import Event, Method
from gateway.core.state import UNKNOWN, Entity, Kind, apply

from .feed import FeedEvent

NOT_TOLD = -1
"""The ordinal of an entity from a snapshot that does not tell which event made it."""

STATES = {Kind.PRESENT: "present", Kind.DELETED: "deleted", Kind.UNKNOWN: "unknown"}


class Row(NamedTuple):
    """What a copy keeps of a target.

    `server_etag` of an entity that is present says that its own server told it, and under which ETag, empty
    if under none; of an unknown one it is the ETag to ask with, empty without one, and `kept` is the
    representation that it belongs to.
    """

    entity: Entity
    ordinal: int
    last_modified: str | None
    server_etag: str | None = None
    kept: Entity | None = None


def patched_targets(events: Sequence[FeedEvent]) -> set[str]:
    """The targets whose stored state the events build on."""
    settled: set[str] = set()
    needed: set[str] = set()
    for event in events:
        if event.method is Method.PATCH:
            if event.target not in settled:
                needed.add(event.target)
        elif event.method is Method.PUT or event.method is Method.DELETE:
            settled.add(event.target)
    return needed


def fold(
    stored: Mapping[str, Row], events: Sequence[FeedEvent], first_ordinal: int, *, ask: bool = False
) -> dict[str, Row]:
    """The rows that the events change, by target.

    `stored` has the rows of `patched_targets`, as far as they are there. An event without a method, or with
    POST, changes nothing. With `ask`, no PATCH is applied: what its target is, is to be asked.
    """
    changed: dict[str, Row] = {}
    for ordinal, event in enumerate(events, first_ordinal):
        method = event.method
        if method is None or method is Method.POST:
            continue
        target = event.target
        told = Event(method, target, event.content_type, event.body, None, event.extra_headers)
        if method is Method.PATCH:
            before = changed.get(target) or stored.get(target)
            changed[target] = _patched(before, told, event, ordinal, ask=ask)
        else:
            entity = apply(None, told)
            assert entity is not None, "a PUT and a DELETE give a state"
            changed[target] = Row(entity, ordinal, event.last_modified)
    return changed


def _patched(before: Row | None, told: Event, event: FeedEvent, ordinal: int, *, ask: bool) -> Row:
    ask = ask or (before is not None and before.server_etag is not None)
    entity = UNKNOWN if ask else apply(None if before is None else before.entity, told)
    assert entity is not None, "a PATCH gives a state"
    row = Row(entity, ordinal, event.last_modified, "" if ask else None)
    ours = event.ordinal is not None
    if before is None or entity.kind is not Kind.UNKNOWN or (ours and not ask):
        return row
    kept = before.kept if before.entity.kind is Kind.UNKNOWN else before.entity
    etag = before.server_etag or _etag_header(before.entity)
    if not etag or kept is None or kept.kind is not Kind.PRESENT:
        return row
    return row._replace(server_etag=etag, kept=kept)


def _etag_header(entity: Entity) -> str | None:
    return next((value for name, value in entity.extra_headers if name.lower() == "etag"), None)
