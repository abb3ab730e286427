"""Writing rounds: one pwrite and one fdatasync each, and a new segment now and then.

Everything here runs in the flush thread, one round at a time. The event loop sees none of it until the round is
published.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from holdfast.wal import frames
from holdfast.wal.disk import Disk, without_beginning
from holdfast.wal.errors import DiskFailedError, DiskFullError
from holdfast.wal.frames import FRAME_HEADER_BYTES, FRAMES_START, RECORD, FrameCodec, FrameHeader
from holdfast.wal.segments import Segment, create_segment

# Buffers below this are joined, larger ones are handed to the kernel where they are.
JOIN_BELOW_BYTES: Final = 16 * 1024
# Buffers that are smaller than this on average are all joined: one copy is cheaper than looking at each.
JOIN_ALL_BELOW_BYTES: Final = 1024
# The first write to a block that was only reserved takes a journal commit of the file system with its sync, which costs
# more than the sync of a small round. So those write zeros ahead of themselves, now and then.
AHEAD_BYTES: Final = 256 * 1024
AHEAD_OF_BYTES_MAX: Final = 16 * 1024

_ZEROS: Final = bytes(AHEAD_BYTES)


@dataclass(frozen=True, slots=True)
class RoundPosition:
    """Where a round went."""

    segment: Segment
    records_start: int  # the position in the file of the first staged record
    record_crcs: array[int]  # of the staged records


class RoundWriter:
    def __init__(
        self,
        disk: Disk,
        *,
        segment_bytes: int,
        random_bytes: Callable[[int], bytes],
        active: tuple[Segment, int] | None,
        last_round: int,
    ) -> None:
        self._disk = disk
        self._segment_bytes = frames.block_end(segment_bytes)
        self._random_bytes = random_bytes
        self._active = active
        # The next segment, created ahead so that rolling over costs no round more than an ordinary write.
        self._spare: tuple[Segment, int] | None = None
        self._spare_not_before = 0
        self._written_end = 0  # of the active segment: up to here its blocks were written, if only with zeros
        self._last_round = last_round
        self._failure: str | None = None

    def check(self) -> None:
        """Raises once the disk has failed, and from then on always."""
        if self._failure is not None:
            raise DiskFailedError(f"Expected to write to the log, but it is out of use: {self._failure}")

    def fail(self, error: BaseException) -> None:
        """Puts the log out of use for good."""
        self._failure = self._failure or str(error) or type(error).__name__

    @property
    def spare_bytes(self) -> int:
        spare = self._spare  # the flush thread may take it away meanwhile
        return spare[0].size_bytes if spare else 0

    def write(self, buffers: list[bytes], body_bytes: int, hard_states: Mapping[int, bytes]) -> RoundPosition:
        """Makes a round durable: of each record its header and its payload. DiskFullError: nothing was written.
        Anything else: the log is out of use."""
        self.check()
        try:
            return self._write(buffers, body_bytes, hard_states)
        except DiskFullError:
            raise
        except BaseException as error:
            self.fail(error)
            raise

    def close(self) -> None:
        for opened in (self._active, self._spare):
            if opened is not None:
                self._disk.close(opened[1])
        self._active = self._spare = None

    def _write(self, buffers: list[bytes], body_bytes: int, hard_states: Mapping[int, bytes]) -> RoundPosition:
        repeated: list[bytes] = []
        target = self._active
        if target is None or target[0].end + FRAME_HEADER_BYTES + body_bytes > target[0].size_bytes:
            # Each segment begins with all hard states, so that the ones before it can be cut.
            repeated = [RECORD.pack(frames.HARD_STATE, shard, 0, 0, len(p)) + p for shard, p in hard_states.items()]
            body_bytes += sum(map(len, repeated))
            target = self._next_segment(FRAMES_START + FRAME_HEADER_BYTES + body_bytes)
        segment, handle = target
        offset = segment.end
        record_crcs = _record_crcs(segment.codec, buffers)
        body = _joined(repeated + buffers, body_bytes)
        if repeated:
            body_crc = segment.codec.body_crc(body)
        else:  # as a rule there is one record, and its bytes are looked at once
            behind_first = without_beginning(body, len(buffers[0]) + len(buffers[1]))
            body_crc = segment.codec.body_crc(behind_first, behind=record_crcs[0])
        header = FrameHeader(self._last_round + 1, body_bytes, body_crc)
        if target is not self._active:
            self._written_end = 0
        frame = [segment.codec.pack_header(offset, header), *body, *self._zeros_ahead(segment, header.frame_bytes)]
        self._disk.pwrite(handle, frame, offset)
        self._disk.fdatasync(handle)
        segment.end = frames.block_end(offset + header.frame_bytes)
        self._last_round = header.round
        if target is not self._active:
            self._activate(target)
        self._prepare_spare(segment)
        return RoundPosition(segment, offset + FRAME_HEADER_BYTES + sum(map(len, repeated)), record_crcs)

    def _zeros_ahead(self, segment: Segment, frame_bytes: int) -> list[bytes]:
        """What is written behind a frame, for the sake of those that follow it."""
        end = segment.end + frame_bytes
        if end <= self._written_end or frame_bytes > AHEAD_OF_BYTES_MAX:
            return []
        self._written_end = min(frames.block_end(end) + AHEAD_BYTES - frames.BLOCK_BYTES, segment.size_bytes)
        return [_ZEROS[: self._written_end - end]]

    def _next_segment(self, needed_bytes: int) -> tuple[Segment, int]:
        """An empty segment with room for this much. DiskFullError leaves everything as it was."""
        needed_bytes = frames.block_end(needed_bytes)
        if self._spare is None:
            self._spare = self._create(max(needed_bytes, self._segment_bytes))
        segment, handle = self._spare
        if segment.size_bytes < needed_bytes:
            self._disk.extend(handle, needed_bytes)
            segment.size_bytes = needed_bytes
        return self._spare

    def _activate(self, target: tuple[Segment, int]) -> None:
        if self._active is not None:
            self._disk.close(self._active[1])
        self._active = target
        self._spare = None
        self._spare_not_before = 0

    def _prepare_spare(self, active: Segment) -> None:
        """Creates the next segment once this one is half full. After its round, so only then may the file exist."""
        if self._spare is not None or active.end < max(active.size_bytes // 2, self._spare_not_before):
            return
        try:
            self._spare = self._create(self._segment_bytes)
        except DiskFullError:
            # The round is durable all the same. Ask again some writes later.
            self._spare_not_before = active.end + active.size_bytes // 8

    def _create(self, size_bytes: int) -> tuple[Segment, int]:
        number = self._active[0].number + 1 if self._active else 1
        return create_segment(self._disk, number, self._random_bytes(frames.SALT_BYTES), size_bytes)


def _record_crcs(codec: FrameCodec, buffers: list[bytes]) -> array[int]:
    parts = iter(buffers)
    return array("I", [codec.record_crc(header, next(parts)) for header in parts])


def _joined(buffers: list[bytes], total_bytes: int) -> list[bytes]:
    """Fewer buffers with the same content, without copying large payloads."""
    if total_bytes < len(buffers) * JOIN_ALL_BELOW_BYTES:
        return [b"".join(buffers)]
    joined: list[bytes] = []
    small: list[bytes] = []
    for buffer in buffers:
        if len(buffer) < JOIN_BELOW_BYTES:
            small.append(buffer)
            continue
        if small:
            joined.append(b"".join(small))
            small = []
        joined.append(buffer)
    if small:
        joined.append(b"".join(small))
    return joined
