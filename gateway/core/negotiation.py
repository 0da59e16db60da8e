"""Which representation a client accepts (RFC 9110, 12.5.1)."""

from __future__ import annotations

import re

_MEDIA_RANGE = re.compile(r"\s*([^\s/;,]+)/([^\s/;,]+)\s*((?:;[^,]*)?)")
_QUALITY = re.compile(r";\s*q\s*=\s*([0-9.]+)", re.IGNORECASE)


def acceptable(accept: str | None, media_type: str) -> bool:
    """Whether the Accept value `accept` admits `media_type`; no header, or an empty one, admits all.

    The most specific range that fits decides, and a quality of 0 refuses.
    """
    if accept is None or accept == "*/*" or not accept.strip():
        return True
    main, _, sub = media_type.partition("/")
    best: tuple[int, float] = (-1, 0.0)
    for media_range in accept.split(","):
        match = _MEDIA_RANGE.match(media_range)
        if match is None:
            continue
        range_main, range_sub = match[1].lower(), match[2].lower()
        if range_main not in ("*", main) or range_sub not in ("*", sub):
            continue
        specificity = (range_main != "*") + (range_sub != "*")
        quality = _QUALITY.search(match[3])
        best = max(best, (specificity, _number(quality[1]) if quality else 1.0))
    return best[1] > 0


def preferences(headers: list[str]) -> dict[str, str]:
    """The preferences in Prefer headers, names in lower case; the first of a name counts (RFC 7240, 2)."""
    found: dict[str, str] = {}
    for header in headers:
        for preference in header.split(","):
            name, _, value = preference.partition(";")[0].partition("=")
            if name.strip():
                found.setdefault(name.strip().lower(), value.strip().strip('"'))
    return found


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 1.0
