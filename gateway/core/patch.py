"""Patches of JSON values: JSON Merge Patch (RFC 7396) and JSON Patch (RFC 6902) with JSON Pointer (RFC 6901).

Neither changes what it is given: the containers that a patch changes are copied on the way to the change,
all others are shared with the result. What one patch may ask for is bounded by numbers that are the same on
every machine, never by time or memory, so that all who apply it agree whether it failed.
"""

from __future__ import annotations

import re
from typing import TypeAlias

from .errors import GatewayError
from .jsontext import NESTING_MAX, NotJson, Value, canonical, equal, nesting, parse

# Of one JSON Patch: an operation can move a whole array by one place.
OPERATIONS_MAX = 10_000
# Of all that the `copy` operations of one JSON Patch add up to, and of a patched body: in canonical form.
PATCHED_BYTES_MAX = 1024 * 1024

_Container: TypeAlias = "dict[str, Value] | list[Value]"

# No leading zeros (RFC 6901, 4). More digits than any array has elements are not read as a number.
_INDEX = re.compile(r"0|[1-9][0-9]{0,15}")
_BAD_ESCAPE = re.compile(r"~(?![01])")


class PatchFailed(GatewayError):
    """A JSON Patch that cannot be applied; the text names the operation and the place."""


def merge_patch(target: Value, patch: Value) -> Value:
    """`target` with a JSON Merge Patch applied: the function MergePatch of RFC 7396, 2. It cannot fail."""
    if not isinstance(patch, dict):
        return patch
    result = _members_of(target)
    merges = [(result, patch)]
    while merges:
        merged, changes = merges.pop()
        for name, change in changes.items():
            if change is None:
                merged.pop(name, None)
            elif isinstance(change, dict):
                inner = merged[name] = _members_of(merged.get(name))
                merges.append((inner, change))
            else:
                merged[name] = change
    return result


def json_patch(target: Value, patch: Value) -> Value:
    """`target` with the operations of a JSON Patch applied, all or none; raises PatchFailed.

    Implements RFC 6902. Beyond its errors, a patch fails that has more than OPERATIONS_MAX operations, that
    copies more than PATCHED_BYTES_MAX bytes, that has a pointer with more than NESTING_MAX tokens, whose
    result is nested deeper than that, or that removes the whole document and puts nothing in its place.
    """
    if not isinstance(patch, list):
        raise PatchFailed("a JSON Patch is an array of operations")
    if len(patch) > OPERATIONS_MAX:
        raise PatchFailed(f"the patch has {len(patch)} operations; at most {OPERATIONS_MAX} are allowed")
    document = _Document(target)
    for number, operation in enumerate(patch):
        try:
            _perform(document, operation)
        except PatchFailed as error:
            raise PatchFailed(f"operation {number}: {error}") from None
    result = document.value([""])
    if nesting(result) > NESTING_MAX:
        raise PatchFailed(f"the result is nested deeper than {NESTING_MAX} levels")
    return result


def _perform(document: _Document, operation: Value) -> None:
    """One operation (RFC 6902, 4); members that it does not define are ignored."""
    if not isinstance(operation, dict):
        raise PatchFailed("it is not an object")
    name = operation.get("op")
    path = _tokens(operation, "path")
    match name:
        case "add":
            document.add(path, _value(operation))
        case "remove":
            document.remove(path)
        case "replace":
            document.replace(path, _value(operation))
        case "move":
            source = _tokens(operation, "from")
            if len(source) < len(path) and path[: len(source)] == source:
                raise PatchFailed(f"{_shown(source)} cannot be moved into itself")
            value = document.value(source)
            document.remove(source)
            document.add(path, value)
        case "copy":
            document.add(path, document.duplicate(_tokens(operation, "from")))
        case "test":
            if not equal(document.value(path), _value(operation)):
                raise PatchFailed(f"{_shown(path)} has another value")
        case _:
            raise PatchFailed(
                f"op is {ascii(name)[:80]}: it must be add, remove, replace, move, copy or test"
            )


class _Document:
    """The document while it changes.

    It is the one member, with an empty name, of an object, so that a pointer's text split at its slashes is
    the way to its value, and the whole document is a value like any other.
    """

    def __init__(self, target: Value) -> None:
        self._holder: dict[str, Value] = {"": target}
        # By id, kept here so that no id is used twice: the containers that nobody else has.
        self._own: dict[int, _Container] = {id(self._holder): self._holder}
        self._copied_bytes = 0

    def value(self, path: list[str]) -> Value:
        """The value at a place that must exist."""
        value: Value = self._holder
        for depth, token in enumerate(path):
            value = _child(value, token, path, depth)
        return value

    def add(self, path: list[str], value: Value) -> None:
        """RFC 6902, 4.1: a new or another member, a new element before the one at the index or at the end."""
        parent, last = self._parent(path), path[-1]
        if isinstance(parent, dict):
            parent[last] = value
        elif last == "-":
            parent.append(value)
        else:
            parent.insert(_index(last, len(parent) + 1, path, len(path) - 1), value)

    def remove(self, path: list[str]) -> None:
        """RFC 6902, 4.2."""
        parent, last = self._parent(path), path[-1]
        _child(parent, last, path, len(path) - 1)
        if isinstance(parent, dict):
            del parent[last]
        else:
            del parent[int(last)]

    def replace(self, path: list[str], value: Value) -> None:
        """RFC 6902, 4.3."""
        parent, last = self._parent(path), path[-1]
        _child(parent, last, path, len(path) - 1)
        _put(parent, last, value)

    def duplicate(self, path: list[str]) -> Value:
        """A copy of the value at `path` that shares nothing with it."""
        text = canonical(self.value(path))
        self._copied_bytes += len(text)
        if self._copied_bytes > PATCHED_BYTES_MAX:
            raise PatchFailed(f"the patch copies more than {PATCHED_BYTES_MAX} bytes")
        try:
            return parse(text)
        except NotJson as error:  # too deep, after moves: nothing else can be wrong with it
            raise PatchFailed(f"{_shown(path)} cannot be copied: {error}") from None

    def _parent(self, path: list[str]) -> _Container:
        """The container that holds the last token of `path`; from here on it and those above it are ours."""
        parent: _Container = self._holder
        for depth, token in enumerate(path[:-1]):
            child = _child(parent, token, path, depth)
            if not isinstance(child, dict | list):
                raise PatchFailed(f"{_shown(path[: depth + 1])} is no array or object")
            if id(child) not in self._own:
                child = child.copy()
                self._own[id(child)] = child
                _put(parent, token, child)
            parent = child
        return parent


def _child(parent: Value, token: str, path: list[str], depth: int) -> Value:
    """The value under `token`, the one of `path` at `depth` (RFC 6901, 4); raises PatchFailed without one."""
    if isinstance(parent, dict) and token in parent:
        return parent[token]
    if isinstance(parent, list):
        return parent[_index(token, len(parent), path, depth)]
    raise PatchFailed(f"{_shown(path[: depth + 1])} does not exist")


def _put(parent: _Container, token: str, value: Value) -> None:
    """Sets what `_child` found."""
    if isinstance(parent, dict):
        parent[token] = value
    else:
        parent[int(token)] = value


def _index(token: str, end: int, path: list[str], depth: int) -> int:
    if _INDEX.fullmatch(token) is None or int(token) >= end:
        raise PatchFailed(f"{_shown(path[: depth + 1])} does not exist")
    return int(token)


def _tokens(operation: dict[str, Value], member: str) -> list[str]:
    """The reference tokens of a JSON Pointer (RFC 6901, 3 and 4), led by the empty one of the document."""
    pointer = operation.get(member)
    if type(pointer) is not str:
        raise PatchFailed(f"{member} is not there, or no string")
    if pointer and (not pointer.startswith("/") or _BAD_ESCAPE.search(pointer)):
        raise PatchFailed(f"{member} is {ascii(pointer)[:80]}, which is no JSON Pointer")
    if pointer.count("/") > NESTING_MAX:
        raise PatchFailed(f"{member} has {pointer.count('/')} tokens; at most {NESTING_MAX} are allowed")
    return [token.replace("~1", "/").replace("~0", "~") for token in pointer.split("/")]


def _value(operation: dict[str, Value]) -> Value:
    if "value" not in operation:
        raise PatchFailed("value is not there")
    return operation["value"]


def _members_of(value: Value) -> dict[str, Value]:
    """The members of an object, in a new one; none of anything else (RFC 7396, 2)."""
    return dict(value) if isinstance(value, dict) else {}


def _shown(path: list[str]) -> str:
    """The JSON Pointer that `path` was read from, quoted for a message, and short."""
    return ascii("/".join(token.replace("~", "~0").replace("/", "~1") for token in path))[:80]
