"""Feeds written straight into a data folder, what is in them, and servers of them that a test may twist."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

from gateway.core.event import Event
from gateway.core.identity import FeedName
from gateway.core.pages import FeedSettings, Paginator
from gateway.storage.filestore import FeedStore, feed_folder
from snapshots.entries import batches
from snapshots.places import Place
from tests.feeds import batch_with

LOG = "events"


class Written:
    """A feed that a test writes; `events` is what is in it. Use it as a context manager."""

    def __init__(self, data: Path, partition: str = "0", *, events_max: int = 5, **settings: Any) -> None:
        self.partition = partition
        name = FeedName("localhost", LOG, partition)
        self.store = FeedStore(feed_folder(data, LOG, partition), FeedSettings(name, events_max, **settings))
        self.paginator = Paginator(self.store.settings)
        self.events: list[Event] = []
        self.closed = False

    def add(self, *events: Event) -> None:
        self.store.append(batch_with(self.paginator, *events))
        self.events += events

    def __enter__(self) -> Written:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop writing; other processes may."""
        if not self.closed:
            self.closed = True
            self.store.close()

    def page_file(self, number: int) -> Path:
        return self.store._folder / "pages" / str(number)

    def rows(self, start: int = 0, end: int | None = None) -> list[dict[str, Any]]:
        """What a reader must see of the events from `start` to before `end`, but for the Content-ID."""
        return [
            {
                "partition": self.partition,
                "ordinal": ordinal,
                "target": event.target,
                "method": event.method.value,
                "content_type": event.content_type,
                "last_modified": None
                if event.modified_ms is None
                else datetime.fromtimestamp(event.modified_ms // 1000, UTC),
                "entry": f"/feeds/{LOG}/{self.partition}/events/{ordinal}",
                "headers": [{"name": name, "value": value} for name, value in event.extra_headers],
                "body": event.body,
            }
            for ordinal, event in enumerate(self.events)
            if start <= ordinal and (end is None or ordinal < end)
        ]


def read_rows(place: Place, partition: str, start: int, end: int, *, tasks: int = 2) -> list[dict[str, Any]]:
    """What a place gives, with the Content-IDs checked for their ordinals and left out."""
    found = [
        row
        for range_ in place.ranges(partition, start, end, tasks)
        for batch in batches(partition, range_.documents())
        for row in batch.to_pylist()
    ]
    for row in found:
        assert row.pop("content_id").startswith(f"<{row['ordinal']}.")
    return found


class Reply(NamedTuple):
    """An answer on its way through a proxy."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes


Twist = Callable[[str, Reply], Reply | None]


@contextmanager
def twisted(origin: str, twist: Twist) -> Iterator[str]:
    """A proxy in front of a gateway that gives what `twist` makes of an answer; None cuts it short."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            reply = twist(self.path, _fetched(origin + self.path))
            cut = reply is None
            reply = reply or _fetched(origin + self.path)
            self.send_response_only(reply.status)
            for name, value in reply.headers:
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(reply.body[: len(reply.body) // 2] if cut else reply.body)
            self.close_connection = cut

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        return None


def _fetched(url: str) -> Reply:
    try:
        answer = urllib.request.build_opener(_Stay).open(url, timeout=30)
    except urllib.error.HTTPError as error:
        answer = error
    with answer:
        hop = ("connection", "date", "server", "keep-alive")
        headers = [(name, value) for name, value in answer.headers.items() if name.lower() not in hop]
        return Reply(answer.status, headers, answer.read())
