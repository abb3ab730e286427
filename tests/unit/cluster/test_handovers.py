"""When a node may be stopped: what every shard keeps without it."""

from dataclasses import replace

from holdfast.cluster.admin.handovers import NodeSight, ShardSight, view_handover
from holdfast.cluster.map.records import Handover, NodeRecord
from tests.unit.cluster.cluster_stage import identity, node

A, B, C = identity("a"), identity("b"), identity("c")
NODES = {name: node(name) for name in "abc"}
ANSWERS = {"b": NodeSight(B), "c": NodeSight(C)}
HEALTHY = ShardSight(0, B, (A, B, C), (A, B, C))


def why(
    sight: ShardSight = HEALTHY, nodes: dict[str, NodeRecord] = NODES, answers: dict[str, NodeSight] = ANSWERS
) -> str:
    view = view_handover(A, [sight], nodes, answers)
    assert view.may_stop == (not view.held_back)
    return view.held_back.get(0, "")


def test_two_of_three_that_are_there_and_have_caught_up_are_enough() -> None:
    assert why() == ""


def test_a_voter_that_cannot_be_counted_on_holds_the_node_back() -> None:
    left = "1 of 3 voters would be left, 2 are needed: "
    granted = {**NODES, "c": replace(NODES["c"], handover=Handover.GRANTED)}
    assert why(nodes=granted) == f"{left}c is about to be stopped"
    assert why(nodes={name: NODES[name] for name in "ab"}) == f"{left}c is gone"
    assert why(answers={"b": NodeSight(B)}) == f"{left}c does not answer"
    assert why(answers={**ANSWERS, "c": NodeSight(C, is_stopping=True)}) == f"{left}c is being stopped"
    assert why(replace(HEALTHY, caught_up=(A, B))) == f"{left}c has not caught up"
    anew = {**NODES, "c": node("c", life=2)}
    assert why(nodes=anew, answers={**ANSWERS, "c": NodeSight(identity("c", 2))}) == f"{left}c has lost its data"


def test_one_that_was_only_asked_still_counts() -> None:
    """Otherwise two that wait for each other would wait for ever."""
    assert why(nodes={**NODES, "c": replace(NODES["c"], handover=Handover.ASKED)}) == ""


def test_what_is_led_still_or_by_nobody_holds_the_node_back() -> None:
    assert why(replace(HEALTHY, leader=A)) == "a leads it still"
    led = [replace(HEALTHY, leader=A), replace(HEALTHY, shard=1, leader=A, caught_up=(A,))]
    assert view_handover(A, led, NODES, ANSWERS).led == [0], "the other one could not do without it"
    assert why(ShardSight(0)) == "nobody leads it"


def test_a_shard_that_the_node_has_left_does_not_hold_it_back() -> None:
    assert why(ShardSight(0, B, (B, C), (B, C))) == ""


def test_while_a_replica_moves_four_vote_and_three_are_needed() -> None:
    d = identity("d")
    nodes, answers = {**NODES, "d": node("d")}, {**ANSWERS, "d": NodeSight(d)}
    moving = ShardSight(0, B, (A, B, C, d), (A, B, C, d))
    assert why(moving, nodes, answers) == ""
    assert "2 of 4 voters would be left, 3 are needed: d has not" in why(
        replace(moving, caught_up=(A, B, C)), nodes, answers
    )


def test_the_only_replica_is_named_and_holds_nobody_back() -> None:
    view = view_handover(A, [HEALTHY, ShardSight(7, A, (A,), (A,))], NODES, ANSWERS)
    assert (view.may_stop, list(view.single), view.held_back, view.leads) == (True, [7], {}, 1)
