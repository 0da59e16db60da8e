"""A stored feed on disk: a folder of page files beside one catalogue.

    {folder}/lock            held by the writer
    {folder}/catalogue.sqlite
    {folder}/pages/{number}  the documents, closing delimiter included once sealed

`StoredFeed` reads, in any process; `FeedStore` is the one writer. Nothing is deleted to recover: the open
page's file is cut back to its committed length, and a file behind it, of a batch that was never
committed, is removed.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from threading import Lock

from gateway.core.errors import DecodeError, PageDamaged, StoreFailed, StoreMismatch
from gateway.core.multipart import read_event
from gateway.core.pages import (
    Batch,
    Change,
    FeedSettings,
    Gap,
    Page,
    PageWrite,
    Quarantined,
    page_changes,
)
from gateway.core.state import Digest, Entity, apply

from .catalogue import Catalogue
from .contract import Head
from .entities import Folded, without_body
from .files import AppendFile, Files, FolderLock, OsFiles
from .records import EntityRecord, started_in

CATALOGUE = "catalogue.sqlite"
PAGES = "pages"
NEW_TARGETS_MAX = 20_000
"""That the writer remembers between two counts of shared targets; beyond them, it looks at all."""


def feed_folder(data: Path, log: str, partition: str) -> Path:
    """Where the feed of a partition lives in a data folder."""
    return data / "feeds" / log / partition


class StoredFeed:
    """A reader of a feed on disk, in whatever process the writer is; see FeedReader for the contract.

    `refresh` learns what the writer has committed since.
    """

    def __init__(self, folder: Path, *, files: Files | None = None) -> None:
        self._folder = folder
        self._pages = folder / PAGES
        self._files = files or OsFiles()
        self._catalogue = Catalogue(folder / CATALOGUE, writable=False)
        # What may block runs in threads, beside those who must see each commit at once.
        self._aside = Catalogue(folder / CATALOGUE, writable=False)
        self._using_aside = Lock()
        settings = self._catalogue.settings()
        if settings is None:
            raise StoreMismatch(f"{folder} is a feed that was never started: run the gateway on it first")
        self._settings = settings
        self._head = Head()
        self._hash = hashlib.sha256()
        self._seen_version = -1

    @property
    def settings(self) -> FeedSettings:
        return self._settings

    @property
    def head(self) -> Head:
        return self._head

    def refresh(self) -> bool:
        version = self._catalogue.data_version()
        if version == self._seen_version:
            return False
        before = self._head
        page, position, quarantined, digest = self._catalogue.head()
        self._head = Head(page, self._open_bytes(page), position, quarantined, digest)
        self._seen_version = version
        if self._head == before:
            # What the version told of was there already when the head was read the last time.
            self._head = before
            return False
        return True

    def page(self, number: int) -> Page | None:
        return self._catalogue.page(number)

    def page_of(self, ordinal: int) -> Page | None:
        if not 0 <= ordinal < self._head.next_ordinal:
            return None
        return self._catalogue.page_of(ordinal)

    def page_since(self, time_ms: int) -> Page | None:
        return self._catalogue.page_since(time_ms)

    def read(self, page: Page) -> bytes:
        assert page.sealed, "an open page is read from the head"
        return self._read_checked(page)

    def entity(self, target: str) -> EntityRecord | None:
        return self._catalogue.entity(target)

    def targets_from(self, start: int, end: int, after: str, limit: int) -> list[str]:
        with self._using_aside:
            return self._aside.targets_from(start, end, after, limit)

    def first_ordinals(self, targets: Sequence[str]) -> list[tuple[str, int]]:
        with self._using_aside:
            return self._aside.first_ordinals(targets)

    def representation(self, record: EntityRecord) -> Entity | None:
        without = without_body(record)
        if without is not None:
            return without
        with self._using_aside:
            if record.patched:
                return self._aside.patched(record)
            number = self._aside.page_number_of(record.ordinal)
        return self._published(record, number)

    def _published(self, record: EntityRecord, number: int) -> Entity:
        """The entity that a PUT in the page of that number made; raises PageDamaged."""
        path = self._path(number)
        try:
            event = read_event(self._files.read(path, record.start, record.length))
        except (OSError, DecodeError) as error:
            raise PageDamaged(number, str(path), f"an event in it cannot be read: {error}") from error
        entity = apply(None, event)
        if entity is None or entity.etag != record.etag:
            raise PageDamaged(number, str(path), f"the event {record.ordinal} is not what was written")
        return entity

    def gaps(self) -> list[Gap]:
        return self._catalogue.gaps()

    def quarantine(self, after: int = 0, limit: int = 100) -> list[tuple[int, Quarantined]]:
        return self._catalogue.quarantine(after, limit)

    def close(self) -> None:
        """Let go of the catalogue."""
        self._catalogue.close()
        self._aside.close()

    def _path(self, number: int) -> Path:
        return self._pages / str(number)

    def _open_bytes(self, page: Page | None) -> bytes:
        """The open page's bytes, none if they are damaged; only what is new to this reader is read."""
        if page is None:
            return b""
        known, data = self._head.page, self._head.data
        if known is None or known.number != page.number or not data:
            data = b""
            self._hash = hashlib.sha256()
        try:
            new = self._files.read(self._path(page.number), len(data), page.length - len(data))
        except OSError:
            return b""
        self._hash.update(new)
        return data + new if self._hash.hexdigest() == page.sha256 else b""

    def _read_checked(self, page: Page) -> bytes:
        path = self._path(page.number)
        try:
            data = self._files.read(path, 0, page.length + 1 if page.sealed else page.length)
        except OSError as error:
            raise PageDamaged(page.number, str(path), f"it cannot be read: {error}") from error
        if len(data) != page.length:
            what = f"it has {len(data)} bytes or more, {page.length} were written"
            raise PageDamaged(page.number, str(path), what)
        if hashlib.sha256(data).hexdigest() != page.sha256:
            raise PageDamaged(page.number, str(path), "its SHA-256 is not the one recorded")
        return data


class FeedStore(StoredFeed):
    """The one writer of a feed on disk; see FeedWriter for the contract.

    Raises StoreLocked, StoreMismatch, and StoreFailed. A damaged open page does not keep the store from
    opening: `damaged_pages` names it first, and `append` waits for its repair.
    """

    def __init__(self, folder: Path, settings: FeedSettings, *, files: Files | None = None) -> None:
        files = files or OsFiles()
        with _disk_errors(folder):
            files.make_folder(folder / PAGES)
            self._lock = FolderLock(folder)
        self._log: Catalogue | None = None
        self._file: AppendFile | None = None
        self._failed = False
        self._staged: tuple[Batch, Folded] | None = None
        self._full: list[AppendFile] = []
        """Files of full pages, written and not yet synced."""
        self._dirty = False
        """Whether the open page's file is written and not yet synced."""
        self._named = True
        """Whether the names of all page files are synced."""
        self._damaged: set[int] = set()
        self._advancing = Lock()
        self._new: list[tuple[str, bytes]] = []
        """The newest targets and their first records: all of those from `_new_from` on."""
        self._new_from = 0
        try:
            with _disk_errors(folder):
                self._log = Catalogue(folder / CATALOGUE, writable=True)
                self._adopt_settings(self._log, folder, settings)
                super().__init__(folder, files=files)
            self.recover()
            self._new_from = self._head.next_ordinal
        except BaseException:
            self._release()
            raise

    def refresh(self) -> bool:
        """Wait for the moment in which a commit can be seen in other processes and not yet in this one."""
        version = self._catalogue.data_version()
        if version == self._seen_version:
            return False
        before = self._head
        with self._advancing:
            self._seen_version = version
        return self._head is not before

    def append(self, batch: Batch) -> None:
        self.stage(batch)
        self.commit()

    def stage(self, batch: Batch) -> None:
        assert self._log is not None
        assert self._staged is None, "one batch at a time"
        if self._failed:
            raise StoreFailed(f"{self._folder} failed before: open it anew")
        if self._head.page is not None and self._head.page.number in self._damaged:
            raise PageDamaged(self._head.page.number, str(self._folder), "it must be repaired first")
        # A failed sync must not be tried again: the kernel may call pages clean that never reached the disk.
        self._failed = True
        with _disk_errors(self._folder):
            try:
                folded = self._log.stage(batch, partial(self._base, self._log), self._head.digest)
            except PageDamaged:
                self._failed = False
                raise
            self._write_pages(batch.writes)
        self._staged = batch, folded

    def commit(self) -> None:
        staged, self._staged = self._staged, None
        assert self._log is not None
        assert staged is not None, "a commit follows its stage"
        batch, folded = staged
        with _disk_errors(self._folder):
            self._sync_pages()
            with self._advancing:
                self._log.commit()
                self._failed = False
                self._advance(batch, folded.digest)
                self._remember_new(folded.new)

    def recover(self) -> None:
        # The connection goes too: what it believes of a failed transaction is not to be trusted.
        with _disk_errors(self._folder):
            self._let_go()
            self._damaged.clear()
            self._log = Catalogue(self._folder / CATALOGUE, writable=True)
            self._recover(self._log)
        self._failed = False

    def damaged_pages(self) -> list[Page]:
        # As they are committed now: an open page may have grown since its damage was found.
        pages = [self.page(number) for number in sorted(self._damaged)]
        return [page for page in pages if page is not None]

    def verify(self, page: Page) -> bool:
        try:
            self._read_checked(page)
        except PageDamaged:
            return False
        return True

    def replace(self, page: Page, data: bytes) -> None:
        if len(data) != page.length or hashlib.sha256(data).hexdigest() != page.sha256:
            raise ValueError(f"these are not the bytes of page {page.number}")
        temporary = self._pages / f"{page.number}.repair"
        with _disk_errors(self._folder):
            with suppress(FileNotFoundError):
                self._files.remove(temporary)
            file = self._files.open_append(temporary)
            try:
                file.append(data)
                file.sync()
            finally:
                file.close()
            self._files.rename(temporary, self._path(page.number))
            self._files.sync_folder(self._pages)
        self._damaged.discard(page.number)
        if not page.sealed:
            self._open_file(page, data)

    def targets_from(self, start: int, end: int, after: str, limit: int) -> list[str]:
        with self._advancing:
            if start >= self._new_from:
                # Nobody asks for what was counted.
                self._new = list(started_in(self._new, start))
                self._new_from = start
                found = started_in(self._new, start, end)
                return sorted(target for target, _ in found if target > after)[:limit]
        return super().targets_from(start, end, after, limit)

    def _remember_new(self, new: dict[str, bytes]) -> None:
        self._new += new.items()
        if len(self._new) > NEW_TARGETS_MAX:
            self._new.clear()
            self._new_from = self._head.next_ordinal

    def rebuild_state(self) -> int:
        assert self._log is not None
        log = self._log
        with _disk_errors(self._folder):
            wrong, digest = log.rebuild_state(self._all_changes(), partial(self._base, log))
        self._head = replace(self._head, digest=digest)
        return wrong

    def close(self) -> None:
        super().close()
        self._release()

    @staticmethod
    def _adopt_settings(log: Catalogue, folder: Path, settings: FeedSettings) -> None:
        kept = log.settings()
        if kept is None:
            log.keep_settings(settings)
            return
        differing = [
            f"{field.name} was {getattr(kept, field.name)!r} and is now {getattr(settings, field.name)!r}"
            for field in fields(FeedSettings)
            if getattr(kept, field.name) != getattr(settings, field.name)
        ]
        if differing:
            raise StoreMismatch(
                f"{folder} holds a feed with other settings: {'; '.join(differing)}. Pages never change:"
                " use the old settings, or another --data folder, which fills from the event log"
            )

    def _recover(self, log: Catalogue) -> None:
        page, position, quarantined, digest = log.head()
        self._head = Head(page, b"", position, quarantined, digest)
        sizes = self._files.sizes(self._pages)
        last = -1 if page is None else page.number
        for name in sizes:
            if not name.isdigit() or int(name) > last:
                self._files.remove(self._pages / name)
        for number, length in log.sealed_pages():
            if sizes.get(str(number)) != length:
                self._damaged.add(number)
        if page is not None and not page.sealed:
            with suppress(PageDamaged):
                data = self._read_checked(page)
                if sizes[str(page.number)] > page.length:
                    self._files.truncate(self._path(page.number), page.length)
                self._open_file(page, data)

    def _published(self, record: EntityRecord, number: int) -> Entity:
        try:
            return super()._published(record, number)
        except PageDamaged:
            self._damaged.add(number)
            raise

    def _read_checked(self, page: Page) -> bytes:
        """Whoever finds a page damaged, it is remembered."""
        try:
            return super()._read_checked(page)
        except PageDamaged:
            self._damaged.add(page.number)
            raise

    def _open_file(self, page: Page, data: bytes) -> None:
        if self._file is not None:
            self._file.close()
        self._file = self._files.open_append(self._path(page.number))
        self._head = replace(self._head, page=page, data=data)

    def _all_changes(self) -> Iterator[Sequence[Change]]:
        """The changes of every page in turn; raises PageDamaged."""
        last = -1 if self._head.page is None else self._head.page.number
        for number in range(last + 1):
            page = self.page(number)
            assert page is not None, "page numbers have no holes"
            yield list(page_changes(page, self._read_checked(page)))

    def _base(self, log: Catalogue, record: EntityRecord) -> Entity:
        entity = without_body(record)
        if entity is None and record.patched:
            entity = log.patched(record)
            assert entity is not None, "nothing changes while the one writer looks"
        return entity or self._published(record, log.page_number_of(record.ordinal))

    def _write_pages(self, writes: tuple[PageWrite, ...]) -> None:
        for write in writes:
            if self._file is None:
                self._file = self._files.open_append(self._path(write.page.number))
                self._named = False
            self._file.append(write.data)
            if write.page.sealed:
                self._full.append(self._file)
                self._file = None
        self._dirty = self._file is not None and bool(writes)

    def _sync_pages(self) -> None:
        while self._full:
            self._full[-1].sync()
            self._full.pop().close()
        if self._dirty:
            assert self._file is not None
            self._file.sync()
            self._dirty = False
        if not self._named:
            self._files.sync_folder(self._pages)
            self._named = True

    def _advance(self, batch: Batch, digest: Digest) -> None:
        page, data = self._head.page, self._head.data
        for write in batch.writes:
            if page is None or page.number != write.page.number:
                data = b""
            page, data = write.page, data + write.data
        self._head = Head(
            page,
            data,
            batch.position or self._head.position,
            self._head.quarantined + len(batch.quarantined),
            digest,
        )

    def _release(self) -> None:
        self._let_go()
        self._lock.release()

    def _let_go(self) -> None:
        self._staged = None
        self._dirty, self._named = False, True
        while self._full:
            self._full.pop().close()
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._log is not None:
            self._log.close()
            self._log = None


@contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    """What the disk refuses, as StoreFailed with a text that says what to do."""
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        raise StoreFailed(
            f"cannot write to {folder}: {error}. Nothing of it was acknowledged; make room or mend the disk,"
            " and the gateway goes on by itself"
        ) from error
