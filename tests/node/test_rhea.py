"""The node against rhea, a client with a codec and an engine of its own."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from pathlib import Path

import pytest

from gateway.node.schema import offset_of
from tests.node.support import run, running_node

INTEROP = Path(__file__).parents[1] / "interop"
COUNT = 300
FROM = 120


@pytest.fixture(scope="module")
def node() -> str:
    """The program `node`, with the packages of tests/interop installed."""
    assert (INTEROP / "node_modules" / "rhea").is_dir(), "make test installs rhea: run it, or .ci/interop"
    beside_python = Path(sys.executable).with_name("node")
    program = beside_python if beside_python.exists() else shutil.which("node")
    assert program, "make test installs node: run it, or .ci/interop"
    return str(program)


def test_rhea_sends_events_and_receives_them_from_an_offset_and_from_a_time(
    tmp_path: Path, node: str
) -> None:
    async def scenario() -> None:
        async with running_node(tmp_path) as (_, port):
            client = await asyncio.create_subprocess_exec(
                node,
                str(INTEROP / "rhea_client.js"),
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
