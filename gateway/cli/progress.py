"""Progress for people: a bar on standard error if that is a terminal, and nothing otherwise.

Results go to standard output and are written elsewhere; what is here may be lost without loss.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Never

from tqdm import tqdm

REDRAW_MIN_S = 0.2


class Progress:
    """Counts things and shows how many, and how many a second.

    `unit` is what is counted, in the plural. Use it as a context manager, so that the bar is cleared.
    """

    def __init__(self, unit: str, *, total: int | None = None) -> None:
        self.count = 0
        self._started = time.monotonic()
        self._bar: tqdm[Never] | None = None
        if sys.stderr.isatty():
            self._bar = tqdm(
                total=total,
                unit=f" {unit}",
                file=sys.stderr,
                leave=False,
                mininterval=REDRAW_MIN_S,
                dynamic_ncols=True,
            )

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def add(self, count: int = 1) -> None:
        """Count `count` more."""
        self.count += count
        if self._bar is not None:
            self._bar.update(count)

    def expect(self, count: int) -> None:
        """Say how many are still to come."""
        if self._bar is not None:
            self._bar.total = self.count + count
            self._bar.refresh()

    def expect_more(self, count: int) -> None:
        """Say that so many more are to come than was said before, or less."""
        if self._bar is not None and self._bar.total is not None:
            self._bar.total = max(self.count, self._bar.total + count)
            self._bar.refresh()

    @property
    def visible(self) -> bool:
        """Whether anybody sees it."""
        return self._bar is not None

    def show(self, what: str, done: int, of: int) -> None:
        """Show what is being done and how much of it: for work that changes its kind and its amount."""
        if self._bar is not None:
            if self._bar.desc != what:
                self._bar.reset()
                self._bar.set_description_str(what, refresh=False)
            self._bar.n, self._bar.total = done, of
            self._bar.refresh()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """What is written to standard error meanwhile does not tear the bar."""
        if self._bar is None:
            yield
        else:
            with tqdm.external_write_mode(file=sys.stderr):
                yield

    def write(self, line: str) -> None:
        """Print a result line on standard output without tearing the bar."""
        if self._bar is None:
            print(line, flush=True)
        else:
            self._bar.write(line, file=sys.stdout)

    @property
    def seconds(self) -> float:
        """Since the start, never zero."""
        return max(time.monotonic() - self._started, 1e-6)

    @property
    def rate(self) -> float:
        """How many a second since the start."""
        return self.count / self.seconds
