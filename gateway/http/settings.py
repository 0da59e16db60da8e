"""Every limit of the web server, with its name and unit."""

from __future__ import annotations

from dataclasses import dataclass

from aiohttp import web


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """Limits of the web server; sizes in bytes, times in seconds."""

    body_bytes_max: int = 16 * 1024 * 1024
    """Of a published event."""
    headers_time_max_s: float = 20.0
    """From the first byte of a request, or a new connection, to the end of the headers."""
    body_time_max_s: float = 60.0
    """For the body of a request."""
    stall_time_max_s: float = 60.0
    """For which a client may stop reading before its connection is cut."""
    idle_time_max_s: float = 75.0
    """For which a connection may wait for its next request."""
    connections_max: int = 1_000
    """At a time, in each process."""
    wait_max_s: int = 60
    """The longest wait that `Prefer: wait` is granted."""
    publish_wait_max_s: float = 20.0
    """From sending an event to the log until it is visible in its feed."""
    publish_pending_max: int = 1_024
    """Published events that wait for that at one time."""
    page_cache_bytes_max: int = 32 * 1024 * 1024
    """Of archive documents in memory, in each process."""
    linger_time_max_s: float = 1.0
    """For the rest of a body that was refused, so that its sender gets to read the answer."""
    drain_time_max_s: float = 10.0
    """For requests under way when the server stops."""


SETTINGS = web.AppKey("settings", HttpSettings)
"""Where the application carries its limits."""
