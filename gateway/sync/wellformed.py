"""A multipart document taken apart with every fault named, to go on reading where a parser would stop.

`gateway.core.multipart.read_parts` reads documents; this one judges them, so it shares no code with that
parser, nor with the writer (RFC 2046, 5.1.1).
"""

from __future__ import annotations

import re

from gateway.core.multipart import Part, boundary_of

_BOUNDARY = re.compile(r"[0-9A-Za-z'()+_,./:=? -]{0,69}[0-9A-Za-z'()+_,./:=?-]")
_TOKEN_BOUNDARY = re.compile(r"boundary\s*=\s*[!#$%&'*+\-.^_`|~0-9A-Za-z]+\s*(?:;|$)", re.IGNORECASE)
_QUOTED_BOUNDARY = re.compile(r"boundary\s*=\s*\"", re.IGNORECASE)
_FIELD = re.compile(r"([!#$%&'*+\-.^_`|~0-9A-Za-z]+)[ \t]*:[ \t]*(.*?)[ \t]*", re.DOTALL)
_FOLD = re.compile(rb"\r?\n[ \t]+")
_BLANK = " \t"


def check_boundary(content_type: str) -> tuple[str, list[str]]:
    """The boundary in a Content-Type, and what is wrong with it; raises DecodeError if there is none."""
    boundary = boundary_of(content_type)
    faults = []
    if _BOUNDARY.fullmatch(boundary) is None:
        faults.append(f"the boundary {boundary!r} is not 1 to 70 of the characters that one may have")
    if not _TOKEN_BOUNDARY.search(content_type) and not _QUOTED_BOUNDARY.search(content_type):
        faults.append(f"the boundary must be quoted in {content_type!r}")
    return boundary, faults


def split_document(boundary: str, document: bytes) -> tuple[list[Part], list[str]]:
    """The parts of a document, cut at its delimiter lines whatever length they claim, and its faults."""
    faults: list[str] = []
    parts: list[Part] = []
    start: int | None = None
    pattern = re.compile(rb"(?:\A|(\r?)\n)--" + re.escape(boundary.encode()) + rb"([^\r\n]*)")
    closed = bare = False
    for match in pattern.finditer(document):
        rest = match[2].strip(_BLANK.encode())
        if rest not in (b"", b"--"):
            # A prefix counts as well: "must not appear [...] as the prefix of any line".
            faults.append(f"at byte {match.start()} a line starts with the delimiter and goes on")
            continue
        bare = bare or match[1] == b""
        if start is not None:
            parts.append(_part(document[start : match.start()], len(parts), faults))
        if rest == b"--":
            closed = True
            break
        end = match.end()
        width = 2 if document[end : end + 2] == b"\r\n" else 1
        start = end + width
    if bare:
        faults.append("lines around delimiters end in LF alone, not in CRLF")
    if start is None:
        faults.append("there is no part" if closed else f"there is no delimiter --{boundary}")
    elif not closed:
        faults.append("the closing delimiter is missing: the document is cut short")
        parts.append(_part(document[start:].removesuffix(b"\r\n"), len(parts), faults))
    return parts, faults


def _part(data: bytes, index: int, faults: list[str]) -> Part:
    if data.startswith((b"\r\n", b"\n")):
        return Part((), data.split(b"\n", 1)[1])
    head, separator, body = data.partition(b"\r\n\r\n")
    if not separator:
        lines_head, lines_separator, lines_body = data.partition(b"\n\n")
        if lines_separator:
            faults.append(f"part {index}: header lines end in LF alone, not in CRLF")
            head, body = lines_head, lines_body
        else:
            head, body = data, b""
    headers = []
    if b"\n " in head or b"\n\t" in head:
        head = _FOLD.sub(b" ", head)
    for line in head.splitlines():
        if not line:
            continue
        field = _FIELD.fullmatch(line.decode("latin-1"))
        if field is None or not line.isascii():
            faults.append(f"part {index}: {line[:80]!r} is not a header line")
        else:
            headers.append((field[1], field[2]))
    return Part(tuple(headers), body)
