"""Small rounds write zeros ahead of themselves, so that the blocks of those that follow are not written first."""

from collections.abc import Sequence
from random import Random

import pytest

from holdfast.wal.frames import BLOCK_BYTES, FRAMES_START
from holdfast.wal.node_log import NodeLog
from holdfast.wal.writer import AHEAD_BYTES, AHEAD_OF_BYTES_MAX
from tests.simulation.fake_disk import FakeDisk
from tests.unit.wal.node_logs import append

SEGMENT_BYTES = 1024 * 1024


class WatchedDisk(FakeDisk):
    """Knows what was written."""

    def __init__(self) -> None:
        super().__init__(Random(1))
        self.written: list[tuple[int, int]] = []  # from where to where

    def pwrite(self, handle: int, buffers: Sequence[bytes], offset: int) -> None:
        super().pwrite(handle, buffers, offset)
        self.written.append((offset, offset + sum(map(len, buffers))))


@pytest.fixture
def disk() -> WatchedDisk:
    return WatchedDisk()


def open_log(disk: FakeDisk) -> NodeLog:
    return NodeLog.open(disk, segment_bytes=SEGMENT_BYTES)


def test_most_small_rounds_are_written_where_zeros_were(disk: WatchedDisk) -> None:
    log = open_log(disk)
    append(log, 1, [1])
    _header, (start, end) = disk.written
    assert (start, end) == (FRAMES_START, FRAMES_START + AHEAD_BYTES)
    rounds = AHEAD_BYTES // BLOCK_BYTES
    for index in range(2, rounds + 1):
        append(log, 1, [index])
    within = disk.written[2:]
    assert len(within) == rounds - 1
    assert all(begin >= start and stop <= end and stop - begin < BLOCK_BYTES for begin, stop in within)
    append(log, 1, [rounds + 1])
    assert disk.written[-1] == (end, end + AHEAD_BYTES)


def test_large_rounds_and_those_near_the_end_of_a_segment_write_no_more_than_there_is_room_for(
    disk: WatchedDisk,
) -> None:
    log = open_log(disk)
    append(log, 1, [1], size=AHEAD_OF_BYTES_MAX)
    assert disk.written[-1][1] - disk.written[-1][0] < AHEAD_OF_BYTES_MAX + BLOCK_BYTES
    append(log, 1, [2], size=SEGMENT_BYTES - 10 * BLOCK_BYTES - AHEAD_OF_BYTES_MAX)
    append(log, 1, [3])
    assert disk.written[-1][1] == SEGMENT_BYTES
    for index in range(4, 20):
        append(log, 1, [index])
    assert len(log.segment_names) == 2
    assert max(end for _, end in disk.written) == SEGMENT_BYTES


def test_what_was_written_ahead_is_no_part_of_the_log(disk: WatchedDisk) -> None:
    log = open_log(disk)
    entries = [*append(log, 1, [1]), *append(log, 1, [2], size=3 * BLOCK_BYTES), *append(log, 1, [3])]
    again = open_log(disk)
    assert list(again.entries(1, 0)) == entries
    assert not again.was_closed
    entries += append(again, 1, [4])
    assert list(open_log(disk).entries(1, 0)) == entries
