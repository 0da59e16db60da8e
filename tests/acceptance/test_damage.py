"""Damaged page files: named, never served, written again from the log, byte for byte as they were."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.acceptance.support import (
    Response,
    archives,
    checked,
    events_in,
    gateway_on,
    get,
    lasting_node,
    message,
    put,
    readiness,
    running,
    send,
    until,
    until_ready,
)
from tests.servers import Server, log_node

# Each test starts processes and ends some of them by force.
pytestmark = pytest.mark.slow

EVENTS = 13
FEED = "/feeds/events/0"
OPEN_PAGE = 2


class Kept(NamedTuple):
    """A gateway that has stopped, its node, and what it served: pages 0 and 1 sealed, page 2 open."""

    node: Server
    gateway: Server
    sealed: list[Response]
    latest: Response

    def page(self, number: int) -> Path:
        return self.gateway.data / "feeds" / "events" / "0" / "pages" / str(number)


@pytest.fixture
def kept(tmp_path) -> Iterator[Kept]:
    node = lasting_node(tmp_path / "node")
    with running(node):
        gateway = gateway_on(node.amqp, tmp_path / "gateway", "--archive-events-max", "5")
        with running(gateway):
            fill(gateway, EVENTS)
            sealed, latest = archives(gateway.http), get(gateway.http, f"{FEED}/latest")
            assert len(sealed) == OPEN_PAGE
        yield Kept(node, gateway, sealed, latest)


def fill(gateway: Server, count: int) -> None:
    for number in range(count):
        assert put(gateway.http, f"/things/{number}", b"number %d" % number).status == 201


def same(one: Response, two: Response) -> bool:
    return (one.status, one.undated, one.body) == (two.status, two.undated, two.body)


def flip_a_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def add_to(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"more")


DAMAGES = [flip_a_byte, cut_short, add_to, Path.unlink]
Damage = Callable[[Path], Any]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_sealed_page_is_written_again_from_the_log(kept, damage: Damage):
    damage(kept.page(0))
    with running(kept.gateway) as gateway:

        def whole() -> bool:
            answer = get(gateway.http, f"{FEED}/archive/0")
            assert answer.status in (200, 503), answer
            assert answer.status == 503 or same(answer, kept.sealed[0])
            return answer.status == 200

        until(whole)
        assert same(get(gateway.http, f"{FEED}/archive/1"), kept.sealed[1])
        said = gateway.log()
        assert "error page_damaged log=events partition=0 page=0" in said
        assert "page_repaired log=events partition=0 page=0" in said
        assert kept.page(0).read_bytes() == kept.sealed[0].body
        checked(gateway.http)


@pytest.mark.parametrize("damage", [flip_a_byte, cut_short, Path.unlink])
def test_a_damaged_open_page_is_written_again_from_the_log_and_goes_on(kept, damage: Damage):
    damage(kept.page(OPEN_PAGE))
    with running(kept.gateway) as gateway:
        assert same(get(gateway.http, f"{FEED}/latest"), kept.latest)
        assert "page_repaired log=events partition=0 page=2" in gateway.log()
        fill(gateway, 5)
        assert len(archives(gateway.http)) == OPEN_PAGE + 1
        checked(gateway.http)


def test_what_was_never_committed_is_cut_off_the_open_page(kept):
    add_to(kept.page(OPEN_PAGE))
    kept.page(OPEN_PAGE + 1).write_bytes(b"of a batch that was never committed")
    with running(kept.gateway) as gateway:
        assert same(get(gateway.http, f"{FEED}/latest"), kept.latest)
        assert "page_damaged" not in gateway.log()
        assert not kept.page(OPEN_PAGE + 1).exists()
        checked(gateway.http)


@pytest.mark.parametrize("damage", [flip_a_byte, cut_short, Path.unlink])
def test_damaged_pages_are_not_served_while_the_log_is_away(kept, damage: Damage):
    kept.node.stop()
    damage(kept.page(0))
    damage(kept.page(OPEN_PAGE))
    with running(kept.gateway, ready=False) as gateway:
        for path, named in (("archive/0", f"page 0 in {kept.page(0)}"), ("latest", f"page 2 in {FEED}")):
            answer = get(gateway.http, f"{FEED}/{path}")
            assert answer.status == 503, answer
            assert answer.header("Retry-After")
            assert f"{named} is damaged" in answer.detail
            assert "writes it again from the event log" in answer.detail
        assert f"page_damaged log=events partition=0 page={OPEN_PAGE}" in gateway.log()
        assert same(get(gateway.http, f"{FEED}/archive/1"), kept.sealed[1])
        assert readiness(gateway.http)[0] == 503

        kept.node.start()
        until_ready(gateway.http)
        assert same(get(gateway.http, f"{FEED}/latest"), kept.latest)
        until(lambda: get(gateway.http, f"{FEED}/archive/0").status == 200)
        assert same(get(gateway.http, f"{FEED}/archive/0"), kept.sealed[0])
        checked(gateway.http)


def test_damage_that_a_reader_finds_is_repaired_without_a_restart(kept):
    with running(kept.gateway) as gateway:
        until(lambda: "ingest_attached" in gateway.log())
        flip_a_byte(kept.page(0))
        answer = get(gateway.http, f"{FEED}/archive/0")
        assert answer.status == 503, answer
        until(lambda: get(gateway.http, f"{FEED}/archive/0").status == 200)
        assert same(get(gateway.http, f"{FEED}/archive/0"), kept.sealed[0])


def test_damage_in_the_open_page_is_repaired_when_a_reader_finds_it(kept):
    path = kept.page(OPEN_PAGE)
    committed = path.read_bytes()
    last = EVENTS - 1
    with running(kept.gateway) as gateway:
        until(lambda: "ingest_attached" in gateway.log())
        path.write_bytes(committed.replace(b"number %d" % last, b"nvmber %d" % last))
        assert get(gateway.http, f"/things/{last}").status == 503
        until(lambda: get(gateway.http, f"/things/{last}").status == 200)
        assert path.read_bytes() == committed
        assert same(get(gateway.http, f"{FEED}/latest"), kept.latest)
        fill(gateway, 5)
        checked(gateway.http)


@pytest.mark.parametrize("more", [0, 5], ids=["goes on", "is sealed by it"])
def test_damage_in_the_open_page_is_repaired_when_a_patch_builds_on_it(kept, more):
    path = kept.page(OPEN_PAGE)
    last = EVENTS - 1
    with running(kept.gateway) as gateway:
        until(lambda: "ingest_attached" in gateway.log())
        committed = path.read_bytes()
        path.write_bytes(committed.replace(b"number %d" % last, b"nvmber %d" % last))
        patch = message(
            b"{}", target=f"/things/{last}", subject="PATCH", content_type="application/merge-patch+json"
        )
        send(kept.node.amqp, [patch, *[message(b"1") for _ in range(more)]])
        # Nobody has asked for the target: the ingest finds the damage by itself.
        until(lambda: events_in(gateway.http) == EVENTS + 1 + more)
        fill(gateway, 6)
        assert "page_repaired log=events partition=0 page=2" in gateway.log()
        assert get(gateway.http, f"/things/{last}").status == 409  # no JSON: unknown after a patch
        assert path.read_bytes().startswith(committed)
        checked(gateway.http)


@pytest.mark.parametrize("events", [0, 1, EVENTS + 5])
def test_a_page_that_the_log_no_longer_holds_stays_unserved_and_the_rest_is_served(kept, tmp_path, events):
    kept.node.stop()
    address = kept.node.amqp.removeprefix("amqp://")
    flip_a_byte(kept.page(0))
    other = log_node(tmp_path / "other", "--amqp-listen", address)
    with running(other), running(kept.gateway, ready=False) as gateway:
        send(other.amqp, [message(b"another event") for _ in range(events)])
        until(lambda: "error page_not_repaired log=events partition=0 page=0" in gateway.log())
        assert "the log no longer holds its events" in gateway.log()
        answer = get(gateway.http, f"{FEED}/archive/0")
        assert answer.status == 503
        assert str(kept.page(0)) in answer.detail
        assert same(get(gateway.http, f"{FEED}/archive/1"), kept.sealed[1])
        assert same(get(gateway.http, f"{FEED}/latest"), kept.latest)
        assert readiness(gateway.http)[0] == 503
