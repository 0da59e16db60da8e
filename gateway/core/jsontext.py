"""JSON text, read without losing a digit and written in one canonical form.

A number stays the text that it was written as, so that 1.10, 1e400 and 2^63 survive reading and writing.
What two readers could understand differently is not read at all (I-JSON, RFC 7493): text that is not UTF-8
or starts with a byte order mark, a name that occurs twice in an object, half of a surrogate pair, NaN and the
infinities. Noncharacters, which RFC 7493, 2.1 forbids too, are read: every reader understands them alike.

Nothing here recurses but json's own scanner, and the nesting is counted before that runs: a text is JSON or
it is not, wherever it is read. (A caller that has used up the stack gets RecursionError, never NotJson.)
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from itertools import accumulate, chain, repeat
from typing import NoReturn, TypeAlias

from .errors import DecodeError

# An array in an array is two levels. RFC 8259, 9 leaves the limit to us.
NESTING_MAX = 256

_BRACKET_STEPS = {"[": 1, "{": 1, "]": -1, "}": -1}
_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_NO_BRACKET = re.compile(r"[^\[\]{}]+")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
# All escapes in turn, so that in \\ud800 the second backslash starts none; the group is half a pair.
_ESCAPE = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F])|.)", re.DOTALL
)
_NUMBER = re.compile(r"(-?)([0-9]+)(?:\.([0-9]+))?(?:[eE]([+-]?[0-9]+))?")
# Exact for whole numbers of any length, in linear time; int() is neither, and refuses long texts.
_EXACT = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN)


class Number(str):
    """A number as its literal text; `equal` compares it by value, `==` by its digits."""

    __slots__ = ()


Value: TypeAlias = "bool | str | Number | list[Value] | dict[str, Value] | None"


class NotJson(DecodeError):
    """A text that is not JSON, or that two readers could understand differently (RFC 7493)."""


def parse(text: bytes) -> Value:
    """The value that `text` is, with each number as a Number; raises NotJson.

    Implements RFC 8259 within the bounds of I-JSON (RFC 7493, 2.1 and 2.3) and NESTING_MAX levels.
    """
    try:
        characters = text.decode()
    except UnicodeDecodeError as error:
        raise NotJson("the text is not UTF-8", offset=error.start) from None
    if characters.startswith("\ufeff"):
        raise NotJson("the text starts with a byte order mark", offset=0)
    _check_nesting(characters)
    if _SURROGATE.search(characters):
        _check_surrogates(characters)
    try:
        value: Value = _SCANNER.decode(characters)
    except json.JSONDecodeError as error:
        raise NotJson(error.msg, offset=len(characters[: error.pos].encode())) from None
    return value


def canonical(value: Value) -> bytes:
    """`value` as `parse` gave it, in one form: without space, names sorted, strings with the fewest escapes.

    The structure and the strings are those of RFC 8785, 3.2.1, 3.2.2.2 and 3.2.3; numbers keep their literal
    text, where 3.2.2.3 would round them to a double.
    """
    pieces: list[str] = []
    write = pieces.append
    # What is still to be written of each value that is open: (text that leads a value, the value).
    open_values: list[Iterator[tuple[str, Value]]] = [iter((("", value),))]
    ends = [""]
    while open_values:
        for lead, item in open_values[-1]:
            write(lead)
            if type(item) is str:
                write(_quoted(item))
            elif type(item) is Number:
                write(item)
            elif type(item) is dict:
                if item:
                    open_values.append(_led_members(item))
                    write("{")
                    ends.append("}")
                    break
                write("{}")
            elif type(item) is list:
                if item:
                    open_values.append(zip(chain(("",), repeat(",")), item, strict=False))
                    write("[")
                    ends.append("]")
                    break
                write("[]")
            else:
                write("null" if item is None else "true" if item else "false")
        else:
            open_values.pop()
            write(ends.pop())
    return "".join(pieces).encode()


def equal(a: Value, b: Value) -> bool:
    """Whether two values are equal as RFC 6902, 4.6 says: numbers by value, exactly; names in any order."""
    pairs: list[tuple[Value, Value]] = [(a, b)]
    while pairs:
        a, b = pairs.pop()
        if type(a) is not type(b):
            return False
        if isinstance(a, Number) and isinstance(b, Number):
            if a != b and _reduced(a) != _reduced(b):
                return False
        elif isinstance(a, list) and isinstance(b, list):
            if len(a) != len(b):
                return False
            pairs.extend(zip(a, b, strict=True))
        elif isinstance(a, dict) and isinstance(b, dict):
            if a.keys() != b.keys():
                return False
            pairs.extend((value, b[name]) for name, value in a.items())
        elif a != b:
            return False
    return True


def nesting(value: Value) -> int:
    """How many arrays and objects are inside each other at the deepest place; 0 for anything else."""
    depth = 0
    level: list[Value] = [value]
    while level := [item for item in level if isinstance(item, dict | list)]:
        depth += 1
        level = [part for item in level for part in (item.values() if isinstance(item, dict) else item)]
    return depth


def _check_nesting(characters: str) -> None:
    """Raises NotJson for a text that is nested too deeply, before the scanner, which recurses, sees it.

    Up to the first error in the text, the scanner sees the same strings and the same brackets.
    """
    if characters.count("[") + characters.count("{") <= NESTING_MAX:
        return
    brackets = _NO_BRACKET.sub("", _STRING.sub("", characters))
    if max(accumulate(map(_BRACKET_STEPS.__getitem__, brackets)), default=0) > NESTING_MAX:
        raise NotJson(f"the text is nested deeper than {NESTING_MAX} levels")


def _check_surrogates(characters: str) -> None:
    for match in _ESCAPE.finditer(characters):
        if match[1]:
            offset = len(characters[: match.start()].encode())
            raise NotJson("the text holds half of a surrogate pair, which is no character", offset=offset)


def _object(members: list[tuple[str, Value]]) -> dict[str, Value]:
    found = dict(members)
    if len(found) != len(members):
        (name, _), *_ = Counter(name for name, _ in members).most_common(1)
        raise NotJson(f"the name {ascii(name)[:80]} occurs twice in an object")
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise NotJson(f"{name} is not JSON")


_SCANNER = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=Number, parse_float=Number, parse_constant=_refuse_constant
)
# Escapes what RFC 8785, 3.2.2.2 says and no more: the quotation mark, the backslash and the controls.
_quoted = json.JSONEncoder(ensure_ascii=False).encode


def _led_members(members: dict[str, Value]) -> Iterator[tuple[str, Value]]:
    """The members in the order of their names' UTF-16 code units (RFC 8785, 3.2.3), each led by its name."""
    names = sorted(members)
    if not all(map(str.isascii, names)):
        names.sort(key=lambda name: name.encode("utf-16-be"))
    leads = [f",{_quoted(name)}:" for name in names]
    leads[0] = leads[0][1:]
    return zip(leads, map(members.__getitem__, names), strict=True)


def _reduced(number: Number) -> tuple[bool, str, Decimal]:
    """Sign, digits without zeros at either end, power of ten behind them: the same for equal numbers."""
    match = _NUMBER.fullmatch(number)
    assert match is not None, "a Number comes from parse"
    sign, whole, fraction, exponent = match.groups(default="")
    digits = (whole + fraction).lstrip("0")
    significant = digits.rstrip("0")
    if not significant:
        return False, "", Decimal(0)
    shift = len(digits) - len(significant) - len(fraction)
    return bool(sign), significant, _EXACT.add(_EXACT.create_decimal(exponent or "0"), Decimal(shift))
