"""The signals that end a command which runs until it is told to stop."""

from __future__ import annotations

import asyncio
import signal


def stop_signal() -> asyncio.Event:
    """An event that SIGTERM and SIGINT set; to be called in the event loop."""
    over = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, over.set)
    return over
