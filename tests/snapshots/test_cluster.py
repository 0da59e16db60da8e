"""The job on a standalone master with two workers, whose Python lacks the project: its code comes along."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyspark
import pytest

from gateway.core.event import Event, Method
from gateway.core.state import Digest, apply
from tests.acceptance.support import until
from tests.feeds import TIME_MS
from tests.servers import free_port
from tests.snapshots.written import Written

WORKERS = 2
EVENTS, TARGETS = 30_000, 12_000
MERGE = "application/merge-patch+json"
SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
EXECUTOR = b"org.apache.spark.executor.CoarseGrainedExecutorBackend"


@contextmanager
def _running(home: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A daemon of Spark's own; what it starts ends with it."""
    with (home / f"{arguments[0].rpartition('.')[2]}-{len(list(home.iterdir()))}.log").open("wb") as log:
        process = subprocess.Popen(
            [SPARK_CLASS, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=home,
            env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_HOME": str(SPARK_CLASS.parents[1])},
            start_new_session=True,
        )
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def cluster(home: Path) -> Iterator[str]:
    """The URL of a master with two workers of one core each."""
    port = free_port()
    master = f"spark://127.0.0.1:{port}"
    listen = ("--host", "127.0.0.1", "--webui-port", "0")
    with ExitStack() as stack:
        stack.enter_context(
            _running(home, "org.apache.spark.deploy.master.Master", *listen, "--port", str(port))
        )
        for number in range(WORKERS):
            place = ("-c", "1", "-m", "1g", "-d", str(home / f"work-{number}"), master)
            stack.enter_context(_running(home, "org.apache.spark.deploy.worker.Worker", *listen, *place))
        registered = re.compile(r"Registering worker")
        until(lambda: len(registered.findall(_said(home))) == WORKERS, within_s=60)
        yield master


def _said(home: Path) -> str:
    return "".join(path.read_text("utf-8", "replace") for path in home.glob("Master-*.log"))


def _python_without_the_project(home: Path) -> Path:
    """An interpreter with the packages of this one, but those that are installed by reference."""
    venv.create(home, with_pip=False)
    python = home / "bin" / "python"
    own = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    (Path(own) / "packages.pth").write_text(sysconfig.get_path("purelib"))
    found = subprocess.run(
        [python, "-c", "import pyspark, pyarrow, gateway"], capture_output=True, text=True, cwd=home
    )
    assert "No module named 'gateway'" in found.stderr
    return python


def _event(number: int) -> Event:
    target = f"/things/{number * 7919 % TARGETS}"
    if number % 10 == 7:
        return Event(Method.PATCH, target, MERGE, b'{"patched": %d}' % number, TIME_MS + number)
    if number % 50 == 13:
        return Event(Method.DELETE, target, None, b"", TIME_MS + number)
    return Event(Method.PUT, target, "application/json", b'{"number": %d}' % number, TIME_MS + number)


def _digest(events: list[Event]) -> Digest:
    states: dict[str, Any] = {}
    for event in events:
        states[event.target] = apply(states.get(event.target), event)
    digest = Digest()
    for target, entity in states.items():
        digest = digest.with_change(target, "", entity.etag)
    return digest


def _executors() -> set[int]:
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if EXECUTOR in (process / "cmdline").read_bytes():
                found.add(int(process.name))
        except OSError:
            continue
    return found


@pytest.mark.slow
def test_the_job_runs_on_a_cluster_also_when_an_executor_is_killed(tmp_path):
    home = tmp_path / "cluster"
    home.mkdir()
    data, output = tmp_path / "data", tmp_path / "snapshots"
    before = _executors()
    environment = os.environ | {
        "PYSPARK_PYTHON": str(_python_without_the_project(tmp_path / "python")),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    with Written(data, events_max=500) as feed, cluster(home) as master:
        feed.add(*(_event(number) for number in range(EVENTS)))
        options = ("--from", str(data), "--output", str(output), "--master", master, "--json")
        with (tmp_path / "driver.log").open("wb") as log:
            driver = subprocess.Popen(
                [sys.executable, "-m", "gateway", "snapshot", "build", *options],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
            )
        with driver:
            status = output / "events" / "status.json"
            until(lambda: status.exists() and '"fold"' in status.read_text(), within_s=180)
            os.kill((_executors() - before).pop(), signal.SIGKILL)
            printed, _ = driver.communicate(timeout=240)
        assert driver.returncode == 0, printed + (tmp_path / "driver.log").read_text()[-5_000:]
        told = json.loads(printed.splitlines()[-1])
        digest = _digest(feed.events)
        assert (told["entities"], told["digest"]) == (digest.entities, digest.hex())
