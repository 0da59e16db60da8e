"""`wes snapshot`: Spark jobs that make snapshots of a log, once or on a schedule, and their status."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

from gateway.config import Config

from .options import add_options, load_config


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command with its verbs."""
    parser = subparsers.add_parser("snapshot", help="make snapshots of a log with Spark, and tell of them")
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    build = verbs.add_parser(
        "build",
        help="make one",
        description="Appends the new events of the log to the Delta table `events`, folds them into the "
        "Delta table `state`, and makes a snapshot of it. Without new events the newest snapshot stays the "
        "newest. Whatever ends it, the last whole snapshot stays as it is, and the next run makes what is "
        "missing.",
    )
    schedule = verbs.add_parser(
        "schedule",
        help="make them by a cron expression, until SIGTERM",
        description="Makes a snapshot, as `wes snapshot build` does, at each time of a cron expression, in "
        "one Spark session that stays open. Times are UTC, so no change of summer time doubles or skips one. "
        "One run at a time: what was missed meanwhile, or while nobody was there, is one run. What fails is "
        "tried again, at longer and longer intervals; `wes snapshot status` tells of it.",
    )
    schedule.add_argument(
        "--cron",
        dest="snapshot_cron",
        default=argparse.SUPPRESS,
        metavar="EXPR",
        help="minute, hour, day of month, month, day of week, as in '30 3 * * *'; six fields begin with the "
        "second",
    )
    for verb in (build, schedule):
        _add_run_options(verb)
    status = verbs.add_parser(
        "status", help="the last snapshot, the last error, the run under way and the next one of each log"
    )
    _add_common_options(status)
    build.set_defaults(run=partial(_run, verb="build"))
    schedule.set_defaults(run=partial(_run, verb="schedule"))
    status.set_defaults(run=partial(_run, verb="status"))


def output_folder(config: Config) -> Path:
    """Where the snapshots are made, which is where `wes serve` looks unless `output` says otherwise.

    That is beside the data that they are made of, if these are here.
    """
    settings = config.snapshot
    if settings.output:
        return Path(settings.output)
    local = settings.from_ and "://" not in settings.from_
    if local and config.snapshots == config.data / "snapshots":
        return Path(settings.from_) / "snapshots"
    return config.snapshots


def _add_common_options(parser: argparse.ArgumentParser) -> None:
    add_options(parser)
    add = partial(parser.add_argument, default=argparse.SUPPRESS)
    add("--log", metavar="NAME", help="the log, where there are several")
    add(
        "--output",
        dest="snapshot_output",
        metavar="DIR",
        help="the folder of all snapshots (default: DIR/snapshots with --from DIR, else wes-data/snapshots)",
    )


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    add = partial(parser.add_argument, default=argparse.SUPPRESS)
    add(
        "--from",
        dest="snapshot_from",
        metavar="URL|DIR",
        help="a gateway, a log document, or the data folder of a gateway",
    )
    _add_common_options(parser)
    add("--master", dest="snapshot_master", metavar="M", help="the Spark master (default: local[*])")
    add(
        "--tables",
        dest="snapshot_tables",
        metavar="URI",
        help="the folder of the Delta tables, if they are not to be beside the snapshots",
    )
    add(
        "--jars",
        dest="snapshot_jars",
        metavar="DIR",
        help="a folder with the jars of Delta; without it they are downloaded once",
    )
    add(
        "--rebuild",
        dest="snapshot_rebuild",
        action="store_const",
        const=True,
        help="start the Delta tables over, from the first event",
    )
    add("--keep", dest="snapshot_keep", metavar="K", help="snapshots to keep, with the new one (default: 3)")


def _run(parsed: argparse.Namespace, verb: str) -> int:
    config = load_config(parsed)
    if parsed.print_config:
        print(config.as_toml(), end="")
        return 0
    # Each needs some of the extra `snapshots`, which no other command does.
    run: Callable[..., int]
    if verb == "status":
        from .snapshot_status import tell_status as run
    elif verb == "schedule":
        from .snapshot_runs import build_on_schedule as run
    else:
        from .snapshot_runs import build_one as run
    return run(config, output_folder(config), as_json=parsed.json)
