"""What is known of one call over several shards."""

import pytest

from holdfast.routing.reserve_calls import AWAY_S, ReserveCall


class LostError(Exception):
    pass


@pytest.fixture
def call() -> ReserveCall:
    return ReserveCall({0: [0], 1: [0, 1]}, 60.0, has_id=True)


def test_who_lost_a_new_task_to_another_looks_again_at_once(call: ReserveCall) -> None:
    """Only a look that did not have to wait is followed by a longer and longer pause."""
    pauses = [call.pause_s(0.0, 0.0) for _ in range(12)]
    assert pauses[:4] == [0.0, 0.004, 0.008, 0.016]
    assert pauses[-2:] == [0.5, 0.5]
    assert [call.pause_s(1.0, 0.0), call.pause_s(0.0, 0.0)] == [0.0, 0.004]
    assert call.pause_s(0.0, 59.999) == pytest.approx(0.001), "no longer than the wait"


def test_a_shard_that_failed_is_left_alone_for_a_while(call: ReserveCall) -> None:
    call.leave_alone(0, LostError(), now_s=1.0, retry_after_ms=0)
    call.leave_alone(1, LostError(), now_s=1.0, retry_after_ms=2_000)
    assert call.to_be_asked(1.0) == []
    assert call.to_be_asked(1.0 + AWAY_S) == [0]
    assert call.to_be_asked(3.0) == [0, 1]


def test_a_failure_is_raised_only_if_nobody_answers(call: ReserveCall) -> None:
    first, second = LostError(), LostError()
    call.leave_alone(0, first, 1.0, 0)
    call.raise_if_nobody_answers()
    call.leave_alone(1, second, 1.0, 0)
    with pytest.raises(LostError) as raised:
        call.raise_if_nobody_answers()
    assert raised.value is first
    call.answered(1, 2.0)
    call.raise_if_nobody_answers()
    call.plan({0: [0]})
    with pytest.raises(LostError):
        call.raise_if_nobody_answers()


def test_a_repeated_call_is_unsettled_where_nobody_has_said_what_the_first_attempt_claimed() -> None:
    call = ReserveCall({0: [0], 1: [0]}, 60.0, has_id=True, is_repeated=True)
    call.plan({0: [0], 1: [0], 2: [0]})
    assert call.unsettled_shards == [0, 1, 2]
    call.answered(0, 1.0)
    call.answered(1, 1.0, settles=False)
    assert call.unsettled_shards == [1, 2], "one that only had time to say that it is there has said nothing of claims"
    call.leave_alone(2, LostError(), 1.0, 0)
    with pytest.raises(LostError):
        call.raise_if_unsettled()
    call.answered(1, 2.0)
    call.answered(2, 2.0)
    assert call.unsettled_shards == []


@pytest.mark.parametrize("is_repeated", [False, True])
def test_without_an_id_there_is_nothing_to_ask_for(is_repeated: bool) -> None:
    assert ReserveCall({0: [0]}, 60.0, is_repeated=is_repeated).unsettled_shards == []


def test_an_outcome_stays_unknown_until_the_shard_says_that_it_holds_nothing(call: ReserveCall) -> None:
    call.note_unknown_outcome(1, LostError())
    assert call.must_ask_holders
    call.asks_holders()
    assert (call.has_asked_holders, call.must_ask_holders) == (True, False)
    call.answered(1, 2.0, settles=False)
    with pytest.raises(LostError):
        call.raise_if_unsettled()
    call.answered(1, 2.0)
    call.raise_if_unsettled()


def test_a_new_plan_keeps_what_was_heard(call: ReserveCall) -> None:
    call.answered(0, 1.0)
    call.plan({0: [0], 2: [1]})
    assert call.unheard == {2}
    assert call.has_answered(0)
    assert not call.has_answered(2)


def test_only_a_call_that_can_settle_later_and_go_elsewhere_is_hasty() -> None:
    def is_hasty(shards: int, **options: bool) -> bool:
        return ReserveCall({shard: [0] for shard in range(shards)}, 0.0, **options).is_hasty

    assert is_hasty(2, has_id=True, settles_later=True)
    assert not is_hasty(1, has_id=True, settles_later=True)
    assert not is_hasty(2, has_id=False, settles_later=True)
    assert not is_hasty(2, has_id=True)
