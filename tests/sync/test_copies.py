"""Copies in one SQLite file and in a folder: one contract, and what each does in its own way."""

import json
import random
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, unquote_to_bytes

import pytest

from gateway.core.event import Event, Method
from gateway.core.state import UNKNOWN_ETAG, Digest, Kind, apply, etag_of, term
from gateway.sync.copy import CopyFailed, CopyLocked, CopyMismatch, Fetched, Source
from gateway.sync.feed import FeedBroken, FeedEvent
from gateway.sync.file_names import NAME_BYTES_MAX, file_name
from gateway.sync.folder_copy import FolderCopy
from gateway.sync.sqlite_copy import SqliteCopy

SOURCE = Source("http://feeds.example.org/feeds/events", "events")
URL = "http://feeds.example.org/feeds/events/0/latest"
GENERATION = "0123456789abcdef"
MERGE = "application/merge-patch+json"
DATE = "Tue, 14 Nov 2023 22:13:20 GMT"


def feed_event(ordinal, method, target, body=b"", content_type="application/json", *, ours=True, headers=()):
    content_id = f"<{ordinal}.{GENERATION}@0.events.example.org>" if ours else f"<e{ordinal}@example.org>"
    return FeedEvent(
        method,
        target,
        content_type if body else None,
        body,
        DATE,
        tuple(headers),
        content_id,
        f"/feeds/events/0/events/{ordinal}",
        ordinal if ours else None,
        URL,
        f"http-equiv={method}" if method else "other=thing",
    )


def put(ordinal, target, body, **more):
    return feed_event(ordinal, Method.PUT, target, body, **more)


def delete(ordinal, target, **more):
    return feed_event(ordinal, Method.DELETE, target, **more)


def patch(ordinal, target, body, content_type=MERGE, **more):
    return feed_event(ordinal, Method.PATCH, target, body, content_type, **more)


class Sqlite:
    name = "sqlite"

    def __init__(self, folder):
        self.place = folder / "copy.sqlite"
        self.database = self.place

    def open(self):
        return SqliteCopy(self.place)

    def bodies(self, partition="0"):
        """What a reader finds: the body of each target that is present."""
        with sqlite3.connect(self.database) as db:
            query = "SELECT target, body FROM entities WHERE partition = ? AND state = 'present'"
            found = dict(db.execute(query, (partition,)))
        db.close()
        return found

    def rows(self, columns="target, state, content_type, etag, last_modified, ordinal", table="entities"):
        with sqlite3.connect(self.database) as db:
            found = db.execute(f"SELECT {columns} FROM {table} ORDER BY 1").fetchall()  # noqa: S608
        db.close()
        return found


class Folder(Sqlite):
    name = "folder"

    def __init__(self, folder):
        self.place = folder / "copy"
        self.database = self.place / ".wes" / "copy.sqlite"

    def open(self):
        return FolderCopy(self.place)

    def bodies(self, partition="0"):
        folder = self.place / partition
        files = [path for path in folder.iterdir() if not path.name.startswith(".")]
        return {unquote(path.name): path.read_bytes() for path in files}


@pytest.fixture(params=[Sqlite, Folder], ids=lambda kind: kind.name)
def kind(request, tmp_path):
    return request.param(tmp_path)


def opened(kind):
    copy = kind.open()
    copy.bind(SOURCE)
    copy.begin("0", URL)
    return copy


def replayed(events):
    """The entities that the events make, one after the other."""
    entities = {}
    for event in events:
        if event.method is not None:
            told = Event(event.method, event.target, event.content_type, event.body)
            entity = apply(entities.get(event.target), told)
            if entity is not None:
                entities[event.target] = entity
    return entities


def digest_of(entities):
    kept = {target: entity for target, entity in entities.items() if entity.kind is not Kind.DELETED}
    total = sum(term(target, entity.etag) for target, entity in kept.items())
    return Digest(len(kept), total % 2**256)


def present(entities):
    return {t: entity.body for t, entity in entities.items() if entity.kind is Kind.PRESENT}


# The contract


def test_what_is_applied_is_there_with_type_time_and_ordinal(kind):
    copy = opened(kind)
    copy.apply("0", [put(0, "/a", b'{"a":1}'), put(1, "/b", b"text", content_type="text/plain")])
    assert kind.bodies() == {"/a": b'{"a":1}', "/b": b"text"}
    assert kind.rows() == [
        ("/a", "present", "application/json", etag_of("application/json", b'{"a":1}'), DATE, 0),
        ("/b", "present", "text/plain", etag_of("text/plain", b"text"), DATE, 1),
    ]
    checkpoint = copy.checkpoint("0")
    assert checkpoint.position == (f"<1.{GENERATION}@0.events.example.org>", "/feeds/events/0/events/1")
    assert (checkpoint.ordinal, checkpoint.events, checkpoint.generation) == (1, 2, GENERATION)
    copy.close()


def test_a_deleted_target_keeps_its_row_without_a_body_and_does_not_count(kind):
    copy = opened(kind)
    copy.apply("0", [put(0, "/a", b"1"), put(1, "/b", b"2")])
    copy.apply("0", [delete(2, "/a"), delete(3, "/never-seen")])
    assert kind.bodies() == {"/b": b"2"}
    assert kind.rows("target, state, body, etag") == [
        ("/a", "deleted", None, None),
        ("/b", "present", b"2" if kind.name == "sqlite" else None, etag_of("application/json", b"2")),
        ("/never-seen", "deleted", None, None),
    ]
    assert copy.checkpoint("0").digest == Digest(1, term("/b", etag_of("application/json", b"2")))
    copy.close()


def test_post_and_other_families_move_the_checkpoint_and_nothing_else(kind):
    copy = opened(kind)
    copy.apply("0", [feed_event(0, Method.POST, "/a", b"1"), feed_event(1, None, "/b", b"2")])
    assert kind.rows() == []
    assert copy.checkpoint("0").ordinal == 1
    assert copy.checkpoint("0").digest == Digest()
    copy.close()


def test_patches_are_applied_to_what_is_there_in_the_document_and_before_it(kind):
    copy = opened(kind)
    copy.apply("0", [put(0, "/a", b'{"n":1.10}'), patch(1, "/a", b'{"x":true}')])
    assert kind.bodies() == {"/a": b'{"n":1.10,"x":true}'}
    copy.apply("0", [patch(2, "/a", b'{"x":null,"y":[]}'), patch(3, "/new", b'{"z":1}')])
    assert kind.bodies() == {"/a": b'{"n":1.10,"y":[]}', "/new": b'{"z":1}'}
    copy.apply("0", [patch(4, "/a", b"+", content_type="text/x-diff")])
    assert kind.bodies() == {"/new": b'{"z":1}'}
    assert kind.rows("target, state, etag")[0] == ("/a", "unknown", UNKNOWN_ETAG)
    copy.apply("0", [patch(5, "/a", b'{"x":1}')])
    assert kind.rows("target, state")[0] == ("/a", "unknown")
    copy.apply("0", [put(6, "/a", b"9")])
    assert kind.bodies() == {"/a": b"9", "/new": b'{"z":1}'}
    copy.close()


def test_any_events_in_any_cut_give_what_a_replay_gives_and_its_digest(kind):
    chance = random.Random(7)
    bodies = [b'{"a":1}', b"[]", b'{"a":{"b":2}}', b"text", b""]
    patches = [(b'{"a":2}', MERGE), (b'[{"op":"remove","path":"/a"}]', "application/json-patch+json")]
    patches.append((b"?", "text/x-diff"))
    events = []
    for ordinal in range(400):
        target = f"/t/{chance.randrange(25)}"
        kindly = chance.random()
        if kindly < 0.5:
            events.append(put(ordinal, target, chance.choice(bodies)))
        elif kindly < 0.6:
            events.append(delete(ordinal, target))
        elif kindly < 0.7:
            events.append(feed_event(ordinal, Method.POST, target, b"1"))
        else:
            events.append(patch(ordinal, target, *chance.choice(patches)))
    copy = opened(kind)
    start = 0
    while start < len(events):
        end = start + chance.randrange(1, 40)
        copy.apply("0", events[start:end])
        start = end
        if chance.random() < 0.2:
            copy.close()
            copy = opened(kind)
    expected = replayed(events)
    assert copy.checkpoint("0").digest == digest_of(expected)
    assert kind.bodies() == present(expected)
    states = {"present": Kind.PRESENT, "deleted": Kind.DELETED, "unknown": Kind.UNKNOWN}
    found = {target: (states[state], etag or "") for target, state, etag in kind.rows("target, state, etag")}
    assert found == {target: (entity.kind, entity.etag) for target, entity in expected.items()}
    stored = {entry.target: entry.etag for entry in copy.stored("0")}
    assert stored == {t: entity.etag for t, entity in expected.items() if entity.etag}
    copy.close()


def test_partitions_are_apart_even_for_one_target(kind):
    copy = opened(kind)
    copy.begin("1", URL.replace("/0/", "/1/"))
    copy.apply("0", [put(0, "/a", b"0")])
    copy.apply("1", [put(0, "/a", b"1")])
    copy.apply("0", [delete(1, "/a")])
    assert (kind.bodies("0"), kind.bodies("1")) == ({}, {"/a": b"1"})
    assert copy.partitions() == ["0", "1"]
    copy.close()


def test_a_copy_goes_on_where_it_was_closed(kind):
    copy = opened(kind)
    copy.apply("0", [put(0, "/a", b"1"), put(1, "/b", b"2")])
    before = copy.checkpoint("0")
    copy.close()
    copy = opened(kind)
    assert copy.checkpoint("0") == before
    copy.apply("0", [put(2, "/c", b"3")])
    assert kind.bodies() == {"/a": b"1", "/b": b"2", "/c": b"3"}
    copy.close()


def test_events_that_fail_half_way_leave_no_trace(kind):
    copy = opened(kind)
    copy.apply("0", [put(0, "/a", b"1")])
    before = copy.checkpoint("0")
    with pytest.raises(CopyFailed):
        copy.apply("0", [put(1, "/a", b"2"), put(2, "/b", b"3")._replace(last_modified=object())])
    assert copy.checkpoint("0") == before
    copy.apply("0", [put(1, "/c", b"3")])
    assert kind.bodies() == {"/a": b"1", "/c": b"3"}
    copy.close()


def test_events_that_do_not_follow_are_refused(kind):
    copy = opened(kind)
    copy.apply("0", [put(0, "/a", b"1")])
    for ordinal in (0, 2):
        with pytest.raises(FeedBroken, match=f"goes on with event {ordinal} behind event 0"):
            copy.apply("0", [put(ordinal, "/a", b"2")])
    assert kind.bodies() == {"/a": b"1"}
    copy.close()


def test_a_password_is_not_kept(kind):
    copy = kind.open()
    copy.bind(SOURCE._replace(url="http://me:secret@feeds.example.org/feeds/events"))
    copy.begin("0", URL.replace("//", "//me:secret@"))
    assert copy.checkpoint("0").url == URL
    copy.bind(SOURCE)
    copy.close()
    assert b"secret" not in kind.database.read_bytes()


def test_a_second_writer_is_refused_and_told(kind):
    copy = opened(kind)
    with pytest.raises(CopyLocked, match=r"this process writes to .* already"):
        kind.open()
    assert ran(OPENED, kind.database) == "another process writes to"
    copy.close()
    assert ran(OPENED, kind.database) == ""
    kind.open().close()


def test_a_second_writer_in_one_process_takes_no_lock_from_the_first(kind):
    copy = opened(kind)
    copy.apply("0", [put(0, "/a", b"1")])
    for _ in range(2):
        with pytest.raises(CopyLocked):
            kind.open()
    # Were the locks of SQLite gone, this would remove the log of writes that the copy goes on with.
    assert ran(READ, kind.database) == "1"
    copy.apply("0", [put(1, "/b", b"2")])
    assert ran(READ, kind.database) == "2"
    copy.close()
    assert kind.bodies() == {"/a": b"1", "/b": b"2"}


OPENED = """
import sys
from pathlib import Path
from gateway.sync.copy import CopyLocked
from gateway.sync.sqlite_copy import SqliteCopy
try:
    SqliteCopy(Path(sys.argv[1])).close()
except CopyLocked as error:
    print(str(error).partition(" /")[0])
"""
READ = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1])
print(*db.execute("SELECT events FROM feeds").fetchone())
db.close()
"""


def ran(script, path):
    """What a script that is given `path` prints."""
    command = [sys.executable, "-c", script, str(path)]
    folder = Path(__file__).parents[2]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=True, timeout=60
    ).stdout.strip()


@pytest.mark.parametrize("digest", ["no digest", "", "F" * 64, "0" * 63, "-" + "0" * 63, None])
def test_a_copy_with_a_digest_that_is_none_is_refused_and_left_alone(kind, digest):
    opened(kind).close()

    def set_digest(value):
        with sqlite3.connect(kind.database) as db:
            db.execute("UPDATE feeds SET digest = ?", (value,))
        db.close()

    whole = kind.rows("digest", "feeds")[0][0]
    set_digest(b"\xff" if digest is None else digest)
    for _ in range(2):
        with pytest.raises(CopyMismatch, match="no digest of partition 0: delete the copy and make it again"):
            kind.open()
    set_digest(whole)
    kind.open().close()


def test_a_copy_of_another_url_is_refused_unless_it_has_moved(kind):
    opened(kind).close()
    elsewhere = Source("http://other.example.org/feeds/events", "events")
    copy = kind.open()
    with pytest.raises(CopyMismatch, match=r"a copy of http://feeds\.example\.org/feeds/events, not of"):
        copy.bind(elsewhere)
    copy.bind(elsewhere, moved=True)
    copy.begin("0", "http://other.example.org/feeds/events/0/latest")
    assert copy.checkpoint("0").url.startswith("http://other.example.org/")
    with pytest.raises(CopyMismatch, match="the log events, not of the log orders"):
        copy.bind(Source("http://other.example.org/feeds/orders", "orders"), moved=True)
    copy.close()


# Starting over


def test_the_old_copy_is_readable_until_the_new_one_takes_its_place_at_once(kind):
    copy = opened(kind)
    copy.apply("0", [put(0, "/a", b"old"), put(1, "/b", b"old"), put(2, "/same", b"same")])
    old = copy.checkpoint("0")
    copy.start_over("0", "another generation")
    assert copy.checkpoint("0").position is None
    assert copy.starting_over("0")
    copy.apply("0", [put(0, "/a", b"{}"), put(1, "/same", b"same")])
    copy.apply("0", [patch(2, "/a", b'{"new":1}'), put(3, "/c", b"new")])
    assert kind.bodies() == {"/a": b"old", "/b": b"old", "/same": b"same"}
    assert kind.rows("partition, ordinal, content_id", "feeds") == [("0", 2, old.content_id)]
    copy.complete("0")
    assert kind.bodies() == {"/a": b'{"new":1}', "/c": b"new", "/same": b"same"}
    assert kind.rows("partition, ordinal", "feeds") == [("0", 3)]
    assert kind.rows("target", "next_entities") == kind.rows("partition", "next_feeds") == []
    assert not copy.starting_over("0")
    expected = replayed([put(0, "/a", b'{"new":1}'), put(1, "/same", b"same"), put(2, "/c", b"new")])
    assert copy.checkpoint("0").digest == digest_of(expected)
    copy.apply("0", [delete(4, "/c")])
    assert kind.bodies() == {"/a": b'{"new":1}', "/same": b"same"}
    copy.close()


def test_a_start_over_goes_on_after_the_copy_was_closed_and_begins_anew_when_told_again(kind):
    copy = opened(kind)
    copy.apply("0", [put(0, "/a", b"old")])
    copy.start_over("0", "gone")
    copy.apply("0", [put(0, "/x", b"first try")])
    copy.close()
    copy = opened(kind)
    assert copy.starting_over("0")
    assert copy.checkpoint("0").ordinal == 0
    copy.start_over("0", "gone again")
    copy.apply("0", [put(0, "/y", b"second try")])
    assert kind.bodies() == {"/a": b"old"}
    copy.complete("0")
    assert kind.bodies() == {"/y": b"second try"}
    copy.close()


# Targets of other servers that only the server can tell


def test_a_state_that_the_feed_does_not_tell_is_kept_as_the_server_tells_it(kind):
    copy = opened(kind)
    copy.apply("0", [put(0, "/a", b"one", ours=False), patch(1, "/a", b"?", "text/x-diff", ours=False)])
    assert copy.unresolved("0") == [("/a", None)]
    copy.resolve("0", "/a", Fetched("text/plain", b"told", (("Content-Language", "en"),), '"v2"'))
    assert copy.unresolved("0") == []
    assert kind.bodies() == {"/a": b"told"}
    etag = etag_of("text/plain", b"told")
    assert kind.rows("target, etag, server_etag") == [("/a", etag, '"v2"')]
    assert copy.checkpoint("0").digest == Digest(1, term("/a", etag))
    copy.close()


def test_what_a_server_told_is_not_patched_but_asked_for_again_with_its_etag(kind):
    copy = opened(kind)
    copy.apply("0", [put(0, "/a", b"{}", ours=False), patch(1, "/a", b"?", "text/x-diff", ours=False)])
    copy.resolve("0", "/a", Fetched("application/json", b'{"v":2}', etag='"v2"'))
    # The server's answer may have held this change already.
    copy.apply("0", [patch(2, "/a", b'{"w":1}', ours=False)])
    assert copy.unresolved("0") == [("/a", '"v2"')]
    assert kind.bodies() == {}
    copy.close()
    copy = opened(kind)
    copy.resolve("0", "/a", None)
    assert kind.bodies() == {"/a": b'{"v":2}'}
    # Still the server's word.
    copy.apply("0", [patch(3, "/a", b'{"w":1}', ours=False)])
    copy.resolve("0", "/a", Fetched(gone=True))
    assert kind.rows("target, state") == [("/a", "deleted")]
    assert copy.checkpoint("0").digest == Digest()
    copy.apply("0", [put(4, "/a", b"{}", ours=False), patch(5, "/a", b'{"w":1}', ours=False)])
    assert kind.bodies() == {"/a": b'{"w":1}'}
    copy.close()


def test_the_etag_of_an_event_is_asked_with(kind):
    copy = opened(kind)
    headers = [("ETag", '"v1"')]
    copy.apply("0", [put(0, "/a", b"one", ours=False, headers=headers)])
    copy.apply("0", [patch(1, "/a", b"?", "text/x-diff", ours=False)])
    assert copy.unresolved("0") == [("/a", '"v1"')]
    copy.resolve("0", "/a", None)
    assert kind.bodies() == {"/a": b"one"}
    assert json.loads(kind.rows("extra_headers")[0][0]) == [["ETag", '"v1"']]
    copy.close()


def test_on_our_servers_an_unknown_entity_keeps_nothing(kind):
    copy = opened(kind)
    copy.apply("0", [put(0, "/a", b"one", headers=[("ETag", '"v1"')])])
    copy.apply("0", [patch(1, "/a", b"?", "text/x-diff")])
    assert kind.rows("target, body, server_etag") == [("/a", None, None)]
    copy.close()


# One file


def test_a_reader_of_the_file_sees_whole_documents_while_it_grows(tmp_path):
    kind = Sqlite(tmp_path)
    copy = opened(kind)
    reader = sqlite3.connect(f"file:{kind.place}?mode=ro", uri=True)
    for number in range(20):
        copy.apply("0", [put(2 * number, "/a", b"%d" % number), put(2 * number + 1, "/b", b"%d" % number)])
        ordinal, bodies = reader.execute(
            "SELECT ordinal, (SELECT group_concat(body) FROM entities) FROM feeds"
        ).fetchone()
        assert (ordinal, bodies) == (2 * number + 1, f"{number},{number}")
    reader.close()
    copy.close()


def test_nothing_but_the_file_is_left(tmp_path):
    kind = Sqlite(tmp_path)
    copy = opened(kind)
    copy.apply("0", [put(0, "/a", b"1")])
    copy.close()
    assert [path.name for path in tmp_path.iterdir()] == ["copy.sqlite"]


@pytest.mark.parametrize("content", [b"some text, longer than a header of SQLite " * 9, None])
def test_a_file_that_is_no_copy_is_refused_and_not_touched(tmp_path, content):
    path = tmp_path / "mine.sqlite"
    if content is None:
        with sqlite3.connect(path) as db:
            db.execute("CREATE TABLE mine (a)")
        db.close()
        content = path.read_bytes()
    else:
        path.write_bytes(content)
    with pytest.raises(CopyMismatch, match=r"no copy"):
        SqliteCopy(path)
    assert path.read_bytes() == content


def test_a_copy_of_another_format_is_refused(tmp_path):
    kind = Sqlite(tmp_path)
    opened(kind).close()
    with sqlite3.connect(kind.place) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(CopyMismatch, match="has format 99"):
        kind.open()


def test_a_folder_that_is_not_there_is_said_to_be_so(tmp_path):
    with pytest.raises(CopyFailed, match="No such file or directory"):
        SqliteCopy(tmp_path / "none" / "copy.sqlite")


# A folder


def test_bodies_are_in_files_only(tmp_path):
    kind = Folder(tmp_path)
    copy = opened(kind)
    copy.apply("0", [put(0, "/products/1?x=ü%20", b"1")])
    assert kind.rows("body") == [(None,)]
    assert kind.rows("target", "outbox") == []
    assert [path.name for path in (kind.place / "0").iterdir()] == ["%2Fproducts%2F1%3Fx%3D%C3%BC%2520"]
    copy.close()


def test_a_folder_with_other_files_is_refused_and_not_touched(tmp_path):
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "letter.txt").write_text("dear")
    with pytest.raises(CopyMismatch, match="no copy, and not empty"):
        Folder(tmp_path).open()
    assert [path.name for path in (tmp_path / "copy").iterdir()] == ["letter.txt"]


def test_a_patch_of_a_file_that_was_changed_is_refused(tmp_path):
    kind = Folder(tmp_path)
    copy = opened(kind)
    copy.apply("0", [put(0, "/a", b"{}")])
    copy.file("0", "/a").write_bytes(b'{"mine":1}')
    with pytest.raises(CopyFailed, match="/a of partition 0 is not what was copied"):
        copy.apply("0", [patch(1, "/a", b'{"b":1}')])
    assert copy.checkpoint("0").ordinal == 0
    copy.close()


TARGETS = [
    *("/", "/a", "/A", "/a/b", "/a%2Fb", "/.hidden", ".", "..", "a~b", "~", "/ü", "/a b", "/a?b=c&d", "CON"),
    *("http://example.org/a", "/" + "x" * 300, "/" + "x" * 301, "/" + "ü" * 60, "/" + "ü" * 61, "", "-"),
    *("/" + "x" * 160 + "ü" * 20, "/" + "x" * 161 + "ü" * 20, "/" + "x" * 162 + "ü" * 20, "/%41", "/%61"),
]


@pytest.mark.parametrize("case_matters", [True, False])
def test_names_are_different_short_and_reversible(case_matters):
    names = {target: file_name(target, case_matters=case_matters) for target in TARGETS}
    for target, name in names.items():
        assert 0 < len(name.encode()) <= NAME_BYTES_MAX
        assert name[0] != "."
        assert set(name) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-%~")
        if "~" not in name:
            assert unquote(name) == target
        else:
            # What is left of a cut name has no half of an escape at its end.
            left = unquote_to_bytes(name.partition("~")[0])
            assert b"%" not in left
            assert target.encode().startswith(left)
    seen = names.values() if case_matters else [name.lower() for name in names.values()]
    assert len(set(seen)) == len(TARGETS)


def test_a_folder_keeps_to_the_names_that_it_began_with(tmp_path, monkeypatch):
    kind = Folder(tmp_path)
    monkeypatch.setattr("gateway.sync.folder_copy._case_matters", lambda folder: False)
    copy = opened(kind)
    copy.apply("0", [put(0, "/A", b"capital"), put(1, "/a", b"small")])
    assert copy.file("0", "/A").name == "%2F%41"
    copy.close()
    monkeypatch.undo()
    copy = opened(kind)
    copy.apply("0", [delete(2, "/A")])
    assert kind.bodies() == {"/a": b"small"}
    copy.close()


KILLED = """
import os, signal, sys
from pathlib import Path
from gateway.sync import folder_copy
from tests.sync.test_copies import *

step, folder = int(sys.argv[1]), Path(sys.argv[2])
left = step

def counted(function):
    def call(*args, **more):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **more)
    return call

copy = opened(Folder(folder))
for name in ("write_bytes", "replace", "unlink"):
    setattr(Path, name, counted(getattr(Path, name)))
folder_copy._FILES.__class__.sync_folder = counted(folder_copy._FILES.__class__.sync_folder)
for start in (1, 4, 7):
    copy.apply("0", EVENTS[start : start + 3])
copy.start_over("0", "test")
copy.apply("0", OTHERS)
copy.complete("0")
"""
EVENTS = [
    put(0, "/a", b"{}"),
    *(put(1, "/b", b"1"), patch(2, "/a", b'{"x":1}'), put(3, "/c", b"1")),
    *(delete(4, "/b"), patch(5, "/a", b'{"y":1}'), put(6, "/d", b"1")),
    *(put(7, "/b", b"2"), put(8, "/c", b"2"), delete(9, "/d")),
]
OTHERS = [put(0, "/b", b"9"), put(1, "/e", b"9")]


@pytest.mark.slow
@pytest.mark.parametrize("step", range(0, 40, 3))
def test_files_follow_the_checkpoint_after_a_kill_at_any_file_operation(tmp_path, step):
    kind = Folder(tmp_path)
    copy = opened(kind)
    copy.apply("0", EVENTS[:1])
    copy.close()
    command = [sys.executable, "-c", KILLED, str(step), str(tmp_path)]
    status = subprocess.run(command, cwd=Path(__file__).parents[2], timeout=60).returncode
    assert status in (0, -signal.SIGKILL)
    copy = opened(kind)
    assert not [path for path in (kind.place / "0").iterdir() if path.name.startswith(".")]
    assert kind.rows("target", "outbox") == []
    with sqlite3.connect(kind.database) as db:
        ((ordinal,),) = db.execute("SELECT ordinal FROM feeds").fetchall()
        assert db.execute("SELECT count(*) FROM entities WHERE body IS NOT NULL").fetchone() == (0,)
    db.close()
    swapped = ordinal == 1
    done = OTHERS if swapped else EVENTS[: ordinal + 1]
    assert ordinal in (0, 1, 3, 6, 9)
    assert kind.bodies() == present(replayed(done))
    assert {entry.target: entry.etag for entry in copy.stored("0")} == {
        target: entity.etag for target, entity in replayed(done).items() if entity.etag
    }
    copy.close()
