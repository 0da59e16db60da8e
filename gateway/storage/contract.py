"""The contract of a stored feed: what readers may ask, and what the one writer may do.

The file store and the in-memory twin keep it alike; `tests/storage` runs the same tests over both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from gateway.core.pages import Batch, FeedSettings, Gap, LogPosition, Page, Quarantined
from gateway.core.state import Digest, Entity

from .records import EntityRecord


@dataclass(frozen=True, slots=True)
class Head:
    """The moving end of a feed at one moment.

    `page` is the open page and `data` its bytes so far, without a closing delimiter; both are empty in a
    new feed. `position` is the last message taken from the log, `quarantined` the number of those set aside.
    `digest` is that of the entities which the events up to here have made.
    """

    page: Page | None = None
    data: bytes = b""
    position: LogPosition | None = None
    quarantined: int = 0
    digest: Digest = Digest()  # noqa: RUF009 - an immutable value

    @property
    def next_ordinal(self) -> int:
        return 0 if self.page is None else self.page.next_ordinal

    @property
    def last_ordinal(self) -> int | None:
        return None if self.page is None else self.page.last_ordinal


class FeedReader(Protocol):
    """What any number of readers may do, in any process."""

    @property
    def settings(self) -> FeedSettings: ...

    @property
    def head(self) -> Head:
        """The committed end of the feed; an immutable value, cheap to ask for."""

    def refresh(self) -> bool:
        """Make `head` what is committed now, by whatever process; tells whether that has moved it."""

    def page(self, number: int) -> Page | None:
        """The page of that number, sealed or open, or None if there is none yet."""

    def page_of(self, ordinal: int) -> Page | None:
        """The page that holds the event of that ordinal, or None if there is no such event yet."""

    def page_since(self, time_ms: int) -> Page | None:
        """The page with the first event, in the feed's order, at or after that time, or None."""

    def read(self, page: Page) -> bytes:
        """The bytes of a sealed page, checked against its SHA-256; raises PageDamaged. May block."""

    def entity(self, target: str) -> EntityRecord | None:
        """How the target stands, by all that is committed, or None if it never had state."""

    def representation(self, record: EntityRecord) -> Entity | None:
        """The entity of `record` with its body, or None if it may have changed since; raises PageDamaged.

        The body is checked against the ETag. May block.
        """

    def targets_from(self, start: int, end: int, after: str, limit: int) -> list[str]:
        """Targets behind `after` that an event in [start, end) first gave a state, in order, `limit` at most.

        Cheap for what is new since the last question, if somebody asks now and then. May block.
        """

    def first_ordinals(self, targets: Sequence[str]) -> list[tuple[str, int]]:
        """The ordinal of the event that first gave a state to each of `targets` that ever had one."""

    def gaps(self) -> list[Gap]:
        """All gaps, in order."""

    def quarantine(self, after: int = 0, limit: int = 100) -> list[tuple[int, Quarantined]]:
        """Quarantined messages with their numbers (1, 2, 3, …), those behind `after`, at most `limit`."""


class FeedWriter(FeedReader, Protocol):
    """What the one writer of a partition may do besides."""

    def stage(self, batch: Batch) -> None:
        """Write `batch` without waiting for the disk; raises StoreFailed, after which it must `recover`."""

    def commit(self) -> None:
        """Make what was staged durable, then visible; raises StoreFailed likewise. May block."""

    def append(self, batch: Batch) -> None:
        """`stage` and `commit`."""

    def recover(self) -> None:
        """After a failure, return to what is verified on disk; raises StoreFailed."""

    def damaged_pages(self) -> list[Page]:
        """The pages that a read or `verify` has found damaged, oldest first."""

    def verify(self, page: Page) -> bool:
        """Whether a page's bytes are what was recorded; if not, it counts as damaged. May block."""

    def replace(self, page: Page, data: bytes) -> None:
        """Put back the bytes of a damaged page; raises ValueError unless they are those that were lost."""

    def rebuild_state(self) -> int:
        """Make the state of all targets again from the pages.

        Returns how many records were not as they are now. Raises PageDamaged, and StoreFailed; then the
        state is as it was. May block for long.
        """

    def close(self) -> None:
        """Let go of files and locks."""
