"""Publishing: 64 parallel PUTs, each answered when it is durable in the log and visible in the feed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.bench.result import Result, paired
from tests.bench.tools import rival, serving_on_two_cores, wrk

ROUNDS = 7
CONNECTIONS = 64

PUTS = """
wrk.method = "PUT"
wrk.headers["Content-Type"] = "application/json"
local number = 0
request = function()
  number = number + 1
  local body = string.format('{"number":%d,"text":"%s"}', number, string.rep("x", 330))
  return wrk.format(nil, "/things/" .. number % 1000, nil, body)
end
"""


def put(folder: Path) -> Iterator[Result]:
    """A bare handler that appends to one file with group fdatasync; our node, a child, has the other core."""
    script = folder / "puts.lua"
    script.write_text(PUTS)
    with (
        serving_on_two_cores(folder / "data") as server,
        rival("aiohttp_append", str(folder / "appended")) as bare,
    ):
        ours, theirs = [], []
        for _ in range(ROUNDS):
            ours.append(wrk(f"{server.http}/", "-s", str(script), connections=CONNECTIONS, seconds=2))
            theirs.append(wrk(f"{bare}/", "-s", str(script), connections=CONNECTIONS, seconds=2))
    yield paired("64 parallel PUTs", ours, theirs, "bare aiohttp append", "requests/s", 0.4)
