"""The data source `webfeed`: the feeds of a log as a Spark DataFrame, one row for each event.

    from snapshots.webfeed import WebFeed
    spark.dataSource.register(WebFeed)
    events = spark.read.format("webfeed").option("from", "http://127.0.0.1:8080").load()

| option                | meaning                                                                          |
| --------------------- | -------------------------------------------------------------------------------- |
| `from`                | the URL of a gateway, or of a log document there, or a data folder               |
| `log`                 | the log; need not be said where there is one only                                |
| `start`               | partition -> first ordinal to read, as JSON: `{"0": 100}`; 0 for all others      |
| `end`                 | batch only: partition -> ordinal behind the last to read, and no other partition |
|                       | is read; without it, all events that there are when the read is planned          |
| `maxEventsPerTrigger` | streams only: how many events a micro-batch has at the most                      |

| column          | type           |                                                                        |
| --------------- | -------------- | ---------------------------------------------------------------------- |
| `partition`     | STRING         | the partition of the log                                               |
| `ordinal`       | BIGINT         | the event's number in its feed: 0, 1, 2, without holes                 |
| `content_id`    | STRING         | the Content-ID, unique for ever                                        |
| `target`        | STRING         | what the event is about: a path                                        |
| `method`        | STRING         | PUT, POST, PATCH or DELETE                                             |
| `content_type`  | STRING         | of the body; null if it is not told                                    |
| `last_modified` | TIMESTAMP      | when the log added the event, to the second; null if it is not told    |
| `entry`         | STRING         | the entry link: a path                                                 |
| `headers`       | ARRAY<STRUCT>  | `name` and `value` of other headers, such as Content-Encoding          |
| `body`          | BINARY         | the representation, or the patch; empty for DELETE                     |

A task reads whole documents, checks them, and fails unless every event of its range is there. Within a task,
rows come in the feed's order. A batch may end in the document that still grows; a stream reads full documents
only. The position of a stream is, for each partition, the left side of the Content-ID of the last event read,
so that no checkpoint is taken for one of another feed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from gateway.core.errors import InvalidSetting

from .entries import ARROW_SCHEMA, SCHEMA, batches
from .places import FeedLost, Place, Range, by_number, open_place

OPTIONS = ("from", "log", "start", "end", "maxEventsPerTrigger")


class WebFeed(DataSource):
    """`format("webfeed")`; raises InvalidSetting for options of no use, FeedLost where there is no feed."""

    @classmethod
    def name(cls) -> str:
        return "webfeed"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        _expect(schema)
        return _Reader(_Options(self.options, stream=False))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        _expect(schema)
        return _StreamReader(_Options(self.options, stream=True))


class _Options:
    """What a read was asked for, checked."""

    def __init__(self, options: Mapping[str, str], *, stream: bool) -> None:
        known = {name.lower() for name in OPTIONS}
        unknown = sorted(name for name in options if name.lower() not in known)
        if unknown:
            raise InvalidSetting(
                f"webfeed has no option {', '.join(unknown)}; its options are {', '.join(OPTIONS)}"
            )
        if "from" not in options:
            raise InvalidSetting('webfeed needs the option "from": the URL of a gateway, or a data folder')
        self.place = open_place(options["from"], options.get("log"))
        self.start = _ordinals(options, "start") or {}
        self.end = _ordinals(options, "end")
        self.events_max = _count(options, "maxEventsPerTrigger")
        if stream and self.end is not None:
            raise InvalidSetting('a stream has no option "end": read a batch instead')
        if not stream and self.events_max is not None:
            raise InvalidSetting("maxEventsPerTrigger is for streams only")


class _Range(InputPartition):
    """A range that one task reads."""

    def __init__(self, range_: Range) -> None:
        super().__init__(None)
        self.range = range_


class _Reader(DataSourceReader):
    def __init__(self, options: _Options) -> None:
        self._place = options.place
        self._start = options.start
        self._end = options.end

    def partitions(self) -> list[InputPartition]:
        end = self._place.vector().ends if self._end is None else self._end
        return _plan(self._place, self._start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition)


class _StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Positions are dicts: partition -> left side of the Content-ID of the last event read."""

    def __init__(self, options: _Options) -> None:
        self._place = options.place
        self._start = options.start
        self._events_max = options.events_max
        self._target: dict[str, int] | None = None
        self._verified: dict[str, str] = {}

    def initialOffset(self) -> dict[str, str]:
        return self._position({partition: ordinal for partition, ordinal in self._start.items() if ordinal})

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable() if self._events_max is None else ReadMaxRows(self._events_max)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._place.sealed()

    def latestOffset(self, start: dict[str, str], limit: ReadLimit) -> dict[str, str]:
        self._verify(start)
        sealed = self._place.sealed() if self._target is None else self._target
        begin = _ends(start)
        available = {
            partition: end - begin.get(partition, 0)
            for partition, end in sealed.items()
            if end > begin.get(partition, 0)
        }
        if isinstance(limit, ReadMaxRows):
            available = _shares(available, limit.max_rows)
        moved = {
            partition: begin.get(partition, 0) + count for partition, count in available.items() if count
        }
        return start | self._position(moved)

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> list[InputPartition]:
        self._verify(start)
        self._verify(end)
        return _plan(self._place, _ends(start), _ends(end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition)

    def _position(self, ends: Mapping[str, int]) -> dict[str, str]:
        found = {partition: self._place.fragment(partition, end - 1) for partition, end in ends.items()}
        self._verified |= found
        return found

    def _verify(self, position: Mapping[str, str]) -> None:
        """Raises FeedLost if the events of a position are not those of the feed now."""
        for partition, fragment in position.items():
            if self._verified.get(partition) == fragment:
                continue
            found = self._place.fragment(partition, _ordinal(fragment))
            if found != fragment:
                raise FeedLost(
                    f"partition {partition} of {self._place.log} has event {found} where the stream has read"
                    f" {fragment}: it is another feed than before. Start the stream with a new checkpoint"
                )
            self._verified[partition] = fragment


def _plan(place: Place, start: Mapping[str, int], end: Mapping[str, int]) -> list[InputPartition]:
    tasks = os.cpu_count() or 1
    return [
        _Range(found)
        for partition in sorted(end, key=by_number)
        if end[partition] > start.get(partition, 0)
        for found in place.ranges(partition, start.get(partition, 0), end[partition], tasks)
    ]


def _read(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    # Where there is nothing to plan, Spark makes up a partition of its own.
    if isinstance(partition, _Range):
        found = partition.range
        rows = 0
        for batch in batches(found.partition, found.documents()):
            rows += batch.num_rows
            yield batch
        if rows != found.end - found.start:
            wanted = found.end - found.start
            raise FeedLost(f"partition {found.partition} gave {rows} events from {found.start}, not {wanted}")


def _shares(available: Mapping[str, int], events_max: int) -> dict[str, int]:
    """What each partition may give, in proportion to what it has, `events_max` in all and at least one."""
    total = sum(available.values())
    if total <= events_max:
        return dict(available)
    shares = {partition: count * events_max // total for partition, count in available.items()}
    left = events_max - sum(shares.values())
    for partition, count in available.items():
        more = min(left, count - shares[partition])
        shares[partition] += more
        left -= more
    return shares


def _ends(position: Mapping[str, str]) -> dict[str, int]:
    return {partition: _ordinal(fragment) + 1 for partition, fragment in position.items()}


def _ordinal(fragment: str) -> int:
    return int(fragment.partition(".")[0])


def _expect(schema: StructType) -> None:
    if not ARROW_SCHEMA.equals(to_arrow_schema(schema, timezone="UTC")):
        raise InvalidSetting(f"webfeed has the schema {SCHEMA}: leave out .schema(...)")


def _ordinals(options: Mapping[str, str], name: str) -> dict[str, int] | None:
    if name not in options:
        return None
    try:
        value: Any = json.loads(options[name])
    except ValueError:
        value = None
    if not isinstance(value, dict) or not all(type(n) is int and n >= 0 for n in value.values()):
        raise InvalidSetting(
            f'{name}={options[name]} is not partition -> ordinal as JSON, as in {{"0": 100}}'
        )
    return value


def _count(options: Mapping[str, str], name: str) -> int | None:
    if name not in options:
        return None
    text = options[name]
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise InvalidSetting(f"{name}={text} is not a number of events")
    return int(text)
