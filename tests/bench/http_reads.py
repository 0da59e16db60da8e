"""Reading: a sealed page from memory, and 304 on the subscription document."""

from __future__ import annotations

import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.bench.result import Result, paired
from tests.bench.tools import SERVER_CORE, on_core, rival, serving, wait_for_port, write_feed, wrk
from tests.servers import free_port

ROUNDS = 3


def sealed(folder: Path) -> Iterator[Result]:
    """A sealed page of 100 KB and of 300 KB: bare aiohttp with the same bytes, nginx with the same file."""
    for size in (100_000, 300_000):
        data = folder / f"data-{size}"
        write_feed(data, 2_000, bytes_max=size)
        page = data / "feeds" / "events" / "0" / "pages" / "0"
        with (
            serving(data, "--archive-bytes-max", str(size), ready=False) as server,
            rival("aiohttp_bytes", str(page)) as bare,
            nginx(folder, page.parent) as static,
        ):
            url = f"{server.http}/feeds/events/0/archive/0"
            with urllib.request.urlopen(url) as response:
                assert response.read() == page.read_bytes(), "both serve the same bytes"
            ours, theirs, nginxes = [], [], []
            for _ in range(ROUNDS):
                ours.append(wrk(url))
                theirs.append(wrk(f"{bare}/document"))
                nginxes.append(wrk(f"{static}/0"))
            name = f"sealed page of {size // 1000} KB"
            yield paired(name, ours, theirs, "bare aiohttp", "requests/s", 0.9)
            yield paired(name, ours, nginxes, "nginx", "requests/s", None)


def not_modified(folder: Path) -> Iterator[Result]:
    """304 on `latest`."""
    data = folder / "data"
    write_feed(data, 500)
    page = data / "feeds" / "events" / "0" / "pages" / "0"
    with serving(data, ready=False) as server, rival("aiohttp_bytes", str(page)) as bare:
        url = f"{server.http}/feeds/events/0/latest"
        with urllib.request.urlopen(url) as response:
            header = f"If-None-Match: {response.headers['ETag']}"
        ours, theirs = [], []
        for _ in range(ROUNDS):
            ours.append(wrk(url, "-H", header))
            theirs.append(wrk(f"{bare}/not-modified", "-H", header))
        yield paired("304 on latest", ours, theirs, "bare aiohttp", "requests/s", 0.9)


@contextmanager
def nginx(folder: Path, root: Path) -> Iterator[str]:
    """nginx with one worker on the servers' core, over a folder of files."""
    program = shutil.which("nginx") or "/usr/sbin/nginx"
    port = free_port()
    home = folder / f"nginx-{port}"
    home.mkdir()
    (home / "nginx.conf").write_text(
        f"daemon off; worker_processes 1; pid {home}/pid; error_log {home}/error.log; user root;"
        "events { worker_connections 512; }"
        "http { access_log off; sendfile on; tcp_nopush on;"
        f" client_body_temp_path {home}/t1; proxy_temp_path {home}/t2; fastcgi_temp_path {home}/t3;"
        f" uwsgi_temp_path {home}/t4; scgi_temp_path {home}/t5;"
        f" server {{ listen 127.0.0.1:{port}; root {root}; }} }}"
    )
    with on_core(SERVER_CORE):
        process = subprocess.Popen([program, "-p", str(home), "-c", str(home / "nginx.conf")])
    try:
        wait_for_port(port)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()
