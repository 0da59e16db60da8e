"""Servers with snapshots: a log as the gateway has it, and a server of the draft that is not ours.

They keep every rule until a test gives them a `twist`, which may change any answer before it is sent. What is
`held` is not answered until a test lets it go.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
from collections import Counter
from dataclasses import dataclass, replace
from email.utils import formatdate
from typing import NamedTuple

from aiohttp import web

from gateway.core.event import Event, Method
from gateway.core.links import FeedLinks, SnapshotLinks, archive_links, subscription_links
from gateway.core.snapshots import (
    DeltaTable,
    FeedPoint,
    Held,
    SnapshotIndex,
    SnapshotPart,
    bucket_of,
    part_boundary,
    render_part,
)
from gateway.core.state import Digest, Entity, Kind, apply, term
from tests.sync.faulty_server import NumberedFeed
from tests.sync.feed_server import Entry, Feed, Reply
from tests.sync.replay import replay

JSON, MERGE = "application/json", "application/merge-patch+json"
FIRST_TIME_S = 1_600_000_000
PLAIN_INDEX = "/products/snapshot/latest"
_HOLD_S = 0.01


class Told(NamedTuple):
    """An event as `tests.sync.replay` takes it."""

    method: str
    target: str
    content_type: str | None
    body: bytes


class Partition(NumberedFeed):
    """The feed of one partition of the log `events`, in pages of `page_max`."""

    def __init__(self, name: str, *, page_max: int = 10, generation: str = "0123456789abcdef") -> None:
        self.name = name
        self.generation = generation
        self.page_max = page_max
        self.links_of = FeedLinks("events", name)
        self.told: list[Told] = []
        super().__init__()
        self.latest = self.links_of.current
        self.pages = [[]]

    def archive(self, page: int) -> str:
        return self.links_of.archive(page)

    def entry_path(self, name: str) -> str:
        return self.links_of.entry(int(name))

    def content_id(self, name: str) -> str:
        return f"<{name}.{self.generation}@{self.name}.events.example.org>"

    def links(self, page: int) -> list[str]:
        archived = page < len(self.pages) - 1
        return [archive_links(self.links_of, page) if archived else subscription_links(self.links_of, page)]

    def publish(self, told: Told) -> None:
        if len(self.pages[-1]) == self.page_max:
            self.pages.append([])
        ordinal = len(self.told)
        self.told.append(told)
        headers = [
            ("Content-ID", self.content_id(str(ordinal))),
            ("Link", f'<{told.target}>; rel="about"'),
            ("Link", f'<{self.entry_path(str(ordinal))}>; rel="self"'),
            ("Event-Type", f"http-equiv={told.method}"),
            *([] if told.content_type is None else [("Content-Type", told.content_type)]),
            ("Last-Modified", modified(ordinal)),
            ("Content-Length", str(len(told.body))),
        ]
        self.pages[-1].append(Entry(str(ordinal), headers, told.body))

    @property
    def states(self):
        """What an independent replay makes of its events."""
        return replay(self.told)

    def page_of(self, ordinal: int) -> int:
        return ordinal // self.page_max

    def held(self) -> list[Held]:
        """What a snapshot holds of it, in order of target."""
        entities: dict[str, Entity | None] = {}
        made: dict[str, int] = {}
        for ordinal, told in enumerate(self.told):
            event = Event(Method(told.method), told.target, told.content_type, told.body)
            entities[told.target] = apply(entities.get(told.target), event)
            if told.method != "POST":
                made[told.target] = ordinal
        return [
            Held(target, entity, self.entry_path(str(made[target])), modified(made[target]))
            for target, entity in sorted(entities.items())
            if entity is not None and entity.kind is not Kind.DELETED
        ]


def modified(ordinal: int) -> str:
    return formatdate(FIRST_TIME_S + ordinal, usegmt=True)


@dataclass
class Snapshot:
    """An index, and the bytes of its parts by path; None is a part that is not there."""

    index: SnapshotIndex
    parts: dict[str, bytes]

    def change(self, number: int, **facts: object) -> None:
        """Change what the index tells of a part, and its sums with it."""
        parts = list(self.index.parts)
        parts[number] = replace(parts[number], **facts)
        total = sum((Digest(part.count, int(part.digest, 16)) for part in parts), Digest())
        self.index = replace(self.index, parts=tuple(parts), entities=total.entities, digest=total.hex())

    @property
    def uris(self) -> list[str]:
        return [part.uri for part in self.index.parts]


def snapshot_of(number: int, partitions: list[Partition], *, buckets: int = 4) -> Snapshot:
    """The snapshot of all that the partitions hold now; `number` makes its id."""
    id_ = f"2020-09-13T12:26:40.{number:03}Z"
    links = SnapshotLinks("events")
    parts: list[SnapshotPart] = []
    content: dict[str, bytes] = {}
    points: list[FeedPoint] = []
    for partition in partitions:
        if not partition.told:
            continue
        last = len(partition.told) - 1
        page = partition.page_of(last)
        name = str(last)
        points.append(
            FeedPoint(
                partition.name,
                last,
                partition.entry_path(name),
                partition.content_id(name),
                partition.archive(page),
            )
        )
        held = partition.held()
        for bucket in range(buckets):
            items = [item for item in held if bucket_of(item.target, buckets) == bucket]
            if not items:
                continue
            digest = sum((Digest(1, term(item.target, item.entity.etag)) for item in items), Digest())
            boundary = part_boundary("events", partition.name, digest)
            data = b"".join(render_part(boundary, items))
            uri = links.part(id_, len(parts))
            sha256 = hashlib.sha256(data).hexdigest()
            count = digest.entities
            parts.append(SnapshotPart(uri, partition.name, len(data), sha256, boundary, count, digest.hex()))
            content[uri] = data
    total = sum((Digest(part.count, int(part.digest, 16)) for part in parts), Digest())
    index = SnapshotIndex(
        id_,
        "events",
        1_600_000_000_000,
        1_600_000_001_000,
        tuple(points),
        tuple(parts),
        total.entities,
        total.hex(),
        {"state": DeltaTable("delta/state", number)},
    )
    return Snapshot(index, content)


class LogSite:
    """A log with its partitions and snapshots, the newest one last; `requests` has the path of each one."""

    def __init__(self, *partitions: Partition) -> None:
        self.partitions = {partition.name: partition for partition in partitions}
        self.snapshots: list[Snapshot] = []
        self.made = 0
        self.held: set[str] = set()
        self.requests: list[str] = []
        self.count: Counter[str] = Counter()
        self.twist = lambda request, reply: None

    def snapshot(self, **options: int) -> Snapshot:
        """Make a snapshot of all that is there now."""
        self.made += 1
        made = snapshot_of(self.made, list(self.partitions.values()), **options)
        self.snapshots.append(made)
        return made

    def publish(self, partition: str, method: str, target: str, body: bytes = b"", type_: str = JSON) -> None:
        told = Told(method, target, None if method == "DELETE" else type_, body)
        self.partitions[partition].publish(told)

    def answer(self, request) -> Reply:
        path, links = request.path, SnapshotLinks("events")
        if path == "/":
            return _json({"logs": [{"log": "events", "href": "/feeds/events"}]})
        if path == "/feeds/events":
            return _json(self._log_document())
        if path == links.newest:
            return _index(self.snapshots[-1]) if self.snapshots else Reply(404)
        for made in self.snapshots:
            if path == links.snapshot(made.index.id):
                return _index(made)
            if path in made.parts:
                told = next(part for part in made.index.parts if part.uri == path)
                return Reply(200, {"Content-Type": told.content_type}, made.parts[path])
        for partition in self.partitions.values():
            if path.startswith(f"{partition.links_of.base}/"):
                return partition.reply(request)
        return Reply(404)

    def _log_document(self) -> dict[str, object]:
        partitions = []
        for name, partition in self.partitions.items():
            digest = sum((Digest(1, term(h.target, h.entity.etag)) for h in partition.held()), Digest())
            empty = not partition.told
            links = {"current": partition.latest} | ({} if empty else {"first": partition.archive(0)})
            partitions.append(
                {
                    "partition": name,
                    "last": None if empty else len(partition.told) - 1,
                    "generation": None if empty else partition.generation,
                    "entities": digest.entities,
                    "digest": digest.hex(),
                    "links": links,
                }
            )
        return {"log": "events", "partitions": partitions, "snapshots": SnapshotLinks("events").base}

    def reply(self, request) -> Reply:
        """What the server answers, the twist included."""
        self.requests.append(request.path)
        self.count[request.path] += 1
        reply = self.answer(request)
        self.twist(request, reply)
        return reply

    async def handle(self, request: web.Request) -> web.Response:
        reply = self.reply(request)
        while request.path in self.held:  # noqa: ASYNC110 - it is let go from another thread
            await asyncio.sleep(_HOLD_S)
        response = web.Response(status=reply.status, headers=reply.headers)
        if reply.status not in (204, 304):
            response.body = reply.body
        return response

    def archives(self, partition: str) -> set[int]:
        """The pages of a partition that were asked for by their own URLs."""
        prefix = f"{FeedLinks('events', partition).base}/archive/"
        return {int(path.removeprefix(prefix)) for path in self.requests if path.startswith(prefix)}

    def parts_asked(self) -> Counter[str]:
        """How often each part was asked for."""
        uris = {uri for made in self.snapshots for uri in made.uris}
        return Counter({path: number for path, number in self.count.items() if path in uris})


def _index(snapshot: Snapshot) -> Reply:
    return Reply(200, {"Content-Type": JSON, "Cache-Control": "no-cache"}, snapshot.index.to_json())


def _json(content: object) -> Reply:
    return Reply(200, {"Content-Type": JSON}, json.dumps(content).encode())


def fill(site: LogSite, events: int, *, targets: int = 40, seed: int = 1) -> None:
    """Publish so many events of all kinds to each partition."""
    chance = random.Random(seed)
    for name in site.partitions:
        for number in range(events):
            target = f"/things/{chance.randrange(targets)}"
            kind = chance.random()
            if kind < 0.6:
                site.publish(name, "PUT", target, b'{"n":%d,"of":"%s"}' % (number, name.encode()))
            elif kind < 0.75:
                site.publish(name, "PATCH", target, b'{"p":%d}' % number, MERGE)
            elif kind < 0.87:
                site.publish(name, "DELETE", target)
            elif kind < 0.95:
                site.publish(name, "POST", target, b"{}")
            else:
                site.publish(name, "PATCH", target, b"+", "text/x-diff")


class PlainSite(Feed):
    """Another server's feed and its snapshot, with ETags of its own, and targets that tell their state.

    `parts` are the documents of the snapshot's parts by path; `asked` is each GET of a target with the ETag
    that it was asked with.
    """

    boundary_of_parts = "_--------1435019846753"

    def __init__(self, *, page_max: int = 3, entry_links: bool = True) -> None:
        super().__init__(entry_links=entry_links)
        self.pages = [[]]
        self.page_max = page_max
        self.started = 0
        self.parts: dict[str, bytes] = {}
        self.targets: dict[str, tuple[str, bytes]] = {}
        self.asked: list[tuple[str, str | None]] = []
        self.index: dict[str, object] | None = None

    def publish(
        self, method: str, target: str, moment_s: float | None, body: bytes = b"", type_=JSON
    ) -> None:
        if len(self.pages[-1]) == self.page_max:
            self.pages.append([])
        entry = self.entry(method, body)
        entry.without("Link")
        entry.without("Last-Modified")
        entry.replace("Content-Type", type_)
        entry.headers.append(("Link", f"<{target}>;rel=about"))
        if self.entry_links:
            entry.headers.append(("Link", f"<{self.entry_path(entry.name)}>;rel=self"))
        if moment_s is not None:
            entry.headers.append(("Last-Modified", formatdate(int(moment_s), usegmt=True)))
        self.pages[-1].append(entry)

    def part(self, path: str, items: list[tuple[str, str, bytes]]) -> None:
        """A part as in the draft's example: Content-Location, ETag and body of each entity."""
        delimiter = f"--{self.boundary_of_parts}".encode()
        rendered = [
            f"Content-Disposition: inline\r\nContent-Type: {JSON}\r\nContent-Location: {location}\r\n"
            f"ETag: {etag}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            + body
            for location, etag, body in items
        ]
        # The example has no delimiter in front of its first entity.
        self.parts[path] = (b"\r\n" + delimiter + b"\r\n").join(rendered) + b"\r\n" + delimiter + b"--\r\n"

    def make_index(self, started_ms: int, **more: object) -> None:
        self.index = {
            "uris": list(self.parts),
            "completed": started_ms + 66_515,
            "started": started_ms,
            "id": "2015-06-23T00:36:45.885Z",
            **more,
        }

    def answer(self, request) -> Reply:
        path = request.path
        if path == PLAIN_INDEX:
            return Reply(404) if self.index is None else _json(self.index)
        if path in self.parts:
            type_ = f'multipart/package; boundary="{self.boundary_of_parts}"'
            return Reply(200, {"Content-Type": type_}, self.parts[path])
        if path in self.targets:
            etag, body = self.targets[path]
            known = request.headers.get("If-None-Match")
            self.asked.append((path, known))
            if known is not None and known.removeprefix("W/") == etag.removeprefix("W/"):
                return Reply(304, {"ETag": etag, "Cache-Control": "no-cache"})
            return Reply(200, {"Content-Type": JSON, "ETag": etag, "Cache-Control": "no-cache"}, body)
        return super().answer(request)
