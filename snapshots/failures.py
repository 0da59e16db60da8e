"""What ends a run, so that its caller can tell what to do."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from gateway.core.errors import GatewayError
from gateway.core.state import Digest

from .places import FeedLost

_FEED_LOST = re.compile(r"FeedLost: (.*)")
_DISK_FULL = re.compile(r"No space left on device|Disk quota exceeded|File too large")
_DISK_FULL_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class DiskFull(GatewayError):
    """A disk has no room for what a run writes; the snapshots are as they were."""


class FeedBehind(GatewayError):
    """The place does not have all events yet that the tables have: it is a copy that lags."""

    def __init__(self, partition: str, *, reached: int, expected: int) -> None:
        super().__init__(
            f"partition {partition} reaches up to event {reached} there, and the tables have {expected}: wait"
            " until it has caught up, or read from where it was read before"
        )


class DigestDiffers(GatewayError):
    """The table `state` and `whose` entities, for the same events, are not the same; nothing is published."""

    def __init__(self, own: Digest, whose: str, entities: int, digest: str) -> None:
        super().__init__(
            f"the table state has {own.entities} entities with the digest {own.hex()}, but {whose}:"
            f" {entities} with {digest}, for the same events. If a run with --rebuild finds this too, the"
            " state of the gateway is wrong: wes state rebuild"
        )
        self.own = own
        self.entities = entities
        self.digest = digest


@contextmanager
def said_clearly(output: Path) -> Iterator[None]:
    """Raises DiskFull and FeedLost for what Java, Spark or the tasks say of a full disk or a lost feed."""
    try:
        yield
    except OSError as error:
        if error.errno in _DISK_FULL_ERRORS:
            raise DiskFull(_full(output, error.strerror or str(error))) from error
        raise
    except (PySparkException, Py4JError) as error:
        text = str(error)
        if full := _DISK_FULL.search(text):
            raise DiskFull(_full(output, full[0])) from error
        if lost := _FEED_LOST.search(text):
            raise FeedLost(lost[1].strip()) from error
        raise


def _full(output: Path, reason: str) -> str:
    return (
        f"a disk is full ({reason}): the one of {output}, of the tables, or of Spark's temporary files. The"
        " snapshots are as they were; make room, and the next run goes on"
    )
