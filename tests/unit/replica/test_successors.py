"""To whom a leader hands over: to nobody who would leave the shard without a leader for nothing."""

import pytest

from holdfast.broker.cluster_view.view import StaticClusterView
from holdfast.broker.config import BrokerConfig
from holdfast.broker.replica.successors import answers, best_successor, caught_up, hand_over, is_reluctant
from holdfast.raft.engine import ShardRaft
from holdfast.raft.library import LEADER
from tests.unit.raft.raft_stage import TIMING, Stage


def stage_without(*dead: str, replicas: str = "abc") -> tuple[Stage, ShardRaft]:
    """The last of them leads, and has not heard these for longer than an election takes."""
    stage = Stage(replicas=replicas)
    leader = stage.serve(replicas[-1])
    live = "".join(name for name in replicas if name not in dead)
    ends_s = stage.now_s + 2 * TIMING.election_s_max
    while stage.now_s < ends_s:
        stage.settle(leader.replica, live)
    return stage, leader


class View(StaticClusterView):
    """Of a cluster in which these nodes have asked whether they may stop."""

    def __init__(self, leaving: str = "") -> None:
        super().__init__(BrokerConfig())
        self._leaving = leaving

    def takes_leadership(self, name: str, *, at_need: bool = False) -> bool:
        return at_need or name not in self._leaving


def test_the_dead_do_not_take_over() -> None:
    """Nothing was written since, so the dead one has as much as the other."""
    stage, leader = stage_without("a")
    assert leader.progress["a"].match_index == leader.progress["b"].match_index
    assert not answers(leader, "a", stage.now_s)
    assert best_successor(leader, stage.now_s) == "b"


def test_who_has_the_most_takes_over() -> None:
    stage, leader = stage_without(replicas="abcd")
    leader.propose(b"not everybody gets this")
    stage.settle("d", among="bd")
    assert answers(leader, "a", stage.now_s)
    assert best_successor(leader, stage.now_s) == "b"


def test_of_those_who_have_as_much_the_last_that_was_heard_takes_over() -> None:
    """The other one may have died a moment ago."""
    stage, leader = stage_without()
    stage.settle("c", among="bc")
    assert answers(leader, "a", stage.now_s)
    assert best_successor(leader, stage.now_s) == "b"


def test_who_is_not_wanted_does_not_take_over() -> None:
    stage, leader = stage_without("a")
    assert best_successor(leader, stage.now_s, among=["a"]) is None
    assert best_successor(leader, stage.now_s, among=["a", "b"]) == "b"
    assert best_successor(leader, stage.now_s, among=["c"]) is None, "it leads already"
    assert best_successor(leader, stage.now_s, among=[]) == "b", "nobody is preferred"


@pytest.mark.parametrize(
    ("leaving", "is_stopping", "takes_over"),
    [("a", False, "b"), ("b", False, "a"), ("ab", False, None), ("ab", True, "b")],
)
def test_who_is_about_to_be_stopped_takes_over_only_at_need(
    leaving: str, is_stopping: bool, takes_over: str | None
) -> None:
    stage, leader = stage_without()
    stage.settle("c", among="bc")
    begun = hand_over(leader, stage.now_s, View(leaving), is_stopping=is_stopping)
    assert begun == (takes_over is not None)
    if takes_over is not None:
        stage.deliver("abc")
        assert stage[takes_over].role == LEADER


def test_a_replica_that_leaves_elections_to_others_leads_if_it_is_asked_to() -> None:
    stage, leader = stage_without()
    stage["a"].is_reluctant = True
    assert leader.hand_over("a")
    stage.deliver("abc")
    assert stage["a"].role == LEADER


def test_a_leader_knows_who_could_go_on_without_delay() -> None:
    stage, leader = stage_without("a")
    assert caught_up(leader, stage.now_s) == ["b", "c"]
    for number in range(200):
        leader.propose(b"%d" % number)
    assert caught_up(leader, stage.now_s) == ["c"], "the other lacks too much"


@pytest.mark.parametrize(
    ("silent_elections", "hands_over", "leaves"),
    [(0, True, True), (0, False, False), (4, True, False)],
)
def test_a_node_that_is_about_to_be_stopped_leaves_elections_to_others_but_not_for_ever(
    silent_elections: int, hands_over: bool, leaves: bool
) -> None:
    stage, _ = stage_without()
    now_s = stage.now_s + silent_elections * TIMING.election_s_max
    assert is_reluctant(stage["a"], now_s, is_handing_over=hands_over) == leaves


def test_who_has_not_answered_this_leader_yet_does_not_take_over() -> None:
    stage = Stage()
    a = stage.elect("a", among="ab")
    assert best_successor(a, stage.now_s) == "b"
    assert best_successor(a, stage.now_s, among=["c"]) is None


@pytest.mark.parametrize(("dead", "successor"), [("a", "b"), ("ab", None)])
def test_a_leader_hands_over_to_who_is_there_or_goes_on(dead: str, successor: str | None) -> None:
    stage, leader = stage_without("a")
    if "b" in dead:
        stage.now_s += TIMING.election_s_max
    begun = hand_over(leader, stage.now_s, View())
    assert begun == (successor is not None)
    assert leader.accepts == (successor is None), "nothing is stopped for nobody"
    if successor is not None:
        stage.deliver("bc")
        assert stage[successor].role == LEADER
