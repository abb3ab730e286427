"""Reading a file in large pieces, so that small records cost no call each and memory stays bounded."""

from __future__ import annotations

from typing import Final

from holdfast.wal.disk import Disk
from holdfast.wal.frames import FRAME_HEADER_BYTES, FrameCodec, FrameHeader

SCAN_BYTES: Final = 1 << 20
_ZEROS: Final = bytes(SCAN_BYTES)


class FileWindow:
    """A moving view of one open file."""

    __slots__ = ("_disk", "_handle", "_read_ahead_bytes", "_start", "_view", "size_bytes")

    def __init__(self, disk: Disk, handle: int, read_ahead_bytes: int = SCAN_BYTES) -> None:
        self._disk = disk
        self._handle = handle
        self._read_ahead_bytes = read_ahead_bytes
        self._start = 0
        self._view = memoryview(b"")
        self.size_bytes = disk.size(handle)

    def view(self, offset: int, length: int) -> memoryview:
        """These bytes without a copy; fewer where the file ends."""
        start = offset - self._start
        if start < 0 or start + length > len(self._view):
            self._view = memoryview(self._disk.read(self._handle, offset, max(length, self._read_ahead_bytes)))
            self._start = offset
            start = 0
        return self._view[start : start + length]

    def frame_header(self, codec: FrameCodec, offset: int) -> FrameHeader | None:
        return codec.parse_header(offset, self.view(offset, FRAME_HEADER_BYTES))

    def frame(self, codec: FrameCodec, offset: int) -> tuple[FrameHeader, memoryview] | None:
        """Header and body of the frame that begins here; None unless both checksums are right."""
        header = self.frame_header(codec, offset)
        if header is None or offset + header.frame_bytes > self.size_bytes:
            return None
        body = self.view(offset, header.frame_bytes)[FRAME_HEADER_BYTES:]
        if len(body) != header.body_bytes or codec.body_crc((body,)) != header.body_crc:
            return None
        return header, body


def used_end(disk: Disk, handle: int, start: int, size_bytes: int) -> int:
    """Just after the last byte that is not zero, or `start` when only zeros follow it."""
    end = start
    for offset in range(start, size_bytes, SCAN_BYTES):
        data = disk.read(handle, offset, min(SCAN_BYTES, size_bytes - offset))
        if data != (_ZEROS if len(data) == SCAN_BYTES else bytes(len(data))):
            end = offset + len(data.rstrip(b"\0"))
    return end
