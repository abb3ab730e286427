"""Frames in a stream: every body comes back as it was, however the stream is cut, and nothing else is taken for one."""

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.broker.peers.frames import HEAD_BYTES, PeerFrameReader, frame_head
from holdfast.broker.peers.reasons import PeerError, Reason

BODY_BYTES_MAX = 10_000
SMALL = st.binary(min_size=1, max_size=30)
# Made from few drawn numbers: drawing each byte of a large body takes longer than the test.
LARGE = st.builds(lambda part, size: (part * size)[:size], SMALL, st.integers(30, BODY_BYTES_MAX))
BODIES = st.lists(SMALL | LARGE, max_size=8)


def framed(body: bytes) -> bytes:
    return frame_head(body) + body


def head_of(size: int) -> bytes:
    """Of a frame of this size that never comes."""
    head = size.to_bytes(4, "big") + bytes(4)
    return head + zlib.crc32(head).to_bytes(4, "big")


def feed(reader: PeerFrameReader, stream: bytes, pieces: list[int]) -> list[bytes]:
    """The bodies that come out while the stream comes in, in pieces of these sizes and then as the buffer takes it."""
    bodies: list[bytes] = []
    sizes = iter(pieces)
    while stream:
        space = reader.space()
        count = min(len(space), len(stream), next(sizes, len(stream)))
        space[:count] = stream[:count]
        stream = stream[count:]
        reader.received(count)
        while (body := reader.next_body()) is not None:
            bodies.append(body)
    return bodies


@given(BODIES, st.lists(st.integers(1, 6000), max_size=40))
def test_bodies_come_back_however_the_stream_is_cut(bodies: list[bytes], pieces: list[int]) -> None:
    reader = PeerFrameReader(BODY_BYTES_MAX)
    assert feed(reader, b"".join(map(framed, bodies)), pieces) == bodies
    assert not reader.has_rest


@given(BODIES, SMALL | LARGE, st.data())
def test_a_truncated_frame_never_comes_out(bodies: list[bytes], last: bytes, data: st.DataObject) -> None:
    reader = PeerFrameReader(BODY_BYTES_MAX)
    cut = data.draw(st.integers(1, HEAD_BYTES + len(last) - 1))
    assert feed(reader, b"".join(map(framed, bodies)) + framed(last)[:cut], []) == bodies
    assert reader.has_rest


@given(SMALL | LARGE, st.data())
def test_a_flipped_bit_never_goes_unnoticed(body: bytes, data: st.DataObject) -> None:
    """Nor is more waited for than the frame itself: a wrong length would have all that follows taken for its rest."""
    stream = bytearray(framed(body))
    bit = data.draw(st.integers(0, 8 * len(stream) - 1))
    stream[bit // 8] ^= 1 << bit % 8
    with pytest.raises(PeerError) as caught:
        feed(PeerFrameReader(BODY_BYTES_MAX), bytes(stream), [])
    assert caught.value.reason is Reason.FRAME_DAMAGED


@given(st.binary(min_size=1, max_size=200))
def test_garbage_is_refused_or_waits_or_is_exactly_frames(garbage: bytes) -> None:
    reader = PeerFrameReader(BODY_BYTES_MAX)
    try:
        bodies = feed(reader, garbage, [])
    except PeerError:
        return
    whole = b"".join(map(framed, bodies))
    assert garbage.startswith(whole)
    assert reader.has_rest == (len(garbage) > len(whole))


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        (head_of(0), Reason.FRAME_EMPTY),
        (head_of(BODY_BYTES_MAX + 1), Reason.FRAME_OVERSIZED),
        (head_of(2**32 - 1), Reason.FRAME_OVERSIZED),
        (bytes(HEAD_BYTES), Reason.FRAME_DAMAGED),
        (b"\xff" * HEAD_BYTES, Reason.FRAME_DAMAGED),
    ],
)
def test_a_wrong_size_is_refused_before_its_body_comes(head: bytes, reason: Reason) -> None:
    with pytest.raises(PeerError) as caught:
        feed(PeerFrameReader(BODY_BYTES_MAX), head, [])
    assert caught.value.reason is reason


def test_a_body_with_the_checksum_of_another_is_refused() -> None:
    stream = frame_head(b"abd") + b"abc"
    with pytest.raises(PeerError) as caught:
        feed(PeerFrameReader(BODY_BYTES_MAX), stream, [])
    assert caught.value.reason is Reason.FRAME_DAMAGED


def test_the_largest_body_is_taken() -> None:
    body = bytes(range(256)) * (3 * 1024 * 4)  # 3 MiB, more than is kept afterwards
    reader = PeerFrameReader(64)
    reader.widen(len(body))
    assert feed(reader, framed(body) + framed(b"next"), []) == [body, b"next"]
    assert len(reader.space()) < len(body)


def test_the_buffer_grows_with_what_comes_and_not_with_what_is_announced() -> None:
    whole = 100 * 1024 * 1024
    reader = PeerFrameReader(64)
    reader.widen(whole)
    room = len(reader.space())
    feed(reader, head_of(whole), [])
    assert len(reader.space()) <= room
    for sent in (room // 2, room, 2 * room, 4 * room):
        feed(reader, bytes(sent), [])
    assert len(reader.space()) < 16 * room


def test_widening_keeps_what_has_come() -> None:
    """The first frame may come together with the hello."""
    reader = PeerFrameReader(64)
    large = b"x" * 2000
    stream = framed(b"hello") + framed(large)
    space = reader.space()
    space[: len(stream)] = stream
    reader.received(len(stream))
    assert reader.next_body() == b"hello"
    reader.widen(BODY_BYTES_MAX)
    assert reader.next_body() == large
    assert reader.next_body() is None


def test_before_the_hello_a_claimed_size_reserves_nothing() -> None:
    reader = PeerFrameReader(64)
    room = len(reader.space())
    with pytest.raises(PeerError):
        feed(reader, head_of(1_000_000), [])
    assert room <= 4096
    assert len(reader.space()) <= room


def test_bytes_without_a_frame_are_taken_whole_or_not_at_all() -> None:
    reader = PeerFrameReader(64)
    reader.space()[:5] = b"abcde"
    reader.received(5)
    assert reader.take(6) is None
    assert reader.take(3) == b"abc"
    assert reader.take(2) == b"de"
    assert not reader.has_rest
