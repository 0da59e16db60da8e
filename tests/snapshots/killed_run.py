"""A run that ends where it is told to: `python -m tests.snapshots.killed_run DATA OUTPUT STAGE DELAY_S`.

It kills itself, as the kernel would, so long after the stage has begun. Without STAGE it ends by itself.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

from snapshots.build import BuildObserver, BuildSettings, build
from snapshots.places import open_place
from snapshots.session import SparkSettings, open_session


class Killer(BuildObserver):
    def __init__(self, stage: str, delay_s: float) -> None:
        self._stage = stage
        self._delay_s = delay_s

    def stage(self, name: str) -> None:
        if name == self._stage:
            if not self._delay_s:
                os.kill(os.getpid(), signal.SIGKILL)
            threading.Timer(self._delay_s, os.kill, (os.getpid(), signal.SIGKILL)).start()


def main() -> None:
    data, output, stage, delay_s = sys.argv[1:]
    with open_session(SparkSettings(master="local[2]")) as spark:
        index = build(
            spark,
            open_place(data, None),
            BuildSettings(Path(output), tidy_commits=1),
            Killer(stage, float(delay_s)),
            now_ms=lambda: time.time_ns() // 1_000_000,
        )
    print(index.id)


if __name__ == "__main__":
    main()
