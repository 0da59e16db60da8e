"""What the commands that run servers share: configuration in, logs out, and the signals that end them."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from gateway.config import Config

from .options import load_config
from .output import log_to_standard_error, say_listening
from .signals import stop_signal

Serve = Callable[[Config, asyncio.Event, Callable[[str], None]], Coroutine[Any, Any, None]]
"""Serves until the event is set; tells each address that is ready, as a URL."""


def run_server(parsed: argparse.Namespace, serve: Serve) -> int:
    """Run `serve` until SIGTERM or SIGINT, or print the configuration if that is what was asked for."""
    config = load_config(parsed)
    if parsed.print_config:
        print(config.as_toml(), end="")
        return 0
    # Needed only here, not by the commands that are clients.
    import uvloop

    log_to_standard_error()
    say = partial(say_listening, as_json=parsed.json)
    uvloop.run(_until_stopped(serve, config, say))
    return 0


async def _until_stopped(serve: Serve, config: Config, say: Callable[[str], None]) -> None:
    await serve(config, stop_signal(), say)
