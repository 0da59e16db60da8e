"""`wes sync`: an exact, current copy of the entities behind a feed, in a file, a folder, or as lines."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gateway.core.errors import GatewayError, InvalidSetting
from gateway.sync.destination import STANDARD_OUTPUT, OpenCopy, copy_at
from gateway.sync.observer import Observer
from gateway.sync.synchronize import Summary, synchronize
from gateway.sync.urls import without_user
from gateway.sync.verdict import DIFFERENCES_MAX, PartitionVerdict, Verdict

from .output import log_to_standard_error
from .progress import Progress
from .signals import stop_signal

_log = logging.getLogger(__name__)


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser of `wes`."""
    parser = subparsers.add_parser(
        "sync",
        help="make an exact copy of the entities behind a feed, and keep it current",
        description="Reads the feeds at URL into DEST, from where an earlier run left off, up to what they "
        "hold now. A new copy begins with the newest snapshot of the log, if there is one, and goes on "
        "behind exactly the events that it holds; so does one whose feed has started over. Whatever ends "
        "it, the copy holds exactly the events up to its checkpoint, and the next run goes on there.",
    )
    parser.add_argument(
        "url", metavar="URL", help="a gateway, a log document, or a feed document of any server"
    )
    parser.add_argument(
        "destination",
        metavar="DEST",
        help="FILE.sqlite (or .sqlite3, .db), FOLDER/ with one file for each target, or - for one event a "
        "line on standard output (every event of the feed: lines hold no state, so no snapshot is used)",
    )
    parser.add_argument("--log", metavar="NAME", help="the log, where the gateway has several")
    snapshots = parser.add_mutually_exclusive_group()
    snapshots.add_argument(
        "--snapshot",
        metavar="URL",
        help="begin with the snapshot whose index is there: an older one, or, for a single feed, that of "
        "any server of the draft",
    )
    snapshots.add_argument(
        "--no-snapshot",
        action="store_true",
        help="begin with the first event of the feed, and read all that came after",
    )
    parser.add_argument("--follow", action="store_true", help="go on with what comes, until SIGTERM")
    parser.add_argument(
        "--verify",
        action="store_true",
        help="compare the copy with the digests of the gateway, of the same position; exit with 1 if they "
        "differ",
    )
    parser.add_argument(
        "--after",
        type=Path,
        metavar="FILE",
        help="an earlier output of -: go on behind it; a torn last line is cut off (wes sync URL - --after "
        "FILE >> FILE)",
    )
    parser.add_argument(
        "--moved", action="store_true", help="the copy was made from another URL: its events are here now"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Copy until the end of the feeds or until a signal, print the result, return the exit status."""
    if not _is_http(args.url):
        return _usage(f"{without_user(args.url)}: write http://HOST:PORT/…")
    if args.destination == STANDARD_OUTPUT and args.verify:
        return _usage("--verify goes with a file or a folder: lines hold no state")
    if args.destination == STANDARD_OUTPUT and args.snapshot is not None:
        return _usage("--snapshot goes with a file or a folder: lines are all events of the feed")
    if args.snapshot is not None and not _is_http(args.snapshot):
        return _usage(f"--snapshot {without_user(args.snapshot)}: write http://HOST:PORT/…")
    try:
        open_copy = copy_at(args.destination, after=args.after)
    except InvalidSetting as error:
        return _usage(str(error))
    log_to_standard_error()
    with Progress("entities and events") as progress:
        printer = _Printer(args, progress)
        watch = _Watch(progress, printer)
        try:
            summary = asyncio.run(_until_stopped(args, open_copy, watch))
        except GatewayError as error:
            printer.error(str(error))
            return 1
    return printer.summary(summary, watch.events)


async def _until_stopped(args: argparse.Namespace, open_copy: OpenCopy, observer: Observer) -> Summary:
    return await synchronize(
        args.url,
        open_copy,
        log=args.log,
        follow=args.follow,
        verify=args.verify,
        moved=args.moved,
        snapshot=args.snapshot,
        snapshots=not args.no_snapshot,
        stop=stop_signal(),
        observer=observer,
    )


class _Watch(Observer):
    """Counts entities and events for the bar, and events alone; all else is a line of the log."""

    def __init__(self, progress: Progress, printer: _Printer) -> None:
        self.events = 0
        self._progress = progress
        self._printer = printer

    def expected(self, events: int) -> None:
        self._progress.expect(events)

    def applied(self, events: int) -> None:
        self.events += events
        self._progress.add(events)

    def snapshot_begun(self, partition: str, snapshot: str, *, entities: int, events: int) -> None:
        self._progress.expect_more(entities - events)
        with self._progress.aside():
            _log.info("snapshot_begun", extra={"partition": partition, "snapshot": snapshot})

    def loaded(self, entities: int) -> None:
        self._progress.add(entities)

    def snapshot_left(self, partition: str, snapshot: str, reason: str) -> None:
        facts = {"partition": partition, "snapshot": snapshot, "reason": reason}
        with self._progress.aside():
            _log.warning("snapshot_not_used", extra=facts)

    def started_over(self, partition: str, reason: str) -> None:
        with self._progress.aside():
            _log.warning("feed_starts_over", extra={"partition": partition, "reason": reason})

    def completed(self, partition: str) -> None:
        with self._progress.aside():
            _log.info("copy_replaced", extra={"partition": partition})

    def compared(self, verdict: Verdict) -> None:
        self._printer.verdict(verdict)

    def trouble(self, partition: str | None, text: str) -> None:
        facts = {"reason": text} if partition is None else {"partition": partition, "reason": text}
        with self._progress.aside():
            _log.warning("sync_trouble", extra=facts)


class _Printer:
    """Writes the result, for people or for programs: beside the lines on standard error, else on its own."""

    def __init__(self, args: argparse.Namespace, progress: Progress) -> None:
        self._args = args
        self._progress = progress
        self._lines = args.destination == STANDARD_OUTPUT

    def error(self, text: str) -> None:
        _say(text)
        if self._args.json:
            self._write(json.dumps({"error": text}))

    def verdict(self, verdict: Verdict) -> None:
        """Print what was found of each partition."""
        for partition in verdict.partitions:
            self._partition(partition)
        for name in verdict.unknown:
            self._tell({"partition": name, "equal": False}, f"partition {name}: the log has none of the name")

    def summary(self, summary: Summary, events: int) -> int:
        """Print it, and return the exit status."""
        verdict, seconds, used = summary.verdict, self._progress.seconds, summary.snapshot
        facts: dict[str, Any] = {
            "synchronized": without_user(summary.url),
            "log": summary.log,
            "destination": self._args.destination,
            "events": events,
            "seconds": round(seconds, 3),
            "rate": round(events / seconds, 1),
            "stopped": summary.stopped,
            "position": {name: checkpoint.ordinal for name, checkpoint in summary.partitions.items()},
        }
        text = (
            f"copied {events:,} events to {self._args.destination} in "
            f"{seconds:.1f} s, {events / seconds:,.0f} a second"
        )
        if not self._lines:
            if used is not None:
                text += (
                    f", behind snapshot {used.id} of {used.entities:,} entities in {used.parts:,} parts, "
                    f"{used.bytes:,} bytes"
                )
            entities, _ = summary.digest
            facts |= {
                "snapshot": None if used is None else used._asdict(),
                "entities": entities,
                "digest": summary.digest.hex(),
            }
            text += f"; it holds {entities:,} entities, digest {summary.digest.hex()}"
        if self._args.verify:
            facts["verified"] = verdict is not None and verdict.equal
            text += "; not verified" if verdict is None else "; verified" if verdict.equal else "; DIFFERENT"
        self._tell(facts, text)
        return 0 if facts.get("verified", True) else 1

    def _partition(self, found: PartitionVerdict) -> None:
        facts: dict[str, Any] = {
            "partition": found.partition,
            "ordinal": found.ordinal,
            "entities": found.copy.entities,
            "digest": found.copy.hex(),
            "gateway_entities": found.gateway.entities,
            "gateway_digest": found.gateway.hex(),
            "equal": found.equal,
        }
        place = f"partition {found.partition} at event {found.ordinal}"
        if found.equal:
            self._tell(facts, f"{place}: {found.copy.entities:,} entities, digest {found.copy.hex()}: equal")
            return
        facts |= {
            "replayed_digest": None if found.replayed is None else found.replayed.hex(),
            "differences": [difference._asdict() for difference in found.differences],
        }
        lines = [
            f"{place}: DIFFERENT",
            f"  the copy     {found.copy.hex()}, {found.copy.entities:,} entities",
            f"  the gateway  {found.gateway.hex()}, {found.gateway.entities:,} entities",
        ]
        if found.replayed is not None:
            lines.append(f"  a replay     {found.replayed.hex()}, {found.replayed.entities:,} entities")
        for target, mine, theirs in found.differences:
            lines.append(f"  {target}: {mine or 'nothing'} in the copy, {theirs or 'nothing'} in the feed")
        if len(found.differences) == DIFFERENCES_MAX:
            lines.append("  and perhaps more")
        if not found.differences:
            lines.append("  the copy is what its feed says: the gateway's digest differs from its own feed")
        self._tell(facts, "\n".join(lines))

    def _tell(self, facts: dict[str, Any], text: str) -> None:
        self._write(json.dumps(facts) if self._args.json else text)

    def _write(self, line: str) -> None:
        if self._lines:
            print(line, file=sys.stderr)
        else:
            self._progress.write(line)


def _is_http(url: str) -> bool:
    return urlsplit(url).scheme in ("http", "https") and bool(urlsplit(url).hostname)


def _usage(text: str) -> int:
    _say(text)
    return 2


def _say(text: str) -> None:
    print(f"wes sync: {text}", file=sys.stderr)
