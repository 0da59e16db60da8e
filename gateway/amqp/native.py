"""The native form as bytes: what `encode_message(native_message(…))` gives, without the way over values.

Publishing encodes one such message for each request, and its shape never varies: an annotation for the group
key, four or seven properties, one data section.
"""

from __future__ import annotations

from gateway.core.event import Event
from gateway.core.mapping import native_message

from .codec import counted, encode_value, sized
from .dialects.event_streams import GROUP_KEY
from .sections import encode_message

_GROUP_KEY = encode_value(GROUP_KEY)


def encode_native(event: Event, message_id: str) -> bytes:
    """The encoded AMQP message that carries `event`, grouped by its target."""
    if event.extra_headers:
        return encode_message(native_message(event, message_id=message_id, group_key=event.target))
    target = _string(event.target)
    fields = b"%b\x40%b%b" % (_string(message_id), target, _string(event.method.value))
    count = 4
    if event.content_type is not None:
        fields += b"\x40\x40%b" % sized(0xA3, 0xB3, event.content_type.encode("ascii"))
        count = 7
    return b"\0\x53\x72%b\0\x53\x73%b\0\x53\x75%b" % (
        counted(0xC1, 0xD1, 2, _GROUP_KEY + target),
        counted(0xC0, 0xD0, count, fields),
        sized(0xA0, 0xB0, event.body),
    )


def _string(text: str) -> bytes:
    return sized(0xA1, 0xB1, text.encode())
