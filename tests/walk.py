"""An independent walk of a feed, on the standard library alone: the oracle of the acceptance tests.

Nothing of the gateway is imported here, so a fault in its reader cannot hide one in its writer. Parts are
cut by their own Content-Length, and everything that is not as expected is an AssertionError.
"""

from __future__ import annotations

import http.client
import itertools
import json
import re
import urllib.parse
from typing import NamedTuple

TIMEOUT_S = 60


class WalkedEvent(NamedTuple):
    """One event entry as it stands in a document."""

    content_id: str
    target: str
    method: str
    content_type: str | None
    body: bytes


class Document(NamedTuple):
    """A feed document: its links by relation, as paths, and its events."""

    path: str
    links: dict[str, str]
    events: list[WalkedEvent]


def walk(base_url: str, log: str) -> dict[str, list[WalkedEvent]]:
    """All events of a log by partition, in order, read back from `latest` and compared forward."""
    with_host = urllib.parse.urlsplit(base_url)
    connection = http.client.HTTPConnection(with_host.netloc, timeout=TIMEOUT_S)
    try:
        status, _, body = get(connection, f"/feeds/{log}")
        assert status == 200, f"/feeds/{log} answers {status}"
        partitions = json.loads(body)["partitions"]
        return {
            partition["partition"]: walk_feed(connection, partition["links"]["current"])
            for partition in partitions
        }
    finally:
        connection.close()


def walk_feed(connection: http.client.HTTPConnection, current: str) -> list[WalkedEvent]:
    """All events of the feed whose subscription document is at the path `current`."""
    chain: list[Document] = []
    path: str | None = current
    while path is not None:
        document = read(connection, path)
        if document is None:
            assert not chain, f"{path} is linked to and has no content"
            return []
        chain.append(document)
        path = document.links.get("prev-archive")
        assert all(path != seen.path for seen in chain), f"prev-archive leads back to {path}"
    chain.reverse()
    for one, two in itertools.pairwise(chain):
        assert one.links["current"] == current, f"{one.path} names another current"
        following = one.links["next-archive"]
        if two.path == current:
            # The page that still grows is reached by a redirect, unless it was sealed just now.
            status, headers, _ = get(connection, following)
            assert status == 200 or (status, headers["location"]) == (302, current), following
        else:
            assert following == two.path, f"{one.path} is followed by {following}, not {two.path}"
    events = [event for document in chain for event in document.events]
    content_ids = {event.content_id for event in events}
    assert len(content_ids) == len(events), "a Content-ID occurs twice"
    return events


def read(connection: http.client.HTTPConnection, path: str) -> Document | None:
    """The document at `path`; None for 204, an empty feed."""
    status, headers, body = get(connection, path)
    if status == 204:
        return None
    assert status == 200, f"{path} answers {status}"
    boundary = headers["content-type"].partition("boundary=")[2].strip('"')
    links = {
        relation: target for target, relation in re.findall(r'<([^>]*)>; rel="([^"]*)"', headers["link"])
    }
    return Document(path, links, parts(body, boundary))


def parts(body: bytes, boundary: str) -> list[WalkedEvent]:
    """The events in a document, each part as long as its Content-Length says."""
    delimiter = b"--" + boundary.encode()
    events = []
    position = 0
    while True:
        assert body.startswith(delimiter, position), f"no delimiter at byte {position}"
        position += len(delimiter)
        if body.startswith(b"--", position):
            assert body[position:] == b"--\r\n", "something follows the closing delimiter"
            return events
        start = position + 2
        end = body.index(b"\r\n\r\n", start)
        fields: dict[str, str] = {}
        about = None
        for line in body[start:end].decode("ascii").split("\r\n"):
            name, _, value = line.partition(": ")
            if value.endswith('rel="about"'):
                about = value[1 : value.index(">")]
            fields[name] = value
        length = int(fields["Content-Length"])
        content = body[end + 4 : end + 4 + length]
        position = end + 4 + length
        assert body.startswith(b"\r\n", position), f"no line break at byte {position}"
        position += 2
        assert about is not None, f"no target at byte {start}"
        family, _, method = fields["Event-Type"].partition("=")
        assert family == "http-equiv", family
        events.append(
            WalkedEvent(fields["Content-ID"], about, method, fields.get("Content-Type"), bytes(content))
        )


def get(connection: http.client.HTTPConnection, path: str) -> tuple[int, dict[str, str], bytes]:
    """Status, headers with names in lower case, and body of one GET."""
    connection.request("GET", path)
    response = connection.getresponse()
    body = response.read()
    return response.status, {name.lower(): value for name, value in response.getheaders()}, body
