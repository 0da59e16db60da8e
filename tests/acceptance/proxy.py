"""nginx between clients and a gateway: what was asked of it, and what it had to ask the gateway for."""

from __future__ import annotations

import re
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.acceptance.support import until
from tests.servers import free_port

_LINE = re.compile(r'"GET (\S+) [^"]*" (\d+) (\S+)')


class Asked(NamedTuple):
    """A GET that came to the proxy; `cache` is HIT if the gateway did not have to answer it."""

    path: str
    status: int
    cache: str


class Proxy:
    """A running proxy."""

    def __init__(self, url: str, home: Path) -> None:
        self.url = url
        self._log = home / "access.log"

    def asked(self) -> list[Asked]:
        """All GETs so far."""
        return [
            Asked(path, int(status), cache) for path, status, cache in _LINE.findall(self._log.read_text())
        ]


@contextmanager
def proxy_before(home: Path, upstream: str, *, caching: bool = False) -> Iterator[Proxy]:
    """nginx in front of `upstream`; with `caching`, it keeps what the gateway's headers let it keep."""
    port = free_port()
    home.mkdir()
    cache = "proxy_cache feeds; proxy_cache_revalidate on; proxy_cache_lock on;" if caching else ""
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
        f" location / {{ proxy_pass {upstream}; {cache}"
        " proxy_http_version 1.1; proxy_set_header Connection ''; } } }"
    )
    program = shutil.which("nginx") or "/usr/sbin/nginx"
    process = subprocess.Popen([program, "-p", str(home), "-c", str(home / "nginx.conf")])
    try:
        url = f"http://127.0.0.1:{port}"
        until(lambda: _answers(url))
        yield Proxy(url, home)
    finally:
        process.terminate()
        process.wait()


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(f"{url}/livez").close()
    except urllib.error.URLError:
        return False
    return True
