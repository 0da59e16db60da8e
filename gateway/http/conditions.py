"""Conditions on publications: what they say, when they can be decided, whether they hold (RFC 9110, 13)."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from aiohttp import web

from gateway.core.conditional import is_condition, write_allowed
from gateway.core.errors import InvalidEvent, LogUnavailable
from gateway.core.identity import ContentID
from gateway.core.state import Kind

from .live import LiveLog
from .problems import problem

_POLL_S = 0.02


class Conditions(NamedTuple):
    """The preconditions of a publication, each with all of its lines in one."""

    if_match: str | None
    if_none_match: str | None
    if_unmodified_since: str | None


def conditions_of(request: web.Request) -> Conditions | None:
    """The conditions of a publication, or None; raises InvalidEvent for what is no list of entity tags."""
    headers = request.headers
    if "If-Match" not in headers and "If-None-Match" not in headers and "If-Unmodified-Since" not in headers:
        return None
    if_match, if_none_match = (_all_of(request, name) for name in ("If-Match", "If-None-Match"))
    since = headers.get("If-Unmodified-Since")
    for name, value in (("If-Match", if_match), ("If-None-Match", if_none_match)):
        if value is not None and not is_condition(value):
            raise InvalidEvent(f"{name} is {value[:80]!r}: write * or ETags with their quotes")
    return Conditions(if_match, if_none_match, since)


async def until_settled(log: LiveLog, target: str, wait_s: float) -> None:
    """Wait for what was sent about the target and is not visible, which comes before a new event.

    Raises LogUnavailable if that takes too long.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_s
    while log.publisher.unsettled(target):
        if loop.time() > deadline:
            raise LogUnavailable(
                f"nothing was published: not all that the log has, or may have, about {target} is known yet"
            )
        await asyncio.sleep(_POLL_S)


def refusal(conditions: Conditions, log: LiveLog, target: str) -> web.Response | None:
    """The answer to a publication whose conditions do not hold, else None."""
    found = log.current(target)
    exists = found is not None and found[1].kind is not Kind.DELETED
    etag = found[1].etag if found is not None and found[1].kind is Kind.PRESENT else None
    if write_allowed(
        etag,
        exists=exists,
        if_match=conditions.if_match,
        if_none_match=conditions.if_none_match,
        if_unmodified_since=conditions.if_unmodified_since,
        modified_ms=None if found is None else found[1].modified_ms,
    ):
        return None
    if etag is not None:
        return problem(412, f"nothing was published: the ETag of {target} is {etag}", ETag=etag)
    known = "it cannot be told what it is" if exists else "it has no state"
    return problem(412, f"nothing was published: {target} does not meet the condition, {known}")


def missing(conditions: Conditions | None, target: str) -> web.Response | None:
    """The answer where changes must be conditional and this one is not (RFC 6585, 3), else None.

    A date is not enough: it does not tell two states within a second apart.
    """
    if conditions is not None and (conditions.if_match or conditions.if_none_match):
        return None
    return problem(
        428,
        f"nothing was published: changes must be conditional here. GET {target} and send its ETag as"
        " If-Match, or If-None-Match: * for a new one",
    )


def etag_made(log: LiveLog, target: str, identity: ContentID) -> str | None:
    """The ETag of the state that the event has made, so that the writer can go on from it."""
    record = log.feeds[identity.partition].reader.entity(target)
    if record is not None and record.ordinal == identity.ordinal and record.kind is Kind.PRESENT:
        return record.etag
    return None


def _all_of(request: web.Request, name: str) -> str | None:
    values = request.headers.getall(name, [])
    return ", ".join(values) if values else None
