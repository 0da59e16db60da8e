"""Events as lines, and going on exactly behind the last whole line of an earlier output.

A line is what `wes publish` reads, with the event's place in its feed in front. A body that is JSON on one
line stands there byte for byte; any other text as `body_text`, anything else as `body_base64`. A feed that
starts over is told by a line `{"start_over": …}`: what the partition's lines before it said holds no more.
"""

from __future__ import annotations

import base64
import io
import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from gateway.core.identity import parse_content_id
from gateway.core.jsontext import NotJson, parse
from gateway.core.state import Digest

from .copy import Checkpoint, CopyFailed, CopyMismatch, Fetched, Source, Unresolved
from .feed import FeedEvent

BLOCK_BYTES = 1024 * 1024
LINE_BYTES_MAX = 512 * 1024 * 1024

_STARTS = (b'{"partition":"', b'{"start_over":{"partition":"')
_PARTITION = re.compile(rb'\{"(?:start_over":\{")?partition":"([^"\\]*)"')
# With fewer brackets than this no JSON text is nested too deeply for anybody.
_BRACKETS_PLAIN = 200


def event_line(partition: str, ordinal: int, event: FeedEvent) -> bytes:
    """The line of an event, with its line break."""
    facts: dict[str, Any] = {
        "partition": partition,
        "ordinal": ordinal,
        "content_id": event.content_id,
        "entry": event.entry,
    }
    if event.method is not None:
        facts["method"] = event.method.value
    else:
        facts["event_type"] = event.event_type
    facts["target"] = event.target
    if event.content_type is not None:
        facts["content_type"] = event.content_type
    if event.last_modified is not None:
        facts["last_modified"] = event.last_modified
    if event.extra_headers:
        facts["extra_headers"] = event.extra_headers
    head = json.dumps(facts, separators=(",", ":")).encode()
    if not event.body:
        return head + b"\n"
    return b"%b,%b}\n" % (head[:-1], _body(event.content_type, event.body))


def start_over_line(partition: str, reason: str) -> bytes:
    """The line that takes back all lines of the partition before it."""
    told = {"start_over": {"partition": partition, "reason": reason}}
    return json.dumps(told, separators=(",", ":")).encode() + b"\n"


def _body(content_type: str | None, body: bytes) -> bytes:
    # Without a type of its own, a line with JSON or text would be given one when it is published.
    if content_type is not None:
        try:
            text = body.decode()
        except UnicodeDecodeError:
            pass
        else:
            if _stands_as_it_is(text, body):
                return b'"body":' + body
            return b'"body_text":' + json.dumps(text).encode()
    return b'"body_base64":"%b"' % base64.b64encode(body)


def _stands_as_it_is(text: str, body: bytes) -> bool:
    """Whether the body is one JSON text without a line break, or space around it."""
    if "\n" in text or "\r" in text or text[0] in " \t" or text[-1] in " \t":
        return False
    try:
        if text.count("[") + text.count("{") > _BRACKETS_PLAIN:
            parse(body)
        else:
            _scan(text)
    except (NotJson, ValueError):
        return False
    return True


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


# Numbers are not read: their text stays, whatever their length.
_scan = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=_refuse).decode


class NdjsonCopy:
    """See `gateway.sync.copy.Copy`; it holds no state, only the place of the last event.

    With `after`, an earlier output: what a kill left of its last line is cut off, and each partition goes on
    behind its last event there. Raises CopyMismatch if the file is no such output.
    """

    def __init__(self, output: BinaryIO, *, after: Path | None = None) -> None:
        self._output = output
        self._checkpoints: dict[str, Checkpoint] = {}
        self._earlier = None if after is None else _Earlier(after)

    def bind(self, source: Source, *, moved: bool = False) -> None:
        """Lines name their events, not where they came from."""

    def begin(self, partition: str, url: str) -> None:
        known = self._checkpoints.get(partition)
        if known is None and self._earlier is not None:
            known = self._earlier.checkpoint(partition, url)
        self._checkpoints[partition] = (known or _empty(url))._replace(url=url)

    def partitions(self) -> list[str]:
        return list(self._checkpoints)

    def checkpoint(self, partition: str) -> Checkpoint:
        return self._checkpoints[partition]

    def starting_over(self, partition: str) -> bool:
        return False

    def apply(self, partition: str, events: Sequence[FeedEvent]) -> None:
        if not events:
            return
        before = self._checkpoints[partition]
        first = before.events if events[0].ordinal is None else events[0].ordinal
        self._write(
            b"".join(event_line(partition, ordinal, event) for ordinal, event in enumerate(events, first))
        )
        last = events[-1]
        self._checkpoints[partition] = _checkpoint(
            before.url, first + len(events) - 1, last.content_id, last.entry
        )

    def start_over(self, partition: str, reason: str) -> None:
        self._write(start_over_line(partition, reason))
        self._checkpoints[partition] = _empty(self._checkpoints[partition].url)

    def complete(self, partition: str) -> None:
        """Nothing was kept apart."""

    def unresolved(self, partition: str) -> list[Unresolved]:
        return []

    def resolve(self, partition: str, target: str, fetched: Fetched | None) -> None:
        """Lines are events, not state."""

    def close(self) -> None:
        if self._earlier is not None:
            self._earlier.close()

    def _write(self, data: bytes) -> None:
        try:
            view = memoryview(data)
            while view:
                # A raw stream may take a part only.
                view = view[self._output.write(view) or 0 :]
            self._output.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise CopyFailed(f"standard output: {error.strerror or error}") from error


class _Earlier:
    """An earlier output, read from its end as far as the places of the partitions are looked for."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: dict[str, Checkpoint] = {}
        self._over: set[str] = set()
        self._lines: Iterator[bytes] = iter(())
        try:
            self._file = path.open("r+b") if path.exists() else io.BytesIO()
            try:
                self._lines = _lines_backwards(self._file, _cut_torn_line(self._file, path))
            except BaseException:
                self._file.close()
                raise
        except OSError as error:
            raise CopyFailed(f"{path}: {error.strerror or error}") from error

    def checkpoint(self, partition: str, url: str) -> Checkpoint | None:
        """The place of the last event of the partition; None if there is none."""
        while partition not in self._found and partition not in self._over:
            line = next(self._lines, None)
            if line is None:
                break
            self._read(line, url)
        return self._found.get(partition)

    def _read(self, line: bytes, url: str) -> None:
        match = _PARTITION.match(line)
        if match is None:
            raise _mismatch(self._path)
        partition = match[1].decode("utf-8", "replace")
        if partition in self._found or partition in self._over:
            return
        try:
            facts = json.loads(line)
            if "start_over" in facts:
                self._over.add(partition)
            else:
                entry = facts["entry"]
                self._found[partition] = _checkpoint(
                    url,
                    int(facts["ordinal"]),
                    str(facts["content_id"]),
                    None if entry is None else str(entry),
                )
        except (ValueError, KeyError, TypeError, RecursionError):
            raise _mismatch(self._path) from None

    def close(self) -> None:
        self._file.close()


def _cut_torn_line(file: BinaryIO, path: Path) -> int:
    """Cut off what stands behind the last line break; returns the length of the rest."""
    length = file.seek(0, os.SEEK_END)
    torn = b""
    position = length
    while position > 0:
        start = max(0, position - BLOCK_BYTES)
        file.seek(start)
        block = file.read(position - start)
        at = block.rfind(b"\n")
        torn = block[at + 1 :] + torn
        if at >= 0:
            position = start + at + 1
            break
        position = start
        if len(torn) > LINE_BYTES_MAX:
            raise _mismatch(path)
    if torn:
        # Only what we began ourselves: the name of another file may have been given by mistake.
        if not any(torn[: len(start)] == start[: len(torn)] for start in _STARTS):
            raise _mismatch(path)
        file.truncate(position)
    return position


def _lines_backwards(file: BinaryIO, length: int) -> Iterator[bytes]:
    """The lines of the first `length` bytes, the last one first."""
    rest: list[bytes] = []
    position = length
    while position > 0:
        start = max(0, position - BLOCK_BYTES)
        file.seek(start)
        block = file.read(position - start)
        position = start
        if b"\n" not in block:
            rest.append(block)
            continue
        first, *lines = block.split(b"\n")
        lines[-1] += b"".join(reversed(rest))
        rest = [first]
        yield from (line for line in reversed(lines) if line)
    if rest and (line := b"".join(reversed(rest))):
        yield line


def _empty(url: str) -> Checkpoint:
    return Checkpoint(url, None, None, None, None, 0, Digest())


def _checkpoint(url: str, ordinal: int, content_id: str, entry: str | None) -> Checkpoint:
    ours = parse_content_id(content_id)
    generation = None if ours is None else ours.generation
    return Checkpoint(url, ordinal, content_id, entry, generation, ordinal + 1, Digest())


def _mismatch(path: Path) -> CopyMismatch:
    return CopyMismatch(f"{path} is not what wes sync writes to standard output: give that to --after")
