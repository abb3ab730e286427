"""The retry state of one call: redirects, the way round all servers, and pauses."""

import pytest

from holdfast.routing.retries import BACKOFF, HOPS_MAX, RetryState, named_leader
from tests.unit.routing.test_leaders import A, B, C, Leader


@pytest.fixture
def state() -> RetryState[Leader]:
    return RetryState(Leader(), A, lambda: 1.0)


def go_round(state: RetryState[Leader]) -> str:
    """Where it goes because its server refused and named nobody."""
    state.leave(0.0, suspect=False)
    assert state.moves_on(0.0)
    return state.address


def test_redirects_are_followed_to_whom_is_believed(state: RetryState[Leader]) -> None:
    assert state.follows((B, 3), 0.0)
    assert state.address == B
    assert not state.follows((C, 2), 0.0), "an older epoch"
    assert not state.follows((B, 4), 0.0), "itself"
    assert not state.follows(None, 0.0)
    assert state.follows((A, 4), 0.0), "it was there, and now it leads"
    assert state.moves_on(0.0)
    assert state.address == A, "nothing speaks against it any more"


def test_who_sent_it_elsewhere_is_not_asked_again_in_the_same_round(state: RetryState[Leader]) -> None:
    assert state.follows((B, 3), 0.0)
    assert go_round(state) == C


def test_redirects_in_a_circle_are_followed_so_many_times(state: RetryState[Leader]) -> None:
    for _ in range(HOPS_MAX):
        assert state.follows((B if state.address == A else A, 1), 0.0)
    assert not state.follows((B, 1), 0.0)
    assert not state.follows((C, 9), 0.0)


def test_all_servers_are_asked_again_and_again(state: RetryState[Leader]) -> None:
    assert [go_round(state) for _ in range(5)] == [B, C, A, B, C]


def test_when_all_were_asked_redirects_and_older_epochs_count_again(state: RetryState[Leader]) -> None:
    """Otherwise a cluster that was made anew would stay unknown to those who knew the old one."""
    for epoch in range(HOPS_MAX):
        state.follows((B if state.address == A else A, 900 + epoch), 0.0)
    assert not state.follows((C, 1), 0.0)
    while state.address != C:
        go_round(state)
    go_round(state)
    assert state.follows((C, 1), 0.0)


def test_a_call_that_does_not_start_over_asks_each_server_once() -> None:
    state = RetryState(Leader(), A, lambda: 1.0, starts_over=False)
    assert [go_round(state), go_round(state)] == [B, C]
    state.leave(0.0, suspect=False)
    assert not state.moves_on(0.0)


def test_who_does_not_answer_is_a_suspect(state: RetryState[Leader]) -> None:
    state.leave(0.0, suspect=True)
    state.moves_on(0.0)
    assert not state.follows((A, 0), 0.1)


def test_the_first_move_is_free_and_pauses_grow(state: RetryState[Leader]) -> None:
    pauses = [state.pause_s() for _ in range(8)]
    first_s, max_s = BACKOFF.first_s, BACKOFF.max_s
    assert pauses == [0.0, first_s, 0.0, 2 * first_s, 0.0, max_s, 0.0, max_s]
    for _ in range(3):
        go_round(state)
    assert state.pause_s() > 0, "everybody was asked: some time must pass"


def test_pauses_are_spread() -> None:
    states = [RetryState(Leader(), A, lambda drawn=drawn: drawn) for drawn in (0.0, 1.0)]  # type: ignore[misc]
    assert [state.back_off_s() for state in states] == [BACKOFF.first_s / 2, BACKOFF.first_s]


@pytest.mark.parametrize(
    ("metadata", "named"),
    [
        ({"leader": A, "epoch": "7"}, (A, 7)),
        ({"leader": A, "epoch": "x"}, None),
        ({"leader": A}, None),
        ({"leader": "", "epoch": "7"}, None),
        ({}, None),
    ],
)
def test_whom_a_refusal_names(metadata: dict[str, str], named: tuple[str, int] | None) -> None:
    assert named_leader(metadata) == named
