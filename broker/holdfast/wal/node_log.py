"""The node's log: one append-only stream of rounds, shared by all shards of the node.

The log is the truth and the state is a cache of it. Nothing counts until `Flush.done()` has published it.

Threads: everything belongs to the event loop's thread, except that `Flush.run()` and `cut()` may run in a thread
each, at the same time, and an iterator of `entries()` in any one thread.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from holdfast.wal import frames
from holdfast.wal.disk import Disk
from holdfast.wal.errors import DiskFailedError, DiskFullError, LogDamagedError, LogFormatError
from holdfast.wal.file_window import FileWindow
from holdfast.wal.frames import RECORD, RECORD_HEADER_BYTES
from holdfast.wal.recovery import CutTail, recover
from holdfast.wal.segments import LogIndex, Segment
from holdfast.wal.writer import RoundPosition, RoundWriter

__all__ = ["DiskFailedError", "DiskFullError", "Flush", "LogDamagedError", "LogFormatError", "LogRecord", "NodeLog"]

SEGMENT_BYTES_MIN: Final = 4 * frames.BLOCK_BYTES
SEGMENT_BYTES_MAX: Final = 1 << 30
# How far `entries()` reads ahead: enough that small entries cost no call each, little enough not to matter.
READ_AHEAD_BYTES: Final = 256 * 1024


@dataclass(frozen=True, slots=True)
class LogRecord:
    shard: int
    index: int
    term: int
    payload: bytes


class _Staged:
    """What one round will hold: two buffers, header and payload, and one mark for each record. A header may have the
    beginning of its payload. A mark is (kind, shard, index, term, position among the records, payload)."""

    __slots__ = ("buffers", "marks", "size_bytes")

    def __init__(self) -> None:
        self.buffers: list[bytes] = []
        self.marks: list[tuple[int, int, int, int, int, bytes]] = []
        self.size_bytes = 0


class NodeLog:
    """See the module's text. Made by `open`."""

    def __init__(self, disk: Disk, index: LogIndex, writer: RoundWriter, *, closed: bool, cut: CutTail | None) -> None:
        self._disk = disk
        self._index = index
        self._writer = writer
        self._staged = _Staged()
        # The index that the next staged entry must have; a shard that is not in here may begin anywhere.
        self._next_index = dict(index.next_index)
        self._flush: Flush | None = None
        self._closed = False
        self.hard_states: dict[int, bytes] = index.hard_states
        """The newest durable hard state of each shard."""
        self.was_closed: Final = closed
        """Whether the log had been closed cleanly before it was opened."""
        self.cut_tail: Final = cut
        """What was taken off its end when it was opened."""

    @classmethod
    def open(cls, disk: Disk, *, segment_bytes: int, random_bytes: Callable[[int], bytes] = os.urandom) -> NodeLog:
        """Reads and verifies the whole log and cuts a torn tail; an empty directory is a new log.

        When it returns, everything it found is durable. Raises LogDamagedError or LogFormatError without having
        changed anything.
        """
        if not SEGMENT_BYTES_MIN <= segment_bytes <= SEGMENT_BYTES_MAX:
            raise ValueError(f"segment_bytes must be {SEGMENT_BYTES_MIN} to {SEGMENT_BYTES_MAX}, not {segment_bytes}")
        found = recover(disk, segment_bytes)
        active = None if found.active_handle is None else (found.index.segments[-1], found.active_handle)
        writer = RoundWriter(
            disk,
            segment_bytes=segment_bytes,
            random_bytes=random_bytes,
            active=active,
            last_round=found.last_round,
        )
        return cls(disk, found.index, writer, closed=found.closed, cut=found.cut)

    # Reading: only what is durable.

    def first_index(self, shard: int) -> int:
        """Index of the shard's oldest entry in the log; 0 if there is none."""
        return self._index.first_index(shard)

    def last_index(self, shard: int) -> int:
        """Index of the shard's newest durable entry in the log; 0 if there is none (all may have been cut)."""
        return self._index.last_index(shard)

    def bytes_after(self, shard: int, index: int) -> int:
        """Bytes of the log, of all shards, from the shard's first entry after `index` to the end: what it pins."""
        return self._index.bytes_after(shard, index)

    def index_with_bytes_after(self, shard: int, wanted_bytes: int) -> int:
        """The newest entry of the shard, at the end of a segment, that this many bytes of the log follow."""
        return self._index.index_with_bytes_after(shard, wanted_bytes)

    def terms(self, shard: int) -> list[tuple[int, int]]:
        """Where the terms of the shard's durable entries begin, as (index, term), oldest first."""
        return list(self._index.terms.get(shard, ()))

    @property
    def emptied(self) -> int:
        """How often all entries of a shard became void: what was known before of where shards begin may be wrong."""
        return self._index.emptied

    @property
    def is_empty(self) -> bool:
        """Whether it never had a round."""
        return not self._index.segments

    @property
    def segment_names(self) -> list[str]:
        """The files that the next start needs."""
        return [segment.name for segment in self._index.segments]

    @property
    def size_bytes(self) -> int:
        """Bytes written in all segments: what a start has to read."""
        return sum(segment.end for segment in self._index.segments)

    @property
    def allocated_bytes(self) -> int:
        """Bytes reserved on disk, the spare segment included."""
        return sum(segment.size_bytes for segment in self._index.segments) + self._writer.spare_bytes

    def entries(self, shard: int, after_index: int) -> Iterator[LogRecord]:
        """The shard's durable entries after this index, oldest first, read as the caller goes.

        Begins with the oldest entry there is when older ones were cut: compare `first_index`. Ends with what was
        durable when the iteration began. Raises LookupError when a cut or truncation takes entries from under it.
        """
        segments = self._index.segments
        last = self._index.last_index(shard)
        for segment in segments:
            run = segment.runs.get(shard)
            if run is not None and run.last > after_index and run.first <= last:
                yield from self._entries_of(segment, shard, after_index, last)

    def _entries_of(self, segment: Segment, shard: int, after_index: int, last: int) -> Iterator[LogRecord]:
        run = segment.runs[shard]
        last = min(last, run.last)
        # A handle of its own: a cut may unlink the file meanwhile, and what is open stays readable.
        try:
            handle = self._disk.open(segment.name)
        except DiskFailedError as error:
            if segment in self._index.segments:
                raise
            raise LookupError(f"Expected to read entries of shard {shard}, but {segment.name} was cut.") from error
        try:
            window = FileWindow(self._disk, handle, READ_AHEAD_BYTES)
            for index in range(max(after_index + 1, run.first), last + 1):
                if segment.runs.get(shard) is not run or index > run.last:
                    raise LookupError(f"Expected to read entry {index} of shard {shard}, but it was truncated.")
                yield _read_entry(window, segment, shard, index, *run.place(index))
        finally:
            self._disk.close(handle)

    # Staging: only memory.

    @property
    def staged_bytes(self) -> int:
        return self._staged.size_bytes

    def stage_entry(self, shard: int, index: int, term: int, payload: bytes, *, head: bytes = b"") -> None:
        """Adds an entry to the next round. Indexes of a shard are contiguous and begin at 1 or later.

        `head`: what its payload begins with, for those who would have to copy a large one to join them.
        """
        if index != self._next_index.get(shard, index) or index < 1:
            expected = self._next_index.get(shard, "1 or more")
            raise ValueError(f"Expected entry {expected} of shard {shard} next, but got {index}.")
        self._stage(frames.ENTRY, shard, index, term, payload, head)
        self._next_index[shard] = index + 1

    def stage_hard_state(self, shard: int, payload: bytes) -> None:
        """Adds the shard's new hard state to the next round; the newest one counts."""
        self._stage(frames.HARD_STATE, shard, 0, 0, payload)

    def stage_truncate(self, shard: int, from_index: int) -> None:
        """Makes the shard's entries from this one on void; `from_index` is then the next to stage.

        From 0: all entries are void and the next one may have any index, as after the installation of a snapshot.
        """
        end = self._next_index.get(shard, from_index)
        if not 0 <= from_index <= end:
            raise ValueError(f"Expected to truncate shard {shard} at 0 to {end}, but got {from_index}.")
        self._stage(frames.TRUNCATE_FROM, shard, from_index, 0, b"")
        if from_index:
            self._next_index[shard] = from_index
        else:
            self._next_index.pop(shard, None)

    def _stage(self, kind: int, shard: int, index: int, term: int, payload: bytes, head: bytes = b"") -> None:
        staged = self._staged
        position = staged.size_bytes
        length = len(head) + len(payload)
        size_bytes = position + RECORD_HEADER_BYTES + length
        if size_bytes > frames.FRAME_BODY_BYTES_MAX:
            raise ValueError(f"Expected at most {frames.FRAME_BODY_BYTES_MAX} staged bytes, but got {size_bytes}.")
        try:
            header = RECORD.pack(kind, shard, index, term, length) + head
        except struct.error as error:
            raise ValueError(f"Expected shard {shard}, index {index} and term {term} in range: {error}.") from error
        staged.buffers += (header, payload)
        staged.marks.append((kind, shard, index, term, position, payload))
        staged.size_bytes = size_bytes

    # Writing.

    def begin_flush(self) -> Flush | None:
        """Freezes what is staged into one round; None when nothing is. What is staged later belongs to the next."""
        if self._closed:
            raise RuntimeError("Expected an open log, but it is closed.")
        self._writer.check()
        if self._flush is not None:
            raise RuntimeError("Expected one flush at a time, but the last one is not done.")
        if not self._staged.marks:
            return None
        self._flush = Flush(self, self._staged)
        self._staged = _Staged()
        return self._flush

    def cut(self, keep_from: Mapping[int, int], as_of: int | None = None) -> int:
        """Deletes the leading segments in which every entry is below its shard's index; returns the bytes freed.

        A shard that is not in the mapping keeps everything. The active segment stays. Nothing is deleted if a shard was
        emptied since `emptied` was `as_of`: a replica that came in the place of another begins where the other did not.
        Blocks. DiskFailedError is fatal.
        """
        freed = 0
        try:
            for segment in self._index.take_unneeded(keep_from, as_of):
                self._disk.unlink(segment.name)
                # One by one: nothing says in which order unlinks reach the disk, and a gap would be damage.
                self._disk.fsync_directory()
                freed += segment.size_bytes
        except BaseException as error:
            self._writer.fail(error)
            raise
        return freed

    def close(self, *, clean: bool) -> None:
        """Ends the use of the log. What is staged and not flushed is dropped: nobody was told it is durable.

        A clean close adds a last round that says so. It is left out when there is no room for it, or no log yet.
        """
        if self._closed:
            return
        if self._flush is not None and self._flush.is_running:
            raise RuntimeError("Expected no flush under way at close.")
        self._closed = True
        try:
            if clean and self._index.segments:
                self._writer.write([RECORD.pack(frames.CLOSED, 0, 0, 0, 0), b""], RECORD_HEADER_BYTES, self.hard_states)
        except DiskFullError:
            pass
        finally:
            self._writer.close()

    def _publish(self, staged: _Staged, placed: RoundPosition) -> None:
        index = self._index
        segment = placed.segment
        with index.lock:
            if not index.segments or index.segments[-1] is not segment:
                index.add_segment(segment)
            marks = zip(staged.marks, placed.record_crcs, strict=True)
            for (kind, shard, entry_index, term, position, payload), crc in marks:
                if kind == frames.ENTRY:
                    index.add_entry(segment, shard, entry_index, term, placed.records_start + position, crc)
                elif kind == frames.HARD_STATE:
                    index.hard_states[shard] = payload
                else:
                    index.truncate(shard, entry_index)
        self._flush = None

    def _drop(self) -> None:
        """Back to what is durable. Staged entries build on the dropped ones, so they go as well."""
        self._staged = _Staged()
        self._next_index = dict(self._index.next_index)
        self._flush = None


class _Step(Enum):
    FROZEN = "not written"
    RUNNING = "being written"
    WRITTEN = "written"
    FAILED = "failed"
    ENDED = "ended"


class Flush:
    """One round on its way to the disk: `run()` in a thread, then `done()` or `abort()` on the loop."""

    __slots__ = ("_log", "_placed", "_staged", "_step")

    def __init__(self, log: NodeLog, staged: _Staged) -> None:
        self._log = log
        self._staged = staged
        self._placed: RoundPosition | None = None
        self._step = _Step.FROZEN

    @property
    def size_bytes(self) -> int:
        return self._staged.size_bytes

    @property
    def is_running(self) -> bool:
        return self._step is _Step.RUNNING

    def run(self) -> None:
        """Blocks until the round is durable.

        DiskFullError: nothing was written, call `abort()`. DiskFailedError: fatal, stop the process.
        """
        self._expect(_Step.FROZEN)
        self._step = _Step.RUNNING
        log = self._log
        try:
            self._placed = log._writer.write(self._staged.buffers, self._staged.size_bytes, log.hard_states)
        except DiskFullError:
            self._step = _Step.FROZEN
            raise
        except BaseException:
            self._step = _Step.FAILED
            raise
        self._step = _Step.WRITTEN

    def done(self) -> None:
        """Publishes the round: its entries are durable now."""
        self._expect(_Step.WRITTEN)
        assert self._placed is not None
        self._step = _Step.ENDED
        self._log._publish(self._staged, self._placed)

    def abort(self) -> None:
        """Drops a round that was not written, with all that was staged since. Indexes go back to the durable ones."""
        self._expect(_Step.FROZEN)
        self._step = _Step.ENDED
        self._log._drop()

    def _expect(self, step: _Step) -> None:
        if self._step is not step:
            raise RuntimeError(f"Expected a flush that is {step.value}, but it is {self._step.value}.")


def _read_entry(
    window: FileWindow, segment: Segment, shard: int, index: int, position: int, record_crc: int
) -> LogRecord:
    """An entry that was whole when it was written or found. Disks go bad while a node runs, and what is read here is
    sent to others and applied: it is never handed out with another bit."""
    header = window.view(position, RECORD_HEADER_BYTES)
    if len(header) == RECORD_HEADER_BYTES:
        *_, term, length = RECORD.unpack(header)
        # A length that is damaged must not decide how much is read.
        if position + RECORD_HEADER_BYTES + length <= segment.end:
            record = window.view(position, RECORD_HEADER_BYTES + length)
            if segment.codec.record_crc(record) == record_crc:
                return LogRecord(shard, index, term, bytes(record[RECORD_HEADER_BYTES:]))
    raise LogDamagedError(segment.name, position, f"entry {index} of shard {shard} is not as it was written")
