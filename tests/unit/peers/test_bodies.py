"""Bodies of frames: every message comes back as it was, in order, and nothing else is taken for a body."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.broker.peers.bodies import (
    BODY_HEAD_BYTES,
    MESSAGE_HEAD_BYTES,
    NUMBER_MAX,
    BodyError,
    Packed,
    pack,
    pack_within,
    unpack,
)
from holdfast.broker.peers.reasons import Reason
from holdfast.broker.peers.words import WORD

TIMES = st.integers(0, NUMBER_MAX)
MESSAGES = st.lists(
    st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1), st.binary(min_size=1, max_size=60)), max_size=10
)


@given(TIMES, MESSAGES)
def test_a_body_comes_back_as_it_was(wall_ms: int, messages: list[Packed]) -> None:
    body = pack(wall_ms, messages)
    assert unpack(body) == (wall_ms, messages)
    assert body[0] != WORD


@given(TIMES, MESSAGES, st.data())
def test_a_body_that_is_cut_is_refused_or_ends_between_messages(
    wall_ms: int, messages: list[Packed], data: st.DataObject
) -> None:
    whole = pack(wall_ms, messages)
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    ends = {len(pack(wall_ms, messages[:count])): count for count in range(len(messages))}
    if len(cut) in ends:
        assert unpack(cut) == (wall_ms, messages[: ends[len(cut)]])
    else:
        with pytest.raises(BodyError):
            unpack(cut)


@given(st.binary(max_size=200) | st.binary(max_size=200).map(lambda rest: pack(0, [])[:2] + rest))
def test_garbage_is_refused_or_is_exactly_a_body(garbage: bytes) -> None:
    try:
        wall_ms, messages = unpack(garbage)
    except BodyError:
        return
    assert pack(wall_ms, messages) == garbage


@given(TIMES, MESSAGES, st.data())
def test_a_flipped_bit_is_refused_or_makes_another_whole_body(
    wall_ms: int, messages: list[Packed], data: st.DataObject
) -> None:
    body = bytearray(pack(wall_ms, messages))
    bit = data.draw(st.integers(0, 8 * len(body) - 1))
    body[bit // 8] ^= 1 << bit % 8
    try:
        other = unpack(bytes(body))
    except BodyError as error:
        assert error.reason is Reason.BODY_BROKEN
        return
    assert other != (wall_ms, messages)
    assert pack(*other) == bytes(body)


@given(MESSAGES, st.integers(BODY_HEAD_BYTES + MESSAGE_HEAD_BYTES + 60, 400))
def test_many_messages_are_spread_over_as_few_bodies_as_hold_them(messages: list[Packed], bytes_max: int) -> None:
    bodies = pack_within(7, messages, bytes_max)
    assert [packed for body in bodies for packed in unpack(body)[1]] == messages
    assert all(len(body) <= bytes_max for body in bodies)
    for body, following in pairwise(bodies):
        first_of_next = unpack(following)[1][0]
        assert len(body) + MESSAGE_HEAD_BYTES + len(first_of_next[2]) > bytes_max
    assert all(unpack(body)[1] for body in bodies), "a body without a message"


def test_a_message_that_fits_no_body_is_the_fault_of_its_maker() -> None:
    with pytest.raises(ValueError, match="fit a body of 100 bytes"):
        pack_within(0, [(1, 1, bytes(100))], 100)


def test_an_empty_message_is_refused() -> None:
    with pytest.raises(BodyError):
        unpack(pack(0, [(1, 1, b"")]))


def test_a_body_of_another_version_is_refused() -> None:
    with pytest.raises(BodyError, match="version 2"):
        unpack(b"\x02" + pack(0, [])[1:])


def test_a_time_that_no_clock_shows_is_refused() -> None:
    with pytest.raises(BodyError, match="time"):
        unpack(pack(NUMBER_MAX + 1, []))
