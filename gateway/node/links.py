"""What an attach asks for, and whether it gets it (AMQP 1.0 part 2, 2.6; event-streams csprd01, 2).

The addresses are the names of the logs, and `<log>/$info` for runtime information. Clients also write
whole URIs, or a leading slash; scheme, host and slash are stripped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from proton import Link, Terminus

from gateway.amqp.endpoints import AmqpLink
from gateway.core.message import Symbol
from gateway.node.consumers import Feed, Information, LinkWork
from gateway.node.errors import Refused
from gateway.node.filters import parse_filters
from gateway.node.partitioning import PARTITION, Partitioner
from gateway.node.producers import Intake
from gateway.node.settings import NodeSettings
from gateway.node.store import LogStore

INFORMATION = "/$info"
_SCHEME_AND_HOST = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/]*")


class Log:
    """An open log with what its links share."""

    def __init__(self, store: LogStore) -> None:
        self.store = store
        self.partitioner = Partitioner(store.name, [entry.name for entry in store.partitions])
        self.feeds: set[Feed] = set()
        self.intakes: set[Intake] = set()
        store.on_committed = self._on_committed

    def _on_committed(self) -> None:
        for intake in tuple(self.intakes):
            intake.after_commit()

    def least_followed(self) -> int:
        """The partition with the fewest receivers, the first of them if there are several."""
        counts = [0] * len(self.store.partitions)
        for feed in self.feeds:
            counts[feed.position] += 1
        return counts.index(min(counts))


class Attached:
    """A link that was accepted, with the work done on it and the log that it belongs to."""

    def __init__(self, log: Log, work: LinkWork) -> None:
        self.log = log
        self.work = work

    def on_closed(self) -> None:
        """End the work and forget it."""
        self.work.on_closed()
        if isinstance(self.work, Feed):
            self.log.feeds.discard(self.work)
        elif isinstance(self.work, Intake):
            self.log.intakes.discard(self.work)


def attach(link: AmqpLink, logs: dict[str, Log], settings: NodeSettings) -> Attached:
    """Answer the peer's attach and begin the work on the link, or raise Refused."""
    attached = (_attach_receiver if link.is_sender else _attach_sender)(link, logs, settings)
    if isinstance(attached.work, Feed):
        attached.log.feeds.add(attached.work)
    elif isinstance(attached.work, Intake):
        attached.log.intakes.add(attached.work)
        attached.work.resume()
    return attached


def _attach_receiver(link: AmqpLink, logs: dict[str, Log], settings: NodeSettings) -> Attached:
    source = link.endpoint.remote_source
    if source.dynamic:
        raise Refused("amqp:not-implemented", f"there are no dynamic sources; {_logs(logs)}")
    address = link.remote_source_address
    name = _path(address, "source", logs)
    information = name.endswith(INFORMATION)
    log = _find(name.removesuffix(INFORMATION), logs)
    settled = link.endpoint.remote_snd_settle_mode == Link.SND_SETTLED
    link.endpoint.snd_settle_mode = Link.SND_SETTLED if settled else Link.SND_UNSETTLED
    link.endpoint.rcv_settle_mode = link.endpoint.remote_rcv_settle_mode
    link.set_target(link.remote_target_address)
    if information:
        link.set_source(address)
        link.open()
        return Attached(log, Information(link, log.store, settled=settled))
    wanted = parse_filters(link.remote_filter)
    asked = link.remote_properties.get(PARTITION)
    position = log.least_followed() if asked is None else log.partitioner.position(asked)
    link.set_source(address, filters=wanted.accepted)
    link.set_properties({PARTITION: Symbol(log.store.partitions[position].name)})
    link.open()
    feed = Feed(link, log.store, position, wanted=wanted, settled=settled, settings=settings)
    return Attached(log, feed)


def _attach_sender(link: AmqpLink, logs: dict[str, Log], settings: NodeSettings) -> Attached:
    target = link.endpoint.remote_target
    if target.type == Terminus.COORDINATOR:
        raise Refused("amqp:not-implemented", "there are no transactions")
    if target.dynamic:
        raise Refused("amqp:not-implemented", f"there are no dynamic targets; {_logs(logs)}")
    address = link.remote_target_address
    name = _path(address, "target", logs)
    if name.endswith(INFORMATION):
        raise Refused("amqp:not-allowed", f"{name} can be read and not be written to")
    log = _find(name, logs)
    asked = link.remote_properties.get(PARTITION)
    bound = None if asked is None else log.partitioner.position(asked)
    link.set_target(address)
    link.set_source(link.remote_source_address)
    link.endpoint.snd_settle_mode = link.endpoint.remote_snd_settle_mode
    link.endpoint.rcv_settle_mode = Link.RCV_FIRST
    link.endpoint.max_message_size = settings.message_bytes_max
    if bound is not None:
        link.set_properties({PARTITION: Symbol(log.store.partitions[bound].name)})
    link.open()
    return Attached(log, Intake(link, log.store, log.partitioner, bound=bound, settings=settings))


def _path(address: str | None, terminus: str, logs: dict[str, Log]) -> str:
    path = _SCHEME_AND_HOST.sub("", address or "", count=1).removeprefix("/")
    if not path:
        raise Refused(
            "amqp:not-implemented", f"the {terminus} has no address (no anonymous terminus); {_logs(logs)}"
        )
    return path


def _find(name: str, logs: dict[str, Log]) -> Log:
    log = logs.get(name)
    if log is None:
        raise Refused("amqp:not-found", f"there is no log {name[:80]}; {_logs(logs)}")
    return log


def _logs(logs: Iterable[Any]) -> str:
    return f"the logs are {', '.join(sorted(logs))}"
