"""Opening the log: read and verify everything, tell a torn tail from damage, cut the tail.

What makes the difference provable:
- Round N+1 is written only after round N was synced, and rounds are numbered without a gap. So the valid rounds are
  complete exactly when their numbers are, and any trace of a round after an unreadable one means that the
  unreadable one had been durable: damage. Without such a trace it is the round that the crash interrupted.
- A segment is synced with its name before its first round, and the next one is created only after that round. So only
  the last file can be without a valid round.
- A clean stop writes one more round, which is such a trace for everything before it.

Until the whole log was read nothing is changed on disk.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from holdfast.wal import frames
from holdfast.wal.disk import Disk
from holdfast.wal.errors import DiskFailedError, DiskFullError, LogDamagedError, LogError, LogFormatError
from holdfast.wal.file_window import FileWindow, used_end
from holdfast.wal.frames import BLOCK_BYTES, FRAMES_START
from holdfast.wal.segments import LogIndex, Segment, segment_name, segment_number


@dataclass(frozen=True, slots=True)
class CutTail:
    """Bytes after the last valid round, which are no round: most likely one that a crash interrupted."""

    file: str
    offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Recovered:
    index: LogIndex
    active_handle: int | None  # of the last segment, when there is one
    last_round: int
    closed: bool  # the last round says that the log was closed cleanly
    cut: CutTail | None  # what was taken away


def recover(disk: Disk, segment_bytes: int) -> Recovered:
    """Scans the log, then repairs its tail and makes durable what is about to be relied on."""
    numbers = _segment_numbers(disk)
    scan = _Scan(disk)
    for number in numbers:
        scan.read_segment(number, is_last=number == numbers[-1])
    handle = _repair_tail(disk, scan, segment_bytes)
    return Recovered(scan.index, handle, scan.last_round, scan.closed, scan.cut)


def readable_hard_states(disk: Disk) -> dict[int, bytes]:
    """Of a log that may be damaged: those of the newest segment that has readable ones, up to what is damaged there.
    Each segment begins with all of them. Changes nothing."""
    found = (number for name in disk.list_files() if (number := segment_number(name)) is not None)
    for number in sorted(found, reverse=True):
        scan = _Scan(disk)
        with suppress(LogError):
            scan.read_segment(number, is_last=True)
        if scan.index.hard_states:
            return scan.index.hard_states
    return {}


def _segment_numbers(disk: Disk) -> list[int]:
    found = sorted(number for name in disk.list_files() if (number := segment_number(name)) is not None)
    for expected, number in enumerate(found, start=found[0] if found else 0):
        if number != expected:
            raise LogDamagedError(segment_name(expected), 0, "this segment is missing, but later ones are there")
    return found


class _Scan:
    """Reads the segments in order and keeps what the valid rounds say."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.index = LogIndex()
        self.last_round = 0
        self.last_frame_offset = 0
        self.closed = False
        # Where in the last segment with a round the bytes after it end; its `end` when they are zeros.
        self.junk_end = FRAMES_START
        # The last file when it holds no valid round: a spare, or one that a crash interrupted.
        self.leftover: str | None = None
        self.cut: CutTail | None = None

    def read_segment(self, number: int, *, is_last: bool) -> None:
        handle = self._disk.open(segment_name(number))
        try:
            window = FileWindow(self._disk, handle)
            header = frames.parse_segment_header(window.view(0, frames.SEGMENT_HEADER_BYTES))
            if header is None or header.number != number:
                junk_end = used_end(self._disk, handle, FRAMES_START, window.size_bytes)
                self._accept_leftover(number, is_last, has_header=False, has_bytes=junk_end > FRAMES_START)
                return
            if header.version != frames.FORMAT_VERSION:
                raise LogFormatError(segment_name(number), 0, f"format version {header.version}")
            segment = Segment(number, header.salt, window.size_bytes)
            count = self._read_rounds(segment, window)
            junk_end = used_end(self._disk, handle, segment.end, window.size_bytes)
            if junk_end > segment.end:
                self._refuse_trace_of_later_round(segment, window, junk_end)
        finally:
            self._disk.close(handle)
        if count:
            self.cut = None  # nothing but the end of the log is ever cut
        if junk_end > segment.end:
            self.cut = CutTail(segment.name, segment.end, junk_end - segment.end)
        if count:
            self.junk_end = junk_end
        else:
            self._accept_leftover(number, is_last, has_header=True, has_bytes=junk_end > FRAMES_START)

    def _read_rounds(self, segment: Segment, window: FileWindow) -> int:
        """Applies the rounds of a segment up to the first that is not valid; returns how many."""
        count = 0
        while (found := window.frame(segment.codec, segment.end)) is not None:
            header, body = found
            if not self._follows(segment, header.round):
                break
            if not count:
                self.index.add_segment(segment)
            self._apply_round(segment, body)
            self.last_round = header.round
            self.last_frame_offset = segment.end
            segment.end = frames.block_end(segment.end + header.frame_bytes)
            count += 1
        return count

    def _follows(self, segment: Segment, round_number: int) -> bool:
        """Whether this is the next round. A leading part of the log may have been cut; else it begins with round 1."""
        if not self.index.segments and segment.number > 1:
            return True
        if round_number > self.last_round + 1:
            raise self._broken_off(
                segment, f"round {self.last_round + 1} is missing, but round {round_number} is there"
            )
        return round_number == self.last_round + 1

    def _broken_off(self, segment: Segment, reason: str) -> LogDamagedError:
        """Damage, named at the earliest place where valid rounds break off."""
        if self.index.segments:
            segment = self.index.segments[-1]
        return LogDamagedError(segment.name, segment.end, reason)

    def _apply_round(self, segment: Segment, body: memoryview) -> None:
        index = self.index
        next_index = index.next_index
        base = segment.end + frames.FRAME_HEADER_BYTES
        self.closed = False
        try:
            for kind, shard, entry_index, term, position, length in frames.records(body):
                if kind == frames.ENTRY:
                    if next_index.get(shard, entry_index) != entry_index:
                        reason = f"entry {entry_index} of shard {shard} follows entry {next_index[shard] - 1}"
                        raise LogDamagedError(segment.name, base + position, reason)
                    record = body[position : position + frames.RECORD_HEADER_BYTES + length]
                    record_crc = segment.codec.record_crc(record)
                    index.add_entry(segment, shard, entry_index, term, base + position, record_crc)
                elif kind == frames.HARD_STATE:
                    start = position + frames.RECORD_HEADER_BYTES
                    index.hard_states[shard] = bytes(body[start : start + length])
                elif kind == frames.TRUNCATE_FROM:
                    if entry_index > next_index.get(shard, entry_index):
                        reason = f"shard {shard} is cut at {entry_index}, after its end"
                        raise LogDamagedError(segment.name, base + position, reason)
                    index.truncate(shard, entry_index)
                elif kind == frames.CLOSED:
                    self.closed = True
                else:
                    raise LogFormatError(segment.name, base + position, f"a record of the unknown kind {kind}")
        except frames.MalformedBodyError as error:
            raise LogDamagedError(segment.name, segment.end, str(error)) from error

    def _refuse_trace_of_later_round(self, segment: Segment, window: FileWindow, junk_end: int) -> None:
        """Raises when anything after the valid rounds of this segment shows that a later round was begun."""
        lost = self.last_round + 1
        for offset in range(segment.end, junk_end, BLOCK_BYTES):
            # The header alone is proof: it was made for this very place.
            header = window.frame_header(segment.codec, offset)
            if header is not None and header.round > lost:
                reason = f"round {lost} has a wrong checksum, but round {header.round} follows it at byte {offset}"
                raise self._broken_off(segment, reason)
        torn = window.frame_header(segment.codec, segment.end)
        if torn is not None and torn.round == lost and junk_end > frames.block_end(segment.end + torn.frame_bytes):
            raise self._broken_off(segment, f"round {lost} has a wrong checksum, but bytes of a later one follow it")

    def _accept_leftover(self, number: int, is_last: bool, *, has_header: bool, has_bytes: bool) -> None:
        """Decides about a file without a valid round: what a crash left behind, or damage."""
        name = segment_name(number)
        before = self.index.segments[-1] if self.index.segments else None
        if not has_header and has_bytes:
            raise LogDamagedError(name, 0, "the segment's header is unreadable, but rounds were written after it")
        if not is_last:
            place = FRAMES_START if has_header else 0
            raise LogDamagedError(name, place, "the segment has no valid round, but a later segment is there")
        if before is None and number > 1:
            raise LogDamagedError(name, FRAMES_START, "the log begins here, but the segment has no valid round")
        if before is not None and has_bytes and self.junk_end > before.end:
            reason = f"round {self.last_round + 1} has a wrong checksum, but a later one was begun in {name}"
            raise LogDamagedError(before.name, before.end, reason)
        self.leftover = name


def _repair_tail(disk: Disk, scan: _Scan, segment_bytes: int) -> int | None:
    """Removes what a crash left half written, and makes the last round durable for certain. Safe to repeat.

    Even a log that reads well may be only in the page cache: the process died before its sync returned, or the sync
    failed and the kernel now believes that the pages are clean. Only the last round, what follows it and the names can
    be in that state. So the round is written once more, with the same bytes, the space after it is given back and
    reserved anew, whatever it seems to hold, and everything is synced.
    """
    handle: int | None = None
    if scan.leftover is not None:
        disk.unlink(scan.leftover)
    if scan.index.segments:
        segment = scan.index.segments[-1]
        handle = disk.open(segment.name)
        disk.truncate(handle, min(segment.end, segment.size_bytes))
        segment.size_bytes = _reserved(disk, handle, segment.end, max(segment.size_bytes, segment_bytes))
        write_last_round_again(disk, handle, segment, scan.last_frame_offset)
        disk.fdatasync(handle)
    disk.fsync_directory()
    return handle


def _reserved(disk: Disk, handle: int, end: int, wanted_bytes: int) -> int:
    try:
        disk.extend(handle, wanted_bytes)
    except DiskFullError:
        # The segment counts as full: the next round needs a new one, and is refused as long as there is no room.
        return end
    return wanted_bytes


def write_last_round_again(disk: Disk, handle: int, segment: Segment, offset: int) -> None:
    window = FileWindow(disk, handle)
    found = window.frame(segment.codec, offset)
    if found is None:
        raise DiskFailedError(f"Expected to read {segment.name} at byte {offset} twice, but the bytes changed.")
    # The first round takes the segment's header with it: it may be in the same state.
    start = offset if offset > FRAMES_START else 0
    end = offset + found[0].frame_bytes
    disk.pwrite(handle, [bytes(window.view(start, end - start))], start)
