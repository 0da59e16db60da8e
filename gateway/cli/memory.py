"""The garbage collector of a server."""

from __future__ import annotations

import gc

GARBAGE_MIN = 20_000
"""Objects that are made before the collector looks for cycles."""


def settle_memory() -> None:
    """To be called once a server has started.

    What is there now stays, and what a request makes is freed by its reference counts: the collector need
    not look at the one at all, nor at the other so often.
    """
    gc.freeze()
    gc.set_threshold(GARBAGE_MIN, 50, 50)
