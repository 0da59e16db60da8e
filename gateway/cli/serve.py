"""`wes serve`: the gateway, with the embedded event log node unless every log has a broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from gateway.config import OPTIONS, Config

from .memory import settle_memory
from .options import add_options
from .server import run_server


def register(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser("serve", help="run the gateway")
    add_options(parser, *(option.name for option in OPTIONS))
    parser.set_defaults(run=partial(run_server, serve=_serve))


async def _serve(config: Config, over: asyncio.Event, say: Callable[[str], None]) -> None:
    # Proton is needed only here, not by the commands that are clients.
    from .gateway_process import Gateway
    from .node_process import NodeProcess

    embedded = [log for log in config.logs if not log.broker]
    node = NodeProcess(config, embedded) if embedded else None
    try:
        address = None
        if node is not None:
            address = await node.start()
            say(f"amqp://{address}")
        gateway = Gateway(config, address)
        try:
            say(f"http://{await gateway.start()}")
            settle_memory()
            await over.wait()
        finally:
            await gateway.stop()
    finally:
        if node is not None:
            await node.stop()
