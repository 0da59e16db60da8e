"""Conditional and range requests (RFC 9110, sections 13 and 14), as functions of header values."""

from __future__ import annotations

import re
from enum import Enum

from .times import parse_http_date

_OPAQUE_TAG = r'"[\x21\x23-\x7e\x80-\U0010ffff]*"'
_ENTITY_TAG = re.compile(rf"\s*(W/)?({_OPAQUE_TAG})\s*")
_ENTITY_TAGS = re.compile(rf"(?:W/)?{_OPAQUE_TAG}(?:[ \t]*,[ \t,]*(?:W/)?{_OPAQUE_TAG})*")
_BYTE_RANGE = re.compile(r"bytes[ \t]*=[ \t,]*([0-9]*)-([0-9]*)[ \t,]*", re.IGNORECASE)


class Outcome(Enum):
    """What the preconditions of a GET or HEAD request come to."""

    PROCEED = 200
    NOT_MODIFIED = 304
    FAILED = 412


def matches_weakly(header: str, etag: str) -> bool:
    """Whether an If-None-Match value names `etag` (RFC 9110, 8.8.3.2: weak comparison)."""
    return header == etag or any(tag == etag for _, tag in _entity_tags(header))


def matches_strongly(header: str, etag: str) -> bool:
    """Whether an If-Match value names the strong `etag` (RFC 9110, 8.8.3.2: strong comparison)."""
    return header == etag or any(tag == etag and not weak for weak, tag in _entity_tags(header))


def evaluate(
    etag: str,
    *,
    if_match: str | None = None,
    if_none_match: str | None = None,
    if_modified_since: str | None = None,
    if_unmodified_since: str | None = None,
    modified_ms: int | None = None,
) -> Outcome:
    """The outcome of a GET or HEAD request's preconditions, in the order of RFC 9110, 13.2.2.

    `modified_ms` is None where dates are not to be compared, as on a document that can change twice within
    a second.
    """
    if if_match is not None:
        if if_match.strip() != "*" and not matches_strongly(if_match, etag):
            return Outcome.FAILED
    elif _later(modified_ms, if_unmodified_since):
        return Outcome.FAILED
    if if_none_match is not None:
        if if_none_match.strip() == "*" or matches_weakly(if_none_match, etag):
            return Outcome.NOT_MODIFIED
    elif _later(modified_ms, if_modified_since) is False:
        return Outcome.NOT_MODIFIED
    return Outcome.PROCEED


def is_condition(header: str) -> bool:
    """Whether an If-Match or If-None-Match value is `*` or a list of entity tags (RFC 9110, 13.1)."""
    rest = header.strip(" \t,")
    return rest == "*" or (bool(rest) and _ENTITY_TAGS.fullmatch(rest) is not None)


def write_allowed(
    etag: str | None,
    *,
    if_match: str | None = None,
    if_none_match: str | None = None,
    if_unmodified_since: str | None = None,
    exists: bool,
    modified_ms: int | None = None,
) -> bool:
    """Whether the preconditions of a request that changes a resource hold (RFC 9110, 13.2.2).

    `exists` tells whether there is a current representation; `etag` is its strong one, None where it is not
    known which representation that is.
    """
    if if_match is not None:
        matched = exists if if_match.strip() == "*" else etag is not None and matches_strongly(if_match, etag)
        if not matched:
            return False
    elif _later(modified_ms, if_unmodified_since):
        return False
    if if_none_match is None:
        return True
    if if_none_match.strip() == "*":
        return not exists
    return etag is None or not matches_weakly(if_none_match, etag)


def byte_range(header: str, length: int, *, etag: str, if_range: str | None = None) -> slice | bool | None:
    """What a Range header asks of a body of `length` bytes with the strong `etag`.

    A slice for one satisfiable range, False for one that cannot be satisfied (416), None where the header
    is to be ignored: several ranges, another unit, a malformed one, or an If-Range that does not match.
    """
    match = _BYTE_RANGE.fullmatch(header.strip())
    if match is None or (if_range is not None and if_range.strip() != etag):
        return None
    first, last = match[1], match[2]
    if not first:
        if not last:
            return None
        suffix = min(int(last), length)
        return slice(length - suffix, length) if suffix else False
    start = int(first)
    if last and int(last) < start:
        return None
    if start >= length:
        return False
    return slice(start, min(int(last) + 1, length) if last else length)


def _entity_tags(header: str) -> list[tuple[bool, str]]:
    tags: list[tuple[bool, str]] = []
    position = 0
    while position < len(header):
        match = _ENTITY_TAG.match(header, position)
        if match is None:
            break
        tags.append((match[1] is not None, match[2]))
        position = match.end()
        if header[position : position + 1] != ",":
            break
        position += 1
    return tags


def _later(modified_ms: int | None, header: str | None) -> bool | None:
    """Whether something was modified after the date in `header`; None if that cannot be said."""
    if modified_ms is None or header is None:
        return None
    date_ms = parse_http_date(header)
    return None if date_ms is None else modified_ms // 1000 > date_ms // 1000
