"""The options that `serve` and `log` share with the configuration file and the environment."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from gateway.config import OPTIONS, SNAPSHOT_KEYS, Config, load


def add_options(parser: argparse.ArgumentParser, *names: str) -> None:
    """Add --config, --print-config, --json and the named options; what is not given stays out."""
    parser.add_argument("--config", type=Path, metavar="FILE", help="a TOML file")
    parser.add_argument(
        "--print-config", action="store_true", help="print the configuration in force and exit"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    for option in OPTIONS:
        if option.name in names:
            shown = ",".join(option.default) if option.kind is tuple else option.default
            if option.kind is bool:
                shown = str(shown).lower()
            parser.add_argument(
                f"--{option.name}",
                default=argparse.SUPPRESS,
                metavar=_METAVARS.get(option.kind, "TEXT"),
                help=f"{option.help} (default: {shown!s})" if shown != "" else option.help,
            )


def load_config(parsed: argparse.Namespace) -> Config:
    """The configuration in force for the parsed command line; raises InvalidSetting."""
    keys = {option.key for option in OPTIONS} | SNAPSHOT_KEYS
    given = {key: value for key, value in vars(parsed).items() if key in keys}
    file = parsed.config or (Path(os.environ["WES_CONFIG"]) if os.environ.get("WES_CONFIG") else None)
    return load(file=file, environment=os.environ, command_line=given)


_METAVARS = {int: "N", tuple: "NAME,…", bool: "true|false"}
