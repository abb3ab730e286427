"""Frames in a stream of bytes. Pure: no sockets.

    frame   length of the body (4 bytes), CRC-32 of the body (4 bytes), CRC-32 of these eight bytes (4 bytes), body;
            numbers big-endian

TCP's own checksum has 16 bits and misses some damage, and TLS may be off: hence the CRCs. The head has its own, because
a length that is wrong would have all that follows taken for the rest of one frame. An empty body, one above
the limit or one with another CRC is a `PeerError`; there is no way to find the next frame after it.
"""

import zlib
from struct import Struct
from typing import Final

from holdfast.broker.peers.reasons import PeerError, Reason

_HEAD: Final = Struct(">II")
_HEAD_CRC: Final = Struct(">I")
HEAD_BYTES: Final = _HEAD.size + _HEAD_CRC.size

_SMALL_BUFFER_BYTES: Final = 4 * 1024  # before the hello, when anybody may be speaking
_BUFFER_BYTES: Final = 256 * 1024
_KEPT_BYTES_MAX: Final = 2 * 1024 * 1024


def frame_head(body: bytes) -> bytes:
    """What goes before a body."""
    head = _HEAD.pack(len(body), zlib.crc32(body))
    return head + _HEAD_CRC.pack(zlib.crc32(head))


def frame(body: bytes) -> bytes:
    """As it goes over the wire. One may go to several nodes: a large body is copied and summed up once for all."""
    return frame_head(body) + body


class PeerFrameReader:
    """Collects bytes in a buffer that the socket fills directly, and takes frames out of it.

    The buffer grows with what has come of a frame, not with what its head announces: who says little costs little.
    It is kept for the next frame of that size, unless it is so large that few will be.
    """

    def __init__(self, body_bytes_max: int) -> None:
        self._body_bytes_max = body_bytes_max
        self._set_buffer(bytearray(_SMALL_BUFFER_BYTES))
        self._start = self._end = 0  # what has come and was not taken yet lies between

    def _set_buffer(self, buffer: bytearray) -> None:
        self._buffer = buffer
        self._view = memoryview(buffer)

    def widen(self, body_bytes_max: int) -> None:
        """After the hello: larger frames are welcome, and a larger buffer to read many of them at once."""
        self._body_bytes_max = body_bytes_max
        self._make_room(_BUFFER_BYTES)

    @property
    def has_rest(self) -> bool:
        """Whether something has come that was not taken: at the end of a connection, a piece of a frame."""
        return self._start != self._end

    def space(self) -> memoryview:
        """Where the next bytes go; never empty."""
        if self._end == len(self._buffer):
            self._make_room(self._end - self._start + 1)
        return self._view[self._end :]

    def received(self, count: int) -> None:
        """So many bytes were put into `space`."""
        self._end += count

    def take(self, count: int) -> bytes | None:
        """Exactly so many bytes that are no frame; None while they have not all come."""
        if self._end - self._start < count:
            return None
        taken = bytes(self._view[self._start : self._start + count])
        self._start += count
        return taken

    def next_body(self) -> bytes | None:
        """The body of the next frame; None while it has not all come. Raises `PeerError`, and is of no use then."""
        start = self._start
        have = self._end - start
        if have < HEAD_BYTES:
            if have == 0:
                self._rewind()
            elif len(self._buffer) - start < HEAD_BYTES:
                self._make_room(HEAD_BYTES)
            return None
        length, crc = self._head(start)
        if not 0 < length <= self._body_bytes_max:
            reason = Reason.FRAME_OVERSIZED if length else Reason.FRAME_EMPTY
            raise PeerError(reason, f"a frame of {length} bytes where at most {self._body_bytes_max} are allowed")
        if have < HEAD_BYTES + length:
            if len(self._buffer) - start < HEAD_BYTES + length:
                self._grow(HEAD_BYTES + length)
            return None
        start += HEAD_BYTES
        self._start = start + length
        body = bytes(self._view[start : start + length])
        if zlib.crc32(body) != crc:
            raise PeerError(Reason.FRAME_DAMAGED, f"a frame of {length} bytes with a wrong checksum")
        return body

    def _head(self, start: int) -> tuple[int, int]:
        """Length and CRC of the frame that begins here."""
        (head_crc,) = _HEAD_CRC.unpack_from(self._buffer, start + _HEAD.size)
        if zlib.crc32(self._view[start : start + _HEAD.size]) != head_crc:
            raise PeerError(Reason.FRAME_DAMAGED, "a frame whose head has a wrong checksum")
        length, crc = _HEAD.unpack_from(self._buffer, start)
        return length, crc

    def _grow(self, whole: int) -> None:
        """Room for more of a frame that does not fit behind what was taken, up to twice of what has come."""
        if self._start or self._end == len(self._buffer):
            self._make_room(min(whole, max(len(self._buffer), 2 * (self._end - self._start))))

    def _rewind(self) -> None:
        """All was taken: begin at the front again."""
        self._start = self._end = 0
        if len(self._buffer) > _KEPT_BYTES_MAX:
            self._set_buffer(bytearray(_BUFFER_BYTES))

    def _make_room(self, size: int) -> None:
        """Moves what waits to the front of a buffer that has room for so many bytes."""
        rest = self._view[self._start : self._end]
        if size > len(self._buffer):
            self._set_buffer(bytearray(size))
        self._view[: len(rest)] = rest
        self._start, self._end = 0, len(rest)
