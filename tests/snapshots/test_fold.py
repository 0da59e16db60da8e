"""The fold: whatever the events, the batches and the runs, it gives what applying them one by one gives."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.event import Event, Method
from gateway.core.state import Entity, Kind, apply
from snapshots.fold import FOLDED, UNFOLDED, RowsMissing, fold_batches

MERGE = "application/merge-patch+json"
TIME = datetime(2024, 1, 1, tzinfo=UTC)
SCHEMA = pa.schema(
    [FOLDED.field("state").with_name(name) if name == "change" else FOLDED.field(name) for name in UNFOLDED]
)


class Placed(NamedTuple):
    partition: str
    ordinal: int
    event: Event


def row(placed: Placed) -> dict:
    event = placed.event
    return {
        "partition": placed.partition,
        "bucket": 0,
        "target": event.target,
        "change": event.method.value,
        "content_type": event.content_type,
        "etag": None,
        "last_modified": TIME + timedelta(seconds=placed.ordinal),
        "ordinal": placed.ordinal,
        "entry": f"/feeds/things/{placed.partition}/events/{placed.ordinal}",
        "headers": [{"name": name, "value": value} for name, value in event.extra_headers],
        "body": event.body,
    }


def folded(rows: list[dict], sizes: list[int] | None = None) -> list[dict]:
    """The state after `rows`, handed over in batches of those sizes."""
    rows = sorted(rows, key=lambda row: (row["partition"], row["bucket"], row["target"], row["ordinal"]))
    batches, start = [], 0
    for size in [*(sizes or []), len(rows)]:
        batches.append(pa.RecordBatch.from_pylist(rows[start : start + size], schema=SCHEMA))
        start += size
    expected: dict[tuple[str, int], int] = {}
    for item in rows:
        bucket = item["partition"], item["bucket"]
        expected[bucket] = expected.get(bucket, 0) + (item["change"] != "deleted")
    return [row for batch in fold_batches(batches, expected) for row in batch.to_pylist()]


def one_by_one(events: list[Placed]) -> dict[tuple[str, str], tuple[Entity, int]]:
    found: dict[tuple[str, str], tuple[Entity, int]] = {}
    for partition, ordinal, event in events:
        before = found.get((partition, event.target))
        after = apply(None if before is None else before[0], event)
        assert after is not None
        found[partition, event.target] = after, ordinal
    return found


def states(rows: list[dict]) -> dict[tuple[str, str], tuple[Entity, int]]:
    found = {}
    for item in rows:
        headers = tuple((header["name"], header["value"]) for header in item["headers"] or ())
        kind = Kind[item["state"].upper()]
        entity = Entity(kind, item["etag"] or "", item["content_type"], item["body"] or b"", headers)
        found[item["partition"], item["target"]] = entity, item["ordinal"]
        assert item["entry"].endswith(f"/{item['ordinal']}")
        assert item["last_modified"] == TIME + timedelta(seconds=item["ordinal"])
        assert item["size"] == len(item["body"] or b"")
        # What is not there has none of these, instead of empty ones.
        assert (item["body"] is None) is (kind is not Kind.PRESENT)
        assert (item["etag"] is None) is (kind is Kind.DELETED)
    return found


def event_of(method: Method, target: str, body: bytes, type_: str | None, encoded: bool) -> Event:
    headers = (("Content-Encoding", "gzip"),) if encoded else ()
    return Event(method, target, type_, body, None, headers)


events = st.builds(
    event_of,
    st.sampled_from([Method.PUT, Method.DELETE, Method.PATCH, Method.PATCH]),
    st.sampled_from(["/a", "/b", "/b/c", "/things/1"]),
    st.sampled_from([b"", b"{}", b'{"a":1}', b'{"a":null,"b":[1.50,2]}', b"\xff", b'[{"op":"test"}]']),
    st.sampled_from([None, "application/json", MERGE, "application/json-patch+json", "text/plain"]),
    st.booleans(),
)


@given(
    st.lists(st.tuples(st.sampled_from(["0", "1", "10"]), events), max_size=40),
    st.lists(st.integers(0, 4), max_size=30),
    st.lists(st.integers(0, 40), max_size=3),
)
@settings(max_examples=200, deadline=None)
def test_any_batches_and_any_runs_give_what_one_event_after_the_other_gives(history, sizes, runs):
    placed = [Placed(partition, ordinal, event) for ordinal, (partition, event) in enumerate(history)]
    state: list[dict] = []
    start = 0
    for end in [*sorted(runs), len(placed)]:
        before = [{**item, "change": item["state"]} for item in state]
        state = folded([*before, *map(row, placed[start:end])], sizes)
        start = max(start, end)

    assert states(state) == one_by_one(placed)
    keys = [(item["partition"], item["target"]) for item in state]
    assert keys == sorted(set(keys))


def test_a_target_whose_events_fill_many_batches_is_folded_once():
    put = Event(Method.PUT, "/a", "application/json", b'{"n":0}')
    patches = [Event(Method.PATCH, "/a", MERGE, b'{"n":%d}' % number) for number in range(1, 200)]
    placed = [Placed("0", ordinal, event) for ordinal, event in enumerate([put, *patches])]

    rows = folded([row(item) for item in placed], [7] * 40)

    assert [(item["body"], item["ordinal"]) for item in rows] == [(b'{"n":199}', 199)]


@pytest.mark.parametrize("cut", [0, 1, 5, 9])
def test_rows_that_end_early_are_an_error(cut):
    rows = [row(Placed("0", number, Event(Method.PUT, f"/{number}", None, b""))) for number in range(10)]
    batch = pa.RecordBatch.from_pylist(rows[:cut], schema=SCHEMA)

    with pytest.raises(RowsMissing, match=f"got {cut} rows instead of 10"):
        list(fold_batches([batch], {("0", 0): 10}))


def test_rows_that_nobody_expects_are_an_error():
    rows = [row(Placed("1", 0, Event(Method.PUT, "/a", None, b"")))]
    with pytest.raises(RowsMissing, match="partition 1, bucket 0"):
        list(fold_batches([pa.RecordBatch.from_pylist(rows, schema=SCHEMA)], {}))
