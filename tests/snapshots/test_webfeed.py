"""The data source `webfeed`, with Spark and without: each event once, in batches and in streams."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PythonException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from gateway.core.errors import InvalidSetting
from snapshots.entries import ARROW_SCHEMA
from snapshots.places import FeedLost
from snapshots.webfeed import WebFeed
from tests.acceptance.support import put
from tests.feeds import event
from tests.servers import gateway
from tests.snapshots.written import Written

SCHEMA = from_arrow_schema(ARROW_SCHEMA)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def feed(data: Path) -> Iterator[Written]:
    """A feed with 23 events in pages of 5."""
    with Written(data) as feed:
        feed.add(*(event(number) for number in range(23)))
        yield feed


def stream_reader(data: Path, **options: str):
    return WebFeed({"from": str(data)} | options).streamReader(SCHEMA)


def rows_of(reader, partitions) -> list[tuple[str, int]]:
    """Partition and ordinal of what a reader gives."""
    return [
        (row["partition"], row["ordinal"])
        for partition in partitions
        for batch in reader.read(partition)
        for row in batch.to_pylist()
    ]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, 'needs the option "from"'),
        ({"from": "DATA", "begin": "1"}, "has no option begin; its options are from, log, start"),
        ({"from": "DATA", "start": "5"}, "start=5 is not partition -> ordinal as JSON"),
        ({"from": "DATA", "end": '{"0": -1}'}, "end=.* is not partition -> ordinal as JSON"),
        ({"from": "DATA", "end": '{"0": true}'}, "end=.* is not partition -> ordinal as JSON"),
        ({"from": "DATA", "end": "{"}, "end=.* is not partition -> ordinal as JSON"),
        ({"from": "DATA", "maxEventsPerTrigger": "5"}, "is for streams only"),
        ({"from": "gopher://example.org"}, "must start with http"),
    ],
)
def test_an_option_of_no_use_is_refused(data, feed, options, text):
    if options.get("from") == "DATA":
        options = options | {"from": str(data)}
    with pytest.raises(InvalidSetting, match=text):
        WebFeed(options).reader(SCHEMA)


def test_a_stream_refuses_options_of_a_batch_and_limits_that_are_none(data, feed):
    with pytest.raises(InvalidSetting, match='a stream has no option "end"'):
        stream_reader(data, end='{"0": 5}')
    for text in ("0", "-1", "many"):
        with pytest.raises(InvalidSetting, match="is not a number of events"):
            stream_reader(data, maxEventsPerTrigger=text)


def test_another_schema_is_refused(data, feed):
    with pytest.raises(InvalidSetting, match="leave out"):
        WebFeed({"from": str(data)}).reader(from_arrow_schema(ARROW_SCHEMA.remove(0)))


def test_a_batch_without_end_reads_all_that_there_is_when_it_is_planned(data, feed):
    with Written(data, "3") as second:
        second.add(event(1))
        reader = WebFeed({"from": str(data), "start": '{"0": 21}'}).reader(SCHEMA)
        planned = reader.partitions()
        second.add(event(2))
        assert rows_of(reader, planned) == [("0", 21), ("0", 22), ("3", 0)]
    # What Spark asks where nothing was planned.
    assert rows_of(reader, [InputPartition(None)]) == []


def test_a_stream_reads_full_documents_only(data, feed):
    reader = stream_reader(data)
    start = reader.initialOffset()
    assert start == {}
    end = reader.latestOffset(start, ReadAllAvailable())
    assert list(end) == ["0"]
    assert end["0"].startswith("19.")
    assert rows_of(reader, reader.partitions(start, end)) == [("0", n) for n in range(20)]
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    feed.add(*(event(number) for number in range(23, 26)))
    assert reader.latestOffset(end, ReadAllAvailable())["0"].startswith("24.")


def test_a_stream_keeps_its_limit_and_shares_it_among_partitions(data, feed):
    with Written(data, "1") as second:
        second.add(*(event(number) for number in range(11)))
        reader = stream_reader(data, maxEventsPerTrigger="7")
        assert reader.getDefaultReadLimit() == ReadMaxRows(7)
        reader.prepareForTriggerAvailableNow()
        position, found = reader.initialOffset(), []
        for _ in range(5):
            end = reader.latestOffset(position, ReadMaxRows(7))
            got = rows_of(reader, reader.partitions(position, end))
            assert len(got) <= 7
            assert len({partition for partition, _ in got}) == 2 or len(found) > 14
            position, found = end, found + got
        assert sorted(found) == sorted([("0", n) for n in range(20)] + [("1", n) for n in range(10)])
        assert reader.latestOffset(position, ReadMaxRows(7)) == position
        assert len(reader.latestOffset(reader.initialOffset(), ReadMaxRows(1))) == 1


def test_available_now_never_goes_past_what_was_there_when_it_began(data, feed):
    reader = stream_reader(data)
    reader.prepareForTriggerAvailableNow()
    feed.add(*(event(number) for number in range(23, 40)))
    end = reader.latestOffset({}, reader.getDefaultReadLimit())
    assert end["0"].startswith("19.")
    assert reader.latestOffset(end, ReadAllAvailable()) == end


def test_a_stream_begins_where_it_is_told(data, feed):
    reader = stream_reader(data, start='{"0": 7}')
    start = reader.initialOffset()
    assert start["0"].startswith("6.")
    end = reader.latestOffset(start, ReadMaxRows(4))
    assert rows_of(reader, reader.partitions(start, end)) == [("0", n) for n in range(7, 11)]


def test_the_checkpoint_of_another_feed_is_refused(data, feed):
    end = stream_reader(data).latestOffset({}, ReadAllAvailable())
    feed.close()
    shutil.rmtree(data)
    with Written(data) as other:
        other.add(*(event(number) for number in range(1, 40)))
        with pytest.raises(
            FeedLost, match=r"it is another feed than before\. Start the stream with a new check"
        ):
            stream_reader(data).latestOffset(end, ReadAllAvailable())
        with pytest.raises(FeedLost, match="it is another feed than before"):
            stream_reader(data).partitions({}, end)


def test_a_stream_goes_on_over_http_from_where_it_was_in_the_folder(data, feed):
    reader = stream_reader(data)
    middle = reader.latestOffset({}, ReadMaxRows(12))
    feed.close()
    server = gateway(data, "--archive-events-max", "5").start(ready=False)
    try:
        remote = WebFeed({"from": server.http}).streamReader(SCHEMA)
        end = remote.latestOffset(middle, ReadAllAvailable())
        assert rows_of(remote, remote.partitions(middle, end)) == [("0", n) for n in range(12, 20)]
    finally:
        server.stop()


# With Spark


def collected(frame: DataFrame) -> list[dict]:
    """The rows of a frame in order, without the Content-ID, which must have the ordinal."""
    rows = [row.asDict(recursive=True) for row in frame.orderBy("partition", "ordinal").collect()]
    for row in rows:
        row["body"] = bytes(row["body"])
        assert row.pop("content_id").startswith(f"<{row['ordinal']}.")
    return rows


def expected(feed: Written, start: int = 0, end: int | None = None) -> list[dict]:
    """What Spark must give: it hands out times without a zone, of this process."""
    rows = feed.rows(start, end)
    for row in rows:
        if row["last_modified"] is not None:
            row["last_modified"] = row["last_modified"].astimezone().replace(tzinfo=None)
    return rows


@pytest.mark.slow
def test_spark_reads_what_was_written_from_a_folder_and_over_http(spark, data, feed):
    with Written(data, "1") as second, Written(data, "2"):
        second.add(*(event(number, body=bytes([number]) * 4000) for number in range(11)))
    feed.close()
    server = gateway(data, "--archive-events-max", "5").start(ready=False)
    try:
        for place in (str(data), server.http):
            frame = spark.read.format("webfeed").option("from", place).load()
            assert frame.schema == SCHEMA
            assert collected(frame) == expected(feed) + expected(second)
            some = spark.read.format("webfeed").options(**{"from": place, "log": "events"})
            some = some.option("start", '{"0": 3}').option("end", '{"0": 21, "2": 0}')
            assert collected(some.load()) == expected(feed, 3, 21)
            nothing = some.option("end", "{}").load()
            assert nothing.count() == 0
    finally:
        server.stop()


@pytest.mark.slow
def test_spark_says_why_it_cannot_read(spark, data, feed):
    frame = spark.read.format("webfeed").option("from", str(data)).load()
    path = feed.page_file(1)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(PythonException, match=r"page 1 in .*/pages/1 is damaged"):
        frame.collect()
    with pytest.raises(AnalysisException, match="has no option begin"):
        spark.read.format("webfeed").option("from", str(data)).option("begin", "1").load().count()
    with pytest.raises(AnalysisException, match="there is no data folder"):
        spark.read.format("webfeed").option("from", str(data / "no")).load().count()


def run_stream(spark: SparkSession, data: Path, folder: Path, **options: str) -> list[int]:
    """Let a stream append to a Delta table all that is there; returns how many rows each micro-batch had."""
    reader = spark.readStream.format("webfeed").option("from", str(data)).options(**options)
    writer = (
        reader.load().writeStream.format("delta").option("checkpointLocation", str(folder / "checkpoint"))
    )
    query = writer.trigger(availableNow=True).start(str(folder / "table"))
    query.awaitTermination()
    return [progress["numInputRows"] for progress in map(json.loads, (p.json for p in query.recentProgress))]


@pytest.mark.slow
def test_a_spark_stream_appends_each_event_once_and_goes_on_where_it_was(spark, data, feed, tmp_path):
    table = str(tmp_path / "table")
    batches = run_stream(spark, data, tmp_path, maxEventsPerTrigger="8")
    assert [count for count in batches if count] == [8, 8, 4]
    assert collected(spark.read.format("delta").load(table)) == expected(feed, 0, 20)
    assert not any(run_stream(spark, data, tmp_path))
    with Written(data, "1") as second:
        second.add(*(event(number) for number in range(7)))
    feed.add(*(event(number) for number in range(23, 31)))
    assert sum(run_stream(spark, data, tmp_path)) == 15
    assert collected(spark.read.format("delta").load(table)) == expected(feed, 0, 30) + expected(second, 0, 5)
    feed.close()
    shutil.rmtree(data)
    with Written(data) as other:
        other.add(*(event(number) for number in range(1, 40)))
        with pytest.raises(StreamingQueryException, match="it is another feed than before"):
            run_stream(spark, data, tmp_path)


@pytest.mark.slow
def test_spark_reads_a_gateway_while_events_are_published(spark, start_gateway):
    server = start_gateway("--archive-events-max", "4", "--partitions", "2")
    for number in range(20):
        put(server.http, f"/things/{number}", b"%d" % number)
    frame = spark.read.format("webfeed").option("from", server.http).load()
    seen = {bytes(row.body) for row in frame.select("body").collect()}
    assert seen == {b"%d" % number for number in range(20)}
    assert {row.partition for row in frame.select("partition").collect()} == {"0", "1"}
