"""What can be set for the event log node, and every limit that it keeps."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields

from gateway.core.errors import InvalidSetting

_LOG_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
PARTITIONS_MAX = 1024


@dataclass(frozen=True, slots=True)
class LogSettings:
    """One log: its name, which is its address, and the number of its partitions."""

    name: str
    partitions: int = 1

    def __post_init__(self) -> None:
        if not _LOG_NAME.fullmatch(self.name):
            raise InvalidSetting(
                f"{self.name!r} cannot be the name of a log: it takes 1 to 100 letters, digits, dots,"
                " hyphens and underscores, and begins with a letter or digit"
            )
        if not 1 <= self.partitions <= PARTITIONS_MAX:
            raise InvalidSetting(
                f"log {self.name} cannot have {self.partitions} partitions: 1 to {PARTITIONS_MAX}"
            )


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """The limits of a node. Sizes in bytes, times in milliseconds. Immutable."""

    container_id: str = "wes-node"
    connections_max: int = 256
    sessions_per_connection_max: int = 64
    links_per_connection_max: int = 256

    message_bytes_max: int = 16 * 1024 * 1024
    """Announced on each link that feeds the node; a larger message ends its link."""
    frame_bytes_max: int = 65_536
    session_bytes_max: int = 32 * 1024 * 1024
    """Message data of one session that was received and not yet read."""
    credit_window: int = 1000
    """Transfers of one link that may be under way or not yet committed."""
    backlog_bytes_max: int = 64 * 1024 * 1024
    """Events of one log that wait for the disk; above it the node stops reading from its senders."""

    commit_messages_max: int = 4096
    commit_bytes_max: int = 8 * 1024 * 1024
    """A commit takes what has gathered, up to this."""

    read_messages_max: int = 512
    read_bytes_max: int = 1024 * 1024
    """What is read from disk for one link at a time; a single larger event is read alone."""
    tail_messages_max: int = 2048
    tail_bytes_max: int = 16 * 1024 * 1024
    """The newest events, kept in memory for the links that follow live: so many of each partition,
    and so many bytes of the whole log."""
    link_output_bytes_max: int = 131_072
    """What waits in the engine for the peer, above which a link is fed no more."""
    socket_output_bytes_max: int = 262_144
    unsettled_max: int = 5000
    """Deliveries of one link that the peer has not settled."""

    idle_timeout_ms: int = 60_000
    lock_wait_ms: int = 2_000
    """How long to wait for a data folder that another process, perhaps a dying one, still has."""
    stop_wait_ms: int = 5_000
    """How long a stop waits for peers to close their connections."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int) and value < 1 and field.name != "lock_wait_ms":
                raise InvalidSetting(f"{field.name} is {value}; it must be 1 or more")
        if self.session_bytes_max < self.message_bytes_max + 4 * self.frame_bytes_max:
            raise InvalidSetting(
                "session_bytes_max must have room for a message of message_bytes_max and four frames,"
                " or the largest messages would never arrive"
            )
