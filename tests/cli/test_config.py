"""Configuration: what is in force and why, and errors that name the setting and its source."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.cli import main
from gateway.config import load
from gateway.core.errors import InvalidSetting


def loaded(tmp_path, text="", environment=None, **command_line):
    file = tmp_path / "wes.toml"
    file.write_text(text)
    return load(file=file, environment=environment or {}, command_line=command_line)


def test_the_defaults_are_those_of_the_documentation():
    config = load(file=None, environment={}, command_line={})
    assert (str(config.listen), str(config.amqp_listen)) == ("127.0.0.1:8080", "127.0.0.1:5672")
    assert (str(config.data), config.authority, config.workers) == ("wes-data", "localhost", 0)
    (log,) = config.logs
    assert (log.name, log.partitions, log.prefix, log.broker) == ("events", 1, "/", "")
    assert (log.archive_events_max, log.archive_bytes_max) == (1_000, 256 * 1024)


def test_the_command_line_wins_over_the_environment_over_the_file_over_the_defaults(tmp_path):
    text = 'listen = "127.0.0.1:1"\nauthority = "file.example.org"\ndata = "from-file"\npartitions = 3'
    environment = {"WES_LISTEN": "127.0.0.1:2", "WES_AUTHORITY": "variable.example.org"}
    config = loaded(tmp_path, text, environment, listen="127.0.0.1:3")
    assert config.listen.port == 3
    assert config.authority == "variable.example.org"
    assert str(config.data) == "from-file"
    assert config.logs[0].partitions == 3


def test_snapshots_are_in_the_data_folder_unless_another_is_named(tmp_path):
    assert loaded(tmp_path, 'data = "here"').snapshots == Path("here/snapshots")
    assert loaded(tmp_path, 'data = "here"\nsnapshots = "there"').snapshots == Path("there")
    assert loaded(tmp_path, "", {"WES_SNAPSHOTS": "/mnt/shared"}).snapshots == Path("/mnt/shared")
    assert 'snapshots = "here/snapshots"\n' in loaded(tmp_path, "", data="here").as_toml()


def test_each_log_has_its_own_table_and_falls_back_to_the_top(tmp_path):
    text = (
        'archive_events_max = 7\n[logs.a]\nprefix = "/a/"\n[logs.b]\nprefix = "/b/"\narchive_events_max = 9'
    )
    config = loaded(tmp_path, text)
    assert {log.name: log.archive_events_max for log in config.logs} == {"a": 7, "b": 9}
    assert [log.name for log in loaded(tmp_path, text, log="b").logs] == ["b"]


def test_a_truth_is_written_as_one(tmp_path):
    text = '[logs.a]\nprefix = "/a/"\npreconditions_required = true\n[logs.b]\nprefix = "/b/"'
    assert [log.preconditions_required for log in loaded(tmp_path, text).logs] == [True, False]
    environment = {"WES_PRECONDITIONS_REQUIRED": "true"}
    assert loaded(tmp_path, "", environment).logs[0].preconditions_required
    with pytest.raises(InvalidSetting, match="preconditions-required is 'yes': it must be true or false"):
        loaded(tmp_path, "", preconditions_required="yes")


def test_limits_are_set_in_their_tables_and_variables(tmp_path):
    config = loaded(tmp_path, "[http]\nwait_max_s = 5", {"WES_HTTP_BODY_TIME_MAX_S": "2.5"})
    assert (config.http.wait_max_s, config.http.body_time_max_s) == (5, 2.5)


def test_what_is_printed_gives_the_same_configuration_again_without_passwords(tmp_path, capsys):
    text = '[logs.a]\nprefix = "/a/"\nextra_headers = ["traceparent"]\n[logs.b]\nbroker = "amqp://me:secret@localhost"'
    config = loaded(tmp_path, text, salt='quo"te\\')
    printed = config.as_toml()
    assert "secret" not in printed
    again = loaded(tmp_path, printed)
    assert again.as_toml() == printed
    assert again.logs[0] == config.logs[0]
    assert main(["serve", "--print-config", "--log", "x"]) == 0
    assert "[logs.x]" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "environment", "command_line", "says"),
    [
        ("nonsense = 1", {}, {}, "'nonsense'; known are"),
        ("[http]\nnonsense = 1", {}, {}, r"\[http\].*'nonsense'"),
        ("[logs.a]\nnonsense = 1", {}, {}, r"\[logs.a\].*'nonsense'"),
        ("partitions = 'two'", {}, {}, "partitions in the configuration file is 'two'.*whole number"),
        ("partitions = true", {}, {}, "whole number"),
        ("data = 1", {}, {}, "must be text"),
        ("", {"WES_PARTITIONS": "two"}, {}, "WES_PARTITIONS is 'two'"),
        ("", {}, {"partitions": "two"}, "--partitions is 'two'"),
        ("", {}, {"partitions": "0"}, "partitions is 0: it goes from 1"),
        ("", {}, {"archive_events_max": "0"}, "archive_events_max must be at least 1"),
        ("", {}, {"archive_bytes_max": str(1 << 31)}, "archive_bytes_max must be from 1 to 1073741824"),
        ("", {}, {"listen": "8080"}, "write HOST:PORT"),
        ("", {}, {"listen": "localhost:99999"}, "write HOST:PORT"),
        ("", {}, {"authority": "not a host"}, "not a host name"),
        ("", {}, {"log": "a/b"}, "not a name"),
        ("", {}, {"prefix": "things"}, "not a path"),
        ("[logs.a]\n[logs.b]", {}, {}, "both have the prefix"),
        ("logs = 1", {}, {}, "must be a table"),
        ("a = [", {}, {}, "cannot read the configuration file"),
    ],
)
def test_a_wrong_setting_is_named_with_its_source_and_what_to_write(
    tmp_path, text, environment, command_line, says
):
    with pytest.raises(InvalidSetting, match=says):
        loaded(tmp_path, text, environment, **command_line)


def test_wrong_usage_exits_with_2_and_a_missing_file_too(capsys, tmp_path):
    assert main(["serve", "--config", str(tmp_path / "absent.toml")]) == 2
    assert "cannot read the configuration file" in capsys.readouterr().err
    for arguments in (["serve", "--nonsense"], ["nonsense"], []):
        with pytest.raises(SystemExit) as error:
            main(arguments)
        assert error.value.code == 2


def test_a_broker_that_cannot_be_one_is_wrong_usage(capsys, tmp_path):
    data = str(tmp_path / "data")
    assert main(["serve", "--broker", "http://localhost", "--listen", "127.0.0.1:0", "--data", data]) == 2
    assert "amqp://HOST:PORT" in capsys.readouterr().err
