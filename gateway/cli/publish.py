"""`wes publish`: the events of files, one a line, into a log over HTTP or AMQP.

At most once: an event is sent again only where the answer said that nothing was done with it (503, 429).
Where no answer came nobody knows whether the log has it, so everything stops, and the message names the
line. Order is kept for each target over HTTP, and altogether over AMQP.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from urllib.parse import urlsplit

from gateway.core.errors import GatewayError, InvalidEvent
from gateway.core.eventline import parse_event_line
from gateway.sync.urls import without_user

from .ledger import Ledger, Outcome, PublishFailed, Sender
from .lines import STANDARD_INPUT, InputFailed, check_readable, read_lines
from .progress import Progress

DEFAULT_LOG = "events"
PARALLEL = 16
PARALLEL_MAX = 256


class _Parser(argparse.ArgumentParser):
    """Takes files behind options, too: argparse by itself wants all of them right behind the URL."""

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        parsed, rest = super().parse_known_args(args, namespace)
        files = [word for word in rest if word == STANDARD_INPUT or not word.startswith("-")]
        parsed.files = [*parsed.files, *files]
        return parsed, [word for word in rest if word not in files]


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser of `wes`."""
    parser = subparsers.add_parser(
        "publish",
        help="publish the events of files, one a line",
        description="Publishes one event for each line of the files: a JSON object with method, target, "
        "content_type and body, body_text or body_base64, or a CloudEvent in JSON format.",
    )
    # The class of a command's parser is otherwise that of the whole command line's.
    parser.__class__ = _Parser
    parser.add_argument("url", metavar="URL", help="http(s)://… of a gateway or amqp(s)://… of a log node")
    parser.add_argument("files", metavar="FILE", nargs="*", help="also .gz; - is standard input")
    parser.add_argument(
        "--log",
        metavar="NAME",
        help=f"the log (over AMQP by default {DEFAULT_LOG}; over HTTP the gateway chooses by the target, "
        "and an event that goes to another log stops the rest)",
    )
    parser.add_argument(
        "--parallel",
        type=_parallel,
        default=PARALLEL,
        metavar="N",
        help=f"requests at a time over HTTP (default {PARALLEL})",
    )
    parser.add_argument("--json", action="store_true", help="print the result as a JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Publish, print the result, and return the exit status."""
    names: list[str] = args.files or [STANDARD_INPUT]
    scheme = urlsplit(args.url).scheme.lower()
    if scheme not in ("http", "https", "amqp", "amqps") or not urlsplit(args.url).hostname:
        return _usage(f"{without_user(args.url)}: write http://HOST:PORT or amqp://HOST:PORT")
    if scheme.startswith("http") and (urlsplit(args.url).query or urlsplit(args.url).fragment):
        return _usage(f"{without_user(args.url)}: leave out the query and the fragment")
    try:
        check_readable(names)
    except InputFailed as error:
        return _usage(str(error))
    if STANDARD_INPUT in names and sys.stdin is not None and sys.stdin.isatty():
        _say("reading events from the terminal, one a line; end with Ctrl-D")
    with Progress("events") as progress:
        ledger = Ledger(progress.add)
        try:
            sender = _sender(args, ledger)
            trouble = asyncio.run(_publish(names, sender, ledger))
        except GatewayError as error:
            trouble = str(error)
        except KeyboardInterrupt:
            trouble = "interrupted; what was under way may or may not be in the log"
    _report(args, ledger, progress, trouble)
    return 0 if trouble is None else 1


async def _publish(names: list[str], sender: Sender, ledger: Ledger) -> str | None:
    """Publish until the input ends or something stops it; what stopped it, or None."""
    trouble: str | None = None
    bad: tuple[int, PublishFailed] | None = None
    try:
        await sender.open()
        try:
            async for line in read_lines(names, ledger.over):
                if ledger.over.is_set():
                    break
                ticket = ledger.begin(line)
                try:
                    event = parse_event_line(line.text)
                except InvalidEvent as error:
                    bad = ticket, PublishFailed(str(error), Outcome.BAD_LINE)
                    break
                await sender.put(ticket, event)
        except InputFailed as error:
            trouble = str(error)
        # What stands in front of a bad line is still published; then the ledger is told.
        await sender.finish()
    finally:
        await sender.close()
    if bad is not None:
        ledger.fail(*bad)
    return ledger.explain() or trouble


def _sender(args: argparse.Namespace, ledger: Ledger) -> Sender:
    scheme = urlsplit(args.url).scheme.lower()
    if scheme.startswith("http"):
        from .publish_http import HttpSender

        return HttpSender(args.url, ledger, log=args.log, parallel=args.parallel)
    try:
        from .publish_amqp import AmqpSender
    except ModuleNotFoundError as error:
        if error.name not in ("proton", "cproton"):
            raise
        raise GatewayError(
            'publishing over AMQP needs python-qpid-proton: pip install "web-event-sourcing[gateway]", '
            "or publish over HTTP"
        ) from None
    return AmqpSender(args.url, ledger, log=args.log or DEFAULT_LOG)


def _report(args: argparse.Namespace, ledger: Ledger, progress: Progress, trouble: str | None) -> None:
    count, seconds, rate = ledger.acknowledged, progress.seconds, progress.rate
    if trouble is not None:
        _say(trouble)
    if args.json:
        result: dict[str, object] = {
            "published": count,
            "seconds": round(seconds, 3),
            "rate": round(rate, 1),
        }
        if trouble is not None:
            result["error"] = trouble
        if (first := ledger.first_failure()) is not None:
            line, error = first
            result |= {"file": line.file, "line": line.number, "outcome": error.outcome.name.lower()}
        print(json.dumps(result))
    else:
        print(
            f"published {count:,} events to {without_user(args.url)} in {seconds:.1f} s, {rate:,.0f} a second"
        )


def _parallel(text: str) -> int:
    number = int(text)
    if not 1 <= number <= PARALLEL_MAX:
        raise argparse.ArgumentTypeError(f"must be from 1 to {PARALLEL_MAX}")
    return number


def _usage(text: str) -> int:
    _say(text)
    return 2


def _say(text: str) -> None:
    print(f"wes publish: {text}", file=sys.stderr)
