"""What Spark counts: the events that are new in each bucket, and what the rows of `state` add up to.

These are passes over a few narrow columns. They tell what the tasks that read whole rows must find, so that
none of those is believed that got less.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from operator import xor
from typing import NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from gateway.core.snapshots import buckets_for
from gateway.core.state import Digest

from .buckets import ESTIMATE_BUCKETS, Bucket, Layout

_LIMBS = 8
_LIMB_HEX = 8


@dataclass(frozen=True, slots=True)
class NewEvents:
    """Buckets with events that change something (any but POST), and how many of these there are to fold."""

    touched: frozenset[Bucket]
    to_fold: Mapping[Bucket, int]


class BucketSum(NamedTuple):
    """What is in a bucket: the digest of its entities, and the bytes of their bodies."""

    digest: Digest
    size: int


class _Ordinals(NamedTuple):
    """What tells a series of ordinals from most others: how many, the first, the last, all of them XORed."""

    number: int
    first: int
    last: int
    mixed: int


def count_events(
    events: DataFrame, known: Layout, fold_from: Mapping[str, int], ends: Mapping[str, int]
) -> tuple[NewEvents, Layout]:
    """Count `events`, which are those from `fold_from` or before to `ends`.

    Returns them with the layout to fold them in: that of `known` where it has the partition, else one by an
    estimate. Raises ValueError unless each ordinal from `fold_from` to `ends` is there once.
    """
    new = ends.keys() - known.buckets.keys()
    fine = Layout({name: known.buckets.get(name, ESTIMATE_BUCKETS) for name in ends})
    folded = _at_least(fold_from)
    columns = [
        F.expr("count_if(method <> 'POST')").alias("touched"),
        F.expr(f"count_if(method <> 'POST' AND {folded})").alias("to_fold"),
        F.expr(f"count_if({folded})").alias("count"),
        F.expr(f"min(ordinal) FILTER (WHERE {folded})").alias("first"),
        F.expr(f"max(ordinal) FILTER (WHERE {folded})").alias("last"),
        F.expr(f"bit_xor(ordinal) FILTER (WHERE {folded})").alias("mixed"),
    ]
    if new:
        columns += [F.approx_count_distinct("target").alias("targets"), F.avg("size").alias("size")]
    rows = events.groupBy("partition", F.expr(fine.bucket_sql).alias("bucket")).agg(*columns).collect()

    found: dict[str, list[_Ordinals]] = {}
    targets: Counter[str] = Counter()
    size: Counter[str] = Counter()
    for row in rows:
        if row["count"]:
            found.setdefault(row.partition, []).append(
                _Ordinals(row["count"], row.first, row.last, row.mixed)
            )
        if new:
            targets[row.partition] += row.targets
            size[row.partition] += int(row.targets * (row.size or 0))
    for name, end in ends.items():
        _expect_series(name, found.get(name, []), fold_from.get(name, 0), end)
    layout = Layout(
        {
            name: known.buckets.get(name) or min(buckets_for(targets[name], size[name]), ESTIMATE_BUCKETS)
            for name in ends
        }
    )
    to_fold: Counter[Bucket] = Counter()
    touched = set()
    for row in rows:
        # Of leading bits, fewer are again leading bits.
        bucket = row.partition, row.bucket // (fine.buckets[row.partition] // layout.buckets[row.partition])
        if row.touched:
            touched.add(bucket)
        if row.to_fold:
            to_fold[bucket] += row.to_fold
    return NewEvents(frozenset(touched), to_fold), layout


def count_rows(state: DataFrame) -> dict[Bucket, int]:
    """How many rows there are with each value of the columns partition and bucket."""
    rows = state.groupBy("partition", "bucket").count().collect()
    return {(row["partition"], row["bucket"]): row["count"] for row in rows}


def sum_buckets(state: DataFrame, layout: Layout) -> dict[Bucket, BucketSum]:
    """What the rows of `state` add up to in each bucket of `layout`; buckets without entities are left out.

    All of it is computed by Spark from targets and ETags, and nothing by `gateway.core.state`, so that equal
    digests say something. SHA-256 sums are added in eight numbers of 32 bits, each with room for 2^31 rows.
    """
    hashed = state.where("state <> 'deleted'").select(
        "partition",
        F.expr(layout.bucket_sql).alias("bucket"),
        "size",
        F.expr("sha2(concat(CAST(target AS BINARY), X'00', CAST(etag AS BINARY)), 256)").alias("term"),
    )
    limbs = [
        F.expr(f"sum(CAST(conv(substring(term, {1 + limb * _LIMB_HEX}, {_LIMB_HEX}), 16, 10) AS BIGINT))")
        for limb in range(_LIMBS)
    ]
    rows = (
        hashed.groupBy("partition", "bucket").agg(F.expr("count(*)"), F.expr("sum(size)"), *limbs).collect()
    )
    found = {}
    for partition, bucket, entities, size, *parts in rows:
        total = reduce(lambda high, low: (high << 4 * _LIMB_HEX) + low, parts)
        found[partition, bucket] = BucketSum(Digest(0, 0) + Digest(entities, total), size)
    return found


def _expect_series(partition: str, found: list[_Ordinals], start: int, end: int) -> None:
    count = sum(part.number for part in found)
    first = min((part.first for part in found), default=start)
    last = max((part.last for part in found), default=end - 1)
    mixed = reduce(xor, (part.mixed for part in found), 0)
    if (count, first, last, mixed) != (end - start, start, end - 1, _xor_to(end) ^ _xor_to(start)):
        raise ValueError(
            f"of partition {partition} it should have the {end - start} events from {start} on, and it has"
            f" {count}, from {first} to {last}"
        )


def _xor_to(end: int) -> int:
    """All numbers below `end`, XORed."""
    last = end - 1
    return (last, 1, end, 0)[last % 4] if end > 0 else 0


def _at_least(starts: Mapping[str, int]) -> str:
    values = {name: start for name, start in starts.items() if start}
    if not values:
        return "true"
    pairs = ", ".join(f"'{name}', {start}" for name, start in values.items())
    return f"ordinal >= coalesce(try_element_at(map({pairs}), partition), 0)"
