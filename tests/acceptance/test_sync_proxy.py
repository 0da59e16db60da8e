"""Sync through nginx as a caching proxy: exact copies, each archive document asked of the gateway once."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from tests.acceptance import catalogue
from tests.acceptance.proxy import proxy_before
from tests.acceptance.support import log_document, put, wes

SAMPLE = sorted(catalogue.SAMPLE.glob("*.ndjson.gz"))


@pytest.mark.slow
def test_two_clients_through_a_caching_proxy_fetch_each_archive_once(start_gateway, tmp_path):
    gateway = start_gateway("--partitions", "2", "--archive-bytes-max", "50000")
    assert wes("publish", gateway.amqp, *SAMPLE).returncode == 0
    with proxy_before(tmp_path / "nginx", gateway.http, caching=True) as proxy:
        for name in ("one.sqlite", "two.sqlite"):
            done = wes("sync", proxy.url, tmp_path / name, "--verify")
            assert done.returncode == 0, done.stdout + done.stderr
            assert log_document(gateway.http)["digest"] in done.stdout
        put(gateway.http, "/late", b"1")
        done = wes("sync", proxy.url, tmp_path / "one.sqlite", "--verify")
        assert (done.returncode, log_document(gateway.http)["digest"] in done.stdout) == (0, True)
        time.sleep(0.2)
        asked, served = Counter(), Counter()
        for path, status, cache in proxy.asked():
            if "/archive/" in path and status == 200:
                served[path] += 1
                asked[path] += cache != "HIT"
    assert len(asked) > 10
    assert set(asked.values()) == {1}
    assert all(count >= 2 for count in served.values())
