"""The node against rhea, a client with a codec and an engine of its own."""

from __future__ import annotations

import asyncio
import fcntl
import json
import subprocess
from pathlib import Path

import pytest

from gateway.node.schema import offset_of
from tests.node.support import run, running_node

FOLDER = Path(__file__).parent / "rhea"
COUNT = 300
FROM = 120


@pytest.fixture(scope="module")
def rhea() -> Path:
    """The folder with the client, its packages installed."""
    with (FOLDER / "package.json").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # test processes side by side install once
        if not (FOLDER / "node_modules" / ".package-lock.json").exists():
            subprocess.run(
                ["npm", "ci", "--no-audit", "--no-fund", "--no-update-notifier", "--silent"],
                cwd=FOLDER,
                check=True,
                timeout=120,
            )
    return FOLDER


def test_rhea_sends_events_and_receives_them_from_an_offset_and_from_a_time(
    tmp_path: Path, rhea: Path
) -> None:
    async def scenario() -> None:
        async with running_node(tmp_path) as (_, port):
            client = await asyncio.create_subprocess_exec(
                "node",
                str(rhea / "client.js"),
                *(str(port), "events", str(COUNT), str(FROM)),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            printed, errors = await client.communicate()
            assert client.returncode == 0, errors.decode()
        found = json.loads(printed)
        every = found["all"]
        assert found["accepted"] == COUNT
        assert found["capabilities"] == ["AMQP_EVENT_STREAMS_V1_0"]
        assert found["partition"] == "0"
        assert found["filterEchoed"] == ["start"]
        assert [event["body"] for event in every] == [
            f"text {number}" if number % 2 else f"data {number}" for number in range(COUNT)
        ]
        assert [event["offset"] for event in every] == [offset_of(number) for number in range(COUNT)]
        assert {event["subject"] for event in every} == {"PUT"}
        assert {event["partition"] for event in every} == {"0"}
        assert found["fromOffset"] == every[FROM:]
        moment = every[FROM]["timestamp"]
        assert found["fromTimestamp"] == [event for event in every if event["timestamp"] >= moment]
        assert found["info"] == {
            "partitions": [
                {
                    "partition": "0",
                    "earliest-offset": offset_of(0),
                    "latest-offset": offset_of(COUNT - 1),
                }
            ]
        }

    run(scenario, within_s=30)
