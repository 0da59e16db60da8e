"""`wes snapshot build` and `schedule`: one run, or runs at the times of a cron expression."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from gateway.config import Config
from gateway.core.errors import GatewayError, InvalidSetting
from gateway.core.snapshots import SnapshotIndex
from snapshots.build import BuildObserver, BuildSettings, build
from snapshots.cron import Cron
from snapshots.lock import WITH_STATUS, RunLock
from snapshots.places import open_place
from snapshots.runs import Run, RunFailed, recorded
from snapshots.schedule import Schedule, ScheduleObserver
from snapshots.session import SparkSettings, open_session
from snapshots.status import StatusFile, Success
from snapshots.warm import WarmSpark

from .output import log_to_standard_error
from .signals import stop_signal
from .snapshot_progress import RunProgress
from .snapshot_status import time_text

FINISH_S_MAX = 10.0
"""A run under way when the schedule is to end may go on so long."""
GIVE_UP_S_MAX = 15.0
"""Then its Spark jobs are cancelled, and it has so long to say good-bye."""

_log = logging.getLogger(__name__)


def build_one(config: Config, output: Path, *, as_json: bool) -> int:
    """One run; prints the snapshot."""
    _prepare(config)
    warm = _warm(config)
    try:
        log = open_place(config.snapshot.from_, config.log).log
        run, status = _run(config, output, log, warm), StatusFile(output / log)
        with RunLock(status.folder, WITH_STATUS):
            index, success = recorded(run, status, now_ms=_now_ms)
    except GatewayError as error:
        _log_cause(error)
        if as_json:
            print(json.dumps({"error": str(error)}))
        raise
    finally:
        warm.close()
    print(_told(index, success, as_json=as_json), flush=True)
    return 0


def build_on_schedule(config: Config, output: Path, *, as_json: bool) -> int:
    """Runs until SIGTERM or SIGINT; prints each snapshot."""
    if not config.snapshot.cron:
        raise InvalidSetting("cron is not told: write --cron '30 3 * * *' for 03:30 UTC every day")
    cron = Cron(config.snapshot.cron)
    _prepare(config)
    log = config.log or open_place(config.snapshot.from_, None).log
    warm = _warm(config)
    stop = threading.Event()
    schedule = Schedule(
        cron,
        StatusFile(output / log),
        _run(config, output, log, warm),
        stop,
        _now_ms,
        _Watch(log, as_json=as_json),
    )

    def work() -> None:
        try:
            # At once, so that what Spark lacks is not learned in the night.
            warm.get()
            schedule.go_on()
        finally:
            warm.close()

    asyncio.run(_until_stopped(work, stop, warm))
    return 0


async def _until_stopped(work: Callable[[], None], stop: threading.Event, warm: WarmSpark) -> None:
    """Do `work` in a thread until it is done or a signal comes; what it raises is raised here.

    After a signal it has a while to end at a safe point. A run can be broken off anywhere without harm, so
    the process ends in any case.
    """
    over, loop = stop_signal(), asyncio.get_running_loop()
    failure: list[BaseException] = []

    def thread() -> None:
        try:
            work()
        except BaseException as error:
            failure.append(error)
        finally:
            loop.call_soon_threadsafe(over.set)

    # Spark sets handlers of its own for signals, but not in a thread.
    worker = threading.Thread(target=thread, daemon=True)
    worker.start()
    await over.wait()
    if not failure:
        stop.set()
        worker.join(FINISH_S_MAX)
        if worker.is_alive():
            warm.cancel()
            worker.join(GIVE_UP_S_MAX)
    elif isinstance(failure[0], Exception):
        raise failure[0]


class _Watch(ScheduleObserver):
    """Prints each snapshot; all else is a line of the log."""

    def __init__(self, log: str, *, as_json: bool) -> None:
        self._of = log
        self._as_json = as_json

    def waits(self, next_ms: int) -> None:
        _log.info("snapshot_waits", extra={"log": self._of, "next": time_text(next_ms)})

    def made(self, index: SnapshotIndex, success: Success) -> None:
        print(_told(index, success, as_json=self._as_json), flush=True)

    def failed(self, error: GatewayError, retry_ms: int) -> None:
        _log_cause(error)
        facts = {"log": self._of, "reason": str(error), "retry": time_text(retry_ms)}
        _log.warning("snapshot_not_made", extra=facts)


def _prepare(config: Config) -> None:
    if not config.snapshot.from_:
        raise InvalidSetting("from is not told: write --from URL of a gateway, or --from DIR with its data")
    log_to_standard_error()
    # Py4J tells of every connection that Java closes, partly in the name of the root.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(lambda record: record.levelno > logging.INFO)


def _warm(config: Config) -> WarmSpark:
    settings = config.snapshot
    jars = Path(settings.jars) if settings.jars else None
    return WarmSpark(lambda: open_session(SparkSettings(master=settings.master, jars=jars)))


def _run(config: Config, output: Path, log: str, warm: WarmSpark) -> Run:
    settings = config.snapshot
    of_build = BuildSettings(
        output=output, tables=settings.tables or None, keep=settings.keep, rebuild=settings.rebuild
    )

    def run(observer: BuildObserver) -> SnapshotIndex:
        with RunProgress(observer) as progress:
            place = open_place(settings.from_, log)
            with warm.at_work() as spark:
                progress.watch(spark)
                return build(spark, place, of_build, progress, now_ms=_now_ms)

    return run


def _told(index: SnapshotIndex, success: Success, *, as_json: bool) -> str:
    size = sum(part.size for part in index.parts)
    new = index.started >= success.started
    if as_json:
        return json.dumps(
            {
                "snapshot": index.id,
                "log": index.log,
                "new": new,
                "started": index.started,
                "completed": index.completed,
                "position": {feed.partition: feed.last for feed in index.feeds},
                "entities": index.entities,
                "digest": index.digest,
                "parts": len(index.parts),
                "bytes": size,
                "delta": {name: asdict(table) for name, table in index.delta.items()},
                "seconds": success.seconds,
            }
        )
    return (
        f"snapshot {index.id}{'' if new else ' is still the newest'}: {index.entities:,} entities "
        f"in {len(index.parts):,} parts, {size / 1e6:,.1f} MB, digest {index.digest}, "
        f"took {success.seconds:.1f} s"
    )


def _log_cause(error: GatewayError) -> None:
    """The whole of what Spark or Python said, for those who must look into it."""
    if isinstance(error, RunFailed):
        _log.error("run_failed", exc_info=error.__cause__)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
