"""`wes snapshot`: what is wrong is said before Spark starts, what is made is told in a line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest

from gateway.cli import main
from gateway.cli.snapshot import output_folder
from gateway.config import load
from gateway.core.errors import InvalidSetting
from gateway.core.snapshots import read_index
from snapshots.lock import WITH_STATUS, RunLock
from snapshots.status import Failure, Running, Scheduled, Status, StatusFile, Success
from tests.servers import children

RUN_S_MAX = 180


def config(text="", environment=None, file=None, **command_line):
    if file is not None:
        file.write_text(text)
    return load(file=file, environment=environment or {}, command_line=command_line)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["build"], "from is not told: write --from URL"),
        (["build", "--from", ""], "from is not told"),
        (["build", "--from", "ftp://example.org"], "not the URL of a gateway"),
        (["build", "--from", "x", "--keep", "0"], "keep is 0: it goes from 1"),
        (["build", "--from", "x", "--keep", "many"], "--keep is 'many': it must be a whole number"),
        (["build", "--from", "x", "--log", "../x"], "is not a name"),
        (["schedule", "--from", "x"], "cron is not told: write --cron"),
        (
            ["schedule", "--from", "x", "--cron", "61 * * * *"],
            "cron is '61 * * * *': bad minute; write minute",
        ),
        (["schedule", "--from", "x", "--cron", "@daily"], "wrong number of fields"),
        (["schedule", "--cron", "0 3 * * *"], "from is not told"),
    ],
)
def test_wrong_usage_is_said_and_exits_with_2(arguments, says, capsys):
    assert main(["snapshot", *arguments]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [[], ["nonsense"], ["build", "--cron", "0 3 * * *"], ["status", "--keep", "1"]]
)
def test_what_argparse_does_not_know_exits_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as error:
        main(["snapshot", *arguments])
    assert error.value.code == 2


def test_a_folder_without_a_log_is_a_failure(tmp_path, capsys):
    assert main(["snapshot", "build", "--from", str(tmp_path)]) == 1
    assert "no log in" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_every_option_can_stand_in_the_file_the_environment_and_the_command_line(tmp_path):
    file = tmp_path / "wes.toml"
    text = (
        '[snapshot]\nfrom = "a"\nmaster = "local[1]"\nkeep = 7\nrebuild = true\ncron = "0 3 * * *"\n'
        'tables = "s3a://b/c"'
    )
    settings = config(text, {}, file).snapshot
    assert (settings.from_, settings.master, settings.keep) == ("a", "local[1]", 7)
    assert (settings.rebuild, settings.cron, settings.tables) == (True, "0 3 * * *", "s3a://b/c")
    environment = {"WES_SNAPSHOT_FROM": "b", "WES_SNAPSHOT_KEEP": "8", "WES_SNAPSHOT_REBUILD": "false"}
    settings = config(text, environment, file).snapshot
    assert (settings.from_, settings.keep, settings.rebuild, settings.cron) == ("b", 8, False, "0 3 * * *")
    settings = config(text, environment, file, snapshot_from="c", snapshot_keep="9").snapshot
    assert (settings.from_, settings.keep) == ("c", 9)
    with pytest.raises(InvalidSetting, match=r"\[snapshot\].*'nonsense'"):
        config("[snapshot]\nnonsense = 1", {}, file)


def test_the_configuration_in_force_is_printed_in_a_form_that_gives_it_again(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("WES_SNAPSHOT_MASTER", "spark://example.org:7077")
    arguments = ["--from", "http://me:secret@example.org/", "--keep", "5", "--rebuild", "--print-config"]
    assert main(["snapshot", "build", *arguments]) == 0
    printed = capsys.readouterr().out
    assert "secret" not in printed
    settings = config(printed, {}, tmp_path / "wes.toml").snapshot
    assert (settings.keep, settings.rebuild, settings.master) == (5, True, "spark://example.org:7077")
    assert settings.from_ == "http://me:***@example.org/"


def test_the_log_is_the_one_that_is_named_or_the_only_one(tmp_path):
    file = tmp_path / "wes.toml"
    assert config().log is None
    assert config(log="orders").log == "orders"
    assert config("", {"WES_LOG": "orders"}).log == "orders"
    assert config('[logs.orders]\nprefix = "/orders/"', {}, file).log == "orders"
    two = '[logs.a]\nprefix = "/a/"\n[logs.b]\nprefix = "/b/"'
    assert config(two, {}, file).log is None
    assert config(two, {}, file, log="b").log == "b"
    with pytest.raises(InvalidSetting, match="not a name"):
        config(two, {"WES_LOG": ".."}, file)


@pytest.mark.parametrize(
    ("options", "folder"),
    [
        ({}, "wes-data/snapshots"),
        ({"snapshot_from": "http://example.org/"}, "wes-data/snapshots"),
        ({"snapshot_from": "http://example.org/", "data": "other"}, "other/snapshots"),
        ({"snapshot_from": "other"}, "other/snapshots"),
        ({"snapshot_from": "other", "snapshots": "served"}, "served"),
        ({"snapshot_from": "http://example.org/", "snapshots": "served"}, "served"),
        ({"snapshot_from": "other", "snapshots": "served", "snapshot_output": "here"}, "here"),
    ],
)
def test_snapshots_go_where_the_gateway_on_that_data_looks(options, folder):
    assert output_folder(config(**options)) == Path(folder)


def test_the_status_of_nothing_is_said_and_exits_with_1(tmp_path, capsys):
    assert main(["snapshot", "status", "--output", str(tmp_path)]) == 1
    assert "no run has made a snapshot of any log" in capsys.readouterr().err
    assert main(["snapshot", "status", "--output", str(tmp_path), "--log", "events"]) == 1
    assert "of log events" in capsys.readouterr().err


def test_the_status_tells_what_went_well_what_failed_and_what_comes(tmp_path, capsys):
    status = Status(
        Success("2026-01-01T00:00:00.000Z", 1_767_225_600_000, 1_767_225_612_300, 68_820, 132_256, 12.3),
        Failure(1_767_229_200_000, "disk full"),
        2,
        None,
        Scheduled("0 * * * *", 1_767_225_600_000, 1_767_229_260_000, "disk full"),
    )
    StatusFile(tmp_path / "events").update(lambda _: status)
    StatusFile(tmp_path / "orders").update(lambda before: before.began(Running(1, 0, "fold")))
    with RunLock(tmp_path / "orders"):
        assert main(["snapshot", "status", "--output", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "events: snapshot 2026-01-01T00:00:00.000Z of 132,256 events, 68,820 entities; the last run ended "
        "2026-01-01T00:00:12Z and took 12.3 s",
        "  last error 2026-01-01T01:00:00Z, 2 since the last success: disk full",
        "  next run 2026-01-01T01:01:00Z, by '0 * * * *'",
        "  it is overdue: disk full",
        "orders: no snapshot yet",
        "  under way since 1970-01-01T00:00:00Z, process 1: fold",
    ]
    assert main(["snapshot", "status", "--output", str(tmp_path), "--log", "events", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["log"], told["failures"], told["success"]["entities"]) == ("events", 2, 68_820)
    assert told["scheduled"]["next"] == 1_767_229_260_000


def test_a_run_whose_process_was_killed_is_not_told_to_be_under_way(tmp_path, capsys):
    StatusFile(tmp_path / "events").update(lambda before: before.began(Running(1, 0, "export")))
    assert main(["snapshot", "status", "--output", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "under way" not in out
    assert "1 since the last success: the run of process 1 was broken off: export" in out


def wes(*arguments):
    command = [sys.executable, "-m", "gateway", "snapshot", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=RUN_S_MAX, stdin=subprocess.DEVNULL
    )


def publish(server, numbers):
    for number in numbers:
        request = urllib.request.Request(
            f"{server.http}/things/{number}",
            data=json.dumps({"number": number}).encode(),
            headers={"Content-Type": "application/json"},
            method="PUT",
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert answer.status == 201


def log_document(server):
    with urllib.request.urlopen(f"{server.http}/feeds/events", timeout=30) as answer:
        return json.load(answer)


def newest(folder):
    return max(folder.glob("2*/index.json"))


def test_a_run_beside_another_one_ends_before_spark_starts(tmp_path, capsys):
    (tmp_path / "data" / "feeds" / "events").mkdir(parents=True)
    output = tmp_path / "made"
    with RunLock(output / "events", WITH_STATUS):
        arguments = ["--from", str(tmp_path / "data"), "--log", "events", "--output", str(output), "--json"]
        assert main(["snapshot", "build", *arguments]) == 1
    captured = capsys.readouterr()
    assert f"a run is under way in {output}/events, process {os.getpid()}" in captured.err
    assert "a run is under way" in json.loads(captured.out)["error"]
    assert not (output / "events" / "status.json").exists(), "it is the other one's"


@pytest.mark.slow
def test_a_snapshot_is_what_the_gateway_has_and_stays_while_nothing_is_new(start_gateway, tmp_path):
    server = start_gateway("--archive-events-max", "7")
    publish(server, range(50))
    truth = log_document(server)
    output = tmp_path / "made"
    done = wes("build", "--from", server.http, "--output", output, "--master", "local[2]", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["entities"], told["digest"], told["position"]) == (50, truth["digest"], truth["position"])
    assert (told["new"], told["log"], told["parts"]) == (True, "events", 1)
    index = read_index(newest(output / "events").read_bytes())
    assert (index.id, index.digest) == (told["snapshot"], told["digest"])
    assert index.parts[0].size == told["bytes"]
    # The same feed, read in another way.
    done = wes("build", "--from", server.data, "--output", output, "--master", "local[2]")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(
        f"snapshot {told['snapshot']} is still the newest: 50 entities in 1 parts, 0.0 MB, "
        f"digest {truth['digest']}, took "
    )
    done = wes("status", "--output", output)
    assert f"events: snapshot {told['snapshot']} of 50 events, 50 entities" in done.stdout


def wait_until(condition, process, wait_s=RUN_S_MAX):
    deadline = time.monotonic() + wait_s
    while not condition():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)


def java_of(pid):
    """The Java that process `pid` has started."""
    found = set()
    for child in children(pid):
        # It may end while it is looked at.
        with suppress(FileNotFoundError, ProcessLookupError):
            if Path(f"/proc/{child}/comm").read_text().strip() == "java":
                found.add(child)
    return found


@pytest.mark.slow
def test_a_schedule_makes_snapshots_outlives_its_java_and_ends_when_it_is_told_to(start_gateway, tmp_path):
    server = start_gateway()
    publish(server, range(10))
    output = tmp_path / "made"
    status = StatusFile(output / "events")
    command = [
        sys.executable,
        "-m",
        "gateway",
        "snapshot",
        "schedule",
        "--from",
        server.http,
        "--output",
        str(output),
    ]
    with (tmp_path / "out").open("wb") as out, (tmp_path / "err").open("wb") as err:
        process = subprocess.Popen(
            [*command, "--cron", "*/5 * * * * *", "--master", "local[2]", "--json"], stdout=out, stderr=err
        )
    try:
        wait_until(lambda: status.read().success is not None, process)
        (java,) = java_of(process.pid)
        first = status.read().success
        publish(server, range(10, 15))
        wait_until(lambda: status.read().success.entities == 15, process)
        assert java_of(process.pid) == {java}, "one session for all runs"
        assert status.read().success.id > first.id
        # Only the Java of this schedule, by its own id.
        os.kill(java, signal.SIGKILL)
        publish(server, range(15, 20))
        wait_until(lambda: status.read().success.entities == 20, process)
        assert java_of(process.pid) != {java}
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, (tmp_path / "err").read_text()
    finally:
        process.kill()
        process.wait()
    made = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    # A run whose time came between two publications made a snapshot of what there was: none is made twice.
    new = [line["entities"] for line in made if line["new"]]
    assert new == sorted({10, 15, 20}.union(new))
    assert (new[0], new[-1]) == (10, 20)
    assert status.look().running is None
    assert read_index(newest(output / "events").read_bytes()).digest == log_document(server)["digest"]


@pytest.mark.slow
def test_a_schedule_that_waits_for_its_time_ends_at_once_when_it_is_interrupted(tmp_path):
    (tmp_path / "feeds" / "events").mkdir(parents=True)
    command = [sys.executable, "-m", "gateway", "snapshot", "schedule", "--from", str(tmp_path)]
    process = subprocess.Popen([*command, "--cron", "0 0 29 2 *", "--log", "events", "--master", "local[1]"])
    try:
        status = StatusFile(tmp_path / "snapshots" / "events")
        wait_until(lambda: status.read().scheduled is not None, process)
        started = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        assert time.monotonic() - started < 30
    finally:
        process.kill()
        process.wait()
    assert status.read().scheduled.cron == "0 0 29 2 *"
