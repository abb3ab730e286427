"""Where calls go: lists of addresses, what is believed about leaders, and the retry state of one call."""

import doctest

import pytest

from holdfast.client import (
    AsyncClient,
    Client,
    ConnectionFailed,
    DeadlineExceeded,
    Holdfast,
    HoldfastError,
    InvalidAddress,
    OutcomeUnknown,
    Overloaded,
    StaleToken,
    Unavailable,
    Worker,
    _leaders,
)
from holdfast.client._leaders import ADDRESSES_MAX, HINTED_MAX, ClientRetryState, ListedLeader, split_addresses
from holdfast.routing.retries import HOPS_MAX

A, B, C = "a:1", "b:1", "c:1"
REFUSED = ConnectionFailed(A, "connection refused", sent=False)
LOST = ConnectionFailed(A, "the connection was lost")
SHUTTING_DOWN = Unavailable("Soon gone.", reason="SHUTTING_DOWN", retry_after_ms=1_000)
NO_LEADER = Unavailable("Nobody leads.", reason="NOT_LEADER", retry_after_ms=100, metadata={"epoch": "1"})
STALE_MAP = Unavailable("Not yet.", reason="STALE_MAP", retry_after_ms=100)
UNKNOWN = OutcomeUnknown("Perhaps.", reason="OUTCOME_UNKNOWN", retry_after_ms=1_000)


def leads(leader: str, epoch: int | str) -> Unavailable:
    return Unavailable("Not here.", reason="NOT_LEADER", metadata={"leader": leader, "epoch": str(epoch)})


def retries(*, retry: bool = True, repeatable: bool = True, leaders: ListedLeader | None = None) -> ClientRetryState:
    return ClientRetryState(leaders or ListedLeader([A, B, C]), retry=retry, repeatable=repeatable)


# ---------------------------------------------------------------------------------------------------- addresses


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("localhost:7400", ("localhost:7400",)),
        ("h1:7401,h2:7401,h3:7401", ("h1:7401", "h2:7401", "h3:7401")),
        (" h1:7401 , [::1]:7401,", None),
        ("h2:1,h1:1,h2:1", ("h2:1", "h1:1")),
        (" h1:1 ,\th2:1 ", ("h1:1", "h2:1")),
    ],
)
def test_lists_of_addresses(text: str, addresses: tuple[str, ...] | None) -> None:
    if addresses is None:
        with pytest.raises(InvalidAddress):
            split_addresses(text)
    else:
        assert split_addresses(text) == addresses


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("h1:7401,h2", "h2"),
        ("h1:7401,,h3:7401", ""),
        ("h1:7401;h2:7401", "h1:7401;h2:7401"),
        ("h1:7401,http://h2:7401", "http://h2:7401"),
        ("h1:7401,h2:70000", "h2:70000"),
        (",".join(f"h{n}:1" for n in range(ADDRESSES_MAX + 1)), f"h{ADDRESSES_MAX}:1"),
    ],
)
def test_the_part_that_is_wrong_is_named(text: str, part: str) -> None:
    with pytest.raises(InvalidAddress) as refused:
        AsyncClient(text)
    assert refused.value.part == part
    assert repr(part) in str(refused.value)


def test_every_way_in_takes_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "h1:7401, h2:7401"
    assert AsyncClient(text).address == "h1:7401,h2:7401"
    assert Client(text).address == "h1:7401,h2:7401"
    monkeypatch.setenv("HOLDFAST_ADDRESS", text)
    app = Holdfast()
    app.task(len)
    assert app.address == "h1:7401,h2:7401"
    assert Worker(app).address == "h1:7401,h2:7401"
    assert Worker(app, address="h3:1,h4:1").address == "h3:1,h4:1"


def test_examples_are_true() -> None:
    result = doctest.testmod(_leaders)
    assert result.attempted > 0
    assert result.failed == 0


# ------------------------------------------------------------------------------------------------- what is believed


def test_calls_go_to_the_leader_that_was_named_and_when_it_has_gone_to_the_next_in_line() -> None:
    leaders = ListedLeader([A, B, C])
    assert leaders.name(C, 5, now_s=0)
    assert leaders.pick() == C
    leaders.left(C, 0, suspect=False)
    assert leaders.pick() == A
    leaders.answered(B)
    assert leaders.pick() == B


def test_suspects_are_passed_over_while_there_are_others() -> None:
    leaders = ListedLeader([A, B, C])
    leaders.left(B, 0, suspect=True)
    leaders.left(A, 0.1, suspect=True)
    assert leaders.pick() == C
    leaders.left(C, 0.2, suspect=True)
    assert leaders.pick() in (A, B)


def test_leaders_outside_the_list_are_remembered_but_not_without_bound() -> None:
    assert not ListedLeader([A]).several
    leaders = ListedLeader([A])
    for n in range(20):
        assert leaders.name(f"h{n}:1", n, now_s=0)
    assert leaders.several
    assert len(leaders.candidates()) == 1 + HINTED_MAX
    assert leaders.pick() == "h19:1"
    assert leaders.candidates()[0] == A


@pytest.mark.parametrize("address", ["", "nowhere", "unix:/tmp/x", "dns:///h:1", "h:0", "h:99999", "a b:1"])
def test_a_leader_that_cannot_be_reached_by_its_name_is_not_believed(address: str) -> None:
    leaders = ListedLeader([A, B])
    assert not leaders.name(address, 1, now_s=0)
    assert leaders.candidates() == (A, B)


# ---------------------------------------------------------------------------------------------------- retry state


def test_the_first_redirect_is_followed_at_once_and_the_next_after_a_pause() -> None:
    state = retries()
    assert state.address == A
    assert state.after(leads(B, 1), 0) == 0
    assert state.address == B
    pause_s = state.after(leads(C, 2), 0)
    assert pause_s is not None
    assert 0 < pause_s < 0.1
    assert state.address == C


@pytest.mark.parametrize("error", [leads(B, "x"), leads(B, ""), leads("", 1), leads("junk", 1), leads(A, 1), NO_LEADER])
def test_a_redirect_that_leads_nowhere_means_the_next_server_after_a_pause(error: Unavailable) -> None:
    state = retries()
    pause_s = state.after(error, 0)
    assert pause_s is not None
    assert 0 < pause_s < 0.1, "what one server asks for does not hold back a question to another"
    assert state.address == B


@pytest.mark.parametrize("error", [REFUSED, LOST, SHUTTING_DOWN, UNKNOWN, NO_LEADER, DeadlineExceeded(A, 1)])
def test_a_repeatable_call_goes_round_all_servers(error: HoldfastError) -> None:
    state = retries()
    visited = []
    for _ in range(6):
        visited.append(state.address)
        pause_s = state.after(error, 0)
        assert pause_s is not None
        assert 0 < pause_s <= 0.5
    assert set(visited[:3]) == {A, B, C} == set(visited[3:])


@pytest.mark.parametrize(
    ("error", "moves"),
    [
        (REFUSED, True),
        (SHUTTING_DOWN, True),
        (NO_LEADER, True),
        (leads(B, 1), True),
        (STALE_MAP, True),
        (LOST, False),
        (UNKNOWN, False),
        (DeadlineExceeded(A, 1), False),
    ],
)
def test_another_call_moves_on_only_if_nothing_was_done(error: HoldfastError, moves: bool) -> None:
    state = retries(repeatable=False)
    assert (state.after(error, 0) is not None) is moves
    assert (state.address != A) is moves


def test_the_next_call_begins_elsewhere_although_this_one_ends() -> None:
    leaders = ListedLeader([A, B, C])
    assert retries(repeatable=False, leaders=leaders).after(LOST, 0) is None
    assert retries(leaders=leaders).address == B


def test_an_overloaded_leader_is_still_the_leader() -> None:
    state = retries()
    pause_s = state.after(Overloaded("Full.", reason="OVERLOADED", retry_after_ms=300), 0)
    assert pause_s is not None
    assert pause_s >= 0.3
    assert state.address == A
    assert retries(retry=False).after(Overloaded("Full.", reason="OVERLOADED"), 0) is None


def test_what_is_no_fault_of_the_server_ends_the_call() -> None:
    assert retries().after(StaleToken("Too late.", reason="STALE_TOKEN"), 0) is None


@pytest.mark.parametrize("error", [REFUSED, NO_LEADER, LOST])
def test_without_retry_each_server_is_asked_once_and_nothing_is_waited_for(error: HoldfastError) -> None:
    state = retries(retry=False)
    visited = [state.address]
    while (pause_s := state.after(error, 0)) is not None:
        assert pause_s == 0
        visited.append(state.address)
    assert visited == [A, B, C]


def test_without_retry_redirects_are_followed_but_not_for_ever() -> None:
    state = retries(retry=False)
    attempts = 1
    while state.after(leads(B if state.address == A else A, 1), 0) is not None:
        attempts += 1
    assert 2 <= attempts <= HOPS_MAX + 3


def test_one_server_is_treated_as_ever() -> None:
    alone = ListedLeader([A])
    assert retries(leaders=alone, retry=False).after(LOST, 0) is None
    assert retries(leaders=alone, repeatable=False).after(REFUSED, 0) is None
    pause_s = retries(leaders=alone).after(SHUTTING_DOWN, 0)
    assert pause_s is not None
    assert pause_s >= 1.0, "there is no other: it gets the time it asks for"


# --------------------------------------------------------------------------------------------------- the last word


def test_the_error_says_what_happened_at_each_server() -> None:
    state = retries(retry=False)
    state.after(REFUSED, 0)
    state.after(DeadlineExceeded(B, 2.5), 0)
    state.after(LOST, 0)
    error = state.last_word(LOST)
    assert isinstance(error, ConnectionFailed)
    assert error.address == "a:1, b:1, c:1"
    assert error.cause == "a:1: connection refused; b:1: no answer within 2.5 s; c:1: the connection was lost"
    assert error.cause in str(error)
    assert error.sent


def test_a_refusal_keeps_its_kind_and_says_who_was_asked() -> None:
    state = retries(retry=False)
    state.after(REFUSED, 0)
    state.after(NO_LEADER, 0)
    error = state.last_word(NO_LEADER)
    assert isinstance(error, Unavailable)
    assert error.reason == "NOT_LEADER"
    assert "a:1: connection refused; b:1: not the leader" in str(error)


def test_servers_that_answer_count_as_such_when_others_are_gone() -> None:
    state = retries(retry=False)
    state.after(NO_LEADER, 0)
    state.after(REFUSED, 0)
    state.after(REFUSED, 0)
    error = state.last_word(REFUSED)
    assert isinstance(error, Unavailable)
    assert (error.reason, error.retry_after_ms) == ("NOT_LEADER", 100)
    assert error.message.startswith("1 of 3 nodes answer, no leader: a majority must run; see `holdfast shard ls`.")
    assert "a:1: not the leader; b:1: connection refused" in error.message
    other = retries(retry=False)
    other.after(REFUSED, 0)
    other.after(NO_LEADER, 0)
    reported = other.last_word(NO_LEADER)
    assert isinstance(reported, Unavailable)
    assert reported.message.startswith("1 of 2 nodes answer, no leader"), "the same, whoever was asked last"


def test_no_leader_is_said_with_an_unknown_outcome_as_well() -> None:
    state = retries()
    state.after(LOST, 0)
    state.after(NO_LEADER, 0)
    error = state.last_word(NO_LEADER)
    assert isinstance(error, ConnectionFailed)
    assert error.sent
    assert error.cause.startswith("1 of 2 nodes answer, no leader")
    assert "holdfast dev" not in str(error)


@pytest.mark.parametrize("unknown", [LOST, UNKNOWN, DeadlineExceeded(A, 1)])
@pytest.mark.parametrize(
    "last", [NO_LEADER, SHUTTING_DOWN, REFUSED, STALE_MAP, Overloaded("Full.", reason="OVERLOADED")]
)
def test_a_refusal_does_not_hide_that_an_earlier_attempt_may_have_taken_effect(
    unknown: HoldfastError, last: HoldfastError
) -> None:
    """A refusal says that nothing was changed: after an attempt whose fate is unknown that would be a false no."""
    state = retries()
    state.after(unknown, 0)
    state.after(last, 0)
    assert type(state.last_word(last)) is type(unknown)


def test_a_map_that_is_behind_is_told_as_such() -> None:
    state = retries(leaders=ListedLeader([A, B]), repeatable=False)
    state.after(STALE_MAP, 0)
    reported = state.last_word(STALE_MAP)
    assert (type(reported), getattr(reported, "reason", "")) == (Unavailable, "STALE_MAP")


def test_one_server_has_the_last_word_unchanged() -> None:
    state = retries(leaders=ListedLeader([A]))
    state.after(LOST, 0)
    assert state.last_word(LOST) is LOST
