"""A file name for each target: readable, reversible, and one of its own on every file system.

All but letters, digits, `.`, `_` and `-` is percent-encoded, and so is a dot in front. Where the file system
takes `A` and `a` for the same name, capital letters are percent-encoded as well. Undoing the encoding gives
the target again; only a name that would be too long is cut, and gets a hash of the target behind a `~`, which
no other name has.
"""

from __future__ import annotations

import hashlib
import re
from urllib.parse import quote

NAME_BYTES_MAX = 200
HASH_HEX = 32

_CAPITAL = re.compile(r"(%[0-9A-F]{2})|([A-Z])")


def file_name(target: str, *, case_matters: bool) -> str:
    """The name of the file of `target`; `case_matters` says whether the file system tells `A` from `a`."""
    # `quote` leaves `~` alone, too.
    name = quote(target, safe="").replace("~", "%7E")
    if not case_matters:
        name = _CAPITAL.sub(lambda match: match[1] or f"%{ord(match[2]):02X}", name)
    if name.startswith("."):
        name = f"%2E{name[1:]}"
    if len(name) > NAME_BYTES_MAX or not name:
        digest = hashlib.sha256(target.encode()).hexdigest()[:HASH_HEX]
        name = f"{_cut(name, NAME_BYTES_MAX - HASH_HEX - 1)}~{digest}"
    return name


def _cut(name: str, length: int) -> str:
    """The beginning of `name`, no escape cut in two."""
    cut = name[:length]
    percent = cut.rfind("%", -2)
    return cut if percent < 0 else cut[:percent]
