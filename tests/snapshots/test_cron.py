"""The times of cron expressions, in UTC."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from gateway.core.errors import InvalidSetting
from snapshots.cron import Cron


def ms(text):
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


@pytest.mark.parametrize(
    ("expression", "now", "until", "after"),
    [
        ("30 3 * * *", "2026-03-29T03:30", "2026-03-29T03:30", "2026-03-30T03:30"),
        ("30 3 * * *", "2026-03-29T03:29:59.999", "2026-03-28T03:30", "2026-03-29T03:30"),
        ("*/15 * * * *", "2026-01-01T00:14:59", "2026-01-01T00:00", "2026-01-01T00:15"),
        ("0 0 L * *", "2026-02-28T12:00", "2026-02-28", "2026-03-31"),
        ("0 0 29 2 *", "2026-01-01", "2024-02-29", "2028-02-29"),
        ("0 9 * * mon-fri", "2026-11-21T08:00", "2026-11-20T09:00", "2026-11-23T09:00"),
        ("*/10 * * * * *", "2026-01-01T00:00:09.999", "2026-01-01T00:00:00", "2026-01-01T00:00:10"),
    ],
)
def test_the_times_around_a_moment(expression, now, until, after):
    cron = Cron(expression)
    assert (cron.until(ms(now)), cron.after(ms(now))) == (ms(until), ms(after))


def test_the_days_on_which_clocks_change_have_their_24_hours():
    cron, time = Cron("30 * * * *"), ms("2026-03-29")
    times = [time := cron.after(time) for _ in range(24)]
    assert times[-1] == ms("2026-03-29T23:30")


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("", "wrong number of fields"),
        ("* * * *", "wrong number of fields"),
        ("@daily", "wrong number of fields"),
        ("60 * * * *", "bad minute"),
        ("0 24 * * *", "bad hour"),
        ("0 0 0 * *", "bad day-of-month"),
        ("0 0 30 2 *", "bad day-of-month"),
        ("0 0 * 13 *", "bad month"),
        ("0 0 * * caturday", "bad day-of-week"),
        ("*/0 * * * *", "bad minute"),
        ("5-1 * * * *", "bad minute"),
        ("0 0 LW * */9", "there is no such day"),
    ],
)
def test_what_is_wrong_with_an_expression_is_said(expression, says):
    with pytest.raises(InvalidSetting, match=f"cron is .*: {says}; write minute, hour, day of month"):
        Cron(expression)
