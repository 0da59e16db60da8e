"""Links that the node feeds: from a partition of a log, or the log's runtime information.

A feed sends while it may: as far as the receiver's credit, the deliveries that it has not settled, and
the output that waits for the peer allow. What stops it also starts it again: a flow, a disposition, the
socket, the end of a read, a commit. Every start goes through `schedule`, so that a feed runs once in a
turn of the event loop, sends a bounded piece, and lets the others have theirs.

Nothing is decoded: the node's delivery annotations go in front of the stored bytes. A log does not
deliver twice, so any outcome settles a delivery (csprd01, 2.2).
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from gateway.amqp.codec import encode_value
from gateway.amqp.endpoints import AmqpDelivery, AmqpLink, Condition, Outcome
from gateway.amqp.sections import AMQP_VALUE, encode_delivery_annotations
from gateway.core.message import Symbol
from gateway.node.filters import Wanted
from gateway.node.schema import Entry, offset_of
from gateway.node.settings import NodeSettings
from gateway.node.store import LogStore


class LinkWork(Protocol):
    """What the node does on one link; the `owner` of the driver's link."""

    def on_flow(self) -> None:
        """Credit or drain has changed."""

    def on_delivery(self, delivery: AmqpDelivery) -> None:
        """A delivery has come, or its state has changed."""

    def on_room(self) -> None:
        """The peer has sent something, or the socket takes output again."""

    def on_closed(self) -> None:
        """The link is gone."""


class Feed:
    """Sends the events of one partition to one receiver."""

    def __init__(
        self,
        link: AmqpLink,
        store: LogStore,
        position: int,
        *,
        wanted: Wanted,
        settled: bool,
        settings: NodeSettings,
    ) -> None:
        self.position = position
        self._link = link
        self._store = store
        self._partition = store.partitions[position]
        self._settled = settled
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._name = self._partition.name
        self._timestamp = wanted.timestamp
        self._entries: list[Entry] = []
        self._at = 0
        self._tag = 0
        self._scheduled = self._reading = self._blocked = self._ended = False
        self._size_max = link.endpoint.remote_max_message_size
        earliest = self._partition.earliest
        self._next = wanted.sequence(
            earliest=self._partition.next_sequence if earliest is None else earliest,
            next_sequence=self._partition.next_sequence,
        )
        self._partition.followers.add(self.schedule)
        if self._timestamp is not None:
            self._reading = True
            store.find(position, self._timestamp, self._found)

    def schedule(self) -> None:
        """Run in the next turn of the event loop."""
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._run)

    on_flow = schedule

    def on_room(self) -> None:
        """Go on if it was output that held the link up."""
        if self._blocked:
            self.schedule()

    def on_delivery(self, delivery: AmqpDelivery) -> None:
        """Settle what the receiver has settled or given an outcome; RECEIVED is not one."""
        if delivery.settled or (delivery.outcome or Outcome.RECEIVED) is not Outcome.RECEIVED:
            delivery.settle()
            self.schedule()

    def on_closed(self) -> None:
        """Follow the partition no longer."""
        self._ended = True
        self._partition.followers.discard(self.schedule)

    def _run(self) -> None:
        self._scheduled = False
        link = self._link
        if self._ended or not link.alive or self._reading:
            return
        passed = self._send()
        if link.drain and link.credit > 0 and (self._idle() or self._unsettled_room() <= 0):
            link.drained()
        link.connection.flush()
        if (self._blocked and self._room()) or (passed and not self._blocked and not self._idle()):
            self.schedule()

    def _send(self) -> int:
        """Send a piece; return how many events were passed, sent or not wanted."""
        link = self._link
        room = min(link.credit, self._unsettled_room())
        sent = passed = 0
        self._blocked = False
        while sent < room and passed < self._settings.read_messages_max:
            if self._at == len(self._entries) and not self._refill():
                break
            if not self._room():
                self._blocked = True
                break
            entry = self._entries[self._at]
            self._at += 1
            passed += 1
            self._next = entry.sequence + 1
            if self._timestamp is not None and entry.timestamp < self._timestamp:
                continue
            message = self._annotated(entry)
            if 0 < self._size_max < len(message):
                self._end(
                    "amqp:link:message-size-exceeded",
                    f"the event at {offset_of(entry.sequence)} has {len(message)} bytes, the receiver"
                    f" takes {self._size_max}",
                )
                break
            self._tag += 1
            link.send(message, self._tag.to_bytes(8), settled=self._settled)
            sent += 1
        return passed

    def _annotated(self, entry: Entry) -> bytes:
        annotations = encode_delivery_annotations(
            offset=offset_of(entry.sequence), timestamp=entry.timestamp, partition=self._name
        )
        if entry.split:
            return entry.message[: entry.split] + annotations + entry.message[entry.split :]
        return annotations + entry.message

    def _refill(self) -> bool:
        """Get the next entries from memory, or have them read; return whether there are any now."""
        entries = self._store.recent(self.position, self._next)
        if entries is None:
            self._reading = True
            self._store.read(self.position, self._next, self._read)
            entries = []
        self._entries, self._at = entries, 0
        return bool(entries)

    def _read(self, entries: list[Entry] | None) -> None:
        self._reading = False
        if entries is None:
            self._end("amqp:internal-error", "the log cannot be read")
            return
        self._entries, self._at = entries, 0
        if not entries:
            # What was asked for is gone, and nothing behind it is left either.
            self._next = max(self._next, self._partition.next_sequence)
        self._run()

    def _found(self, sequence: int | None) -> None:
        self._reading = False
        if sequence is None:
            self._end("amqp:internal-error", "the log cannot be read")
            return
        self._next = max(self._next, sequence)
        self._run()

    def _end(self, name: str, description: str) -> None:
        self.on_closed()
        if self._link.alive:
            self._link.close(Condition(name, description))
            self._link.connection.flush()

    def _idle(self) -> bool:
        """Whether there is nothing to send before the next commit."""
        return (
            not self._reading
            and self._at == len(self._entries)
            and self._next >= self._partition.next_sequence
        )

    def _room(self) -> bool:
        """Whether the peer takes more output."""
        link = self._link
        return link.connection.writable and link.outgoing_bytes < self._settings.link_output_bytes_max

    def _unsettled_room(self) -> int:
        return self._settings.unsettled_max - self._link.unsettled


class Information:
    """Sends the runtime information of a log, once: one map of its partitions and their offsets."""

    def __init__(self, link: AmqpLink, store: LogStore, *, settled: bool) -> None:
        self._link = link
        self._store = store
        self._settled = settled
        self._sent = False

    def on_flow(self) -> None:
        """Send if that is still to be done, and have no more than that."""
        link = self._link
        if not self._sent and link.credit > 0:
            self._sent = True
            link.send(self._message(), b"0", settled=self._settled)
        if link.drain and link.credit > 0:
            link.drained()

    def on_delivery(self, delivery: AmqpDelivery) -> None:
        """Settle, whatever the outcome."""
        if delivery.settled or delivery.outcome is not None:
            delivery.settle()

    def on_room(self) -> None:
        """One small message waits for nothing."""

    def on_closed(self) -> None:
        """Nothing is held."""

    def _message(self) -> bytes:
        partitions: list[dict[Any, Any]] = []
        for partition in self._store.partitions:
            earliest, latest = partition.earliest, partition.next_sequence - 1
            partitions.append(
                {
                    Symbol("partition"): Symbol(partition.name),
                    Symbol("earliest-offset"): _offset_or_none(earliest),
                    Symbol("latest-offset"): _offset_or_none(None if earliest is None else latest),
                }
            )
        return b"\0\x53%c%b" % (AMQP_VALUE, encode_value({Symbol("partitions"): partitions}))


def _offset_or_none(sequence: int | None) -> Symbol | None:
    return None if sequence is None else Symbol(offset_of(sequence))
