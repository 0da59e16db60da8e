"""Links that feed the node: each transfer becomes an event, and is accepted once it is on the disk.

Credit is a window over what the sender has under way and what waits for the disk; it is topped up when
half of it is free. Bytes are bounded twice: what was read waits in the log's backlog, and when that is
full the link stops reading, so that the data stays in its session's window and the peer must wait.

A message that is too large is rejected with the link error that part 2, 2.7.3 has for it, but the link
stays: proton does not open a session's window again for a link that it has detached, so one sender's
mistake would stop all links of its session.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from gateway.amqp.endpoints import AmqpDelivery, AmqpLink, Condition, Outcome
from gateway.amqp.sections import section_spans, strip_spans
from gateway.core.errors import DecodeError
from gateway.node.errors import AppendFailed, Refused
from gateway.node.partitioning import Partitioner
from gateway.node.settings import NodeSettings
from gateway.node.store import LogStore

logger = logging.getLogger("wes.node")


class Intake:
    """Takes in the transfers of one sender."""

    def __init__(
        self,
        link: AmqpLink,
        store: LogStore,
        partitioner: Partitioner,
        *,
        bound: int | None,
        settings: NodeSettings,
    ) -> None:
        self._link = link
        self._store = store
        self._partitioner = partitioner
        self._bound = bound
        self._settings = settings
        self._uncommitted = 0
        self._refusing = self._settled_some = False
        self._dropping: Condition | None = None

    def on_flow(self) -> None:
        """A sender's flow needs no answer."""

    def on_delivery(self, delivery: AmqpDelivery) -> None:
        """Read all that can be read now."""
        self.resume()

    def on_room(self) -> None:
        """Output does not hold this link up."""

    def on_closed(self) -> None:
        """What is queued is committed all the same; nobody is there to be told."""

    def stop(self) -> None:
        """Take no more transfers: they are released, and there is no more credit."""
        self._refusing = True

    def after_commit(self) -> None:
        """Tell the sender what was settled, and go on reading."""
        self.resume()
        if self._settled_some:
            self._settled_some = False
            if self._link.alive:
                self._link.connection.flush()

    def resume(self) -> None:
        """Read the transfers that have come, as long as the log takes them, and top up the credit."""
        link = self._link
        while link.alive and (self._refusing or not self._store.full):
            delivery = link.current()
            if delivery is None:
                break
            if delivery.aborted:
                self._dropping = None
                delivery.settle()
                continue
            if delivery.partial:
                self._watch(delivery)
                break
            data = delivery.take()
            dropped, self._dropping = self._dropping, None
            if dropped is not None:
                delivery.settle(Outcome.REJECTED, condition=dropped)
            elif self._refusing:
                delivery.settle(Outcome.RELEASED)
            elif len(data) > self._settings.message_bytes_max:
                delivery.settle(Outcome.REJECTED, condition=self._too_large())
            else:
                self._take_in(delivery, data)
        self._top_up()

    def _take_in(self, delivery: AmqpDelivery, data: bytes) -> None:
        try:
            if not data:
                raise DecodeError("the message is empty")
            spans = section_spans(data)
            message, split, annotations = strip_spans(data, spans)
            position = self._partitioner.choose(data, spans, annotations, bound=self._bound)
        except DecodeError as error:
            delivery.settle(Outcome.REJECTED, condition=Condition("amqp:decode-error", str(error)))
        except Refused as error:
            delivery.settle(Outcome.REJECTED, condition=error.condition)
        else:
            self._uncommitted += 1
            self._store.append(position, message, split=split, done=self._settle_later(delivery))

    def _settle_later(self, delivery: AmqpDelivery) -> Callable[[AppendFailed | None], None]:
        settled = delivery.settled

        def done(error: AppendFailed | None) -> None:
            self._uncommitted -= 1
            self._settled_some = True
            if settled:
                if error is not None:
                    logger.error("settled_event_lost", extra={"log": self._store.name})
                delivery.settle()
                return
            if error is None:
                delivery.settle(Outcome.ACCEPTED)
                return
            delivery.settle(
                Outcome.REJECTED,
                condition=Condition("amqp:resource-limit-exceeded", str(error)),
            )

        return done

    def _watch(self, delivery: AmqpDelivery) -> None:
        """Hold the limits while a message is still coming in.

        What cannot be taken is read and dropped to its end, and rejected then.
        """
        if self._dropping is None:
            if delivery.pending > self._settings.message_bytes_max:
                self._dropping = self._too_large()
            elif self._session_is_stuck():
                self._dropping = Condition(
                    "amqp:resource-limit-exceeded",
                    "the session's window is full of unfinished messages: send large ones in turn",
                )
        if self._dropping is not None or self._refusing:
            delivery.read()

    def _session_is_stuck(self) -> bool:
        """Whether unfinished messages of several links fill the session's window: none can end."""
        nearly_all = self._settings.session_bytes_max - 2 * self._settings.frame_bytes_max
        if self._link.incoming_bytes <= nearly_all:
            return False
        unfinished = 0
        for link in self._link.connection.links:
            if not link.is_sender and link.session == self._link.session:
                delivery = link.current()
                if delivery is not None and delivery.partial:
                    unfinished += delivery.pending
        return unfinished > nearly_all

    def _too_large(self) -> Condition:
        return Condition(
            "amqp:link:message-size-exceeded",
            f"a message is larger than the link's {self._settings.message_bytes_max} bytes",
        )

    def _top_up(self) -> None:
        if self._refusing or not self._link.alive or self._store.full:
            return
        window = self._settings.credit_window
        free = window - self._link.credit - self._uncommitted
        if free * 2 >= window:
            self._link.flow(free)
