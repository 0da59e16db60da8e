"""The service document and the log document: where everything is, and how far it has come."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from gateway.core.links import SnapshotLinks, log_path
from gateway.core.state import Digest
from gateway.storage.contract import Head

from .documents import json_response
from .live import SITE, LiveFeed, LiveLog
from .problems import no_log, not_found


def add_routes(app: web.Application) -> None:
    app.router.add_get("/", service)
    app.router.add_get("/feeds/{log}", log)


async def service(request: web.Request) -> web.StreamResponse:
    """The service document: the logs, each with its document and its feeds."""
    logs = request.app[SITE].logs.values()
    return json_response(request, {"logs": [_summary(live) for live in logs]})


async def log(request: web.Request) -> web.StreamResponse:
    """The log document; its position and digest are of one moment."""
    live = request.app[SITE].log(request.match_info["log"])
    if live is None:
        return not_found(no_log(request.match_info["log"], request.app[SITE].logs))
    # Nothing is awaited between the first head and the last, so that they are of one moment.
    feeds = {feed.links.partition: feed.reader for feed in _ordered(live)}
    heads = {partition: reader.head for partition, reader in feeds.items()}
    partitions = [_partition(live.feeds[partition], head) for partition, head in heads.items()]
    digest = sum((head.digest for head in heads.values()), Digest())
    ends = {partition: head.next_ordinal for partition, head in heads.items()}
    return json_response(
        request,
        {
            "log": live.name,
            "entities": digest.entities,
            "digest": digest.hex(),
            "position": {partition: head.last_ordinal for partition, head in heads.items()},
            "shared_targets": await live.count_shared(feeds, ends),
            "partitions": partitions,
            "snapshots": SnapshotLinks(live.name).base,
        },
    )


def _summary(live: LiveLog) -> dict[str, Any]:
    return {
        "log": live.name,
        "href": log_path(live.name),
        "targets": live.prefix,
        "feeds": [feed.links.current for feed in _ordered(live)],
        "snapshots": SnapshotLinks(live.name).base,
    }


def _partition(feed: LiveFeed, head: Head) -> dict[str, Any]:
    links = {"current": feed.links.current}
    if head.page is not None:
        links["first"] = feed.links.archive(0)
        links["last"] = feed.links.archive(head.page.number)
    return {
        "partition": feed.links.partition,
        "first": None if head.page is None else 0,
        "last": head.last_ordinal,
        "events": head.next_ordinal,
        "entities": head.digest.entities,
        "digest": head.digest.hex(),
        "generation": None if head.page is None else head.page.generation,
        "gaps": [
            {
                "ordinal": gap.ordinal,
                "offset_before": gap.offset_before,
                "offset_after": gap.offset_after,
            }
            for gap in feed.reader.gaps()
        ],
        "quarantined": head.quarantined,
        "links": links,
    }


def _ordered(live: LiveLog) -> list[LiveFeed]:
    """The feeds by partition, numbers by value."""
    return [live.feeds[name] for name in sorted(live.feeds, key=lambda name: (len(name), name))]
