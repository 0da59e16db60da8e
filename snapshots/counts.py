"""What Spark counts: the events that are new in each bucket, and what the rows of `state` add up to.

These are passes over a few narrow columns. They tell what the tasks that read whole rows must find, so that
none of those is believed that got less; and which events need not be read whole, as later ones settle what
their targets are.
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

SETTLED_EVENTS_MIN = 50_000
SETTLED_SHARE_MIN = 0.5
"""Of the events to fold, that need not be read whole: with fewer it does not pay to tell tasks which."""
SETTLED_TARGETS_MAX = 1_000_000
"""Of so many targets every task can be told the last event; that takes about 100 bytes for each."""

_LIMBS = 8
_LIMB_HEX = 8


@dataclass(frozen=True, slots=True)
class NewEvents:
    """The events that change something (any but POST).

    `touched` are their buckets, those of events that are folded already among them, `to_fold` how many there
    are to fold. If it pays, `last` has the last event of targets that no patch is about, as partition, target
    and last; their earlier ones are not in `to_fold`.
    """

    touched: frozenset[Bucket]
    to_fold: Mapping[Bucket, int]
    last: DataFrame | None


class BucketSum(NamedTuple):
    """What is in a bucket: the digest of its entities, and the bytes of their bodies."""

    digest: Digest
    size: int


def targets_of(events: DataFrame, fold_from: Mapping[str, int]) -> DataFrame:
    """What there is to know of each target of `events`; those to fold start at `fold_from`."""
    folded = _at_least(fold_from)
    changes = f"{folded} AND method <> 'POST'"
    return events.groupBy("partition", "target").agg(
        F.expr("count_if(method <> 'POST')").alias("touched"),
        F.expr(f"count_if({changes})").alias("changes"),
        F.expr(f"count_if({folded} AND method = 'PATCH')").alias("patches"),
        F.expr(f"max(ordinal) FILTER (WHERE {changes})").alias("last"),
        F.expr("max(size)").alias("size"),
        F.expr(f"count_if({folded})").alias("ordinals"),
        F.expr(f"min(ordinal) FILTER (WHERE {folded})").alias("lowest"),
        F.expr(f"max(ordinal) FILTER (WHERE {folded})").alias("highest"),
        F.expr(f"bit_xor(ordinal) FILTER (WHERE {folded})").alias("mixed"),
    )


def count_events(
    targets: DataFrame, known: Layout, fold_from: Mapping[str, int], ends: Mapping[str, int]
) -> tuple[NewEvents, Layout]:
    """Count the events of `targets`, see `targets_of`, of which those to fold go from `fold_from` to `ends`.

    Returns them with the layout to fold them in: that of `known` where it has the partition, else one by an
    estimate. Raises ValueError unless each ordinal from `fold_from` to `ends` is there once.
    """
    fine = Layout({name: known.buckets.get(name, ESTIMATE_BUCKETS) for name in ends})
    rows = (
        targets.groupBy("partition", F.expr(fine.bucket_sql).alias("bucket"))
        .agg(
            F.expr("sum(touched)").alias("touched"),
            F.expr("sum(changes)").alias("changes"),
            F.expr("sum(if(patches = 0 AND changes > 0, 1, changes))").alias("unsettled"),
            F.expr("count_if(patches = 0 AND changes > 1)").alias("settled"),
            F.expr("count_if(changes > 0)").alias("targets"),
            F.expr("sum(size)").alias("size"),
            F.expr("sum(ordinals)").alias("ordinals"),
            F.expr("min(lowest)").alias("lowest"),
            F.expr("max(highest)").alias("highest"),
            F.expr("bit_xor(mixed)").alias("mixed"),
        )
        .collect()
    )
    totals: Counter[str] = Counter()
    found: Counter[str] = Counter()
    size: Counter[str] = Counter()
    for row in rows:
        totals.update({name: row[name] for name in ("changes", "unsettled", "settled")})
        found[row.partition] += row.targets
        size[row.partition] += row["size"]
    for name, end in ends.items():
        series = [row for row in rows if row.partition == name and row.ordinals]
        count, mixed = sum(row.ordinals for row in series), reduce(xor, (row.mixed for row in series), 0)
        first = min((row.lowest for row in series), default=None)
        last = max((row.highest for row in series), default=None)
        _expect_series(name, fold_from.get(name, 0), end, (count, first, last, mixed))
    layout = Layout(
        {
            name: known.buckets.get(name) or min(buckets_for(found[name], size[name]), ESTIMATE_BUCKETS)
            for name in ends
        }
    )
    reduced = totals["settled"] <= SETTLED_TARGETS_MAX and totals["changes"] - totals["unsettled"] >= max(
        SETTLED_SHARE_MIN * totals["changes"], SETTLED_EVENTS_MIN
    )
    to_fold: Counter[Bucket] = Counter()
    touched = set()
    for row in rows:
        # Of leading bits, fewer are again leading bits.
        bucket = row.partition, row.bucket // (fine.buckets[row.partition] // layout.buckets[row.partition])
        if row.touched:
            touched.add(bucket)
        if row.changes:
            to_fold[bucket] += row.unsettled if reduced else row.changes
    last_of = (
        targets.where("patches = 0 AND changes > 1").select("partition", "target", "last")
        if reduced
        else None
    )
    return NewEvents(frozenset(touched), to_fold, last_of), layout


def count_entities(state: DataFrame) -> dict[Bucket, int]:
    """How many entities there are with each value of the columns partition and bucket."""
    rows = state.where("state <> 'deleted'").groupBy("partition", "bucket").count().collect()
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
        found[partition, bucket] = BucketSum(Digest() + Digest(entities, total), size)
    return found


_Series = tuple[int, int | None, int | None, int]
"""What tells a series of ordinals from most others: how many, the first, the last, and all of them XORed."""


def _expect_series(partition: str, start: int, end: int, found: _Series) -> None:
    expected: _Series = (end - start, start, end - 1, _xor_to(end) ^ _xor_to(start))
    if start == end:
        expected = 0, None, None, 0
    if found != expected:
        raise ValueError(
            f"of partition {partition} it should have the {end - start} events from {start} on, and it has"
            f" {found[0]}, from {found[1]} to {found[2]}"
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
