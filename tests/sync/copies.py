"""Copies read as anybody would read them: with SQLite, as files, as lines; and `wes sync` as a process."""

from __future__ import annotations

import base64
import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from tests.walk import WalkedEvent


def query(path: Path, statement: str, *values: Any) -> list[tuple[Any, ...]]:
    """The rows of a query on a copy that may be growing."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=30)) as db:
        return db.execute(statement, values).fetchall()


def sqlite_bodies(path: Path, partition: str) -> dict[str, bytes]:
    statement = "SELECT target, body FROM entities WHERE partition = ? AND state = 'present'"
    return dict(query(path, statement, partition))


def folder_bodies(folder: Path, partition: str) -> dict[str, bytes]:
    """The files of a partition; what a kill left unfinished is not one of them."""
    files = folder / partition
    return {
        unquote(path.name): path.read_bytes() for path in files.iterdir() if not path.name.startswith(".")
    }


def line_events(path: Path) -> dict[str, list[WalkedEvent]]:
    """The events of lines, by partition."""
    found: dict[str, list[WalkedEvent]] = {}
    for line in path.read_bytes().splitlines():
        facts = json.loads(line)
        if "start_over" in facts:
            found[facts["start_over"]["partition"]] = []
            continue
        body = b""
        if "body" in facts:
            body = line[line.index(b'"body":') + len('"body":') : -1]
        elif "body_text" in facts:
            body = facts["body_text"].encode()
        elif "body_base64" in facts:
            body = base64.b64decode(facts["body_base64"])
        event = WalkedEvent(
            facts["content_id"], facts["target"], facts["method"], facts.get("content_type"), body
        )
        found.setdefault(facts["partition"], []).append(event)
    return found


def sync_command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "gateway", "sync", *map(str, arguments)]


def run_sync(*arguments: str | Path, status: int = 0) -> subprocess.CompletedProcess[str]:
    """`wes sync` to its end, which must be with `status`."""
    done = subprocess.run(sync_command(*arguments), capture_output=True, text=True, timeout=120)
    assert done.returncode == status, (done.returncode, done.stdout[-2000:], done.stderr[-2000:])
    return done


def start_sync(*arguments: str | Path, output: Any = subprocess.DEVNULL) -> subprocess.Popen[str]:
    return subprocess.Popen(
        sync_command(*arguments),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.PIPE,
        text=True,
    )
