"""The Java that Spark would start, asked before it does."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from gateway.core.errors import GatewayError

JAVA_MIN = 17
"""What Spark 4.2 needs at the least."""
ASK_S_MAX = 30.0
REASON_CHARACTERS_MAX = 500

# `17.0.15`, `21-ea`, and `1.8.0_402` of the time before Java 9.
_VERSION = re.compile(r'version "(?:1\.)?([0-9]+)')
# What Ivy, Spark and the Java machine begin their reasons with, the most telling first.
_SIGNS = ("unresolved dependency", "Exception", "Error")
_MASTER = "killed. Reason: "
_HELP = (
    f"the snapshot jobs run on Spark, which needs Java {JAVA_MIN} or later: install it (on Debian or Ubuntu:"
    " apt-get install default-jre-headless), or name where it is in JAVA_HOME"
)


class JavaMissing(GatewayError):
    """There is no Java that Spark can run on."""


def find_java() -> Path:
    """The program that Spark will start; raises JavaMissing if it is not there, or too old."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=f"{home}/bin" if home else None)
    if found is None:
        where = (
            f"JAVA_HOME is {home}, and there is no bin/java in it" if home else "there is no java on the PATH"
        )
        raise JavaMissing(f"{where}; {_HELP}")
    try:
        done = subprocess.run(  # noqa: S603 - the very program that Spark runs
            [found, "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ASK_S_MAX,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise JavaMissing(f"{found} does not run: {error}; {_HELP}") from error
    told = done.stderr + done.stdout
    version = _VERSION.search(told)
    if version is None:
        raise JavaMissing(f"{found} does not tell its version, but {told.strip()[:200]!r}; {_HELP}")
    if int(version[1]) < JAVA_MIN:
        raise JavaMissing(f"{found} is Java {version[1]}; {_HELP}")
    return Path(found)


def reason(said: str) -> str:
    """What a Java program that failed gives as its reason on standard error, in a line."""
    lines = [line.strip(": \t").removeprefix('Exception in thread "main" ') for line in said.splitlines()]
    lines = [line for line in lines if line and not line.startswith(("at ", "..."))]
    for line in lines:
        if _MASTER in line:
            return line.partition(_MASTER)[2][:REASON_CHARACTERS_MAX]
    for sign in _SIGNS:
        for number, line in enumerate(lines):
            if sign in line:
                return " ".join(lines[number : number + 2])[:REASON_CHARACTERS_MAX]
    return " ".join(lines[-2:])[:REASON_CHARACTERS_MAX] or "it gave no reason"
