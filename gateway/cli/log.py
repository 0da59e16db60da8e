"""`wes log`: the event log node alone."""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

from gateway.config import Config

from .options import add_options, load_config
from .output import log_to_standard_error, say_listening
from .serve import stop_signal


def register(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser("log", help="run the event log node alone")
    add_options(parser, "data", "amqp-listen", "log", "partitions")
    parser.set_defaults(run=run)


def run(parsed: argparse.Namespace) -> int:
    config = load_config(parsed)
    if parsed.print_config:
        print(config.as_toml(), end="")
        return 0
    log_to_standard_error()
    asyncio.run(_serve(config, as_json=parsed.json))
    return 0


async def _serve(config: Config, *, as_json: bool) -> None:
    from .node_process import run_node

    over = stop_signal()
    embedded = [log for log in config.logs if not log.broker]
    node, port = await run_node(config, embedded, config.amqp_listen)
    try:
        host = config.amqp_listen.host
        say_listening(f"amqp://{host}:{port}", as_json=as_json)
        await over.wait()
    finally:
        await node.stop()
