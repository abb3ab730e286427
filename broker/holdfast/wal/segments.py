"""Which entries are where: the segments of the log and the index over them, both only in memory."""

from __future__ import annotations

import re
import threading
from array import array
from collections.abc import Mapping

from holdfast.wal.disk import Disk
from holdfast.wal.frames import FRAMES_START, FrameCodec, pack_segment_header

_NAME = re.compile(r"(\d{16})\.log")


def segment_name(number: int) -> str:
    return f"{number:016d}.log"


def segment_number(name: str) -> int | None:
    """None for a file that is not a segment: such files are left alone."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


class EntryRun:
    """The live entries of one shard in one segment: where each is, and the CRC-32 of its whole record.

    Their indexes are contiguous, so one number per entry suffices. It has both halves, the position above the CRC: a
    reader in another thread gets them together or not at all.
    """

    __slots__ = ("_places", "first")

    def __init__(self, first: int) -> None:
        self.first = first
        self._places = array("Q")

    @property
    def last(self) -> int:
        return self.first + len(self._places) - 1

    def add(self, position: int, record_crc: int) -> None:
        self._places.append(position << 32 | record_crc)

    def cut_from(self, index: int) -> None:
        del self._places[index - self.first :]

    def place(self, index: int) -> tuple[int, int]:
        """The position of an entry's record and the CRC that it had when it was written or found."""
        place = self._places[index - self.first]
        return place >> 32, place & 0xFFFF_FFFF


class Segment:
    """One file. `end` is where the next frame would begin, `size_bytes` the reserved length."""

    __slots__ = ("codec", "end", "name", "number", "runs", "size_bytes")

    def __init__(self, number: int, salt: bytes, size_bytes: int) -> None:
        self.number = number
        self.name = segment_name(number)
        self.codec = FrameCodec(salt)
        self.size_bytes = size_bytes
        self.end = FRAMES_START
        self.runs: dict[int, EntryRun] = {}


def create_segment(disk: Disk, number: int, salt: bytes, size_bytes: int) -> tuple[Segment, int]:
    """A new empty segment, durable with its name, and its handle.

    Raises DiskFullError before anything exists. The header is synced before any frame is written: a broken
    header can then only belong to a file that never held a round.
    """
    segment = Segment(number, salt, size_bytes)
    handle = disk.create(segment.name, size_bytes)
    disk.pwrite(handle, [pack_segment_header(number, salt)], 0)
    disk.fdatasync(handle)
    disk.fsync_directory()
    return segment, handle


class LogIndex:
    """What the durable rounds say, in the order in which they say it.

    Readers never lock: `segments` is replaced, not changed. Writers do, for a cut may run in a thread while the loop
    publishes a round.
    """

    def __init__(self) -> None:
        self.segments: tuple[Segment, ...] = ()
        self.hard_states: dict[int, bytes] = {}
        # The index that the next entry must have; a shard that is not in here may begin anywhere.
        self.next_index: dict[int, int] = {}
        # Where a shard's terms begin, as (index, term): few, however long the log is.
        self.terms: dict[int, list[tuple[int, int]]] = {}
        self.emptied = 0  # how often all entries of a shard became void
        self.lock = threading.Lock()

    def add_segment(self, segment: Segment) -> None:
        self.segments = (*self.segments, segment)

    def add_entry(self, segment: Segment, shard: int, index: int, term: int, position: int, record_crc: int) -> None:
        run = segment.runs.get(shard)
        if run is None:
            run = segment.runs[shard] = EntryRun(index)
        run.add(position, record_crc)
        self.next_index[shard] = index + 1
        terms = self.terms.setdefault(shard, [])
        if not terms or terms[-1][1] != term:
            terms.append((index, term))

    def truncate(self, shard: int, from_index: int) -> None:
        """Entries from this one on are void. From 0: all are, and the shard may begin anew anywhere."""
        for segment in reversed(self.segments):
            run = segment.runs.get(shard)
            if run is None:
                continue
            if run.first < from_index:
                run.cut_from(from_index)
                break
            del segment.runs[shard]
        terms = self.terms.get(shard, [])
        while terms and terms[-1][0] >= from_index:
            terms.pop()
        if from_index:
            self.next_index[shard] = from_index
        else:
            self.next_index.pop(shard, None)
            self.emptied += 1

    def first_index(self, shard: int) -> int:
        for segment in self.segments:
            run = segment.runs.get(shard)
            if run is not None:
                return run.first
        return 0

    def last_index(self, shard: int) -> int:
        for segment in reversed(self.segments):
            run = segment.runs.get(shard)
            if run is not None:
                return run.last
        return 0

    def bytes_after(self, shard: int, index: int) -> int:
        """Bytes of the log, whoever's they are, from the shard's first entry after `index` to the end."""
        count = 0
        found = 0
        for segment in reversed(self.segments):
            run = segment.runs.get(shard)
            if run is not None:
                if run.last <= index:
                    break
                position, _ = run.place(max(index + 1, run.first))
                found = count + segment.end - position
            count += segment.end
        return found

    def index_with_bytes_after(self, shard: int, wanted_bytes: int) -> int:
        """The newest entry of the shard, at the end of a segment, that this many bytes of the log follow."""
        count = 0
        for segment in reversed(self.segments):
            run = segment.runs.get(shard)
            if run is not None and count >= wanted_bytes:
                return run.last
            count += segment.end
        return 0

    def take_unneeded(self, keep_from: Mapping[int, int], as_of: int | None = None) -> list[Segment]:
        """Removes and returns the leading segments that hold only entries below `keep_from`, never the last one; none
        if a shard was emptied since `as_of`."""
        with self.lock:
            if as_of is not None and as_of != self.emptied:
                return []
            count = 0
            for segment in self.segments[:-1]:
                # A shard that is not in the mapping keeps everything: no index is below 0.
                if any(run.last >= keep_from.get(shard, 0) for shard, run in segment.runs.items()):
                    break
                count += 1
            unneeded = self.segments[:count]
            self.segments = self.segments[count:]
        return list(unneeded)
