"""The format of a segment file. Pure: bytes in, bytes out.

    segment   header, zeros up to BLOCK_BYTES, then frames, then zeros up to the reserved length
    frame     one flush round: header, records; begins at a multiple of BLOCK_BYTES
    record    header (kind, shard, index, term, length), payload

All numbers are little-endian.

A frame begins at a block of its own so that no write ever touches a block that is already durable: a disk
that loses power in the middle of a block can only damage the round that was being written. It costs nothing, for the
page cache writes whole blocks anyway.

The checksums are seeded with the segment's random salt, the header's also with the place of the frame. So neither
a payload that looks like a frame (nobody outside knows the salt) nor a copy of this very file stored as a
payload can be taken for one.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from struct import Struct
from typing import Final

FORMAT_VERSION: Final = 1
SALT_BYTES: Final = 8
BLOCK_BYTES: Final = 4096
FRAMES_START: Final = BLOCK_BYTES

# One round can never be larger. Positions inside a segment fit 32 bits because of it.
FRAME_BODY_BYTES_MAX: Final = 1 << 30

# Kinds of records. A number is never reused.
ENTRY: Final = 1
HARD_STATE: Final = 2
TRUNCATE_FROM: Final = 3
CLOSED: Final = 4

RECORD: Final = Struct("<BIQQI")
RECORD_HEADER_BYTES: Final = RECORD.size

SEGMENT_MAGIC: Final = b"HOLDFLOG"
FRAME_MAGIC: Final = b"HFRD"

# This layout stays the same in every version, so that an old release can name the version it does not know.
_SEGMENT: Final = Struct("<8sIQ8s")
_FRAME: Final = Struct("<4sQII")
_CRC: Final = Struct("<I")
_PLACE: Final = Struct("<Q")
SEGMENT_HEADER_BYTES: Final = _SEGMENT.size + _CRC.size
FRAME_HEADER_BYTES: Final = _FRAME.size + _CRC.size


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    version: int
    number: int
    salt: bytes


def pack_segment_header(number: int, salt: bytes) -> bytes:
    header = _SEGMENT.pack(SEGMENT_MAGIC, FORMAT_VERSION, number, salt)
    return header + _CRC.pack(zlib.crc32(header))


def parse_segment_header(data: bytes | memoryview) -> SegmentHeader | None:
    """None when this is not a whole header. The version is the caller's to judge."""
    if len(data) < SEGMENT_HEADER_BYTES:
        return None
    magic, version, number, salt = _SEGMENT.unpack_from(data)
    (crc,) = _CRC.unpack_from(data, _SEGMENT.size)
    if magic != SEGMENT_MAGIC or crc != zlib.crc32(data[: _SEGMENT.size]):
        return None
    return SegmentHeader(version, number, salt)


@dataclass(frozen=True, slots=True)
class FrameHeader:
    round: int
    body_bytes: int
    body_crc: int

    @property
    def frame_bytes(self) -> int:
        return FRAME_HEADER_BYTES + self.body_bytes


class FrameCodec:
    """Packs and checks the frames of one segment."""

    __slots__ = ("_body_seed", "_header_seed")

    def __init__(self, salt: bytes) -> None:
        # Two halves, two seeds: whoever guesses one checksum knows nothing about the other.
        self._header_seed = zlib.crc32(salt[:4])
        self._body_seed = zlib.crc32(salt[4:])

    def body_crc(self, buffers: Iterable[bytes | memoryview], *, behind: int | None = None) -> int:
        """`behind`: the CRC of a part of the body that these buffers follow."""
        crc = self._body_seed if behind is None else behind
        for buffer in buffers:
            crc = zlib.crc32(buffer, crc)
        return crc

    def record_crc(self, *parts: bytes | memoryview) -> int:
        """Of a whole record, in one piece or several. It is kept in memory only: a frame is checked when the log is
        opened, a record each time it is read after that. That of a body's first record is a part of the body's."""
        return self.body_crc(parts)

    def pack_header(self, offset: int, header: FrameHeader) -> bytes:
        packed = _FRAME.pack(FRAME_MAGIC, header.round, header.body_bytes, header.body_crc)
        return packed + _CRC.pack(self._header_crc(offset, packed))

    def parse_header(self, offset: int, data: bytes | memoryview) -> FrameHeader | None:
        """None unless a header that belongs at this offset of this segment is here."""
        if len(data) < FRAME_HEADER_BYTES:
            return None
        magic, round_number, body_bytes, body_crc = _FRAME.unpack_from(data)
        (crc,) = _CRC.unpack_from(data, _FRAME.size)
        if magic != FRAME_MAGIC or crc != self._header_crc(offset, data[: _FRAME.size]):
            return None
        return FrameHeader(round_number, body_bytes, body_crc)

    def _header_crc(self, offset: int, packed: bytes | memoryview) -> int:
        return zlib.crc32(packed, zlib.crc32(_PLACE.pack(offset), self._header_seed))


class MalformedBodyError(ValueError):
    """A body whose checksum is right but whose records do not add up."""


def records(body: memoryview) -> Iterator[tuple[int, int, int, int, int, int]]:
    """(kind, shard, index, term, position of the record in the body, payload length) of each record."""
    position = 0
    end = len(body)
    unpack = RECORD.unpack_from
    while position < end:
        if end - position < RECORD_HEADER_BYTES:
            raise MalformedBodyError(f"the record at {position} of the round's body has no whole header")
        kind, shard, index, term, length = unpack(body, position)
        following = position + RECORD_HEADER_BYTES + length
        if following > end:
            raise MalformedBodyError(f"the record at {position} of the round's body is longer than the round")
        yield kind, shard, index, term, position, length
        position = following


def block_end(offset: int) -> int:
    """The next place where a frame may begin."""
    return -(-offset // BLOCK_BYTES) * BLOCK_BYTES
