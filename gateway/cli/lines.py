"""Lines of files and of standard input, as they come, read by a thread of their own.

A pipe may stay silent for hours, and the event loop must not wait with it. So a thread reads what there
is, and hands over batches of whole lines; a full queue makes it wait.
"""

from __future__ import annotations

import asyncio
import gzip
import threading
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple, cast

from gateway.core.errors import GatewayError

STANDARD_INPUT = "-"
CHUNK_BYTES = 64 * 1024
LINE_BYTES_MAX = 64 * 1024 * 1024
BATCHES_WAITING_MAX = 4


class InputFailed(GatewayError):
    """A file that cannot be read, or not to its end."""


class Line(NamedTuple):
    """One line without its line break, and where it stands; numbers start at 1."""

    file: str
    number: int
    text: bytes

    @property
    def place(self) -> str:
        return f"{self.file}:{self.number}"


def check_readable(names: list[str]) -> None:
    """Raise InputFailed if a file is not there or may not be read, before anything is done with any."""
    for name in names:
        if name != STANDARD_INPUT:
            try:
                with Path(name).open("rb"):
                    pass
            except OSError as error:
                raise InputFailed(f"{name}: {error.strerror or error}") from None


async def read_lines(names: list[str], over: asyncio.Event) -> AsyncIterator[Line]:
    """The lines that are not blank, in order, until the end or until `over` is set; raises InputFailed."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[list[Line] | InputFailed | None] = asyncio.Queue()
    room = threading.Semaphore(BATCHES_WAITING_MAX)

    def hand_over(item: list[Line] | InputFailed | None) -> None:
        room.acquire()
        loop.call_soon_threadsafe(queue.put_nowait, item)

    def read() -> None:
        # The loop may be closed by then: nobody waits for the rest.
        with suppress(RuntimeError):
            try:
                for name in names:
                    for batch in _batches(name):
                        if over.is_set():
                            return
                        hand_over(batch)
            except InputFailed as error:
                hand_over(error)
            hand_over(None)

    # A daemon, because nothing can end a read from a silent pipe.
    threading.Thread(target=read, name="lines", daemon=True).start()
    ending = asyncio.ensure_future(over.wait())
    try:
        while (item := await _either(queue, ending)) is not None:
            room.release()
            if isinstance(item, InputFailed):
                raise item
            for line in item:
                yield line
    finally:
        ending.cancel()
        room.release()


async def _either(
    queue: asyncio.Queue[list[Line] | InputFailed | None], ending: asyncio.Future[Literal[True]]
) -> list[Line] | InputFailed | None:
    """What comes next in the queue, or None if the end comes first."""
    getting = asyncio.ensure_future(queue.get())
    await asyncio.wait((getting, ending), return_when=asyncio.FIRST_COMPLETED)
    if getting.done():
        return getting.result()
    getting.cancel()
    return None


def _batches(name: str) -> Iterator[list[Line]]:
    shown = "standard input" if name == STANDARD_INPUT else name
    number = 1
    rest: list[bytes] = []
    rest_bytes = 0
    try:
        with _open(name) as file:
            while chunk := file.read(CHUNK_BYTES):
                texts = chunk.split(b"\n")
                if len(texts) == 1:
                    rest.append(chunk)
                    rest_bytes += len(chunk)
                    if rest_bytes > LINE_BYTES_MAX:
                        raise InputFailed(f"{shown}:{number}: the line has more than {LINE_BYTES_MAX} bytes")
                    continue
                texts[0] = b"".join((*rest, texts[0]))
                rest = [texts.pop()]
                rest_bytes = len(rest[0])
                yield _numbered(shown, number, texts)
                number += len(texts)
            yield _numbered(shown, number, [b"".join(rest)])
    except (OSError, EOFError, zlib.error) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise InputFailed(f"{shown}: reading failed behind line {number - 1}: {reason}") from None


def _numbered(file: str, first: int, texts: list[bytes]) -> list[Line]:
    return [Line(file, first + i, text) for i, text in enumerate(texts) if text.strip()]


def _open(name: str) -> BinaryIO:
    if name == STANDARD_INPUT:
        # Unbuffered: it gives what there is, and has no lock that a thread could hold when the process ends.
        return cast(BinaryIO, open(0, "rb", buffering=0, closefd=False))
    path = Path(name)
    if path.suffix == ".gz":
        return cast(BinaryIO, gzip.open(path, "rb"))
    return cast(BinaryIO, path.open("rb", buffering=0))
