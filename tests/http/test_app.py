"""The web server over a feed in memory: caching, conditions, and what a publisher's answers become."""

from __future__ import annotations

import asyncio
import gzip
import http.client
import json
import time
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from aiohttp import web

from gateway.core.errors import LogUnavailable, MessageRefused, OutcomeUnknown
from gateway.core.event import Event, Method
from gateway.core.identity import ContentID
from gateway.core.multipart import boundary_of, read_parts
from gateway.core.pages import Paginator
from gateway.core.times import parse_http_date
from gateway.http.app import make_app
from gateway.http.connection import LimitedRunner
from gateway.http.documents import DocumentCache
from gateway.http.live import POLL_S, LiveFeed, LiveLog, Site
from gateway.http.settings import HttpSettings
from gateway.storage.memory import MemoryFeed
from tests.feeds import batch_of, settings

IDENTITY = ContentID(7, "0" * 16, "0", "things", "example.org")


@dataclass
class FakePublisher:
    """Answers as it is told to, and remembers what it was given."""

    answer: ContentID | Exception | None = IDENTITY
    given: list[tuple[Event, bool]] = field(default_factory=list)

    async def publish(self, event, *, wait):
        self.given.append((event, wait))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class Ready:
    def __init__(self) -> None:
        self.reasons: list[str] = []

    def problems(self):
        return self.reasons


class Running:
    """An application on a real socket; `ask` sends one request and returns what came."""

    def __init__(self, limits: HttpSettings) -> None:
        self.feed = MemoryFeed(settings())
        self.publisher = FakePublisher()
        self.readiness = Ready()
        self.site = Site(self.readiness, DocumentCache(limits.page_cache_bytes_max))
        self.log = LiveLog("things", "/", self.publisher, ("traceparent",))
        self.site.logs["things"] = self.log
        self.live = self.site.add_feed(self.log, self.feed)
        self.port = 0

    def fill(self, numbers: range) -> None:
        head = self.feed.head
        self.feed.append(batch_of(Paginator(self.feed.settings, head.page, head.data), numbers))
        self.live.changed()

    async def ask(self, path, method="GET", body=None, **headers):
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        return await asyncio.to_thread(self._ask, path, method, body, names)

    def _ask(self, path, method, body, headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            response.body = response.read()
            return response
        finally:
            connection.close()


@asynccontextmanager
async def running(limits: HttpSettings):
    server = Running(limits)
    runner = LimitedRunner(make_app(server.site, limits))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.port = runner.addresses[0][1]
    try:
        yield server
    finally:
        await runner.cleanup()


def served(scenario: Callable[[Running], Awaitable[None]], **limits) -> None:
    async def main():
        async with running(HttpSettings(**limits)) as server:
            await scenario(server)

    asyncio.run(main())


async def somebody_waits(server: Running) -> None:
    while not server.live._waiters:  # noqa: ASYNC110 - the server has no event for that
        await asyncio.sleep(0.001)


LATEST, ARCHIVE = "/feeds/things/0/latest", "/feeds/things/0/archive/"


def headers_of(response) -> dict[str, str]:
    return {name: value for name, value in response.getheaders() if name != "Date"}


def test_a_sealed_documents_bytes_and_headers_are_the_same_for_ever():
    async def scenario(server):
        server.fill(range(4))
        before = await server.ask(ARCHIVE + "0")
        server.fill(range(4, 40))
        after = await server.ask(ARCHIVE + "0")
        assert (before.body, headers_of(before)) == (after.body, headers_of(after))
        assert after.getheader("Cache-Control") == "public, max-age=31536000, immutable"
        assert after.getheader("ETag") == f'"{server.feed.page(0).sha256}"'
        assert len(read_parts(boundary_of(after.getheader("Content-Type")), after.body)) == 3

    served(scenario)


def test_the_subscription_document_grows_and_its_etag_with_it():
    async def scenario(server):
        assert (await server.ask(LATEST)).status == 204
        seen = set()
        for number in range(8):
            server.fill(range(number, number + 1))
            response = await server.ask(LATEST)
            parts = read_parts(boundary_of(response.getheader("Content-Type")), response.body)
            assert parts[-1].about == f"/things/{number}"
            assert len(parts) == number % 3 + 1
            seen.add(response.getheader("ETag"))
            again = await server.ask(LATEST, If_None_Match=response.getheader("ETag"))
            assert (again.status, again.body) == (304, b"")
            assert again.getheader("Vary") == "Accept"
        assert len(seen) == 8

    served(scenario)


def test_a_date_never_hides_an_event_of_the_same_second():
    async def scenario(server):
        server.fill(range(1))
        first = await server.ask(LATEST)
        server.fill(range(1, 2))
        response = await server.ask(LATEST, If_Modified_Since=first.getheader("Last-Modified"))
        assert response.status == 200
        later = "Fri, 31 Dec 2100 00:00:00 GMT"
        assert (await server.ask(LATEST, If_Modified_Since=later)).status == 200
        server.fill(range(2, 5))
        assert (await server.ask(ARCHIVE + "0", If_Modified_Since=later)).status == 304

    served(scenario)


@pytest.mark.parametrize(
    "path",
    [
        ARCHIVE + "9",
        ARCHIVE + "x",
        ARCHIVE + "00",
        ARCHIVE + "-1",
        ARCHIVE + "9" * 30,
        ARCHIVE + "1/",
        "/feeds/things/0/events/4",
        "/feeds/things/0/events/04",
        "/feeds/things/0/events/" + "9" * 30,
        "/feeds/things/9/latest",
        "/feeds/nothing/0/latest",
        "/feeds/nothing",
        "/feeds",
        "/nothing/here",
        "/metrics",
    ],
)
def test_what_is_not_there_is_a_problem_and_never_cacheable(path):
    async def scenario(server):
        server.fill(range(4))
        response = await server.ask(path)
        assert response.status == 404
        assert response.getheader("Cache-Control") == "no-store"
        assert response.getheader("Content-Type") == "application/problem+json"
        problem = json.loads(response.body)
        assert problem["status"] == 404
        assert problem["detail"]

    served(scenario)


def test_redirects_are_permanent_only_to_sealed_documents():
    async def scenario(server):
        server.fill(range(3))
        entry = await server.ask("/feeds/things/0/events/1")
        generation = server.feed.head.page.generation
        assert (entry.status, entry.getheader("Location")) == (302, f"{LATEST}#1.{generation}")
        assert entry.getheader("Cache-Control") == "no-store"
        opened = await server.ask(ARCHIVE + "0")
        assert (opened.status, opened.getheader("Location")) == (302, LATEST)
        assert opened.getheader("Cache-Control") == "no-store"
        server.fill(range(3, 4))
        entry = await server.ask("/feeds/things/0/events/1")
        assert (entry.status, entry.getheader("Location")) == (301, f"{ARCHIVE}0#1.{generation}")
        assert (await server.ask(ARCHIVE + "0")).status == 200

    served(scenario)


def test_since_leads_to_the_document_with_the_first_event_at_or_after_a_time():
    async def scenario(server):
        server.fill(range(8))
        base = "/feeds/things/0?since="
        for since, location in [
            ("2000-01-01T00:00:00Z", ARCHIVE + "0"),
            ("2023-11-14T22:13:22Z", ARCHIVE + "0"),
            ("2023-11-14T22:13:23Z", ARCHIVE + "1"),
            ("2023-11-14T23:13:23%2B01:00", ARCHIVE + "1"),
            ("2023-11-14T22:13:26Z", LATEST),
            ("2100-01-01T00:00:00Z", LATEST),
        ]:
            response = await server.ask(base + since)
            assert (response.status, response.getheader("Location")) == (302, location)
            assert response.getheader("Cache-Control") == "no-store"
        for bad in ("yesterday", "", "2023-11-14", "9" * 40):
            assert (await server.ask(base + bad)).status == 400
        assert (await server.ask("/feeds/things/0")).getheader("Location") == LATEST

    served(scenario)


def test_only_new_entries_are_sent_to_who_asks_for_them_and_knows_the_page():
    async def scenario(server):
        server.fill(range(2))
        first = await server.ask(LATEST)
        etag = first.getheader("ETag")
        server.fill(range(2, 3))
        news = await server.ask(LATEST, If_None_Match=etag, A_IM="feed")
        assert (news.status, news.getheader("IM")) == (226, "feed")
        assert news.getheader("Cache-Control") == "no-store"
        parts = read_parts(boundary_of(news.getheader("Content-Type")), news.body)
        assert [part.about for part in parts] == ["/things/2"]
        same = await server.ask(LATEST, If_None_Match=news.getheader("ETag"), A_IM="feed")
        assert same.status == 304
        for unknown in ('"x"', '"99.0000000000000000"', f'"0.{"0" * 16}"', "*"):
            assert (await server.ask(LATEST, If_None_Match=unknown, A_IM="feed")).status in (200, 304)
        server.fill(range(3, 4))
        turned = await server.ask(LATEST, If_None_Match=etag, A_IM="feed")
        assert turned.status == 200, "what is missing is in the archive document before this one"
        assert (await server.ask(LATEST, A_IM="feed")).status == 200
        assert (await server.ask(LATEST, If_None_Match=etag, A_IM="vcdiff")).status == 200

    served(scenario)


def test_a_wait_ends_with_a_change_with_the_time_and_with_the_server():
    async def scenario(server):
        server.fill(range(1))
        etag = server.feed.head.page.etag
        waiting = asyncio.create_task(server.ask(LATEST, If_None_Match=etag, Prefer="wait=10"))
        await somebody_waits(server)
        server.fill(range(1, 2))
        response = await waiting
        assert (response.status, response.getheader("Preference-Applied")) == (200, "wait=2")
        etag = response.getheader("ETag")
        granted = await server.ask(LATEST, If_None_Match=etag, Prefer="respond-async, wait=1000")
        assert (granted.status, granted.getheader("Preference-Applied")) == (304, "wait=2")
        assert (await server.ask(LATEST, Prefer="wait=10")).status == 200
        waiting = asyncio.create_task(server.ask(LATEST, If_None_Match=etag, Prefer="wait=2"))
        await somebody_waits(server)
        server.site.drain()
        assert (await waiting).status == 304
        assert (await server.ask("/readyz")).status == 503

    served(scenario, wait_max_s=2)


def test_a_shared_feed_is_looked_at_only_while_somebody_waits():
    async def scenario():
        class Counting(MemoryFeed):
            looks = 0

            def refresh(self):
                self.looks += 1
                return False

        reader = Counting(settings())
        feed = LiveFeed(reader, DocumentCache(0), shared=True)
        await feed.wait(reader.head, 5 * POLL_S)
        assert reader.looks >= 3
        waiting = asyncio.create_task(feed.wait(reader.head, 10))
        await asyncio.sleep(2 * POLL_S)
        feed.changed()
        await waiting
        looks = reader.looks
        await asyncio.sleep(3 * POLL_S)
        assert reader.looks == looks

    asyncio.run(scenario())


def test_ranges_are_for_sealed_documents():
    async def scenario(server):
        server.fill(range(5))
        whole = await server.ask(ARCHIVE + "0")
        etag = whole.getheader("ETag")
        part = await server.ask(ARCHIVE + "0", Range="bytes=2-9")
        assert (part.status, part.body) == (206, whole.body[2:10])
        assert part.getheader("Content-Range") == f"bytes 2-9/{len(whole.body)}"
        assert (await server.ask(ARCHIVE + "0", Range="bytes=0-1,4-5")).body == whole.body
        assert (await server.ask(ARCHIVE + "0", Range="bytes=0-1", If_Range='"x"')).body == whole.body
        assert (await server.ask(ARCHIVE + "0", Range="bytes=0-1", If_Range=etag)).status == 206
        beyond = await server.ask(ARCHIVE + "0", Range=f"bytes={len(whole.body)}-")
        assert (beyond.status, beyond.getheader("Content-Range")) == (416, f"bytes */{len(whole.body)}")
        assert (await server.ask(LATEST, Range="bytes=0-1")).status == 200
        assert whole.getheader("Accept-Ranges") == "bytes"
        assert (await server.ask(ARCHIVE + "0", "HEAD", Range="bytes=0-1")).status == 200

    served(scenario)


def test_head_tells_what_get_would():
    async def scenario(server):
        server.fill(range(5))
        for path in (LATEST, ARCHIVE + "0", "/", "/feeds/things", "/feeds/things/0/events/1"):
            get, head = await server.ask(path), await server.ask(path, "HEAD")
            assert (head.status, headers_of(head), head.body) == (get.status, headers_of(get), b"")

    served(scenario)


def test_every_negotiated_answer_varies_by_accept():
    async def scenario(server):
        for path in (LATEST, LATEST, ARCHIVE + "0"):
            refused = await server.ask(path, Accept="text/html")
            assert refused.status == (406 if path == LATEST or server.feed.head.page else 302)
            if refused.status == 406:
                assert refused.getheader("Vary") == "Accept"
            server.fill(range(server.feed.head.next_ordinal, server.feed.head.next_ordinal + 3))
        assert (await server.ask(LATEST, Accept="text/html, */*;q=0.1")).getheader("Vary") == "Accept"

    served(scenario)


def test_the_log_document_tells_how_far_each_partition_has_come():
    async def scenario(server):
        empty = json.loads((await server.ask("/feeds/things")).body)
        assert empty["position"] == {"0": None}
        assert empty["partitions"][0]["links"] == {"current": LATEST}
        server.fill(range(5))
        response = await server.ask("/feeds/things")
        document = json.loads(response.body)
        assert document["position"] == {"0": 4}
        (partition,) = document["partitions"]
        assert (partition["first"], partition["last"], partition["events"]) == (0, 4, 5)
        assert partition["generation"] == server.feed.head.page.generation
        assert partition["links"] == {"current": LATEST, "first": ARCHIVE + "0", "last": ARCHIVE + "1"}
        etag = response.getheader("ETag")
        assert (await server.ask("/feeds/things", If_None_Match=etag)).status == 304
        service = json.loads((await server.ask("/")).body)
        assert service["logs"][0]["href"] == "/feeds/things"

    served(scenario)


@pytest.mark.parametrize(("method", "status"), [("PUT", 201), ("POST", 201), ("PATCH", 204), ("DELETE", 204)])
def test_a_publication_is_answered_with_the_headers_of_its_entry(method, status):
    async def scenario(server):
        body = None if method == "DELETE" else b"{}"
        response = await server.ask(
            "/a%20b?c", method, body, Content_Type="application/json", traceparent="00-1"
        )
        assert response.status == status
        assert response.getheader("Content-ID") == "<7.0000000000000000@0.things.example.org>"
        assert response.getheader("Link") == '</a%20b?c>; rel="about", </feeds/things/0/events/7>; rel="self"'
        assert response.getheader("Event-Type") == f"http-equiv={method}"
        assert response.getheader("Location") == ("/feeds/things/0/events/7" if status == 201 else None)
        ((event, wait),) = server.publisher.given
        content_type = None if method == "DELETE" else "application/json"
        extras = (("traceparent", "00-1"),)
        assert event == Event(Method(method), "/a%20b?c", content_type, body or b"", None, extras)
        assert wait

    served(scenario)


@pytest.mark.parametrize(
    ("version", "connection", "kept", "said"),
    [
        ("1.1", None, True, None),
        ("1.1", "keep-alive", True, None),
        ("1.1", "close", False, "close"),
        ("1.0", None, False, None),
        ("1.0", "keep-alive", True, "keep-alive"),
    ],
)
@pytest.mark.parametrize(("method", "status"), [("PUT", "201 Created"), ("DELETE", "204 No Content")])
def test_every_version_of_http_gets_the_same_answer_to_a_publication(
    method, status, version, connection, kept, said
):
    async def scenario(server):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        line = "" if connection is None else f"Connection: {connection}\r\n"
        request = f"{method} /a HTTP/{version}\r\nHost: x\r\n{line}Content-Length: 0\r\n\r\n".encode()
        for _ in range(3 if kept else 1):
            writer.write(request)
            head = (await reader.readuntil(b"\r\n\r\n")).decode("ascii")
            first, *lines = head.removesuffix("\r\n\r\n").split("\r\n")
            headers = dict(line.split(": ", 1) for line in lines)
            assert first == f"HTTP/{version} {status}"
            assert len(headers) == len(lines)
            assert abs(parse_http_date(headers.pop("Date")) / 1000 - time.time()) < 5
            assert "aiohttp" in headers.pop("Server")
            expected = {
                "Content-ID": "<7.0000000000000000@0.things.example.org>",
                "Link": '</a>; rel="about", </feeds/things/0/events/7>; rel="self"',
                "Event-Type": f"http-equiv={method}",
                "Cache-Control": "no-store",
            }
            if method == "PUT":
                expected |= {"Location": "/feeds/things/0/events/7", "Content-Length": "0"}
            assert headers == (expected if said is None else expected | {"Connection": said})
        if not kept:
            assert await reader.read() == b""
        writer.close()

    served(scenario)


@pytest.mark.parametrize(
    ("answer", "status", "retry_after"),
    [
        (LogUnavailable("nothing was published: away"), 503, "1"),
        (OutcomeUnknown("look into the feed"), 504, None),
        (MessageRefused("too large"), 422, None),
        (None, 202, None),
    ],
)
def test_what_the_log_says_reaches_the_writer(answer, status, retry_after):
    async def scenario(server):
        server.publisher.answer = answer
        response = await server.ask("/a", "PUT", b"x")
        assert (response.status, response.getheader("Retry-After")) == (status, retry_after)
        assert response.getheader("Cache-Control") == "no-store"
        if isinstance(answer, Exception):
            assert json.loads(response.body)["detail"] == str(answer)

    served(scenario)


def test_a_writer_who_does_not_wait_gets_202():
    async def scenario(server):
        server.publisher.answer = None
        response = await server.ask("/a", "PUT", b"x", Prefer="respond-async")
        assert (response.status, response.getheader("Preference-Applied")) == (202, "respond-async")
        assert server.publisher.given[0][1] is False

    served(scenario)


@pytest.mark.parametrize(
    ("path", "method", "body", "headers", "status"),
    [
        ("/feeds/things", "PUT", b"", {}, 405),
        ("/", "POST", b"", {}, 405),
        ("/livez", "DELETE", None, {}, 405),
        ("/a#b", "PUT", b"", {}, 400),
        ("//a", "PUT", b"", {}, 400),
        ("/a/../b", "PUT", b"", {}, 400),
        ("/a%", "PUT", b"", {}, 400),
        ("/" + "a" * 5000, "PUT", b"", {}, 400),
        ("/a", "PUT", b"x", {"Content_Type": "nonsense"}, 400),
        ("/a", "DELETE", b"x", {}, 400),
        ("/a", "PUT", b"x" * 1001, {}, 413),
        ("/" + "a" * 9000, "PUT", b"", {}, 400),
        ("/a", "PUT", b"", {f"X_{number}": "x" for number in range(200)}, 400),
        ("/a", "BREW", b"", {}, 400),
        ("/a", "PROPFIND", b"", {}, 405),
    ],
)
def test_what_cannot_be_published_says_why_and_nothing_is_sent(path, method, body, headers, status):
    async def scenario(server):
        response = await server.ask(path, method, body, **headers)
        assert response.status == status
        assert response.getheader("Cache-Control") == "no-store"
        assert response.getheader("Content-Type") == "application/problem+json"
        assert json.loads(response.body)["detail"]
        assert server.publisher.given == []

    served(scenario, body_bytes_max=1000)


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/products/1", "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT"),
        ("/feeds/things/0/latest", "GET, HEAD, OPTIONS"),
        ("/", "GET, HEAD, OPTIONS"),
    ],
)
def test_options_and_refused_methods_tell_what_is_allowed(path, allowed):
    async def scenario(server):
        options, purge = await server.ask(path, "OPTIONS"), await server.ask(path, "PURGE")
        assert (options.status, options.getheader("Allow")) == (204, allowed)
        assert (purge.status, purge.getheader("Allow")) == (405, allowed)

    served(scenario)


def test_a_writer_who_asks_first_is_told_to_go_on():
    async def scenario(server):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        head = "PUT /a HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\nExpect: {}\r\n\r\n"
        writer.write(head.format(2, "100-continue").encode())
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"{}")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 201 Created\r\n")
        assert server.publisher.given[0][0].body == b"{}"
        writer.write(head.format(10**9, "100-continue").encode())
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 413 ")
        writer.close()

    served(scenario)


def test_a_coded_body_is_published_as_it_came_and_says_how_it_is_coded():
    async def scenario(server):
        for body in (gzip.compress(b"plain"), gzip.compress(b"plain")[:-5], b"not gzip"):
            await server.ask("/a", "PUT", body, Content_Encoding="gzip")
            event = server.publisher.given.pop()[0]
            assert (event.body, event.extra_headers) == (body, (("Content-Encoding", "gzip"),))

    served(scenario)


def test_the_longest_prefix_decides_which_log_a_target_belongs_to():
    async def scenario(server):
        special = FakePublisher(None)
        server.site.logs["special"] = LiveLog("special", "/things/special/", special)
        await server.ask("/things/special/1", "PUT", b"")
        await server.ask("/things/1", "PUT", b"")
        assert [event.target for event, _ in special.given] == ["/things/special/1"]
        assert [event.target for event, _ in server.publisher.given] == ["/things/1"]
        server.log.prefix = "/elsewhere/"
        assert (await server.ask("/things/1", "PUT", b"")).status == 404

    served(scenario)


def test_readiness_names_what_is_in_the_way_and_liveness_does_not_care():
    async def scenario(server):
        assert (await server.ask("/readyz")).status == 200
        server.readiness.reasons = ["the log is away"]
        response = await server.ask("/readyz")
        assert (response.status, json.loads(response.body)["reasons"]) == (503, ["the log is away"])
        assert (await server.ask("/livez")).status == 200

    served(scenario)


def test_a_damaged_page_is_a_problem_and_not_served():
    async def scenario(server):
        server.fill(range(4))
        server.feed._data[0] = b"x" * len(server.feed._data[0])
        response = await server.ask(ARCHIVE + "0")
        assert (response.status, response.getheader("Retry-After")) == (503, "30")
        assert "page 0" in json.loads(response.body)["detail"]
        assert response.getheader("Cache-Control") == "no-store"

    served(scenario)


def test_the_cache_of_documents_keeps_to_its_size():
    async def scenario(server):
        server.fill(range(100))
        bodies = {number: (await server.ask(f"{ARCHIVE}{number}")).body for number in range(33)}
        assert sum(len(document.body) for document in server.site._cache._documents.values()) <= 5_000
        for number, body in bodies.items():
            assert (await server.ask(f"{ARCHIVE}{number}")).body == body

    served(scenario, page_cache_bytes_max=5_000)
