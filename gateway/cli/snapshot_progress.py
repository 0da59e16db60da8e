"""How far a run is, for people: its stage, and how many of the tasks that Spark knows are done."""

from __future__ import annotations

import threading
from types import TracebackType

from pyspark.sql import SparkSession

from snapshots.build import BuildObserver

from .progress import Progress

LOOK_S = 0.5


class RunProgress(BuildObserver):
    """Shows a run in a bar, if standard error is a terminal, and hands on to `next_` what it is told."""

    def __init__(self, next_: BuildObserver) -> None:
        self._next = next_
        self._bar = Progress("tasks")
        self._stage = self._detail = ""
        self._over = threading.Event()
        self._watcher: threading.Thread | None = None

    def __enter__(self) -> RunProgress:
        self.show("starting")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        if self._watcher is not None:
            self._watcher.join()
        self._bar.__exit__(kind, error, trace)

    def stage(self, name: str) -> None:
        self._next.stage(name)
        self.show(name)

    def progress(self, done: int, of: int) -> None:
        self._next.progress(done, of)
        self._detail = f" {done:,}/{of:,}"

    def show(self, stage: str) -> None:
        """Show what the run is at, and tell nobody else."""
        self._stage, self._detail = stage, ""
        self._bar.show(stage, 0, 0)

    def watch(self, spark: SparkSession) -> None:
        """Show the tasks of `spark` until the end of the context."""
        if self._bar.visible:
            self._watcher = threading.Thread(target=self._look, args=(spark,), daemon=True)
            self._watcher.start()

    def _look(self, spark: SparkSession) -> None:
        tracker = spark.sparkContext.statusTracker()
        while not self._over.wait(LOOK_S):
            try:
                stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            except Exception:
                # PySpark without its Java fails in many ways; the run says so itself, with better words.
                return
            known = [stage for stage in stages if stage is not None]
            if known:
                done = sum(stage.numCompletedTasks for stage in known)
                self._bar.show(self._stage + self._detail, done, sum(stage.numTasks for stage in known))
