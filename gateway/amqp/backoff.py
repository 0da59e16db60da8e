"""How long to wait before trying again."""

from __future__ import annotations

import random


class Backoff:
    """Waits that grow from `first_s` to `most_s` with jitter; `reset` after a success."""

    def __init__(self, first_s: float = 0.1, most_s: float = 10.0) -> None:
        self._first_s, self._most_s = first_s, most_s
        self._next_s = first_s

    def reset(self) -> None:
        self._next_s = self._first_s

    def next_s(self) -> float:
        """The seconds to wait before the next attempt."""
        wait_s = self._next_s * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, not a secret
        self._next_s = min(self._next_s * 2, self._most_s)
        return wait_s
