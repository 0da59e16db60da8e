"""A disk that is full: said so, nothing acknowledged that is not kept, readers served, and on when there is room.

The limit on the size of files stands in for the disk: it can be set and lifted while a process runs, and
SQLite and the page files meet it as they would meet the end of the disk.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager

from gateway.core.errors import MessageRefused
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
FILE_BYTES_MAX = 200_000
ENVIRONMENT = {"WES_HTTP_PUBLISH_WAIT_MAX_S": "1"}


@contextmanager
def full_disk(pid: int) -> Iterator[None]:
    """No file of the process may grow beyond FILE_BYTES_MAX."""
    _, most = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (FILE_BYTES_MAX, most))
    yield
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, most))


def fill(base: str) -> tuple[int, int]:
    """PUT until one is not answered with 201; how many were, and the status of that one."""
    for number in range(20):
        answer = put(base, f"/things/{number}", BODY)
        if answer.status != 201:
            return number, answer.status
    raise AssertionError("the disk did not fill up")


def test_a_gateway_on_a_full_disk_serves_readers_and_goes_on_when_there_is_room(tmp_path):
    node = log_node(tmp_path / "node")
    gateway = gateway_on(node.amqp, tmp_path / "gateway")
    with running(node):
        options = ("--archive-bytes-max", "100000")
        gateway = gateway_on(node.amqp, tmp_path / "gateway", *options, **ENVIRONMENT)
        with running(gateway):
            with full_disk(gateway.pid):
                visible, status = fill(gateway.http)
                # The log has it, durable; that it is visible is not said.
                assert status == 202
                reasons = until_unready(gateway.http, "cannot write to")
                assert str(gateway.data / "feeds" / "events" / "0") in reasons
                assert "make room or mend the disk" in reasons
                shown = get(gateway.http, "/feeds/events/0/latest")
                assert shown.status == 200
                for _ in range(40):
                    assert readiness(gateway.http)[0] == 503
                    time.sleep(0.02)
                    answer = put(gateway.http, "/things/refused", BODY)
                    assert answer.status == 503, answer
                    assert answer.header("Retry-After")
                    assert "nothing was published" in answer.detail
                    assert "make room or mend the disk" in answer.detail
                assert get(gateway.http, "/feeds/events/0/latest").body == shown.body
                assert get(gateway.http, "/feeds/events/0/archive/0").status == 200
                assert events_in(gateway.http) == visible
            until_ready(gateway.http)
            until(lambda: events_in(gateway.http) == visible + 1)
            assert put(gateway.http, "/things/last", b"last").status == 201
            targets = [part.about for part in entries(gateway.http)]
            assert targets == [f"/things/{number}" for number in range(visible + 1)] + ["/things/last"]
            checked(gateway.http)


def test_a_node_on_a_full_disk_refuses_and_goes_on_when_there_is_room(tmp_path):
    node = log_node(tmp_path / "node")
    with running(node), running(gateway_on(node.amqp, tmp_path / "gateway", **ENVIRONMENT)) as gateway:
        with full_disk(node.pid):
            visible, status = fill(gateway.http)
            answer = put(gateway.http, "/things/refused", BODY)
            assert status == answer.status == 503
            assert answer.header("Retry-After")
            assert "takes no events" in answer.detail
            (outcome,) = send(node.amqp, [message(BODY, target="/things/refused")])
            assert isinstance(outcome, MessageRefused)
            assert "takes no events" in str(outcome)
            assert "error appends_fail log=events" in node.log()
            assert len(entries(gateway.http)) == visible
        assert put(gateway.http, "/things/last", b"last").status == 201
        assert "appends_recovered log=events" in node.log()
        targets = [part.about for part in entries(gateway.http)]
        assert targets == [f"/things/{number}" for number in range(visible)] + ["/things/last"]
        checked(gateway.http)
