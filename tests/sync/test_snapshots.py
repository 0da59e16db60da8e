"""Copies that begin with a snapshot are those that read every event, and go on behind exactly its last."""

import asyncio
import json
import signal
import sqlite3
import subprocess
import threading
from contextlib import closing

import pytest

from gateway.sync import SnapshotUnusable, synchronize
from gateway.sync.destination import copy_at
from gateway.sync.fold import NOT_TOLD
from tests.acceptance.support import until
from tests.sync.copies import folder_bodies, line_events, query, run_sync, sqlite_bodies, start_sync
from tests.sync.feed_server import served, serving
from tests.sync.replay import bodies, digest
from tests.sync.snapshot_copies import SETTINGS, Seen, assert_current, assert_settled, copied, site_of
from tests.sync.snapshot_server import Partition, fill

ENTITIES = (
    "SELECT partition, target, state, content_type, etag, last_modified, ordinal, body, extra_headers,"
    " server_etag FROM entities WHERE state <> 'deleted' ORDER BY partition, target"
)
FEEDS = "SELECT partition, ordinal, entry, content_id, generation, entities, digest, events FROM feeds"


def test_a_copy_that_begins_with_a_snapshot_is_the_one_that_read_every_event(tmp_path):
    site = site_of("0", "1", "2")
    made = site.snapshot()
    fill(site, 37, seed=2)
    path, replayed, seen = tmp_path / "a.sqlite", tmp_path / "b.sqlite", Seen()
    summary = copied(site, path, seen)
    archives = {name: site.archives(name) for name in site.partitions}
    asked = site.parts_asked()
    copied(site, replayed, snapshots=False)
    assert_current(path, site)
    assert query(path, ENTITIES) == query(replayed, ENTITIES)
    assert query(path, FEEDS) == query(replayed, FEEDS)
    assert NOT_TOLD not in [row[6] for row in query(path, ENTITIES)]
    size = sum(map(len, made.parts.values()))
    assert summary.snapshot is not None
    assert summary.snapshot[1:] == (made.index.id, len(made.parts), made.index.entities, size)
    assert summary.snapshot.url.endswith(f"/snapshots/events/{made.index.id}")
    assert (seen.entities, seen.events, seen.left, seen.troubles) == (made.index.entities, 3 * 37, [], [])
    # Each part once, and not one document that is older than the last event of the snapshot.
    assert asked == dict.fromkeys(made.parts, 1)
    for point in made.index.feeds:
        assert min(archives[point.partition]) == site.partitions[point.partition].page_of(point.last)


def test_a_folder_begins_with_a_snapshot_as_well(tmp_path):
    site = site_of("0", "1")
    site.snapshot()
    fill(site, 23, seed=2)
    folder = tmp_path / "copy"
    summary = copied(site, f"{folder}/")
    for name, partition in site.partitions.items():
        assert folder_bodies(folder, name) == bodies(partition.states)
        assert summary.partitions[name].digest.hex() == digest(partition.states)
    assert summary.snapshot is not None
    assert_settled(folder / ".wes" / "copy.sqlite")


def test_a_later_run_goes_on_in_the_feed_and_asks_for_no_snapshot(tmp_path):
    site = site_of()
    site.snapshot()
    copied(site, tmp_path / "a.sqlite")
    fill(site, 30, seed=3)
    site.snapshot()
    site.requests.clear()
    summary = copied(site, tmp_path / "a.sqlite")
    assert summary.snapshot is None
    assert not [path for path in site.requests if path.startswith("/snapshots/")]
    assert_current(tmp_path / "a.sqlite", site)


def test_events_that_are_published_while_parts_are_read_are_not_missed(tmp_path):
    site = site_of("0", "1")
    site.snapshot()

    def grow(request, reply):
        if request.path in site.snapshots[0].parts:
            fill(site, 9, seed=site.count[request.path] + len(site.requests))

    site.twist = grow
    copied(site, tmp_path / "a.sqlite")
    assert len(site.partitions["0"].told) > 75 + 9
    assert_current(tmp_path / "a.sqlite", site)


def test_a_partition_that_is_not_in_the_snapshot_begins_at_its_first_event(tmp_path):
    site = site_of("0")
    site.snapshot()
    site.partitions["7"] = Partition("7")
    fill(site, 25, seed=4)
    seen = Seen()
    copied(site, tmp_path / "a.sqlite", seen)
    assert [told[0] for told in seen.begun] == ["0"]
    assert (seen.events, seen.troubles) == (25 + 25, [])
    assert 0 in site.archives("7")
    assert_current(tmp_path / "a.sqlite", site)


def test_a_partition_that_comes_while_the_copy_follows_begins_with_the_newest_snapshot(tmp_path):
    site = site_of("0")
    path, seen = tmp_path / "a.sqlite", Seen()

    async def scenario():
        stop = asyncio.Event()
        async with serving(site.handle) as url:
            run = asyncio.create_task(
                synchronize(url, path, follow=True, stop=stop, settings=SETTINGS, observer=seen)
            )
            await asyncio.to_thread(until, lambda: seen.events == 75)
            site.partitions["new"] = Partition("new")
            fill(site, 25, seed=4)
            made = site.snapshot()
            ends = "SELECT partition, ordinal FROM feeds ORDER BY 1"
            await asyncio.to_thread(until, lambda: query(path, ends) == [("0", 99), ("new", 24)])
            stop.set()
            return made, await run

    made, summary = asyncio.run(scenario())
    assert summary.snapshot is not None
    assert summary.snapshot.id == made.index.id
    assert_current(path, site)
    asked = set(site.parts_asked())
    assert asked == {part.uri for part in made.index.parts if part.partition == "new"}


def test_unknown_entities_come_as_unknown(tmp_path):
    site = site_of(events=0)
    site.publish("0", "PUT", "/a", b"1")
    site.publish("0", "PATCH", "/a", b"+", "text/x-diff")
    site.publish("0", "PUT", "/b", b"2")
    site.snapshot()
    copied(site, tmp_path / "a.sqlite")
    rows = query(tmp_path / "a.sqlite", "SELECT target, state, etag, body, ordinal FROM entities ORDER BY 1")
    assert rows[0] == ("/a", "unknown", '"unknown"', None, 1)
    assert rows[1][:2] == ("/b", "present")
    assert_current(tmp_path / "a.sqlite", site)
    site.publish("0", "PATCH", "/a", b"{}", "application/merge-patch+json")
    copied(site, tmp_path / "a.sqlite")
    assert_current(tmp_path / "a.sqlite", site)


def test_what_is_not_json_and_what_has_headers_of_its_own_comes_as_it_is(tmp_path):
    site = site_of(events=0)
    site.publish("0", "PUT", "/bytes", bytes(range(256)), "application/octet-stream")
    site.publish("0", "PUT", "/delimiters", b"\r\n--x\r\n\r\n--", "text/plain")
    site.publish("0", "PUT", "/empty", b"", "text/plain")
    site.snapshot(buckets=1)
    copied(site, tmp_path / "a.sqlite")
    assert_current(tmp_path / "a.sqlite", site)
    assert sqlite_bodies(tmp_path / "a.sqlite", "0")["/bytes"] == bytes(range(256))


def test_a_snapshot_without_a_part_is_one_of_no_entities(tmp_path):
    site = site_of(events=0, page_max=4)
    for number in range(10):
        site.publish("0", "PUT", f"/{number}", b"1")
        site.publish("0", "DELETE", f"/{number}")
    made = site.snapshot()
    assert made.parts == {}
    site.publish("0", "PUT", "/last", b"2")
    seen = Seen()
    summary = copied(site, tmp_path / "a.sqlite", seen)
    assert seen.events == 1
    assert summary.snapshot is not None
    assert summary.snapshot[2:] == (0, 0, 0)
    assert_current(tmp_path / "a.sqlite", site)


def test_a_log_without_an_event_has_an_empty_snapshot_and_a_copy_of_nothing(tmp_path):
    site = site_of(events=0)
    site.snapshot()
    summary = copied(site, tmp_path / "a.sqlite")
    assert summary.digest == (0, 0)
    assert summary.snapshot is None
    fill(site, 12)
    copied(site, tmp_path / "a.sqlite")
    assert_current(tmp_path / "a.sqlite", site)


@pytest.mark.parametrize("kind", ["none made yet", "not named by the log"])
def test_without_a_snapshot_the_feed_is_read_from_its_beginning_and_that_is_no_trouble(tmp_path, kind):
    site = site_of()

    def hide(request, reply):
        if request.path == "/feeds/events":
            reply.body = json.dumps(json.loads(reply.body) | {"snapshots": None}).encode()

    if kind == "not named by the log":
        site.snapshot()
        site.twist = hide
    seen = Seen()
    assert copied(site, tmp_path / "a.sqlite", seen).snapshot is None
    assert (seen.troubles, seen.left, seen.events) == ([], [], 75)
    assert_current(tmp_path / "a.sqlite", site)


def test_no_snapshot_is_used_where_none_is_wanted(tmp_path):
    site = site_of()
    site.snapshot()
    seen = Seen()
    assert copied(site, tmp_path / "a.sqlite", seen, snapshots=False).snapshot is None
    assert seen.events == 75
    assert not [path for path in site.requests if path.startswith("/snapshots/")]


# An index that is named


def test_an_older_snapshot_can_be_named(tmp_path):
    site = site_of()
    older = site.snapshot()
    fill(site, 20, seed=2)
    site.snapshot()
    summary = copied(site, tmp_path / "a.sqlite", snapshot=f"/snapshots/events/{older.index.id}")
    assert summary.snapshot is not None
    assert summary.snapshot.id == older.index.id
    assert_current(tmp_path / "a.sqlite", site)


def test_one_partition_alone_begins_with_its_own_part_of_a_named_snapshot(tmp_path):
    site = site_of("0", "1")
    site.snapshot()
    fill(site, 8, seed=2)
    path = tmp_path / "a.sqlite"
    copied(site, path, path="/feeds/events/1/latest", snapshot="/snapshots/events/latest")
    assert sqlite_bodies(path, "0") == bodies(site.partitions["1"].states)
    assert site.archives("0") == set()


@pytest.mark.parametrize(
    ("path", "snapshot", "what"),
    [
        ("/", "/snapshots/events/2019-01-01T00:00:00.000Z", "is not there"),
        ("/", "/feeds/events", "is not the index of a snapshot"),
        ("/", "/feeds/events/0/latest", "is not the index of a snapshot"),
        ("/", "/other", "is of the log other"),
        ("/feeds/events/9/latest", "/snapshots/events/latest", "does not hold the feed"),
    ],
)
def test_a_named_index_that_is_none_of_this_copy_is_said_so(tmp_path, path, snapshot, what):
    site = site_of("0")
    made = site.snapshot()
    site.partitions["9"] = Partition("9")
    site.publish("9", "PUT", "/a", b"1")

    def other(request, reply):
        if request.path == "/other":
            reply.status, reply.headers = 200, {"Content-Type": "application/json"}
            reply.body = made.index.to_json().replace(b'"log": "events"', b'"log": "other"')

    site.twist = other
    with pytest.raises(SnapshotUnusable, match=what):
        copied(site, tmp_path / "a.sqlite", path=path, snapshot=snapshot)


# Starting over


def test_the_old_copy_is_read_until_the_snapshot_of_the_new_feed_and_what_follows_are_there(tmp_path):
    site = site_of()
    path = tmp_path / "a.sqlite"
    copied(site, path)
    before = query(path, ENTITIES)
    site.requests.clear()
    site.partitions = {"0": Partition("0", generation="fedcba9876543210")}
    fill(site, 50, seed=9)
    made = site.snapshot()
    fill(site, 33, seed=10)
    site.held = {made.index.parts[-1].uri}
    seen, done = Seen(), []
    with served(site) as url:

        def run():
            work = synchronize(url, path, moved=True, settings=SETTINGS, observer=seen)
            done.append(asyncio.run(work))

        thread = threading.Thread(target=run)
        thread.start()
        others = len(made.index.parts) - 1
        until(lambda: query(path, "SELECT count(*) FROM snapshot_parts") == [(others,)])
        assert query(path, ENTITIES) == before
        site.held.clear()
        thread.join(30)
    assert (seen.over, seen.completions, seen.events) == (["0"], ["0"], 33)
    assert done[0].snapshot.id == made.index.id
    assert min(site.archives("0")) == site.partitions["0"].page_of(49)
    assert_current(path, site)


@pytest.mark.parametrize("standing_at", [None, 12])
def test_where_the_first_documents_of_a_feed_are_gone_its_snapshot_makes_the_copy(tmp_path, standing_at):
    site = site_of(events=0)
    path = tmp_path / "a.sqlite"
    if standing_at is not None:
        fill(site, standing_at)
        copied(site, path)
    fill(site, 60, seed=2)
    site.snapshot()
    fill(site, 25, seed=3)
    feed = site.partitions["0"]
    point = site.snapshots[0].index.feeds[0].last
    gone = {feed.archive(page) for page in range(feed.page_of(point))}
    gone |= {feed.entry_path(str(ordinal)) for ordinal in range(feed.page_of(point) * feed.page_max)}

    def remove(request, reply):
        if request.path in gone:
            reply.status, reply.headers, reply.body = 410, {"Cache-Control": "no-store"}, b"gone"

    site.twist = remove
    seen = Seen()
    summary = copied(site, path, seen)
    assert summary.snapshot is not None
    assert (seen.over, seen.left, seen.events) == ([] if standing_at is None else ["0"], [], 25)
    assert_current(path, site)


# Programs


def test_a_run_that_is_stopped_while_it_loads_ends_well_and_the_next_one_goes_on(tmp_path):
    site = site_of()
    made = site.snapshot()
    path = tmp_path / "a.sqlite"
    site.held = {made.uris[-1]}
    with served(site) as url:
        process = start_sync(url, path, "--json", output=subprocess.PIPE)
        until(lambda: made.uris[-1] in site.count)
        until(lambda: query(path, "SELECT count(*) FROM snapshot_parts") == [(len(made.uris) - 1,)])
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=30)
        site.held.clear()
    assert process.returncode == 0
    result = json.loads(output)
    assert (result["stopped"], result["position"], result["snapshot"]) == (True, {"0": None}, None)
    assert copied(site, path).snapshot[2] == 1
    assert_current(path, site)


def test_the_command_says_which_snapshot_it_used_and_verifies_the_copy(tmp_path):
    site = site_of("0", "1")
    made = site.snapshot()
    fill(site, 21, seed=2)
    path = tmp_path / "a.sqlite"
    with served(site) as url:
        done = run_sync(url, path, "--verify", "--json")
        *partitions, result = [json.loads(line) for line in done.stdout.splitlines()]
        assert [told["equal"] for told in partitions] == [True, True]
        assert (result["verified"], result["events"]) == (True, 42)
        assert result["snapshot"] == {
            "url": f"{url}/snapshots/events/{made.index.id}",
            "id": made.index.id,
            "parts": len(made.parts),
            "entities": made.index.entities,
            "bytes": sum(map(len, made.parts.values())),
        }
        again = run_sync(url, path, "--json")
        assert json.loads(again.stdout)["snapshot"] is None
        text = run_sync(url, tmp_path / "b.sqlite").stdout
        assert f"behind snapshot {made.index.id} of {made.index.entities:,} entities" in text
        plain = run_sync(url, tmp_path / "c.sqlite", "--no-snapshot", "--json")
        assert json.loads(plain.stdout)["events"] == 2 * 96
    assert_current(path, site)


def test_a_snapshot_that_is_newer_than_the_log_document_does_not_spoil_the_comparison(tmp_path):
    site = site_of()

    def late(request, reply):
        if request.path == "/feeds/events" and not site.snapshots:
            fill(site, 40, seed=5)
            site.snapshot()

    site.twist = late
    summary = copied(site, tmp_path / "a.sqlite", verify=True)
    assert summary.verdict is not None
    assert summary.verdict.equal
    assert summary.snapshot is not None
    assert_current(tmp_path / "a.sqlite", site)


def test_lines_are_all_events_whatever_snapshots_there_are(tmp_path):
    site = site_of()
    site.snapshot()
    output = tmp_path / "events.ndjson"
    with served(site) as url:
        with output.open("wb") as file:
            process = start_sync(url, "-", output=file)
            assert process.wait(60) == 0
            assert process.stderr is not None
            process.stderr.close()
        refused = run_sync(url, "-", "--snapshot", f"{url}/snapshots/events/latest", status=2)
    assert "--snapshot goes with a file or a folder" in refused.stderr
    assert [event.target for event in line_events(output)["0"]] == [
        told.target for told in site.partitions["0"].told
    ]
    assert not [path for path in site.requests if path.startswith("/snapshots/")]


@pytest.mark.parametrize(
    "arguments", [("--snapshot", "file:///x"), ("--snapshot", "http://h/", "--no-snapshot")]
)
def test_what_cannot_be_a_snapshot_is_wrong_usage(tmp_path, arguments):
    run_sync("http://127.0.0.1:9/", tmp_path / "a.sqlite", *arguments, status=2)
    assert not (tmp_path / "a.sqlite").exists()


def test_a_copy_that_was_begun_before_there_were_snapshots_goes_on(tmp_path):
    site = site_of()
    path = tmp_path / "a.sqlite"
    copied(site, path)
    with closing(sqlite3.connect(path)) as db:
        db.executescript("DROP TABLE snapshots; DROP TABLE snapshot_parts")
    fill(site, 10, seed=3)
    copied(site, path)
    assert_current(path, site)
    assert copy_at(path)().begun("0") is None
