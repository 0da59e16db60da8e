"""The durable log: order, recovery, limits, and what it survives."""

from __future__ import annotations

import asyncio
import resource
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.core.errors import InvalidSetting, StoreLocked
from gateway.node import writer
from gateway.node.errors import AppendFailed, PartitionsChanged, WrongFormat
from gateway.node.lock import lock_folder
from gateway.node.schema import Entry, offset_of, write_entries
from gateway.node.server import clock_ms
from gateway.node.settings import LogSettings, NodeSettings
from gateway.node.store import LogStore
from tests.node.support import run, until


def opened(
    folder: Path,
    *,
    partitions: int = 1,
    settings: NodeSettings | None = None,
    clock: Callable[[], int] = clock_ms,
) -> LogStore:
    return LogStore(folder, LogSettings("events", partitions), settings or NodeSettings(), clock)


async def append(store: LogStore, *messages: bytes, position: int = 0) -> list[AppendFailed | None]:
    results: list[AppendFailed | None] = []
    for message in messages:
        store.append(position, message, split=0, done=results.append)
    await until(lambda: len(results) == len(messages))
    return results


async def read(store: LogStore, sequence: int = 0, *, position: int = 0) -> list[Entry]:
    """All entries from `sequence` on, from the disk."""
    entries: list[Entry] = []
    while True:
        found: list[list[Entry] | None] = []
        store.read(position, sequence, found.append)
        await until(lambda found=found: found)
        assert found[0] is not None
        if not found[0]:
            return entries
        entries += found[0]
        sequence = entries[-1].sequence + 1


def test_events_keep_their_order_and_are_there_after_reopening(tmp_path: Path) -> None:
    messages = [b"event %d" % number for number in range(2000)]

    async def scenario() -> None:
        store = opened(tmp_path)
        assert await append(store, *messages[:1500]) == [None] * 1500
        await store.close()
        store = opened(tmp_path)
        assert await append(store, *messages[1500:]) == [None] * 500
        entries = await read(store)
        assert [entry.message for entry in entries] == messages
        assert [entry.sequence for entry in entries] == list(range(2000))
        assert store.partitions[0].earliest == 0
        assert store.partitions[0].next_sequence == 2000
        await store.close()

    run(scenario)


def test_offsets_in_the_order_of_text_are_in_the_order_of_the_log() -> None:
    offsets = [offset_of(sequence) for sequence in (0, 9, 10, 99, 100, 10**9, 2**63 - 1)]
    assert offsets == sorted(offsets)
    assert {len(offset) for offset in offsets} == {20}


def test_timestamps_never_decrease_even_when_the_clock_does(tmp_path: Path) -> None:
    moments = iter([1000, 2000, 500, 600, 3000])

    async def scenario() -> None:
        store = opened(tmp_path, clock=lambda: next(moments))
        for number in range(3):
            await append(store, b"%d" % number)
        await store.close()
        store = opened(tmp_path, clock=lambda: next(moments))
        for number in range(2):
            await append(store, b"%d" % number)
        assert [entry.timestamp for entry in await read(store)] == [1000, 2000, 2000, 2000, 3000]
        await store.close()

    run(scenario)


def test_what_is_in_memory_is_what_is_on_disk(tmp_path: Path) -> None:
    settings = NodeSettings(tail_messages_max=100)

    async def scenario() -> None:
        store = opened(tmp_path, settings=settings)
        for turn in range(30):
            await append(store, *(b"%d.%d" % (turn, number) for number in range(11)))
        entries = await read(store)
        assert store.recent(0, 0) is None
        assert store.recent(0, 330) == []
        assert store.recent(0, 1000) == []
        held = [sequence for sequence in range(330) if store.recent(0, sequence) is not None]
        assert held == list(range(330 - len(held), 330))
        assert 50 <= len(held) <= 111
        for sequence in held:
            assert store.recent(0, sequence) == entries[sequence:]
        await store.close()

    run(scenario)


def test_memory_is_bounded_by_bytes_for_the_whole_log(tmp_path: Path) -> None:
    settings = NodeSettings(tail_bytes_max=10_000)

    async def scenario() -> None:
        store = opened(tmp_path, partitions=2, settings=settings)
        for _ in range(50):
            await append(store, b"x" * 1000, position=0)
            await append(store, b"x" * 1000, position=1)
            assert sum(partition.tail_bytes for partition in store.partitions) <= 10_000
        await append(store, b"x" * 100_000)
        assert store.partitions[0].tail == []
        assert store.recent(0, 50) is None
        await store.close()

    run(scenario)


def test_reads_are_bounded_by_count_and_by_bytes(tmp_path: Path) -> None:
    settings = NodeSettings(read_messages_max=10, read_bytes_max=5000)

    async def scenario() -> None:
        store = opened(tmp_path, settings=settings)
        await append(store, *([b"x"] * 20), *([b"y" * 2000] * 5), b"z" * 100_000)
        sizes = {}
        for sequence in (0, 20, 25):
            found: list[list[Entry] | None] = []
            store.read(0, sequence, found.append)
            await until(lambda found=found: found)
            assert found[0] is not None
            sizes[sequence] = len(found[0])
        assert sizes == {0: 10, 20: 3, 25: 1}
        await store.close()

    run(scenario)


def test_the_first_event_at_a_time_is_found(tmp_path: Path) -> None:
    moments = iter([100, 100, 200, 200, 200, 300])

    async def scenario() -> None:
        store = opened(tmp_path, clock=lambda: next(moments))
        found: list[int | None] = []
        store.find(0, 100, found.append)
        await until(lambda: found)
        for number in range(6):
            await append(store, b"%d" % number)
        for moment in (-(2**63), 0, 100, 101, 200, 201, 300, 301, 2**63 - 1):
            store.find(0, moment, found.append)
        await until(lambda: len(found) == 10)
        assert found == [0, 0, 0, 0, 2, 2, 5, 5, 6, 6]
        await store.close()

    run(scenario)


def test_partitions_do_not_touch_each_other(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = opened(tmp_path, partitions=3)
        await append(store, b"a", b"b", position=1)
        await append(store, b"c", position=2)
        assert [entry.message for entry in await read(store, position=0)] == []
        assert [entry.message for entry in await read(store, position=1)] == [b"a", b"b"]
        assert [entry.message for entry in await read(store, position=2)] == [b"c"]
        await store.close()

    run(scenario)


def test_another_number_of_partitions_is_refused_with_both_numbers(tmp_path: Path) -> None:
    async def scenario() -> None:
        await opened(tmp_path, partitions=2).close()
        with pytest.raises(PartitionsChanged, match="has 2 partitions and cannot get 3"):
            opened(tmp_path, partitions=3)
        await opened(tmp_path, partitions=2).close()

    run(scenario)


def test_a_file_of_another_format_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        await opened(tmp_path).close()
        with sqlite3.connect(tmp_path / "events.sqlite") as connection:
            connection.execute("PRAGMA user_version = 7")
        connection.close()
        with pytest.raises(WrongFormat, match="format 7"):
            opened(tmp_path)

    run(scenario)


@pytest.mark.parametrize("content", [b"this is no database at all" * 100, None], ids=["text", "other"])
def test_a_file_of_another_program_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "events.sqlite"
    if content is None:
        with sqlite3.connect(path) as connection:
            connection.execute("CREATE TABLE notes (text)")
        connection.close()
    else:
        path.write_bytes(content)

    async def scenario() -> None:
        with pytest.raises(WrongFormat, match=r"events\.sqlite cannot be used"):
            opened(tmp_path)

    run(scenario)


@pytest.mark.parametrize("name", ["", "../events", "a/b", "$info", ".hidden", "x" * 101])
def test_a_log_name_that_is_no_plain_file_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidSetting):
        LogSettings(name)


def test_a_second_holder_of_the_folder_is_refused_with_the_first_ones_process(
    tmp_path: Path,
) -> None:
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import pathlib, sys, time\n"
            "from gateway.storage.files import FolderLock\n"
            "lock = FolderLock(pathlib.Path(sys.argv[1]))\n"
            "print('held', flush=True)\n"
            "time.sleep(60)\n",
            str(tmp_path),
        ],
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None

    async def scenario() -> None:
        with pytest.raises(StoreLocked, match=f", process {holder.pid}: stop it"):
            await lock_folder(tmp_path, wait_ms=100)
        # A holder that is just dying is waited for.
        asyncio.get_running_loop().call_later(0.1, holder.kill)
        lock = await lock_folder(tmp_path, wait_ms=5000)
        lock.release()

    try:
        assert holder.stdout.readline() == b"held\n"
        run(scenario)
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()


def test_a_full_disk_fails_appends_and_nothing_else_and_recovers(tmp_path: Path) -> None:
    """The limit on the size of files stands for the disk: the kernel refuses the write."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    async def scenario() -> None:
        store = opened(tmp_path, settings=NodeSettings(tail_messages_max=2, tail_bytes_max=1000))
        before = [b"before %d" % number for number in range(5)]
        assert await append(store, *before) == [None] * 5
        resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, hard))
        try:
            results: list[AppendFailed | None] = []
            for _ in range(5):
                results += await append(store, b"x" * 3_000_000)
            assert all(isinstance(result, AppendFailed) for result in results)
            assert store.backlog_bytes == 0
            assert [entry.message for entry in await read(store)] == before
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert await append(store, b"after") == [None]
        assert [entry.message for entry in await read(store)] == [*before, b"after"]
        assert [entry.sequence for entry in await read(store)] == list(range(6))
        await store.close()

    run(scenario)


def test_an_event_that_was_refused_is_not_in_the_log_even_if_its_commit_reached_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_and_fail(connection: sqlite3.Connection, batch: dict[int, list[Entry]]) -> None:
        write_entries(connection, batch)
        monkeypatch.setattr(writer, "write_entries", write_entries)
        raise sqlite3.OperationalError("disk I/O error")

    async def scenario() -> None:
        store = opened(tmp_path, partitions=2)
        assert await append(store, b"first") == [None]
        monkeypatch.setattr(writer, "write_entries", write_and_fail)
        (error,) = await append(store, b"refused")
        assert isinstance(error, AppendFailed)
        assert await append(store, b"second", b"third") == [None, None]
        assert [entry.message for entry in await read(store)] == [b"first", b"second", b"third"]
        await store.close()
        store = opened(tmp_path, partitions=2)
        assert store.partitions[0].next_sequence == 3
        await store.close()

    run(scenario)


def test_closing_commits_what_is_queued(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = opened(tmp_path)
        results: list[AppendFailed | None] = []
        for number in range(500):
            store.append(0, b"%d" % number, split=0, done=results.append)
        await store.close()
        assert results == [None] * 500
        store = opened(tmp_path)
        assert len(await read(store)) == 500
        await store.close()

    run(scenario)


WRITE_UNTIL_KILLED = """
import asyncio, pathlib, sys
from gateway.node.server import clock_ms
from gateway.node.settings import LogSettings, NodeSettings
from gateway.node.store import LogStore

async def main():
    store = LogStore(pathlib.Path(sys.argv[1]), LogSettings("events", 2), NodeSettings(), clock_ms)
    number = int(sys.argv[2])
    while True:
        for _ in range(50):
            def done(error, number=number):
                assert error is None
                sys.stdout.write(f"{number}\\n")
                sys.stdout.flush()
            store.append(number % 2, b"event %d" % number, split=0, done=done)
            number += 1
        await asyncio.sleep(0.001)

asyncio.run(main())
"""


def test_no_acknowledged_event_is_missing_after_kill_9_under_load(tmp_path: Path) -> None:
    acknowledged: list[int] = []
    for turn in range(3):
        child = subprocess.Popen(
            [sys.executable, "-c", WRITE_UNTIL_KILLED, str(tmp_path), str(turn * 1_000_000)],
            stdout=subprocess.PIPE,
        )
        assert child.stdout is not None
        lines = [child.stdout.readline() for _ in range(700 + 300 * turn)]
        child.send_signal(signal.SIGKILL)
        lines += child.stdout.readlines()
        child.wait()
        child.stdout.close()
        acknowledged += [int(line) for line in lines if line.endswith(b"\n")]
    assert len(acknowledged) >= 3000

    async def scenario() -> None:
        store = opened(tmp_path, partitions=2)
        for position in (0, 1):
            entries = await read(store, position=position)
            assert [entry.sequence for entry in entries] == list(range(len(entries)))
            numbers = [int(entry.message.split()[1]) for entry in entries]
            wanted = [number for number in acknowledged if number % 2 == position]
            assert numbers == sorted(set(numbers))
            assert set(wanted) <= set(numbers)
        await store.close()

    run(scenario)
