"""Snapshot messages as bytes and back, in the manner of raft/codec.py: read by place and size, anything else refused.

message        kind (1 byte, 64 and up), then the fields of its kind in order
number         8 bytes, unsigned, big-endian; a crc32 has 4
configuration  size (4 bytes), then as in raft/codec.py
files          count (4 bytes), then per file: size, crc32, size of the name (1 byte), the name
data           the rest of the message
"""

import re
import struct
from collections.abc import Callable

from holdfast.raft.codec import NUMBER_MAX, FrameError, decode_configuration, encode_configuration
from holdfast.raft.messages import TERM_MAX
from holdfast.storage.snapshots.messages import (
    Outcome,
    SnapshotBegin,
    SnapshotChunk,
    SnapshotDone,
    SnapshotFile,
    SnapshotMessage,
    SnapshotWants,
)

FILES_MAX = 20_000
FILE_BYTES_MAX = 2**40
CHUNK_BYTES_MAX = 1024 * 1024

_KIND_MIN = 64
_BEGIN, _CHUNK, _WANTS, _DONE = range(_KIND_MIN, _KIND_MIN + 4)

_BEGIN_HEAD = struct.Struct(">BQQQQI")
_COUNT = struct.Struct(">I")
_FILE_HEAD = struct.Struct(">QIB")
_CHUNK_HEAD = struct.Struct(">BQQIQI")
_WANTS_FORM = struct.Struct(">BQQIQ")
_DONE_FORM = struct.Struct(">BQQQB")

# What a checkpoint consists of. A name from the network becomes a path: nothing else is ever let through.
_FILE_NAME = re.compile(
    r"[0-9]{6,20}\.(?:sst|blob|log)|MANIFEST-[0-9]{6,20}|OPTIONS-[0-9]{6,20}|CURRENT|IDENTITY|rocksdict-config\.json"
)


def is_snapshot_message(data: bytes | memoryview) -> bool:
    """Whether these bytes are for `decode` here; otherwise they are a message of Raft."""
    return len(data) > 0 and data[0] >= _KIND_MIN


def is_snapshot_file(name: str) -> bool:
    """Whether a checkpoint may have a file of this name."""
    return _FILE_NAME.fullmatch(name) is not None


def encode(message: SnapshotMessage) -> bytes:
    match message:
        case SnapshotBegin():
            return _encode_begin(message)
        case SnapshotChunk(term, id, file_number, offset, crc32, data):
            return _CHUNK_HEAD.pack(_CHUNK, term, id, file_number, offset, crc32) + data
        case SnapshotWants(term, id, file_number, offset):
            return _WANTS_FORM.pack(_WANTS, term, id, file_number, offset)
        case SnapshotDone(term, id, index, outcome):
            return _DONE_FORM.pack(_DONE, term, id, index, outcome)


def _encode_begin(begin: SnapshotBegin) -> bytes:
    configuration = encode_configuration(begin.configuration)
    head = _BEGIN_HEAD.pack(_BEGIN, begin.term, begin.id, begin.index, begin.index_term, len(configuration))
    parts = [head, configuration, _COUNT.pack(len(begin.files))]
    for file in begin.files:
        name = file.name.encode("ascii")
        parts += (_FILE_HEAD.pack(file.size_bytes, file.crc32, len(name)), name)
    return b"".join(parts)


def decode(data: bytes) -> SnapshotMessage:
    """The message in these bytes; raises `FrameError` for anything else."""
    reader = _READERS.get(data[0]) if data else None
    if reader is None:
        raise FrameError("a snapshot message of an unknown kind")
    message = reader(data)
    if message.term > TERM_MAX:
        raise FrameError("a term that leaves no room for the next ones")
    return message


def _head(form: struct.Struct, data: bytes, place: int = 0) -> tuple[int, ...]:
    if len(data) - place < form.size:
        raise FrameError("a snapshot message that is cut short")
    numbers: tuple[int, ...] = form.unpack_from(data, place)
    if max(numbers) > NUMBER_MAX:
        raise FrameError("a number that is too large")
    return numbers


def _whole(form: struct.Struct, data: bytes) -> tuple[int, ...]:
    """All fields of a message of fixed size, without its kind."""
    if len(data) != form.size:
        raise FrameError(f"a snapshot message of {len(data)} bytes where it takes {form.size}")
    return _head(form, data)[1:]


def _read_begin(data: bytes) -> SnapshotMessage:
    _, term, id, index, index_term, size = _head(_BEGIN_HEAD, data)
    place = _BEGIN_HEAD.size
    if size > len(data) - place:
        raise FrameError("a configuration without its end")
    configuration = decode_configuration(data[place : place + size])
    place += size
    [count] = _head(_COUNT, data, place)
    place += _COUNT.size
    # Each file has at least its head, so the size bounds the count before anything is made for it.
    if not 0 < count <= FILES_MAX or count * _FILE_HEAD.size > len(data) - place:
        raise FrameError("more files than there can be, or none")
    files: list[SnapshotFile] = []
    for _number in range(count):
        file, place = _read_file(data, place)
        files.append(file)
    if place != len(data):
        raise FrameError("bytes behind the last file")
    if len({file.name for file in files}) != count:
        raise FrameError("two files of one name")
    if index_term > term:
        raise FrameError("a snapshot that no leader has")
    return SnapshotBegin(term, id, index, index_term, configuration, tuple(files))


def _read_file(data: bytes, place: int) -> tuple[SnapshotFile, int]:
    size_bytes, crc32, name_size = _head(_FILE_HEAD, data, place)
    place += _FILE_HEAD.size
    name = data[place : place + name_size].decode("ascii", "replace")
    if len(name) != name_size or not is_snapshot_file(name):
        raise FrameError("a file that no checkpoint has")
    if size_bytes > FILE_BYTES_MAX:
        raise FrameError("a file that is too large")
    return SnapshotFile(name, size_bytes, crc32), place + name_size


def _read_chunk(data: bytes) -> SnapshotMessage:
    _, term, id, file_number, offset, crc32 = _head(_CHUNK_HEAD, data)
    content = data[_CHUNK_HEAD.size :]
    if not 0 < len(content) <= CHUNK_BYTES_MAX:
        raise FrameError("a chunk that is too large, or empty")
    if file_number >= FILES_MAX or offset > FILE_BYTES_MAX:
        raise FrameError("a chunk of a place that no file has")
    return SnapshotChunk(term, id, file_number, offset, crc32, content)


def _read_wants(data: bytes) -> SnapshotMessage:
    term, id, file_number, offset = _whole(_WANTS_FORM, data)
    if file_number > FILES_MAX or offset > FILE_BYTES_MAX:
        raise FrameError("a place that no file has")
    return SnapshotWants(term, id, file_number, offset)


def _read_done(data: bytes) -> SnapshotMessage:
    term, id, index, outcome = _whole(_DONE_FORM, data)
    try:
        return SnapshotDone(term, id, index, Outcome(outcome))
    except ValueError:
        raise FrameError("an outcome that is unknown") from None


_READERS: dict[int, Callable[[bytes], SnapshotMessage]] = {
    _BEGIN: _read_begin,
    _CHUNK: _read_chunk,
    _WANTS: _read_wants,
    _DONE: _read_done,
}
