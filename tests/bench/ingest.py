"""Ingest: from the node into durable pages, against a bare proton receiver that only decodes each message.

And against itself without the upkeep of current state, which is what that upkeep costs. Both run side by side
on one core and are compared by the processor time that an event takes: one behind the other, two runs of the
very same program differ by a fifth, as the machine's speed changes between them.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

from gateway.amqp.sections import encode_message
from gateway.amqp.sender import LogSender
from gateway.core.mapping import native_message
from tests.bench.result import Result, paired
from tests.bench.tools import LOAD_CORE, SERVER_CORE, on_core, sample_event
from tests.servers import Server, gateway, log_node

EVENTS = 100_000
"""About five seconds of them: enough for state to be merged again and again."""
ROUNDS = 7
STATELESS = "tests.bench.rivals.stateless_gateway"


def ingest(folder: Path) -> Iterator[Result]:
    """One core each: the node on one, the receiver on the other."""
    node = log_node(folder / "node")
    with on_core(LOAD_CORE):
        node.start()
    try:
        asyncio.run(_fill(node.amqp))
        ours, theirs, upkeep, stateless = [], [], [], []
        for number in range(ROUNDS):
            ours.append(EVENTS / _gateway_seconds(folder / f"data-{number}", node.amqp))
            theirs.append(EVENTS / _receiver_seconds(node.amqp))
            with_state, without_state = _side_by_side(folder, number, node.amqp)
            upkeep.append(with_state)
            stateless.append(without_state)
    finally:
        node.stop()
    yield paired("ingest", ours, theirs, "bare proton receiver", "events/s", 0.8)
    yield paired("ingest, upkeep of state", upkeep, stateless, "without it", "events/CPU s", 0.85)


async def _fill(url: str) -> None:
    sender = LogSender(url, "events")
    await sender.connect()
    answers = []
    for number in range(EVENTS):
        event = sample_event(number)
        message = native_message(event, message_id=str(number), group_key=event.target)
        answers.append(await sender.send(encode_message(message)))
    await asyncio.gather(*answers)
    await sender.close()


def _gateway_seconds(data: Path, broker: str) -> float:
    """From the first event in the feed to the last one; the feed is looked at twenty times a second."""
    server = gateway(data, "--broker", broker)
    with on_core(SERVER_CORE):
        server.start(ready=False)
    try:
        started = first = 0.0
        while True:
            events, now = _events(server), time.perf_counter()
            if events and not started:
                started, first = now, events
            if events == EVENTS:
                return (now - started) * EVENTS / (EVENTS - first)
            time.sleep(0.05)
    finally:
        server.stop()


def _side_by_side(folder: Path, number: int, broker: str) -> list[float]:
    """Events for a second of processor time, with and without state, while both ingest."""
    servers = [gateway(folder / f"{name}-{number}", "--broker", broker) for name in ("with", "without")]
    servers[1].module = STATELESS
    try:
        for server in servers:
            with on_core(SERVER_CORE):
                server.start(ready=False)
        before = _when(servers, lambda events: min(events) >= EVENTS // 20)
        after = _when(servers, lambda events: max(events) >= EVENTS - EVENTS // 20)
    finally:
        for server in servers:
            server.stop()
    return [
        (events - events_before) / (seconds - seconds_before)
        for (events, seconds), (events_before, seconds_before) in zip(after, before, strict=True)
    ]


def _when(servers: list[Server], reached: Callable[[list[int]], bool]) -> list[tuple[int, float]]:
    """Events and seconds of processor time of each server, once `reached` says so of their events."""
    while True:
        found = [(_events(server), _processor_seconds(server.pid)) for server in servers]
        if reached([events for events, _ in found]):
            return found
        time.sleep(0.05)


def _events(server: Server) -> int:
    with urllib.request.urlopen(f"{server.http}/feeds/events") as response:
        partitions = json.load(response)["partitions"]
    return partitions[0]["events"] if partitions else 0


def _processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _receiver_seconds(broker: str) -> float:
    command = [sys.executable, "-m", "tests.bench.rivals.proton_receiver", broker, "events", str(EVENTS)]
    with on_core(SERVER_CORE):
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout)
