"""All events of a real catalogue, published over AMQP: the feeds have each once, in order, unchanged."""

from __future__ import annotations

from collections import defaultdict

import pytest

from tests.acceptance import catalogue
from tests.acceptance.support import checked, events_in, until, wes
from tests.walk import walk

PARTITIONS = 4


@pytest.mark.slow
def test_every_event_of_the_catalogue_is_in_the_feeds_once_in_order_byte_for_byte(start_gateway):
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
    print(done.stdout + summary)
