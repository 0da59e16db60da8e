"""Sync through nginx as a caching proxy: exact copies, each archive document asked of the gateway once."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.acceptance import catalogue
from tests.acceptance.support import log_document, put, until, wes
from tests.servers import free_port

SAMPLE = sorted(catalogue.SAMPLE.glob("*.ndjson.gz"))
CACHED = re.compile(r'"GET (\S+) [^"]*" (\d+) (\S+)')


@contextmanager
def caching_proxy(home: Path, upstream: str) -> Iterator[str]:
    """nginx that keeps what the gateway's headers let it keep; its log tells what it had to ask for."""
    port = free_port()
    home.mkdir()
    (home / "nginx.conf").write_text(
        f"daemon off; worker_processes 1; pid {home}/pid; error_log {home}/error.log; user root;"
        "events { worker_connections 256; }"
        "http {"
        """ log_format cache '"$request" $status $upstream_cache_status';"""
        f" access_log {home}/access.log cache;"
        f" client_body_temp_path {home}/t1; proxy_temp_path {home}/t2; fastcgi_temp_path {home}/t3;"
        f" uwsgi_temp_path {home}/t4; scgi_temp_path {home}/t5;"
        f" proxy_cache_path {home}/cache keys_zone=feeds:1m max_size=256m;"
        f" server {{ listen 127.0.0.1:{port};"
        f" location / {{ proxy_pass {upstream}; proxy_cache feeds; proxy_cache_revalidate on;"
        " proxy_cache_lock on; proxy_http_version 1.1; proxy_set_header Connection ''; } } }"
    )
    program = shutil.which("nginx") or "/usr/sbin/nginx"
    process = subprocess.Popen([program, "-p", str(home), "-c", str(home / "nginx.conf")])
    try:
        url = f"http://127.0.0.1:{port}"
        until(lambda: _answers(url))
        yield url
    finally:
        process.terminate()
        process.wait()


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(f"{url}/livez").close()
    except urllib.error.URLError:
        return False
    return True


@pytest.mark.slow
def test_two_clients_through_a_caching_proxy_fetch_each_archive_once(start_gateway, tmp_path):
    gateway = start_gateway("--partitions", "2", "--archive-bytes-max", "50000")
    assert wes("publish", gateway.amqp, *SAMPLE).returncode == 0
    with caching_proxy(tmp_path / "nginx", gateway.http) as proxy:
        for name in ("one.sqlite", "two.sqlite"):
            done = wes("sync", proxy, tmp_path / name, "--verify")
            assert done.returncode == 0, done.stdout + done.stderr
            assert log_document(gateway.http)["digest"] in done.stdout
        put(gateway.http, "/late", b"1")
        done = wes("sync", proxy, tmp_path / "one.sqlite", "--verify")
        assert (done.returncode, log_document(gateway.http)["digest"] in done.stdout) == (0, True)
        time.sleep(0.2)
        asked, served = Counter(), Counter()
        for path, status, cache in CACHED.findall((tmp_path / "nginx" / "access.log").read_text()):
            if "/archive/" in path and status == "200":
                served[path] += 1
                asked[path] += cache != "HIT"
    assert len(asked) > 10
    assert set(asked.values()) == {1}
    assert all(count >= 2 for count in served.values())
