"""How the log ends: a close, a full disk, a failing disk."""

from __future__ import annotations

import random
import threading

import pytest

from holdfast.wal.disk import DiskFailedError, DiskFullError
from holdfast.wal.node_log import LogRecord
from tests.simulation.fake_disk import FakeDisk
from tests.unit.wal.node_logs import SEGMENT_BYTES, append, files, reopen


class TestClose:
    def test_a_clean_close_is_remembered_once(self, disk: FakeDisk) -> None:
        log = reopen(disk)
        entries = append(log, 1, [1, 2])
        log.close(clean=True)
        log.close(clean=True)
        log = reopen(disk)
        assert log.was_closed
        assert list(log.entries(1, 0)) == entries
        entries += append(log, 1, [3])
        log.close(clean=False)
        log = reopen(disk)
        assert not log.was_closed
        assert list(log.entries(1, 0)) == entries

    def test_a_closed_log_takes_no_flush(self, disk: FakeDisk) -> None:
        log = reopen(disk)
        log.stage_entry(1, 1, 1, b"a")
        log.close(clean=False)
        with pytest.raises(RuntimeError, match="it is closed"):
            log.begin_flush()
        assert reopen(disk).last_index(1) == 0

    def test_close_waits_for_nobody(self, disk: FakeDisk) -> None:
        """A flush in a thread still uses the files, so closing under it is refused."""
        entered, leave = threading.Event(), threading.Event()

        class Slow(FakeDisk):
            def fdatasync(self, handle: int) -> None:
                entered.set()
                assert leave.wait(10)
                super().fdatasync(handle)

        log = reopen(Slow(random.Random(0)))
        log.stage_entry(1, 1, 1, b"a")
        started = log.begin_flush()
        assert started is not None
        thread = threading.Thread(target=started.run)
        thread.start()
        assert entered.wait(10)
        with pytest.raises(RuntimeError, match="no flush under way"):
            log.close(clean=True)
        leave.set()
        thread.join()
        started.done()
        log.close(clean=True)

    def test_a_full_disk_does_not_prevent_a_close(self, disk: FakeDisk) -> None:
        log = reopen(disk)
        entries = append(log, 1, [1], size=2 * SEGMENT_BYTES)
        disk.unlink("0000000000000002.log")  # the spare
        log = reopen(disk)
        disk.capacity_bytes = 0
        log.close(clean=True)
        assert list(reopen(disk).entries(1, 0)) == entries


class TestFullDisk:
    def test_a_refused_round_is_dropped_and_the_log_goes_on(self, disk: FakeDisk) -> None:
        log = reopen(disk)
        entries = append(log, 1, [1, 2])
        disk.capacity_bytes = SEGMENT_BYTES
        before = disk.content(files(disk)[0])
        log.stage_entry(1, 3, 1, bytes(2 * SEGMENT_BYTES))
        log.stage_truncate(1, 2)
        log.stage_hard_state(1, b"dropped")
        started = log.begin_flush()
        assert started is not None
        log.stage_entry(1, 2, 1, b"builds on the dropped round")
        with pytest.raises(DiskFullError):
            started.run()
        started.abort()
        assert disk.content(files(disk)[0]) == before
        assert log.begin_flush() is None
        assert log.staged_bytes == 0
        # There is still room for small rounds, and for all once space is back.
        entries += append(log, 1, [3])
        disk.capacity_bytes = 1 << 30
        entries += append(log, 1, [4], size=2 * SEGMENT_BYTES)
        for found in (log, reopen(disk)):
            assert list(found.entries(1, 0)) == entries
            assert found.hard_states == {}

    def test_a_flush_that_never_ran_can_be_aborted(self, disk: FakeDisk) -> None:
        log = reopen(disk)
        log.stage_entry(1, 1, 1, b"a")
        started = log.begin_flush()
        assert started is not None
        started.abort()
        append(log, 1, [1])

    def test_no_room_for_the_segment_ahead_does_not_harm_the_round(self, disk: FakeDisk) -> None:
        disk.capacity_bytes = SEGMENT_BYTES
        log = reopen(disk)
        entries = [entry for index in range(1, 8) for entry in append(log, 1, [index])]
        log.stage_entry(1, 8, 1, b"no room")
        started = log.begin_flush()
        assert started is not None
        with pytest.raises(DiskFullError):
            started.run()
        started.abort()
        disk.capacity_bytes = 1 << 30
        entries += append(log, 1, [8])
        assert list(reopen(disk).entries(1, 0)) == entries

    def test_a_log_opens_on_a_full_disk(self, disk: FakeDisk) -> None:
        entries = append(reopen(disk), 1, [1])
        disk.capacity_bytes = 0
        log = reopen(disk)
        assert list(log.entries(1, 0)) == entries
        log.stage_entry(1, 2, 1, b"")
        started = log.begin_flush()
        assert started is not None
        with pytest.raises(DiskFullError):
            started.run()
        started.abort()
        disk.capacity_bytes = 1 << 30
        entries += append(log, 1, [2])
        assert list(reopen(disk).entries(1, 0)) == entries


class TestFailingDisk:
    @pytest.mark.parametrize("what", ["fail_next_sync", "fail_next_write"])
    def test_after_one_failure_nothing_is_written_any_more(self, disk: FakeDisk, what: str) -> None:
        log = reopen(disk)
        entries = append(log, 1, [1])
        log.stage_entry(1, 2, 1, b"in doubt")
        started = log.begin_flush()
        assert started is not None
        setattr(disk, what, True)
        with pytest.raises(DiskFailedError):
            started.run()
        content = disk.content(files(disk)[0])
        with pytest.raises(RuntimeError):
            started.run()
        with pytest.raises(RuntimeError):
            started.abort()
        with pytest.raises(DiskFailedError, match="out of use: input/output error"):
            log.begin_flush()
        with pytest.raises(DiskFailedError, match="out of use"):
            log.close(clean=True)
        assert disk.content(files(disk)[0]) == content
        disk.crash()
        found = list(reopen(disk).entries(1, 0))
        assert found in (entries, [*entries, LogRecord(1, 2, 1, b"in doubt")])

    def test_a_round_seen_only_in_the_page_cache_is_made_durable_by_open(self) -> None:
        """The failed sync dropped it; the next process still sees it, relies on it, and then the power fails."""
        for seed in range(20):
            disk = FakeDisk(random.Random(seed))
            log = reopen(disk)
            append(log, 1, [1])
            log.stage_entry(1, 2, 1, bytes(3000))
            started = log.begin_flush()
            assert started is not None
            disk.fail_next_sync = True
            with pytest.raises(DiskFailedError):
                started.run()
            disk.restart()
            assert reopen(disk).last_index(1) == 2
            disk.crash()
            assert reopen(disk).last_index(1) == 2
