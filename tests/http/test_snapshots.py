"""Snapshots over HTTP: what caches may keep, ranges and conditions of parts on disk, what is not served."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import random
import socket
from collections.abc import Awaitable, Callable
from hashlib import sha256
from pathlib import Path

import pytest

from gateway.core.snapshots import INDEX, FeedPoint, read_index, read_part
from gateway.core.times import http_date
from gateway.http import snapshots
from gateway.storage.leases import LEASE_KEPT_S
from gateway.storage.snapshots import SnapshotFolder, remove_snapshot
from tests.http.test_app import Running, headers_of, served
from tests.snapshot_folder import add_snapshot, item

FIRST, SECOND = "2026-01-01T00:00:00.000Z", "2026-01-02T00:00:00.000Z"
BASE = "/snapshots/things"
IMMUTABLE = "public, max-age=31536000, immutable"
POINT = FeedPoint("0", 3, "/feeds/things/0/events/3", "<3.0@0.things.x>", "/feeds/things/0/archive/1")
PARTS = [
    ("0", [item("/a", b"one", ordinal=3), item("/b", b"two", ordinal=1)]),
    ("0", [item("/c", random.Random(1).randbytes(3 * snapshots.CHUNK_BYTES))]),
]


def snapshots_served(
    root: Path, scenario: Callable[[Running], Awaitable[None]], *ids: str, **limits: float
) -> None:
    """Run `scenario` with a server over the folder `root`, which has snapshots of those ids."""
    for id_ in ids:
        add_snapshot(root, "things", id_, PARTS, [POINT])

    async def with_snapshots(server):
        server.clock_s = 0.0
        server.log.snapshots = SnapshotFolder(root, "things", now_s=lambda: server.clock_s)
        await scenario(server)

    served(with_snapshots, **limits)


def is_problem(response, status: int) -> dict:
    assert response.status == status
    assert response.getheader("Content-Type") == "application/problem+json"
    assert response.getheader("Cache-Control") == "no-store"
    return json.loads(response.body)


def test_while_there_is_none_all_is_a_problem_that_says_how_to_make_one(tmp_path):
    async def scenario(server):
        for path in (BASE, f"{BASE}/latest"):
            assert "wes snapshot build" in is_problem(await server.ask(path), 404)["detail"]
        is_problem(await server.ask(f"{BASE}/{FIRST}"), 404)
        for path in ("", "/latest", f"/{FIRST}", f"/{FIRST}/0"):
            answer = is_problem(await server.ask(f"/snapshots/others{path}"), 404)
            assert answer["detail"] == "there is no log 'others'; the logs here are: things"

    snapshots_served(tmp_path, scenario)


def test_a_log_whose_snapshots_are_not_served_has_none():
    async def scenario(server):
        is_problem(await server.ask(BASE), 404)
        is_problem(await server.ask(f"{BASE}/latest"), 404)

    served(scenario)


def test_the_retained_snapshots_are_listed_newest_first(tmp_path):
    async def scenario(server):
        response = await server.ask(BASE)
        assert response.status == 200
        content = json.loads(response.body)
        assert content["log"] == "things"
        assert [entry["id"] for entry in content["snapshots"]] == [SECOND, FIRST]
        for entry in content["snapshots"]:
            index = json.loads((await server.ask(entry.pop("href"))).body)
            assert entry == {name: index[name] for name in entry}
            assert set(entry) == {"id", "started", "completed", "entities", "digest", "feeds"}
        assert response.getheader("Cache-Control") == "no-cache"
        assert response.getheader("Link") == f'<{BASE}/latest>; rel="latest-version"'
        again = await server.ask(BASE, If_None_Match=response.getheader("ETag"))
        assert (again.status, again.body) == (304, b"")
        add_snapshot(tmp_path, "things", "2026-01-03T00:00:00.000Z", PARTS, [POINT])
        changed = await server.ask(BASE, If_None_Match=response.getheader("ETag"))
        assert changed.status == 200
        assert len(json.loads(changed.body)["snapshots"]) == 3

    snapshots_served(tmp_path, scenario, FIRST, SECOND)


def test_the_newest_index_comes_with_its_own_address_and_must_be_asked_for_again(tmp_path):
    async def scenario(server):
        response = await server.ask(f"{BASE}/latest")
        assert response.status == 200
        assert response.body == (tmp_path / "things" / FIRST / INDEX).read_bytes()
        assert response.getheader("Content-Location") == f"{BASE}/{FIRST}"
        assert response.getheader("Cache-Control") == "no-cache"
        assert response.getheader("Accept-Ranges") is None
        etag = response.getheader("ETag")
        same = await server.ask(f"{BASE}/latest", If_None_Match=etag)
        assert (same.status, same.body) == (304, b"")
        for name in ("ETag", "Cache-Control", "Content-Location", "Vary"):
            assert same.getheader(name) == response.getheader(name)
        dated = await server.ask(f"{BASE}/latest", If_Modified_Since=response.getheader("Last-Modified"))
        assert dated.status == 200, "a date cannot tell two snapshots of one second apart"
        add_snapshot(tmp_path, "things", SECOND, PARTS, [POINT])
        newer = await server.ask(f"{BASE}/latest", If_None_Match=etag)
        assert (newer.status, newer.getheader("Content-Location")) == (200, f"{BASE}/{SECOND}")
        assert read_index(newer.body).id == SECOND
        head = await server.ask(f"{BASE}/latest", "HEAD")
        assert (headers_of(head), head.body) == (headers_of(newer), b"")

    snapshots_served(tmp_path, scenario, FIRST)


def test_an_index_is_the_file_as_it_is_and_never_changes(tmp_path):
    async def scenario(server):
        document = (tmp_path / "things" / FIRST / INDEX).read_bytes()
        before = await server.ask(f"{BASE}/{FIRST}")
        add_snapshot(tmp_path, "things", SECOND, PARTS, [POINT])
        after = await server.ask(f"{BASE}/{FIRST}")
        assert (before.status, before.body, headers_of(before)) == (200, document, headers_of(after))
        assert headers_of(after) == {
            "Content-Type": "application/json",
            "Content-Length": str(len(document)),
            "Link": f'<{BASE}>; rel="collection", <{BASE}/latest>; rel="latest-version"',
            "Cache-Control": IMMUTABLE,
            "ETag": f'"{sha256(document).hexdigest()}"',
            "Vary": "Accept",
            "Last-Modified": http_date(read_index(document).completed),
            "Accept-Ranges": "bytes",
            "Server": after.getheader("Server"),
        }
        assert (await server.ask(f"{BASE}/{FIRST}", Range="bytes=0-9")).body == document[:10]

    snapshots_served(tmp_path, scenario, FIRST)


def test_a_part_is_the_file_as_it_is_with_its_hash_for_an_etag(tmp_path):
    async def scenario(server):
        index = read_index((await server.ask(f"{BASE}/latest")).body)
        for part, (_, items) in zip(index.parts, PARTS, strict=True):
            response = await server.ask(part.uri)
            assert response.status == 200
            assert headers_of(response) == {
                "Content-Type": part.content_type,
                "Content-Length": str(part.size),
                "Link": f'<{BASE}/{FIRST}>; rel="index"',
                "Cache-Control": IMMUTABLE,
                "ETag": f'"{sha256(response.body).hexdigest()}"',
                "Vary": "Accept",
                "Accept-Ranges": "bytes",
                "Server": response.getheader("Server"),
            }
            assert response.getheader("Content-Type").startswith("multipart/package; boundary=")
            assert list(read_part(part.boundary, response.body)) == items
            head = await server.ask(part.uri, "HEAD")
            assert (head.status, head.body, headers_of(head)) == (200, b"", headers_of(response))

    snapshots_served(tmp_path, scenario, FIRST)


def test_ranges_of_a_part_are_those_bytes_of_it(tmp_path):
    async def scenario(server):
        path = f"{BASE}/{FIRST}/1"
        whole = (await server.ask(path)).body
        size = len(whole)
        chunk = snapshots.CHUNK_BYTES
        for wanted, expected in (
            ("0-0", (0, 1)),
            (f"{chunk - 1}-{chunk}", (chunk - 1, chunk + 1)),
            ("100-", (100, size)),
            ("-7", (size - 7, size)),
            (f"-{size * 2}", (0, size)),
            (f"{size - 1}-{size * 9}", (size - 1, size)),
        ):
            response = await server.ask(path, Range=f"bytes={wanted}")
            first, end = expected
            assert (response.status, response.body) == (206, whole[first:end]), wanted
            assert response.getheader("Content-Range") == f"bytes {first}-{end - 1}/{size}"
            assert response.getheader("Content-Length") == str(end - first)
        for wanted in ("bytes=0-1,3-4", "lines=1-2", "bytes=5-1", "bytes=-", "bytes"):
            response = await server.ask(path, Range=wanted)
            assert (response.status, response.body) == (200, whole), wanted
        head = await server.ask(path, "HEAD", Range="bytes=0-1")
        assert (head.status, head.getheader("Content-Length")) == (200, str(size))

    snapshots_served(tmp_path, scenario, FIRST)


def test_a_range_beyond_the_end_is_416_with_the_length(tmp_path):
    async def scenario(server):
        size = read_index((await server.ask(f"{BASE}/latest")).body).parts[0].size
        for wanted in (f"bytes={size}-", "bytes=-0", f"bytes={'9' * 200}-"):
            response = await server.ask(f"{BASE}/{FIRST}/0", Range=wanted)
            is_problem(response, 416)
            assert response.getheader("Content-Range") == f"bytes */{size}"

    snapshots_served(tmp_path, scenario, FIRST)


def test_a_range_is_given_only_of_the_part_that_was_begun(tmp_path):
    async def scenario(server):
        path = f"{BASE}/{FIRST}/0"
        etag = (await server.ask(path, "HEAD")).getheader("ETag")
        begun = await server.ask(path, Range="bytes=3-", If_Range=etag)
        assert begun.status == 206
        for other in ('"another"', f"W/{etag}", "Thu, 01 Jan 2026 00:00:00 GMT"):
            assert (await server.ask(path, Range="bytes=3-", If_Range=other)).status == 200

    snapshots_served(tmp_path, scenario, FIRST)


def test_conditions_on_a_part_are_decided_by_its_etag(tmp_path):
    async def scenario(server):
        path = f"{BASE}/{FIRST}/0"
        etag = (await server.ask(path, "HEAD")).getheader("ETag")
        for method in ("GET", "HEAD"):
            same = await server.ask(path, method, If_None_Match=f'"x", W/{etag}')
            assert (same.status, same.body, same.getheader("ETag")) == (304, b"", etag)
            assert same.getheader("Cache-Control") == IMMUTABLE
        assert (await server.ask(path, If_None_Match='"x"')).status == 200
        is_problem(await server.ask(path, If_Match='"x"'), 412)
        assert (await server.ask(path, If_Match=etag)).status == 200

    snapshots_served(tmp_path, scenario, FIRST)


@pytest.mark.parametrize(
    ("path", "media_type"),
    [
        (BASE, "application/json"),
        (f"{BASE}/latest", "application/json"),
        (f"{BASE}/{FIRST}", "application/json"),
        (f"{BASE}/{FIRST}/0", "multipart/package"),
    ],
)
def test_each_has_one_media_type_and_anything_else_is_not_acceptable(tmp_path, path, media_type):
    async def scenario(server):
        main = media_type.partition("/")[0]
        for accepted in (media_type, f"{main}/*", "*/*", f"text/html, {media_type};q=0.1"):
            response = await server.ask(path, Accept=accepted)
            assert response.status == 200
            assert response.getheader("Vary") == "Accept"
        for refused in ("text/html", "multipart/mixed", f"{media_type};q=0"):
            response = await server.ask(path, Accept=refused)
            assert media_type in is_problem(response, 406)["detail"]
            assert response.getheader("Vary") == "Accept"

    snapshots_served(tmp_path, scenario, FIRST)


def test_a_removed_or_unknown_snapshot_is_never_cacheable_and_leads_to_the_newest(tmp_path):
    async def scenario(server):
        assert (await server.ask(f"{BASE}/{FIRST}/0")).status == 200
        server.clock_s += LEASE_KEPT_S
        server.log.snapshots.leases.end_idle()
        assert remove_snapshot(tmp_path / "things" / FIRST)
        for path in (FIRST, f"{FIRST}/0", "2020-01-01T00:00:00.000Z", "nonsense", "nonsense/0"):
            response = await server.ask(f"{BASE}/{path}")
            is_problem(response, 404)
            assert response.getheader("Link") == f'<{BASE}/latest>; rel="latest-version"'

    snapshots_served(tmp_path, scenario, FIRST, SECOND)


@pytest.mark.parametrize(
    "path",
    [
        f"{FIRST}/2",
        f"{FIRST}/00",
        f"{FIRST}/-1",
        f"{FIRST}/+1",
        f"{FIRST}/1e0",
        f"{FIRST}/{'9' * 15}",
        f"{FIRST}/{'9' * 4000}",
        f"{FIRST}/%D9%A1",
        f"{FIRST}/{INDEX}",
        f"{FIRST}/0/",
        f"{FIRST}/",
        f"{FIRST}/0/0",
        f"{FIRST}/..",
        f"{FIRST}/../{FIRST}/index.json",
        f"{FIRST}/..%2f..%2fsecret",
        f"{FIRST}/%2e%2e/secret",
        "../secret",
        "..%2fsecret",
        "%2e%2e/secret",
        "%2e%2e%2fsecret/0",
        "%2e/0",
        "staging",
        f"staging/{FIRST}",
        f"delta%2f{FIRST}/0",
        f"{FIRST}%00/0",
        f"{FIRST}%2f0",
        f"{FIRST}\\0",
        "status.json",
        "",
    ],
)
def test_nothing_but_snapshots_can_be_read_whatever_the_path(tmp_path, path):
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "things").mkdir()
    (tmp_path / "things" / "status.json").write_bytes(b"secret")

    async def scenario(server):
        is_problem(await asyncio.to_thread(_raw, server.port, f"{BASE}/{path}"), 404)

    snapshots_served(tmp_path, scenario, FIRST)


def _raw(port: int, path: str) -> http.client.HTTPResponse:
    """The answer to a GET of exactly that path, which no client library has tidied up."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        response = http.client.HTTPResponse(connection)
        response.begin()
        response.body = response.read()
        return response


def test_an_escaped_id_is_the_same_id(tmp_path):
    async def scenario(server):
        plain = await server.ask(f"{BASE}/{FIRST}/0")
        escaped = await server.ask(f"{BASE}/{FIRST.replace(':', '%3A')}/0")
        assert (escaped.status, escaped.body) == (200, plain.body)

    snapshots_served(tmp_path, scenario, FIRST)


def test_snapshots_are_only_read(tmp_path):
    async def scenario(server):
        for method in ("PUT", "POST", "DELETE", "PATCH"):
            for path in (BASE, f"{BASE}/latest", f"{BASE}/{FIRST}", f"{BASE}/{FIRST}/0"):
                response = await server.ask(path, method, b"")
                is_problem(response, 405)
                assert response.getheader("Allow") == "GET, HEAD, OPTIONS"

    snapshots_served(tmp_path, scenario, FIRST)


def test_a_part_of_another_size_than_the_index_says_is_not_served(tmp_path, caplog):
    async def scenario(server):
        path = tmp_path / "things" / SECOND / "1"
        os.truncate(path, path.stat().st_size - 1)
        for method in ("GET", "HEAD"):
            response = await server.ask(f"{BASE}/{SECOND}/1", method)
            assert (response.status, response.getheader("Cache-Control")) == (503, "no-store")
        detail = is_problem(await server.ask(f"{BASE}/{SECOND}/1", Range="bytes=0-1"), 503)["detail"]
        assert f"{BASE}/{SECOND}/1" in detail
        assert str(tmp_path) not in detail
        assert [record.message for record in caplog.records] == ["snapshot_not_served"] * 3
        assert (await server.ask(f"{BASE}/{SECOND}/0")).status == 200
        assert (await server.ask(f"{BASE}/{FIRST}/1")).status == 200

    snapshots_served(tmp_path, scenario, FIRST, SECOND)


def test_a_snapshot_with_a_damaged_index_does_not_hide_the_one_before_it(tmp_path):
    async def scenario(server):
        (tmp_path / "things" / SECOND / INDEX).write_bytes(b"{")
        response = await server.ask(f"{BASE}/latest")
        assert (response.status, response.getheader("Content-Location")) == (200, f"{BASE}/{FIRST}")
        is_problem(await server.ask(f"{BASE}/{SECOND}"), 404)
        is_problem(await server.ask(f"{BASE}/{SECOND}/0"), 404)
        assert [entry["id"] for entry in json.loads((await server.ask(BASE)).body)["snapshots"]] == [FIRST]

    snapshots_served(tmp_path, scenario, FIRST, SECOND)


def large(root: Path, id_: str, size: int) -> None:
    add_snapshot(root, "things", id_, [("0", [item("/large", random.Random(2).randbytes(size))])])


def test_a_snapshot_that_is_being_read_outlives_the_wish_to_remove_it(tmp_path):
    large(tmp_path, FIRST, 24 * 1024 * 1024)
    whole = (tmp_path / "things" / FIRST / "0").read_bytes()
    received = bytearray()

    async def scenario(server):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=2**16)
        writer.write(f"GET {BASE}/{FIRST}/0 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        await reader.readuntil(b"\r\n\r\n")
        add_snapshot(tmp_path, "things", SECOND, PARTS, [POINT])
        server.clock_s += 10 * LEASE_KEPT_S
        server.log.snapshots.leases.end_idle()
        assert not remove_snapshot(tmp_path / "things" / FIRST)
        while chunk := await reader.read(2**20):
            received.extend(chunk)
        assert received == whole
        writer.close()
        # The server may notice a little later that all is sent.
        await asyncio.sleep(0.1)
        assert not remove_snapshot(tmp_path / "things" / FIRST), "its reader may come back"
        server.clock_s += LEASE_KEPT_S
        server.log.snapshots.leases.end_idle()
        assert remove_snapshot(tmp_path / "things" / FIRST)
        is_problem(await server.ask(f"{BASE}/{FIRST}/0"), 404)

    snapshots_served(tmp_path, scenario)


def test_leases_end_by_themselves_when_nobody_asks_any_more(tmp_path, monkeypatch):
    monkeypatch.setattr(snapshots, "LEASE_SWEEP_S", 0.01)

    async def scenario(server):
        assert (await server.ask(f"{BASE}/latest")).status == 200
        assert not remove_snapshot(tmp_path / "things" / FIRST)
        server.clock_s += LEASE_KEPT_S
        async with asyncio.timeout(10):
            while not remove_snapshot(tmp_path / "things" / FIRST):  # noqa: ASYNC110 - it polls, as retention
                await asyncio.sleep(0.01)

    snapshots_served(tmp_path, scenario, FIRST)


def test_a_server_that_has_stopped_holds_no_snapshot(tmp_path):
    async def scenario(server):
        assert (await server.ask(f"{BASE}/{FIRST}/0")).status == 200
        assert not remove_snapshot(tmp_path / "things" / FIRST)

    snapshots_served(tmp_path, scenario, FIRST)
    assert remove_snapshot(tmp_path / "things" / FIRST)


def test_a_client_that_leaves_within_a_part_leaves_nothing_behind(tmp_path):
    large(tmp_path, FIRST, 24 * 1024 * 1024)

    async def scenario(server):
        before = descriptors()
        for _ in range(5):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(f"GET {BASE}/{FIRST}/0 HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            await reader.readexactly(1000)
            writer.transport.abort()
        async with asyncio.timeout(10):
            # One is the lease, which goes on for a while.
            while descriptors() > before + 1:  # noqa: ASYNC110 - the server has no event for that
                await asyncio.sleep(0.01)
        server.clock_s += LEASE_KEPT_S
        server.log.snapshots.leases.end_idle()
        assert remove_snapshot(tmp_path / "things" / FIRST)

    snapshots_served(tmp_path, scenario)


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_a_part_that_is_cut_short_while_it_is_sent_ends_the_connection(tmp_path, caplog):
    large(tmp_path, FIRST, 24 * 1024 * 1024)
    size = (tmp_path / "things" / FIRST / "0").stat().st_size

    async def scenario(server):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=2**16)
        writer.write(f"GET {BASE}/{FIRST}/0 HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        assert f"Content-Length: {size}\r\n".encode() in head
        os.truncate(tmp_path / "things" / FIRST / "0", size // 2)
        received = 0
        while chunk := await reader.read(2**20):
            received += len(chunk)
        assert received == size // 2
        writer.close()
        assert "snapshot_part_broke_off" in [record.message for record in caplog.records]

    snapshots_served(tmp_path, scenario)


def test_many_read_at_once_and_each_gets_all(tmp_path):
    large(tmp_path, FIRST, 3 * 1024 * 1024)
    whole = (tmp_path / "things" / FIRST / "0").read_bytes()

    async def scenario(server):
        async def read():
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(f"GET {BASE}/{FIRST}/0 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            answer = await reader.read(-1)
            writer.close()
            return answer.partition(b"\r\n\r\n")[2]

        assert all(body == whole for body in await asyncio.gather(*(read() for _ in range(20))))

    snapshots_served(tmp_path, scenario)


def test_the_log_and_service_documents_lead_to_the_snapshots_and_do_not_change_with_them(tmp_path):
    async def scenario(server):
        before = [await server.ask("/"), await server.ask("/feeds/things")]
        assert json.loads(before[0].body)["logs"][0]["snapshots"] == BASE
        assert json.loads(before[1].body)["snapshots"] == BASE
        add_snapshot(tmp_path, "things", FIRST, PARTS, [POINT])
        after = [await server.ask("/"), await server.ask("/feeds/things")]
        for one, two in zip(before, after, strict=True):
            assert (one.body, headers_of(one)) == (two.body, headers_of(two))
        assert (await server.ask(BASE)).status == 200

    snapshots_served(tmp_path, scenario)
