"""The gateway without the upkeep of current state: `wes` with all its arguments, the fold left out."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from gateway.cli import main
from gateway.core.pages import Change
from gateway.core.state import Digest
from gateway.storage.entities import EntityTable, Folded, Load


def _no_fold(_: EntityTable, changes: Sequence[Change], load: Load, digest: Digest) -> Folded:
    return Folded(digest, {})


if __name__ == "__main__":
    EntityTable.fold = _no_fold
    sys.exit(main())
