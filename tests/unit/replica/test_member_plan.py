"""Which step brings the members of a group in line with the list of nodes."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.broker.replica.member_plan import MemberChange, Step, next_change
from holdfast.raft.membership import check_change, with_learner, with_voter, without
from holdfast.raft.messages import Configuration

N1, N2, N3 = (f"n{number}/{str(number) * 32}" for number in (1, 2, 3))
NEW_N2, NEWER_N2 = "n2/" + "a" * 32, "n2/" + "b" * 32
ALL = {"n1": N1, "n2": N2, "n3": N3}


def plan(
    voters: Iterable[str], learners: Iterable[str] = (), present: Iterable[str] = ALL.values(), behind: str = ""
) -> MemberChange | None:
    """`behind` has not caught up; everybody else has."""
    by_name = {identity.partition("/")[0]: identity for identity in present}
    return next_change(Configuration.of(5, voters, learners), by_name, lambda replica: replica != behind)


def test_a_group_as_it_should_be_is_left_alone() -> None:
    assert plan([N1, N2, N3]) is None


@pytest.mark.parametrize("away", [[N1], [N1, N2]])
def test_a_node_that_is_away_stays_a_member(away: list[str]) -> None:
    """It may come back with everything it had."""
    assert plan([N1, N2, N3], present=[N3, N1][: len(away)]) is None


def test_a_learner_that_is_away_is_neither_promoted_nor_removed() -> None:
    assert plan([N1, N3], [NEW_N2], present=[N1, N3]) is None


def test_a_new_node_learns_first() -> None:
    assert plan([N1]) == MemberChange(Step.ADD, N2)
    assert plan([N1], [N2], behind=N2) == MemberChange(Step.ADD, N3), "others need not wait for one that is slow"
    assert plan([N1], [N2, N3], behind=N2) == MemberChange(Step.PROMOTE, N3)


def test_a_learner_votes_once_it_has_caught_up() -> None:
    assert plan([N1, N3], [N2], behind=N2) is None
    assert plan([N1, N3], [N2]) == MemberChange(Step.PROMOTE, N2)


def test_a_node_that_lost_its_disk_is_added_and_its_former_self_stays_until_then() -> None:
    present = [N1, NEW_N2, N3]
    assert plan([N1, N2, N3], present=present) == MemberChange(Step.ADD, NEW_N2)
    assert plan([N1, N2, N3], [NEW_N2], present, behind=NEW_N2) is None


def test_the_former_self_goes_before_the_new_one_votes() -> None:
    """Never two votes for one node."""
    present = [N1, NEW_N2, N3]
    assert plan([N1, N2, N3], [NEW_N2], present) == MemberChange(Step.REMOVE, N2)
    assert plan([N1, N3], [NEW_N2], present) == MemberChange(Step.PROMOTE, NEW_N2)


def test_a_learner_that_lost_its_disk_again_is_removed_at_once() -> None:
    present = [N1, NEWER_N2, N3]
    assert plan([N1, N2, N3], [NEW_N2], present) == MemberChange(Step.REMOVE, NEW_N2)


@pytest.mark.parametrize("identities", [[N1, N2, N3], [N1, NEW_N2, N3], [N1, NEWER_N2, "n3/" + "c" * 32]])
@pytest.mark.parametrize("begin", [([N1], []), ([N1, N2, N3], []), ([N1, N2, N3], [NEW_N2]), ([N1], [N2, N3])])
def test_every_step_is_allowed_and_they_end_with_the_nodes_that_are_there(
    identities: list[str], begin: tuple[list[str], list[str]]
) -> None:
    """As the leader would take them, one after the other; and no step ever leaves a node two votes more than it had."""
    now = Configuration.of(1, *begin)
    present = {identity.partition("/")[0]: identity for identity in identities}
    makers = {Step.ADD: with_learner, Step.PROMOTE: with_voter, Step.REMOVE: without}
    steps = 0
    while (change := next_change(now, present, lambda _replica: True)) is not None:
        new = makers[change.step](now, change.replica)
        check_change(now, new, now.version, leader=N1)
        now, steps = new, steps + 1
        assert steps < 20, "it does not end"
        assert change.step is not Step.PROMOTE or len({voter[:2] for voter in now.voters}) == len(now.voters)
    assert (now.voters, now.learners) == (tuple(sorted(identities)), ())


# --- membership as desired --------------------------------------------------------------------------------------------

NOBODY_LAGS = frozenset(("a/1", "b/1", "c/1", "d/1", "e/1")).__contains__


def names(configuration: Configuration) -> set[str]:
    return {voter.partition("/")[0] for voter in configuration.voters}


def applied(now: Configuration, change: MemberChange) -> Configuration:
    voters, learners = set(now.voters), set(now.learners)
    if change.step is Step.ADD:
        learners.add(change.replica)
    elif change.step is Step.PROMOTE:
        learners.remove(change.replica)
        voters.add(change.replica)
    else:
        voters.discard(change.replica)
        learners.discard(change.replica)
    return Configuration.of(now.version + 1, voters, learners)


def test_a_move_adds_before_it_removes() -> None:
    now = Configuration.of(1, ("a/1", "b/1", "c/1"))
    present = {name: f"{name}/1" for name in "abcd"}
    steps: list[tuple[str, str]] = []
    while (change := next_change(now, present, NOBODY_LAGS, ("b", "c", "d"), "b/1")) is not None:
        steps.append((change.step.value, change.replica))
        now = applied(now, change)
        assert len(now.voters) >= 3
    assert steps == [("add", "d/1"), ("promote", "d/1"), ("remove", "a/1")]
    assert names(now) == {"b", "c", "d"}


def test_nobody_goes_while_somebody_who_should_come_is_not_there() -> None:
    now = Configuration.of(1, ("a/1", "b/1", "c/1"))
    present = {name: f"{name}/1" for name in "abc"}
    assert next_change(now, present, NOBODY_LAGS, ("b", "c", "d"), "b/1") is None


def test_the_leader_goes_last() -> None:
    now = Configuration.of(1, ("a/1", "b/1", "c/1", "d/1", "e/1"))
    present = {name: f"{name}/1" for name in "abcde"}
    assert next_change(now, present, NOBODY_LAGS, ("c", "d", "e"), "a/1") == MemberChange(Step.REMOVE, "b/1")
    now = Configuration.of(2, ("a/1", "c/1", "d/1", "e/1"))
    assert next_change(now, present, NOBODY_LAGS, ("c", "d", "e"), "a/1") == MemberChange(Step.REMOVE, "a/1")


def test_a_learner_that_is_not_desired_any_more_goes() -> None:
    now = Configuration.of(1, ("a/1", "b/1", "c/1"), ("d/1",))
    present = {name: f"{name}/1" for name in "abcd"}
    assert next_change(now, present, NOBODY_LAGS, ("a", "b", "c"), "a/1") == MemberChange(Step.REMOVE, "d/1")


def test_a_node_that_is_desired_and_lost_its_disk_is_replaced() -> None:
    now = Configuration.of(1, ("a/1", "b/1", "c/1"), ())
    present = {"a": "a/1", "b": "b/1", "c": "c/2"}
    change = next_change(now, present, lambda _replica: True, ("a", "b", "c"), "a/1")
    assert change == MemberChange(Step.ADD, "c/2")


# --- somebody dies meanwhile ------------------------------------------------------------------------------------------


def there(names: Iterable[str]) -> dict[str, str]:
    return {name: f"{name}/1" for name in names}


def step(voters: str, alive: str, desired: str, behind: str = "", me: str = "b") -> MemberChange | None:
    """`behind` are there, but have not caught up; the leader is `me`, of whom nobody tells that."""
    caught_up = {f"{name}/1" for name in alive if name not in behind and name != me}
    now = Configuration.of(1, (f"{name}/1" for name in voters))
    return next_change(now, there(alive), caught_up.__contains__, desired, f"{me}/1")


def test_the_source_stays_while_the_destination_is_dead_or_behind() -> None:
    """It voted already: one that counts among the voters, and has nothing, is not a copy."""
    assert step("abcd", alive="abcd", desired="bcd") == MemberChange(Step.REMOVE, "a/1")
    assert step("abcd", alive="abc", desired="bcd") is None
    assert step("abcd", alive="abcd", desired="bcd", behind="d") is None
    assert step("abcd", alive="abd", desired="bcd") is None, "whichever of them it is"
    assert step("abcd", alive="abc", desired="bcd", me="a") is None, "nor does the leader hand over"
    assert step("abcd", alive="abcd", desired="abc") == MemberChange(Step.REMOVE, "d/1"), "an operator may call it off"
    assert step("abcd", alive="abc", desired="abc") == MemberChange(Step.REMOVE, "d/1"), "also if it is dead"


def test_a_dead_node_is_replaced() -> None:
    assert step("abcd", alive="bcd", desired="bcd") == MemberChange(Step.REMOVE, "a/1")
    assert step("abcde", alive="bcde", desired="cde", me="b") == MemberChange(Step.REMOVE, "a/1"), "the dead first"
    assert step("abcdef", alive="bcde", desired="bcdef") == MemberChange(Step.REMOVE, "a/1"), (
        "one vote less to wait for"
    )
    assert step("abcdef", alive="bcde", desired="cdef") == MemberChange(Step.REMOVE, "a/1")
    assert step("bcdef", alive="bcde", desired="cdef") is None, "but no live one, while one that should vote is dead"
    assert step("abcd", alive="bc", desired="bcd") is None, "not by a minority: whoever is cut off is not dead"


NAMES = "abcde"


@given(data=st.data())
def test_whoever_dies_no_live_copy_goes_too_early_and_all_comes_to_its_end_once_they_are_back(
    data: st.DataObject,
) -> None:
    subsets = st.sets(st.sampled_from(NAMES), min_size=1)
    now = Configuration.of(1, map("{}/1".format, data.draw(subsets, "voters")))
    desired = data.draw(st.sets(st.sampled_from(NAMES), min_size=1, max_size=3), "desired")
    leader = data.draw(st.sampled_from(now.voters), "leader")
    makers = {Step.ADD: with_learner, Step.PROMOTE: with_voter, Step.REMOVE: without}
    steps = 0
    for is_last in (False, False, True):
        alive = set(NAMES) if is_last else data.draw(subsets, "alive")
        slow = set() if is_last else data.draw(st.sets(st.sampled_from(sorted(alive))), "slow")
        alive.add(leader[0])
        live = {f"{name}/1" for name in alive - slow} | {leader}
        while (change := next_change(now, there(alive), (live - {leader}).__contains__, desired, leader)) is not None:
            if change == MemberChange(Step.REMOVE, leader):
                leader = min(live & {f"{name}/1" for name in desired})  # it hands over, to one who stays
                continue
            new = makers[change.step](now, change.replica)
            check_change(now, new, now.version, leader=leader)
            if change.step is Step.REMOVE and change.replica in now.voters:
                before, after = len(live & set(now.voters)), len(live & set(new.voters))
                assert after >= min(before, len(desired)), f"{change} of {now} leaves fewer live copies"
                assert change.replica not in live or desired <= {voter[0] for voter in live & set(now.voters)}
            now, steps = new, steps + 1
            assert steps < 50, "it does not end"
    assert (names(now), now.learners) == (desired, ())
