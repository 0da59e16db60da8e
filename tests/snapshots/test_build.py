"""Runs on data folders: what tables and parts hold after the first, after more, and after the last again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import duckdb
import pytest

from gateway.core.event import Event, Method
from gateway.core.snapshots import SnapshotIndex, read_part
from snapshots.build import STAGES
from snapshots.failures import DigestDiffers, FeedBehind
from snapshots.folder_place import FolderPlace
from snapshots.lock import RunLock, RunUnderWay
from snapshots.places import FeedLost
from tests.feeds import TIME_MS, event
from tests.snapshots.runs import Stages, check, cut, entities, part_bytes, run, snapshots, table
from tests.snapshots.written import LOG, Written
from tests.sync.replay import replay

MERGE = "application/merge-patch+json"


def put(target: str, body: bytes, type_: str | None = "application/json") -> Event:
    return Event(Method.PUT, target, type_, body, TIME_MS)


def patch(target: str, body: bytes, type_: str = MERGE) -> Event:
    return Event(Method.PATCH, target, type_, body, TIME_MS + 1_000)


def delete(target: str) -> Event:
    return Event(Method.DELETE, target, None, b"", TIME_MS + 2_000)


MIXED = [
    *map(event, range(12)),
    patch("/things/1", b'{"more":[1,2]}'),
    patch("/things/2", b"- a\n+ b\n", "text/x-diff"),
    delete("/things/3"),
    patch("/new", b'{"made":"of a patch"}'),
    Event(Method.POST, "/things/4", "text/plain", b"done", TIME_MS),
    put("/gone/and/back", b"1"),
    delete("/gone/and/back"),
    put("/gone/and/back", b"[2]"),
    patch("/things/5", b"- a\n+ b\n", "text/x-diff"),
]
LATER = [
    patch("/things/1", b'{"more":null}'),
    put("/things/3", b'"again"', "text/json; charset=utf-8"),
    delete("/things/6"),
    patch("/things/2", b'{"still":"unknown"}'),
    put("/things/5", b"known again", "text/plain"),
    *map(event, range(100, 110)),
]


@pytest.mark.slow
def test_first_run_increments_and_rebuild_give_equal_tables_and_the_same_bytes(spark, tmp_path):
    with Written(tmp_path / "data") as zero, Written(tmp_path / "data", "10", events_max=3) as ten:
        zero.add(*MIXED)
        first = run(spark, tmp_path / "data", tmp_path / "out")
        check(tmp_path / "out", first, {"0": MIXED})

        zero.add(*LATER)
        ten.add(*MIXED[:5])
        second = run(spark, tmp_path / "data", tmp_path / "out")
        histories = {"0": MIXED + LATER, "10": MIXED[:5]}
        check(tmp_path / "out", second, histories)
        assert second.delta["state"].path == first.delta["state"].path

        rebuilt = run(spark, tmp_path / "data", tmp_path / "out", rebuild=True)
        elsewhere = run(spark, tmp_path / "data", tmp_path / "else" / "where")

    check(tmp_path / "out", rebuilt, histories)
    assert rebuilt.delta["state"].path != first.delta["state"].path
    for output, other in ((tmp_path / "out", rebuilt), (tmp_path / "else" / "where", elsewhere)):
        for name in ("events", "state"):
            assert table(output, other, name) == table(tmp_path / "out", second, name)
        assert part_bytes(output, other) == part_bytes(tmp_path / "out", second)
    assert snapshots(tmp_path / "out") == [first.id, second.id, rebuilt.id]
    # A part says of each entity which event made it so, and when.
    data = part_bytes(tmp_path / "out", second)[0]
    held = {item.target: item for item in read_part(second.parts[0].boundary, data)}
    assert held["/things/1"].entry == f"/feeds/{LOG}/0/events/{len(MIXED)}"
    assert held["/things/1"].last_modified == "Tue, 14 Nov 2023 22:13:21 GMT"
    assert held["/things/2"].validator == '"unknown"'


@pytest.mark.slow
def test_tables_are_read_by_duckdb_too(spark, tmp_path):
    with Written(tmp_path / "data") as feed:
        feed.add(*MIXED)
        index = run(spark, tmp_path / "data", tmp_path / "out")

    with duckdb.connect() as database:
        for name in ("events", "state"):
            rows = table(tmp_path / "out", index, name)
            files = _files(tmp_path / "out", index, name)
            found = database.execute(
                "SELECT ordinal, size, body FROM read_parquet($files) ORDER BY ordinal", {"files": files}
            ).fetchall()
            assert found == [(row["ordinal"], row["size"], row["body"]) for row in rows]


def _files(output: Path, index: SnapshotIndex, name: str) -> list[str]:
    import deltalake

    place = index.delta[name]
    return deltalake.DeltaTable(str(output / place.path), version=place.version).file_uris()


@pytest.mark.slow
def test_without_new_events_the_newest_snapshot_stays_the_newest(spark, tmp_path):
    with Written(tmp_path / "data") as feed:
        feed.add(*MIXED)
        first = run(spark, tmp_path / "data", tmp_path / "out")
        stages = Stages()
        assert run(spark, tmp_path / "data", tmp_path / "out", stages) == first
        assert stages.seen == ["vector"]
        assert snapshots(tmp_path / "out") == [first.id]

        # What is damaged does not count as there.
        (tmp_path / "out" / LOG / first.id / "0").write_bytes(b"short")
        second = run(spark, tmp_path / "data", tmp_path / "out")
    assert second.id != first.id
    check(tmp_path / "out", second, {"0": MIXED})


@pytest.mark.slow
def test_a_log_without_events_has_a_snapshot_without_parts(spark, tmp_path):
    with Written(tmp_path / "data") as feed:
        first = run(spark, tmp_path / "data", tmp_path / "out")
        assert (first.feeds, first.parts, first.entities, first.delta) == ((), (), 0, {})
        assert run(spark, tmp_path / "data", tmp_path / "out") == first

        feed.add(Event(Method.POST, "/things/4", "text/plain", b"done", TIME_MS))
        second = run(spark, tmp_path / "data", tmp_path / "out")
        check(tmp_path / "out", second, {"0": feed.events})
        feed.add(Event(Method.POST, "/things/4", "text/plain", b"again", TIME_MS), event(1))
        feed.add(delete("/things/1"))
        third = run(spark, tmp_path / "data", tmp_path / "out")
        check(tmp_path / "out", third, {"0": feed.events})
        feed.add(Event(Method.POST, "/things/4", "text/plain", b"last", TIME_MS))
        fourth = run(spark, tmp_path / "data", tmp_path / "out")
    assert len({first.id, second.id, third.id, fourth.id}) == 4
    assert second.parts == third.parts == fourth.parts == ()
    check(tmp_path / "out", fourth, {"0": feed.events})


@pytest.mark.slow
def test_whatever_an_event_may_be_goes_into_tables_and_parts(spark, tmp_path):
    large = bytes(range(256)) * 4096 * 8
    odd = [
        put("/broken", b"{}"),
        patch("/broken", b"{broken"),
        put("/" + "a" * 2_000, b"{}"),
        put("/" + "a" * 1_999 + "b?q=%E2%82%AC&x=1", b"{}", None),
        *(put(f"/large/{number}", large[number:], "application/octet-stream") for number in range(6)),
        put("/empty", b"", None),
        put("/typed", b"\r\n--\r\n", 'multipart/mixed; boundary="x; y"'),
        Event(Method.PUT, "/timeless", "text/plain", b"x"),
        Event(Method.PUT, "/zip", "application/json", b"\x1f\x8b", TIME_MS, (("Content-Encoding", "gzip"),)),
        patch("/zip", b'{"a":1}'),
        Event(
            Method.PUT, "/br", "application/json", b"\x00", TIME_MS, (("Content-Encoding", "br"), ("X", ""))
        ),
        patch("/large/1", b"{}"),
        patch("/large/2", b"\xff\xfe"),
    ]
    # The replay knows no patch that fails, only those that nobody can apply.
    told = [
        made._replace(content_type="text/x-diff") if made.method is Method.PATCH else made for made in odd
    ]
    with Written(tmp_path / "data") as feed:
        feed.add(*odd)
        index = run(spark, tmp_path / "data", tmp_path / "out")
        check(tmp_path / "out", index, {"0": told})
        feed.add(put("/empty", b"no more"))
        index = run(spark, tmp_path / "data", tmp_path / "out")
    check(tmp_path / "out", index, {"0": [*told, feed.events[-1]]})
    held = {
        item.target: item
        for part, data in zip(index.parts, part_bytes(tmp_path / "out", index), strict=True)
        for item in read_part(part.boundary, data)
    }
    assert held["/br"].entity.extra_headers == (("Content-Encoding", "br"), ("X", ""))
    assert held["/timeless"].last_modified is None
    assert held["/zip"].validator == '"unknown"'


@pytest.mark.slow
def test_untouched_parts_are_the_same_files_and_a_partition_that_grows_is_cut_anew(
    spark, tmp_path, monkeypatch
):
    monkeypatch.setattr("gateway.core.snapshots.PART_ENTITIES", 16)
    out = tmp_path / "out"
    with Written(tmp_path / "data") as zero, Written(tmp_path / "data", "1") as one:
        zero.add(*map(event, range(60)))
        one.add(*map(event, range(20)))
        first = run(spark, tmp_path / "data", out)
        assert cut(out, first) == {"0": 4, "1": 2}

        zero.add(event(7, body=b"changed"))
        second = run(spark, tmp_path / "data", out)
        check(out, second, {"0": zero.events, "1": one.events})
        same = [old.sha256 == new.sha256 for old, new in zip(first.parts, second.parts, strict=True)]
        assert same.count(False) == 1
        for number, is_same in enumerate(same):
            files = [out / LOG / id_ / str(number) for id_ in (first.id, second.id)]
            assert files[0].samefile(files[1]) is is_same

        # Twice as many parts, then fewer again, then one more change in what was laid out for them.
        zero.add(*map(event, range(60, 65)))
        third = run(spark, tmp_path / "data", out)
        assert cut(out, third) == {"0": 8, "1": 2}
        check(out, third, {"0": zero.events, "1": one.events})
        zero.add(event(8, body=b"changed"))
        fourth = run(spark, tmp_path / "data", out)
        check(out, fourth, {"0": zero.events, "1": one.events})
        zero.add(*(delete(f"/things/{number}") for number in range(2, 65)))
        one.add(delete("/things/1"))
        fifth = run(spark, tmp_path / "data", out)
        check(out, fifth, {"0": zero.events, "1": one.events})
        assert cut(out, fifth) == {"0": 1, "1": 2}
        rebuilt = run(spark, tmp_path / "data", out, rebuild=True, keep=2)
    assert part_bytes(out, rebuilt) == part_bytes(out, fifth)
    assert snapshots(out) == [fifth.id, rebuilt.id]
    # A rebuild of the layout, too: only the rows' place in the table may differ.
    rows, again = table(out, fifth, "state"), table(out, rebuilt, "state")
    assert [{**row, "bucket": 0} for row in rows] == [{**row, "bucket": 0} for row in again]


@pytest.mark.slow
def test_a_feed_that_started_over_gets_new_tables_and_the_old_snapshot_stays(spark, tmp_path):
    out = tmp_path / "out"
    with Written(tmp_path / "data") as feed:
        feed.add(*MIXED)
        first = run(spark, tmp_path / "data", out)
        before = part_bytes(out, first)
    for events in (MIXED[5:8], [*MIXED[3:], *MIXED, *LATER]):
        (tmp_path / "data").rename(tmp_path / f"data-{len(events)}")
        with Written(tmp_path / "data") as feed:
            feed.add(*events)
            index = run(spark, tmp_path / "data", out, keep=2)
            check(out, index, {"0": events})
            assert index.delta["state"].path != first.delta["state"].path
        if len(events) == 3:
            assert part_bytes(out, first) == before
            assert snapshots(out)[0] == first.id
    # With the last snapshot that names them, tables go as well.
    assert len(list((out / LOG / "delta").iterdir())) == 2


@pytest.mark.slow
def test_after_a_gap_the_tables_go_on(spark, tmp_path):
    out = tmp_path / "out"
    with Written(tmp_path / "data") as feed:
        feed.add(*MIXED)
        first = run(spark, tmp_path / "data", out)
        feed.paginator.add(event(50), "0" * 19 + "9", offset_before_gap="0" * 20)
        feed.store.append(feed.paginator.take())
        feed.events.append(event(50))
        second = run(spark, tmp_path / "data", out)
    assert second.delta["events"].path == first.delta["events"].path
    check(out, second, {"0": feed.events})


@pytest.mark.slow
def test_a_place_that_lags_is_no_reason_to_start_over(spark, tmp_path):
    with Written(tmp_path / "replica") as replica, Written(tmp_path / "data") as feed:
        feed.add(*MIXED, *LATER)
        replica.add(*MIXED)
        first = run(spark, tmp_path / "data", tmp_path / "out")
        with pytest.raises(FeedBehind, match=f"up to event {len(MIXED) - 1} "):
            run(spark, tmp_path / "replica", tmp_path / "out")
        replica.add(*LATER)
        assert run(spark, tmp_path / "replica", tmp_path / "out") == first


class WrongDigest(FolderPlace):
    """A place whose state is another one than its events make."""

    def vector(self):
        return replace(super().vector(), digest="0" * 64)


@pytest.mark.slow
def test_a_digest_that_the_place_denies_is_not_published(spark, tmp_path):
    with Written(tmp_path / "data") as feed:
        feed.add(*MIXED)
        place = WrongDigest(tmp_path / "data", LOG)
        with pytest.raises(DigestDiffers) as raised:
            run(spark, place, tmp_path / "out")
        assert raised.value.digest == "0" * 64
        assert raised.value.own.entities == 13
        assert snapshots(tmp_path / "out") == []
        index = run(spark, tmp_path / "data", tmp_path / "out")
        check(tmp_path / "out", index, {"0": MIXED})
        with pytest.raises(DigestDiffers):
            run(spark, place, tmp_path / "out")


@pytest.mark.slow
def test_a_damaged_page_stops_the_run_and_the_last_snapshot_stays(spark, tmp_path):
    out = tmp_path / "out"
    with Written(tmp_path / "data") as feed:
        feed.add(*MIXED)
        first = run(spark, tmp_path / "data", out)
        feed.add(*LATER, *LATER)
        file = feed.page_file(6)
        good = file.read_bytes()
        file.write_bytes(good.replace(b"number", b"NUMBER", 1))
        assert file.read_bytes() != good
        with pytest.raises(FeedLost, match="page"):
            run(spark, tmp_path / "data", out)
        assert snapshots(out) == [first.id]

        file.write_bytes(good)
        check(out, run(spark, tmp_path / "data", out), {"0": feed.events})


@pytest.mark.slow
def test_two_runs_at_once_are_refused(spark, tmp_path):
    with Written(tmp_path / "data") as feed:
        feed.add(*MIXED)
        with RunLock(tmp_path / "out" / LOG), pytest.raises(RunUnderWay):
            run(spark, tmp_path / "data", tmp_path / "out")


@pytest.mark.slow
def test_small_files_are_put_together_and_old_ones_removed_by_the_runs(spark, tmp_path):
    out = tmp_path / "out"
    with Written(tmp_path / "data") as feed:
        stages = []
        for number in range(9):
            feed.add(event(number), event(0, body=b"%d" % number))
            observer = Stages()
            index = run(spark, tmp_path / "data", out, observer, tidy_commits=4, vacuum_hours=0)
            assert entities(out, index)["0"] == replay(feed.events)
            stages.append("tidy" in observer.seen)
            assert set(observer.seen) - {"tidy"} == set(STAGES) - {"tidy"}
    assert stages == [False, False, False, True] * 2 + [False]
    # Two times four commits were put together, and one came later, which replaced the only file of states.
    check(out, index, {"0": feed.events})
    assert len(_files(out, index, "events")) == 2
    assert len(list((out / index.delta["events"].path).glob("*.parquet"))) == 2
    assert len(list((out / index.delta["state"].path).glob("partition=*/*/*.parquet"))) == 2


@pytest.mark.slow
def test_tables_may_be_at_a_uri(spark, tmp_path):
    with Written(tmp_path / "data") as feed:
        feed.add(*MIXED)
        uri = (tmp_path / "some tables").as_uri().replace("%20", " ")
        first = run(spark, tmp_path / "data", tmp_path / "out", tables=uri)
        feed.add(*LATER)
        second = run(spark, tmp_path / "data", tmp_path / "out", tables=f"{uri}/")
    assert second.delta["state"].path == first.delta["state"].path
    assert second.delta["state"].path.startswith(f"{uri}/{LOG}/")
    assert entities(tmp_path / "out", second)["0"].keys() >= {"/new"}
    assert not (tmp_path / "out" / LOG / "delta").exists()
