"""The data folder's lock, waited for: the process that has it may be just dying."""

from __future__ import annotations

import asyncio
from pathlib import Path

from gateway.core.errors import StoreLocked
from gateway.storage.files import FolderLock

RETRY_S = 0.05


async def lock_folder(folder: Path, *, wait_ms: int) -> FolderLock:
    """Take the lock, trying again for `wait_ms`; raises StoreLocked if another process keeps it."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_ms / 1000
    while True:
        try:
            return FolderLock(folder)
        except StoreLocked:
            if loop.time() >= deadline:
                raise
        await asyncio.sleep(RETRY_S)
