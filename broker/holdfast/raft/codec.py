"""Messages as bytes and back. What comes from the network is data, never code: every field is read by its place and its
size, and anything that does not fit exactly is refused.

    message      kind (1 byte), then the fields of its kind in order
    number       8 bytes, unsigned, big-endian
    flag         1 byte, 0 or 1
    entries      count (4 bytes), then per entry: term, size of what follows (4 bytes), its payload; their indexes
                 follow from the place of the first
    payload      kind (1 byte), command: in messages and in the log
    configuration version, counts of voters and learners (2 bytes each), then per member: size (2 bytes), its name
"""

import struct
from collections.abc import Callable, Sequence

from holdfast.raft.messages import (
    TERM_MAX,
    Append,
    AppendReply,
    Configuration,
    EntryKind,
    LogEntry,
    Message,
    PreVote,
    PreVoteReply,
    RequestVote,
    Sign,
    TimeoutNow,
    VoteReply,
)

ENTRIES_MAX = 100_000
MEMBERS_MAX = 100
MEMBER_BYTES_MAX = 300  # of a replica's name
NUMBER_MAX = 2**63 - 1  # what fits a signed column, with room for counting on
TIME_MS_MAX = 2**48  # some thousand years from now: no clock shows more

_PRE_VOTE, _PRE_VOTE_REPLY, _REQUEST_VOTE, _VOTE_REPLY, _APPEND, _APPEND_REPLY, _TIMEOUT_NOW = range(1, 8)

_THREE = struct.Struct(">BQQQ")
_THREE_AND_FLAG = struct.Struct(">BQQQB")
_ONE_AND_FLAG = struct.Struct(">BQB")
_ONE = struct.Struct(">BQ")
_APPEND_HEAD = struct.Struct(">BQQQQQQI")
_ENTRY_HEAD = struct.Struct(">QI")
_ENTRY_HEAD_AND_KIND = struct.Struct(">QIB")
_CONFIGURATION_HEAD = struct.Struct(">QHH")
_MEMBER_HEAD = struct.Struct(">H")

_KINDS = {kind.value: kind for kind in EntryKind}

Buffer = bytes | memoryview  # of a message: what is kept of it is copied out


class FrameError(ValueError):
    """These bytes are no message of ours: whoever sent them is not to be trusted with more."""


def encode(message: Message) -> bytes:
    match message:
        case PreVote(term, last_index, last_term):
            return _THREE.pack(_PRE_VOTE, term, last_index, last_term)
        case PreVoteReply(term, granted):
            return _ONE_AND_FLAG.pack(_PRE_VOTE_REPLY, term, granted)
        case RequestVote(term, last_index, last_term, transfer):
            return _THREE_AND_FLAG.pack(_REQUEST_VOTE, term, last_index, last_term, transfer)
        case VoteReply(term, granted):
            return _ONE_AND_FLAG.pack(_VOTE_REPLY, term, granted)
        case Append():
            return _encode_append(message)
        case AppendReply(term, success, index, number):
            return _THREE_AND_FLAG.pack(_APPEND_REPLY, term, index, number, success)
        case TimeoutNow(term):
            return _ONE.pack(_TIMEOUT_NOW, term)


def encode_each(messages: Sequence[tuple[str, Message]]) -> list[tuple[str, bytes]]:
    """To whom, and the bytes. A message that goes to several is encoded once."""
    encoded: dict[int, bytes] = {}
    addressed: list[tuple[str, bytes]] = []
    for to, message in messages:
        data = encoded.get(id(message))
        if data is None:
            data = encoded[id(message)] = encode(message)
        addressed.append((to, data))
    return addressed


def _encode_append(message: Append) -> bytes:
    head = _APPEND_HEAD.pack(
        _APPEND,
        message.term,
        message.previous_index,
        message.previous_term,
        message.commit_index,
        message.round,
        message.now_ms,
        len(message.entries),
    )
    if not message.entries:
        return head
    parts = [head]
    for entry in message.entries:
        parts += (_ENTRY_HEAD_AND_KIND.pack(entry.term, entry.size_bytes, entry.kind), entry.command)
    return b"".join(parts)


def decode(data: Buffer) -> Message:
    """The message in these bytes; raises `FrameError` for anything else."""
    reader = _READERS.get(data[0]) if data else None
    if reader is None:
        raise FrameError("a message of an unknown kind")
    message = reader(data)
    if message.term > TERM_MAX:
        raise FrameError("a term that leaves no room for the next ones")
    return message


def peek(data: Buffer) -> Sign | None:
    """The sign of life in the bytes of a message, if it is one of those that have one."""
    kind = data[0] if data else 0
    if kind == _APPEND_REPLY and len(data) == _THREE_AND_FLAG.size:
        _, term, _, number, _ = _THREE_AND_FLAG.unpack(data)
        return Sign(True, term, number)
    if kind == _APPEND and len(data) >= _APPEND_HEAD.size:
        _, term, _, _, _, number, _, _ = _APPEND_HEAD.unpack_from(data)
        return Sign(False, term, number)
    return None


def _unpack(form: struct.Struct, data: Buffer) -> tuple[int, ...]:
    """All fields of a message of fixed size, without its kind."""
    if len(data) != form.size:
        raise FrameError(f"a message of {len(data)} bytes where it takes {form.size}")
    numbers = form.unpack(data)
    if max(numbers) > NUMBER_MAX:
        raise FrameError("a number that is too large")
    return numbers[1:]


def _checked(numbers: tuple[int, ...]) -> tuple[int, ...]:
    if max(numbers) > NUMBER_MAX:
        raise FrameError("a number that is too large")
    return numbers


def _flag(number: int) -> bool:
    if number > 1:
        raise FrameError("a flag that is neither 0 nor 1")
    return number == 1


def _read_pre_vote(data: Buffer) -> Message:
    return PreVote(*_unpack(_THREE, data))


def _read_pre_vote_reply(data: Buffer) -> Message:
    term, granted = _unpack(_ONE_AND_FLAG, data)
    return PreVoteReply(term, _flag(granted))


def _read_request_vote(data: Buffer) -> Message:
    term, last_index, last_term, transfer = _unpack(_THREE_AND_FLAG, data)
    return RequestVote(term, last_index, last_term, _flag(transfer))


def _read_vote_reply(data: Buffer) -> Message:
    term, granted = _unpack(_ONE_AND_FLAG, data)
    return VoteReply(term, _flag(granted))


def _read_append_reply(data: Buffer) -> Message:
    term, index, number, success = _unpack(_THREE_AND_FLAG, data)
    return AppendReply(term, _flag(success), index, number)


def _read_timeout_now(data: Buffer) -> Message:
    return TimeoutNow(*_unpack(_ONE, data))


def _read_append(data: Buffer) -> Message:
    if len(data) < _APPEND_HEAD.size:
        raise FrameError("entries without their beginning")
    _, term, previous_index, previous_term, commit_index, number, now_ms, count = _checked(
        _APPEND_HEAD.unpack_from(data)
    )
    if now_ms > TIME_MS_MAX:
        raise FrameError("a time that no clock shows")
    entries = _read_entries(data, count, previous_index, previous_term, term)
    return Append(term, previous_index, previous_term, entries, commit_index, number, now_ms)


def _read_entries(data: Buffer, count: int, index: int, least_term: int, term: int) -> tuple[LogEntry, ...]:
    """The entries after this index, whose terms grow from the least to the leader's own."""
    # Each entry has at least its head, so the size bounds the count before anything is made for it.
    if count > ENTRIES_MAX or count * _ENTRY_HEAD.size > len(data):
        raise FrameError("more entries than there can be")
    entries: list[LogEntry] = []
    place = _APPEND_HEAD.size
    for _ in range(count):
        if len(data) - place < _ENTRY_HEAD.size:
            raise FrameError("an entry without its beginning")
        entry_term, size = _ENTRY_HEAD.unpack_from(data, place)
        place += _ENTRY_HEAD.size
        if len(data) - place < size:
            raise FrameError("an entry without its end")
        if size == 0 or not least_term <= entry_term <= term:
            raise FrameError("entries that no leader has")
        index, least_term = index + 1, entry_term
        entries.append(_checked_entry(index, entry_term, data[place], bytes(data[place + 1 : place + size])))
        place += size
    if place != len(data):
        raise FrameError("bytes behind the last entry")
    return tuple(entries)


def _checked_entry(index: int, term: int, number: int, command: bytes) -> LogEntry:
    """An entry stays for ever: what cannot be read later is refused now."""
    kind = _kind(number)
    if kind == EntryKind.CONFIGURATION:
        decode_configuration(command)
    return LogEntry(index, term, kind, command)


def encode_payload(entry: LogEntry) -> bytes:
    """What a log has of an entry, beside its place."""
    return bytes((entry.kind,)) + entry.command


def decode_payload(index: int, term: int, payload: bytes) -> LogEntry:
    """The entry that a log has at this place; raises `FrameError` if this release knows no such kind."""
    return LogEntry(index, term, _kind(payload[0]), payload[1:])


def _kind(number: int) -> EntryKind:
    kind = _KINDS.get(number)
    if kind is None:
        raise FrameError("an entry of an unknown kind")
    return kind


def configuration_entry(index: int, term: int, configuration: Configuration) -> LogEntry:
    """The entry that makes these the members; raises `FrameError` if nobody could read it."""
    return LogEntry(index, term, EntryKind.CONFIGURATION, encode_configuration(configuration))


def encode_configuration(configuration: Configuration) -> bytes:
    """The command of a `CONFIGURATION` entry; raises `FrameError` if nobody could read it."""
    voters, learners = configuration.voters, configuration.learners
    names = [member.encode() for member in (*voters, *learners)]
    if len(names) > MEMBERS_MAX or any(len(name) > MEMBER_BYTES_MAX for name in names):
        raise FrameError("a configuration that is too large")
    parts = [_CONFIGURATION_HEAD.pack(configuration.version, len(voters), len(learners))]
    for name in names:
        parts += (_MEMBER_HEAD.pack(len(name)), name)
    encoded = b"".join(parts)
    decode_configuration(encoded)
    return encoded


def decode_configuration(data: bytes) -> Configuration:
    """The configuration in these bytes; raises `FrameError` for anything else."""
    if len(data) < _CONFIGURATION_HEAD.size:
        raise FrameError("a configuration without its beginning")
    version, voters, learners = _checked(_CONFIGURATION_HEAD.unpack_from(data))
    if not version or not voters or voters + learners > MEMBERS_MAX:
        raise FrameError("a configuration that no group has")
    names: list[bytes] = []
    place = _CONFIGURATION_HEAD.size
    for _ in range(voters + learners):
        size = _member_bytes(data, place)
        place += _MEMBER_HEAD.size
        names.append(data[place : place + size])
        place += size
    if place != len(data):
        raise FrameError("bytes behind the last member")
    try:
        members = tuple(name.decode() for name in names)
        return Configuration(version, members[:voters], members[voters:])
    except ValueError as error:  # a name that is no text, or members out of order
        raise FrameError(f"a configuration that no group has: {error}") from None


def _member_bytes(data: bytes, place: int) -> int:
    if len(data) - place < _MEMBER_HEAD.size:
        raise FrameError("a member without its beginning")
    size = int.from_bytes(data[place : place + _MEMBER_HEAD.size], "big")
    if not 0 < size <= MEMBER_BYTES_MAX or len(data) - place - _MEMBER_HEAD.size < size:
        raise FrameError("a member without a name")
    return size


_READERS: dict[int, Callable[[Buffer], Message]] = {
    _PRE_VOTE: _read_pre_vote,
    _PRE_VOTE_REPLY: _read_pre_vote_reply,
    _REQUEST_VOTE: _read_request_vote,
    _VOTE_REPLY: _read_vote_reply,
    _APPEND: _read_append,
    _APPEND_REPLY: _read_append_reply,
    _TIMEOUT_NOW: _read_timeout_now,
}
