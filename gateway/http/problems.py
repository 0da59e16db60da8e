"""Errors as problem details (RFC 9457): never cacheable, and they say what to do."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Iterable
from http import HTTPStatus

from aiohttp import web

from gateway.core.errors import (
    GatewayError,
    InvalidEvent,
    LogUnavailable,
    MessageRefused,
    OutcomeUnknown,
    PageDamaged,
    SnapshotUnreadable,
)

MEDIA_TYPE = "application/problem+json"

# As RFC 9110 has them; Python's own differ from version to version.
_PHRASES = {413: "Content Too Large", 416: "Range Not Satisfiable", 422: "Unprocessable Content"}

_log = logging.getLogger("wes.http")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def problem_body(status: int, detail: str) -> bytes:
    """A problem document of the type `about:blank`, whose title is the status phrase (RFC 9457, 4.2.1)."""
    title = _PHRASES.get(status) or HTTPStatus(status).phrase
    fields = {"title": title, "status": status, "detail": detail}
    return json.dumps(fields, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


def problem(status: int, detail: str, **headers: str) -> web.Response:
    """A response with a problem document; `headers` are named with '_' in place of '-'."""
    response = web.Response(status=status, body=problem_body(status, detail))
    response.headers["Content-Type"] = MEDIA_TYPE
    response.headers["Cache-Control"] = "no-store"
    for name, value in headers.items():
        response.headers[name.replace("_", "-")] = value
    return response


def not_found(detail: str) -> web.Response:
    return problem(404, detail)


def no_log(name: str, known: Iterable[str]) -> str:
    """What is said of a log that is not there."""
    return f"there is no log {name!r}; the logs here are: {', '.join(sorted(known)) or 'none'}"


@web.middleware
async def problems(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn what handlers raise into problem documents."""
    try:
        return await handler(request)
    except web.HTTPRequestEntityTooLarge as error:
        return problem(413, error.text or error.reason)
    except web.HTTPMethodNotAllowed as error:
        allowed = ", ".join(sorted(error.allowed_methods))
        return problem(405, f"{error.method} is not allowed here: use {allowed}", Allow=allowed)
    except web.HTTPException as error:
        return problem(error.status, error.text or error.reason)
    except GatewayError as error:
        return _of(error)


def _of(error: GatewayError) -> web.Response:
    match error:
        case InvalidEvent():
            return problem(400, str(error))
        case LogUnavailable(retry_after_s=seconds):
            return problem(503, str(error), Retry_After=str(seconds))
        case OutcomeUnknown():
            # Without Retry-After: whoever obeys it would publish the event a second time.
            return problem(504, str(error))
        case MessageRefused():
            return problem(422, str(error))
        case PageDamaged():
            _log.error("page_not_served", extra={"reason": str(error)})
            return problem(503, str(error), Retry_After="30")
        case SnapshotUnreadable():
            _log.error("snapshot_not_served", extra={"reason": str(error)})
            return problem(503, str(error))
        case _:
            _log.error("request_failed", extra={"reason": str(error)})
            return problem(500, str(error))
