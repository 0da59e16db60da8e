"""What a comparison of a copy with its gateway's digests found."""

from __future__ import annotations

from typing import NamedTuple

from gateway.core.state import Digest

DIFFERENCES_MAX = 100


class Difference(NamedTuple):
    """A target with other content than in the feed; an ETag is None where there is none, or no body."""

    target: str
    copy_etag: str | None
    feed_etag: str | None


class PartitionVerdict(NamedTuple):
    """A partition compared at `ordinal`, None if it is empty.

    `differences` has at most DIFFERENCES_MAX targets; `replayed` is the digest of the feed's replay, None if
    none was needed.
    """

    partition: str
    ordinal: int | None
    copy: Digest
    gateway: Digest
    replayed: Digest | None = None
    differences: tuple[Difference, ...] = ()

    @property
    def equal(self) -> bool:
        return self.copy == self.gateway


class Verdict(NamedTuple):
    """All partitions compared. `unknown` are those of the copy that the log does not have."""

    partitions: tuple[PartitionVerdict, ...]
    unknown: tuple[str, ...]

    @property
    def equal(self) -> bool:
        return not self.unknown and all(partition.equal for partition in self.partitions)
