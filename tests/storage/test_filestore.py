"""The file store: recovery, one writer, readers elsewhere, a disk that refuses, other versions."""

from __future__ import annotations

import errno
import sqlite3
from pathlib import Path
from threading import Event, Thread

import pytest

from gateway.core.errors import PageDamaged, StoreFailed, StoreLocked, StoreMismatch
from gateway.core.pages import Batch, Paginator
from gateway.storage.files import OsFiles
from gateway.storage.filestore import FeedStore, StoredFeed
from tests.feeds import batch_of, settings


def fill(store: FeedStore, numbers: range) -> None:
    head = store.head
    store.append(batch_of(Paginator(store.settings, head.page, head.data), numbers))


def pages(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "pages").iterdir()}


def test_a_restart_changes_nothing(tmp_path):
    store = FeedStore(tmp_path, settings())
    fill(store, range(5))
    head, files = store.head, pages(tmp_path)
    store.close()
    store = FeedStore(tmp_path, settings())
    assert store.head == head
    assert pages(tmp_path) == files
    store.close()


def test_bytes_that_were_never_committed_are_cut_off_and_their_files_removed(tmp_path):
    store = FeedStore(tmp_path, settings())
    fill(store, range(5))
    store.close()
    files = pages(tmp_path)
    with (tmp_path / "pages" / "1").open("ab") as file:
        file.write(b"half a part")
    (tmp_path / "pages" / "2").write_bytes(b"a page that never was")
    (tmp_path / "pages" / "0.repair").write_bytes(b"half a repair")
    store = FeedStore(tmp_path, settings())
    assert pages(tmp_path) == files
    fill(store, range(5, 8))
    assert store.damaged_pages() == []
    assert all(store.verify(store.page(number)) for number in range(3))
    store.close()


def test_a_second_writer_is_refused_and_the_first_goes_on(tmp_path):
    store = FeedStore(tmp_path, settings())
    with pytest.raises(StoreLocked, match=r"another process writes to .*--data"):
        FeedStore(tmp_path, settings())
    fill(store, range(2))
    store.close()
    FeedStore(tmp_path, settings()).close()


def test_other_settings_are_refused_with_what_differs(tmp_path):
    FeedStore(tmp_path, settings(events_max=3)).close()
    with pytest.raises(StoreMismatch, match=r"archive_events_max was 3 and is now 4"):
        FeedStore(tmp_path, settings(events_max=4))
    FeedStore(tmp_path, settings(events_max=3)).close()


def test_a_catalogue_of_another_format_is_refused_and_left_alone(tmp_path):
    FeedStore(tmp_path, settings()).close()
    database = sqlite3.connect(tmp_path / "catalogue.sqlite")
    database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(StoreMismatch, match="has format 99, this program reads format 5"):
        FeedStore(tmp_path, settings())


def test_a_reader_elsewhere_sees_batches_whole_and_only_when_it_refreshes(tmp_path):
    store = FeedStore(tmp_path, settings())
    fill(store, range(2))
    reader = StoredFeed(tmp_path)
    assert reader.refresh()
    assert reader.head == store.head
    assert not reader.refresh()
    fill(store, range(2, 9))
    assert reader.head.last_ordinal == 1
    assert reader.refresh()
    assert reader.head == store.head
    assert reader.read(reader.page(0)) == store.read(store.page(0))
    reader.close()
    store.close()


def test_a_reader_elsewhere_keeps_its_head_while_nothing_is_committed(tmp_path):
    store = FeedStore(tmp_path, settings())
    fill(store, range(2))
    reader = StoredFeed(tmp_path)
    assert reader.refresh()
    head = reader.head
    # A connection that was opened in between has another version of the same.
    reader._seen_version = -1
    assert not reader.refresh()
    assert reader.head is head
    reader.close()
    store.close()


def test_a_reader_elsewhere_has_no_bytes_of_a_damaged_open_page(tmp_path):
    store = FeedStore(tmp_path, settings())
    fill(store, range(1))
    reader = StoredFeed(tmp_path)
    reader.refresh()
    page = tmp_path / "pages" / "0"
    fill(store, range(1, 2))
    whole = page.read_bytes()
    page.write_bytes(whole[:-1] + b"?")
    reader.refresh()
    assert reader.head.page == store.head.page
    assert reader.head.data == b""
    page.write_bytes(whole)
    fill(store, range(2, 3))
    reader.refresh()
    assert reader.head == store.head
    reader.close()
    store.close()


def test_the_writer_shows_what_readers_elsewhere_can_see_already(tmp_path):
    store = FeedStore(tmp_path, settings())
    reader = StoredFeed(tmp_path)
    stop = Event()

    def append() -> None:
        number = 0
        while not stop.is_set():
            fill(store, range(number, number + 1))
            number += 1

    thread = Thread(target=append)
    thread.start()
    try:
        for _ in range(300):
            while not reader.refresh():
                pass
            seen = reader.head.next_ordinal
            store.refresh()
            assert store.head.next_ordinal >= seen
    finally:
        stop.set()
        thread.join()
        reader.close()
        store.close()


def test_a_feed_that_was_never_started_cannot_be_read(tmp_path):
    with pytest.raises(sqlite3.OperationalError):
        StoredFeed(tmp_path)


@pytest.mark.parametrize("damage", [b"", b"short", None])
def test_a_sealed_page_of_another_length_is_found_at_the_start(tmp_path, damage):
    store = FeedStore(tmp_path, settings())
    fill(store, range(5))
    data = store.read(store.page(0))
    store.close()
    path = tmp_path / "pages" / "0"
    path.unlink() if damage is None else path.write_bytes(damage)
    store = FeedStore(tmp_path, settings())
    assert [page.number for page in store.damaged_pages()] == [0]
    fill(store, range(5, 6))
    store.replace(store.page(0), data)
    assert store.read(store.page(0)) == data
    store.close()


def test_a_damaged_open_page_takes_no_events_before_it_is_repaired(tmp_path):
    store = FeedStore(tmp_path, settings())
    fill(store, range(2))
    data = store.head.data
    batch = batch_of(Paginator(store.settings, store.head.page, data), range(2, 3))
    store.close()
    (tmp_path / "pages" / "0").write_bytes(b"x" + data[1:])
    store = FeedStore(tmp_path, settings())
    (page,) = store.damaged_pages()
    with pytest.raises(PageDamaged):
        store.append(batch)
    store.replace(page, data)
    assert store.head.data == data
    store.append(batch)
    assert store.head.last_ordinal == 2
    store.close()


class _FailingFile:
    def __init__(self, file, files):
        self._file, self._files = file, files

    def append(self, data):
        if self._files.room is not None:
            written = data[: self._files.room]
            self._file.append(written)
            self._files.room -= len(written)
            if len(written) < len(data):
                raise OSError(errno.ENOSPC, "No space left on device")
        else:
            self._file.append(data)

    def sync(self):
        if self._files.sync_fails:
            raise OSError(errno.EIO, "Input/output error")
        self._file.sync()

    def close(self):
        self._file.close()


class FailingFiles(OsFiles):
    """A disk that runs full after `room` bytes, or whose sync fails."""

    def __init__(self) -> None:
        self.room: int | None = None
        self.sync_fails = False

    def open_append(self, path):
        return _FailingFile(super().open_append(path), self)


@pytest.mark.parametrize("room", [0, 1, 300, 900])
def test_a_full_disk_acknowledges_nothing_serves_on_and_goes_on_when_there_is_room(tmp_path, room):
    files = FailingFiles()
    store = FeedStore(tmp_path, settings(), files=files)
    fill(store, range(4))
    head, sealed = store.head, store.read(store.page(0))
    files.room = room
    with pytest.raises(StoreFailed, match=r"No space left on device.*make room"):
        fill(store, range(4, 9))
    assert store.head is head
    assert store.read(store.page(0)) == sealed
    with pytest.raises(StoreFailed, match="failed before"):
        store.append(Batch())
    files.room = None
    store.recover()
    assert store.head == head
    fill(store, range(4, 9))
    twin = FeedStore(tmp_path / "twin", settings())
    fill(twin, range(9))
    assert pages(tmp_path) == pages(tmp_path / "twin")
    twin.close()
    store.close()


def test_a_failed_sync_is_never_tried_again_without_recovery(tmp_path):
    files = FailingFiles()
    store = FeedStore(tmp_path, settings(), files=files)
    fill(store, range(1))
    files.sync_fails = True
    with pytest.raises(StoreFailed, match="Input/output error"):
        fill(store, range(1, 2))
    files.sync_fails = False
    with pytest.raises(StoreFailed, match="failed before"):
        fill(store, range(1, 2))
    store.recover()
    assert store.head.last_ordinal == 0
    fill(store, range(1, 3))
    assert store.head.last_ordinal == 2
    store.close()


def test_a_catalogue_that_refuses_leaves_no_trace_of_the_batch(tmp_path):
    store = FeedStore(tmp_path, settings())
    fill(store, range(2))
    blocker = sqlite3.connect(tmp_path / "catalogue.sqlite", isolation_level=None)
    blocker.execute("CREATE TRIGGER refuse BEFORE INSERT ON pages BEGIN SELECT RAISE(ABORT, 'refused'); END")
    with pytest.raises(StoreFailed, match="refused"):
        fill(store, range(2, 6))
    blocker.execute("DROP TRIGGER refuse")
    blocker.close()
    store.recover()
    assert store.head.last_ordinal == 1
    fill(store, range(2, 6))
    assert store.head.last_ordinal == 5
    store.close()


def test_what_was_staged_and_not_committed_is_gone_after_a_restart(tmp_path):
    store = FeedStore(tmp_path, settings())
    fill(store, range(3))
    head, files = store.head, pages(tmp_path)
    store.stage(batch_of(Paginator(store.settings, head.page, head.data), range(3, 12)))
    assert len(pages(tmp_path)) > len(files)
    store.close()
    store = FeedStore(tmp_path, settings())
    assert store.head == head
    assert pages(tmp_path) == files
    fill(store, range(3, 12))
    assert store.head.next_ordinal == 12
    store.close()
