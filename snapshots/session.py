"""Spark for the snapshot jobs: one session with Delta Lake, on whatever master.

What can be missing is looked for before Spark starts, and said in a sentence. What the Java side prints goes
into a file, so that a terminal shows the job's own progress, and standard output its results.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from py4j.java_gateway import JavaGateway
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from gateway.core.errors import GatewayError

from .jars import jar_files
from .java import find_java, reason

DRIVER_MEMORY_MIB_MIN, DRIVER_MEMORY_MIB_MAX = 1024, 4096
"""What the Java side may take unless told otherwise: a quarter of the machine, within these."""
STOP_S_MAX = 20.0
SHIPPED = ("gateway", "gateway.core", "gateway.storage", "snapshots", "multipart", "urllib3")
"""What executors on other machines run, besides pyspark and pyarrow, which are there."""

_THREADS = re.compile(r"local(?:\[([0-9]+|\*)(?:,[0-9]+)?\])?")
_WORK, _HELD = "wes-spark-", "held"


class SparkFailed(GatewayError):
    """Spark did not start; the text has its reason."""


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """How Spark is to run.

    `jars` is a folder with the libraries of Delta Lake, `ivy_settings` a file that says where else they come
    from. `memory_mib` is what the Java side of the driver may take, None for a quarter of the machine within
    bounds. `log` is the file for what it prints, appended; None for one that goes with the
    session. `more` are any further settings of Spark; they win over those that are made here.
    """

    master: str = "local[*]"
    jars: Path | None = None
    ivy_settings: Path | None = None
    memory_mib: int | None = None
    log: Path | None = None
    more: Mapping[str, str] = field(default_factory=dict)


@contextmanager
def open_session(settings: SparkSettings | None = None, *, name: str = "snapshots") -> Iterator[SparkSession]:
    """A session with Delta Lake; it and its Java process end with the context, and its temporary files go.

    Raises JavaMissing, JarsMissing and SparkFailed. One at a time in a process.
    """
    settings = settings or SparkSettings()
    if SparkContext._active_spark_context is not None:
        raise SparkFailed("there is a Spark session in this process already: use that, or stop it first")
    find_java()
    files = jar_files(settings.jars, settings.ivy_settings)
    interrupt = signal.getsignal(signal.SIGINT)
    with _work_folder() as work, _environment(settings.master):
        conf = _conf(settings, name, files, work)
        log = settings.log or work / "spark.log"
        gateway = _launch(conf, log)
        try:
            spark = _connect(gateway, conf, log)
            if _threads(settings.master) is None:
                spark.sparkContext.addPyFile(str(_zip_of_code(work)))
            yield spark
        finally:
            _stop(gateway)
            # Spark's own handler would look for a context that is no more.
            if signal.getsignal(signal.SIGINT) is not interrupt:
                signal.signal(signal.SIGINT, interrupt)


def _conf(settings: SparkSettings, name: str, files: list[Path], work: Path) -> SparkConf:
    threads = _threads(settings.master)
    values = {
        "spark.app.name": name,
        "spark.master": settings.master,
        "spark.jars": ",".join(str(path.absolute()) for path in files),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.driver.memory": f"{settings.memory_mib or _memory_mib()}m",
        "spark.local.dir": str(work),
        "spark.sql.warehouse.dir": str(work / "warehouse"),
        "spark.sql.session.timeZone": "UTC",
        # Reading the log of a Delta table takes so many tasks, and the usual 50 are for tables of terabytes.
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.log.level": "WARN",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if threads is not None:
        values["spark.sql.shuffle.partitions"] = str(2 * threads)
    conf = SparkConf(loadDefaults=False)
    conf.setAll([*values.items(), *settings.more.items()])
    return conf


def _launch(conf: SparkConf, log: Path) -> JavaGateway:
    """Start the Java process; raises SparkFailed with what it printed."""
    with log.open("ab") as printed:
        begin = printed.tell()
        try:
            gateway: JavaGateway = launch_gateway(  # type: ignore[no-untyped-call]
                conf, {"stdout": printed, "stderr": printed}
            )
        except (PySparkException, OSError) as error:
            raise SparkFailed(f"Spark did not start: {reason(_text(log, begin))}") from error
    return gateway


def _connect(gateway: JavaGateway, conf: SparkConf, log: Path) -> SparkSession:
    begin = log.stat().st_size
    try:
        return SparkSession(SparkContext(gateway=gateway, conf=conf))
    except (PySparkException, Py4JError, OSError, ValueError) as error:
        # Of a master that does not answer only the log tells.
        told = _text(log, begin)
        why = reason(told if "Reason: " in told else str(error))
        raise SparkFailed(f"Spark did not start on {conf.get('spark.master')}: {why}") from error


def _text(log: Path, begin: int) -> str:
    with log.open("rb") as file:
        file.seek(begin)
        return file.read().decode("utf-8", "replace")


def _stop(gateway: JavaGateway) -> None:
    """End the context and the Java process, even if that has gone already."""
    context = SparkContext._active_spark_context
    if context is not None:
        try:
            (SparkSession.getActiveSession() or SparkSession._instantiatedSession or context).stop()
        except (Py4JError, OSError):
            SparkContext._active_spark_context = None
            SparkSession._instantiatedSession = SparkSession._activeSession = None
    gateway.shutdown()
    # The next session in this process starts a Java of its own.
    SparkContext._gateway = SparkContext._jvm = None
    process: subprocess.Popen[bytes] = gateway.proc
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(STOP_S_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def _environment(master: str) -> Iterator[None]:
    """The environment that Spark and its Python workers read, put back at the end.

    Workers run the same Python as this process, unless somebody knows better.
    """
    wanted = {"PYSPARK_PYTHON": sys.executable}
    if master.startswith("local"):
        wanted["SPARK_LOCAL_IP"] = "127.0.0.1"
    added = {name: value for name, value in wanted.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for key in added:
            os.environ.pop(key, None)


@contextmanager
def _work_folder() -> Iterator[Path]:
    """A folder for what Spark writes down while it runs; those that killed processes have left go too."""
    for left in Path(tempfile.gettempdir()).glob(f"{_WORK}*/{_HELD}"):
        with suppress(OSError), left.open("rb") as held:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left.parent, ignore_errors=True)
    work = Path(tempfile.mkdtemp(prefix=_WORK))
    try:
        with (work / "new").open("wb") as held:
            # It has its name when it is locked, or another process could take it for one that was left.
            fcntl.flock(held, fcntl.LOCK_EX)
            (work / "new").rename(work / _HELD)
            yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _threads(master: str) -> int | None:
    """How many threads of the driver are the executors, None if these are other processes."""
    match = _THREADS.fullmatch(master)
    if match is None:
        return None
    return (os.cpu_count() or 1) if match[1] == "*" else int(match[1] or 1)


def _memory_mib() -> int:
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // (1 << 20)
    return min(max(machine // 4, DRIVER_MEMORY_MIB_MIN), DRIVER_MEMORY_MIB_MAX)


def _zip_of_code(work: Path) -> Path:
    """An archive of the code that executors run, as it is installed here."""
    path = work / "snapshots-code.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in SHIPPED:
            spec = find_spec(package)
            assert spec is not None
            assert spec.origin is not None
            origin = Path(spec.origin)
            place = package.replace(".", "/")
            if origin.name != "__init__.py":
                archive.write(origin, f"{place}.py")
                continue
            # Of the gateway itself nothing but what is named.
            pattern = "__init__.py" if package == "gateway" else "**/*.py"
            for source in sorted(origin.parent.glob(pattern)):
                archive.write(source, f"{place}/{source.relative_to(origin.parent).as_posix()}")
    return path
