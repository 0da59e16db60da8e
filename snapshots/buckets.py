"""Buckets: how the rows of `state` are cut, in SQL for Spark, as `gateway.core.snapshots` does it in Python.

A bucket is a partition of the log and the leading bits of the CRC-32 of a target. The table lies by buckets,
tasks get whole buckets, and a snapshot part is a bucket. As many as a partition has are a power of two.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gateway.core.snapshots import BUCKETS_MAX

from .places import by_number

Bucket = tuple[str, int]
"""A partition, and the number of a bucket in it."""

_CRC_BITS = 32


@dataclass(frozen=True, slots=True)
class Layout:
    """How many buckets each partition has."""

    buckets: Mapping[str, int]

    @property
    def bucket_sql(self) -> str:
        """The bucket of the columns `partition` and `target`: `bucket_of`, in SQL."""
        shifts = {name: _CRC_BITS - (count.bit_length() - 1) for name, count in self.buckets.items()}
        return f"CAST(shiftright(crc32(CAST(target AS BINARY)), {by_partition(shifts)}) AS INT)"

    def tasks(self, count: int) -> Tasks:
        """The buckets of all partitions dealt to `count` tasks in turn."""
        starts: dict[str, int] = {}
        start = 0
        for name in sorted(self.buckets, key=by_number):
            starts[name] = start
            start += self.buckets[name]
        return Tasks(count, starts)


@dataclass(frozen=True, slots=True)
class Tasks:
    """Which task gets which bucket: the number of the bucket among all, modulo `count`."""

    count: int
    starts: Mapping[str, int]

    @property
    def task_sql(self) -> str:
        """The task of the columns `partition` and `bucket`."""
        return f"CAST(pmod({by_partition(self.starts)} + bucket, {self.count}) AS INT)"

    def task(self, bucket: Bucket) -> int:
        """The task of a bucket."""
        return (self.starts[bucket[0]] + bucket[1]) % self.count


def by_partition(values: Mapping[str, int]) -> str:
    """SQL for the value of the column `partition`, all of which are among `values`."""
    distinct = set(values.values())
    if len(distinct) == 1:
        return str(distinct.pop())
    pairs = ", ".join(f"'{name}', {value}" for name, value in values.items())
    return f"element_at(map({pairs}), partition)"


def where_buckets(whole: Iterable[str], buckets: Iterable[Bucket]) -> str:
    """SQL that holds for the rows of all partitions in `whole`, and of `buckets` in the others.

    Names of partitions need no escapes: see `parse_name`.
    """
    numbers: dict[str, set[int]] = {}
    for partition, number in buckets:
        numbers.setdefault(partition, set()).add(number)
    every = set(whole)
    found = []
    if every:
        found.append(f"partition IN ({', '.join(repr(name) for name in sorted(every))})")
    for name in sorted(numbers.keys() - every):
        found.append(f"(partition = '{name}' AND bucket IN ({', '.join(map(str, sorted(numbers[name])))}))")
    return " OR ".join(found) or "false"


def where_behind(ends: Mapping[str, int], partitions: Iterable[str]) -> str:
    """SQL that holds for the rows of `partitions` whose ordinal is `ends` or higher, where it is told."""
    found = [
        f"(partition = '{name}' AND ordinal >= {ends[name]})" if ends.get(name) else f"partition = '{name}'"
        for name in partitions
    ]
    return " OR ".join(found) or "false"


ESTIMATE_BUCKETS = 1_024
"""As many are told apart before anything is known of a partition; it gets no more before its second run."""
assert ESTIMATE_BUCKETS <= BUCKETS_MAX
