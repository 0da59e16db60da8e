"""What the acceptance tests share: plain HTTP without redirects, AMQP writers, processes by their ids."""

from __future__ import annotations

import asyncio
import http.client
import json
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from gateway.amqp.client import Broker, parse_broker
from gateway.amqp.sections import encode_message
from gateway.amqp.sender import LogSender
from gateway.core.errors import GatewayError
from gateway.core.message import BodyKind, Message, Properties
from gateway.core.multipart import Part, boundary_of, read_parts
from tests.servers import Server, children

WAIT_S = 30.0
EPHEMERAL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")


def until(condition: Callable[[], Any], *, within_s: float = WAIT_S, every_s: float = 0.02) -> Any:
    """The first result of `condition` that is true."""
    deadline = time.monotonic() + within_s
    while not (result := condition()):
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(every_s)
    return result


# HTTP


class Response(NamedTuple):
    """An answer as it came; `headers` in their order, names as written."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        wanted = name.lower()
        return next((value for key, value in self.headers if key.lower() == wanted), None)

    @property
    def undated(self) -> tuple[tuple[str, str], ...]:
        """All headers but Date."""
        return tuple((key, value) for key, value in self.headers if key != "Date")

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def detail(self) -> str:
        """What a problem document says; it must be one, and not to be cached."""
        assert self.header("Content-Type") == "application/problem+json", self
        assert self.header("Cache-Control") == "no-store", self
        assert self.json["status"] == self.status
        return self.json["detail"]


def call(
    base: str,
    method: str,
    path: str,
    body: bytes | None = None,
    headers: dict[str, str] | None = None,
    *,
    timeout_s: float = WAIT_S,
) -> Response:
    """One request on a connection of its own; redirects are not followed."""
    address = urlsplit(base)
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=timeout_s)
    try:
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        return Response(response.status, response.getheaders(), response.read())
    finally:
        connection.close()


def get(base: str, path: str, **headers: str) -> Response:
    return call(base, "GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})


def put(base: str, path: str, body: bytes, content_type: str = "text/plain", **more: Any) -> Response:
    headers = {"Content-Type": content_type} | more.pop("headers", {})
    return call(base, "PUT", path, body, headers, **more)


def readiness(base: str) -> tuple[int, str]:
    """The status of /readyz, and its reasons in one text."""
    answer = get(base, "/readyz")
    return answer.status, " ".join(answer.json.get("reasons", []))


def until_unready(base: str, text: str, *, within_s: float = WAIT_S) -> str:
    """Wait until /readyz answers 503 with a reason that contains `text`; returns all reasons."""

    def reasons() -> str:
        status, told = readiness(base)
        return told if status == 503 and text in told else ""

    return until(reasons, within_s=within_s)


def until_ready(base: str, *, within_s: float = WAIT_S) -> None:
    until(lambda: readiness(base)[0] == 200, within_s=within_s)


# Feeds


def archives(base: str, partition: str = "0", log: str = "events") -> list[Response]:
    """All archive documents of a feed, in order."""
    found: list[Response] = []
    while True:
        answer = get(base, f"/feeds/{log}/{partition}/archive/{len(found)}")
        if answer.status != 200:
            assert answer.status in (302, 404), answer
            return found
        found.append(answer)


def parts_of(answer: Response) -> list[Part]:
    if answer.status == 204:
        return []
    assert answer.status == 200, answer
    return read_parts(boundary_of(answer.header("Content-Type") or ""), answer.body)


def entries(base: str, partition: str = "0", log: str = "events") -> list[Part]:
    """All events of a feed that takes no new ones now."""
    documents = [*archives(base, partition, log), get(base, f"/feeds/{log}/{partition}/latest")]
    return [part for document in documents for part in parts_of(document)]


def log_document(base: str, log: str = "events") -> Any:
    return get(base, f"/feeds/{log}").json


def events_in(base: str, log: str = "events") -> int:
    """How many events all feeds of the log have together."""
    return sum(entry["events"] for entry in log_document(base, log)["partitions"])


# AMQP


def message(body: bytes = b"", *, target: str = "/things/1", **properties: Any) -> Message:
    """A message in the native form."""
    given = {"subject": "PUT", "to": target, "content_type": "text/plain"} | properties
    return Message(properties=Properties(**given), body_kind=BodyKind.DATA, body=[body])


def send(amqp: str | Broker, messages: Iterable[Message | bytes], log: str = "events") -> list[Any]:
    """Send messages over one link; the outcome of each, None where it was accepted."""

    async def sending() -> list[Any]:
        sender = LogSender(parse_broker(amqp) if isinstance(amqp, str) else amqp, log)
        await sender.connect()
        answers = [
            await sender.send(item if isinstance(item, bytes) else encode_message(item)) for item in messages
        ]
        outcomes = await asyncio.gather(*answers, return_exceptions=True)
        await sender.close()
        assert all(outcome is None or isinstance(outcome, GatewayError) for outcome in outcomes), outcomes
        return outcomes

    return asyncio.run(asyncio.wait_for(sending(), WAIT_S))


# Processes


def wes(*arguments: str | Path, timeout_s: float = 600.0) -> subprocess.CompletedProcess[str]:
    """Run `wes` to its end."""
    command = [sys.executable, "-m", "gateway", *map(str, arguments)]
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s
    )


def checked(base: str) -> str:
    """Run `wes check`, which must find nothing; returns its summary."""
    done = wes("check", base)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no breach found" in done.stdout, done.stdout
    return done.stdout


def embedded_node(server: Server) -> int | None:
    """The process id of a gateway's embedded node, from the lock that it holds; None while there is none."""
    try:
        return int((server.data / "log" / "lock").read_text())
    except (OSError, ValueError):
        return None


def readers(server: Server) -> set[int]:
    """The process ids of a gateway's reader processes."""
    spawned = set()
    for child in children(server.pid):
        with suppress(OSError):
            if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                spawned.add(child)
    return spawned - {embedded_node(server)}


def lasting_port() -> int:
    """A free port that no outgoing connection is given, so that a server finds it again after a restart."""
    first, last = map(int, EPHEMERAL_PORTS.read_text().split())
    ports = [port for port in range(20_000, 65_000) if not first <= port <= last]
    while True:
        port = random.choice(ports)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


@contextmanager
def running(*servers: Server, ready: bool = True) -> Iterator[Any]:
    """Start servers one after the other, and stop them in the opposite order, whatever happens."""
    with ExitStack() as stack:
        for server in servers:
            stack.callback(server.stop)
            server.start(ready=ready)
        yield servers[0] if len(servers) == 1 else servers


def lasting_node(data: Path, *options: str, **environment: str) -> Server:
    """A `wes log` on a port that it finds again when it is started again."""
    listen = ("--amqp-listen", f"127.0.0.1:{lasting_port()}")
    return Server("log", *listen, *options, data=data, environment=environment)


def gateway_on(amqp: str, data: Path, *options: str, **environment: str) -> Server:
    """A `wes serve` on another event log node."""
    addresses = ("--listen", "127.0.0.1:0", "--broker", amqp)
    return Server("serve", *addresses, *options, data=data, environment=environment)
