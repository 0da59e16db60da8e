"""`wes sync --verify`: equal means equal, and what differs is found and named."""

import asyncio
import itertools
import json
import signal
import sqlite3
from contextlib import closing

import pytest

from gateway.core.state import Digest, etag_of
from gateway.sync.fetch import Fetcher, FetchSettings
from gateway.sync.source import Source, read_log
from gateway.sync.sqlite_copy import SqliteCopy
from gateway.sync.synchronize import NotVerifiable, SyncSettings, synchronize
from gateway.sync.verdict import DIFFERENCES_MAX
from gateway.sync.verify import compare
from tests.acceptance.support import call, log_document, until
from tests.sync.copies import run_sync, sqlite_bodies, start_sync
from tests.sync.faulty_server import QUICK, NumberedFeed
from tests.sync.feed_server import _json, serving
from tests.sync.replay import State, digest
from tests.sync.test_sync_command import Publisher

SETTINGS = SyncSettings(reader=QUICK, verify_tries_max=4, verify_wait_s=0.02)
TARGETS = 150


@pytest.fixture(scope="module")
def things(tmp_path_factory):
    """A gateway with some entities in two partitions, one of them deleted and one of them unknown."""
    from tests import servers

    folder = tmp_path_factory.mktemp("things")
    server = servers.gateway(folder / "data", "--partitions", "2", "--archive-events-max", "20").start()
    for number in range(TARGETS):
        put(server, f"/things/{number}", b'{"n":%d}' % number)
    call(server.http, "DELETE", "/things/3")
    call(server.http, "PATCH", "/things/4", b"+", {"Content-Type": "text/x-diff"})
    yield server
    server.stop()


def put(server, target, body):
    call(server.http, "PUT", target, body, {"Content-Type": "application/json"})


def verified(server, destination, status=0):
    """What `--verify --json` says: of each partition, and of all."""
    done = run_sync(server.http, destination, "--verify", "--json", status=status)
    *partitions, result = [json.loads(line) for line in done.stdout.splitlines()]
    assert result["verified"] is (status == 0)
    return partitions, result


def differences(partitions):
    """Each target that differs, with its ETags in the copy and in the feed."""
    found = [entry for partition in partitions for entry in partition.get("differences", [])]
    return {entry["target"]: (entry["copy_etag"], entry["feed_etag"]) for entry in found}


def etag(number):
    return etag_of("application/json", b'{"n":%d}' % number)


def changed(path, statement, *values):
    with closing(sqlite3.connect(path)) as db, db:
        assert db.execute(statement, values).rowcount > 0


@pytest.mark.parametrize("destination", ["copy.sqlite", "copy/"])
def test_a_good_copy_has_the_gateways_digests_at_its_position(things, tmp_path, destination):
    partitions, result = verified(things, f"{tmp_path}/{destination}")
    document = log_document(things.http)
    assert (result["digest"], result["entities"]) == (document["digest"], document["entities"])
    assert result["position"] == document["position"]
    for partition, told in zip(partitions, document["partitions"], strict=True):
        assert partition == {
            "partition": told["partition"],
            "ordinal": told["last"],
            "entities": told["entities"],
            "digest": told["digest"],
            "gateway_entities": told["entities"],
            "gateway_digest": told["digest"],
            "equal": True,
        }
    assert document["entities"] == TARGETS - 1


def test_people_are_told_in_words(things, tmp_path):
    path = tmp_path / "copy.sqlite"
    out = run_sync(things.http, path, "--verify").stdout
    assert out.count(": equal\n") == 2
    assert out.endswith("; verified\n")
    changed(path, "UPDATE entities SET body = ? WHERE target = ?", b"rot", "/things/7")
    out = run_sync(things.http, path, "--verify", status=1).stdout
    assert ": DIFFERENT\n" in out
    wrong = etag_of("application/json", b"rot")
    assert f"\n  /things/7: {wrong} in the copy, {etag(7)} in the feed\n" in out
    assert out.endswith("; DIFFERENT\n")


def test_what_changed_is_missing_or_too_much_in_a_file_is_found(things, tmp_path):
    path = tmp_path / "copy.sqlite"
    verified(things, path)
    changed(path, "UPDATE entities SET body = ? WHERE target = ?", b'{"n":0.0}', "/things/0")
    changed(path, "UPDATE entities SET content_type = ? WHERE target = ?", "text/plain", "/things/1")
    changed(path, "DELETE FROM entities WHERE target = ?", "/things/2")
    changed(path, "UPDATE entities SET state = 'present', body = ? WHERE target = ?", b"3", "/things/3")
    changed(
        path,
        "INSERT INTO entities (partition, target, state, ordinal, body) VALUES ('0', ?, 'present', 0, ?)",
        *("/mine", b"x"),
    )
    partitions, _ = verified(things, path, status=1)
    assert differences(partitions) == {
        "/things/0": (etag_of("application/json", b'{"n":0.0}'), etag(0)),
        "/things/1": (etag_of("text/plain", b'{"n":1}'), etag(1)),
        "/things/2": (None, etag(2)),
        "/things/3": (etag_of(None, b"3"), None),
        "/mine": (etag_of(None, b"x"), None),
    }
    assert all(partition["replayed_digest"] == partition["gateway_digest"] for partition in partitions)


def test_a_file_that_changed_or_went_is_found_in_a_folder(things, tmp_path):
    verified(things, f"{tmp_path}/copy/")
    files = {path.name: path for path in (tmp_path / "copy").glob("[01]/*")}
    files["%2Fthings%2F0"].write_bytes(b"mine")
    files["%2Fthings%2F1"].unlink()
    partitions, _ = verified(things, f"{tmp_path}/copy/", status=1)
    assert differences(partitions) == {
        "/things/0": (etag_of("application/json", b"mine"), etag(0)),
        "/things/1": (None, etag(1)),
    }


def test_no_more_than_a_hundred_targets_of_a_partition_are_named(tmp_path, things):
    path = tmp_path / "copy.sqlite"
    run_sync(f"{things.http}", path)
    with closing(sqlite3.connect(path)) as db, db:
        names = [("0", f"/mine/{number}", "present", 0, b"x") for number in range(150)]
        db.executemany(
            "INSERT INTO entities (partition, target, state, ordinal, body) VALUES (?, ?, ?, ?, ?)", names
        )
    partitions, _ = verified(things, path, status=1)
    assert len(partitions[0]["differences"]) == DIFFERENCES_MAX
    assert partitions[1]["equal"]


def test_a_gateway_whose_digest_is_not_that_of_its_feed_is_told_from_a_bad_copy(things, tmp_path):
    async def scenario():
        settings = FetchSettings()
        path, source = tmp_path / "copy.sqlite", Source(f"{things.http}/feeds/events", "events")
        await synchronize(things.http, path)
        async with Fetcher(settings) as fetcher:
            heads = await read_log(fetcher, source)
            wrong = heads["0"]._replace(digest=heads["0"].digest + Digest(0, 1))
            with closing(SqliteCopy(path)) as copy:
                heads |= {"0": wrong}
                verdict = await compare(copy, heads, fetcher=fetcher, settings=QUICK)
                del heads["1"]
                without = await compare(copy, heads, fetcher=fetcher, settings=QUICK)
        return verdict, without

    verdict, without = asyncio.run(scenario())
    assert not verdict.equal
    first, second = verdict.partitions
    assert first.replayed == first.copy != first.gateway
    assert first.differences == ()
    assert second.equal
    assert without.unknown == ("1",)
    assert not without.equal


@pytest.mark.slow
def test_a_copy_is_verified_while_events_come_and_then_follows(start_gateway, tmp_path):
    server, path = start_gateway("--archive-events-max", "20"), tmp_path / "copy.sqlite"
    publisher = Publisher(server.http, 1)
    publisher.start()
    try:
        for _ in range(5):
            partitions, _ = verified(server, path)
            until(lambda least=publisher.count + 20: publisher.count > least)
            assert partitions[0]["equal"]
        process = start_sync(server.http, path, "--verify", "--follow", "--json", output=-1)
        assert json.loads(process.stdout.readline())["equal"]
    finally:
        publisher.stopping.set()
        publisher.join()
    put(server, "/last", b"9")
    until(lambda: sqlite_bodies(path, "0").get("/last") == b"9")
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    assert json.loads(out)["verified"]
    assert json.loads(out)["digest"] == log_document(server.http)["digest"]


def test_an_empty_log_is_verified(start_gateway, tmp_path):
    partitions, result = verified(start_gateway(), tmp_path / "copy.sqlite")
    assert [(entry["ordinal"], entry["entities"]) for entry in partitions] == [(None, 0)]
    assert result["digest"] == "0" * 64


def test_a_server_that_tells_no_digest_is_said_to_tell_none(things, tmp_path):
    path = tmp_path / "copy.sqlite"
    done = run_sync(f"{things.http}/feeds/events/0/latest", path, "--verify", status=1)
    assert "tells no digest to compare with" in done.stderr


class Told(NumberedFeed):
    """A feed whose log document speaks of `last`, as if there were no events behind it."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.lasts = iter(())

    def answer(self, request):
        if request.path != "/feeds/events":
            return super().answer(request)
        last = next(self.lasts)
        state = State("application/json", b'{"id":"x"}')
        held = {f"/products/{number}": state for number in range(last + 1)}
        head = {"partition": "0", "last": last, "generation": self.generation, "events": last + 1}
        head |= {"entities": len(held), "digest": digest(held), "links": {"current": self.latest}}
        return _json({"log": "events", "partitions": [head]})


def sync_told(source, path, *lasts, **more):
    source.lasts = itertools.chain(lasts, itertools.repeat(lasts[-1]))

    async def scenario():
        async with serving(source.handle) as url:
            return await synchronize(f"{url}/feeds/events", path, settings=SETTINGS, moved=True, **more)

    return asyncio.run(asyncio.wait_for(scenario(), 30))


def test_a_copy_never_goes_past_the_position_that_it_is_compared_at(tmp_path):
    source, path = Told(4, 4, 4), tmp_path / "copy.sqlite"
    for last in (0, 2, 3, 4, 9):
        summary = sync_told(source, path, last, verify=True)
        assert summary.verdict.equal
        assert summary.partitions["0"].ordinal == last


def test_a_copy_that_is_ahead_waits_for_the_log_document_a_while(tmp_path):
    source, path = Told(4, 4, 4), tmp_path / "copy.sqlite"
    assert sync_told(source, path, 5).partitions["0"].ordinal == 11
    assert sync_told(source, path, 5, 9, 11, verify=True).verdict.equal
    with pytest.raises(NotVerifiable, match="partition 0 is at event 11, in the log document at 5"):
        sync_told(source, path, 5, 5, 5, 5, verify=True)


def test_a_log_document_that_is_ahead_of_its_feed_is_waited_for_a_while(tmp_path):
    source, path = Told(4, 4), tmp_path / "copy.sqlite"
    with pytest.raises(NotVerifiable, match="ends at event 7, but the log document speaks of event 11"):
        sync_told(source, path, 11, 11, 11, 11, verify=True)
    assert sync_told(source, path, 11, 7, verify=True).verdict.equal


def test_a_copy_is_verified_after_it_started_over(tmp_path):
    class Other(Told):
        generation = "fedcba9876543210"

    path = tmp_path / "copy.sqlite"
    sync_told(Told(4, 4), path, 7)
    summary = sync_told(Other(2, 2, 2), path, 5, verify=True)
    assert summary.verdict.equal
    assert summary.partitions["0"].events == 6
