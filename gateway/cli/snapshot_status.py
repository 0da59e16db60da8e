"""`wes snapshot status`: what is known of the runs of each log; needs neither Spark nor Java."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from gateway.config import Config
from snapshots.status import STATUS, Status, StatusFile


def tell_status(config: Config, output: Path, *, as_json: bool) -> int:
    """Print what is known of each log in `output`; 1 if that is nothing."""
    logs = [config.log] if config.log else sorted(file.parent.name for file in output.glob(f"*/{STATUS}"))
    found = [(log, StatusFile(output / log).look()) for log in logs if (output / log / STATUS).exists()]
    for log, status in found:
        print(json.dumps({"log": log, **asdict(status)}) if as_json else _status_text(log, status))
    if not found:
        what = f"log {config.log}" if config.log else "any log"
        print(f"wes: no run has made a snapshot of {what} in {output} yet: see --output", file=sys.stderr)
    return 0 if found else 1


def _status_text(log: str, status: Status) -> str:
    lines = [f"{log}: no snapshot yet"]
    if made := status.success:
        lines = [
            f"{log}: snapshot {made.id} of {made.events:,} events, {made.entities:,} entities; "
            f"the last run ended {time_text(made.completed)} and took {made.seconds:.1f} s"
        ]
    if status.failure is not None:
        since = f", {status.failures} since the last success" if status.failures else ", none since"
        lines.append(f"  last error {time_text(status.failure.time)}{since}: {status.failure.error}")
    if run := status.running:
        lines.append(f"  under way since {time_text(run.started)}, process {run.pid}: {run.stage}")
    if plan := status.scheduled:
        lines.append(f"  next run {time_text(plan.next)}, by {plan.cron!r}")
        if plan.waiting is not None:
            lines.append(f"  it is overdue: {plan.waiting}")
    return "\n".join(lines)


def time_text(milliseconds: int) -> str:
    """A time for people, in UTC."""
    return f"{datetime.fromtimestamp(milliseconds / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"
