"""The events of a real catalogue, as their lines say them: read without the gateway's own reader."""

from __future__ import annotations

import gzip
import json
import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

SAMPLE = Path(__file__).parent.parent / "data"


class Published(NamedTuple):
    """What a line publishes; a walk must find the same."""

    method: str
    target: str
    content_type: str | None
    body: bytes


def files() -> list[Path]:
    """All files of the catalogue where WES_TEST_DATA is a folder that has it, else those of the sample."""
    folder = os.environ.get("WES_TEST_DATA")
    return sorted((SAMPLE if folder is None else Path(folder) / "debian-catalog").glob("*.ndjson.gz"))


def events(paths: list[Path]) -> dict[str, list[Published]]:
    """The events of the files by target, in their order."""
    by_target: dict[str, list[Published]] = defaultdict(list)
    for path in paths:
        for line in lines(path):
            event = _event(line)
            by_target[event.target].append(event)
    return by_target


def lines(path: Path) -> Iterator[bytes]:
    """The lines of a file, line breaks included."""
    with gzip.open(path) as file:
        yield from file


def _event(line: bytes) -> Published:
    fields = json.loads(line)
    body = b""
    if "body" in fields:
        # It is the last member: its bytes go up to the brace that ends the line.
        body = line[line.index(b'"body":') + len('"body":') : line.rindex(b"}")]
        assert json.loads(body) == fields["body"]
    return Published(fields["method"], fields["target"], fields.get("content_type"), body)
