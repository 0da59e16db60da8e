"""Copies that begin with a snapshot: how tests make them, what they see meanwhile, and what must come out."""

from __future__ import annotations

import asyncio

from gateway.sync import Observer, synchronize
from gateway.sync.synchronize import Summary, SyncSettings
from tests.sync.copies import query, sqlite_bodies
from tests.sync.faulty_server import QUICK
from tests.sync.feed_server import serving
from tests.sync.replay import bodies, digest
from tests.sync.snapshot_server import LogSite, Partition, fill

SETTINGS = SyncSettings(reader=QUICK, new_partitions_s=0.02, verify_tries_max=3, verify_wait_s=0.02)


class Seen(Observer):
    """Keeps what is told."""

    def __init__(self):
        self.begun, self.left, self.troubles, self.over, self.completions = [], [], [], [], []
        self.entities = self.events = 0

    def snapshot_begun(self, partition, snapshot, *, entities, events):
        self.begun.append((partition, snapshot, entities, events))

    def loaded(self, entities):
        self.entities += entities

    def applied(self, events):
        self.events += events

    def snapshot_left(self, partition, snapshot, reason):
        self.left.append((partition, snapshot, reason))

    def trouble(self, partition, text):
        self.troubles.append(text)

    def started_over(self, partition, reason):
        self.over.append(partition)

    def completed(self, partition):
        self.completions.append(partition)


def site_of(*names: str, events: int = 75, **options) -> LogSite:
    """A site with partitions of those names, and events in each."""
    site = LogSite(*(Partition(name, **options) for name in names or ("0",)))
    fill(site, events)
    return site


def copied(site, destination, seen=None, path: str = "/", **options) -> Summary:
    """`synchronize` with a server of `site`, to its end; another port each time."""
    options.setdefault("moved", True)

    async def scenario():
        async with serving(site.handle) as url:
            if "snapshot" in options:
                options["snapshot"] = url + options["snapshot"]
            return await synchronize(
                url + path, destination, settings=SETTINGS, observer=seen or Seen(), **options
            )

    return asyncio.run(scenario())


def assert_current(path, site) -> None:
    """The copy at `path` is what an independent replay makes of all events of the site, and nothing more."""
    for name, partition in site.partitions.items():
        states = partition.states
        assert sqlite_bodies(path, name) == bodies(states)
        held = query(path, "SELECT entities, digest, ordinal FROM feeds WHERE partition = ?", name)
        last = len(partition.told) - 1
        assert held == [(len(states), digest(states), last if partition.told else None)]
    assert_settled(path)


def assert_settled(path) -> None:
    """Nothing is left of a second state."""
    for table in ("next_entities", "next_feeds", "snapshots", "snapshot_parts"):
        assert query(path, f"SELECT count(*) FROM {table}") == [(0,)]  # noqa: S608
