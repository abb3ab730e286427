"""The log as its user sees it: staging, rounds, replay, roll-over and cut."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.wal.disk import DiskFailedError, RealDisk
from holdfast.wal.frames import BLOCK_BYTES, FRAME_BODY_BYTES_MAX
from holdfast.wal.node_log import LogRecord, NodeLog
from tests.simulation.fake_disk import FakeDisk
from tests.unit.wal.node_logs import SEGMENT_BYTES, append, files, flush, reopen


class TestRounds:
    def test_an_empty_directory_is_a_new_log(self, disk: FakeDisk) -> None:
        log = reopen(disk)
        assert (log.first_index(1), log.last_index(1), log.size_bytes) == (0, 0, 0)
        assert list(log.entries(1, 0)) == []
        assert log.hard_states == {}
        assert log.begin_flush() is None
        log.close(clean=True)
        assert files(disk) == []

    @pytest.mark.parametrize("segment_bytes", [0, 4096, 1 << 31])
    def test_a_segment_size_out_of_range_is_refused(self, disk: FakeDisk, segment_bytes: int) -> None:
        with pytest.raises(ValueError, match="segment_bytes must be"):
            NodeLog.open(disk, segment_bytes=segment_bytes)

    def test_only_published_rounds_count(self, disk: FakeDisk) -> None:
        log = reopen(disk)
        log.stage_entry(1, 1, 1, b"a")
        assert log.staged_bytes > 0
        started = log.begin_flush()
        assert started is not None
        assert log.staged_bytes == 0
        assert started.size_bytes > 0
        assert log.last_index(1) == 0
        started.run()
        assert log.last_index(1) == 0
        assert list(log.entries(1, 0)) == []
        started.done()
        assert log.last_index(1) == 1
        assert list(log.entries(1, 0)) == [LogRecord(1, 1, 1, b"a")]

    def test_what_is_staged_during_a_flush_belongs_to_the_next(self, disk: FakeDisk) -> None:
        log = reopen(disk)
        log.stage_entry(1, 1, 1, b"a")
        first = log.begin_flush()
        assert first is not None
        log.stage_entry(1, 2, 1, b"b")
        with pytest.raises(RuntimeError, match="one flush at a time"):
            log.begin_flush()
        first.run()
        first.done()
        assert log.last_index(1) == 1
        disk.crash()
        log = reopen(disk)
        assert [entry.payload for entry in log.entries(1, 0)] == [b"a"]

    def test_one_round_costs_one_sync(self, disk: FakeDisk) -> None:
        log = NodeLog.open(disk, segment_bytes=1 << 20)
        append(log, 1, [1])
        before = disk.sync_count
        for index in range(2, 4):
            log.stage_hard_state(index, b"vote")
            append(log, 1, [index])
        assert disk.sync_count == before + 2

    def test_the_steps_of_a_flush_have_an_order(self, disk: FakeDisk) -> None:
        log = reopen(disk)
        log.stage_entry(1, 1, 1, b"a")
        started = log.begin_flush()
        assert started is not None
        with pytest.raises(RuntimeError, match="is not written"):
            started.done()
        started.run()
        with pytest.raises(RuntimeError, match="is written"):
            started.run()
        with pytest.raises(RuntimeError, match="is written"):
            started.abort()
        started.done()
        with pytest.raises(RuntimeError, match="is ended"):
            started.done()

    def test_indexes_are_contiguous_per_shard(self, disk: FakeDisk) -> None:
        log = reopen(disk)
        with pytest.raises(ValueError, match="entry 1 or more of shard 1 next, but got 0"):
            log.stage_entry(1, 0, 1, b"")
        append(log, 1, [5, 6])
        append(log, 2, [1])
        for wrong in (5, 6, 8):
            with pytest.raises(ValueError, match=f"Expected entry 7 of shard 1 next, but got {wrong}"):
                log.stage_entry(1, wrong, 1, b"")
        assert log.begin_flush() is None
        append(log, 1, [7])
        assert (log.first_index(1), log.last_index(1)) == (5, 7)

    def test_numbers_out_of_range_are_refused_and_change_nothing(self, disk: FakeDisk) -> None:
        log = reopen(disk)
        with pytest.raises(ValueError, match="in range"):
            log.stage_entry(-1, 1, 1, b"")
        with pytest.raises(ValueError, match="in range"):
            log.stage_entry(1, 1, -1, b"")
        with pytest.raises(ValueError, match="in range"):
            log.stage_hard_state(1 << 32, b"")
        assert log.begin_flush() is None
        append(log, 1, [1])

    def test_a_round_has_a_largest_size(self, disk: FakeDisk, monkeypatch: pytest.MonkeyPatch) -> None:
        assert FRAME_BODY_BYTES_MAX < 1 << 31
        monkeypatch.setattr("holdfast.wal.frames.FRAME_BODY_BYTES_MAX", 1000)
        log = reopen(disk)
        log.stage_entry(1, 1, 1, bytes(900))
        with pytest.raises(ValueError, match="at most 1000 staged bytes"):
            log.stage_entry(1, 2, 1, bytes(100))
        flush(log)
        assert log.last_index(1) == 1


class TestReplay:
    def test_everything_is_there_after_a_restart(self, disk: FakeDisk) -> None:
        log = reopen(disk)
        log.stage_hard_state(1, b"old")
        one = append(log, 1, range(1, 20), size=500)
        log.stage_hard_state(1, b"new")
        log.stage_hard_state(2, b"other")
        two = append(log, 2, range(100, 120), size=500)
        disk.crash()
        log = reopen(disk)
        assert log.hard_states == {1: b"new", 2: b"other"}
        assert list(log.entries(1, 0)) == one
        assert list(log.entries(2, 109)) == two[10:]
        assert list(log.entries(2, 119)) == []
        assert (log.first_index(2), log.last_index(2)) == (100, 119)
        append(log, 2, [120])

    def test_entries_end_where_the_log_ended_when_reading_began(self, disk: FakeDisk) -> None:
        log = reopen(disk)
        entries = append(log, 1, range(1, 4))
        reading = log.entries(1, 0)
        assert next(reading) == entries[0]
        append(log, 1, [4])
        assert list(reading) == entries[1:]

    def test_memory_for_reading_is_bounded(self, disk: FakeDisk) -> None:
        largest = 0

        class Watching(FakeDisk):
            def read(self, handle: int, offset: int, length: int) -> bytes:
                nonlocal largest
                data = super().read(handle, offset, length)
                largest = max(largest, len(data))
                return data

        log = NodeLog.open(Watching(random.Random(0)), segment_bytes=8 << 20)
        append(log, 1, range(1, 60), size=100_000)
        assert sum(len(entry.payload) for entry in log.entries(1, 0)) == 59 * 100_000
        assert largest <= 256 * 1024

    def test_a_truncation_reaches_back_over_segments(self, disk: FakeDisk) -> None:
        log = reopen(disk)
        entries = [entry for start in range(1, 50, 5) for entry in append(log, 1, range(start, start + 5), 3000)]
        assert len(files(disk)) > 3
        log.stage_truncate(1, 8)
        flush(log)
        assert list(log.entries(1, 0)) == entries[:7]
        with pytest.raises(ValueError, match="Expected entry 8"):
            log.stage_entry(1, 51, 1, b"")
        log = reopen(disk)
        assert list(log.entries(1, 0)) == entries[:7]
        append(log, 1, [8])

    def test_a_truncation_after_the_end_is_refused(self, disk: FakeDisk) -> None:
        log = reopen(disk)
        append(log, 1, [1, 2])
        for wrong in (4, -1):
            with pytest.raises(ValueError, match="Expected to truncate shard 1 at 0 to 3"):
                log.stage_truncate(1, wrong)

    def test_a_truncation_from_zero_lets_a_shard_begin_anew(self, disk: FakeDisk) -> None:
        log = reopen(disk)
        append(log, 1, range(1, 6))
        log.stage_truncate(1, 0)
        log.stage_hard_state(1, b"snapshot 200")
        entries = append(log, 1, [201, 202])
        for found in (log, reopen(disk)):
            assert list(found.entries(1, 0)) == entries
            assert found.first_index(1) == 201

    def test_a_truncation_under_a_reader_is_not_silent(self, disk: FakeDisk) -> None:
        log = reopen(disk)
        append(log, 1, range(1, 6))
        reading = log.entries(1, 0)
        next(reading)
        log.stage_truncate(1, 2)
        flush(log)
        with pytest.raises(LookupError):
            next(reading)


class TestSegments:
    def test_the_next_segment_is_there_before_it_is_needed(self, disk: FakeDisk) -> None:
        log = reopen(disk)
        for index in range(1, 5):
            append(log, 1, [index])
        assert files(disk) == ["0000000000000001.log", "0000000000000002.log"]
        assert log.allocated_bytes == 2 * SEGMENT_BYTES
        before = disk.sync_count
        for index in range(5, 9):
            append(log, 1, [index])
        assert disk.sync_count == before + 4
        assert log.size_bytes == 10 * BLOCK_BYTES

    def test_an_entry_larger_than_a_segment_gets_a_larger_one(self, disk: FakeDisk) -> None:
        log = reopen(disk)
        entries = append(log, 1, [1], size=3 * SEGMENT_BYTES)
        entries += append(log, 1, [2])
        entries += append(log, 1, [3], size=5 * SEGMENT_BYTES)
        entries += append(log, 1, [4])
        assert list(log.entries(1, 0)) == entries
        disk.crash()
        assert list(reopen(disk).entries(1, 0)) == entries

    def test_small_and_large_payloads_of_one_round_stay_in_order(self, disk: FakeDisk) -> None:
        log = NodeLog.open(disk, segment_bytes=1 << 20)
        sizes = [10, 20_000, 0, 5, 400_000, 16_384, 16_383, 1]
        for index, size in enumerate(sizes, start=1):
            log.stage_entry(1, index, 1, bytes([index]) * size)
        flush(log)
        expected = [bytes([index]) * size for index, size in enumerate(sizes, start=1)]
        assert [entry.payload for entry in log.entries(1, 0)] == expected
        assert [entry.payload for entry in reopen(disk).entries(1, 0)] == expected

    def test_files_that_are_no_segments_are_left_alone(self, disk: FakeDisk) -> None:
        disk.create("lost+found", 10)
        log = reopen(disk)
        append(log, 1, [1])
        assert list(reopen(disk).entries(1, 0)) != []
        assert "lost+found" in files(disk)

    def test_bytes_after_counts_what_a_shard_pins(self, disk: FakeDisk) -> None:
        log = reopen(disk)
        append(log, 2, [1])
        for index in range(1, 41):
            append(log, 1, [index], size=2000)
        assert log.bytes_after(1, 40) == 0
        assert log.bytes_after(3, 0) == 0
        assert 0 < log.bytes_after(1, 39) <= BLOCK_BYTES
        assert log.bytes_after(1, 0) < log.bytes_after(2, 0) < log.size_bytes
        counts = [log.bytes_after(1, index) for index in range(41)]
        assert counts == sorted(counts, reverse=True)


class TestCut:
    def fill(self, log: NodeLog) -> None:
        log.stage_hard_state(1, b"one")
        log.stage_hard_state(2, b"two")
        append(log, 2, [1])
        for index in range(1, 41):
            append(log, 1, [index], size=2000)

    def test_leading_segments_below_the_indexes_go(self, disk: FakeDisk) -> None:
        log = reopen(disk)
        self.fill(log)
        allocated = log.allocated_bytes
        freed = log.cut({1: 20, 2: 2})
        assert freed > 0
        assert log.allocated_bytes == allocated - freed
        first = log.first_index(1)
        assert 10 < first <= 20
        assert log.first_index(2) == log.last_index(2) == 0
        disk.crash()
        log = reopen(disk)
        assert [entry.index for entry in log.entries(1, 0)] == list(range(first, 41))
        assert log.hard_states == {1: b"one", 2: b"two"}

    def test_a_shard_that_still_needs_its_entries_pins_the_log(self, disk: FakeDisk) -> None:
        log = reopen(disk)
        self.fill(log)
        assert log.cut({1: 41, 2: 1}) == 0
        assert log.cut({1: 41}) == 0
        assert log.cut({}) == 0
        assert log.cut({1: 1, 2: 2}) == 0

    def test_the_active_segment_stays(self, disk: FakeDisk) -> None:
        log = reopen(disk)
        self.fill(log)
        active = [name for name in files(disk) if any(disk.content(name)[BLOCK_BYTES:])][-1]
        log.cut({1: 1000, 2: 1000})
        assert active in files(disk)
        append(log, 1, [41])
        append(log, 2, [2])
        log = reopen(disk)
        assert (log.last_index(1), log.last_index(2)) == (41, 2)

    def test_entries_that_a_truncation_voided_pin_nothing(self, disk: FakeDisk) -> None:
        log = reopen(disk)
        self.fill(log)
        log.stage_truncate(2, 0)
        flush(log)
        assert log.cut({1: 41}) > 0
        assert reopen(disk).last_index(2) == 0

    def test_a_reader_of_cut_entries_is_told(self, disk: FakeDisk) -> None:
        log = reopen(disk)
        self.fill(log)
        reading = log.entries(1, 0)
        next(reading)
        log.cut({1: 41, 2: 2})
        with pytest.raises(LookupError, match="was cut"):
            list(reading)

    def test_a_failing_cut_puts_the_log_out_of_use(self, disk: FakeDisk, monkeypatch: pytest.MonkeyPatch) -> None:
        log = reopen(disk)
        self.fill(log)

        def fail() -> None:
            raise DiskFailedError("broken")

        monkeypatch.setattr(disk, "fsync_directory", fail)
        with pytest.raises(DiskFailedError):
            log.cut({1: 41, 2: 2})
        with pytest.raises(DiskFailedError, match="out of use: broken"):
            log.begin_flush()


class TestRealDisk:
    def test_a_life_on_a_real_directory(self, tmp_path: Path) -> None:
        log = reopen(RealDisk(tmp_path / "log"))
        entries = [entry for index in range(1, 41) for entry in append(log, 1, [index], size=2000)]
        log.stage_hard_state(1, b"vote")
        flush(log)
        log.close(clean=True)
        log = reopen(RealDisk(tmp_path / "log"))
        assert log.was_closed
        assert log.hard_states == {1: b"vote"}
        assert list(log.entries(1, 0)) == entries
        freed = log.cut({1: 30})
        assert freed > 0
        entries += append(log, 1, [41], size=200_000)
        log.close(clean=False)
        log = reopen(RealDisk(tmp_path / "log"))
        assert list(log.entries(1, 29)) == entries[29:]
        log.close(clean=False)

    def test_flush_cut_and_replay_in_threads_of_their_own(self, tmp_path: Path) -> None:
        log = reopen(RealDisk(tmp_path / "log"))
        stop = threading.Event()

        def cut_and_read() -> None:
            while not stop.is_set():
                last = log.last_index(1)
                log.cut({1: last - 5})
                found = [entry.index for entry in log.entries(1, last - 3)]
                assert found == list(range(max(last - 2, 1), max(last - 2, 1) + len(found)))

        with ThreadPoolExecutor(1) as threads:
            cutting = threads.submit(cut_and_read)
            for index in range(1, 151):
                append(log, 1, [index], size=2000)
            stop.set()
            cutting.result()
        log.cut({1: 100})
        log.close(clean=True)
        log = reopen(RealDisk(tmp_path / "log"))
        assert log.last_index(1) == 150
        assert log.first_index(1) > 1
        log.close(clean=False)


@st.composite
def _operations(draw: st.DrawFn) -> tuple[str, int, int]:
    kind = draw(st.sampled_from(["entry", "entry", "entry", "hard_state", "truncate", "flush", "restart"]))
    return kind, draw(st.integers(1, 2)), draw(st.integers(0, 9000))


@settings(max_examples=60, deadline=None)
@given(st.lists(_operations(), max_size=60))
def test_the_log_is_a_list_per_shard(operations: list[tuple[str, int, int]]) -> None:
    disk = FakeDisk(random.Random(0))
    log = reopen(disk)
    entries: dict[int, list[LogRecord]] = {1: [], 2: []}
    hard_states: dict[int, bytes] = {}
    for kind, shard, number in operations:
        if kind == "entry":
            entry = LogRecord(shard, len(entries[shard]) + 1, number, bytes(number))
            log.stage_entry(shard, entry.index, entry.term, entry.payload)
            entries[shard].append(entry)
        elif kind == "hard_state":
            hard_states[shard] = str(number).encode()
            log.stage_hard_state(shard, hard_states[shard])
        elif kind == "truncate":
            from_index = 1 + number % (len(entries[shard]) + 1)
            log.stage_truncate(shard, from_index)
            del entries[shard][from_index - 1 :]
        elif (started := log.begin_flush()) is not None:
            started.run()
            started.done()
        if kind == "restart":
            disk.crash()
            log = reopen(disk)
    if (started := log.begin_flush()) is not None:
        started.run()
        started.done()
    for found in (log, reopen(disk)):
        assert {shard: list(found.entries(shard, 0)) for shard in entries} == entries
        assert found.hard_states == hard_states
