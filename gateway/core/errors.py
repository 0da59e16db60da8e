"""One error class for each thing that a caller can act on.

Every class carries the facts that a message, a log line or a problem document needs, and its text says
what went wrong, where, and what to do about it.
"""

from __future__ import annotations


class GatewayError(Exception):
    """The root of all errors that this project raises on purpose."""


class DecodeError(GatewayError):
    """Bytes that are not what their format promises.

    `offset` is the index of the first byte that could not be understood, where that is known.
    """

    def __init__(self, what: str, *, offset: int | None = None) -> None:
        super().__init__(what if offset is None else f"{what} (at byte {offset})")
        self.offset = offset


class UnmappableMessage(GatewayError):
    """An AMQP message that no mapping turns into an event; it goes to the quarantine with this text."""


class InvalidEvent(GatewayError):
    """A target, method, media type or header value that an event must not have."""


class InvalidSetting(GatewayError):
    """A configuration value that cannot be used; the text names the setting and where it came from."""


class StoreLocked(GatewayError):
    """Another process writes to the folder; there is one writer for each partition."""


class StoreMismatch(GatewayError):
    """A data folder of another format, or of a feed with other settings than those in force."""


class StoreFailed(GatewayError):
    """The disk refused a write or a sync; nothing of the batch is acknowledged, readers go on."""


class PageDamaged(GatewayError):
    """A page file does not hold what its catalogue recorded; it is not served until it is repaired."""

    def __init__(self, page: int, path: str, what: str) -> None:
        super().__init__(
            f"page {page} in {path} is damaged: {what}. It is not served; the gateway writes it again"
            " from the event log, if the log still holds its events"
        )
        self.page = page


class SnapshotUnreadable(GatewayError):
    """A snapshot that is not what its index says, or that the disk does not give; it is not served."""


class ForeignLog(GatewayError):
    """The event log holds other events than those that were stored from it."""


class LogUnavailable(GatewayError):
    """The event log cannot be reached or refuses; worth trying again after `retry_after_s` seconds."""

    def __init__(self, what: str, *, retry_after_s: int = 1) -> None:
        super().__init__(what)
        self.retry_after_s = retry_after_s


class OutcomeUnknown(GatewayError):
    """The event was sent, but whether the log kept it was not learned in time."""


class MessageRefused(GatewayError):
    """The event log received a message and refused to keep it."""


class ListenFailed(GatewayError):
    """A server cannot listen on its address, or ended before it did."""
