"""`wes serve`: the gateway, with the embedded event log node unless every log has a broker."""

from __future__ import annotations

import argparse
import asyncio
import signal
from typing import Any

from gateway.config import OPTIONS, Config

from .memory import settle_memory
from .options import add_options, load_config
from .output import log_to_standard_error, say_listening


def register(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser("serve", help="run the gateway")
    add_options(parser, *(option.name for option in OPTIONS))
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
    # Proton is needed only here, not by the commands that are clients.
    from .gateway_process import Gateway
    from .node_process import NodeProcess

    over = stop_signal()
    embedded = [log for log in config.logs if not log.broker]
    node = NodeProcess(config, embedded) if embedded else None
    try:
        address = None
        if node is not None:
            address = await node.start()
            say_listening(f"amqp://{address}", as_json=as_json)
        gateway = Gateway(config, address)
        try:
            say_listening(f"http://{await gateway.start()}", as_json=as_json)
            settle_memory()
            await over.wait()
        finally:
            await gateway.stop()
    finally:
        if node is not None:
            await node.stop()


def stop_signal() -> asyncio.Event:
    """An event that SIGTERM and SIGINT set."""
    over = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, over.set)
    return over
