"""The configuration: defaults, then a TOML file, then WES_… environment variables, then the command line.

One table of options serves all four. Options of a log stand at the top of the file, for all logs, or in
`[logs.NAME]`, for that one; the limits of the web server stand in `[http]`, those of the node in `[node]`,
and what `wes snapshot` goes by in `[snapshot]`.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gateway.core.errors import InvalidEvent, InvalidSetting
from gateway.core.event import parse_authority, parse_name, parse_target
from gateway.core.identity import FeedName
from gateway.core.pages import ARCHIVE_BYTES_MAX, ARCHIVE_EVENTS_MAX, FeedSettings
from gateway.http.settings import HttpSettings
from gateway.node.settings import NodeSettings

PARTITIONS_MAX = 1_024
WORKERS_MAX = 64
SNAPSHOTS_KEPT_MAX = 10_000

_TRUTH = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class Option:
    """One option: its name as in `--name`, the type of its value, and what it says of itself."""

    name: str
    kind: type
    default: Any
    help: str
    of_log: bool = False

    @property
    def key(self) -> str:
        return self.name.replace("-", "_")


OPTIONS = (
    Option("data", str, "wes-data", "the data folder"),
    Option("snapshots", str, "", "the folder of snapshots (default: snapshots, in the data folder)"),
    Option("listen", str, "127.0.0.1:8080", "HOST:PORT of the web server; port 0 takes a free one"),
    Option("authority", str, "localhost", "the host name that ends every Content-ID"),
    Option("workers", int, 0, "reader processes beside the main one"),
    Option("amqp-listen", str, "127.0.0.1:5672", "HOST:PORT of the embedded event log node"),
    Option("log", str, "events", "the name of the log"),
    Option("partitions", int, 1, "partitions of a log on the embedded node", of_log=True),
    Option("broker", str, "", "amqp[s]://HOST:PORT of another event log node, instead", of_log=True),
    Option("prefix", str, "/", "the paths whose events belong to the log", of_log=True),
    Option("archive-events-max", int, ARCHIVE_EVENTS_MAX, "events in a full page", of_log=True),
    Option("archive-bytes-max", int, ARCHIVE_BYTES_MAX, "bytes in a full page", of_log=True),
    Option("salt", str, "", "any text; goes into the boundaries, alike on all replicas", of_log=True),
    Option(
        "extra-headers",
        tuple,
        (),
        "application properties, and request headers, that become headers of the parts",
        of_log=True,
    ),
    Option(
        "preconditions-required",
        bool,
        False,
        "true: PUT, PATCH and DELETE must be conditional, else 428",
        of_log=True,
    ),
)


@dataclass(frozen=True, slots=True)
class LogConfig:
    """One log: where it is, and how its feeds are cut."""

    name: str
    partitions: int
    broker: str
    prefix: str
    archive_events_max: int
    archive_bytes_max: int
    salt: str
    extra_headers: tuple[str, ...]
    preconditions_required: bool

    def feed_settings(self, authority: str, partition: str) -> FeedSettings:
        """The settings of a feed of this log."""
        return FeedSettings(
            FeedName(authority, self.name, partition),
            self.archive_events_max,
            self.archive_bytes_max,
            self.salt,
            self.extra_headers,
        )


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class SnapshotSettings:
    """What `wes snapshot` goes by; empty texts are not told. A word of Python has a `_` behind it."""

    from_: str = ""
    output: str = ""
    master: str = "local[*]"
    tables: str = ""
    jars: str = ""
    rebuild: bool = False
    keep: int = 3
    cron: str = ""

    def __post_init__(self) -> None:
        _within(self.keep, 1, SNAPSHOTS_KEPT_MAX, "keep")


SNAPSHOT_KEYS = frozenset(f"snapshot_{entry.name.rstrip('_')}" for entry in fields(SnapshotSettings))
"""These options on the command line, by their key."""


@dataclass(frozen=True, slots=True)
class Config:
    """All that is in force, checked. `log` is the one that was named, None if there may be others."""

    data: Path
    snapshots: Path
    listen: Address
    authority: str
    workers: int
    amqp_listen: Address
    logs: tuple[LogConfig, ...]
    http: HttpSettings = field(default_factory=HttpSettings)
    node: NodeSettings = field(default_factory=NodeSettings)
    snapshot: SnapshotSettings = field(default_factory=SnapshotSettings)
    log: str | None = None

    def as_toml(self) -> str:
        """The configuration as a file that gives it again; the passwords of brokers are left out."""
        lines = [
            f"data = {json.dumps(str(self.data))}",
            f"snapshots = {json.dumps(str(self.snapshots))}",
            f"listen = {json.dumps(str(self.listen))}",
            f"authority = {json.dumps(self.authority)}",
            f"workers = {self.workers}",
            f"amqp_listen = {json.dumps(str(self.amqp_listen))}",
        ]
        for log in self.logs:
            entries = asdict(log)
            lines += ["", f"[logs.{entries.pop('name')}]"]
            entries["broker"] = _without_password(log.broker)
            lines += [f"{key} = {json.dumps(value)}" for key, value in entries.items()]
        for section, settings in (("http", self.http), ("node", self.node)):
            lines += ["", f"[{section}]"]
            lines += [f"{key} = {json.dumps(value)}" for key, value in asdict(settings).items()]
        snapshot = asdict(replace(self.snapshot, from_=_without_password(self.snapshot.from_)))
        lines += ["", "[snapshot]"]
        lines += [f"{key.rstrip('_')} = {json.dumps(value)}" for key, value in snapshot.items()]
        return "\n".join(lines) + "\n"


def load(*, file: Path | None, environment: Mapping[str, str], command_line: Mapping[str, Any]) -> Config:
    """The configuration in force; raises InvalidSetting, which names the setting and its source.

    `command_line` holds the options that were given, by their key, values as text.
    """
    source = _Source(_read_file(file), environment, command_line)
    table = source.table("logs")
    names = list(table) or [source.value(_option("log"))]
    if table and "log" in command_line:
        names = [command_line["log"]]
    data = Path(source.value(_option("data")))
    snapshots = source.value(_option("snapshots"))
    config = Config(
        data=data,
        snapshots=Path(snapshots) if snapshots else data / "snapshots",
        listen=parse_address(source.value(_option("listen")), "listen"),
        authority=source.checked(parse_authority, "authority"),
        workers=_within(source.value(_option("workers")), 0, WORKERS_MAX, "workers"),
        amqp_listen=parse_address(source.value(_option("amqp-listen")), "amqp-listen"),
        logs=tuple(_log(source, name, table.get(name, {})) for name in names),
        http=source.section("http", HttpSettings),
        node=source.section("node", NodeSettings),
        snapshot=source.section("snapshot", SnapshotSettings),
        log=_named_log(source, list(table)),
    )
    _check_prefixes(config.logs)
    return config


def parse_address(text: str, name: str) -> Address:
    """HOST:PORT, with an IPv6 host in brackets; raises InvalidSetting."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise InvalidSetting(f"{name} is {text!r}: write HOST:PORT, as in 127.0.0.1:8080")
    return Address(host, int(port))


class _Source:
    """Where values come from, the strongest first: command line, environment, file, default."""

    def __init__(
        self, file: dict[str, Any], environment: Mapping[str, str], command_line: Mapping[str, Any]
    ) -> None:
        self._file = file
        self._environment = environment
        self._command_line = command_line
        known = {option.key for option in OPTIONS} | {"logs", "http", "node", "snapshot"}
        self._refuse_unknown(file, known, "the configuration file")

    def table(self, name: str) -> dict[str, Any]:
        table = self._file.get(name, {})
        if not isinstance(table, dict):
            raise InvalidSetting(f"{name} in the configuration file must be a table: [{name}]")
        return table

    def value(self, option: Option, log: Mapping[str, Any] | None = None) -> Any:
        variable = f"WES_{option.key.upper()}"
        if option.key in self._command_line:
            return _converted(self._command_line[option.key], option, f"--{option.name}")
        if variable in self._environment:
            return _converted(self._environment[variable], option, variable)
        for table in (log or {}, self._file):
            if option.key in table:
                return _converted(table[option.key], option, f"{option.key} in the configuration file")
        return option.default

    def checked(self, check: Any, name: str) -> Any:
        try:
            return check(self.value(_option(name)))
        except InvalidEvent as error:
            raise InvalidSetting(str(error)) from None

    def section(self, name: str, kind: Any) -> Any:
        """A settings object from its table, its WES_{TABLE}_… variables and, if it has some, its options."""
        table = self.table(name)
        known = {entry.name.rstrip("_"): entry for entry in fields(kind)}
        self._refuse_unknown(table, set(known), f"[{name}] in the configuration file")
        values: dict[str, Any] = {}
        for key, entry in known.items():
            option = Option(key, type(entry.default), None, "")
            variable = f"WES_{name.upper()}_{key.upper()}"
            given = f"{name}_{key}"
            if given in self._command_line:
                values[entry.name] = _converted(self._command_line[given], option, f"--{key}")
            elif variable in self._environment:
                values[entry.name] = _converted(self._environment[variable], option, variable)
            elif key in table:
                values[entry.name] = _converted(table[key], option, f"{key} in [{name}]")
        return kind(**values)

    @staticmethod
    def _refuse_unknown(table: Mapping[str, Any], known: set[str], where: str) -> None:
        for key in table:
            if key not in known:
                raise InvalidSetting(f"{where} has {key!r}; known are: {', '.join(sorted(known))}")


def _log(source: _Source, name: str, table: Any) -> LogConfig:
    if not isinstance(table, dict):
        raise InvalidSetting(f"logs.{name} in the configuration file must be a table")
    of_log = {option.key: option for option in OPTIONS if option.of_log}
    source._refuse_unknown(table, set(of_log), f"[logs.{name}] in the configuration file")
    values = {key: source.value(option, table) for key, option in of_log.items()}
    try:
        parse_name(name, "log")
        parse_target(values["prefix"])
    except InvalidEvent as error:
        raise InvalidSetting(f"log {name}: {error}") from None
    _within(values["partitions"], 1, PARTITIONS_MAX, "partitions")
    log = LogConfig(name=name, **values)
    log.feed_settings("localhost", "0")
    return log


def _named_log(source: _Source, names: list[str]) -> str | None:
    name = source.value(replace(_option("log"), default=names[0] if len(names) == 1 else None))
    try:
        return None if name is None else parse_name(name, "log")
    except InvalidEvent as error:
        raise InvalidSetting(str(error)) from None


def _check_prefixes(logs: tuple[LogConfig, ...]) -> None:
    by_prefix: dict[str, str] = {}
    for log in logs:
        other = by_prefix.setdefault(log.prefix, log.name)
        if other != log.name:
            raise InvalidSetting(
                f"the logs {other} and {log.name} both have the prefix {log.prefix!r}:"
                " give each its own in [logs.NAME]"
            )


def _read_file(file: Path | None) -> dict[str, Any]:
    if file is None:
        return {}
    try:
        return tomllib.loads(file.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidSetting(f"cannot read the configuration file {file}: {error}") from error


def _converted(value: Any, option: Option, where: str) -> Any:
    """`value` in the option's type, from text or from TOML."""
    try:
        if option.kind is bool:
            return value if isinstance(value, bool) else _TRUTH[value]
        if option.kind is tuple:
            items = value.split(",") if isinstance(value, str) else value
            return tuple(str(item).strip() for item in items if str(item).strip())
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ValueError
        if option.kind is str and not isinstance(value, str):
            raise ValueError
        return option.kind(value)
    except (ValueError, TypeError, KeyError):
        kind = {int: "a whole number", float: "a number", tuple: "a list of names", bool: "true or false"}
        raise InvalidSetting(f"{where} is {value!r}: it must be {kind.get(option.kind, 'text')}") from None


def _within(value: int, least: int, most: int, name: str) -> int:
    if not least <= value <= most:
        raise InvalidSetting(f"{name} is {value}: it goes from {least} to {most}")
    return value


def _option(name: str) -> Option:
    return next(option for option in OPTIONS if option.name == name)


def _without_password(url: str) -> str:
    try:
        parts = urlsplit(url)
    except ValueError:
        return url
    if parts.password is None:
        return url
    return url.replace(f":{parts.password}@", ":***@")
