"""The in-memory twin of the file store: the same contract, no disk; for tests and for trying things out."""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

from gateway.core.errors import PageDamaged
from gateway.core.event import Method
from gateway.core.pages import Batch, Change, FeedSettings, Gap, Page, Quarantined, page_changes
from gateway.core.state import Digest, Entity, Kind, apply

from .contract import Head
from .records import EntityRecord


class MemoryFeed:
    """A feed in memory; see FeedWriter for the contract."""

    def __init__(self, settings: FeedSettings) -> None:
        self._settings = settings
        self._head = Head()
        self._pages: list[Page] = []
        self._data: dict[int, bytes] = {}
        self._gaps: list[Gap] = []
        self._quarantine: list[Quarantined] = []
        self._damaged: set[int] = set()
        self._staged: Batch | None = None
        self._entities: dict[str, tuple[EntityRecord, Entity]] = {}

    @property
    def settings(self) -> FeedSettings:
        return self._settings

    @property
    def head(self) -> Head:
        return self._head

    def refresh(self) -> bool:
        return False

    def page(self, number: int) -> Page | None:
        return self._pages[number] if 0 <= number < len(self._pages) else None

    def page_of(self, ordinal: int) -> Page | None:
        if not 0 <= ordinal < self._head.next_ordinal:
            return None
        index = bisect_right(self._pages, ordinal, key=lambda page: page.first_ordinal)
        return self._pages[index - 1]

    def page_since(self, time_ms: int) -> Page | None:
        index = bisect_left(self._pages, time_ms, key=lambda page: page.modified_ms_max or -1)
        return self.page(index)

    def read(self, page: Page) -> bytes:
        assert page.sealed, "an open page is read from the head"
        return self._read_checked(page)

    def entity(self, target: str) -> EntityRecord | None:
        kept = self._entities.get(target)
        return None if kept is None else kept[0]

    def representation(self, record: EntityRecord) -> Entity | None:
        kept, entity = self._entities[record.target]
        return entity if kept == record else None

    def targets_from(self, start: int, end: int, after: str, limit: int) -> list[str]:
        found = sorted(
            target
            for target, (record, _) in self._entities.items()
            if start <= record.first_ordinal < end and target > after
        )
        return found[:limit]

    def first_ordinals(self, targets: Sequence[str]) -> list[tuple[str, int]]:
        kept = self._entities
        return [(target, kept[target][0].first_ordinal) for target in targets if target in kept]

    def gaps(self) -> list[Gap]:
        return list(self._gaps)

    def quarantine(self, after: int = 0, limit: int = 100) -> list[tuple[int, Quarantined]]:
        return list(islice(enumerate(self._quarantine[after:], after + 1), limit))

    def stage(self, batch: Batch) -> None:
        assert self._staged is None, "one batch at a time"
        self._staged = batch

    def append(self, batch: Batch) -> None:
        self.stage(batch)
        self.commit()

    def commit(self) -> None:
        batch, self._staged = self._staged, None
        assert batch is not None, "a commit follows its stage"
        for write in batch.writes:
            page = write.page
            if page.number == len(self._pages):
                self._pages.append(page)
                self._data[page.number] = b""
            self._pages[page.number] = page
            self._data[page.number] += write.data
        self._gaps.extend(batch.gaps)
        self._quarantine.extend(batch.quarantined)
        last = self._pages[-1] if self._pages else None
        self._head = Head(
            last,
            b"" if last is None else self._data[last.number],
            batch.position or self._head.position,
            len(self._quarantine),
            self._fold(batch.changes, self._head.digest),
        )

    def _fold(self, changes: tuple[Change, ...], digest: Digest) -> Digest:
        for ordinal, event, start, length in changes:
            target = event.target
            record, before = self._entities.get(target, (None, None))
            after = apply(before, event)
            assert after is not None, "no change is a POST, and all others give a state"
            digest = digest.with_change(target, "" if before is None else before.etag, after.etag)
            patched = event.method is Method.PATCH and after.kind is Kind.PRESENT
            first = ordinal if record is None else record.first_ordinal
            place = (ordinal, event.modified_ms, start, length, patched, first)
            self._entities[target] = EntityRecord(target, after.kind, after.etag, *place), after
        return digest

    def recover(self) -> None:
        """Nothing can have failed."""

    def damaged_pages(self) -> list[Page]:
        return [self._pages[number] for number in sorted(self._damaged)]

    def verify(self, page: Page) -> bool:
        try:
            self._read_checked(page)
        except PageDamaged:
            return False
        return True

    def replace(self, page: Page, data: bytes) -> None:
        if hashlib.sha256(data).hexdigest() != page.sha256:
            raise ValueError(f"these are not the bytes of page {page.number}")
        self._data[page.number] = data
        self._damaged.discard(page.number)

    def rebuild_state(self) -> int:
        before, self._entities = self._entities, {}
        digest = Digest()
        for page in self._pages:
            data = self._read_checked(page) if page.sealed else self._head.data
            digest = self._fold(tuple(page_changes(page, data)), digest)
        for target, (record, entity) in self._entities.items():
            kept = before.get(target, (record, entity))[0]
            if kept.ordinal == record.ordinal:
                self._entities[target] = record._replace(modified_ms=kept.modified_ms), entity
        self._head = replace(self._head, digest=digest)
        return sum(before.get(target) != now for target, now in self._entities.items()) + len(
            before.keys() - self._entities.keys()
        )

    def close(self) -> None:
        """Nothing to let go of."""

    def _read_checked(self, page: Page) -> bytes:
        data = self._data[page.number]
        if hashlib.sha256(data).hexdigest() != page.sha256:
            self._damaged.add(page.number)
            raise PageDamaged(page.number, "memory", "its SHA-256 is not the one recorded")
        return data
