"""A bare proton receiver that decodes each message: `MessagingHandler`, a prefetch of 1,000.

Prints the seconds from the first message to the last.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from proton import Described, symbol, ulong
from proton.handlers import MessagingHandler
from proton.reactor import Container, Filter


class Receiver(MessagingHandler):
    def __init__(self, url: str, log: str, messages: int) -> None:
        super().__init__(prefetch=1_000)
        self._url, self._log, self._missing = url, log, messages
        self._started = 0.0

    def on_start(self, event: Any) -> None:
        connection = event.container.connect(self._url)
        earliest = {symbol("event-streams-offset"): symbol("@earliest")}
        start = {symbol("start"): Described(ulong(0x200), earliest)}
        event.container.create_receiver(connection, self._log, options=Filter(start))

    def on_message(self, event: Any) -> None:
        self._started = self._started or time.perf_counter()
        assert event.message.body is not None
        self._missing -= 1
        if self._missing == 0:
            print(time.perf_counter() - self._started, flush=True)
            event.connection.close()


if __name__ == "__main__":
    Container(Receiver(sys.argv[1], sys.argv[2], int(sys.argv[3]))).run()
