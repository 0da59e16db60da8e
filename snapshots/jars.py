"""The Java libraries of Delta Lake: from a chosen folder, else from Ivy's cache, else resolved into that.

Which files they are, and their SHA-256, stands in `jars.txt`, in the form of `sha256sum -c`. It is the whole
closure that Ivy resolves for the version of delta-spark that this project pins, so with all of it in the
cache nothing is asked of any network.

    python -m snapshots.jars fetch [--ivy-settings FILE]     into the cache, if they are not there
    python -m snapshots.jars lock  [--ivy-settings FILE]     jars.txt anew, from what is resolved now
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tempfile
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from gateway.core.errors import GatewayError

from .java import JavaMissing, find_java, reason

JARS_LIST = Path(__file__).parent / "jars.txt"
IVY_FOLDER = ".ivy2.5.2"
"""Below the home folder; the one that Spark 4.2 uses by itself, so that its other programs share it."""
FETCH_S_MAX = 900.0
SCALA = "2.13"


_HELP = (
    "let it reach Maven Central, or name a mirror in Ivy settings, or choose a folder with the jars: they are"
    f" in {IVY_FOLDER}/jars below the home folder wherever a job has run"
)


class JarsMissing(GatewayError):
    """The Java libraries of Delta Lake cannot be had, or are not those that they should be."""


def jar_files(folder: Path | None = None, ivy_settings: Path | None = None) -> list[Path]:
    """The libraries for a session, all of them; raises JarsMissing.

    With a `folder`, all that is there, and they must be among it. Without, they come from the cache, and only
    if one is missing there, Ivy resolves them: as the file `ivy_settings` says, or from Maven Central.
    """
    wanted = locked()
    if folder is not None:
        missing = [name for name in wanted if not (folder / name).is_file()]
        if missing:
            raise JarsMissing(
                f"{folder} lacks {len(missing)} of the {len(wanted)} libraries of Delta Lake, such as"
                f" {missing[0]}: copy them from {_cache()} where a job has run, or choose no folder"
            )
        return sorted(folder.glob("*.jar"))
    cache = _cache()
    if any(not (cache / name).is_file() for name in wanted):
        _resolve(cache.parent, ivy_settings)
    for name, sha256 in wanted.items():
        if not (cache / name).is_file():
            raise JarsMissing(
                f"Ivy did not give {name}: choose a folder of jars that has it, or other Ivy settings"
            )
        if _sha256(cache / name) != sha256:
            raise JarsMissing(
                f"{cache / name} is not the file that this version was made with: its SHA-256 is another."
                " Remove it, and it is fetched anew; if it is still another, do not trust where it is from"
            )
    return [cache / name for name in wanted]


def locked() -> dict[str, str]:
    """The name and SHA-256 of each library."""
    lines = JARS_LIST.read_text("ascii").splitlines()
    return {name: sha256 for sha256, name in (line.split("  ", 1) for line in lines)}


def coordinates() -> str:
    """What Ivy is asked for: Delta Lake for the Spark that is installed."""
    spark = ".".join(version("pyspark").split(".")[:2])
    return f"io.delta:delta-spark_{spark}_{SCALA}:{version('delta-spark')}"


def _cache() -> Path:
    return Path.home() / IVY_FOLDER / "jars"


def _resolve(ivy: Path, ivy_settings: Path | None) -> None:
    """Have Ivy put the libraries into its folder; raises JarsMissing with its reason."""
    if ivy_settings is not None and not ivy_settings.is_file():
        raise JarsMissing(f"there are no Ivy settings {ivy_settings}")
    find_java()
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    options = [f"spark.jars.ivy={ivy}", "spark.ui.enabled=false"]
    if ivy_settings is not None:
        options.append(f"spark.jars.ivySettings={ivy_settings.absolute()}")
    with tempfile.TemporaryDirectory(prefix="wes-jars-") as folder:
        # Spark resolves them before it runs a program, and this one does nothing.
        nothing = Path(folder) / "nothing.py"
        nothing.touch()
        command = [str(Path(spec.origin).parent / "bin" / "spark-submit"), "--master", "local[1]"]
        command += [word for option in options for word in ("--conf", option)]
        command += ["--packages", coordinates(), str(nothing)]
        try:
            done = subprocess.run(  # noqa: S603 - Spark's own launcher
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=FETCH_S_MAX,
            )
        except subprocess.TimeoutExpired:
            raise JarsMissing(
                f"Ivy did not resolve {coordinates()} within {FETCH_S_MAX:.0f} s; {_HELP}"
            ) from None
    if done.returncode:
        raise JarsMissing(f"Ivy cannot resolve {coordinates()}: {reason(done.stderr)}; {_HELP}")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _lock(ivy_settings: Path | None) -> None:
    """Write the list anew, from a cache that holds nothing else."""
    with tempfile.TemporaryDirectory(prefix="wes-jars-") as folder:
        _resolve(Path(folder), ivy_settings)
        found = sorted((Path(folder) / "jars").glob("*.jar"))
        JARS_LIST.write_text("".join(f"{_sha256(path)}  {path.name}\n" for path in found), "ascii")


def main() -> None:
    """Fetch the libraries, or lock them."""
    parser = argparse.ArgumentParser(prog="snapshots.jars", description="The Java libraries of Delta Lake.")
    parser.add_argument("action", choices=["fetch", "lock"])
    parser.add_argument("--ivy-settings", type=Path)
    parsed = parser.parse_args()
    try:
        if parsed.action == "lock":
            _lock(parsed.ivy_settings)
        else:
            jar_files(None, parsed.ivy_settings)
    except (JarsMissing, JavaMissing) as error:
        sys.exit(f"snapshots.jars: {error}")


if __name__ == "__main__":
    main()
