"""A client's installation has none of what servers need: clients work, and servers say what is missing."""

from __future__ import annotations

import subprocess
import sys

import pytest

WITHOUT = """
import sys
for name in ("proton", "cproton", "uvloop", "pyspark", "delta", "pyarrow", "pandas", "cronsim"):
    sys.modules[name] = None
from gateway.cli import main
sys.exit(main(sys.argv[1:]))
"""


def wes(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)


@pytest.mark.parametrize("command", ["serve", "log"])
def test_a_server_names_the_extra_that_it_needs(command, tmp_path):
    done = wes(command, "--data", str(tmp_path), "--amqp-listen", "127.0.0.1:0")
    assert done.returncode == 1
    assert done.stderr.startswith("wes: ")
    assert 'pip install "web-event-sourcing[gateway]"' in done.stderr


@pytest.mark.parametrize("command", [("build",), ("schedule", "--cron", "0 3 * * *")])
def test_a_snapshot_job_names_the_extra_that_it_needs(command, tmp_path):
    done = wes("snapshot", *command, "--from", str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.startswith("wes: this needs ")
    assert 'pip install "web-event-sourcing[snapshots]"' in done.stderr


def test_the_status_of_snapshots_needs_no_spark(tmp_path):
    done = wes("snapshot", "status", "--output", str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.startswith("wes: no run has made a snapshot")


@pytest.mark.parametrize(
    "arguments",
    [
        ("serve", "--print-config"),
        ("check", "--help"),
        ("publish", "--help"),
        ("sync", "--help"),
        ("snapshot", "schedule", "--help"),
    ],
)
def test_what_needs_no_amqp_works_without_it(arguments):
    done = wes(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout
