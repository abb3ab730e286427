"""Frames as bytes: whatever is cut or merged on the way, the same frames come out, and nothing else ever does."""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.frames import codec
from holdfast.frames.codec import BrokenFrameError, Frame, FrameReader, decode_refusal
from holdfast.frames.hello import hello, read_hello, read_welcome, welcome, why_not_welcome
from holdfast.frames.metadata import PAIRS_MAX, decode_metadata, encode_metadata
from tests.long import IS_LONG

BYTES_MAX = 400
FUZZED = 1_000_000 if IS_LONG else 5_000
U32 = st.integers(0, 0xFFFFFFFF)
BODIES = st.binary(max_size=300)


class Room:
    """With so many bytes of it."""

    def __init__(self, free: int = 1 << 30) -> None:
        self.free = free

    def take(self, size: int) -> bool:
        if size > self.free:
            return False
        self.free -= size
        return True

    def give_back(self, size: int) -> None:
        self.free += size


def as_bytes(frame: Frame) -> bytes:
    assert frame.body is not None
    if frame.kind == codec.CALL:
        head = codec.encode_call(frame.call, frame.method, frame.timeout_ms, frame.metadata, len(frame.body))
        return head + frame.body
    return codec.encode(frame.kind, frame.call, frame.body)


CALLS = st.tuples(U32, BODIES, st.integers(0, 0xFFFF), U32, st.binary(max_size=60)).map(
    lambda values: Frame(codec.CALL, *values)
)
OTHER_KINDS = [kind for kind in range(codec.HELLO, codec.END + 1) if kind != codec.CALL]
OTHERS = st.tuples(st.sampled_from(OTHER_KINDS), U32, BODIES).map(lambda values: Frame(*values))


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    return [data[start:stop] for start, stop in pairwise(places)]


def read(reader: FrameReader, parts: list[bytes]) -> list[Frame]:
    return [frame for part in parts for frame in reader.feed(part)]


@given(frames=st.lists(CALLS | OTHERS, max_size=12), cuts=st.lists(U32, max_size=40))
def test_frames_come_out_as_they_went_in_however_they_are_cut(frames: list[Frame], cuts: list[int]) -> None:
    room = Room()
    reader = FrameReader(BYTES_MAX, room)
    assert read(reader, pieces(b"".join(map(as_bytes, frames)), cuts)) == frames
    assert reader.is_between
    assert room.free == 1 << 30


@given(frames=st.lists(CALLS, min_size=1, max_size=5), size=st.integers(1, 7))
def test_a_few_bytes_at_a_time_make_the_same_frames(frames: list[Frame], size: int) -> None:
    data = b"".join(map(as_bytes, frames))
    assert read(FrameReader(BYTES_MAX, Room()), pieces(data, list(range(0, len(data), size)))) == frames


@given(
    before=CALLS, after=CALLS, body=st.binary(min_size=BYTES_MAX + 1, max_size=2 * BYTES_MAX), cuts=st.lists(U32),
    metadata=st.binary(max_size=60),
)  # fmt: skip
def test_what_is_too_large_is_passed_over(
    before: Frame, after: Frame, body: bytes, cuts: list[int], metadata: bytes
) -> None:
    large = Frame(codec.CALL, 7, body, 3, 20, metadata)
    room = Room()
    data = b"".join(map(as_bytes, (before, large, after)))
    found = read(FrameReader(BYTES_MAX, room), pieces(data, cuts))
    assert found == [before, large._replace(body=None, was_too_large=True), after]
    assert room.free == 1 << 30


@given(after=CALLS, cut=st.integers(1, 99))
def test_what_there_is_no_room_for_is_passed_over(after: Frame, cut: int) -> None:
    call = Frame(codec.CALL, 7, bytes(100), 3, 20)
    room = Room(free=20)
    data = as_bytes(call)
    head = len(data) - 100
    reader = FrameReader(BYTES_MAX, room)
    found = read(reader, [data[: head + cut], data[head + cut :] + as_bytes(after)])
    assert found == [call._replace(body=None), after]
    assert room.free == 20


def test_a_connection_that_ends_gives_back_the_room_of_what_was_not_complete() -> None:
    room = Room()
    reader = FrameReader(BYTES_MAX, room)
    assert not reader.feed(as_bytes(Frame(codec.CALL, 7, bytes(100)))[:-1])
    assert (room.free, reader.is_between) == ((1 << 30) - 99, False)
    reader.drop()
    assert (room.free, reader.is_between) == (1 << 30, True)


@pytest.mark.parametrize(
    "data",
    [
        codec.encode(0, 1),
        codec.encode(codec.END + 1, 1),
        b"\0\0\0\0" + bytes([codec.PING]) + bytes(4),  # shorter than what every frame has
        codec.encode(codec.CALL, 1, b"\0" * 8),  # no room for the metadata's size to be true
        codec.encode_call(1, 0, 0, b"", 0)[:-2] + b"\1\0",
    ],
)
def test_what_is_no_frame_breaks_the_connection(data: bytes) -> None:
    with pytest.raises(BrokenFrameError):
        FrameReader(BYTES_MAX, Room()).feed(data + bytes(20))


def test_too_much_metadata_is_refused_before_it_comes() -> None:
    with pytest.raises(ValueError, match="at most 8192 bytes of metadata"):
        codec.encode_call(1, 0, 0, bytes(codec.METADATA_BYTES_MAX + 1), 0)
    allowed = codec.encode_call(1, 0, 0, bytes(codec.METADATA_BYTES_MAX), 10_000)
    too_much = allowed.replace((8192).to_bytes(2, "little"), (8193).to_bytes(2, "little"), 1)
    FrameReader(1 << 20, Room()).feed(allowed[:17])
    with pytest.raises(BrokenFrameError):
        FrameReader(1 << 20, Room()).feed(too_much[:17])


@given(frames=st.lists(CALLS | OTHERS, max_size=12), cuts=st.lists(U32, max_size=4), some=st.integers(1, 5))
def test_frames_are_cut_some_at_a_time(frames: list[Frame], cuts: list[int], some: int) -> None:
    """Small ones take ten times as much memory as their bytes."""
    reader, found = FrameReader(BYTES_MAX, Room()), list[list[Frame]]()
    for part in pieces(b"".join(map(as_bytes, frames)), cuts):
        found.append(reader.feed(part, some))
        while reader.has_more:
            assert (len(found[-1]), reader.is_between) == (some, False)
            found.append(reader.feed(b"", some))
    assert [frame for together in found for frame in together] == frames
    assert all(len(together) <= some for together in found)
    assert reader.is_between


def test_random_bytes_break_a_connection_or_are_frames_and_nothing_else() -> None:
    """Most begin like frames: otherwise hardly one would be understood so far."""
    draw = random.Random(7)
    for _ in range(FUZZED):
        data = draw.randbytes(draw.randrange(60))
        if draw.random() < 0.8:
            data = draw.randrange(40).to_bytes(4, "little") + bytes([draw.randrange(12)]) + data
        room = Room(draw.randrange(40))
        free, reader = room.free, FrameReader(draw.randrange(40), room)
        try:
            for part in pieces(data, [draw.randrange(60) for _ in range(3)]):
                for frame in reader.feed(part):
                    understand(frame)
        except BrokenFrameError:
            pass
        reader.drop()
        assert room.free == free


def understand(frame: Frame) -> None:
    body = frame.body or b""
    decode_metadata(frame.metadata)
    if frame.kind == codec.HELLO:
        read_hello(body)
    elif frame.kind == codec.WELCOME:
        read_welcome(body, "")
    elif frame.kind in (codec.REFUSAL, codec.END):
        decode_refusal(body)


# --- what is in them --------------------------------------------------------------------------------------------

TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)


@given(st.lists(st.tuples(TEXTS, TEXTS), max_size=8).map(tuple))
def test_metadata_comes_back(metadata: tuple[tuple[str, str], ...]) -> None:
    assert decode_metadata(encode_metadata(metadata)) == metadata


@pytest.mark.parametrize(
    "data", [b"\xff\0", b"key", b"key\0", b"key\0value", b"a\0b\0c\0", b"\0" * codec.METADATA_BYTES_MAX]
)
def test_metadata_that_is_broken(data: bytes) -> None:
    with pytest.raises(BrokenFrameError):
        decode_metadata(data)


def test_metadata_that_cannot_be_sent() -> None:
    for bad in ((("key", "a\0b"),), (("key", "x" * codec.METADATA_BYTES_MAX),), (("", ""),) * (PAIRS_MAX + 1)):
        with pytest.raises(ValueError, match="expected"):
            encode_metadata(bad)


@given(code=st.integers(0, 16), message=st.text(max_size=50), details=st.binary(max_size=50))
def test_refusals_come_back(code: int, message: str, details: bytes) -> None:
    [frame] = FrameReader(BYTES_MAX, Room()).feed(codec.encode_refusal(9, code, message, details))
    assert frame.call == 9
    assert frame.body is not None
    assert decode_refusal(frame.body) == (code, message, details)


def test_a_sentence_that_is_too_long_is_cut() -> None:
    data = codec.encode_refusal(9, 3, "é" * codec.MESSAGE_BYTES_MAX)
    [frame] = FrameReader(1 << 20, Room()).feed(data)
    assert len(decode_refusal(frame.body or b"").message.encode()) <= codec.MESSAGE_BYTES_MAX + 2


def test_a_sentence_that_is_no_utf8_is_sent_all_the_same() -> None:
    [frame] = FrameReader(BYTES_MAX, Room()).feed(codec.encode_refusal(9, 3, "got '\udcff'"))
    assert decode_refusal(frame.body or b"").message == "got '?'"


@pytest.mark.parametrize("body", [b"", b"\1\0", b"\1\5\0abc"])
def test_refusals_that_are_broken(body: bytes) -> None:
    with pytest.raises(BrokenFrameError):
        decode_refusal(body)


# --- hello ------------------------------------------------------------------------------------------------------


def body_of(data: bytes) -> bytes:
    [frame] = FrameReader(1 << 20, Room()).feed(data)
    assert frame.body is not None
    return frame.body


def test_both_sides_agree() -> None:
    greeting = read_hello(body_of(hello("n1", "test")))
    assert (greeting.version, greeting.expects, greeting.caller) == (codec.VERSION, "n1", "test")
    assert not why_not_welcome(greeting, "n1")
    answer = read_welcome(body_of(welcome(greeting, "n1", ["/a/B"], 1000)), "n1")
    assert (answer.version, list(answer.methods)) == (codec.VERSION, ["/a/B"])
    assert answer.frame_bytes_max == 1000 + codec.FRAME_SPARE_BYTES


def test_a_newer_caller_speaks_the_version_of_the_server() -> None:
    greeting = read_hello(body_of(hello("", "test")))
    greeting.version = codec.VERSION + 5
    assert not why_not_welcome(greeting, "n1")
    assert read_welcome(body_of(welcome(greeting, "n1", [], 1000)), "n1").version == codec.VERSION


def test_who_looks_for_somebody_else_is_not_welcome() -> None:
    assert "looks for n2" in why_not_welcome(read_hello(body_of(hello("n2", "test"))), "n1")
    assert not why_not_welcome(read_hello(body_of(hello("", "test"))), "n1")
    greeting = read_hello(body_of(hello("", "test")))
    greeting.version = 0
    assert "version" in why_not_welcome(greeting, "n1")


def test_a_welcome_that_cannot_be_gone_by() -> None:
    greeting = read_hello(body_of(hello("", "test")))
    good = body_of(welcome(greeting, "n1", [], 1000))
    with pytest.raises(BrokenFrameError, match="not of 'n2'"):
        read_welcome(good, "n2")
    for field, value in (("version", 9), ("version", 0), ("window_bytes", 0), ("calls_max", 0), ("frame_bytes_max", 0)):
        answer = read_welcome(good, "")
        setattr(answer, field, value)
        with pytest.raises(BrokenFrameError):
            read_welcome(answer.SerializeToString(), "")
