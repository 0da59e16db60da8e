"""Current state and conditional publications over HTTP, above a feed in memory."""

from __future__ import annotations

import asyncio
import http.client

from gateway.core.event import Event, Method
from gateway.core.identity import ContentID
from gateway.core.pages import Paginator
from gateway.core.state import etag_of
from gateway.storage.memory import MemoryFeed
from tests.feeds import TIME_MS, batch_with, settings
from tests.http.test_app import Running, served

JSON = "application/json"


def put(target: str, body: bytes, *, later_ms: int = 0) -> Event:
    return Event(Method.PUT, target, JSON, body, TIME_MS + later_ms)


def append(feed: MemoryFeed, *events: Event) -> None:
    head = feed.head
    feed.append(batch_with(Paginator(feed.settings, head.page, head.data), *events))


class Publishing:
    """A publisher whose events become visible at once, if it is told so."""

    def __init__(self, server: Running, *, visible: bool = True) -> None:
        self.server = server
        self.visible = visible
        self.late: set[str] = set()
        self.most_at_once = self._now = 0

    async def publish(self, event: Event, *, wait: bool) -> ContentID | None:
        self._now += 1
        self.most_at_once = max(self.most_at_once, self._now)
        await asyncio.sleep(0.01)
        self._now -= 1
        if not self.visible:
            self.late.add(event.target)
            return None
        append(self.server.feed, event._replace(modified_ms=TIME_MS))
        page = self.server.feed.head.page
        return ContentID(page.last_ordinal, page.generation, "0", "things", "example.org")

    def unsettled(self, target: str) -> bool:
        return target in self.late


def test_a_target_in_two_partitions_is_answered_for_by_the_one_that_changed_it_last():
    async def scenario(server):
        other = MemoryFeed(settings(partition="1"))
        server.site.add_feed(server.log, other)
        append(server.feed, put("/a", b"1"), put("/b", b"1", later_ms=1), put("/c", b"1"))
        append(other, put("/a", b"2", later_ms=1), put("/b", b"2"), put("/d", b"2"))
        assert (await server.ask("/a")).body == b"2"
        answer = await server.ask("/b")
        assert answer.body == b"1"
        assert '</feeds/things/0/events/1>; rel="via"' in answer.getheader("Link")
        document = (await server.ask("/feeds/things")).body
        assert b'"shared_targets": 2' in document
        append(other, put("/c", b"2"), put("/a", b"3"))
        append(server.feed, put("/e", b"1"))
        append(other, put("/e", b"1"))
        assert b'"shared_targets": 4' in (await server.ask("/feeds/things")).body
        assert b'"entities": 9,' in (await server.ask("/feeds/things")).body

    served(scenario)


def test_head_has_no_body_and_a_query_is_part_of_the_target():
    async def scenario(server):
        append(server.feed, put("/a?x=1", b"12"))
        answer = await server.ask("/a?x=1", "HEAD")
        assert (answer.status, answer.body) == (200, b"")
        assert answer.getheader("Content-Length") == "2"
        assert answer.getheader("ETag") == etag_of(JSON, b"12")
        assert (await server.ask("/a")).status == 404
        assert (await server.ask("/a?x=1", If_Match='"other"')).status == 412

    served(scenario)


def test_a_coded_body_comes_with_its_coding():
    async def scenario(server):
        made = put("/a", b"\x1f\x8b")._replace(extra_headers=(("Content-Encoding", "gzip"),))
        append(server.feed, made)
        answer = await server.ask("/a")
        assert answer.getheader("Content-Encoding") == "gzip"
        assert answer.body == b"\x1f\x8b"

    served(scenario)


def test_conditions_go_alone_and_only_what_meets_them_is_published():
    async def scenario(server):
        server.log.publisher = publisher = Publishing(server)
        answers = await asyncio.gather(
            *(server.ask("/n", "PUT", str(n), Content_Type=JSON, If_None_Match="*") for n in range(5))
        )
        assert sorted(answer.status for answer in answers) == [201, 412, 412, 412, 412]
        assert publisher.most_at_once == 1
        etag = (await server.ask("/n")).getheader("ETag")
        assert {answer.getheader("ETag") for answer in answers} == {etag}
        for condition in ({"If_Match": "W/" + etag}, {"If_None_Match": f'"x", {etag}'}, {"If_Match": '"x"'}):
            assert (await server.ask("/n", "DELETE", **condition)).status == 412
        assert (await server.ask("/m", "PUT", "1", If_Match="*")).status == 412
        assert (await server.ask("/n", "POST", "1", If_Match=etag)).status == 201
        date = "Tue, 14 Nov 2023 22:13:19 GMT"
        assert (await server.ask("/n", "DELETE", If_Unmodified_Since=date)).status == 412
        assert (await server.ask("/n", "DELETE", If_Match=f'"x", {etag}')).status == 204
        assert (await server.ask("/n")).status == 410
        assert (await server.ask("/n", "PUT", "1", If_None_Match="*")).status == 201

    served(scenario)


def test_an_unknown_state_exists_and_no_etag_matches_it():
    async def scenario(server):
        server.log.publisher = Publishing(server)
        append(server.feed, Event(Method.PATCH, "/a", "text/x-diff", b"x", TIME_MS))
        assert (await server.ask("/a", "PUT", "1", If_None_Match="*")).status == 412
        assert (await server.ask("/a", "PUT", "1", If_Match='"unknown"')).status == 412
        assert (await server.ask("/a", "PUT", "1", If_Match="*")).status == 201
        assert (await server.ask("/a")).body == b"1"

    served(scenario)


def test_nothing_is_decided_while_an_earlier_event_may_still_come():
    async def scenario(server):
        server.log.publisher = publisher = Publishing(server, visible=False)
        assert (await server.ask("/a", "PUT", "1")).status == 202
        answer = await server.ask("/a", "PUT", "2", If_None_Match="*")
        assert answer.status == 503
        assert b"is known yet" in answer.body
        assert (await server.ask("/b", "PUT", "2", If_None_Match="*")).status == 202
        publisher.visible = True
        waiting = asyncio.create_task(server.ask("/a", "PUT", "2", If_None_Match="*"))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        publisher.late.discard("/a")
        assert (await waiting).status == 201

    served(scenario, publish_wait_max_s=0.5)


def test_where_conditions_are_required_a_change_without_one_is_refused():
    async def scenario(server):
        server.log.publisher = Publishing(server)
        server.log.preconditions_required = True
        for method in ("PUT", "PATCH", "DELETE"):
            answer = await server.ask("/a", method, None if method == "DELETE" else "1", Content_Type=JSON)
            assert answer.status == 428
            assert answer.getheader("Content-Type") == "application/problem+json"
        assert (await server.ask("/a", "POST", "1")).status == 201
        assert (await server.ask("/a", "PUT", "1", If_None_Match="*")).status == 201

    served(scenario)


def test_every_line_of_a_condition_counts_and_what_is_none_is_refused():
    async def scenario(server):
        server.log.publisher = Publishing(server)
        etag = (await server.ask("/a", "PUT", "1", If_None_Match="*")).getheader("ETag")

        def two_lines() -> int:
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
            connection.putrequest("PUT", "/a")
            connection.putheader("If-None-Match", '"other"')
            connection.putheader("If-None-Match", etag)
            connection.putheader("Content-Length", "1")
            connection.endheaders(b"2")
            status = connection.getresponse().status
            connection.close()
            return status

        assert await asyncio.to_thread(two_lines) == 412
        for wrong in (etag.strip('"'), "", '"x', f"*, {etag}"):
            assert (await server.ask("/a", "PUT", "2", If_None_Match=wrong)).status == 400
            assert (await server.ask("/a", "PUT", "2", If_Match=wrong)).status == 400
        assert (await server.ask("/a", "PUT", "2", Content_Range="bytes 0-0/2")).status == 400
        assert (await server.ask("/a")).body == b"1"

    served(scenario)


def test_a_date_alone_does_not_do_where_conditions_are_required():
    async def scenario(server):
        server.log.publisher = Publishing(server)
        server.log.preconditions_required = True
        date = "Tue, 14 Nov 2099 22:13:19 GMT"
        assert (await server.ask("/a", "PUT", "1", If_Unmodified_Since=date)).status == 428

    served(scenario)


def test_a_reserved_name_is_one_however_it_is_escaped():
    async def scenario(server):
        server.log.publisher = publisher = Publishing(server)
        for path in ("/%66eeds/x", "/livez%2fx", "/%6civez"):
            assert (await server.ask(path, "PUT", "1")).status == 405
        assert publisher.most_at_once == 0

    served(scenario)
