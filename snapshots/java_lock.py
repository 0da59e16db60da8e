"""A lock that the Java process of a session has while a run lasts.

When the Python of a driver is killed, its Java goes on for a moment, and may make one more commit to a table.
The next run has to wait for the end of that.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from .lock import RunUnderWay

JAVA_LOCK = "lock.java"
JAVA_END_S_MAX = 60.0
_RETRY_S = 0.05


@contextmanager
def java_locked(spark: SparkSession, folder: Path) -> Iterator[None]:
    """Within the context no other Java process has the runs in `folder`; raises RunUnderWay after a while.

    The lock is the kernel's: it ends with its process.
    """
    jvm: Any = spark.sparkContext._jvm
    file = jvm.java.io.RandomAccessFile(str(folder / JAVA_LOCK), "rw")
    try:
        deadline = time.monotonic() + JAVA_END_S_MAX
        while file.getChannel().tryLock() is None:
            if time.monotonic() >= deadline:
                raise RunUnderWay(folder, None)
            time.sleep(_RETRY_S)
        yield
    finally:
        # When Java has died in between, its lock is gone too.
        with suppress(Py4JError, OSError):
            file.close()
