"""The state on RocksDB: an OrderedKV, and honest about what it cannot read."""

import os
import random
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast.machine.kv import MemoryKV, state_hash
from holdfast.storage.rocksdb import RocksState, StateDamagedError, StateError, StateMemory, read_row, table_bytes_for

ROWS = 2000


def open_state(directory: Path) -> RocksState:
    return RocksState(directory, write_buffer_bytes=1 << 20, block_cache_bytes=1 << 20)


def key(number: int) -> bytes:
    return b"k%06d" % number


def test_rows_are_read_back_in_order_and_within_bounds(tmp_path: Path) -> None:
    state = open_state(tmp_path)
    state.write({key(number): b"%d" % number for number in range(10)})
    state.write({key(3): None, key(4): b"four"})
    assert state.get(key(3)) is None
    assert state.get_many([key(9), key(3), key(4)]) == [b"9", None, b"four"]
    assert state.get_many([]) == []
    assert state.scan(key(2), key(6), 10) == [(key(2), b"2"), (key(4), b"four"), (key(5), b"5")]
    assert state.scan(key(2), key(6), 1) == [(key(2), b"2")]
    state.close()


def test_what_was_flushed_survives(tmp_path: Path) -> None:
    state = open_state(tmp_path)
    state.write({key(1): b"one"})
    state.flush()
    state.close()
    again = open_state(tmp_path)
    assert again.get(key(1)) == b"one"
    again.close()


def test_a_block_that_cannot_be_read_is_an_error_and_not_the_end(tmp_path: Path) -> None:
    """Taken for the end of the ready line, it would hide every task behind it for good."""
    state = open_state(tmp_path)
    state.write({key(number): bytes(100) for number in range(ROWS)})
    state.flush()
    state.read_all()
    state.close()
    [table] = tmp_path.glob("*.sst")
    damaged = bytearray(table.read_bytes())
    middle = len(damaged) // 2
    damaged[middle : middle + 64] = b"\xff" * 64
    table.write_bytes(damaged)
    state = open_state(tmp_path)
    with pytest.raises(StateDamagedError, match="could not be read") as caught:
        state.scan(key(0), key(ROWS), ROWS + 1)
    assert caught.value.file == table
    with pytest.raises(StateDamagedError, match=table.name):
        state.read_all()
    with pytest.raises(StateDamagedError, match=table.name), state.view() as view:
        view.scan(key(0), key(ROWS), ROWS + 1)
    state.close()


def zeros_at_the_end(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[:-20] + bytes(20))


DAMAGES: list[tuple[str, Callable[[Path], None]]] = [
    ("*.sst", Path.unlink),
    ("*.sst", lambda file: os.truncate(file, file.stat().st_size // 2)),
    ("*.sst", zeros_at_the_end),
    ("MANIFEST-*", zeros_at_the_end),
    ("CURRENT", zeros_at_the_end),
]


@pytest.mark.parametrize(("which", "damage"), DAMAGES)
def test_a_state_with_a_damaged_file_is_not_opened_and_the_file_is_named(
    tmp_path: Path, which: str, damage: Callable[[Path], None]
) -> None:
    state = open_state(tmp_path)
    state.write({key(number): bytes(100) for number in range(ROWS)})
    state.flush()
    state.close()
    [file] = tmp_path.glob(which)
    damage(file)
    with pytest.raises(StateDamagedError, match=file.name) as caught:
        open_state(tmp_path)
    assert caught.value.file == file


def test_a_view_keeps_its_moment_while_another_thread_reads_it(tmp_path: Path) -> None:
    state = open_state(tmp_path)
    state.write({key(number): b"old" for number in range(ROWS)})
    before = state_hash(state)
    hashes: list[str] = []
    with state.view() as view:
        for number in range(0, ROWS, 2):
            state.write({key(number): None, key(number + 1): b"new", key(ROWS + number): b"more"})
        state.flush()
        reader = threading.Thread(target=lambda: hashes.append(state_hash(view)))
        reader.start()
        state.write({key(1): b"newest"})
        reader.join()
        assert view.get(key(0)) == b"old"
        assert view.get(key(ROWS)) is None
        assert view.get_many([key(1), b"none"]) == [b"old", None]
        assert view.scan(key(5), key(7), 10) == [(key(5), b"old"), (key(6), b"old")]
        with pytest.raises(StateError, match="reading only"):
            view.write({key(0): b"x"})
    assert hashes == [before]
    assert state_hash(state) != before
    with pytest.raises(StateError, match="is closed"):
        view.get(key(0))
    state.close()


def test_a_view_that_somebody_forgot_does_not_keep_the_directory_locked(tmp_path: Path) -> None:
    state = open_state(tmp_path)
    state.write({key(0): b"row"})
    view = state.view()
    state.close()
    again = open_state(tmp_path)
    assert again.get(key(0)) == b"row"
    again.close()
    with pytest.raises(StateError, match="is closed"):
        view.get(key(0))


def test_a_checkpoint_has_what_was_never_flushed_and_nothing_that_came_later(tmp_path: Path) -> None:
    state = open_state(tmp_path / "state")
    state.write({key(number): bytes(100) for number in range(ROWS)})
    before = state_hash(state)
    state.checkpoint(tmp_path / "copy")
    tables = {file.name: file for file in (tmp_path / "copy").glob("*.sst")}
    assert tables
    assert all(file.samefile(tmp_path / "state" / name) for name, file in tables.items()), "a copy of links"
    state.write({key(1): b"later"})
    state.flush()
    state.close()
    shutil.rmtree(tmp_path / "state")
    names = sorted(os.listdir(tmp_path / "copy"))
    assert read_row(tmp_path / "copy", key(1)) == bytes(100)
    assert read_row(tmp_path / "copy", b"none") is None
    assert sorted(os.listdir(tmp_path / "copy")) == names, "reading a row of it leaves no trace"
    copy = open_state(tmp_path / "copy")
    assert state_hash(copy) == before
    copy.close()


def test_a_checkpoint_under_writes_is_the_state_of_one_moment(tmp_path: Path) -> None:
    """Each batch has the same number in all its rows, as each batch of a shard has its applied index."""
    state = open_state(tmp_path / "state")
    state.write({key(row): b"0" for row in range(5)})
    copied = threading.Event()

    def write() -> None:
        number = 0
        while not copied.is_set():
            number += 1
            state.write({key(row): b"%d" % number for row in range(5)} | {b"fill%06d" % number: bytes(2000)})

    writer = threading.Thread(target=write)
    writer.start()
    for number in range(5):
        state.checkpoint(tmp_path / f"copy{number}")
    copied.set()
    writer.join()
    state.close()
    for number in range(5):
        copy = open_state(tmp_path / f"copy{number}")
        assert len(set(copy.get_many([key(row) for row in range(5)]))) == 1
        copy.close()


@pytest.mark.parametrize("work", ["flush", "checkpoint"])
def test_closing_waits_for_what_another_thread_is_at(tmp_path: Path, work: str) -> None:
    """The binding would refuse to close, and the directory would stay locked."""
    state = RocksState(tmp_path / "state", memory=StateMemory(1 << 20, 128 << 20))
    for batch in range(200):
        state.write({key(100 * batch + row): bytes(1000) for row in range(100)})
    with ThreadPoolExecutor() as thread:
        working = thread.submit(state.flush) if work == "flush" else thread.submit(state.checkpoint, tmp_path / "copy")
        while not working.done() and not list((tmp_path / "state").glob("*.sst")):
            time.sleep(0)
        state.close()
        assert (tmp_path / "copy").exists() == (work == "checkpoint"), "it was waited for to its end"
        working.result()
    again = open_state(tmp_path / "state")
    assert again.get(key(19_999)) == bytes(1000)
    again.close()


def test_a_checkpoint_that_cannot_be_made_says_so(tmp_path: Path) -> None:
    state = open_state(tmp_path / "state")
    (tmp_path / "there").mkdir()
    with pytest.raises(StateError, match="could not be copied"):
        state.checkpoint(tmp_path / "there")
    with pytest.raises(StateError, match="could not be read"):
        read_row(tmp_path / "nowhere", b"key")
    assert not (tmp_path / "nowhere").exists()
    state.close()


def test_many_states_share_one_cache_and_one_budget(tmp_path: Path) -> None:
    budget_bytes = 4 << 20
    memory = StateMemory(block_cache_bytes=2 << 20, write_buffer_bytes=budget_bytes)
    states = [RocksState(tmp_path / str(number), memory=memory) for number in range(64)]
    for state in states:
        state.write({key(0): b"a little"})
    assert memory.write_buffers.get_usage() < budget_bytes / 4, "a shard that is hardly used takes hardly any of it"
    for state in states:
        state.write({key(number): bytes(100) for number in range(ROWS)})
    while not list(tmp_path.glob("*/*.sst")):  # what all wrote together was too much: RocksDB flushes, in its threads
        time.sleep(0.001)
    for state in states:
        state.flush()
        assert len(state.scan(key(0), key(ROWS), ROWS)) == ROWS
    assert 0 < memory.block_cache.get_usage() <= 3 << 20
    for state in states:
        state.close()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a priority for each thread")
def test_compactions_give_way_to_all_others(tmp_path: Path) -> None:
    state = open_state(tmp_path)
    threads = {int(thread.name): (thread / "comm").read_bytes() for thread in Path("/proc/self/task").iterdir()}
    own = os.getpriority(os.PRIO_PROCESS, 0)
    niceness = {thread: os.getpriority(os.PRIO_PROCESS, thread) - own for thread in threads}
    assert [niceness[thread] for thread, name in threads.items() if name.startswith(b"rocksdb:low")] == [5]
    assert [niceness[thread] for thread, name in threads.items() if name.startswith(b"rocksdb:high")] == [0]
    assert niceness[threading.get_native_id()] == 0
    state.close()


def files_by_level(directory: Path) -> list[int]:
    """After the last flush or compaction, as RocksDB logs it."""
    return [
        int(count) for count in re.findall(r'"lsm_state": \[(.*?)\]', (directory / "LOG").read_text())[-1].split(",")
    ]


def test_files_are_small_for_one_that_is_synced_or_deleted_holds_up_the_log(tmp_path: Path) -> None:
    state = open_state(tmp_path)
    rng = random.Random(0)
    for part in range(4):  # so many flushed files are compacted
        state.write({key(number): rng.randbytes(4096) for number in range(part, 4 * ROWS, 4)})
        state.flush()
    until_s = time.monotonic() + 60
    while files_by_level(tmp_path)[0]:
        assert time.monotonic() < until_s, "there was no compaction"
        time.sleep(0.01)
    state.close()
    sizes = [table.stat().st_size for table in tmp_path.glob("*.sst")]
    assert sum(sizes) > 4 * ROWS * 4096
    assert max(sizes) < 9 * 1024 * 1024


def test_large_states_have_larger_files_so_that_they_are_not_too_many() -> None:
    mib, gib = 1024**2, 1024**3
    assert [table_bytes_for(size) // mib for size in (0, 3 * gib, 4 * gib, 12 * gib, 13 * gib, 40 * gib)] == [
        8, 8, 16, 32, 64, 64,
    ]  # fmt: skip


def test_a_state_that_grows_or_shrinks_fits_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.storage.rocksdb.TABLES_WANTED", 0.1)  # so that little is much

    def written() -> str:
        newest = max(tmp_path.glob("OPTIONS-*"))
        [line] = [line for line in newest.read_text().splitlines() if line.strip().startswith("target_file_size_base")]
        return line.partition("=")[2]

    state = open_state(tmp_path)
    state.write({key(number): random.Random(number).randbytes(1000) for number in range(ROWS)})
    state.flush()
    assert written() == str(32 * 1024 * 1024)
    state.close()
    state = open_state(tmp_path)  # it knows by its files how large it is
    assert written() == str(32 * 1024 * 1024)
    monkeypatch.undo()
    state.flush()
    assert written() == str(8 * 1024 * 1024)
    state.close()


def test_files_that_cannot_be_fitted_do_not_undo_a_flush(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is cut behind a flush, which is what makes room."""
    state = open_state(tmp_path)
    state.write({key(1): b"one"})
    state.flush()
    monkeypatch.setattr("holdfast.storage.rocksdb.TABLES_WANTED", 0)
    shutil.rmtree(tmp_path)  # nothing new can be written
    state.flush()
    assert state.table_bytes == 8 * 1024 * 1024, "they were fitted"
    state.close()


def test_scans_are_those_of_the_twin(tmp_path: Path) -> None:
    """Also where much was deleted, before, within and behind a range."""
    rng = random.Random(5)
    twin, state = MemoryKV(), open_state(tmp_path)

    def some_key() -> bytes:
        return bytes(rng.choices(b"\x00ab\xff", k=rng.randint(1, 3)))

    for _ in range(40):
        changes = {some_key(): rng.choice((None, b"v")) for _ in range(rng.randint(1, 20))}
        state.write(changes)
        twin.write(changes)
        if rng.random() < 0.2:
            state.flush()
        for _ in range(20):
            (start, stop), limit = sorted((some_key(), some_key())), rng.randint(1, 9)
            assert state.scan(start, stop, limit) == twin.scan(start, stop, limit)
    state.close()


@pytest.mark.parametrize("seed", range(4))
def test_what_is_written_and_read_while_another_thread_flushes_is_as_in_the_twin(tmp_path: Path, seed: int) -> None:
    """What is in memory, on its way to the disk and on it is one state, in every order of these."""
    rng = random.Random(seed)
    twin, state = MemoryKV(), open_state(tmp_path)
    flushes = 0
    with ThreadPoolExecutor(1) as thread:
        flushing = thread.submit(state.flush)
        for _ in range(300):
            changes = {
                key(rng.randrange(400)): None if rng.random() < 0.4 else rng.randbytes(rng.randrange(2000))
                for _ in range(rng.randrange(1, 60))
            }
            state.write(changes)
            twin.write(changes)
            if flushing.done():
                flushing.result()
                flushes += 1
                flushing = thread.submit(state.flush)
            wanted = [key(rng.randrange(400)) for _ in range(10)]
            assert state.get_many(wanted) == twin.get_many(wanted) == [state.get(one) for one in wanted]
            start, stop = sorted(key(rng.randrange(420)) for _ in range(2))
            limit = rng.choice((1, 5, 1000))
            assert state.scan(start, stop, limit) == twin.scan(start, stop, limit)
    assert flushes > 2
    assert state_hash(state) == state_hash(twin)
    state.close()


def test_what_is_not_on_disk_yet_is_bounded_in_bytes_without_anybody_flushing(tmp_path: Path) -> None:
    """However much is written: the memory is that of the budget, and what was written and deleted meanwhile never
    reaches the disk."""
    budget_bytes, rows = 8 << 20, [random.Random(number).randbytes(1000) for number in range(100)]
    memory = StateMemory(block_cache_bytes=1 << 20, write_buffer_bytes=budget_bytes)
    state = RocksState(tmp_path, memory=memory)
    most_bytes = written_bytes = 0
    for batch in range(800):
        state.write({key(100 * batch + number): row for number, row in enumerate(rows)})
        if batch:
            state.write({key(100 * (batch - 1) + number): None for number in range(100)})
        written_bytes += 100 * 1000
        most_bytes = max(most_bytes, memory.write_buffers.get_usage())
    assert written_bytes > 9 * budget_bytes
    assert most_bytes < 1.5 * budget_bytes
    state.flush()
    assert len(state.scan(key(0), key(80_000), 1000)) == 100
    until_s = time.monotonic() + 60
    while state.size_bytes > written_bytes / 10:
        assert time.monotonic() < until_s, "what was deleted is there"
        time.sleep(0.01)
    state.close()
