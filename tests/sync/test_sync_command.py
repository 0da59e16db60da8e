"""`wes sync`: after any end, however rough, a copy is what an independent replay of the feeds gives.

The rounds of kill -9 are six for each destination; WES_KILL_ROUNDS=50 does that many. WES_KILL_SEED repeats
the moments of a run.
"""

import asyncio
import json
import os
import random
import shutil
import signal
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest
from aiohttp import web

from gateway.cli import main
from gateway.sync import Position, feed
from gateway.sync.destination import copy_at
from gateway.sync.fetch import FetchFailed
from gateway.sync.folder_copy import FolderCopy
from gateway.sync.ndjson import NdjsonCopy
from gateway.sync.observer import Observer
from gateway.sync.source import NoSource
from gateway.sync.synchronize import SyncSettings, synchronize
from tests.acceptance.support import call, until
from tests.sync.copies import folder_bodies, line_events, query, run_sync, sqlite_bodies, start_sync
from tests.sync.faulty_server import QUICK, NumberedFeed
from tests.sync.feed_server import Feed, Reply, _json, served, serving
from tests.sync.replay import UNKNOWN, bodies, digest, replay
from tests.walk import walk

ROUNDS = int(os.environ.get("WES_KILL_ROUNDS", "6"))
SEED = int(os.environ.get("WES_KILL_SEED", str(time.time_ns() % 1_000_000)))
DATA = sorted((Path(__file__).parent.parent / "data").glob("*.ndjson.gz"))
SETTINGS = SyncSettings(reader=QUICK, new_partitions_s=0.05, verify_tries_max=3, verify_wait_s=0.05)
MERGE = "application/merge-patch+json"


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory):
    """A gateway with the events of the real catalogue, some patches and some bytes, in two partitions."""
    from tests import servers

    folder = tmp_path_factory.mktemp("catalogue")
    server = servers.gateway(folder / "data", "--partitions", "2", "--archive-events-max", "300").start()
    assert main(["publish", server.amqp, *map(str, DATA)]) == 0
    lines = [
        {"method": "PATCH", "target": "/packages/0ad", "content_type": MERGE, "body": {"version": "9"}},
        {"method": "PATCH", "target": "/new", "content_type": MERGE, "body": {"a": {"b": 1}}},
        {"method": "PATCH", "target": "/packages/zsh", "content_type": "text/x-diff", "body_text": "+\n"},
        {"method": "POST", "target": "/packages/bash", "body": {"seen": True}},
        {"method": "PUT", "target": "/bytes", "body_base64": "AP8="},
        {"method": "PUT", "target": "/Text", "body_text": "several\nlines\n"},
        {"method": "PUT", "target": "/gzip", "content_type": "application/json", "body_base64": "H4sI"}
        | {"extra_headers": [["Content-Encoding", "gzip"]]},
        {"method": "PUT", "target": "/empty", "content_type": "text/plain"},
    ]
    more = folder / "more.ndjson"
    more.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main(["publish", server.http, str(more)]) == 0
    yield server
    server.stop()


@pytest.fixture(scope="module")
def walked(catalogue):
    found = walk(catalogue.http, "events")
    assert sum(map(len, found.values())) > 5_000
    return found


# What is copied


def test_a_file_holds_what_a_replay_gives_and_says_so(catalogue, walked, tmp_path):
    path = tmp_path / "events.sqlite"
    done = run_sync(catalogue.http, path, "--json")
    for partition, events in walked.items():
        states = replay(events)
        assert sqlite_bodies(path, partition) == bodies(states)
        rows = query(
            path,
            "SELECT target, content_type, etag FROM entities WHERE partition = ? AND state = 'present'",
            partition,
        )
        assert rows == [(t, states[t].content_type, states[t].etag) for t, _, _ in rows]
        feeds = query(path, "SELECT * FROM feeds WHERE partition = ?", partition)
        assert feeds[0][1:5] == (
            f"{catalogue.http}/feeds/events/{partition}/latest",
            len(events) - 1,
            f"/feeds/events/{partition}/events/{len(events) - 1}",
            events[-1].content_id,
        )
        held = query(path, "SELECT entities, digest, events FROM feeds WHERE partition = ?", partition)
        assert held == [(len(states), digest(states), len(events))]
        unknown = query(
            path, "SELECT target FROM entities WHERE state = 'unknown' AND partition = ?", partition
        )
        assert [row[0] for row in unknown] == [t for t, state in states.items() if state.body == UNKNOWN]
    coded = query(path, "SELECT extra_headers FROM entities WHERE target = '/gzip'")
    assert json.loads(coded[0][0]) == [["Content-Encoding", "gzip"]]
    result = json.loads(done.stdout)
    assert result["events"] == sum(map(len, walked.values()))
    assert result["position"] == {partition: len(events) - 1 for partition, events in walked.items()}
    assert result["digest"] == json.loads(call(catalogue.http, "GET", "/feeds/events").body)["digest"]
    assert done.stderr == ""
    again = run_sync(f"{catalogue.http}/feeds/events", path, "--json")
    assert json.loads(again.stdout)["events"] == 0


@pytest.mark.slow
def test_a_folder_holds_a_file_for_each_target(catalogue, walked, tmp_path):
    folder = tmp_path / "copy"
    run_sync(catalogue.http, f"{folder}/")
    for partition, events in walked.items():
        assert folder_bodies(folder, partition) == bodies(replay(events))
    # The folder is known for what it is now.
    assert "copied 0 events" in run_sync(catalogue.http, folder).stdout


@pytest.mark.slow
def test_lines_are_the_events_and_can_be_published_as_they_are(catalogue, walked, tmp_path, start_gateway):
    lines = tmp_path / "out.ndjson"
    with lines.open("wb") as output:
        process = start_sync(catalogue.http, "-", "--json", output=output)
        _, told = process.communicate(timeout=120)
    assert process.returncode == 0
    assert json.loads(told)["events"] == sum(map(len, walked.values()))
    assert line_events(lines) == walked
    second = start_gateway("--partitions", "2")
    assert main(["publish", second.amqp, str(lines)]) == 0
    copies = [tmp_path / "one.sqlite", tmp_path / "two.sqlite"]
    results = [
        json.loads(run_sync(server.http, path, "--json").stdout)
        for server, path in zip((catalogue, second), copies, strict=True)
    ]
    assert results[0]["digest"] == results[1]["digest"]
    statement = "SELECT target, state, content_type, body, extra_headers FROM entities ORDER BY 1"
    assert query(copies[0], statement) == query(copies[1], statement)


def test_one_feed_is_copied_as_partition_0(catalogue, walked, tmp_path):
    path = tmp_path / "one.db"
    run_sync(f"{catalogue.http}/feeds/events/1/archive/0", path)
    assert sqlite_bodies(path, "0") == bodies(replay(walked["1"]))


def test_the_library_does_the_same(catalogue, walked, tmp_path):
    class Watch(Observer):
        def __init__(self):
            self.left = self.count = 0

        def expected(self, events):
            self.left = events

        def applied(self, events):
            self.count += events

    watch = Watch()
    summary = asyncio.run(synchronize(catalogue.http, tmp_path / "events.sqlite", observer=watch))
    assert watch.left == watch.count == sum(map(len, walked.values()))
    assert not summary.stopped
    assert summary.partitions["1"].ordinal == len(walked["1"]) - 1
    position = summary.partitions["0"].position

    async def behind():
        return [event async for event in feed(summary.partitions["0"].url, position, follow=False)]

    assert asyncio.run(behind()) == []


# Following


@pytest.mark.slow
def test_what_is_published_is_in_the_copy_soon_and_sigterm_ends_it_well(start_gateway, tmp_path):
    server, path = start_gateway(), tmp_path / "events.sqlite"
    process = start_sync(server.http, path, "--follow", "--json", output=-1)
    for number in range(5):
        call(server.http, "PUT", "/a", b"%d" % number, {"Content-Type": "text/plain"})
        until(lambda n=number: path.exists() and sqlite_bodies_or_none(path) == {"/a": b"%d" % n})
    done = run_sync(server.http, path, status=1)
    assert f"another process writes to {path}" in done.stderr
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (0, "")
    assert json.loads(out) | {"stopped": True, "events": 5, "position": {"0": 4}} == json.loads(out)


def sqlite_bodies_or_none(path):
    try:
        return sqlite_bodies(path, "0")
    except sqlite3.OperationalError:
        return None


class Partitions(NumberedFeed):
    """One feed, called by more and more names in the log document."""

    names = ("0",)
    heads = True

    def answer(self, request):
        if request.path == "/":
            return _json({"logs": [{"log": name, "href": f"/feeds/{name}"} for name in ("events", "orders")]})
        if request.path == "/feeds/events":
            facts = {"links": {"current": self.latest}}
            return _json(
                {"log": "events", "partitions": [{"partition": name} | facts for name in self.names]}
            )
        return super().answer(request)


def test_new_partitions_are_found_while_following(tmp_path):
    source, path = Partitions(3, 3, 1), tmp_path / "events.sqlite"

    async def scenario():
        stop = asyncio.Event()
        async with serving(source.handle) as url:
            task = asyncio.ensure_future(
                synchronize(url, path, log="events", follow=True, stop=stop, settings=SETTINGS)
            )
            for names in (("0",), ("0", "1"), ("0", "1", "2")):
                source.names = names
                while not path.exists() or await asyncio.to_thread(ordinals, path) != dict.fromkeys(names, 6):
                    assert not task.done(), task.result()
                    await asyncio.sleep(0.01)
            stop.set()
            return await task

    summary = asyncio.run(asyncio.wait_for(scenario(), 30))
    assert summary.stopped
    assert list(summary.partitions) == ["0", "1", "2"]


def ordinals(path):
    try:
        return dict(query(path, "SELECT partition, ordinal FROM feeds"))
    except sqlite3.OperationalError:
        return {}


def test_a_server_that_is_away_is_waited_for_while_following(tmp_path):
    source, path, troubles = NumberedFeed(2), tmp_path / "events.sqlite", []
    source.twist = lambda request, reply: setattr(reply, "status", 500 if len(troubles) < 2 else reply.status)

    class Watch(Observer):
        def trouble(self, partition, text):
            troubles.append(text)

        def applied(self, events):
            stop.set()

    async def scenario():
        nonlocal stop
        stop = asyncio.Event()
        async with serving(source.handle) as url:
            return await synchronize(
                f"{url}/feeds/events", path, follow=True, stop=stop, settings=SETTINGS, observer=Watch()
            )

    stop = None
    summary = asyncio.run(asyncio.wait_for(scenario(), 30))
    assert summary.partitions["0"].ordinal == 1
    assert all("answers 500" in text for text in troubles)


# What is refused


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("ftp://localhost/", "a.sqlite"), "write http://"),
        (("http:///x", "a.sqlite"), "write http://"),
        (("http://localhost/", "copy"), "write FILE.sqlite, FOLDER/ with a slash"),
        (("http://localhost/", "-", "--verify"), "lines hold no state"),
        (("http://localhost/", "a.sqlite", "--after", "b"), "--after goes with the destination -"),
    ],
)
def test_wrong_usage_ends_with_2_and_touches_nothing(arguments, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["sync", *arguments]) == 2
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_what_is_not_there_or_not_the_same_is_said_in_a_sentence(catalogue, tmp_path):
    path = tmp_path / "a.sqlite"
    assert "answers 404" in run_sync(f"{catalogue.http}/feeds/none", path, status=1).stderr
    assert "has no log none; there are: events" in (
        run_sync(catalogue.http, path, "--log", "none", status=1).stderr
    )
    assert not path.exists()
    with served(Partitions(1)) as url:
        assert "choose one with --log; there are: events, orders" in run_sync(url, path, status=1).stderr
        run_sync(url, path, "--log", "events")
    error = run_sync(catalogue.http, path, status=1).stderr
    assert f"{path} is a copy of http://" in error
    assert f"not of {catalogue.http}/feeds/events" in error


@pytest.mark.slow
def test_a_copy_goes_on_at_a_replica_when_it_is_told_that_its_source_moved(
    catalogue, tmp_path, start_gateway
):
    path = tmp_path / "a.sqlite"
    run_sync(catalogue.http, path)
    replica = start_gateway(
        "--broker", catalogue.amqp, "--archive-events-max", "300", data=tmp_path / "replica"
    )
    until(lambda: run_sync(replica.http, "-").stdout.count("\n") > 5_000)
    assert "--moved" in run_sync(replica.http, path, status=1).stderr
    done = run_sync(replica.http, path, "--moved", "--json")
    assert json.loads(done.stdout)["events"] == 0
    assert done.stderr == ""


# kill -9


class ToFile:
    def __init__(self, folder):
        self.path = folder / "copy.sqlite"
        self.seen = set()

    def start(self, url):
        return start_sync(url, self.path, "--follow")

    def check(self, walked):
        """Compare with a replay of what the checkpoint says; returns how many events that are."""
        if not self.path.exists() or not self.tables():
            return 0
        # As the kill left it: the next opening would mend it.
        aside = self.path.with_name("aside.sqlite")
        for suffix in ("", "-wal"):
            left = self.path.with_name(self.path.name + suffix)
            if left.exists():
                shutil.copy(left, aside.with_name(aside.name + suffix))
        total = 0
        with closing(sqlite3.connect(aside)) as db:
            for partition, ordinal, held in db.execute(
                "SELECT partition, ordinal, digest FROM feeds"
            ).fetchall():
                count = 0 if ordinal is None else ordinal + 1
                states = replay(walked[partition][:count])
                statement = "SELECT target, body FROM entities WHERE partition = ? AND state = 'present'"
                assert held == digest(states), (partition, ordinal)
                self.check_bodies(partition, dict(db.execute(statement, (partition,))), bodies(states))
                total += count
        for left in aside.parent.glob("aside.sqlite*"):
            left.unlink()
        return total

    def tables(self):
        try:
            return query(self.path, "SELECT 1 FROM feeds LIMIT 1")
        except sqlite3.OperationalError:
            return []

    def check_bodies(self, partition, found, expected):
        assert found == expected


class ToFolder(ToFile):
    def __init__(self, folder):
        self.folder = folder / "copy"
        self.path = self.folder / ".wes" / "copy.sqlite"

    def start(self, url):
        return start_sync(url, f"{self.folder}/", "--follow")

    def check_bodies(self, partition, found, expected):
        """The files, once what the kill left in the outbox is worked off."""
        assert {target for target, body in found.items() if body is not None} <= expected.keys()
        FolderCopy(self.folder).close()
        assert folder_bodies(self.folder, partition) == expected


class ToLines:
    def __init__(self, folder):
        self.path = folder / "out.ndjson"

    def start(self, url):
        with self.path.open("ab") as output:
            return start_sync(url, "-", "--after", self.path, "--follow", output=output)

    def check(self, walked):
        whole = self.path.with_name("whole.ndjson")
        content = self.path.read_bytes()
        whole.write_bytes(content[: content.rfind(b"\n") + 1])
        found = line_events(whole)
        for partition, events in found.items():
            assert events == walked[partition][: len(events)]
        return sum(map(len, found.values()))


class Publisher(threading.Thread):
    """Publishes about a few targets until it is stopped."""

    def __init__(self, base, seed):
        super().__init__()
        self.base, self.chance, self.stopping = base, random.Random(seed), threading.Event()
        self.count = 0

    def run(self):
        while not self.stopping.is_set():
            target = f"/made/{self.chance.randrange(40)}"
            method = self.chance.choice(["PUT", "PUT", "PATCH", "PATCH", "DELETE"])
            body = None if method == "DELETE" else json.dumps({f"k{self.count % 7}": self.count}).encode()
            content_type = {"PUT": "application/json", "PATCH": MERGE}.get(method)
            headers = {} if content_type is None else {"Content-Type": content_type}
            call(self.base, method, target, body, headers)
            self.count += 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", [ToFile, ToFolder, ToLines], ids=["file", "folder", "lines"])
def test_a_copy_is_exact_after_kill_9_at_random_moments(kind, tmp_path, start_gateway):
    print(f"WES_KILL_SEED={SEED}")
    chance = random.Random(SEED)
    server = start_gateway("--partitions", "2", "--archive-events-max", "25")
    assert main(["publish", server.amqp, *map(str, DATA)]) == 0
    publisher, copy, reached = Publisher(server.http, SEED), kind(tmp_path), []
    publisher.start()
    try:
        for number in range(ROUNDS):
            process = copy.start(server.http)
            if number % 2 == 0:
                # In the middle of catching up, as far as it gets in that time.
                time.sleep(chance.uniform(0.3, 0.8))
            else:
                before = reached[-1] if reached else 0
                until(lambda least=before: copied(copy) > least)
                time.sleep(chance.uniform(0, 0.3))
            process.kill()
            _, err = process.communicate()
            assert process.returncode == -signal.SIGKILL, err
            assert err == ""
            reached.append(copy.check(walk(server.http, "events")))
            assert reached == sorted(reached)
    finally:
        publisher.stopping.set()
        publisher.join()
    process = copy.start(server.http)
    walked = walk(server.http, "events")
    total = sum(map(len, walked.values()))
    until(lambda: copied(copy) == total)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert copy.check(walked) == total
    print(f"{ROUNDS} rounds, {publisher.count} events published meanwhile; events at the kills: {reached}")


def copied(copy):
    """How many events there are in the copy, roughly: it is being written."""
    if isinstance(copy, ToLines):
        return copy.path.read_bytes().count(b"\n")
    try:
        return query(copy.path, "SELECT coalesce(sum(ordinal + 1), 0) FROM feeds")[0][0]
    except sqlite3.OperationalError:
        return 0


@pytest.mark.slow
def test_lines_go_on_exactly_behind_an_output_that_was_torn_anywhere(catalogue, walked, tmp_path):
    path = tmp_path / "out.ndjson"
    whole = run_sync(catalogue.http, "-").stdout.encode()
    chance = random.Random(SEED)
    for cut in [chance.randrange(len(whole)) for _ in range(4)] + [whole.index(b"\n", 5000) + 1]:
        path.write_bytes(whole[:cut])
        with path.open("ab") as output:
            process = start_sync(catalogue.http, "-", "--after", path, output=output)
            _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        assert line_events(path) == walked


# Starting over


class Replaced(NumberedFeed):
    """A feed that a test can hold back at a document, and replace by another one."""

    held = ""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.reached = threading.Event()

    def become(self, other):
        self.pages, self.generation = other.pages, other.generation

    async def handle(self, request):
        while request.method == "GET" and request.path == self.held:
            self.reached.set()
            await asyncio.sleep(0.01)
        return await super().handle(request)


class Other(NumberedFeed):
    generation = "fedcba9876543210"

    def entry(self, method="PUT", body=b'{"id":"new"}'):
        return super().entry(method, body)


OLD = {f"/products/{number}": b'{"id":"x"}' for number in range(10)}
NEW = {f"/products/{number}": b'{"id":"new"}' for number in range(7)}


@pytest.mark.slow
@pytest.mark.parametrize("destination", ["copy.sqlite", "copy/"])
def test_the_old_copy_is_readable_while_starting_over_and_across_a_kill(destination, tmp_path):
    place = f"{tmp_path}/{destination}"
    path = Path(place)
    found = folder_bodies if destination == "copy/" else sqlite_bodies
    database = path / ".wes" / "copy.sqlite" if destination == "copy/" else path
    source = Replaced(4, 4, 2)
    with served(source) as url:
        run_sync(f"{url}/feeds/events", place)
        assert found(path, "0") == OLD
        source.become(Other(3, 3, 1))
        for _ in range(2):
            source.reached.clear()
            source.held = source.archive(1)
            process = start_sync(f"{url}/feeds/events", place)
            assert source.reached.wait(30)
            until(lambda: query(database, "SELECT ordinal FROM next_feeds") == [(2,)])
            assert found(path, "0") == OLD
            process.kill()
            _, err = process.communicate()
            assert found(path, "0") == OLD
            assert query(database, "SELECT ordinal FROM feeds") == [(9,)]
            source.held = ""
        # Said once: the second run goes on with what the first one began.
        assert "feed_starts_over" not in err
        done = run_sync(f"{url}/feeds/events", place)
        assert "copy_replaced partition=0" in done.stderr
    assert found(path, "0") == NEW
    assert query(database, "SELECT ordinal, events FROM feeds") == [(6, 7)]


@pytest.mark.slow
def test_a_start_over_is_told_with_its_reason_and_as_a_line(tmp_path):
    source, path = Replaced(4, 4, 2), tmp_path / "out.ndjson"
    with served(source) as url:
        for _ in range(2):
            with path.open("ab") as output:
                process = start_sync(f"{url}/feeds/events", "-", "--after", path, output=output)
                _, err = process.communicate(timeout=60)
            assert process.returncode == 0, err
            source.become(Other(6, 6, 1))
    assert " warning feed_starts_over partition=0 reason=" in err
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert lines[10]["start_over"]["partition"] == "0"
    assert "in place of" in lines[10]["start_over"]["reason"]
    assert [line["ordinal"] for line in lines[11:]] == list(range(13))


@pytest.mark.parametrize("href", ["/", "", "/feeds/events/0/latest", "/text"])
def test_a_service_document_that_leads_to_no_log_document_is_told_and_not_gone_round(href, tmp_path):
    class Circle(NumberedFeed):
        def answer(self, request):
            if request.path == "/":
                return _json({"logs": [{"log": "events", "href": href}]})
            if request.path == "/text":
                return Reply(200, {"Content-Type": "text/plain"}, b"text")
            return super().answer(request)

    source = Circle(1)

    async def scenario():
        async with serving(source.handle) as url:
            await synchronize(url, tmp_path / "copy.sqlite", settings=SETTINGS)

    with pytest.raises(
        NoSource, match=r"http://\S+ names http://\S+ as the document of a log, and it is none"
    ):
        asyncio.run(asyncio.wait_for(scenario(), 30))
    assert source.count.total() == 2


# Passwords


def guarded(source, seen):
    """A handler for `source` that wants a name and a password, and notes what it is sent."""

    async def handle(request):
        seen.append(request.headers.get("Authorization"))
        if seen[-1] != LOGIN:
            return web.Response(status=401)
        return await source.handle(request)

    return handle


LOGIN = "Basic bWU6c2U6Y3JldC/DvA=="
USER = "me:se:cret%2F%C3%BC@"


def with_user(url):
    return url.replace("//", f"//{USER}")


@pytest.mark.parametrize("destination", ["copy.sqlite", "copy/", "-"])
def test_a_password_is_sent_and_stands_nowhere(destination, tmp_path):
    source, seen, told = Replaced(4, 4, 2), [], []
    place = tmp_path / "lines"
    lines = place.open("ab", buffering=0)

    def open_copy():
        if destination == "-":
            return NdjsonCopy(lines, after=place)
        return copy_at(f"{tmp_path}/{destination}")()

    class Watch(Observer):
        def started_over(self, partition, reason):
            told.append(reason)

        def trouble(self, partition, text):
            told.append(text)

    async def scenario():
        async with serving(guarded(source, seen)) as url:
            for path in ("/", "/feeds/events"):
                url_in = with_user(url) + path
                summary = await synchronize(url_in, open_copy, settings=SETTINGS, observer=Watch())
                assert summary.url == f"{url}/feeds/events"
                source.become(Other(6, 6, 1))
            source.twist = broken
            with pytest.raises((FetchFailed, NoSource)) as refused:
                await synchronize(with_user(url), open_copy)
            told.append(str(refused.value))

    def broken(request, reply):
        reply.status = 404

    with lines:
        asyncio.run(asyncio.wait_for(scenario(), 60))
    assert set(seen) == {LOGIN}
    assert any("in place of" in text for text in told)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    for text in (*told, *(path.read_bytes().decode("latin-1") for path in files)):
        assert "cret" not in text


def test_a_password_goes_to_its_own_server_only(tmp_path):
    source, seen, elsewhere = Feed(2, 2), [], []

    async def stranger(request):
        elsewhere.append(request.headers.get("Authorization"))
        return await source.handle(request)

    async def scenario():
        async with serving(stranger) as other, serving(guarded(source, seen)) as url:
            source.archive = lambda page: f"{with_user(other)}/archive/{page}"
            source.twist = lambda request, reply: None
            answer = source.answer

            def archived(request):
                if request.path.startswith("/archive/"):
                    return source.document(int(request.path[9:]))
                return answer(request)

            source.answer = archived
            await synchronize(with_user(url) + source.latest, tmp_path / "copy.sqlite", settings=SETTINGS)

    asyncio.run(asyncio.wait_for(scenario(), 30))
    assert set(seen) == {LOGIN}
    assert set(elsewhere) == {None}
    assert query(tmp_path / "copy.sqlite", "SELECT events FROM feeds") == [(4,)]


# Servers of others


class Foreign(Feed):
    """A feed of another server, whose targets can be asked."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.resources = {}
        self.asked = []

    def patch(self, target, content_type=MERGE, body=b'{"y":1}'):
        entry = self.entry("PATCH", body)
        entry.replace("Content-Type", content_type)
        entry.headers[0] = ("Link", f"<{target}>;rel=about")
        self.pages[-1].append(entry)

    def answer(self, request):
        if request.path.startswith("/products/") and request.path[10:].isdigit():
            self.asked.append((request.path, request.headers.get("If-None-Match")))
            resource = self.resources.get(request.path)
            if resource is None:
                return Reply(404)
            if isinstance(resource, int):
                return Reply(resource)
            headers = {"Content-Type": "text/plain", "ETag": f'"{resource}"', "Cache-Control": "no-cache"}
            return Reply(200, headers, resource.encode())
        return super().answer(request)


def test_what_another_servers_feed_does_not_tell_is_asked_for_once_and_with_its_etag(tmp_path):
    source, path, troubles = Foreign(3, 2), tmp_path / "copy.sqlite", []
    source.patch("/products/0")
    source.patch("/products/1", "text/x-diff")
    source.patch("/products/1", "text/x-diff")
    source.patch("/products/2", "text/x-diff")
    source.patch("/products/3", "text/x-diff")
    source.resources = {"/products/1": "first", "/products/3": 403}

    class Watch(Observer):
        def trouble(self, partition, text):
            troubles.append(text)

    async def runs():
        async with serving(source.handle) as url:
            url += source.latest
            for number in range(3):
                await synchronize(url, path, settings=SETTINGS, observer=Watch())
                yield number

    async def scenario():
        async for number in runs():
            if number == 0:
                assert sorted(source.asked) == [(f"/products/{n}", None) for n in (1, 2, 3)]
                assert sqlite_bodies(path, "0") == {
                    "/products/0": b'{"id":"x","y":1}',
                    "/products/1": b"first",
                    "/products/4": b'{"id":"x"}',
                }
                assert query(path, "SELECT target, state FROM entities WHERE state <> 'present'") == [
                    ("/products/2", "deleted"),
                    ("/products/3", "unknown"),
                ]
                # Its server may have had this change when it was asked.
                source.patch("/products/1")
                source.resources["/products/3"] = "third"
            elif number == 1:
                assert sorted(source.asked[3:]) == [("/products/1", '"first"'), ("/products/3", None)]
                assert sqlite_bodies(path, "0")["/products/1"] == b"first"
                assert sqlite_bodies(path, "0")["/products/3"] == b"third"
            else:
                assert len(source.asked) == 5

    asyncio.run(asyncio.wait_for(scenario(), 60))
    assert troubles == [troubles[0]]
    assert troubles[0].endswith("/products/3 answers 403")


def test_only_targets_of_the_feeds_own_server_are_asked(tmp_path):
    source, inside, troubles, asked = Foreign(1), "/products/100", [], []
    path = tmp_path / "copy.sqlite"

    class Watch(Observer):
        def trouble(self, partition, text):
            troubles.append(text)

    async def other(request):
        asked.append(request.path)
        return web.Response(text="secret of the network")

    async def scenario():
        async with serving(other) as elsewhere, serving(source.handle) as url:
            answer = source.answer

            def redirecting(request):
                to = {"/away": f"{elsewhere}/in", "/home": f"{url}{inside}"}.get(request.path)
                return answer(request) if to is None else Reply(302, {"Location": to})

            source.answer = redirecting
            source.resources = {inside: "own"}
            for target in (f"{elsewhere}/x", elsewhere[5:] + "/y", f"{url}//z", "/away", "/home", inside):
                source.patch(target, "text/x-diff")
            await synchronize(url + source.latest, path, settings=SETTINGS, observer=Watch())
            return elsewhere

    elsewhere = asyncio.run(asyncio.wait_for(scenario(), 30))
    assert asked == []
    bodies = sqlite_bodies(path, "0")
    assert (bodies["/home"], bodies[inside]) == (b"own", b"own")
    unknown = {target for (target,) in query(path, "SELECT target FROM entities WHERE state = 'unknown'")}
    assert {f"{elsewhere}/x", f"{elsewhere}/y", "/away"} <= unknown
    assert len([text for text in troubles if "is not of the feed's own server" in text]) == 2
    assert any("/away redirects to another server, which is not asked" in text for text in troubles)


def test_a_server_of_this_project_is_not_asked_for_targets(catalogue, tmp_path):
    path = tmp_path / "copy.sqlite"
    run_sync(f"{catalogue.http}/feeds/events/0/latest", path)
    run_sync(f"{catalogue.http}/feeds/events/1/latest", tmp_path / "other.sqlite")
    unknown = query(path, "SELECT target FROM entities WHERE state = 'unknown'")
    unknown += query(tmp_path / "other.sqlite", "SELECT target FROM entities WHERE state = 'unknown'")
    assert unknown == [("/packages/zsh",)]


def test_a_position_is_all_that_the_library_needs(catalogue, walked):
    async def scenario():
        url = f"{catalogue.http}/feeds/events/0/latest"
        place = Position(walked["0"][999].content_id, "/feeds/events/0/events/999")
        return [event.content_id async for event in feed(url, place, follow=False)]

    assert asyncio.run(scenario()) == [event.content_id for event in walked["0"][1000:]]
