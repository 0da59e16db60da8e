"""What a copy of a log's entities promises, wherever it is kept, and what it says when it cannot.

A copy takes the events of one feed document at a time. Entities, digest and checkpoint of a partition change
together, so that whatever ends the process, the checkpoint names exactly the events that the copy holds,
and reading goes on behind it without loss or double.

A partition that has to start over grows a second state beside the first one. Readers see the first until
`complete` puts the second in its place, all at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from gateway.core.errors import GatewayError
from gateway.core.state import Digest

from .feed import FeedEvent, Position
from .fold import Row


class CopyLocked(GatewayError):
    """Another process writes to the copy; there is one writer for each."""


class CopyMismatch(GatewayError):
    """What is at the destination is no copy, or one of another source."""


class CopyFailed(GatewayError):
    """The destination refused a read or a write; the copy stands where its checkpoint says."""


class PartMismatch(GatewayError):
    """A part of a snapshot does not hold what its index tells; nothing of it was taken."""


class Source(NamedTuple):
    """What a copy is of: the URL of a log document and the log's name, or of a feed, which has none."""

    url: str
    log: str | None


class Checkpoint(NamedTuple):
    """How far the copy of a partition has come, and the digest of what it holds.

    `ordinal` is the number of the last event in its feed, counted from 0 where the server does not tell;
    None, like `content_id`, before the first event; `entry` is None where the server gives no entry links.
    """

    url: str
    ordinal: int | None
    content_id: str | None
    entry: str | None
    generation: str | None
    events: int
    digest: Digest

    @property
    def position(self) -> Position | None:
        """Where reading goes on; None at the beginning of the feed."""
        return None if self.content_id is None else Position(self.content_id, self.entry)


class Unresolved(NamedTuple):
    """A target whose state only its own server can tell, and the ETag to ask with, if there is one."""

    target: str
    etag: str | None


class Fetched(NamedTuple):
    """The state of a target as its server told it; `gone` if it has none.

    `etag` is the server's; None where it told none.
    """

    content_type: str | None = None
    body: bytes = b""
    extra_headers: tuple[tuple[str, str], ...] = ()
    etag: str | None = None
    last_modified: str | None = None
    gone: bool = False


class Stored(NamedTuple):
    """An entity as the copy keeps it: the ETag that it recorded, and the one that its content has now."""

    target: str
    recorded_etag: str
    etag: str


class SnapshotName(NamedTuple):
    """Which snapshot it is: the URL and the id of its index, its digest, and when it was started.

    `digest` is None on servers other than this project's; `started` is in milliseconds since the Unix epoch.
    """

    url: str
    id: str
    digest: str | None
    started: int

    @property
    def key(self) -> tuple[str, str | None, int]:
        """What makes it the same snapshot, wherever it is now."""
        return self[1:]


class Begun(NamedTuple):
    """The snapshot that a second state begins with, and whether all of it is there."""

    snapshot: SnapshotName
    whole: bool


class Copy(Protocol):
    """A copy that is open for writing. Every method may raise CopyFailed."""

    def bind(self, source: Source, *, moved: bool = False) -> None:
        """Check that the copy is of `source`, or make it so if it is new; raises CopyMismatch.

        With `moved`, a copy of another URL is taken for one of this source from now on.
        """

    def begin(self, partition: str, url: str) -> None:
        """Add the partition whose feed is at `url`, or learn where its feed is now."""

    def partitions(self) -> list[str]:
        """The partitions that were begun."""

    def checkpoint(self, partition: str) -> Checkpoint:
        """How far the growing state has come: the second one while the partition starts over."""

    def starting_over(self, partition: str) -> bool:
        """Whether a second state grows."""

    def apply(self, partition: str, events: Sequence[FeedEvent]) -> None:
        """Take the next events of a feed, all or none; raises FeedBroken if they are not the next ones."""

    def start_over(self, partition: str, reason: str) -> None:
        """Begin a second state from nothing; one that was growing is dropped."""

    def complete(self, partition: str) -> None:
        """Put the second state, if there is one, in the place of the first."""

    def unresolved(self, partition: str) -> list[Unresolved]:
        """The targets whose state is unknown."""

    def resolve(self, partition: str, target: str, fetched: Fetched | None) -> None:
        """Keep what a target's server told; None if the state that belongs to its ETag still holds."""

    def close(self) -> None:
        """Let go of the copy; what was applied is kept."""


class EntityCopy(Copy, Protocol):
    """A copy that holds entities, so that it can begin with a snapshot: in a second state, part by part.

    What was taken of a snapshot is kept with the rows themselves, so that a later run goes on with the rest.
    """

    def begun(self, partition: str) -> Begun | None:
        """The snapshot that the second state begins with, until that is complete; None without one."""

    def begin_snapshot(self, partition: str, snapshot: SnapshotName) -> None:
        """Begin a second state from nothing, with that snapshot; one that was growing is dropped."""

    def taken_parts(self, partition: str) -> set[str]:
        """The URIs of the parts that were taken."""

    def take_part(self, partition: str, uri: str, rows: dict[str, Row], told: Digest | None) -> None:
        """Take the entities of a part, all or none.

        Raises PartMismatch if the digest does not change by `told`; None: the index tells none.
        """

    def end_snapshot(self, partition: str, ordinal: int | None, position: Position | None) -> None:
        """All parts were taken: the feed goes on behind `position`, None for its beginning.

        `ordinal` is that of the last event that the snapshot holds; as many events count as applied, and the
        state is complete at once if readers see nothing so far. None where that is not told: the copy then is
        exact when its feed has caught up.
        """

    def drop_snapshot(self, partition: str) -> None:
        """Forget the second state if it began with a snapshot."""
