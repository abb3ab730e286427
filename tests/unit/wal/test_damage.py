"""Telling a torn tail from damage: the first is cut, the second is refused and named."""

from __future__ import annotations

import random
from struct import pack_into
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.wal import frames
from holdfast.wal.frames import BLOCK_BYTES, FRAMES_START
from holdfast.wal.node_log import READ_AHEAD_BYTES, LogDamagedError, LogFormatError, LogRecord, NodeLog
from tests.simulation.fake_disk import FakeDisk
from tests.unit.wal.node_logs import flush

SEGMENT_BYTES = 32 * 1024
FIRST = "0000000000000001.log"
SECOND = "0000000000000002.log"
THIRD = "0000000000000003.log"


def reopen(disk: FakeDisk) -> NodeLog:
    return NodeLog.open(disk, segment_bytes=SEGMENT_BYTES)


def write_rounds(log: NodeLog, first: int, last: int, size: int = 100) -> None:
    """One entry of shard 1 per round, each in a block of its own."""
    for index in range(first, last + 1):
        log.stage_entry(1, index, 1, bytes([index]) * size)
        flush(log)


def make_disk(rounds: int, *, clean: bool = False, size: int = 100) -> FakeDisk:
    """A log of 7 rounds per segment, after a crash or a clean stop. Round n is block n of the first segment."""
    disk = FakeDisk(random.Random(0))
    log = reopen(disk)
    write_rounds(log, 1, rounds, size)
    log.close(clean=clean)
    disk.restart()
    return disk


def indexes(log: NodeLog) -> list[int]:
    entries = list(log.entries(1, 0))
    assert all(entry == LogRecord(1, entry.index, 1, bytes([entry.index]) * len(entry.payload)) for entry in entries)
    return [entry.index for entry in entries]


def refused(disk: FakeDisk) -> LogDamagedError:
    """The error of an open that must fail and change nothing."""
    before = {name: disk.content(name) for name in disk.list_files()}
    with pytest.raises(LogDamagedError) as caught:
        reopen(disk)
    assert {name: disk.content(name) for name in disk.list_files()} == before
    assert f"{caught.value.file} is damaged at byte {caught.value.offset}: " in str(caught.value)
    return caught.value


def test_damage_in_the_middle_is_refused_and_named() -> None:
    for byte in (0, 5, 20, frames.FRAME_HEADER_BYTES, 100):
        disk = make_disk(5)
        disk.flip_bit(FIRST, 3 * BLOCK_BYTES + byte, bit=3)
        error = refused(disk)
        assert (error.file, error.offset) == (FIRST, 3 * BLOCK_BYTES)
        assert "round 3 has a wrong checksum" in error.reason


def test_damage_in_the_last_round_after_a_crash_is_a_torn_tail() -> None:
    disk = make_disk(5)
    disk.flip_bit(FIRST, 5 * BLOCK_BYTES + 60)
    log = reopen(disk)
    assert indexes(log) == [1, 2, 3, 4]
    assert log.cut_tail is not None
    assert (log.cut_tail.file, log.cut_tail.offset) == (FIRST, 5 * BLOCK_BYTES)
    assert 100 < log.cut_tail.size_bytes <= BLOCK_BYTES
    # Physically gone, and the log goes on as if it had never been.
    disk.crash()
    assert not any(disk.content(FIRST)[5 * BLOCK_BYTES :])
    log = reopen(disk)
    assert indexes(log) == [1, 2, 3, 4]
    assert log.cut_tail is None, "once is enough"
    write_rounds(log, 5, 12)
    disk.crash()
    assert indexes(reopen(disk)) == list(range(1, 13))


def test_damage_in_the_last_round_after_a_clean_stop_is_refused() -> None:
    disk = make_disk(5, clean=True)
    disk.flip_bit(FIRST, 5 * BLOCK_BYTES + 60)
    error = refused(disk)
    assert (error.file, error.offset) == (FIRST, 5 * BLOCK_BYTES)
    assert "round 6 follows it" in error.reason


def test_damage_of_the_mark_of_a_clean_stop_loses_nothing() -> None:
    disk = make_disk(5, clean=True)
    disk.flip_bit(FIRST, 6 * BLOCK_BYTES + 3)
    log = reopen(disk)
    assert indexes(log) == [1, 2, 3, 4, 5]
    assert not log.was_closed


def test_a_round_that_vanished_is_damage() -> None:
    """As when the disk drops a write it has confirmed: the place reads as zeros."""
    disk = make_disk(5)
    _erase(disk, FIRST, 3 * BLOCK_BYTES, BLOCK_BYTES)
    assert refused(disk).offset == 3 * BLOCK_BYTES


def test_the_last_round_of_a_full_segment_cannot_vanish_either() -> None:
    disk = make_disk(9)
    _erase(disk, FIRST, 7 * BLOCK_BYTES, BLOCK_BYTES)
    error = refused(disk)
    assert (error.file, error.offset) == (FIRST, 7 * BLOCK_BYTES)
    assert "round 7 is missing, but round 8 is there" in error.reason


def test_damage_in_an_earlier_segment_is_found_by_the_rounds_of_a_later_one() -> None:
    disk = make_disk(8)
    disk.flip_bit(FIRST, 7 * BLOCK_BYTES + 40)
    error = refused(disk)
    assert (error.file, error.offset) == (FIRST, 7 * BLOCK_BYTES)


def test_damage_is_told_even_when_the_round_after_it_is_torn() -> None:
    disk = make_disk(5)
    disk.flip_bit(FIRST, 4 * BLOCK_BYTES + 40)
    disk.flip_bit(FIRST, 5 * BLOCK_BYTES + 40)
    assert refused(disk).offset == 4 * BLOCK_BYTES
    # Also when the torn round has lost its header: round 4 still has its own, and bytes follow it.
    _erase(disk, FIRST, 5 * BLOCK_BYTES, 30)
    assert refused(disk).offset == 4 * BLOCK_BYTES


def test_damage_is_told_even_when_the_round_after_it_is_torn_in_the_next_segment() -> None:
    disk = make_disk(8)
    disk.flip_bit(FIRST, 7 * BLOCK_BYTES + 2)
    _erase(disk, SECOND, FRAMES_START, 30)
    error = refused(disk)
    assert (error.file, error.offset) == (FIRST, 7 * BLOCK_BYTES)


def test_a_torn_first_round_of_a_segment_removes_the_segment() -> None:
    disk = make_disk(8)
    disk.flip_bit(SECOND, FRAMES_START + 40)
    log = reopen(disk)
    assert indexes(log) == list(range(1, 8))
    assert disk.list_files() == [FIRST]
    write_rounds(log, 8, 10)
    disk.crash()
    assert indexes(reopen(disk)) == list(range(1, 11))


def test_the_torn_first_round_of_a_log_is_a_new_log() -> None:
    disk = make_disk(1)
    disk.flip_bit(FIRST, FRAMES_START + 40)
    log = reopen(disk)
    assert indexes(log) == []
    write_rounds(log, 1, 3)
    assert indexes(reopen(disk)) == [1, 2, 3]


def test_a_missing_segment_in_the_middle_is_damage() -> None:
    disk = make_disk(20)
    disk.unlink(SECOND)
    error = refused(disk)
    assert (error.file, error.offset) == (SECOND, 0)
    assert "missing" in error.reason


def test_a_log_may_begin_at_any_segment() -> None:
    disk = make_disk(20)
    disk.unlink(FIRST)
    log = reopen(disk)
    assert indexes(log) == list(range(8, 21))
    assert log.first_index(1) == 8


def test_a_log_whose_cut_beginning_is_unreadable_is_damage() -> None:
    """The segments before it were cut only because this one had a durable round."""
    disk = make_disk(8)
    disk.unlink(FIRST)
    disk.flip_bit(SECOND, FRAMES_START + 40)
    error = refused(disk)
    assert (error.file, error.offset) == (SECOND, FRAMES_START)


@pytest.mark.parametrize("size_bytes", [0, 10, 3000, SEGMENT_BYTES])
def test_a_crash_while_a_segment_is_created_leaves_nothing(size_bytes: int) -> None:
    disk = make_disk(2)
    handle = disk.create(SECOND, size_bytes)
    disk.pwrite(handle, [b"garbage"[:size_bytes]], 0)
    log = reopen(disk)
    assert disk.list_files() == [FIRST]
    assert indexes(log) == [1, 2]


def test_an_unreadable_header_is_damage_when_rounds_follow_it() -> None:
    disk = make_disk(3)
    disk.flip_bit(FIRST, 10)
    error = refused(disk)
    assert (error.file, error.offset) == (FIRST, 0)


def test_a_segment_under_the_name_of_another_is_damage() -> None:
    disk = make_disk(20)
    content = disk.content(FIRST)
    handle = disk.open(SECOND)
    disk.pwrite(handle, [content], 0)
    assert refused(disk).file == SECOND


def test_an_empty_segment_before_the_last_is_damage() -> None:
    disk = make_disk(20)
    _erase(disk, SECOND, FRAMES_START, SEGMENT_BYTES - FRAMES_START)
    error = refused(disk)
    assert (error.file, error.offset) == (SECOND, FRAMES_START)


def test_bytes_in_unused_space_harm_nothing_when_the_rounds_are_complete() -> None:
    disk = make_disk(8, size=5000)
    used = max(offset for offset in range(0, SEGMENT_BYTES, BLOCK_BYTES) if any(disk.content(FIRST)[offset:]))
    assert used + BLOCK_BYTES < SEGMENT_BYTES
    disk.flip_bit(FIRST, SEGMENT_BYTES - 1)
    assert indexes(reopen(disk)) == list(range(1, 9))


def test_a_newer_format_is_refused() -> None:
    disk = make_disk(1)
    header = bytearray(disk.content(FIRST)[: frames.SEGMENT_HEADER_BYTES])
    pack_into("<I", header, 8, frames.FORMAT_VERSION + 1)
    pack_into("<I", header, len(header) - 4, crc32(header[:-4]))
    disk.pwrite(disk.open(FIRST), [bytes(header)], 0)
    with pytest.raises(LogFormatError, match="format version 2 at byte 0. It was written by a newer release"):
        reopen(disk)


def test_an_unknown_kind_of_record_is_refused() -> None:
    disk = make_disk(1)
    _write_round(disk, 2, frames.RECORD.pack(77, 1, 2, 3, 0))
    with pytest.raises(LogFormatError, match="the unknown kind 77"):
        reopen(disk)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (frames.RECORD.pack(frames.ENTRY, 1, 9, 1, 0), "entry 9 of shard 1 follows entry 1"),
        (frames.RECORD.pack(frames.TRUNCATE_FROM, 1, 9, 0, 0), "shard 1 is cut at 9, after its end"),
        (frames.RECORD.pack(frames.ENTRY, 1, 2, 1, 500), "longer than the round"),
        (b"short", "no whole header"),
    ],
)
def test_a_round_that_makes_no_sense_is_damage(body: bytes, reason: str) -> None:
    disk = make_disk(1)
    _write_round(disk, 2, body)
    assert reason in refused(disk).reason


RECORD_STARTS = {index: index * BLOCK_BYTES + frames.FRAME_HEADER_BYTES for index in (1, 2, 3)}
RECORD_BITS = 8 * (frames.RECORD_HEADER_BYTES + 100)


@pytest.mark.parametrize("is_reopened", [False, True], ids=["since it was written", "since it was found"])
def test_no_bit_of_a_record_can_change_under_a_running_log(is_reopened: bool) -> None:
    """A disk goes bad while the node runs: what is read then is sent to others and applied, so every bit counts."""
    disk = FakeDisk(random.Random(0))
    log = reopen(disk)
    write_rounds(log, 1, 3)
    if is_reopened:
        disk.restart()
        log = reopen(disk)
    assert indexes(log) == [1, 2, 3]
    for bit in range(RECORD_BITS):
        byte_offset = RECORD_STARTS[2] + bit // 8
        disk.flip_bit(FIRST, byte_offset, bit % 8)
        reading = log.entries(1, 0)
        assert next(reading).index == 1
        with pytest.raises(LogDamagedError) as caught:
            next(reading)
        assert (caught.value.file, caught.value.offset) == (FIRST, RECORD_STARTS[2])
        assert caught.value.reason == "entry 2 of shard 1 is not as it was written"
        assert next(log.entries(1, 2)).index == 3
        disk.flip_bit(FIRST, byte_offset, bit % 8)
    assert indexes(log) == [1, 2, 3]


def test_a_length_that_is_damaged_does_not_decide_how_much_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = make_disk(3)
    log = reopen(disk)
    disk.flip_bit(FIRST, RECORD_STARTS[2] + frames.RECORD_HEADER_BYTES - 1, 7)  # two GiB
    lengths: list[int] = []
    read = disk.read

    def read_and_note(handle: int, offset: int, length: int) -> bytes:
        lengths.append(length)
        return read(handle, offset, length)

    monkeypatch.setattr(disk, "read", read_and_note)
    with pytest.raises(LogDamagedError):
        list(log.entries(1, 1))
    assert max(lengths) <= READ_AHEAD_BYTES


def test_what_replaced_an_entry_is_checked_against_its_own_record() -> None:
    disk = FakeDisk(random.Random(0))
    log = reopen(disk)
    write_rounds(log, 1, 3)
    log.stage_truncate(1, 2)
    log.stage_entry(1, 2, 2, b"another")
    log.stage_hard_state(1, b"vote")
    log.stage_entry(1, 3, 2, b"one more")
    flush(log)
    for item in (log, reopen(disk)):
        assert [(entry.term, entry.payload) for entry in item.entries(1, 1)] == [(2, b"another"), (2, b"one more")]


def test_a_copy_of_the_log_as_a_payload_is_no_part_of_the_log() -> None:
    disk = make_disk(6)
    log = reopen(disk)
    copy = disk.content(FIRST)
    header_bytes = frames.FRAME_HEADER_BYTES + frames.RECORD_HEADER_BYTES
    # Frames inside the payload begin at blocks of the file, as real ones do.
    payload = bytes(BLOCK_BYTES - header_bytes) + copy
    log.stage_entry(1, 7, 1, payload)
    flush(log)
    # Torn: the power failed before the segment after it was created.
    disk.unlink(THIRD)
    disk.flip_bit(SECOND, FRAMES_START + 1)
    assert reopen(disk).last_index(1) == 6


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 3), st.floats(0, 1, exclude_max=True), st.integers(0, 7))
def test_any_flipped_bit_after_a_clean_stop_is_refused_or_harmless(file: int, place: float, bit: int) -> None:
    disk = _CLEAN.copy()
    name = sorted(disk.list_files())[file]
    # Half of the flips hit the first bytes of a block, where headers are.
    size = len(disk.content(name))
    offset = int(place * size)
    if bit % 2:
        offset = offset // BLOCK_BYTES * BLOCK_BYTES + offset % 64
    disk.flip_bit(name, offset, bit)
    try:
        log = reopen(disk)
    except (LogDamagedError, LogFormatError):
        return
    assert indexes(log) == list(range(1, 21))


_CLEAN = make_disk(20, clean=True)


def _erase(disk: FakeDisk, name: str, offset: int, length: int) -> None:
    handle = disk.open(name)
    disk.pwrite(handle, [bytes(length)], offset)
    disk.fdatasync(handle)


def _write_round(disk: FakeDisk, number: int, body: bytes) -> None:
    """A round with right checksums in its block of the first segment."""
    header = frames.parse_segment_header(disk.content(FIRST)[: frames.SEGMENT_HEADER_BYTES])
    assert header is not None
    codec = frames.FrameCodec(header.salt)
    offset = number * BLOCK_BYTES
    packed = codec.pack_header(offset, frames.FrameHeader(number, len(body), codec.body_crc([body])))
    disk.pwrite(disk.open(FIRST), [packed, body], offset)
