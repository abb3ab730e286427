"""Messages as bytes: every message comes back as it was, and nothing else is taken for one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.raft.codec import (
    MEMBER_BYTES_MAX,
    MEMBERS_MAX,
    TIME_MS_MAX,
    FrameError,
    decode,
    decode_configuration,
    decode_payload,
    encode,
    encode_configuration,
    encode_payload,
)
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
    TimeoutNow,
    VoteReply,
)
from tests.unit.codec_checks import refused_or_exact, with_another_byte

NUMBERS = st.integers(0, 2**62)
MEMBERS = st.sets(st.text(st.characters(codec="utf-8"), min_size=1, max_size=20), min_size=1, max_size=8)


@st.composite
def configurations(draw: st.DrawFn) -> Configuration:
    members = sorted(draw(MEMBERS))
    voters = draw(st.integers(1, len(members)))
    return Configuration.of(draw(st.integers(1, 2**62)), members[:voters], members[voters:])


COMMANDS: st.SearchStrategy[tuple[EntryKind, bytes]] = st.one_of(
    st.tuples(st.just(EntryKind.REGULAR), st.binary(max_size=40)),
    st.tuples(st.just(EntryKind.PROBE), st.binary(max_size=8)),
    st.just((EntryKind.NO_OP, b"")),
    st.tuples(st.just(EntryKind.CONFIGURATION), configurations().map(encode_configuration)),
)


@st.composite
def appends(draw: st.DrawFn) -> Append:
    terms = sorted(draw(st.lists(st.integers(0, 50), max_size=6)))
    previous_index = draw(NUMBERS)
    commands = [draw(COMMANDS) for _ in terms]
    entries = [
        LogEntry(previous_index + 1 + place, term, *command)
        for place, (command, term) in enumerate(zip(commands, terms, strict=True))
    ]
    previous_term = draw(st.integers(0, terms[0])) if terms else draw(st.integers(0, 50))
    term = draw(st.integers(50, 2**62))
    now_ms = draw(st.integers(0, TIME_MS_MAX))
    return Append(term, previous_index, previous_term, tuple(entries), draw(NUMBERS), draw(NUMBERS), now_ms)


MESSAGES: st.SearchStrategy[Message] = st.one_of(
    st.builds(PreVote, NUMBERS, NUMBERS, NUMBERS),
    st.builds(PreVoteReply, NUMBERS, st.booleans()),
    st.builds(RequestVote, NUMBERS, NUMBERS, NUMBERS, st.booleans()),
    st.builds(VoteReply, NUMBERS, st.booleans()),
    st.builds(AppendReply, NUMBERS, st.booleans(), NUMBERS, NUMBERS),
    st.builds(TimeoutNow, NUMBERS),
    appends(),
)


@given(MESSAGES)
def test_a_message_comes_back_as_it_was(message: Message) -> None:
    assert decode(encode(message)) == message


@given(MESSAGES, st.data())
def test_a_message_that_is_cut_short_or_goes_on_is_refused(message: Message, data: st.DataObject) -> None:
    whole = encode(message)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(FrameError):
        decode(whole[:cut])
    with pytest.raises(FrameError):
        decode(whole + data.draw(st.binary(min_size=1, max_size=8)))


@given(st.binary(max_size=200))
def test_garbage_is_refused_or_is_exactly_a_message(garbage: bytes) -> None:
    refused_or_exact(garbage, decode, encode, FrameError)


@given(MESSAGES, st.data())
def test_a_changed_byte_is_refused_or_makes_another_whole_message(message: Message, data: st.DataObject) -> None:
    assert refused_or_exact(with_another_byte(encode(message), data), decode, encode, FrameError) != message


@pytest.mark.parametrize("term", [TERM_MAX + 1, 2**63 - 1, 2**63])
def test_a_term_that_nobody_could_count_on_from_is_refused(term: int) -> None:
    """Adopted, it would be durable, and the next one could not be told to anybody."""
    messages: list[Message] = [PreVote(term, 1, 1), PreVoteReply(term, True), VoteReply(term, False), TimeoutNow(term)]
    messages += [RequestVote(term, 1, 1, True), Append(term, 1, 1, (), 1, 1), AppendReply(term, True, 1, 1)]
    for message in messages:
        with pytest.raises(FrameError):
            decode(encode(message))


def test_a_time_that_no_clock_shows_is_refused() -> None:
    last = Append(1, 1, 1, (), 1, 1, TIME_MS_MAX)
    assert decode(encode(last)) == last
    with pytest.raises(FrameError, match="no clock"):
        decode(encode(Append(1, 1, 1, (), 1, 1, TIME_MS_MAX + 1)))


def test_a_count_without_entries_makes_nothing() -> None:
    """A few bytes must not make a replica reserve memory for entries that it claims to have."""
    lies = encode(Append(1, 1, 0, (), 0, 1))[:-4] + (2**32 - 1).to_bytes(4, "big")
    with pytest.raises(FrameError, match="more entries"):
        decode(lies)


@pytest.mark.parametrize("terms", [(2, 1), (9,), (0,)])
def test_entries_that_no_leader_has_are_refused(terms: tuple[int, ...]) -> None:
    """Terms only grow, begin with that of the entry before, and end with the leader's own."""
    entries = tuple(LogEntry(5 + place, term, EntryKind.REGULAR) for place, term in enumerate(terms))
    with pytest.raises(FrameError, match="no leader"):
        decode(encode(Append(5, 4, 1, entries, 1, 1)))


@pytest.mark.parametrize(("kind", "command"), [(2, b""), (255, b"garbage"), (0x10, b""), (0x10, b"garbage")])
def test_an_entry_that_nobody_could_read_later_is_refused(kind: int, command: bytes) -> None:
    good = encode(Append(1, 1, 0, (LogEntry(2, 1, EntryKind.REGULAR, command),), 0, 1))
    place = len(good) - len(command) - 1
    with pytest.raises(FrameError):
        decode(good[:place] + bytes([kind]) + command)


@given(COMMANDS)
def test_the_payload_of_an_entry_in_a_log_comes_back_as_it_was(command: tuple[EntryKind, bytes]) -> None:
    entry = LogEntry(7, 3, *command)
    payload = encode_payload(entry)
    assert decode_payload(7, 3, payload) == entry
    assert len(payload) == entry.size_bytes


def test_the_payload_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(FrameError, match="unknown kind"):
        decode_payload(7, 3, b"\x02x")


# --- configurations ---------------------------------------------------------------------------------------------------


@given(configurations())
def test_a_configuration_comes_back_as_it_was(configuration: Configuration) -> None:
    assert decode_configuration(encode_configuration(configuration)) == configuration


@given(configurations(), st.data())
def test_a_changed_configuration_is_refused_or_is_another_one(
    configuration: Configuration, data: st.DataObject
) -> None:
    whole = encode_configuration(configuration)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(FrameError):
        decode_configuration(whole[:cut])
    with pytest.raises(FrameError):
        decode_configuration(whole + b"\x00")
    changed = with_another_byte(whole, data)
    other = refused_or_exact(changed, decode_configuration, encode_configuration, FrameError)
    assert other != configuration


@given(st.binary(max_size=100))
def test_garbage_is_refused_or_is_exactly_a_configuration(garbage: bytes) -> None:
    refused_or_exact(garbage, decode_configuration, encode_configuration, FrameError)


def head(version: int, voters: int, learners: int, *names: bytes) -> bytes:
    members = b"".join(len(name).to_bytes(2, "big") + name for name in names)
    return version.to_bytes(8, "big") + voters.to_bytes(2, "big") + learners.to_bytes(2, "big") + members


@pytest.mark.parametrize(
    "encoded",
    [
        head(0, 1, 0, b"a"),  # version 0 is that of an empty replica
        head(2**63, 1, 0, b"a"),
        head(1, 0, 1, b"a"),  # nobody votes
        head(1, 2, 0, b"a", b"a"),
        head(1, 2, 0, b"b", b"a"),
        head(1, 1, 1, b"a", b"a"),  # votes and learns
        head(1, 1, 0, b""),
        head(1, 1, 0, b"\xff"),  # no text
        head(1, 1, 0, b"a" * (MEMBER_BYTES_MAX + 1)),
        head(1, 65_535, 65_535, b"a"),  # many members in a few bytes
    ],
)
def test_a_configuration_that_no_group_has_is_refused(encoded: bytes) -> None:
    with pytest.raises(FrameError):
        decode_configuration(encoded)


@pytest.mark.parametrize(
    "configuration",
    [
        Configuration.of(1, [f"r{number}" for number in range(MEMBERS_MAX + 1)]),
        Configuration.of(1, ["x" * (MEMBER_BYTES_MAX + 1)]),
        Configuration.of(1, []),
    ],
)
def test_a_configuration_that_nobody_could_read_is_not_written(configuration: Configuration) -> None:
    with pytest.raises(FrameError):
        encode_configuration(configuration)
