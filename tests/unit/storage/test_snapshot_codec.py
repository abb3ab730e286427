"""Snapshot messages as bytes: each comes back as it was, and nothing else is taken for one."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.raft import codec as raft_codec
from holdfast.raft.codec import FrameError
from holdfast.raft.messages import TERM_MAX, Configuration, TimeoutNow
from holdfast.storage.snapshots.codec import (
    CHUNK_BYTES_MAX,
    FILE_BYTES_MAX,
    FILES_MAX,
    decode,
    encode,
    is_snapshot_file,
    is_snapshot_message,
)
from holdfast.storage.snapshots.messages import (
    Outcome,
    SnapshotBegin,
    SnapshotChunk,
    SnapshotDone,
    SnapshotFile,
    SnapshotMessage,
    SnapshotWants,
)
from tests.unit.codec_checks import refused_or_exact, with_another_byte

NUMBERS = st.integers(0, 2**63 - 1)
TERMS = st.integers(0, TERM_MAX)
CRCS = st.integers(0, 2**32 - 1)
SIZES = st.integers(0, FILE_BYTES_MAX)
NAMES = st.one_of(
    st.from_regex(r"\A[0-9]{6,20}\.(sst|blob|log)\Z"),
    st.from_regex(r"\A(MANIFEST|OPTIONS)-[0-9]{6,20}\Z"),
    st.sampled_from(["CURRENT", "IDENTITY", "rocksdict-config.json"]),
)
MEMBERS = st.lists(st.from_regex(r"\An[0-9]/[0-9a-f]{4}\Z"), unique=True, min_size=1, max_size=5)


@st.composite
def begins(draw: st.DrawFn) -> SnapshotBegin:
    members = draw(MEMBERS)
    voters = draw(st.integers(1, len(members)))
    configuration = Configuration.of(draw(st.integers(1, 2**63 - 1)), members[:voters], members[voters:])
    names = draw(st.lists(NAMES, unique=True, min_size=1, max_size=6))
    files = tuple(SnapshotFile(name, draw(SIZES), draw(CRCS)) for name in names)
    index_term = draw(TERMS)
    term = draw(st.integers(index_term, TERM_MAX))
    return SnapshotBegin(term, draw(NUMBERS), draw(NUMBERS), index_term, configuration, files)


MESSAGES: st.SearchStrategy[SnapshotMessage] = st.one_of(
    begins(),
    st.builds(
        SnapshotChunk,
        TERMS,
        NUMBERS,
        st.integers(0, FILES_MAX - 1),
        SIZES,
        CRCS,
        st.binary(min_size=1, max_size=50),
    ),
    st.builds(SnapshotWants, TERMS, NUMBERS, st.integers(0, FILES_MAX), SIZES),
    st.builds(SnapshotDone, TERMS, NUMBERS, NUMBERS, st.sampled_from(Outcome)),
)


@pytest.mark.parametrize("term", [TERM_MAX + 1, 2**63])
def test_a_term_that_nobody_could_count_on_from_is_refused(term: int) -> None:
    with pytest.raises(FrameError):
        decode(encode(SnapshotWants(term, 1, 0, 0)))


@given(MESSAGES)
def test_a_message_comes_back_as_it_was(message: SnapshotMessage) -> None:
    data = encode(message)
    assert decode(data) == message
    assert is_snapshot_message(data)


@given(MESSAGES, st.data())
def test_a_message_that_is_cut_short_or_goes_on_is_refused(message: SnapshotMessage, data: st.DataObject) -> None:
    """But for a chunk, whose data is the rest: that has a checksum."""
    whole = encode(message)
    cut = data.draw(st.integers(0, len(whole) - 1))
    for wrong in (whole[:cut], whole + data.draw(st.binary(min_size=1, max_size=8))):
        try:
            other = decode(wrong)
        except FrameError:
            continue
        assert isinstance(message, SnapshotChunk)
        assert isinstance(other, SnapshotChunk)
        assert other.data != message.data


@given(st.integers(60, 70), st.binary(max_size=200))
def test_garbage_is_refused_or_is_exactly_a_message(kind: int, garbage: bytes) -> None:
    refused_or_exact(bytes([kind]) + garbage, decode, encode, FrameError)


@given(MESSAGES, st.data())
def test_a_changed_byte_is_refused_or_makes_another_whole_message(
    message: SnapshotMessage, data: st.DataObject
) -> None:
    assert refused_or_exact(with_another_byte(encode(message), data), decode, encode, FrameError) != message


@pytest.mark.parametrize(
    "name",
    [
        "", ".", "..", "../000008.sst", "/etc/passwd", "000008.sst/..", "000008.sst\n", "000008.sst\0", "00000８.sst",
        "12345.sst", "LOCK", "LOG", "TRANSFER", "current", "MANIFEST-", "MANIFEST-00000a", "OPTIONS-000007.dbtmp",
    ],
)  # fmt: skip
def test_a_name_that_no_checkpoint_has_is_refused(name: str) -> None:
    assert not is_snapshot_file(name)
    encoded = name.encode()
    file = struct.pack(">QIB", 1, 2, len(encoded)) + encoded
    good = encode(SnapshotBegin(1, 1, 1, 1, Configuration(1, ("a",)), (SnapshotFile("CURRENT", 1, 2),)))
    place = good.index(struct.pack(">QIB", 1, 2, 7) + b"CURRENT")
    assert good[place:] == struct.pack(">QIB", 1, 2, 7) + b"CURRENT", "the file is what comes last"
    with pytest.raises(FrameError, match="no checkpoint has"):
        decode(good[:place] + file)


def begin_with(*files: SnapshotFile) -> SnapshotBegin:
    return SnapshotBegin(5, 1, 1, 1, Configuration(1, ("a",)), files)


def test_what_is_too_much_is_refused() -> None:
    current = SnapshotFile("CURRENT", 1, 2)
    for begin in (
        begin_with(),
        begin_with(current, current),
        begin_with(SnapshotFile("CURRENT", FILE_BYTES_MAX + 1, 2)),
        begin_with(*(SnapshotFile(f"{number:06}.sst", 1, 2) for number in range(FILES_MAX + 1))),
        SnapshotBegin(5, 1, 1, 6, Configuration(1, ("a",)), (current,)),
    ):
        with pytest.raises(FrameError):
            decode(encode(begin))
    for message in (
        SnapshotChunk(1, 1, 0, 0, 0, b""),
        SnapshotChunk(1, 1, 0, 0, 0, bytes(CHUNK_BYTES_MAX + 1)),
        SnapshotChunk(1, 1, FILES_MAX, 0, 0, b"x"),
        SnapshotChunk(1, 1, 0, FILE_BYTES_MAX + 1, 0, b"x"),
        SnapshotWants(1, 1, FILES_MAX + 1, 0),
        SnapshotWants(2**63, 1, 0, 0),
    ):
        with pytest.raises(FrameError):
            decode(encode(message))


def test_a_count_without_files_makes_nothing() -> None:
    whole = bytearray(encode(begin_with(SnapshotFile("CURRENT", 1, 2))))
    place = whole.index(struct.pack(">IQIB", 1, 1, 2, 7))
    whole[place : place + 4] = struct.pack(">I", FILES_MAX)
    with pytest.raises(FrameError, match="more files"):
        decode(bytes(whole))


def test_one_look_at_the_first_byte_tells_raft_and_snapshots_apart() -> None:
    assert not is_snapshot_message(b"")
    assert not is_snapshot_message(raft_codec.encode(TimeoutNow(1)))
    wants = encode(SnapshotWants(1, 1, 0, 0))
    with pytest.raises(FrameError):
        raft_codec.decode(wants)
    with pytest.raises(FrameError):
        decode(raft_codec.encode(TimeoutNow(1)))
