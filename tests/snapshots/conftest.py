"""One Spark session for all tests of a process that want one: it takes seconds to start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from snapshots.session import SparkSettings, open_session
from snapshots.webfeed import WebFeed


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    # Short jobs gain nothing from the second compiler of the Java machine.
    more = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1", "spark.sql.shuffle.partitions": "2"}
    with open_session(SparkSettings(master="local[2]", more=more), name="tests") as session:
        session.dataSource.register(WebFeed)
        yield session
