"""A session serves run after run, and one whose Java has died is replaced."""

from __future__ import annotations

import os
import signal

import pytest

from snapshots.session import SparkSettings, open_session
from snapshots.warm import JavaDied, WarmSpark


def kill_and_count(java, spark):
    os.kill(java.pid, signal.SIGKILL)
    spark.range(3).count()


@pytest.mark.slow
def test_a_session_is_opened_once_and_anew_when_its_java_has_died():
    warm = WarmSpark(lambda: open_session(SparkSettings(master="local[1]")))
    try:
        first = warm.get()
        assert first.range(3).count() == 3
        assert warm.get() is first
        java = first.sparkContext._gateway.proc
        with pytest.raises(JavaDied, match="has ended, by signal 9: "), warm.at_work() as spark:
            kill_and_count(java, spark)
        second = warm.get()
        assert second is not first
        assert second.range(4).count() == 4
        with pytest.raises(ValueError, match="mine"), warm.at_work():
            raise ValueError("mine")
        second.stop()
        third = warm.get()
        assert third.range(5).count() == 5
        java = third.sparkContext._gateway.proc
    finally:
        warm.close()
    assert java.poll() is not None
    warm.close()
