"""The Spark session: what is missing is said before Spark starts, and what it made is gone when it ends."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import textwrap
import time
import zipfile
from pathlib import Path

import pytest
from pyspark import SparkContext

from snapshots import jars, session
from snapshots.jars import JarsMissing, coordinates, jar_files, locked
from snapshots.java import JavaMissing, find_java, reason
from snapshots.session import open_session

WAIT_S = 300


def make_java(folder: Path, says: str, code: int = 0) -> Path:
    """A program that answers `java -version`, and its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    java = folder / "java"
    java.write_text(f"#!/bin/sh\ncat >&2 <<'end'\n{says}\nend\nexit {code}\n")
    java.chmod(0o755)
    return java


@pytest.fixture
def no_home(monkeypatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)


@pytest.mark.parametrize(
    "says",
    [
        'openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment (build 17.0.15+6)',
        'openjdk version "21" 2023-09-19 LTS',
        'Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "26-ea" 2026-03-17',
    ],
)
def test_java_17_and_later_is_taken(tmp_path, monkeypatch, no_home, says):
    java = make_java(tmp_path / "bin", says)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    assert find_java() == java


@pytest.mark.parametrize(
    ("says", "text"),
    [('java version "1.8.0_402"', "is Java 8;"), ('openjdk version "11.0.2" 2019-01-15', "is Java 11;")],
)
def test_java_that_is_too_old_is_said_before_spark_starts(tmp_path, monkeypatch, says, text):
    make_java(tmp_path / "bin", says)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    # Other tests of this process may have one.
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    text = rf"bin/java {text} the snapshot jobs .* needs Java 17 or later"
    with pytest.raises(JavaMissing, match=text), open_session():
        pass


def test_java_that_is_not_there_or_does_not_run_is_said(tmp_path, monkeypatch, no_home):
    path = os.environ["PATH"]
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaMissing, match=r"there is no java on the PATH; .*apt-get install"):
        find_java()
    monkeypatch.setenv("PATH", path)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    with pytest.raises(JavaMissing, match=r"JAVA_HOME is .*/jdk, and there is no bin/java in it"):
        find_java()
    make_java(tmp_path / "jdk" / "bin", "no room", 1)
    with pytest.raises(JavaMissing, match="does not run"):
        find_java()
    make_java(tmp_path / "jdk" / "bin", "hello")
    with pytest.raises(JavaMissing, match="does not tell its version, but 'hello'"):
        find_java()


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("", "it gave no reason"),
        ("some\nlast words", "some last words"),
        (
            'warned\nException in thread "main" a.BException: no room\n\tat a.B.c(B.java:1)\n',
            "a.BException: no room",
        ),
        (
            "1 ERROR X: The application was killed. Reason: All masters are mute\nother",
            "All masters are mute",
        ),
        (": java.lang.IllegalStateException: no\n\tat x", "java.lang.IllegalStateException: no"),
    ],
)
def test_the_reason_that_java_gives_is_found(said, why):
    assert reason(said) == why


@pytest.fixture
def listed(tmp_path: Path, monkeypatch) -> Path:
    """A list of two libraries, a home whose cache has them, and no Java that could fetch them."""
    home = tmp_path / "home"
    cache = home / jars.IVY_FOLDER / "jars"
    cache.mkdir(parents=True)
    lines = []
    for name in ("a-1.jar", "b-2.jar"):
        (cache / name).write_text(name)
        lines.append(f"{hashlib.sha256(name.encode()).hexdigest()}  {name}\n")
    (tmp_path / "jars.txt").write_text("".join(lines))
    monkeypatch.setattr(jars, "JARS_LIST", tmp_path / "jars.txt")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "no-java"))
    return cache


def test_libraries_that_are_all_in_the_cache_are_not_asked_of_any_network(listed):
    (listed / "other-3.jar").touch()
    assert jar_files() == [listed / "a-1.jar", listed / "b-2.jar"]


def test_a_library_that_the_cache_lacks_is_resolved(listed):
    (listed / "b-2.jar").unlink()
    # That it tries to shows in what it cannot do without.
    with pytest.raises(JavaMissing):
        jar_files()


def test_a_library_that_is_not_the_one_locked_is_refused(listed):
    (listed / "b-2.jar").write_text("b-3.jar")
    with pytest.raises(JarsMissing, match=r"/jars/b-2\.jar is not the file"):
        jar_files()


def test_a_chosen_folder_must_have_all_libraries_and_may_have_more(listed, tmp_path):
    chosen = tmp_path / "chosen"
    chosen.mkdir()
    (chosen / "a-1.jar").touch()
    with pytest.raises(
        JarsMissing, match=r"chosen lacks 1 of the 2 libraries of Delta Lake, such as b-2\.jar"
    ):
        jar_files(chosen)
    (chosen / "b-2.jar").touch()
    (chosen / "hadoop-aws.jar").touch()
    assert [path.name for path in jar_files(chosen)] == ["a-1.jar", "b-2.jar", "hadoop-aws.jar"]


def test_ivy_settings_that_are_not_there_are_said(listed, tmp_path, monkeypatch):
    monkeypatch.delenv("JAVA_HOME")
    (listed / "a-1.jar").unlink()
    with pytest.raises(JarsMissing, match="there are no Ivy settings"):
        jar_files(None, tmp_path / "ivy.xml")


def repository(folder: Path, *, with_jar: bool) -> Path:
    """Ivy settings that know one repository, a folder with one library."""
    group, name, version = coordinates().split(":")
    place = folder / "repository" / group.replace(".", "/") / name / version
    place.mkdir(parents=True)
    if with_jar:
        (place / f"{name}-{version}.jar").write_text("b")
        (place / f"{name}-{version}.pom").write_text(
            "<project><modelVersion>4.0.0</modelVersion>"
            f"<groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version></project>"
        )
    settings = folder / "ivy.xml"
    settings.write_text(
        "<ivysettings><settings defaultResolver='files'/><resolvers><ibiblio name='files' m2compatible='true'"
        f" root='file://{folder}/repository/'/></resolvers></ivysettings>"
    )
    return settings


@pytest.mark.slow
def test_libraries_are_resolved_as_the_ivy_settings_say(listed, tmp_path, monkeypatch):
    monkeypatch.delenv("JAVA_HOME")
    group, name, version = coordinates().split(":")
    resolved = f"{group}_{name}-{version}.jar"
    jars.JARS_LIST.write_text(f"{hashlib.sha256(b'b').hexdigest()}  {resolved}\n")
    assert jar_files(None, repository(tmp_path, with_jar=True)) == [listed / resolved]
    jars.JARS_LIST.write_text(f"{hashlib.sha256(b'c').hexdigest()}  c.jar\n")
    with pytest.raises(JarsMissing, match=r"Ivy did not give c\.jar"):
        jar_files(None, tmp_path / "ivy.xml")


@pytest.mark.slow
def test_libraries_that_cannot_be_had_are_said_with_the_reason_and_what_to_do(listed, tmp_path, monkeypatch):
    monkeypatch.delenv("JAVA_HOME")
    (listed / "a-1.jar").unlink()
    settings = repository(tmp_path, with_jar=False)
    with pytest.raises(JarsMissing, match=r"unresolved dependency: io\.delta.*not found.*; let it reach"):
        jar_files(None, settings)


def test_the_list_of_libraries_names_delta_for_this_spark():
    _, name, version = coordinates().split(":")
    assert f"io.delta_{name}-{version}.jar" in locked()
    assert all(len(sha256) == 64 for sha256 in locked().values())


def test_the_java_side_takes_a_quarter_of_the_machine_within_bounds():
    assert session.DRIVER_MEMORY_MIB_MIN <= session._memory_mib() <= session.DRIVER_MEMORY_MIB_MAX


@pytest.mark.parametrize(
    ("master", "threads"),
    [
        ("local", 1),
        ("local[3]", 3),
        ("local[4,2]", 4),
        ("local[*]", os.cpu_count()),
        ("spark://h:7077", None),
    ],
)
def test_threads_of_a_master(master, threads):
    assert session._threads(master) == threads


def test_what_executors_run_is_in_the_archive_for_them(tmp_path):
    archive = session._zip_of_code(tmp_path)
    names = zipfile.ZipFile(archive).namelist()
    for name in ("gateway/__init__.py", "gateway/core/state.py", "gateway/storage/filestore.py"):
        assert name in names
    assert {"snapshots/webfeed.py", "multipart.py", "urllib3/connection.py"} <= set(names)
    assert not [name for name in names if name.startswith(("gateway/http", "gateway/cli"))]
    # It is enough: another Python with pyspark and pyarrow, and with nothing of this project, can read feeds.
    code = "import snapshots.webfeed, sys; print(snapshots.webfeed.__file__)"
    done = run(code, hidden=True, PYTHONPATH=str(archive))
    assert done.stdout.startswith(str(archive)), done.stderr


# Each in a process of its own, as there is one session at a time.


def run(
    code: str, *arguments: str, hidden: bool = False, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run Python; `hidden` is one that finds the installed packages, but not this project's checkout."""
    if hidden:
        site = Path(pytest.__file__).parent.parent
        environment["PYTHONPATH"] = f"{environment['PYTHONPATH']}:{site}"
    command = [sys.executable, *(["-S"] if hidden else []), "-c", textwrap.dedent(code), *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=WAIT_S, env=os.environ | environment, cwd="/"
    )


@pytest.mark.slow
def test_a_session_works_with_a_chosen_folder_and_leaves_nothing_behind(tmp_path):
    chosen = tmp_path / "chosen"
    chosen.mkdir()
    for path in jar_files():
        (chosen / path.name).symlink_to(path)
    code = """
    import sys
    from pathlib import Path
    from snapshots.session import SparkSettings, open_session
    settings = SparkSettings(master="local[2]", jars=Path(sys.argv[1]), log=Path(sys.argv[2]))
    for number in range(2):
        with open_session(settings) as spark:
            path = f"{sys.argv[3]}/{number}"
            spark.range(10).write.format("delta").save(path)
            java = spark.sparkContext._gateway.proc
            print(spark.read.format("delta").load(path).count(), spark.conf.get("spark.sql.session.timeZone"))
        print(java.poll() is not None)
    """
    log, temporary = tmp_path / "spark.log", tmp_path / "tmp"
    temporary.mkdir()
    # A cache that is empty: the chosen folder is enough.
    done = run(
        code, str(chosen), str(log), str(tmp_path / "tables"), HOME=str(tmp_path), TMPDIR=str(temporary)
    )
    assert done.stdout.splitlines() == ["10 UTC", "True"] * 2, done.stderr
    assert done.stderr == ""
    assert list(temporary.iterdir()) == []
    assert log.exists()


@pytest.mark.slow
def test_why_spark_did_not_start_is_said():
    code = """
    from snapshots.session import SparkFailed, SparkSettings, open_session
    for more in ({"spark.driver.memory": "1k"}, {"spark.master": "nowhere"}):
        try:
            with open_session(SparkSettings(more=more)):
                pass
        except SparkFailed as error:
            print(error)
    """
    done = run(code)
    first, second = done.stdout.splitlines()
    assert first.startswith("Spark did not start: ")
    assert "heap" in first
    assert second.startswith("Spark did not start: ")
    assert "Master must" in second


@pytest.mark.slow
def test_java_ends_with_a_killed_driver_and_the_next_session_clears_up(tmp_path):
    code = """
    import os, signal
    from snapshots.session import SparkSettings, open_session
    with open_session(SparkSettings(master="local[1]")) as spark:
        print(spark.sparkContext._gateway.proc.pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = run(code, TMPDIR=str(tmp_path))
    java = Path(f"/proc/{int(done.stdout)}")
    deadline = time.monotonic() + 30
    while java.exists() and "java" in (java / "cmdline").read_text():
        assert time.monotonic() < deadline, "Java goes on without its driver"
        time.sleep(0.05)
    assert len(list(tmp_path.glob("wes-spark-*"))) == 1
    again = """
    from snapshots.session import _work_folder
    with _work_folder() as mine, _work_folder() as other:
        print(mine.is_dir() and other.is_dir())
    """
    assert run(again, TMPDIR=str(tmp_path)).stdout == "True\n"
    assert list(tmp_path.glob("wes-spark-*")) == []
