"""`wes log`: the event log node alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from gateway.config import Address, Config

from .options import add_options
from .server import run_server


def register(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser("log", help="run the event log node alone")
    add_options(parser, "data", "amqp-listen", "log", "partitions")
    parser.set_defaults(run=partial(run_server, serve=_serve))


async def _serve(config: Config, over: asyncio.Event, say: Callable[[str], None]) -> None:
    from .node_process import run_node

    embedded = [log for log in config.logs if not log.broker]
    node, port = await run_node(config, embedded, config.amqp_listen)
    try:
        say(f"amqp://{Address(config.amqp_listen.host, port)}")
        await over.wait()
    finally:
        await node.stop()
