"""kill -9 at random moments, of gateways and of event log nodes, while writers write and a reader reads.

Six rounds as a rule; WES_KILL_ROUNDS=50 does that many. WES_KILL_SEED repeats the moments of a run.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable

import pytest

from tests import servers
from tests.acceptance.load import AmqpWriter, HttpWriter, Reader, Told, Writer
from tests.acceptance.support import (
    checked,
    embedded_node,
    entries,
    lasting_port,
    log_document,
    readers,
    until,
    until_ready,
)

ROUNDS = int(os.environ.get("WES_KILL_ROUNDS", "6"))
SEED = int(os.environ.get("WES_KILL_SEED", str(time.time_ns() % 1_000_000)))
PARTITIONS = ["0", "1"]
SETTINGS = ("--archive-events-max", "60", "--archive-bytes-max", "10000")
ENVIRONMENT = {"WES_HTTP_PUBLISH_WAIT_MAX_S": "2"}
LOAD_S = (0.1, 1.2)


class Embedded:
    """A gateway with its embedded node."""

    def __init__(self, folder, *options):
        options += ("--partitions", str(len(PARTITIONS)))
        self.gateway = servers.gateway(folder / "data", *options, *SETTINGS, **ENVIRONMENT)
        self.gateway.start()
        self.victims: dict[str, Callable[[], None]] = {
            "gateway": self.kill_gateway,
            "embedded node": self.kill_node,
        }

    def amqp(self):
        return self.gateway.amqp

    def kill_gateway(self):
        self.gateway.kill()
        self.gateway.start()

    def kill_node(self):
        before = embedded_node(self.gateway)
        os.kill(before, signal.SIGKILL)
        until(lambda: embedded_node(self.gateway) not in (None, before))
        until_ready(self.gateway.http)

    def stop(self):
        self.gateway.stop()


class Readers(Embedded):
    """A gateway with its embedded node and two reader processes."""

    def __init__(self, folder):
        super().__init__(folder, "--workers", "2")
        self.victims["reader"] = self.kill_reader

    def kill_reader(self):
        before = readers(self.gateway)
        victim = min(before)
        os.kill(victim, signal.SIGKILL)
        until(lambda: len(readers(self.gateway) - {victim}) == len(before))
        until_ready(self.gateway.http)


class Separate:
    """A gateway and a node, each on its own."""

    def __init__(self, folder):
        listen = ("--amqp-listen", f"127.0.0.1:{lasting_port()}")
        self.node = servers.Server("log", *listen, "--partitions", str(len(PARTITIONS)), data=folder / "node")
        self.node.start()
        broker = ("--listen", "127.0.0.1:0", "--broker", self.node.amqp)
        self.gateway = servers.Server(
            "serve", *broker, *SETTINGS, data=folder / "gateway", environment=ENVIRONMENT
        )
        self.gateway.start()
        self.victims: dict[str, Callable[[], None]] = {
            "gateway": self.kill_gateway,
            "node": self.kill_node,
            "both": self.kill_both,
        }

    def amqp(self):
        return self.node.amqp

    def kill_gateway(self):
        self.gateway.kill()
        self.gateway.start()

    def kill_node(self):
        self.node.kill()
        self.node.start()
        until_ready(self.gateway.http)

    def kill_both(self):
        self.node.kill()
        self.gateway.kill()
        self.node.start()
        self.gateway.start()

    def stop(self):
        self.gateway.stop()
        self.node.stop()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "rounds"),
    [(make, (ROUNDS + 2 - number) // 3) for number, make in enumerate((Embedded, Readers, Separate))],
    ids=["embedded", "readers", "separate"],
)
def test_no_acknowledged_event_is_lost_or_doubled_whatever_is_killed(tmp_path, make, rounds):
    chance = random.Random(SEED)
    print(f"WES_KILL_SEED={SEED}")
    running = make(tmp_path)

    def base() -> str:
        return running.gateway.http

    writers: list[Writer] = [HttpWriter(f"http-{number}", base) for number in range(3)]
    writers += [AmqpWriter(f"amqp-{number}", running.amqp) for number in range(2)]
    reader = Reader(base, PARTITIONS, SEED)
    killed: Counter[str] = Counter()
    started = time.monotonic()
    try:
        for thread in (*writers, reader):
            thread.start()
        for _ in range(rounds):
            time.sleep(chance.uniform(*LOAD_S))
            victim = chance.choice(sorted(running.victims))
            killed[victim] += 1
            running.victims[victim]()
            # All writers go on in each round, or the round shows nothing.
            kept = [writer.count(Told.KEPT) for writer in writers]
            until(lambda kept=kept: all_went_on(writers, kept))
        took_s = time.monotonic() - started
        for thread in (*writers, reader):
            thread.stop()
        for thread in (*writers, reader):
            thread.join()
            assert thread.surprise is None, thread.surprise
        found = settled_feeds(base(), sum(writer.count(Told.KEPT) for writer in writers))

        unknown = 0
        for writer in writers:
            numbers = [int(body.split()[0]) for body in found.pop(writer.target)]
            assert numbers == sorted(set(numbers)), f"{writer.name}: doubled or out of order"
            missing = {number for number, told in writer.told.items() if told is Told.KEPT} - set(numbers)
            assert not missing, f"{writer.name}: acknowledged and not there: {sorted(missing)}"
            half_done = {n for n in numbers if writer.told[n] is Told.NOT_KEPT}
            assert not half_done, f"{writer.name}: refused and there all the same: {sorted(half_done)}"
            unknown += writer.count(Told.UNKNOWN)
        assert not found
        reader.look_at_all()
        assert not reader.changed, reader.changed[:3]
        assert len(reader.seen) > rounds
        summary = checked(base())
        kept = sum(writer.count(Told.KEPT) for writer in writers)
        print(
            f"{rounds} rounds in {took_s:.1f} s, killed: {dict(killed)}; {kept} events acknowledged,"
            f" {unknown} unknown; {len(reader.seen)} archive documents read {reader.reads} times\n{summary}"
        )
    finally:
        for thread in (*writers, reader):
            thread.stop()
        running.stop()


def all_went_on(writers: list[Writer], kept: list[int]) -> bool:
    """Whether each writer has had more acknowledged than `kept`."""
    for writer in writers:
        assert writer.surprise is None, writer.surprise
    return all(writer.count(Told.KEPT) > count for writer, count in zip(writers, kept, strict=True))


def settled_feeds(base: str, least: int) -> dict[str, list[bytes]]:
    """The bodies about each target, in order, once the feeds have come to rest."""
    last = None

    def rest() -> bool:
        nonlocal last
        before, last = last, log_document(base)["position"]
        return last == before and sum(ordinal + 1 for ordinal in last.values()) >= least

    until(rest, every_s=0.3)
    found: dict[str, list[bytes]] = {}
    for partition in PARTITIONS:
        by_target: dict[str, list[bytes]] = {}
        for part in entries(base, partition):
            by_target.setdefault(part.about, []).append(part.body)
        for target, bodies in by_target.items():
            found.setdefault(target, []).extend(bodies)
    return found
