"""The format: what is packed is parsed, and nothing else is."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.wal import frames
from holdfast.wal.frames import BLOCK_BYTES, FrameCodec, FrameHeader

SALT = b"saltsalt"

salts = st.binary(min_size=8, max_size=8)
offsets = st.integers(1, 1 << 20).map(lambda block: block * BLOCK_BYTES)
frame_headers = st.builds(FrameHeader, st.integers(1, 2**64 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
record_parts = st.tuples(
    st.sampled_from([frames.ENTRY, frames.HARD_STATE, frames.TRUNCATE_FROM, frames.CLOSED]),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
    st.binary(max_size=60),
)


@given(st.integers(1, 2**64 - 1), salts)
def test_a_segment_header_is_read_back(number: int, salt: bytes) -> None:
    packed = frames.pack_segment_header(number, salt)
    assert len(packed) == frames.SEGMENT_HEADER_BYTES
    assert frames.parse_segment_header(packed) == frames.SegmentHeader(frames.FORMAT_VERSION, number, salt)


@given(st.integers(0, 8 * frames.SEGMENT_HEADER_BYTES - 1))
def test_a_segment_header_with_a_wrong_bit_is_refused(bit: int) -> None:
    packed = bytearray(frames.pack_segment_header(7, SALT))
    packed[bit // 8] ^= 1 << bit % 8
    assert frames.parse_segment_header(bytes(packed)) is None
    assert frames.parse_segment_header(bytes(packed[:-1])) is None


@given(salts, offsets, frame_headers)
def test_a_frame_header_is_read_back(salt: bytes, offset: int, header: FrameHeader) -> None:
    packed = FrameCodec(salt).pack_header(offset, header)
    assert len(packed) == frames.FRAME_HEADER_BYTES
    assert FrameCodec(salt).parse_header(offset, packed) == header


@given(st.integers(0, 8 * frames.FRAME_HEADER_BYTES - 1))
def test_a_frame_header_with_a_wrong_bit_is_refused(bit: int) -> None:
    packed = bytearray(FrameCodec(SALT).pack_header(BLOCK_BYTES, FrameHeader(3, 100, 12345)))
    packed[bit // 8] ^= 1 << bit % 8
    assert FrameCodec(SALT).parse_header(BLOCK_BYTES, bytes(packed)) is None


@given(salts, salts, offsets, offsets, frame_headers)
def test_a_frame_is_valid_only_in_its_segment_and_at_its_place(
    salt: bytes, other_salt: bytes, offset: int, other_offset: int, header: FrameHeader
) -> None:
    packed = FrameCodec(salt).pack_header(offset, header)
    if salt[:4] != other_salt[:4]:
        assert FrameCodec(other_salt).parse_header(offset, packed) is None
    if offset != other_offset:
        assert FrameCodec(salt).parse_header(other_offset, packed) is None


def test_zeros_are_no_frame() -> None:
    assert FrameCodec(SALT).parse_header(BLOCK_BYTES, bytes(frames.FRAME_HEADER_BYTES)) is None
    assert FrameCodec(SALT).parse_header(BLOCK_BYTES, b"") is None


def test_the_body_checksum_does_not_depend_on_how_the_body_is_split_but_on_the_salt() -> None:
    codec = FrameCodec(SALT)
    assert codec.body_crc([b"abc", b"", b"def"]) == codec.body_crc([b"abcdef"])
    assert codec.body_crc([b"abcdef"]) != FrameCodec(b"saltpepp").body_crc([b"abcdef"])
    first = codec.record_crc(b"ab", b"c")
    assert first == codec.body_crc([b"abc"])
    assert codec.body_crc([b"de", b"f"], behind=first) == codec.body_crc([b"abcdef"])
    assert codec.body_crc([], behind=first) == first


@given(st.lists(record_parts, max_size=20))
def test_records_are_read_back(parts: list[tuple[int, int, int, int, bytes]]) -> None:
    body = b"".join(frames.RECORD.pack(*head, len(payload)) + payload for *head, payload in parts)
    found = []
    for kind, shard, index, term, position, length in frames.records(memoryview(body)):
        start = position + frames.RECORD_HEADER_BYTES
        found.append((kind, shard, index, term, body[start : start + length]))
    assert found == parts


@settings(max_examples=200)
@given(st.binary(max_size=80))
def test_a_body_of_any_bytes_ends_or_is_called_malformed(body: bytes) -> None:
    try:
        parsed = list(frames.records(memoryview(body)))
    except frames.MalformedBodyError:
        return
    assert sum(frames.RECORD_HEADER_BYTES + length for *_, length in parsed) == len(body)


def test_a_record_that_is_cut_short_is_malformed() -> None:
    record = frames.RECORD.pack(frames.ENTRY, 1, 1, 1, 10)
    with pytest.raises(frames.MalformedBodyError, match="longer than the round"):
        list(frames.records(memoryview(record + b"short")))
    with pytest.raises(frames.MalformedBodyError, match="no whole header"):
        list(frames.records(memoryview(record[:-1])))


def test_numbers_of_kinds_and_the_layout_never_change() -> None:
    """These bytes are on disks. A change here needs a new format version."""
    assert (frames.ENTRY, frames.HARD_STATE, frames.TRUNCATE_FROM, frames.CLOSED) == (1, 2, 3, 4)
    assert frames.pack_segment_header(2, SALT).hex() == (
        "484f4c44464c4f4701000000020000000000000073616c7473616c749734bd81"
    )
    header = FrameCodec(SALT).pack_header(BLOCK_BYTES, FrameHeader(5, 25, FrameCodec(SALT).body_crc([b"x" * 25])))
    assert header.hex() == "4846524405000000000000001900000024c345dfb2e4b262"
    assert frames.RECORD.pack(1, 2, 3, 4, 5).hex() == "01020000000300000000000000040000000000000005000000"


@pytest.mark.parametrize(("offset", "end"), [(0, 0), (1, 4096), (4096, 4096), (4097, 8192)])
def test_a_frame_begins_at_a_block(offset: int, end: int) -> None:
    assert frames.block_end(offset) == end
