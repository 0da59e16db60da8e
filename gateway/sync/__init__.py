"""Readers of feeds: what a client does with any server of the draft, ours or another's."""

from .feed import FeedBroken, FeedEvent, FeedSlice, Position, ReaderSettings, StartOver, documents, feed
from .observer import Observer
from .snapshot import SnapshotUnusable
from .snapshot_load import SnapshotUse
from .synchronize import Summary, SyncSettings, synchronize

__all__ = [
    "FeedBroken",
    "FeedEvent",
    "FeedSlice",
    "Observer",
    "Position",
    "ReaderSettings",
    "SnapshotUnusable",
    "SnapshotUse",
    "StartOver",
    "Summary",
    "SyncSettings",
    "documents",
    "feed",
    "synchronize",
]
