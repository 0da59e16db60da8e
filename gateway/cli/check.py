"""`wes check`: walk any server's feeds and print each breach of the draft, with the clause it breaks."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections import Counter
from urllib.parse import urlsplit

from gateway.core.errors import GatewayError
from gateway.sync.breaches import Breach, Level, Rule
from gateway.sync.check import CheckSummary, check
from gateway.sync.feed_check import CheckSettings
from gateway.sync.fetch import FetchSettings
from gateway.sync.urls import without_user

from .progress import Progress

SHOWN_MAX = 20
ALL = "all"


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser of `wes`."""
    settings, fetch = CheckSettings(), FetchSettings()
    parser = subparsers.add_parser(
        "check",
        help="walk any server's feed and report each breach of the draft",
        description="Walks the feeds at URL from end to end, twice, and reports each breach with the clause "
        "that it breaks. Exits with 1 if a MUST is broken.",
    )
    parser.add_argument(
        "url", metavar="URL", help="a feed document, or a service or log document of a gateway"
    )
    parser.add_argument(
        "--sample",
        type=_sample,
        default=settings.sample,
        metavar="N",
        help=f"entry links to follow in each feed, evenly spread, or '{ALL}' (default {settings.sample})",
    )
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a SHOULD is broken, too")
    parser.add_argument(
        "--parallel",
        type=_positive,
        default=settings.parallel,
        metavar="N",
        help=f"requests at a time (default {settings.parallel})",
    )
    parser.add_argument(
        "--timeout",
        type=_positive,
        default=int(fetch.request_s),
        metavar="SECONDS",
        help=f"for each request (default {fetch.request_s:.0f})",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Check, print breaches as they are found and a summary at the end, and return the exit status."""
    if urlsplit(args.url).scheme not in ("http", "https") or not urlsplit(args.url).hostname:
        _say(f"{without_user(args.url)}: write http://HOST:PORT/…")
        return 2
    with Progress("requests") as progress:
        printer = _Printer(progress, as_json=args.json)
        try:
            summary = asyncio.run(
                check(
                    args.url,
                    printer.breach,
                    settings=CheckSettings(parallel=args.parallel, sample=args.sample),
                    fetch_settings=FetchSettings(parallel=args.parallel, request_s=args.timeout),
                    on_request=progress.add,
                )
            )
        except GatewayError as error:
            _say(str(error))
            if args.json:
                progress.write(json.dumps({"error": str(error)}))
            return 1
        except KeyboardInterrupt:
            _say("interrupted")
            return 1
    printer.summary(summary)
    broken = summary.count(Level.MUST) + (summary.count(Level.SHOULD) if args.strict else 0)
    return 1 if broken else 0


class _Printer:
    """Writes breaches and the summary on standard output, for people or for programs."""

    def __init__(self, progress: Progress, *, as_json: bool) -> None:
        self._progress = progress
        self._as_json = as_json
        self._shown: Counter[Rule] = Counter()

    def breach(self, breach: Breach) -> None:
        self._shown[breach.rule] += 1
        if self._as_json:
            self._progress.write(json.dumps(breach.as_json()))
        elif self._shown[breach.rule] <= SHOWN_MAX:
            rule = breach.rule
            self._progress.write(
                f"{rule.level.value:6} {rule.code}: {breach.url}: {breach.detail} ({rule.clause})"
            )
        elif self._shown[breach.rule] == SHOWN_MAX + 1:
            self._progress.write(
                f"{breach.rule.level.value:6} {breach.rule.code}: more of them are only counted"
            )

    def summary(self, summary: CheckSummary) -> None:
        facts = summary.as_json()
        facts["seconds"] = round(self._progress.seconds, 1)
        if self._as_json:
            self._progress.write(json.dumps(facts))
            return
        for note in facts["notes"]:
            self._progress.write(f"note   {note}")
        self._progress.write(
            f"{without_user(summary.url)}: {facts['feeds']} feeds, {facts['documents']:,} documents, "
            f"{facts['events']:,} events; {facts['entry_links_followed']:,} of "
            f"{facts['entry_links']:,} entry links followed; {facts['requests']:,} requests in "
            f"{facts['seconds']} s"
        )
        if not summary.counts:
            self._progress.write("no breach found")
            return
        for level in Level:
            for rule, count in summary.counts.items():
                if rule.level is level:
                    self._progress.write(f"{level.value:6} {rule.code}: {count:,} ({rule.clause})")


def _sample(text: str) -> int | None:
    return None if text == ALL else _positive(text)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def _say(text: str) -> None:
    print(f"wes check: {text}", file=sys.stderr)
