"""Current state of a running gateway: conditions among many writers, replicas, a state made again."""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import threading
from urllib.parse import urlsplit

import pytest

from tests.acceptance.support import (
    Response,
    call,
    checked,
    embedded_node,
    entries,
    get,
    log_document,
    put,
    send,
    until,
    until_ready,
    wes,
)
from tests.acceptance.support import message as amqp_message
from tests.servers import Server

JSON = "application/json"
WRITES, WRITERS, COUNTERS = 10_000, 16, 10


class Counting(threading.Thread):
    """Adds one to a counter at random, again and again, each time to what it has just read."""

    def __init__(self, base: str, number: int, writes: int) -> None:
        super().__init__()
        self._random = random.Random(number)
        self._connection = http.client.HTTPConnection(urlsplit(base).netloc, timeout=60)
        self._writes = writes
        self.accepted = dict.fromkeys(range(COUNTERS), 0)
        self.refused = 0
        self.surprise: BaseException | None = None

    def run(self) -> None:
        try:
            for _ in range(self._writes):
                self._add_one(self._random.randrange(COUNTERS))
        except BaseException as error:
            self.surprise = error
        finally:
            self._connection.close()

    def _add_one(self, counter: int) -> None:
        status, etag, body = self._ask("GET", counter)
        if status == 404:
            condition, value = {"If-None-Match": "*"}, 1
        else:
            assert (status, etag is not None) == (200, True)
            condition, value = {"If-Match": etag}, int(body) + 1
        status, etag, _ = self._ask("PUT", counter, b"%d" % value, condition | {"Content-Type": JSON})
        if status == 201:
            assert etag is not None
            self.accepted[counter] += 1
        else:
            assert status == 412
            self.refused += 1

    def _ask(self, method, counter, body=None, headers=None):
        self._connection.request(method, f"/counters/{counter}", body, headers or {})
        response = self._connection.getresponse()
        return response.status, response.getheader("ETag"), response.read()


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--workers", "2")], ids=["alone", "with readers"])
def test_every_increment_that_was_accepted_counts_once(start_gateway, options):
    gateway = start_gateway("--partitions", "2", *options)
    writers = [Counting(gateway.http, number, WRITES // WRITERS) for number in range(WRITERS)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.surprise for writer in writers] == [None] * WRITERS
    accepted = sum(sum(writer.accepted.values()) for writer in writers)
    refused = sum(writer.refused for writer in writers)
    assert accepted + refused == WRITES // WRITERS * WRITERS
    assert accepted > WRITES / 10
    assert refused > 0, "the writers never met"
    for counter in range(COUNTERS):
        value = int(get(gateway.http, f"/counters/{counter}").body)
        assert value == sum(writer.accepted[counter] for writer in writers)
    assert sum(entry["events"] for entry in log_document(gateway.http)["partitions"]) == accepted


def test_replicas_agree_on_state_and_digest_whatever_batches_they_took(start_gateway, start_node):
    node = start_node("--partitions", "2")
    one = start_gateway("--broker", node.amqp)
    put(one.http, "/a", b'{"n": 1.10}', JSON)
    targets = [f"/t/{n % 7}" for n in range(50)]
    send(node.amqp, [amqp_message(b"1", target=t, group_id=t, content_type=JSON) for t in targets])
    call(one.http, "PATCH", "/a", b'{"m": [1e400]}', {"Content-Type": "application/merge-patch+json"})
    call(one.http, "PATCH", "/t/1", b"x", {"Content-Type": "text/x-diff"})
    call(one.http, "DELETE", "/t/2")
    other = start_gateway("--broker", node.amqp)
    count = sum(entry["events"] for entry in until(lambda: _complete(one, 54))["partitions"])
    document = until(lambda: _complete(other, count))
    assert document == log_document(one.http)
    assert document["entities"] == 7
    assert get(one.http, "/a").body == b'{"m":[1e400],"n":1.10}'
    for target, status in {"/a": 200, "/t/0": 200, "/t/1": 409, "/t/2": 410, "/t/9": 404}.items():
        answers = [get(gateway.http, target) for gateway in (one, other)]
        assert {answer.status for answer in answers} == {status}
        assert answers[0].undated == answers[1].undated
        assert answers[0].body == answers[1].body


def _complete(gateway: Server, events: int):
    document = log_document(gateway.http)
    found = sum(entry["events"] for entry in document["partitions"])
    return document if found == events else None


@pytest.mark.slow
def test_state_is_made_again_from_the_pages_by_command(start_gateway):
    gateway = start_gateway("--archive-events-max", "3")
    for number in range(10):
        put(gateway.http, f"/things/{number % 4}", b"%d" % number, JSON)
    digest = log_document(gateway.http)["digest"]
    busy = wes("state", "rebuild", "--data", gateway.data)
    assert busy.returncode == 1
    assert "another process writes to" in busy.stderr
    gateway.stop()
    done = wes("state", "rebuild", "--data", gateway.data, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "log": "events",
        "partition": "0",
        "entities": 4,
        "digest": digest,
        "digest_before": digest,
        "wrong_before": 0,
    }
    assert wes("state", "rebuild", "--data", gateway.data).stdout.endswith("as it was\n")
    missing = wes("state", "rebuild", "--data", gateway.data, "--partition", "7")
    assert (missing.returncode, missing.stderr) == (1, "wes: there is no partition 7\n")
    gateway.start()
    assert log_document(gateway.http)["digest"] == digest


def test_a_condition_waits_for_what_was_taken_and_is_not_visible_yet(start_gateway):
    gateway = start_gateway()
    for number in range(20):
        answer = put(gateway.http, "/n", b"%d" % number, JSON, headers={"Prefer": "respond-async"})
        assert answer.status == 202
    answer = put(gateway.http, "/n", b"first", JSON, headers={"If-None-Match": "*"})
    assert answer.status == 412
    assert len(entries(gateway.http)) == 20
    assert get(gateway.http, "/n").body == b"19"
    checked(gateway.http)


@pytest.mark.slow
def test_an_unknown_outcome_holds_up_conditions_about_its_target_until_it_is_known(start_gateway):
    gateway = start_gateway(WES_HTTP_PUBLISH_WAIT_MAX_S="2")
    etag = put(gateway.http, "/n", b"1", JSON, headers={"If-None-Match": "*"}).header("ETag")
    node = embedded_node(gateway)
    os.kill(node, signal.SIGSTOP)
    assert put(gateway.http, "/n", b"2", JSON).status == 504
    assert get(gateway.http, "/n").header("ETag") == etag
    refused = put(gateway.http, "/n", b"3", JSON, headers={"If-Match": etag})
    assert (refused.status, refused.header("Retry-After") is not None) == (503, True)
    os.kill(node, signal.SIGKILL)
    until_ready(gateway.http)
    answer = until(lambda: _unless(503, put(gateway.http, "/n", b"4", JSON, headers={"If-Match": etag})))
    # What had no answer is in the log or is not; whichever it is, the condition saw it.
    bodies = [part.body for part in entries(gateway.http)]
    assert (answer.status, bodies) in ((201, [b"1", b"4"]), (412, [b"1", b"2"]))


@pytest.mark.slow
def test_conditions_wait_until_the_feed_has_caught_up_with_its_log(start_gateway, start_node):
    node = start_node()
    send(node.amqp, [amqp_message(b"%d" % n, target=f"/p/{n}", content_type=JSON) for n in range(20_000)])
    gateway = start_gateway("--broker", node.amqp)
    condition = {"If-None-Match": "*"}
    answer = until(lambda: _unless(503, put(gateway.http, "/p/19999", b"0", JSON, headers=condition)))
    assert answer.status == 412
    assert get(gateway.http, "/p/19999").body == b"19999"


def test_content_types_with_blanks_give_the_digest_of_the_feed(start_gateway, tmp_path):
    gateway = start_gateway()
    send(gateway.amqp, [amqp_message(b"1", target="/a", content_type="text/plain ")])
    until(lambda: get(gateway.http, "/a").status == 200)
    done = wes("sync", gateway.http, tmp_path / "copy.sqlite", "--verify")
    assert done.returncode == 0, done.stdout


def test_patches_of_a_large_entity_hold_nobody_up(start_gateway):
    gateway = start_gateway()
    large = b'{"a":"%s"}' % (b"x" * 900_000)
    assert put(gateway.http, "/large", large, JSON).status == 201
    huge = b'{"a":"%s"}' % (b"x" * 2_000_000)
    assert put(gateway.http, "/huge", huge, JSON).status == 201
    merge = {"Content-Type": "application/merge-patch+json"}
    assert call(gateway.http, "PATCH", "/large", b'{"b":1}', merge).status == 204
    assert get(gateway.http, "/large").body == large[:-1] + b',"b":1}'
    # Beyond the limit, nobody applies a patch: the state is unknown everywhere.
    assert call(gateway.http, "PATCH", "/huge", b'{"b":1}', merge).status == 204
    assert get(gateway.http, "/huge").status == 409


def _unless(status: int, answer: Response) -> Response | None:
    return None if answer.status == status else answer
