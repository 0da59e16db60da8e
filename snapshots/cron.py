"""The times of a cron expression, in UTC, where no hour is twice or missing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from cronsim import CronSim, CronSimError

from gateway.core.errors import InvalidSetting

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Cron:
    """A cron expression: minute, hour, day of month, month, day of week; six fields begin with the second.

    Raises InvalidSetting, which says which field is wrong. Times are milliseconds since the Unix epoch.
    """

    def __init__(self, expression: str) -> None:
        self.expression = expression
        try:
            next(CronSim(expression, _EPOCH))
        except (CronSimError, StopIteration) as error:
            what = str(error).lower() or "there is no such day"
            raise InvalidSetting(
                f"cron is {expression!r}: {what}; write minute, hour, day of month, month and day of week,"
                " as in '30 3 * * *' for 03:30 UTC every day"
            ) from None

    def after(self, time_ms: int) -> int:
        """The first time behind `time_ms`."""
        return _milliseconds(next(CronSim(self.expression, _moment(time_ms))))

    def until(self, time_ms: int) -> int:
        """The last time that is not behind `time_ms`."""
        second = timedelta(seconds=1)
        return _milliseconds(next(CronSim(self.expression, _moment(time_ms) + second, reverse=True)))


def _moment(time_ms: int) -> datetime:
    # Whole seconds: cron has nothing between them.
    return _EPOCH + timedelta(seconds=time_ms // 1000)


def _milliseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(milliseconds=1)
