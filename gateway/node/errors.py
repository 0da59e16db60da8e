"""What can go wrong in the event log node that a caller can act on."""

from __future__ import annotations

from pathlib import Path

from gateway.amqp.endpoints import Condition
from gateway.core.errors import GatewayError


class NodeError(GatewayError):
    """The root of the node's errors."""


class WrongFormat(NodeError):
    """A log file that this version of the node cannot use."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{path} cannot be used: {problem}")
        self.path = path


class PartitionsChanged(NodeError):
    """A log is asked for with another number of partitions than it was created with."""

    def __init__(self, log: str, *, kept: int, asked: int) -> None:
        super().__init__(
            f"log {log} has {kept} partitions and cannot get {asked}, as events would change their"
            f" partition: start with {kept}, or create a log of another name"
        )
        self.kept = kept
        self.asked = asked


class AddressInUse(NodeError):
    """The address to listen on cannot be had."""

    def __init__(self, host: str, port: int, reason: str) -> None:
        super().__init__(
            f"cannot listen on {host}:{port}: {reason}; stop what listens there, or choose another"
            " port (0 takes a free one)"
        )


class AppendFailed(NodeError):
    """An event was not stored; nothing of it is kept."""


class Refused(NodeError):
    """A link or a transfer that the node does not take, with the AMQP condition that says why."""

    def __init__(self, name: str, description: str) -> None:
        super().__init__(f"{name}: {description}")
        self.condition = Condition(name, description)
