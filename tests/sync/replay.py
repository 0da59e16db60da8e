"""What events make of their targets, and its digest: written again, without anything of the gateway."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any, NamedTuple

MERGE_PATCH = "application/merge-patch+json"
UNKNOWN = "unknown"


class State(NamedTuple):
    """A target as it stands; `body` is UNKNOWN where nobody can tell."""

    content_type: str | None
    body: bytes | str

    @property
    def etag(self) -> str:
        if self.body == UNKNOWN:
            return '"unknown"'
        text = (self.content_type or "").encode() + b"\0" + self.body
        return f'"{hashlib.sha256(text).hexdigest()[:32]}"'


def replay(events: Iterable[Any]) -> dict[str, State]:
    """The targets that are there after the events, each with method, target, content_type and body."""
    states: dict[str, State] = {}
    for event in events:
        if event.method == "PUT":
            states[event.target] = State(event.content_type, event.body)
        elif event.method == "DELETE":
            states.pop(event.target, None)
        elif event.method == "PATCH":
            states[event.target] = _patched(states.get(event.target), event)
    return states


def digest(states: dict[str, State]) -> str:
    total = 0
    for target, state in states.items():
        text = target.encode() + b"\0" + state.etag.encode()
        total += int(hashlib.sha256(text).hexdigest(), 16)
    return f"{total % 2**256:064x}"


def bodies(states: dict[str, State]) -> dict[str, bytes]:
    return {target: state.body for target, state in states.items() if isinstance(state.body, bytes)}


def _patched(state: State | None, event: Any) -> State:
    """A merge patch (RFC 7396), of documents with whole numbers and names in one script."""
    if event.content_type != MERGE_PATCH or (state is not None and state.body == UNKNOWN):
        return State(None, UNKNOWN)
    before = None if state is None else json.loads(state.body)
    after = merged(before, json.loads(event.body))
    body = json.dumps(after, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    return State("application/json" if state is None else state.content_type, body)


def merged(target: Any, patch: Any) -> Any:
    """RFC 7396, 2, as it stands there."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result
