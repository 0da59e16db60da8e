"""Real servers for tests: `wes` processes on free ports in temporary folders, stopped by their own id."""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path

START_WAIT_S = 60.0


def children(pid: int) -> list[int]:
    """The processes that process `pid` has started and that are there; any of its threads may have."""
    found: list[int] = []
    with suppress(FileNotFoundError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            # Threads and processes may end while they are looked at.
            with suppress(FileNotFoundError, ProcessLookupError):
                found += map(int, (thread / "children").read_text().split())
    return found


def open_files(pid: int) -> set[str]:
    """What the file descriptors of process `pid` stand for."""
    found = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found.add(str(entry.readlink()))
        except FileNotFoundError:
            continue
    return found


class Server:
    """A running `wes serve` or `wes log`; `http` and `amqp` are its addresses as URLs.

    `module` is what Python runs; another one may change `wes` before it starts it.
    """

    def __init__(self, *arguments: str, data: Path, environment: dict[str, str] | None = None) -> None:
        self.arguments = arguments
        self.data = data
        self.environment = environment or {}
        self.process: subprocess.Popen[str] | None = None
        self.http = ""
        self.amqp = ""
        self.log_file = data.parent / f"{data.name}.log"
        self.module = "gateway"

    def start(self, *more: str, ready: bool = True) -> Server:
        """Start it and wait until it listens and, for a gateway, is ready."""
        command = [
            sys.executable,
            "-m",
            self.module,
            *self.arguments,
            "--json",
            "--data",
            str(self.data),
            *more,
        ]
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=os.environ | self.environment,
            )
        wanted = ["http"] if self.arguments[0] == "serve" else ["amqp"]
        lines: queue.Queue[str] = queue.Queue()
        reader = threading.Thread(target=self._read, args=(self.process, lines), daemon=True)
        reader.start()
        deadline = time.monotonic() + START_WAIT_S
        while wanted:
            line = lines.get(timeout=max(0.01, deadline - time.monotonic()))
            if not line:
                raise RuntimeError(f"wes ended before it was ready: {self.log()}")
            url = json.loads(line)["listening"]
            if url.startswith("http"):
                self.http = url
            else:
                self.amqp = url
            wanted = [scheme for scheme in wanted if not url.startswith(scheme)]
        if ready and self.arguments[0] == "serve":
            self.wait_ready()
        return self

    @staticmethod
    def _read(process: subprocess.Popen[str], lines: queue.Queue[str]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                lines.put(line)
        lines.put("")

    def wait_ready(self, wait_s: float = START_WAIT_S) -> None:
        deadline = time.monotonic() + wait_s
        while True:
            try:
                with urllib.request.urlopen(f"{self.http}/readyz", timeout=5):
                    return
            except urllib.error.HTTPError as error:
                reason = error.read().decode()
            except OSError as error:
                reason = str(error)
            if time.monotonic() > deadline:
                raise RuntimeError(f"not ready: {reason}\n{self.log()}")
            time.sleep(0.02)

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def log(self) -> str:
        return self.log_file.read_text("utf-8", "replace") if self.log_file.exists() else ""

    def kill(self) -> None:
        """kill -9."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def stop(self, wait_s: float = 30.0) -> int:
        """SIGTERM; returns the exit code."""
        if self.process is None:
            return 0
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(wait_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        finally:
            self.process = None


def gateway(data: Path, *options: str, ports: bool = True, **environment: str) -> Server:
    """A `wes serve` that is not started yet, on free ports."""
    free = ("--listen", "127.0.0.1:0", "--amqp-listen", "127.0.0.1:0") if ports else ()
    return Server("serve", *free, *options, data=data, environment=environment)


def log_node(data: Path, *options: str) -> Server:
    """A `wes log` that is not started yet, on a free port."""
    return Server("log", "--amqp-listen", "127.0.0.1:0", *options, data=data)


def free_port() -> int:
    """A port that nothing listens on now."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])
