"""Times as the protocols write them: HTTP dates, RFC 3339, and milliseconds since the Unix epoch."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import formatdate, parsedate_to_datetime
from functools import lru_cache

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# The years that an HTTP date and RFC 3339 can write.
TIME_MS_MIN, TIME_MS_MAX = 0, 253_402_300_799_999


@lru_cache(maxsize=64)
def _http_date(seconds: int) -> str:
    return formatdate(seconds, usegmt=True)


def http_date(milliseconds: int) -> str:
    """An HTTP date (RFC 9110, 5.6.7), cut to the second."""
    return _http_date(milliseconds // 1000)


@lru_cache(maxsize=256)
def parse_http_date(text: str) -> int | None:
    """Milliseconds since the epoch, or None if `text` is no HTTP date: an invalid one is to be ignored."""
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, IndexError, OverflowError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def parse_rfc3339(text: str) -> int:
    """Milliseconds since the epoch, rounded up; raises ValueError for what is not an RFC 3339 date-time."""
    # A bare '+' in a query arrives as a space; the offset's sign is the only place where one can stand.
    text = text.strip().upper().replace(" ", "+")
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None or text[10:11] != "T":
        raise ValueError("an RFC 3339 time has a date, a 'T', a time and an offset such as 'Z'")
    return -((_EPOCH - moment) // timedelta(milliseconds=1))
