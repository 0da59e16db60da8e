"""Ingest: from the node into durable pages, against a bare proton receiver that only decodes each message.

And against itself without the upkeep of current state, which is what that upkeep costs.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from gateway.amqp.sections import encode_message
from gateway.amqp.sender import LogSender
from gateway.core.mapping import native_message
from tests.bench.result import Result, paired
from tests.bench.tools import LOAD_CORE, SERVER_CORE, on_core, sample_event
from tests.servers import gateway, log_node

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
        ours, theirs, stateless = [], [], []
        for number in range(ROUNDS):
            ours.append(EVENTS / _gateway_seconds(folder / f"data-{number}", node.amqp))
            data = folder / f"stateless-{number}"
            stateless.append(EVENTS / _gateway_seconds(data, node.amqp, STATELESS))
            theirs.append(EVENTS / _receiver_seconds(node.amqp))
    finally:
        node.stop()
    yield paired("ingest", ours, theirs, "bare proton receiver", "events/s", 0.8)
    yield paired("ingest, upkeep of state", ours, stateless, "without it", "events/s", 0.85)


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


def _gateway_seconds(data: Path, broker: str, module: str = "gateway") -> float:
    """From the first event in the feed to the last one; the feed is looked at ten times a second."""
    server = gateway(data, "--broker", broker)
    server.module = module
    with on_core(SERVER_CORE):
        server.start(ready=False)
    try:
        started = first = 0.0
        while True:
            with urllib.request.urlopen(f"{server.http}/feeds/events") as response:
                partitions = json.load(response)["partitions"]
            events = partitions[0]["events"] if partitions else 0
            now = time.perf_counter()
            if events and not started:
                started, first = now, events
            if events == EVENTS:
                return (now - started) * EVENTS / (EVENTS - first)
            time.sleep(0.05)
    finally:
        server.stop()


def _receiver_seconds(broker: str) -> float:
    command = [sys.executable, "-m", "tests.bench.rivals.proton_receiver", broker, "events", str(EVENTS)]
    with on_core(SERVER_CORE):
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout)
