"""`python -m tests.bench [NAME ...] [--json]`: run the benchmarks and print one result a line.

`ratio` is ours against the rival such that more is better; `goal` is what it should reach, if set.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.bench import http_reads, ingest, publishing, scale, snapshots, syncing
from tests.bench.result import Result

Benchmark = Callable[[Path], Iterator[Result]]

BENCHMARKS: dict[str, Benchmark] = {
    "sealed": http_reads.sealed,
    "not-modified": http_reads.not_modified,
    "ingest": ingest.ingest,
    "put": publishing.put,
    "sync": syncing.sync,
    "sync-from-snapshot": syncing.from_snapshot,
    "scale": scale.scale,
    "snapshots": snapshots.snapshots,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    parser.add_argument("--json", action="store_true")
    parsed = parser.parse_args()
    unknown = set(parsed.names) - set(BENCHMARKS)
    if unknown:
        parser.error(
            f"no benchmark is called {', '.join(sorted(unknown))}; there are {', '.join(BENCHMARKS)}"
        )
    missed = False
    for name in parsed.names or BENCHMARKS:
        with tempfile.TemporaryDirectory(prefix="wes-bench-") as folder:
            for result in BENCHMARKS[name](Path(folder)):
                print(json.dumps(result.as_json()) if parsed.json else result.as_text(), flush=True)
                missed = missed or result.holds is False
    if missed and not parsed.json:
        print("some goals were not reached", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
