"""Snapshots: which there are, the newest, their indexes, and their parts straight from the disk.

An index and its parts never change; what moves is which there are. A part is not held in memory: it is read
and sent in chunks, while its snapshot is leased, so that retention leaves it alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from aiohttp import web

from gateway.core.errors import SnapshotUnreadable
from gateway.core.links import SnapshotLinks, index_links, newest_link, parse_number, part_links
from gateway.core.negotiation import acceptable
from gateway.core.snapshots import SnapshotIndex, SnapshotPart
from gateway.storage.snapshots import OpenPart, SnapshotFolder, StoredSnapshot

from .documents import (
    IMMUTABLE,
    JSON,
    REVALIDATE,
    VARY,
    Description,
    Document,
    decide,
    describe,
    json_response,
    not_acceptable,
    range_headers,
    respond,
)
from .live import SITE, Site
from .problems import no_log, not_found, problem

CHUNK_BYTES = 256 * 1024
"""Of a part in memory, for each request that is under way."""
LEASE_SWEEP_S = 5.0
"""Between two looks at which leases are over."""

_log = logging.getLogger("wes.http")


def add_routes(app: web.Application) -> None:
    router = app.router
    router.add_get("/snapshots/{log}", retained)
    router.add_get("/snapshots/{log}/latest", newest)
    router.add_get("/snapshots/{log}/{id}", index)
    router.add_get("/snapshots/{log}/{id}/{number}", part)
    app.cleanup_ctx.append(_end_leases)


async def retained(request: web.Request) -> web.StreamResponse:
    """The retained snapshots, the newest first; 404 while there is none."""
    folder = _folder(request)
    indexes = await asyncio.to_thread(folder.retained)
    if not indexes:
        return _none_yet(folder.links)
    if not acceptable(request.headers.get("Accept"), JSON):
        return not_acceptable(JSON)
    content = {
        "log": folder.links.log,
        "snapshots": [_summary(folder.links, index) for index in indexes],
    }
    return json_response(request, content, Link=newest_link(folder.links), Vary=VARY)


async def newest(request: web.Request) -> web.StreamResponse:
    """The newest index itself, so that one request does; Content-Location says which it is."""
    folder = _folder(request)
    snapshot = await asyncio.to_thread(folder.newest)
    if snapshot is None:
        return _none_yet(folder.links)
    response = respond(request, _index_document(folder.links, snapshot, cache=REVALIDATE, sealed=False))
    if response.status in (200, 304):
        # Of a 304 too (RFC 9110, 15.4.5).
        response.headers["Content-Location"] = folder.links.snapshot(snapshot.index.id)
    return response


async def index(request: web.Request) -> web.StreamResponse:
    """The index of one snapshot, the bytes of its file; it never changes."""
    folder = _folder(request)
    id_ = request.match_info["id"]
    snapshot = await asyncio.to_thread(folder.snapshot, id_)
    if snapshot is None:
        return _gone(folder.links, id_)
    return respond(request, _index_document(folder.links, snapshot, cache=IMMUTABLE, sealed=True))


async def part(request: web.Request) -> web.StreamResponse:
    """A part of one snapshot, or a range of it; it never changes."""
    folder = _folder(request)
    id_, text = request.match_info["id"], request.match_info["number"]
    snapshot = await asyncio.to_thread(folder.snapshot, id_)
    if snapshot is None:
        return _gone(folder.links, id_)
    parts = snapshot.index.parts
    number = parse_number(text)
    if number is None or number >= len(parts):
        return not_found(f"the snapshot {id_} has no part {text!r}: it has {len(parts)}, from 0 on")
    about = _part_description(folder.links, id_, parts[number])
    wanted = decide(request, about)
    if isinstance(wanted, web.Response):
        return wanted
    opened = await asyncio.to_thread(folder.open_part, snapshot, number)
    if opened is None:
        return _gone(folder.links, id_)
    try:
        if request.method == "HEAD":
            return web.Response(headers=about.headers)
        if wanted is None:
            whole = web.StreamResponse(headers=about.headers)
            return await _send(request, whole, opened, slice(0, about.length))
        some = web.StreamResponse(status=206, headers=range_headers(about, wanted))
        return await _send(request, some, opened, wanted)
    finally:
        opened.close()


async def _send(
    request: web.Request, response: web.StreamResponse, opened: OpenPart, wanted: slice
) -> web.StreamResponse:
    await response.prepare(request)
    position = wanted.start
    while position < wanted.stop:
        try:
            chunk = await asyncio.to_thread(opened.read, position, min(wanted.stop - position, CHUNK_BYTES))
        except SnapshotUnreadable as error:
            _log.error("snapshot_part_broke_off", extra={"reason": str(error)})
            # The headers are sent, so the end of the connection is all that can tell the client.
            raise ConnectionError("a part broke off") from error
        await response.write(chunk)
        position += len(chunk)
    await response.write_eof()
    return response


def _summary(links: SnapshotLinks, index: SnapshotIndex) -> dict[str, Any]:
    return {
        "id": index.id,
        "href": links.snapshot(index.id),
        "started": index.started,
        "completed": index.completed,
        "entities": index.entities,
        "digest": index.digest,
        "feeds": [asdict(feed) for feed in index.feeds],
    }


def _index_document(links: SnapshotLinks, snapshot: StoredSnapshot, *, cache: str, sealed: bool) -> Document:
    about = describe(
        JSON,
        len(snapshot.document),
        f'"{snapshot.sha256}"',
        cache=cache,
        link=index_links(links),
        modified_ms=snapshot.index.completed,
        sealed=sealed,
    )
    return Document(snapshot.document, about)


def _part_description(links: SnapshotLinks, id_: str, part: SnapshotPart) -> Description:
    return describe(
        part.content_type,
        part.size,
        f'"{part.sha256}"',
        cache=IMMUTABLE,
        link=part_links(links, id_),
        sealed=True,
    )


def _folder(request: web.Request) -> SnapshotFolder:
    name, logs = request.match_info["log"], request.app[SITE].logs
    if name not in logs:
        raise web.HTTPNotFound(text=no_log(name, logs))
    folder = logs[name].snapshots
    if folder is None:
        raise web.HTTPNotFound(text=f"no snapshots of the log {name} are served here")
    return folder


def _none_yet(links: SnapshotLinks) -> web.Response:
    return not_found(f"there is no snapshot of the log {links.log} yet: make one with wes snapshot build")


def _gone(links: SnapshotLinks, id_: str) -> web.Response:
    return problem(
        404,
        f"the log {links.log} has no snapshot {id_!r}, or no longer; the newest is at {links.newest}",
        Link=newest_link(links),
    )


async def _end_leases(app: web.Application) -> AsyncIterator[None]:
    """End each lease when its time is over, also when nobody asks for anything any more."""
    sweeping = asyncio.create_task(_sweep(app[SITE]))
    yield
    sweeping.cancel()
    with suppress(asyncio.CancelledError):
        await sweeping
    for folder in _folders(app[SITE]):
        await asyncio.to_thread(folder.leases.end_idle, at_once=True)


async def _sweep(site: Site) -> None:
    while True:
        await asyncio.sleep(LEASE_SWEEP_S)
        for folder in _folders(site):
            await asyncio.to_thread(folder.leases.end_idle)


def _folders(site: Site) -> list[SnapshotFolder]:
    return [log.snapshots for log in site.logs.values() if log.snapshots is not None]
