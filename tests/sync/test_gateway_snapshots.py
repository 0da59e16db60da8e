"""`wes sync` and a real gateway with a real snapshot in its folder."""

from __future__ import annotations

import json

from tests import servers
from tests.acceptance.support import call, log_document
from tests.sync.copies import query, run_sync, sqlite_bodies
from tests.sync.replay import bodies, replay
from tests.sync.snapshot_server import Partition, Told, snapshot_of
from tests.walk import walk

PAGE = 20
FIRST, MORE = 150, 45


def put(gateway, number):
    body = b'{"n":%d}' % number
    call(gateway.http, "PUT", f"/things/{number % 60}", body, {"Content-Type": "application/json"})


def publish(gateway, numbers):
    for number in numbers:
        put(gateway, number)
    call(gateway.http, "DELETE", "/things/3")
    call(gateway.http, "PATCH", "/things/4", b"+", {"Content-Type": "text/x-diff"})


def test_a_gateways_snapshot_and_its_feed_make_the_copy_that_it_has_itself(tmp_path):
    data = tmp_path / "data"
    options = ("--partitions", "2", "--archive-events-max", str(PAGE), "--authority", "example.org")
    gateway = servers.gateway(data, *options).start()
    try:
        publish(gateway, range(FIRST))
        made = snapshot_of(1, partitions_of(gateway))
        folder = data / "snapshots" / "events" / made.index.id
        folder.mkdir(parents=True)
        for uri, content in made.parts.items():
            (folder / uri.rpartition("/")[2]).write_bytes(content)
        (folder / "index.json").write_bytes(made.index.to_json())
        publish(gateway, range(FIRST, FIRST + MORE))
        path = tmp_path / "copy.sqlite"
        done = run_sync(gateway.http, path, "--verify", "--json")
        *partitions, result = [json.loads(line) for line in done.stdout.splitlines()]
        assert [told["equal"] for told in partitions] == [True, True]
        assert result["events"] == MORE + 2
        assert (result["snapshot"]["id"], result["snapshot"]["entities"]) == (
            made.index.id,
            made.index.entities,
        )
        assert result["digest"] == log_document(gateway.http)["digest"]
        for partition, events in walk(gateway.http, "events").items():
            assert sqlite_bodies(path, partition) == bodies(replay(events))
        assert query(path, "SELECT count(*) FROM snapshot_parts") == [(0,)]
    finally:
        gateway.stop()


def partitions_of(gateway):
    """The gateway's feeds as they are now, in the form that a snapshot is made from."""
    generations = {told["partition"]: told["generation"] for told in log_document(gateway.http)["partitions"]}
    found = []
    for name, events in sorted(walk(gateway.http, "events").items()):
        partition = Partition(name, page_max=PAGE, generation=generations[name])
        for event in events:
            partition.publish(Told(event.method, event.target, event.content_type, event.body))
        assert partition.content_id(str(len(events) - 1)) == events[-1].content_id
        found.append(partition)
    return found
