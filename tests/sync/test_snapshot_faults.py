"""Snapshots that are damaged, removed or of another feed, and clients that are killed: never a wrong copy.

The rounds of kill -9 are three; WES_KILL_ROUNDS=50 does that many. WES_KILL_SEED repeats their moments.
"""

import asyncio
import os
import random
import signal
import subprocess
import threading
import time
from dataclasses import replace

import pytest

from gateway.core.snapshots import FeedPoint
from gateway.core.state import Digest
from gateway.sync import synchronize
from gateway.sync.fetch import FetchFailed
from gateway.sync.snapshot import PART_TRIES_MAX
from gateway.sync.snapshot_load import PARTS_AT_ONCE
from tests.acceptance.support import until
from tests.sync.copies import query, run_sync, start_sync
from tests.sync.faulty_server import Wire, rendered, wired
from tests.sync.feed_server import served, serving
from tests.sync.replay import digest
from tests.sync.snapshot_copies import SETTINGS, Seen, assert_current, copied, site_of
from tests.sync.snapshot_server import Partition, fill

ROUNDS = int(os.environ.get("WES_KILL_ROUNDS", "3"))
SEED = int(os.environ.get("WES_KILL_SEED", str(time.time_ns() % 1_000_000)))
JSON = {"Content-Type": "application/json"}


def other_bytes(data):
    """As many bytes, one of them another one, in the body of an entity."""
    at = data.index(b'{"n":') + 5
    return data[:at] + (b"9" if data[at : at + 1] != b"9" else b"8") + data[at + 1 :]


def spoil(site, change, times=None):
    """Change the answers for one part, all of them or the first ones; its URI."""
    uri = site.snapshots[-1].uris[1]

    def twist(request, reply):
        if request.path == uri and (times is None or site.count[uri] <= times):
            change(reply)

    site.twist = twist
    return uri


def cut(reply):
    reply.body = reply.body[:-40]


def change_a_byte(reply):
    reply.body = other_bytes(reply.body)


def fail(reply):
    reply.status, reply.body = 500, b"a disk"


def remove(reply):
    reply.status, reply.body = 404, b"not here"


FAULTS = [cut, change_a_byte, fail, remove]


# Parts


@pytest.mark.parametrize("fault", FAULTS)
def test_a_part_that_is_wrong_once_is_asked_for_again(tmp_path, fault):
    site = site_of("0", "1")
    site.snapshot()
    uri = spoil(site, fault, times=PART_TRIES_MAX - 1)
    seen = Seen()
    summary = copied(site, tmp_path / "a.sqlite", seen)
    assert summary.snapshot is not None
    assert (seen.left, seen.events) == ([], 0)
    asked = site.parts_asked()
    assert asked.pop(uri) == PART_TRIES_MAX
    assert set(asked.values()) == {1}
    assert_current(tmp_path / "a.sqlite", site)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_part_that_stays_wrong_leaves_its_partition_to_the_feed_and_that_is_said(tmp_path, fault):
    site = site_of("0", "1")
    made = site.snapshot()
    uri = spoil(site, fault)
    seen = Seen()
    copied(site, tmp_path / "a.sqlite", seen)
    ((partition, id_, reason),) = seen.left
    assert (partition, id_) == ("0", made.index.id)
    assert uri in reason
    assert "the feed is read from its beginning" in seen.troubles[-1]
    assert site.count[uri] == PART_TRIES_MAX
    # The other partition is not concerned.
    assert seen.events == 75
    assert_current(tmp_path / "a.sqlite", site)


def test_a_part_that_breaks_off_on_the_way_is_asked_for_again(tmp_path):
    site = site_of("0")
    made = site.snapshot()
    uri, times = made.uris[2], []

    def fault(request, reply):
        if request.path != uri or len(times) == 2:
            return None
        times.append(1)
        return Wire([rendered(request, reply)[:-200]], close=True)

    async def scenario():
        async with wired(site, fault) as url:
            return await synchronize(url, tmp_path / "a.sqlite", settings=SETTINGS, observer=Seen())

    summary = asyncio.run(scenario())
    assert summary.snapshot is not None
    assert len(times) == 2
    assert_current(tmp_path / "a.sqlite", site)


@pytest.mark.parametrize("more", [1, -1])
def test_a_part_with_another_number_of_entities_than_its_index_tells_is_not_taken(tmp_path, more):
    site = site_of("0")
    made = site.snapshot()
    made.change(0, count=made.index.parts[0].count + more)
    seen = Seen()
    copied(site, tmp_path / "a.sqlite", seen)
    assert "and its index tells" in seen.left[0][2]
    assert seen.events == 75
    assert_current(tmp_path / "a.sqlite", site)


def test_a_part_with_another_digest_than_its_index_tells_is_not_taken(tmp_path):
    site = site_of("0")
    made = site.snapshot()
    made.change(2, digest=f"{int(made.index.parts[2].digest, 16) ^ 1:064x}")
    seen = Seen()
    copied(site, tmp_path / "a.sqlite", seen)
    assert "does not add the entities and the digest" in seen.left[0][2]
    assert_current(tmp_path / "a.sqlite", site)


def test_a_target_that_is_in_two_parts_is_not_taken_twice(tmp_path):
    site = site_of("0")
    made = site.snapshot()
    first = made.index.parts[0]
    uri = f"{first.uri}-again"
    made.parts[uri] = made.parts[first.uri]
    parts = (*made.index.parts, replace(first, uri=uri))
    total = sum((Digest(part.count, int(part.digest, 16)) for part in parts), Digest())
    made.index = replace(made.index, parts=parts, entities=total.entities, digest=total.hex())
    seen = Seen()
    copied(site, tmp_path / "a.sqlite", seen)
    assert len(seen.left) == 1
    assert_current(tmp_path / "a.sqlite", site)


def test_parts_are_read_side_by_side_but_not_too_many_of_them(tmp_path):
    site = site_of("0", "1", events=200)
    made = site.snapshot(buckets=16)
    site.held = set(made.uris)
    path = tmp_path / "a.sqlite"
    with served(site) as url:
        work = synchronize(url, path, settings=replace(SETTINGS, reader=PATIENT), observer=Seen())
        thread = threading.Thread(target=lambda: asyncio.run(work))
        thread.start()
        until(lambda: len(site.parts_asked()) == PARTS_AT_ONCE)
        time.sleep(0.1)
        assert len(site.parts_asked()) == PARTS_AT_ONCE
        site.held.clear()
        thread.join(30)
    assert len(site.parts_asked()) == len(made.uris)
    assert_current(path, site)


PATIENT = replace(SETTINGS.reader, fetch=replace(SETTINGS.reader.fetch, read_s=30.0, request_s=30.0))


# Indexes


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"no index", b'{"feeds": []}', b'{"uris": "x", "started": 1, "id": 1}', b"[" * 100_000],
)
def test_what_is_no_index_is_said_and_not_used(tmp_path, body):
    site = site_of("0")
    site.snapshot()

    def twist(request, reply):
        if request.path == "/snapshots/events/latest":
            reply.body = body

    site.twist = twist
    seen = Seen()
    copied(site, tmp_path / "a.sqlite", seen)
    assert "there is no snapshot to begin with" in seen.troubles[0]
    assert_current(tmp_path / "a.sqlite", site)


def test_an_index_of_another_log_or_one_that_contradicts_itself_is_not_used(tmp_path):
    site = site_of("0")
    made = site.snapshot()
    whole = made.index
    (point,) = whole.feeds
    for index in (
        replace(whole, log="other"),
        replace(whole, feeds=(replace(point, last=point.last - 1),)),
        replace(whole, feeds=(replace(point, content_id="<1@example.org>"),)),
        # Parts of a partition of which it does not say how far it goes.
        replace(whole, feeds=()),
    ):
        made.index = index
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.sqlite"
        seen = Seen()
        assert copied(site, path, seen).snapshot is None
        assert len(seen.left) + len(seen.troubles) >= 1
        assert seen.events == 75
        assert_current(path, site)


def test_a_server_that_has_no_time_for_its_index_is_waited_for(tmp_path):
    site = site_of("0")
    site.snapshot()

    def busy(request, reply):
        if request.path == "/snapshots/events/latest" and site.count[request.path] <= 3:
            reply.status, reply.body = 503, b"not now"

    site.twist = busy
    summary = copied(site, tmp_path / "a.sqlite")
    assert summary.snapshot is not None
    assert_current(tmp_path / "a.sqlite", site)


def test_a_server_that_stays_in_trouble_ends_a_run_and_the_next_one_goes_on_with_the_rest(tmp_path):
    site = site_of("0")
    made = site.snapshot()
    path = tmp_path / "a.sqlite"

    def busy(request, reply):
        if request.path == made.uris[-1]:
            reply.status, reply.body = 503, b"not now"

    site.twist = busy
    with pytest.raises(FetchFailed, match="503"):
        copied(site, path)
    taken = query(path, "SELECT uri FROM snapshot_parts")
    site.twist = lambda request, reply: None
    before = site.parts_asked()
    summary = copied(site, path)
    assert summary.snapshot is not None
    assert summary.snapshot.parts == len(made.uris) - len(taken)
    assert {uri for (uri,) in taken} == {uri for uri in made.uris if site.count[uri] == before[uri]}
    assert_current(path, site)


def test_a_copy_that_follows_waits_until_the_snapshot_can_be_had(tmp_path):
    site = site_of("0")
    made = site.snapshot()
    path, seen = tmp_path / "a.sqlite", Seen()
    site.twist = lambda request, reply: setattr(
        reply, "status", 502 if request.path in made.parts else reply.status
    )

    async def scenario():
        stop = asyncio.Event()
        async with serving(site.handle) as url:
            work = synchronize(url, path, follow=True, stop=stop, settings=SETTINGS, observer=seen)
            run = asyncio.create_task(work)
            await asyncio.to_thread(until, lambda: len(seen.troubles) >= 2)
            site.twist = lambda request, reply: None
            await asyncio.to_thread(until, lambda: seen.entities == made.index.entities)
            fill(site, 5, seed=6)
            await asyncio.to_thread(until, lambda: seen.events == 5)
            stop.set()
            return await run

    assert asyncio.run(scenario()).snapshot is not None
    assert_current(path, site)


# Snapshots that come and go


def test_a_snapshot_that_is_removed_meanwhile_gives_way_to_the_newer_one(tmp_path):
    site = site_of("0", "1")
    old = site.snapshot()
    uri = old.uris[1]

    def twist(request, reply):
        if request.path == uri and len(site.snapshots) == 1:
            fill(site, 31, seed=7)
            site.snapshot()
            del site.snapshots[0]
        if request.path in old.parts and site.snapshots[0] is not old:
            reply.status, reply.body = 404, b"not here"

    site.twist = twist
    seen = Seen()
    summary = copied(site, tmp_path / "a.sqlite", seen)
    (new,) = site.snapshots
    assert summary.snapshot is not None
    assert summary.snapshot.id == new.index.id
    assert {id_ for _, id_, _ in seen.left} == {old.index.id}
    assert "is not there any more" in seen.left[0][2]
    assert seen.events == 0
    assert_current(tmp_path / "a.sqlite", site)


def half_loaded(site, path):
    """Kill a client when all parts but one of the snapshot are in the copy; the URI of that one."""
    made = site.snapshots[-1]
    last = made.index.parts[-1]
    others = sum(part.partition == last.partition for part in made.index.parts) - 1
    site.held = {last.uri}
    with served(site) as url:
        process = start_sync(url, path)
        parts = "SELECT count(*) FROM snapshot_parts WHERE partition = ?"
        whole = "SELECT 1 FROM feeds WHERE partition <> ? AND ordinal IS NULL"
        try:
            until(lambda: last.uri in site.count)
            until(lambda: query(path, parts, last.partition) == [(others,)])
            until(lambda: query(path, whole, last.partition) == [])
        finally:
            process.kill()
            process.wait()
            process.stderr.close()
            site.held.clear()
    assert query(path, "SELECT count(*) FROM entities WHERE partition = ?", last.partition) == [(0,)]
    return last.uri


def test_a_client_that_was_killed_goes_on_with_the_parts_that_are_missing(tmp_path):
    site = site_of("0", "1")
    site.snapshot()
    path = tmp_path / "a.sqlite"
    last = half_loaded(site, path)
    fill(site, 12, seed=2)
    # The snapshot that was begun is still there, though it is not the newest one any more.
    site.snapshot()
    site.count.clear()
    seen = Seen()
    summary = copied(site, path, seen)
    assert summary.snapshot is not None
    assert (summary.snapshot.id, summary.snapshot.parts) == (site.snapshots[0].index.id, 1)
    assert site.parts_asked() == {last: 1}
    assert seen.events == 24
    assert_current(path, site)


def test_a_client_that_was_killed_begins_with_the_newer_snapshot_if_its_own_is_gone(tmp_path):
    site = site_of("0")
    old = site.snapshot()
    path = tmp_path / "a.sqlite"
    half_loaded(site, path)
    fill(site, 12, seed=2)
    new = site.snapshot()
    del site.snapshots[0]
    seen = Seen()
    summary = copied(site, path, seen)
    assert summary.snapshot is not None
    assert summary.snapshot.id == new.index.id
    assert seen.left == [("0", old.index.id, "it was begun, and is not there any more")]
    assert seen.events == 0
    assert_current(path, site)


@pytest.mark.parametrize("how", ["gone with all others", "not wanted any more"])
def test_half_a_snapshot_is_forgotten_where_none_can_or_shall_be_used(tmp_path, how):
    site = site_of("0")
    site.snapshot()
    path = tmp_path / "a.sqlite"
    half_loaded(site, path)
    if how == "gone with all others":
        site.snapshots.clear()
    seen = Seen()
    copied(site, path, seen, snapshots=how != "not wanted any more")
    assert seen.events == 75
    assert_current(path, site)


def test_a_snapshot_of_the_same_id_with_other_parts_is_another_one(tmp_path):
    site = site_of("0")
    site.snapshot()
    path = tmp_path / "a.sqlite"
    half_loaded(site, path)
    site.partitions["0"] = Partition("0")
    fill(site, 75, seed=77)
    site.snapshots.clear()
    site.made = 0
    site.snapshot()
    summary = copied(site, path)
    assert summary.snapshot is not None
    assert_current(path, site)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "folder"])
def test_at_whatever_moment_a_client_is_killed_at_the_next_one_completes_the_copy(tmp_path, kind):
    chance = random.Random(SEED)
    print(f"WES_KILL_SEED={SEED}")
    site = site_of("0", "1", events=1_500, page_max=50)
    fill(site, 500, targets=5_000, seed=3)
    site.snapshot(buckets=32)
    for number in range(ROUNDS):
        fill(site, 100, seed=100 + number)
        name = f"{number}.sqlite" if kind == "sqlite" else f"{number}/"
        database = tmp_path / name if kind == "sqlite" else tmp_path / name / ".wes" / "copy.sqlite"
        with served(site) as url:
            kills = 0
            while kills < 4:
                process = start_sync(url, f"{tmp_path}/{name}")
                try:
                    process.wait(0.25 + chance.random() * 0.6)
                    break
                except subprocess.TimeoutExpired:
                    kills += 1
                finally:
                    process.send_signal(signal.SIGKILL)
                    process.wait()
                    process.stderr.close()
            run_sync(url, f"{tmp_path}/{name}", "--verify")
        held = "SELECT entities, digest FROM feeds WHERE partition = ?"
        for partition in site.partitions.values():
            states = partition.states
            assert query(database, held, partition.name) == [(len(states), digest(states))]
        if number + 1 < ROUNDS and chance.random() < 0.5:
            site.snapshot(buckets=32)


# Other feeds


def test_a_snapshot_of_another_generation_is_not_loaded_and_that_is_said(tmp_path):
    site = site_of("0")
    made = site.snapshot()
    site.partitions["0"] = Partition("0", generation="fedcba9876543210")
    fill(site, 90, seed=8)
    seen = Seen()
    copied(site, tmp_path / "a.sqlite", seen)
    assert site.parts_asked() == {}
    assert "does not hold its last event" in seen.left[0][2]
    assert seen.left[0][1] == made.index.id
    assert seen.events == 90
    assert_current(tmp_path / "a.sqlite", site)


def test_a_feed_that_does_not_have_the_events_of_its_snapshot_yet_is_waited_for_a_little(tmp_path):
    site = site_of("0")
    made = site.snapshot()
    entry = made.index.feeds[0].entry

    def behind(request, reply):
        if request.path == entry and site.count[entry] <= 2:
            reply.status, reply.body, reply.headers = 404, b"", {}

    site.twist = behind
    assert copied(site, tmp_path / "a.sqlite").snapshot is not None
    assert_current(tmp_path / "a.sqlite", site)


def test_the_place_in_another_partitions_feed_is_not_taken_for_the_own_one(tmp_path):
    site = site_of("0", "1")
    made = site.snapshot()
    zero, one = made.index.feeds
    swapped: tuple[FeedPoint, ...] = (replace(one, partition="0"), replace(zero, partition="1"))
    made.index = replace(made.index, feeds=swapped)
    seen = Seen()
    copied(site, tmp_path / "a.sqlite", seen)
    assert len(seen.left) == 2
    assert site.parts_asked() == {}
    assert_current(tmp_path / "a.sqlite", site)


def test_a_feed_that_starts_over_while_its_snapshot_is_read_is_read_anew(tmp_path):
    site = site_of("0")
    made = site.snapshot()

    def restart(request, reply):
        if request.path == made.uris[-1] and site.partitions["0"].generation.startswith("0"):
            site.partitions["0"] = Partition("0", generation="fedcba9876543210")
            fill(site, 90, seed=8)

    site.twist = restart
    seen = Seen()
    copied(site, tmp_path / "a.sqlite", seen)
    assert seen.over == ["0"]
    assert "does not hold its last event" in seen.left[0][2]
    assert_current(tmp_path / "a.sqlite", site)
