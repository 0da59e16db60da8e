"""Targets that have state in more than one partition of a log: two entities each, which readers should know.

Counted between two positions of the log, so the work grows with the targets that are new since the last
count, and the result depends on the positions alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .contract import FeedReader

CHUNK_TARGETS = 5_000

Ends = dict[str, int]
"""Where a count ends: the ordinal behind the last one that counts, for each partition."""


class SharedTargets:
    """The count for one log; it is kept, and goes on from where it was."""

    def __init__(self) -> None:
        self._count = 0
        self._ends: Ends = {}

    def count(self, feeds: Mapping[str, FeedReader], ends: Ends) -> int:
        """How many targets have had state in several of `feeds` before `ends`. May block.

        What has been counted stays so, if another call was later and is done already.
        """
        ends = {partition: max(end, self._ends.get(partition, 0)) for partition, end in ends.items()}
        if len(ends) > 1 and ends != self._ends:
            found = 0
            for partition in sorted(ends):
                start, end = self._ends.get(partition, 0), ends[partition]
                after = ""
                while start < end:
                    new = feeds[partition].targets_from(start, end, after, CHUNK_TARGETS)
                    found += self._newly_shared(feeds, ends, partition, new)
                    if len(new) < CHUNK_TARGETS:
                        break
                    after = new[-1]
            self._count, self._ends = self._count + found, ends
        return self._count

    def _newly_shared(
        self, feeds: Mapping[str, FeedReader], ends: Ends, partition: str, targets: Sequence[str]
    ) -> int:
        """How many of the targets that are new in `partition` are shared now and were not before.

        One that is new in several partitions counts in the first of them.
        """
        before = dict.fromkeys(targets, 0)
        now = dict.fromkeys(targets, 1)
        for other in ends:
            if other == partition:
                continue
            for target, first in feeds[other].first_ordinals(targets):
                if first >= ends[other]:
                    continue
                now[target] += 1
                if first < self._ends.get(other, 0):
                    before[target] += 1
                elif other < partition:
                    before[target] = len(ends)
        return sum(now[target] > 1 and before[target] < 2 for target in targets)
