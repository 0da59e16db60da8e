"""A real catalogue in two stages, a snapshot of each: index, parts, gateway, tables, copies and replay agree.

A copy made from the newest one reads nothing of the feeds that is older, whatever is published meanwhile.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any

import duckdb
import pytest
from deltalake import DeltaTable

from gateway.core.multipart import boundary_of
from gateway.core.snapshots import read_part
from tests.acceptance import catalogue
from tests.acceptance.proxy import proxy_before
from tests.acceptance.support import call, events_in, get, log_document, until, wes
from tests.sync.replay import State, digest, replay

PARTITIONS = 4
MORE_EVENTS = 20_000
ARCHIVE = re.compile(r"/feeds/events/(\d+)/archive/(\d+)")


@pytest.mark.slow
def test_a_catalogue_in_two_stages_is_the_same_in_snapshots_tables_copies_and_a_replay(
    start_gateway, tmp_path
):
    gateway = start_gateway("--partitions", str(PARTITIONS))
    output = gateway.data / "snapshots"
    files = catalogue.files()
    histories: dict[str, list[catalogue.Published]] = {}
    published = 0
    for file in files:
        published += _publish(gateway, file, published)
        for target, events in catalogue.events([file]).items():
            histories.setdefault(target, []).extend(events)
        states = replay(event for history in histories.values() for event in history)
        built = _build("--from", gateway.http, "--output", output)
        index = get(gateway.http, "/snapshots/events/latest").json
        assert (index["id"], index["digest"]) == (built["snapshot"], built["digest"])
        assert _position(index) == log_document(gateway.http)["position"]
        assert (index["entities"], index["digest"]) == (len(states), digest(states))
        assert log_document(gateway.http)["digest"] == index["digest"]
        _check_parts(gateway.http, index, states)
        _check_tables(output, index, published)
        if published == 129_718 or len(states) > 60_000:
            assert len(states) == (63_436 if file is files[0] else 68_820)

    # The same vector, made at once and elsewhere, from the data folder.
    elsewhere = tmp_path / "elsewhere"
    again = elsewhere / "events" / _build("--from", gateway.data, "--output", elsewhere)["snapshot"]
    parts = json.loads((again / "index.json").read_bytes())["parts"]
    assert [_what(part) for part in parts] == [_what(part) for part in index["parts"]]
    for number in range(len(parts)):
        one, other = output / "events" / index["id"] / str(number), again / str(number)
        assert one.read_bytes() == other.read_bytes()

    _check_sync(gateway, tmp_path, index, states)


def _publish(gateway: Any, file: Path, before: int) -> int:
    done = wes("publish", gateway.amqp, file)
    assert done.returncode == 0, done.stderr
    count = sum(1 for _ in catalogue.lines(file))
    until(lambda: events_in(gateway.http) >= before + count, within_s=120)
    return count


def _build(*options: str | Path) -> dict[str, Any]:
    done = wes("snapshot", "build", *options, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def _position(index: dict[str, Any]) -> dict[str, int]:
    return {feed["partition"]: feed["last"] for feed in index["feeds"]}


def _what(part: dict[str, Any]) -> dict[str, Any]:
    """All of a part's entry but its place."""
    return {name: value for name, value in part.items() if name != "uri"}


def _check_parts(base: str, index: dict[str, Any], states: dict[str, State]) -> None:
    """Every entity is in one part, as the replay has it, and the parts are what the index says."""
    assert index["uris"] == [part["uri"] for part in index["parts"]]
    left = dict(states)
    for part in index["parts"]:
        answer = get(base, part["uri"])
        assert (answer.status, len(answer.body)) == (200, part["size"])
        assert sha256(answer.body).hexdigest() == part["sha256"] == answer.header("ETag").strip('"')
        content_type = answer.header("Content-Type")
        assert content_type.startswith("multipart/package; boundary=")
        found = {}
        for item in read_part(boundary_of(content_type), answer.body):
            state = found[item.target] = left.pop(item.target)
            assert item.entity.content_type == state.content_type
            assert json.loads(item.entity.body) == json.loads(state.body)
        assert (len(found), digest(found)) == (part["count"], part["digest"])
    assert not left


def _check_tables(output: Path, index: dict[str, Any], events: int) -> None:
    """Both tables, read without Java by two readers."""
    counts, totals = [], []
    for name in ("events", "state"):
        table = DeltaTable(output / index["delta"][name]["path"], version=index["delta"][name]["version"])
        counts.append(table.count())
        totals.append(table.to_pyarrow_table().num_rows)
    assert counts[0] == totals[0] == events
    state = DeltaTable(output / index["delta"]["state"]["path"])
    rows = [
        row
        for row in state.to_pyarrow_table(columns=["target", "etag", "state"]).to_pylist()
        if row["state"] != "deleted"
    ]
    assert (len(rows), _digest(rows)) == (index["entities"], index["digest"])
    # DuckDB reads the files that the table's log names.
    with closing(duckdb.connect()) as database:
        files = DeltaTable(output / index["delta"]["state"]["path"]).file_uris()
        query = "SELECT target, etag FROM read_parquet(?) WHERE state <> 'deleted'"
        found = database.execute(query, [files]).fetchall()
        files = DeltaTable(output / index["delta"]["events"]["path"]).file_uris()
        assert database.execute("SELECT count(*) FROM read_parquet(?)", [files]).fetchone() == (events,)
    rows = [{"target": target, "etag": etag} for target, etag in found]
    assert (len(rows), _digest(rows)) == (index["entities"], index["digest"])


def _digest(rows: list[dict[str, str]]) -> str:
    total = sum(int(sha256(f"{row['target']}\0{row['etag']}".encode()).hexdigest(), 16) for row in rows)
    return f"{total % 2**256:064x}"


def _check_sync(gateway: Any, tmp_path: Path, index: dict[str, Any], states: dict[str, State]) -> None:
    """A copy from nothing asks for no document before the snapshot's, also while more is published."""
    first = {feed["partition"]: int(feed["document"].rpartition("/")[2]) for feed in index["feeds"]}
    with proxy_before(tmp_path / "nginx", gateway.http) as proxy:
        for destination in (tmp_path / "copy.sqlite", f"{tmp_path / 'copy'}/"):
            done = wes("sync", proxy.url, destination, "--verify", "--json")
            assert done.returncode == 0, done.stdout + done.stderr
            summary = json.loads(done.stdout.splitlines()[-1])
            assert (summary["digest"], summary["entities"]) == (index["digest"], len(states))
        more = tmp_path / "more.ndjson"
        more.write_text("".join(_more(number) for number in range(MORE_EVENTS)))
        publishing = subprocess.Popen(
            [sys.executable, "-m", "gateway", "publish", gateway.amqp, str(more)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        done = wes("sync", proxy.url, tmp_path / "late.sqlite", "--json")
        assert publishing.wait(120) == 0
        assert done.returncode == 0, done.stdout + done.stderr
        total = sum(last + 1 for last in _position(index).values())
        until(lambda: events_in(gateway.http) >= total + MORE_EVENTS)
        done = wes("sync", proxy.url, tmp_path / "late.sqlite", "--verify", "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        document = log_document(gateway.http)
        assert json.loads(done.stdout.splitlines()[-1])["digest"] == document["digest"] != index["digest"]
        time.sleep(0.2)
        asked = [request.path for request in proxy.asked()]
    parts = {path for path in asked if path in index["uris"]}
    assert parts == set(index["uris"])
    documents = [match.groups() for path in asked if (match := ARCHIVE.fullmatch(path))]
    assert documents
    assert [(partition, page) for partition, page in documents if int(page) < first[partition]] == []


def _more(number: int) -> str:
    event = {
        "method": ("PUT", "PUT", "PUT", "DELETE")[number % 4],
        "target": f"/more/{number * 7919 % 5003}",
    }
    if event["method"] == "PUT":
        event |= {"content_type": "application/json", "body": {"number": number}}
    return json.dumps(event) + "\n"


def test_without_a_snapshot_there_is_a_problem_document(start_gateway):
    gateway = start_gateway()
    answer = call(gateway.http, "GET", "/snapshots/events/latest")
    assert answer.status == 404
    assert "wes snapshot build" in answer.detail
