"""`wes state`: the current state that a data folder keeps beside its pages, made again from them."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from gateway.storage.filestore import FeedStore, StoredFeed

from .feed_folders import feed_folders
from .options import add_options


def register(subparsers: Any) -> None:
    """Add the command with its verb."""
    parser = subparsers.add_parser("state", help="the current state of the targets in a data folder")
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    rebuild = verbs.add_parser(
        "rebuild", help="make it again from the pages; the gateway must not run on this folder"
    )
    rebuild.set_defaults(run=_rebuild)
    add_options(rebuild, "data", "log")
    rebuild.add_argument("--partition", help="only this one")


def _rebuild(parsed: argparse.Namespace) -> int:
    found = False
    for log, folder in feed_folders(parsed):
        found = True
        print(_rebuilt(log, folder, as_json=parsed.json))
    if not found:
        print(f"wes: there is no partition {parsed.partition}", file=sys.stderr)
    return 0 if found else 1


def _rebuilt(log: str, folder: Path, *, as_json: bool) -> str:
    with closing(StoredFeed(folder)) as stored:
        settings = stored.settings
    with closing(FeedStore(folder, settings)) as store:
        before = store.head.digest
        wrong = store.rebuild_state()
        digest = store.head.digest
    facts = {
        "log": log,
        "partition": folder.name,
        "entities": digest.entities,
        "digest": digest.hex(),
        "digest_before": before.hex(),
        "wrong_before": wrong,
    }
    if as_json:
        return json.dumps(facts)
    said = "as it was" if not wrong and digest == before else f"{wrong} were wrong, digest was {before.hex()}"
    return f"{log} {folder.name}  {digest.entities} entities  digest {digest.hex()}  {said}"
