"""The command line `wes`: results on standard output, progress and logs on standard error.

Exit codes: 0 done, 1 failed, 2 wrong usage. Each command is a module that adds its parser in `register`.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module

from gateway import __version__
from gateway.core.errors import GatewayError, InvalidSetting

COMMANDS = ("serve", "log", "publish", "check", "sync", "snapshot", "quarantine", "state")

# What is not installed with the client, and the extra that brings it.
_EXTRAS = dict.fromkeys(("proton", "cproton", "uvloop"), "gateway") | dict.fromkeys(
    ("pyspark", "py4j", "delta", "pyarrow", "pandas", "numpy", "urllib3", "cronsim"), "snapshots"
)


def main(arguments: list[str] | None = None) -> int:
    """Run `wes` with `arguments`, or with those of the process; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="wes", description="Web Event Sourcing: AMQP event logs as feeds that curl can read."
    )
    parser.add_argument("--version", action="version", version=f"wes {__version__}")
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in COMMANDS:
        import_module(f"gateway.cli.{command}").register(subparsers)
    parsed = parser.parse_args(arguments)
    try:
        code: int = parsed.run(parsed)
    except InvalidSetting as error:
        print(f"wes: {error}", file=sys.stderr)
        return 2
    except GatewayError as error:
        print(f"wes: {error}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        print(f'wes: this needs {error.name}: pip install "web-event-sourcing[{extra}]"', file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read our output has had enough; Python must not complain about that at exit.
        sys.stdout = None
        return 1
    return code
