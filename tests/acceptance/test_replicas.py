"""Gateways on one log serve the same bytes, whenever they started and however they ended."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.acceptance import catalogue
from tests.acceptance.support import archives, checked, entries, events_in, get, log_document, until
from tests.servers import gateway

PARTITIONS = "2"
SETTINGS = ("--archive-events-max", "100", "--archive-bytes-max", "40000", "--authority", "feeds.example.org")


@pytest.mark.slow
def test_replicas_serve_the_same_bytes_though_one_started_later_and_was_killed(start_node, tmp_path):
    files = sorted(catalogue.SAMPLE.glob("*.ndjson.gz"))
    count = sum(map(len, catalogue.events(files).values()))
    node = start_node("--partitions", PARTITIONS)
    one, two = (
        gateway(tmp_path / name, "--broker", node.amqp, *SETTINGS, ports=False) for name in ("one", "two")
    )
    free = ("--listen", "127.0.0.1:0")
    publishing = None
    try:
        one.start(*free)
        command = [sys.executable, "-m", "gateway", "publish", node.amqp, "-"]
        publishing = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        lines = [line for file in files for line in catalogue.lines(file)]

        def publish(first: int, last: int) -> None:
            publishing.stdin.write(b"".join(lines[first:last]))
            publishing.stdin.flush()

        publish(0, count // 4)
        until(lambda: events_in(one.http) > count // 8)
        two.start(*free)
        publish(count // 4, count // 2)
        until(lambda: events_in(two.http) > count // 4)
        publish(count // 2, count * 3 // 4)
        two.kill()
        publish(count * 3 // 4, count)
        two.start(*free)
        publishing.stdin.close()
        assert publishing.wait(60) == 0
        for replica in (one, two):
            until(lambda replica=replica: events_in(replica.http) == count)

        documents = 0
        for partition in ("0", "1"):
            ours, theirs = archives(one.http, partition), archives(two.http, partition)
            assert len(ours) > 10
            assert [page.undated for page in ours] == [page.undated for page in theirs]
            assert [page.body for page in ours] == [page.body for page in theirs]
            documents += len(ours)
            latest = [get(server.http, f"/feeds/events/{partition}/latest") for server in (one, two)]
            assert latest[0].undated == latest[1].undated
            assert latest[0].body == latest[1].body
            identities = [part.value("Content-ID") for part in entries(one.http, partition)]
            assert identities == [part.value("Content-ID") for part in entries(two.http, partition)]
            for ordinal in {0, 99, 100, len(identities) // 2, len(identities) - 1, len(identities)}:
                path = f"/feeds/events/{partition}/events/{ordinal}"
                redirects = [get(server.http, path) for server in (one, two)]
                assert redirects[0].status == redirects[1].status
                assert redirects[0].undated == redirects[1].undated
                assert redirects[0].body == redirects[1].body
        assert log_document(one.http) == log_document(two.http)
        print(f"{documents} archive documents equal; {checked(two.http)}")
    finally:
        if publishing is not None:
            publishing.kill()
            publishing.wait()
            publishing.stdin.close()
        one.stop()
        two.stop()
