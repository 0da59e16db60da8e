"""A full disk: said so, nothing acknowledged that is not kept, readers served, and on when there is room."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from gateway.core.errors import LogUnavailable
from tests.acceptance.disks import KINDS, Disk
from tests.acceptance.support import (
    checked,
    entries,
    events_in,
    gateway_on,
    get,
    message,
    put,
    readiness,
    running,
    send,
    until,
    until_ready,
    until_unready,
)
from tests.servers import log_node

BODY = b"x" * 30_000
ENVIRONMENT = {"WES_HTTP_PUBLISH_WAIT_MAX_S": "1"}


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def disk(request, tmp_path) -> Iterator[Disk]:
    with request.param(tmp_path / "disk") as disk:
        yield disk


def fill(base: str) -> tuple[int, int]:
    """PUT until one is not answered with 201; how many were, and the status of that one."""
    for number in range(50):
        answer = put(base, f"/things/{number}", BODY)
        if answer.status != 201:
            return number, answer.status
    raise AssertionError("the disk did not fill up")


@pytest.mark.slow
def test_a_gateway_on_a_full_disk_serves_readers_and_goes_on_when_there_is_room(tmp_path, disk):
    node = log_node(tmp_path / "node")
    with running(node):
        options = ("--archive-events-max", "1")
        gateway = gateway_on(node.amqp, disk.folder / "gateway", *options, **ENVIRONMENT)
        gateway.log_file = tmp_path / "gateway.log"
        with running(gateway):
            first = [f"/before/{number}" for number in range(3)]
            for target in first:
                assert put(gateway.http, target, b"before").status == 201
            with disk.full(gateway.pid):
                visible, status = fill(gateway.http)
                # The log has it, durable; that it is visible is not said.
                assert status == 202
                reasons = until_unready(gateway.http, "cannot write to")
                assert str(gateway.data / "feeds" / "events" / "0") in reasons
                assert "make room or mend the disk" in reasons
                latest, archive = "/feeds/events/0/latest", "/feeds/events/0/archive/0"
                shown = get(gateway.http, latest)
                assert shown.status == 200
                for _ in range(30):
                    assert readiness(gateway.http)[0] == 503
                    answer = put(gateway.http, "/things/refused", BODY)
                    assert answer.status == 503, answer
                    assert answer.header("Retry-After")
                    assert "nothing was published" in answer.detail
                    assert "make room or mend the disk" in answer.detail
                    time.sleep(0.03)
                assert get(gateway.http, latest).body == shown.body
                assert get(gateway.http, archive).status == 200
                assert events_in(gateway.http) == len(first) + visible
            until_ready(gateway.http)
            until(lambda: events_in(gateway.http) == len(first) + visible + 1)
            assert put(gateway.http, "/things/last", b"last").status == 201
            targets = [part.about for part in entries(gateway.http)]
            assert targets == [*first, *(f"/things/{n}" for n in range(visible + 1)), "/things/last"]
            checked(gateway.http)


def test_a_node_on_a_full_disk_refuses_and_goes_on_when_there_is_room(tmp_path, disk):
    node = log_node(disk.folder / "node")
    node.log_file = tmp_path / "node.log"
    with running(node), running(gateway_on(node.amqp, tmp_path / "gateway", **ENVIRONMENT)) as gateway:
        with disk.full(node.pid):
            visible, status = fill(gateway.http)
            answer = put(gateway.http, "/things/refused", BODY)
            assert status == answer.status == 503, answer
            assert answer.header("Retry-After")
            assert "nothing was published" in answer.detail
            assert "takes no events" in answer.detail
            (outcome,) = send(node.amqp, [message(BODY, target="/things/refused")])
            assert isinstance(outcome, LogUnavailable)
            assert "takes no events" in str(outcome)
            assert "error appends_fail log=events" in node.log()
            assert len(entries(gateway.http)) == visible
        assert put(gateway.http, "/things/last", b"last").status == 201
        assert "appends_recovered log=events" in node.log()
        targets = [part.about for part in entries(gateway.http)]
        assert targets == [*(f"/things/{n}" for n in range(visible)), "/things/last"]
        checked(gateway.http)
