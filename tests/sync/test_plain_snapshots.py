"""Snapshots of other servers of the draft: they tell when they were started, not which events they hold."""

import asyncio
import json

import pytest

from gateway.core.state import etag_of
from gateway.sync import SnapshotUnusable, synchronize
from gateway.sync.fold import NOT_TOLD
from tests.sync.copies import query, run_sync, sqlite_bodies
from tests.sync.feed_server import served, serving
from tests.sync.snapshot_copies import SETTINGS, Seen, assert_settled, copied
from tests.sync.snapshot_server import MERGE, PLAIN_INDEX, LogSite, Partition, PlainSite, fill

STARTED_S = 1_435_019_805
STARTED_MS = STARTED_S * 1000 + 885


def begun(site, path, seen=None, **options):
    """A copy of the feed of `site` that begins with its snapshot."""
    return copied(site, path, seen, path=site.latest, snapshot=PLAIN_INDEX, **options)


def as_in_the_diagram(**options):
    """The server of the draft's diagram: R1 to R3, a snapshot, and changes while it is made and after."""
    site = PlainSite(**options)
    for number in (1, 2, 3):
        site.publish("PUT", f"/products/{number}", STARTED_S - 60, b'{"v":1}')
    site.part(
        "/products/snapshot/1/0",
        [
            ("/products/1", 'W/"12345678"', b'{"v":1}'),
            ("/products/2", 'W/"85392992223"', b'{"v":1}'),
            ("/products/3", '"7782882823"', b'{"v":1}'),
        ],
    )
    site.make_index(STARTED_MS)
    site.publish("PATCH", "/products/2", STARTED_S + 10, b'{"v":2}', MERGE)
    site.publish("PUT", "/products/4", STARTED_S + 20, b'{"v":1}')
    site.targets["/products/2"] = ('W/"99"', b'{"v": 2, "of": "its server"}')
    return site


@pytest.mark.parametrize("entry_links", [True, False])
def test_what_changed_since_the_start_is_read_and_a_patch_asks_its_target(tmp_path, entry_links):
    site, path = as_in_the_diagram(entry_links=entry_links), tmp_path / "a.sqlite"
    seen = Seen()
    summary = begun(site, path, seen)
    assert summary.snapshot is not None
    assert summary.snapshot[1:4] == ("2015-06-23T00:36:45.885Z", 1, 3)
    assert (seen.events, seen.troubles) == (2, [])
    # Not the patch: the state of the target, asked for with the part's own ETag.
    assert site.asked == [("/products/2", 'W/"85392992223"')]
    assert sqlite_bodies(path, "0") == {
        "/products/1": b'{"v":1}',
        "/products/2": b'{"v": 2, "of": "its server"}',
        "/products/3": b'{"v":1}',
        "/products/4": b'{"v":1}',
    }
    assert_settled(path)
    # Later, P2 of the diagram: a deletion, and a patch of what is known exactly.
    site.publish("PATCH", "/products/4", STARTED_S + 100, b'{"w":2}', MERGE)
    site.publish("PATCH", "/products/3", STARTED_S + 110, b'{"w":3}', MERGE)
    site.publish("DELETE", "/products/1", STARTED_S + 120)
    seen = Seen()
    assert begun(site, path, seen).snapshot is None
    assert seen.events == 3
    assert len(site.asked) == 1
    assert sqlite_bodies(path, "0") == {
        "/products/2": b'{"v": 2, "of": "its server"}',
        "/products/3": b'{"v":1,"w":3}',
        "/products/4": b'{"v":1,"w":2}',
    }


def test_what_its_server_told_is_asked_for_again_when_it_is_patched_again(tmp_path):
    site, path = as_in_the_diagram(), tmp_path / "a.sqlite"
    begun(site, path)
    site.publish("PATCH", "/products/2", STARTED_S + 200, b'{"v":3}', MERGE)
    site.targets["/products/2"] = ('W/"100"', b'{"v":3}')
    begun(site, path)
    assert site.asked[1:] == [("/products/2", 'W/"99"')]
    assert sqlite_bodies(path, "0")["/products/2"] == b'{"v":3}'


def test_a_patch_is_not_applied_even_to_what_a_part_lacks(tmp_path):
    site, path = as_in_the_diagram(), tmp_path / "a.sqlite"
    site.publish("PATCH", "/products/9", STARTED_S + 30, b'{"v":2}', MERGE)
    site.targets["/products/9"] = ('"9"', b'{"v":2,"more":1}')
    begun(site, path)
    assert ("/products/9", None) in site.asked
    assert sqlite_bodies(path, "0")["/products/9"] == b'{"v":2,"more":1}'


def test_a_target_that_did_not_change_since_its_part_is_not_sent_again(tmp_path):
    site, path = as_in_the_diagram(), tmp_path / "a.sqlite"
    # The part was made after the patch.
    site.targets["/products/2"] = ('W/"85392992223"', b"not to be sent")
    begun(site, path)
    assert site.asked == [("/products/2", 'W/"85392992223"')]
    assert sqlite_bodies(path, "0")["/products/2"] == b'{"v":1}'


def test_the_second_in_which_the_snapshot_was_started_is_included(tmp_path):
    site, path = as_in_the_diagram(page_max=2), tmp_path / "a.sqlite"
    site.pages = [[]]
    site.publish("PUT", "/products/1", STARTED_S - 1, b'{"v":"before"}')
    # At some moment of that second, perhaps behind the start: the header has no more.
    site.publish("PUT", "/products/3", STARTED_S, b'{"v":"then"}')
    site.publish("PUT", "/products/4", STARTED_S + 1, b'{"v":"after"}')
    seen = Seen()
    begun(site, path, seen)
    assert seen.events == 2
    found = sqlite_bodies(path, "0")
    assert found["/products/1"] == b'{"v":1}'
    assert found["/products/3"] == b'{"v":"then"}'
    assert found["/products/4"] == b'{"v":"after"}'


@pytest.mark.parametrize("entry_links", [True, False])
def test_no_more_documents_are_read_than_the_time_frame_needs(tmp_path, entry_links):
    site, path = as_in_the_diagram(page_max=2, entry_links=entry_links), tmp_path / "a.sqlite"
    site.pages = [[]]
    for number in range(40):
        # Ten seconds between two of them: the start lies between 19 and 20.
        site.publish("PUT", f"/products/{number}", STARTED_S - 195 + 10 * number, b'{"v":%d}' % number)
    seen = Seen()
    begun(site, path, seen)
    assert seen.events == 20
    read = {page for page in range(19) if site.count[f"GET {site.archive(page)}"]}
    assert read == set(range(9, 19)) | {9}
    assert sqlite_bodies(path, "0")["/products/39"] == b'{"v":39}'


def test_events_that_tell_no_time_are_read_as_if_they_were_new(tmp_path):
    site, path = as_in_the_diagram(page_max=2), tmp_path / "a.sqlite"
    site.pages = [[]]
    site.publish("PUT", "/products/7", STARTED_S - 50, b'{"v":0}')
    site.publish("PUT", "/products/8", None, b'{"v":8}')
    site.publish("PUT", "/products/9", None, b'{"v":9}')
    seen = Seen()
    begun(site, path, seen)
    assert seen.events == 2
    assert {"/products/8", "/products/9"} < sqlite_bodies(path, "0").keys()


def test_a_feed_that_is_younger_than_the_snapshot_is_read_from_its_beginning(tmp_path):
    site, path = as_in_the_diagram(), tmp_path / "a.sqlite"
    site.pages = [[]]
    for number in range(5):
        site.publish("PUT", f"/new/{number}", STARTED_S + number, b"1")
    seen = Seen()
    begun(site, path, seen)
    assert seen.events == 5
    assert len(sqlite_bodies(path, "0")) == 3 + 5
    assert_settled(path)


def test_an_empty_feed_beside_a_snapshot_gives_what_the_snapshot_has(tmp_path):
    site, path = as_in_the_diagram(), tmp_path / "a.sqlite"
    site.pages = [[]]
    begun(site, path)
    assert len(sqlite_bodies(path, "0")) == 3
    assert_settled(path)
    site.publish("PUT", "/products/4", STARTED_S + 1, b"4")
    begun(site, path)
    assert len(sqlite_bodies(path, "0")) == 4


def test_a_feed_that_does_not_reach_back_to_the_start_is_read_without_the_snapshot(tmp_path):
    site, path = as_in_the_diagram(page_max=1), tmp_path / "a.sqlite"

    def gone(request, reply):
        if request.path in (site.archive(0), site.archive(1), site.archive(2)):
            reply.status, reply.headers, reply.body = 410, {}, b"gone"

    site.twist = gone
    seen = Seen()
    assert begun(site, path, seen).snapshot is None
    assert "does not reach back to its start" in seen.left[0][2]
    assert [row[0] for row in query(path, "SELECT target FROM entities ORDER BY 1")] == [
        "/products/2",
        "/products/4",
    ]


def test_a_location_that_is_relative_is_meant_from_its_part_on(tmp_path):
    site, path = as_in_the_diagram(), tmp_path / "a.sqlite"
    site.parts.clear()
    site.part(
        "/products/snapshot/1/0",
        [
            ("../../5", '"5"', b"5"),
            ("/products/6", '"6"', b"6"),
            ("http://elsewhere.example.org/7", '"7"', b"7"),
        ],
    )
    # So are the parts themselves, from the index on.
    site.make_index(STARTED_MS, uris=["1/0"])
    begun(site, path)
    found = sqlite_bodies(path, "0")
    assert {"/products/5", "/products/6", "http://elsewhere.example.org/7"} < found.keys()


def test_entities_tell_no_event_and_their_own_etag_is_what_counts_in_the_digest(tmp_path):
    site, path = as_in_the_diagram(), tmp_path / "a.sqlite"
    begun(site, path)
    row = query(path, "SELECT etag, ordinal, server_etag FROM entities WHERE target = '/products/1'")
    assert row == [(etag_of("application/json", b'{"v":1}'), NOT_TOLD, None)]


def test_a_part_that_is_cut_short_is_asked_for_again_and_in_the_end_not_used(tmp_path):
    site, path = as_in_the_diagram(), tmp_path / "a.sqlite"

    def cut(request, reply):
        if request.path in site.parts and site.looks(request) <= times:
            reply.body = reply.body[:-30]

    site.twist, times = cut, 2
    assert begun(site, path).snapshot is not None
    site.count.clear()
    times = 99
    seen = Seen()
    assert begun(site, tmp_path / "b.sqlite", seen).snapshot is None
    assert "not a whole multipart document" in seen.left[0][2]
    assert seen.events == 5


def test_a_snapshot_that_gives_way_to_another_one_is_left_for_it(tmp_path):
    site, path = as_in_the_diagram(), tmp_path / "a.sqlite"
    (old,) = site.parts

    def replaced(request, reply):
        if request.path == old:
            reply.status, reply.body = 404, b""
            site.parts.clear()
            site.part("/products/snapshot/2/0", [("/products/3", '"3"', b"3")])
            site.make_index(STARTED_MS + 5000, id="2")

    site.twist = replaced
    seen = Seen()
    summary = begun(site, path, seen)
    assert summary.snapshot is not None
    assert summary.snapshot.id == "2"
    assert seen.left[0][1] == "2015-06-23T00:36:45.885Z"
    assert sqlite_bodies(path, "0")["/products/3"] == b"3"
    assert_settled(path)


def test_a_run_that_was_stopped_within_the_time_frame_goes_on_there(tmp_path):
    site, path, stop = as_in_the_diagram(page_max=1), tmp_path / "a.sqlite", asyncio.Event()

    class StopAtOnce(Seen):
        def applied(self, events):
            stop.set()

    def busy(request, reply):
        if request.path == site.latest and any(site.count[f"GET {part}"] for part in site.parts):
            reply.status, reply.body = 503, b"not now"

    async def scenario():
        async with serving(site.handle) as url:
            await synchronize(
                url + site.latest,
                path,
                follow=True,
                stop=stop,
                snapshot=url + PLAIN_INDEX,
                settings=SETTINGS,
                observer=StopAtOnce(),
            )

    site.twist = busy
    asyncio.run(scenario())
    # The patch came, and what followed did not: readers see nothing of it yet.
    assert query(path, "SELECT state, count(*) FROM next_entities GROUP BY 1 ORDER BY 1") == [
        ("present", 2),
        ("unknown", 1),
    ]
    assert query(path, "SELECT count(*) FROM entities") == [(0,)]
    site.twist = lambda request, reply: None
    site.count.clear()
    begun(site, path)
    assert not any(site.count[f"GET {part}"] for part in site.parts)
    assert site.asked == [("/products/2", 'W/"85392992223"')]
    assert len(sqlite_bodies(path, "0")) == 4
    assert_settled(path)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"uris": ["http://127.0.0.1:1/part"]}, "is not of its own server"),
        ({"uris": "x"}, "is not the index of a snapshot"),
        ({"started": "then"}, "is not the index of a snapshot"),
        ({"id": None, "uris": [7]}, None),
    ],
)
def test_an_index_that_cannot_be_used_is_refused(tmp_path, change, what):
    site = as_in_the_diagram()
    site.make_index(STARTED_MS, **change)
    if what is None:
        # A part that is not there: the feed is read without it.
        seen = Seen()
        begun(site, tmp_path / "a.sqlite", seen)
        assert len(seen.left) == 1
        return
    with pytest.raises(SnapshotUnusable, match=what):
        begun(site, tmp_path / "a.sqlite")


def test_a_snapshot_that_names_no_feeds_is_none_of_a_log(tmp_path):
    site = LogSite(Partition("0"), Partition("1"))
    fill(site, 5)

    def twist(request, reply):
        if request.path == "/plain":
            reply.status, reply.headers = 200, {"Content-Type": "application/json"}
            reply.body = b'{"id": "1", "started": 1, "uris": []}'

    site.twist = twist
    with pytest.raises(SnapshotUnusable, match="cannot be told apart by partition"):
        copied(site, tmp_path / "a.sqlite", snapshot="/plain")


def test_a_snapshot_without_feeds_serves_one_feed_of_our_own_form_as_well(tmp_path):
    site = LogSite(Partition("0"))
    path = tmp_path / "a.sqlite"
    site.publish("0", "PUT", "/a", b'{"v":1}')
    site.publish("0", "PATCH", "/a", b'{"v":2}', MERGE)
    head = b'--x\r\nContent-Type: application/json\r\nContent-Location: /a\r\nETag: "1"\r\n\r\n'
    body = head + b'{"v":1}\r\n--x--\r\n'

    def twist(request, reply):
        answers = {
            "/plain": ("application/json", b'{"id": "1", "started": 1600000001000, "uris": ["/part"]}'),
            "/part": ("multipart/package; boundary=x", body),
            "/a": ("application/json", b'{"v":2,"asked":true}'),
        }
        if request.path in answers:
            type_, content = answers[request.path]
            reply.status, reply.headers, reply.body = 200, {"Content-Type": type_}, content

    site.twist = twist
    copied(site, path, path="/feeds/events/0/latest", snapshot="/plain")
    assert sqlite_bodies(path, "0") == {"/a": b'{"v":2,"asked":true}'}
    site.publish("0", "PATCH", "/a", b'{"v":3}', MERGE)
    copied(site, path, path="/feeds/events/0/latest", snapshot="/plain")
    assert site.count["/a"] == 2


def test_the_command_names_the_snapshot_of_another_server(tmp_path):
    site, path = as_in_the_diagram(), tmp_path / "a.sqlite"
    with served(site) as url:
        done = run_sync(url + site.latest, path, "--snapshot", url + PLAIN_INDEX, "--json")
    result = json.loads(done.stdout)
    assert (result["snapshot"]["id"], result["snapshot"]["entities"]) == ("2015-06-23T00:36:45.885Z", 3)
    assert (result["events"], result["entities"]) == (2, 4)
