"""All events of a real catalogue, published over AMQP: the feeds have each once, in order, unchanged.

And what they add up to is the same in the gateway, in every copy, and in a replay of the files.
"""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance import catalogue
from tests.acceptance.support import checked, events_in, get, log_document, until, wes
from tests.sync.replay import bodies, digest, replay
from tests.walk import walk

PARTITIONS = 4


@pytest.mark.slow
def test_every_event_of_the_catalogue_is_in_the_feeds_and_adds_up_in_every_copy(start_gateway, tmp_path):
    published = catalogue.events(catalogue.files())
    count = sum(map(len, published.values()))
    assert {event.method for events in published.values() for event in events} == {"PUT", "PATCH", "DELETE"}
    gateway = start_gateway("--partitions", str(PARTITIONS))

    done = wes("publish", gateway.amqp, *catalogue.files())
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"published {count:,} events"), done.stdout
    until(lambda: events_in(gateway.http) >= count, within_s=120)
    summary = checked(gateway.http)
    feeds = walk(gateway.http, "events")

    assert list(feeds) == [str(number) for number in range(PARTITIONS)]
    assert all(feeds.values()), "a partition stayed empty"
    found = defaultdict(list)
    for events in feeds.values():
        in_feed = defaultdict(list)
        for event in events:
            in_feed[event.target].append(
                catalogue.Published(event.method, event.target, event.content_type, event.body)
            )
        for target, history in in_feed.items():
            # Extended, not replaced: a target in two partitions would not be as it was published.
            found[target] += history
    assert found == published
    document = log_document(gateway.http)
    states = replay(event for events in published.values() for event in events)
    assert (document["entities"], document["digest"]) == (len(states), digest(states))
    assert document["shared_targets"] == 0
    if count == 129_718:
        assert len(states) == 68_820
    said = [
        _synchronized(gateway.http, copy, document) for copy in (tmp_path / "copy.sqlite", tmp_path / "copy")
    ]
    with closing(sqlite3.connect(tmp_path / "copy.sqlite")) as database:
        copied = dict(database.execute("SELECT target, body FROM entities WHERE state = 'present'"))
    files = [path for path in (tmp_path / "copy").glob("[0-9]/*") if path.is_file()]
    assert len(files) == len(copied) == len(states)
    assert {target: json.loads(body) for target, body in copied.items()} == {
        target: json.loads(body) for target, body in bodies(states).items()
    }
    for target in list(states)[:: max(1, len(states) // 50)]:
        assert json.loads(get(gateway.http, target).body) == json.loads(states[target].body)
    print(done.stdout + summary + "".join(said))


def _synchronized(url: str, copy: Path, document: dict[str, Any]) -> str:
    """What `wes sync` says of a copy whose digest is the gateway's; a second run has nothing to do."""
    destination = copy if copy.suffix else f"{copy}/"
    first = wes("sync", url, destination, "--json", "--verify")
    assert first.returncode == 0, first.stdout + first.stderr
    summary = json.loads(first.stdout.splitlines()[-1])
    assert (summary["digest"], summary["entities"]) == (document["digest"], document["entities"])
    assert summary["position"] == document["position"]
    again = json.loads(wes("sync", url, destination, "--json").stdout.splitlines()[-1])
    assert (again["events"], again["digest"]) == (0, document["digest"])
    return first.stdout
