"""Links and deliveries of a connection, as handlers of the driver see them.

They are thin: each is a pointer into proton's engine, read through `cproton`, the functions under proton's
classes, because wrapping costs more than all else that is done for a message. The price is that an engine
object must not be used after it is gone; `AmqpLink.alive` and `AmqpDelivery.settle` see to that.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import cproton as pn  # type: ignore[import-untyped]
from proton import Data, Link, Terminus

from gateway.amqp.codec import decode_value, encode_value
from gateway.core.errors import DecodeError

if TYPE_CHECKING:
    from gateway.amqp.driver import AmqpConnection

_wrap_link: Callable[[Any], Any] = Link.wrap


class Condition(NamedTuple):
    """An AMQP error: its symbolic name and a text for people (part 2, 2.8.14)."""

    name: str
    description: str = ""


class Outcome(IntEnum):
    """The states of a delivery, by the code of their descriptor (part 3, 3.4)."""

    RECEIVED = 0x23
    ACCEPTED = 0x24
    REJECTED = 0x25
    RELEASED = 0x26
    MODIFIED = 0x27


_OUTCOMES = {int(outcome): outcome for outcome in Outcome}


def text_of(get: Callable[[Any], str | None], impl: Any) -> str | None:
    try:
        return get(impl)
    except UnicodeDecodeError:
        raise DecodeError("a text from the peer is not UTF-8") from None


def condition_of(impl: Any) -> Condition | None:
    if not pn.pn_condition_is_set(impl):
        return None
    name = text_of(pn.pn_condition_get_name, impl) or "amqp:undefined"
    return Condition(name, text_of(pn.pn_condition_get_description, impl) or "")


def _set_condition(impl: Any, condition: Condition) -> None:
    pn.pn_condition_set_name(impl, condition.name)
    pn.pn_condition_set_description(impl, condition.description)


def data_of(impl: Any) -> Any:
    if not impl:
        return None  # the engine has no object at all for what the peer left out
    encoded = bytes(Data(impl).encode())
    return decode_value(encoded)[0] if encoded else None


def _write(impl: Any, value: Any) -> None:
    data = Data(impl)
    data.clear()
    data.decode(encode_value(value))


class AmqpDelivery:
    """One delivery on a link, in or out; `impl` is the same for each object for the same delivery.

    Not to be used after `settle()`, nor after its link has died, except to settle again, which then
    does nothing: a commit that ends late needs no check.
    """

    __slots__ = ("impl", "link")

    def __init__(self, link: AmqpLink, impl: Any) -> None:
        self.link = link
        self.impl = impl

    @property
    def partial(self) -> bool:
        """Whether more of an incoming message is to come."""
        return cast(bool, pn.pn_delivery_partial(self.impl))

    @property
    def aborted(self) -> bool:
        """Whether the sender has given up on an incoming message."""
        return cast(bool, pn.pn_delivery_aborted(self.impl))

    @property
    def readable(self) -> bool:
        """Whether this is the incoming message that its link is at."""
        return cast(bool, pn.pn_delivery_readable(self.impl))

    @property
    def settled(self) -> bool:
        """Whether the peer has settled."""
        return cast(bool, pn.pn_delivery_settled(self.impl))

    @property
    def pending(self) -> int:
        """Bytes of an incoming message that have come and were not read."""
        return cast(int, pn.pn_delivery_pending(self.impl))

    @property
    def outcome(self) -> Outcome | None:
        """The state that the peer has given it."""
        state = pn.pn_delivery_remote_state(self.impl)
        return _OUTCOMES.get(state)

    @property
    def condition(self) -> Condition | None:
        """Why the peer has rejected it."""
        return condition_of(pn.pn_disposition_condition(pn.pn_delivery_remote(self.impl)))

    def read(self) -> bytes:
        """Take the pending bytes of an incoming message."""
        return bytes(pn.pn_link_recv(self.link.impl, pn.pn_delivery_pending(self.impl))[1])

    def take(self) -> bytes:
        """`read` a whole message and advance the link to the next one."""
        impl = self.link.impl
        data = bytes(pn.pn_link_recv(impl, pn.pn_delivery_pending(self.impl))[1])
        pn.pn_link_advance(impl)
        return data

    def settle(self, outcome: Outcome | None = None, *, condition: Condition | None = None) -> None:
        """Give it an outcome, with a condition if that is REJECTED, and settle."""
        impl, self.impl = self.impl, None
        if impl is None or not self.link.alive:
            return
        if condition is not None:
            _set_condition(pn.pn_disposition_condition(pn.pn_delivery_local(impl)), condition)
        if outcome is not None:
            pn.pn_delivery_update(impl, outcome)
        pn.pn_delivery_settle(impl)


class AmqpLink:
    """A link of a connection. `endpoint` is proton's object for what is not offered here.

    `owner` belongs to the handler. `alive` is False when the link or its connection is gone; only
    `name`, `owner` and `alive` may be used then.
    """

    __slots__ = (
        "alive",
        "connection",
        "endpoint",
        "impl",
        "is_sender",
        "name",
        "owner",
        "session",
    )

    def __init__(self, connection: AmqpConnection, impl: Any) -> None:
        self.connection = connection
        self.impl = impl
        self.endpoint: Any = _wrap_link(impl)
        self.session: Any = pn.pn_link_session(impl)
        """The engine's object, the same for all links of a session."""
        self.is_sender: bool = pn.pn_link_is_sender(impl)
        self.name: str = text_of(pn.pn_link_name, impl) or ""
        self.owner: Any = None
        self.alive = True

    @property
    def credit(self) -> int:
        """What the receiver still allows, less what waits to be sent."""
        return cast(int, pn.pn_link_credit(self.impl))

    @property
    def drain(self) -> bool:
        """Whether the receiver wants its credit used up or given back."""
        return cast(bool, pn.pn_link_get_drain(self.impl))

    @property
    def unsettled(self) -> int:
        """Deliveries that were not settled."""
        return cast(int, pn.pn_link_unsettled(self.impl))

    @property
    def outgoing_bytes(self) -> int:
        """Message bytes that wait in the engine for the session's window or the socket."""
        return cast(int, pn.pn_session_outgoing_bytes(self.session))

    @property
    def incoming_bytes(self) -> int:
        """Message bytes of the session that have come and were not read."""
        return cast(int, pn.pn_session_incoming_bytes(self.session))

    @property
    def remote_source_address(self) -> str | None:
        """The source that the peer has named."""
        return text_of(pn.pn_terminus_get_address, pn.pn_link_remote_source(self.impl))

    @property
    def remote_target_address(self) -> str | None:
        """The target that the peer has named."""
        return text_of(pn.pn_terminus_get_address, pn.pn_link_remote_target(self.impl))

    @property
    def remote_filter(self) -> Any:
        """The peer's filter set: a dict as a rule, None if absent."""
        return data_of(pn.pn_terminus_filter(pn.pn_link_remote_source(self.impl)))

    @property
    def remote_properties(self) -> dict[Any, Any]:
        """The peer's link properties."""
        properties = data_of(pn.pn_link_remote_properties(self.impl))
        return properties if isinstance(properties, dict) else {}

    def set_source(self, address: str | None, *, filters: dict[Any, Any] | None = None) -> None:
        """Name the source, with a filter set if there is one. Before `open`."""
        source = pn.pn_link_source(self.impl)
        pn.pn_terminus_set_type(source, Terminus.SOURCE)
        if address is not None:
            pn.pn_terminus_set_address(source, address)
        if filters:
            _write(pn.pn_terminus_filter(source), filters)

    def set_target(self, address: str | None) -> None:
        """Name the target. Before `open`."""
        target = pn.pn_link_target(self.impl)
        pn.pn_terminus_set_type(target, Terminus.TARGET)
        if address is not None:
            pn.pn_terminus_set_address(target, address)

    def set_properties(self, properties: dict[Any, Any]) -> None:
        """Set the link properties, keyed by Symbol. Before `open`."""
        _write(pn.pn_link_properties(self.impl), properties)

    def open(self) -> None:
        """Attach, or answer the peer's attach."""
        pn.pn_link_open(self.impl)

    def close(self, condition: Condition | None = None) -> None:
        """Detach for good."""
        if condition is not None:
            _set_condition(pn.pn_link_condition(self.impl), condition)
        pn.pn_link_close(self.impl)

    def refuse(self, condition: Condition) -> None:
        """Answer the peer's attach with one that has no terminus, then close (part 2, 2.6.3)."""
        terminus = pn.pn_link_source if self.is_sender else pn.pn_link_target
        pn.pn_terminus_set_type(terminus(self.impl), Terminus.UNSPECIFIED)
        pn.pn_link_open(self.impl)
        self.close(condition)

    def flow(self, credit: int) -> None:
        """Add to the credit of the sender at the other end."""
        pn.pn_link_flow(self.impl, credit)

    def drained(self) -> None:
        """Give unused credit back to a receiver that drains."""
        pn.pn_link_drained(self.impl)

    def send(self, data: bytes, tag: bytes, *, settled: bool) -> AmqpDelivery | None:
        """Queue a message; it leaves at the next flush. Returns the delivery, None if settled."""
        impl = self.impl
        delivery = pn.pn_delivery(impl, tag)
        pn.pn_link_send(impl, data)
        if settled:
            pn.pn_delivery_settle(delivery)
            return None
        pn.pn_link_advance(impl)
        return AmqpDelivery(self, delivery)

    def current(self) -> AmqpDelivery | None:
        """The incoming delivery that the link is at, if any."""
        impl = pn.pn_link_current(self.impl)
        return AmqpDelivery(self, impl) if impl else None
