"""`wes quarantine`: messages that could not become events; they stay, each with its reason."""

from __future__ import annotations

import argparse
import base64
import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from gateway.core.errors import InvalidSetting
from gateway.core.pages import Quarantined
from gateway.storage.filestore import StoredFeed

from .feed_folders import feed_folders
from .options import add_options


class _Entry(NamedTuple):
    partition: str
    number: int
    message: Quarantined


def register(subparsers: Any) -> None:
    """Add the command with its three verbs."""
    parser = subparsers.add_parser("quarantine", help="messages that could not become events")
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    listing = verbs.add_parser("list", help="list them")
    listing.set_defaults(run=_list)
    show = verbs.add_parser("show", help="print the raw bytes of one")
    show.add_argument("number", type=int, help="its number, from the list")
    show.set_defaults(run=_show)
    export = verbs.add_parser("export", help="write all as JSON, one object a line, bytes in base64")
    export.set_defaults(run=_export)
    for verb in (listing, show, export):
        add_options(verb, "data", "log")
        verb.add_argument("--partition", help="only this one")


def _list(parsed: argparse.Namespace) -> int:
    for entry in _entries(parsed):
        fields = _facts(entry) | {"bytes": len(entry.message.raw)}
        if parsed.json:
            print(json.dumps(fields))
        else:
            print(
                f"{fields['partition']} {fields['number']}  offset {fields['offset']}"
                f"  {fields['time'] or 'no time'}  {fields['bytes']} bytes  {fields['reason']}"
            )
    return 0


def _show(parsed: argparse.Namespace) -> int:
    found = [entry for entry in _entries(parsed) if entry.number == parsed.number]
    if len(found) > 1:
        raise InvalidSetting(f"several partitions have a number {parsed.number}: give --partition")
    if not found:
        print(f"wes: there is no message {parsed.number} in the quarantine", file=sys.stderr)
        return 1
    if parsed.json:
        print(json.dumps(_with_bytes(found[0])))
    else:
        sys.stdout.buffer.write(found[0].message.raw)
    return 0


def _export(parsed: argparse.Namespace) -> int:
    for entry in _entries(parsed):
        print(json.dumps(_with_bytes(entry)))
    return 0


def _entries(parsed: argparse.Namespace) -> Iterator[_Entry]:
    for _, folder in feed_folders(parsed):
        yield from _of_feed(folder)


def _of_feed(folder: Path) -> Iterator[_Entry]:
    feed = StoredFeed(folder)
    try:
        after = 0
        while batch := feed.quarantine(after):
            for number, message in batch:
                yield _Entry(folder.name, number, message)
            after = batch[-1][0]
    finally:
        feed.close()


def _facts(entry: _Entry) -> dict[str, Any]:
    time_ms = entry.message.timestamp_ms
    return {
        "partition": entry.partition,
        "number": entry.number,
        "offset": entry.message.offset,
        "time": None if time_ms is None else datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(),
        "reason": entry.message.reason,
    }


def _with_bytes(entry: _Entry) -> dict[str, Any]:
    return _facts(entry) | {"message_base64": base64.b64encode(entry.message.raw).decode()}
