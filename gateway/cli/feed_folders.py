"""The feeds in a data folder, for commands that work on it without a gateway."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from gateway.core.errors import InvalidSetting
from gateway.storage.filestore import feed_folder

from .options import load_config


def feed_folders(parsed: argparse.Namespace) -> Iterator[tuple[str, Path]]:
    """Log and folder of each feed that the command line means: --config, --data, --log, --partition.

    Raises InvalidSetting for a log that is not there.
    """
    config = load_config(parsed)
    for log in config.logs:
        folder = feed_folder(config.data, log.name, "0").parent
        if not folder.is_dir():
            raise InvalidSetting(f"there is no log {log.name} in {config.data}: see --data and --log")
        for feed in sorted(folder.iterdir(), key=lambda path: (len(path.name), path.name)):
            if parsed.partition in (None, feed.name):
                yield log.name, feed
