"""Messages as bytes: every message comes back as it was, and nothing else is taken for one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.broker.raft.codec import FrameError, decode, encode
from holdfast.broker.raft.messages import (
    Append,
    AppendReply,
    Entry,
    Message,
    PreVote,
    PreVoteReply,
    RequestVote,
    TimeoutNow,
    VoteReply,
)

NUMBERS = st.integers(0, 2**62)


@st.composite
def appends(draw: st.DrawFn) -> Append:
    terms = sorted(draw(st.lists(st.integers(0, 50), max_size=6)))
    previous_index = draw(NUMBERS)
    commands = [draw(st.binary(min_size=1, max_size=40)) for _ in terms]
    entries = [
        Entry(command, previous_index + 1 + place, term)
        for place, (command, term) in enumerate(zip(commands, terms, strict=True))
    ]
    previous_term = draw(st.integers(0, terms[0])) if terms else draw(st.integers(0, 50))
    term = draw(st.integers(50, 2**62))
    return Append(term, previous_index, previous_term, tuple(entries), draw(NUMBERS), draw(NUMBERS))


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
    try:
        message = decode(garbage)
    except FrameError:
        return
    assert encode(message) == garbage


@given(MESSAGES, st.data())
def test_a_changed_byte_is_refused_or_makes_another_whole_message(message: Message, data: st.DataObject) -> None:
    whole = bytearray(encode(message))
    place = data.draw(st.integers(0, len(whole) - 1))
    whole[place] ^= data.draw(st.integers(1, 255))
    try:
        other = decode(bytes(whole))
    except FrameError:
        return
    assert encode(other) == bytes(whole)
    assert other != message


def test_a_count_without_entries_makes_nothing() -> None:
    """A few bytes must not make a replica reserve memory for entries that it claims to have."""
    lies = encode(Append(1, 1, 0, (), 0, 1))[:-4] + (2**32 - 1).to_bytes(4, "big")
    with pytest.raises(FrameError, match="more entries"):
        decode(lies)


@pytest.mark.parametrize("terms", [(2, 1), (9,), (0,)])
def test_entries_that_no_leader_has_are_refused(terms: tuple[int, ...]) -> None:
    """Terms only grow, begin with that of the entry before, and end with the leader's own."""
    entries = tuple(Entry(b"x", 5 + place, term) for place, term in enumerate(terms))
    with pytest.raises(FrameError, match="no leader"):
        decode(encode(Append(5, 4, 1, entries, 1, 1)))
