"""A hash of what a message's producer wrote, and of nothing that a node may add or change on its way."""

from __future__ import annotations

import hashlib

from gateway.core.errors import DecodeError

from .sections import AMQP_VALUE, PROPERTIES, section_spans


def fingerprint(data: bytes) -> str:
    """SHA-256 in hex of the bare message in `data` (AMQP 1.0 part 3, 3.2), or of all if it is malformed."""
    try:
        bare = [span for span in section_spans(data) if PROPERTIES <= span.code <= AMQP_VALUE]
    except DecodeError:
        bare = []
    start, end = (bare[0].start, bare[-1].end) if bare else (0, len(data))
    return hashlib.sha256(data[start:end]).hexdigest()
