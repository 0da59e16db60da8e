"""A Spark session that stays open from one run to the next, and is opened anew when it has gone."""

from __future__ import annotations

import subprocess
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from gateway.core.errors import GatewayError

JAVA_END_S_MAX = 2.0
"""Java may have ended so recently that the system has not said so yet."""


class JavaDied(GatewayError):
    """Spark's Java ended while it was at work."""

    def __init__(self, code: int | None) -> None:
        what = "" if code is None else f", by signal {-code}" if code < 0 else f", with exit code {code}"
        super().__init__(
            f"the Java process of Spark has ended{what}: if nobody ended it, the machine may have too little"
            " memory. The next run starts another one"
        )


class WarmSpark:
    """The session that `opening` opens, for one thread; another one may `cancel` what it does."""

    def __init__(self, opening: Callable[[], AbstractContextManager[SparkSession]]) -> None:
        self._opening = opening
        self._opened = ExitStack()
        self._spark: SparkSession | None = None

    def get(self) -> SparkSession:
        """The session; a new one if the one before was stopped, or its Java has died."""
        if self._spark is not None and not _is_alive(self._spark):
            self.close()
        if self._spark is None:
            self._spark = self._opened.enter_context(self._opening())
        return self._spark

    @contextmanager
    def at_work(self) -> Iterator[SparkSession]:
        """The session; what fails in the context because its Java has died is raised as JavaDied."""
        spark = self.get()
        gateway = spark.sparkContext._gateway
        assert gateway is not None
        java: subprocess.Popen[bytes] = gateway.proc
        try:
            yield spark
        except GatewayError:
            raise
        except Exception as error:
            if _is_alive(spark):
                raise
            with suppress(subprocess.TimeoutExpired):
                java.wait(JAVA_END_S_MAX)
            raise JavaDied(java.returncode) from error

    def cancel(self) -> None:
        """End the Spark jobs that run now, each with an error; any thread may ask for it."""
        spark = self._spark
        if spark is not None:
            with suppress(Py4JError, OSError, AttributeError):
                spark.sparkContext.cancelAllJobs()

    def close(self) -> None:
        """Stop the session, in whatever state it is."""
        self._spark = None
        with warnings.catch_warnings():
            # PySpark warns that Java has died, which is why we are here.
            warnings.simplefilter("ignore", RuntimeWarning)
            self._opened.close()


def _is_alive(spark: SparkSession) -> bool:
    try:
        return not spark.sparkContext._jsc.sc().isStopped()
    # Without Java, PySpark fails in any of these ways.
    except (Py4JError, OSError, AttributeError):
        return False
