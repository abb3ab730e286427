"""What should move between nodes and who should lead: even, zones apart, as little as possible; and what is refused."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, product
from math import ceil
from time import process_time

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from holdfast.cluster.placement.placement import NodeSpec, place
from holdfast.cluster.placement.planning import (
    Move,
    Transfer,
    check_moves,
    check_transfers,
    in_turns,
    rebalance,
    spread_leaders,
)

quick = settings(max_examples=60, deadline=None, print_blob=True)

Replicas = dict[int, list[str]]
NONE: frozenset[str] = frozenset()


def equal_nodes(count: int, zones: int = 1, first: int = 0) -> list[NodeSpec]:
    return [NodeSpec(f"n{index}", f"z{index % zones}") for index in range(first, first + count)]


def names_of(nodes: Iterable[NodeSpec]) -> set[str]:
    return {node.name for node in nodes}


def after(current: Mapping[int, Sequence[str]], moves: Iterable[Move]) -> Replicas:
    """Each step must be possible when its turn comes."""
    replicas = {shard: list(names) for shard, names in current.items()}
    for move in moves:
        names = replicas[move.shard]
        assert move.source in names
        assert move.destination not in names
        names[names.index(move.source)] = move.destination
    return replicas


def loads(replicas: Mapping[int, Sequence[str]], names: Iterable[str]) -> list[int]:
    counts = Counter(name for group in replicas.values() for name in group)
    return [counts[name] for name in sorted(names)]


def is_even(counts: Sequence[int]) -> bool:
    return max(counts) - min(counts) <= 1


def most_in_a_zone(names: Iterable[str], nodes: Iterable[NodeSpec]) -> int:
    zone_of = {node.name: node.zone for node in nodes}
    return max(Counter(zone_of[name] for name in names).values())


def assert_no_orphan(before: Mapping[int, Sequence[str]], now: Replicas) -> None:
    assert {shard: len(names) for shard, names in before.items()} == {shard: len(set(now[shard])) for shard in now}


@st.composite
def clusters(draw: st.DrawFn, zones_max: int = 3) -> tuple[Replicas, list[NodeSpec], set[str], set[str]]:
    """Any replicas on any nodes, some of which drain or are away."""
    zones = draw(st.integers(1, zones_max))
    capacities = draw(st.lists(st.sampled_from([100, 100, 100, 50, 0]), min_size=3, max_size=7))
    nodes = [NodeSpec(f"n{index}", f"z{index % zones}", capacity) for index, capacity in enumerate(capacities)]
    names = sorted(names_of(nodes))
    replication = draw(st.integers(1, 3))
    groups = st.permutations(names).map(lambda order: order[:replication])
    replicas = dict(enumerate(draw(st.lists(groups, min_size=1, max_size=14))))
    draining = draw(st.sets(st.sampled_from(names), max_size=2))
    away = draw(st.sets(st.sampled_from(names), max_size=2))
    return replicas, nodes, draining, set(names) - away


@quick
@given(st.integers(1, 40), st.integers(1, 4), st.integers(0, 5), st.integers(1, 4))
def test_a_new_cluster_is_left_alone(shards: int, replication: int, more: int, zones: int) -> None:
    nodes = equal_nodes(replication + more, zones)
    assert rebalance(place(shards, replication, nodes), nodes, NONE, names_of(nodes)) == []


@quick
@given(st.integers(1, 50), st.integers(1, 3), st.integers(0, 4), st.integers(1, 3))
def test_new_nodes_get_their_share_and_nothing_else_moves(shards: int, replication: int, more: int, new: int) -> None:
    nodes = equal_nodes(replication + more)
    grown = [*nodes, *equal_nodes(new, first=50)]
    before = place(shards, replication, nodes)
    moves = rebalance(before, grown, NONE, names_of(grown))
    now = after(before, moves)
    assert_no_orphan(before, now)
    assert is_even(loads(now, names_of(grown)))
    assert {move.destination for move in moves} <= names_of(grown[len(nodes) :])
    assert len(moves) <= new * ceil(shards * replication / len(grown))


@quick
@given(st.integers(1, 50), st.integers(1, 3), st.integers(1, 4), st.booleans())
def test_draining_a_node_moves_only_what_it_has(shards: int, replication: int, more: int, is_away: bool) -> None:
    """Also if it is away: the others have the data. But one more move where it takes that to be even in the end."""
    nodes = equal_nodes(replication + more)
    before = place(shards, replication, nodes)
    alive = names_of(nodes) - ({"n0"} if is_away and replication > 2 else set())
    moves = rebalance(before, nodes, {"n0"}, alive)
    now = after(before, moves)
    assert_no_orphan(before, now)
    emptied = sorted(move.shard for move in moves if move.source == "n0")
    assert emptied == [shard for shard, names in before.items() if "n0" in names]
    assert len(moves) <= len(emptied) + 1
    assert is_even(loads(now, names_of(nodes[1:])))


@quick
@given(st.integers(1, 40), st.integers(2, 4), st.integers(1, 3))
def test_zones_of_equal_size_stay_apart_and_even_while_the_cluster_grows_and_shrinks(
    shards: int, zones: int, per_zone: int
) -> None:
    small, large = equal_nodes(zones * per_zone, zones), equal_nodes(zones * (per_zone + 1), zones)
    replication = min(3, len(small))
    replicas = place(shards, replication, small)
    for nodes, draining in ((large, NONE), (large, names_of(large) - names_of(small))):
        moves = rebalance(replicas, nodes, draining, names_of(nodes))
        before, replicas = replicas, after(replicas, moves)
        assert_no_orphan(before, replicas)
        assert is_even(loads(replicas, names_of(nodes) - draining))
        assert all(most_in_a_zone(names, nodes) <= ceil(replication / zones) for names in replicas.values())
        # It cannot be less than what the nodes that came, or go, have in the end, or had.
        emptied = len([name for names in before.values() for name in names if name in draining])
        assert len(moves) >= emptied


@settings(max_examples=120, deadline=None, print_blob=True)
@given(clusters())
def test_any_cluster(cluster: tuple[Replicas, list[NodeSpec], set[str], set[str]]) -> None:
    """Nothing is orphaned, nothing goes where it must not, what is away stays, and a second plan is empty."""
    before, nodes, draining, alive = cluster
    moves = rebalance(before, nodes, draining, alive)
    assert moves == rebalance(dict(reversed(before.items())), nodes[::-1], draining, alive), "not the same twice"
    now = after(before, moves)
    assert_no_orphan(before, now)
    assert {move.destination for move in moves} <= alive - draining
    assert {move.source for move in moves} <= alive | draining
    assert check_moves(moves, before, nodes, draining, alive).problems == []
    usable = alive - draining
    for shard, names in before.items():
        stays = set(names) - alive - draining
        has_majority = 2 * len(set(names) & alive) > len(names)
        if has_majority and len(usable) >= len(names) - len(stays):
            assert not draining & set(now[shard])
        if not has_majority:
            assert now[shard] == names
    assert rebalance(now, nodes, draining, alive) == []


@settings(max_examples=80, deadline=None, print_blob=True)
@given(st.integers(1, 3), st.lists(st.permutations(range(5)), min_size=1, max_size=3), st.booleans(), st.integers(1, 3))
def test_no_plan_with_fewer_moves_is_as_good(
    zones: int, orders: list[list[int]], is_draining: bool, replication: int
) -> None:
    """Against all that there are."""
    nodes = equal_nodes(5, zones)
    names = [node.name for node in nodes]
    before = {shard: [names[index] for index in order[:replication]] for shard, order in enumerate(orders)}
    draining = {"n4"} if is_draining else set()
    usable = [name for name in names if name not in draining]
    limit = ceil(replication / zones)
    groups = [group for group in combinations(usable, replication) if most_in_a_zone(group, nodes) <= limit]
    costs = [
        sum(len(set(group) - set(before[shard])) for shard, group in enumerate(choice))
        for choice in product(groups, repeat=len(before))
        if is_even(loads(dict(enumerate(choice)), usable))
    ]
    moves = rebalance(before, nodes, draining, set(names))
    now = after(before, moves)
    assert all(most_in_a_zone(group, nodes) <= limit for group in now.values())
    if costs:
        assert is_even(loads(now, usable))
        assert len(moves) == min(costs)


def test_a_node_that_is_away_keeps_what_it_has() -> None:
    nodes = equal_nodes(5)
    before = place(20, 3, nodes)
    assert rebalance(before, nodes, NONE, {"n0", "n1", "n2", "n3"}) == []
    grown = [*nodes, NodeSpec("n9", "z0")]
    moves = rebalance(before, grown, NONE, {"n0", "n1", "n2", "n3", "n9"})
    now = after(before, moves)
    assert moves
    assert [("n4" in names) for names in now.values()] == [("n4" in names) for names in before.values()]
    assert is_even(loads(now, {"n0", "n1", "n2", "n3", "n9"}))


def test_replicas_that_are_too_near_to_each_other_are_put_apart() -> None:
    nodes = [NodeSpec("a1", "a"), NodeSpec("a2", "a"), NodeSpec("b1", "b"), NodeSpec("c1", "c")]
    moves = rebalance({0: ["a1", "a2", "b1"]}, nodes, NONE, names_of(nodes))
    assert [(move.shard, move.source[0], move.destination, move.why) for move in moves] == [
        (0, "a", "c1", "2 replicas in zone a")
    ]


def test_a_person_is_told_why_something_moves() -> None:
    nodes = equal_nodes(4)
    moves = rebalance({0: ["n0", "n1"], 1: ["n0", "n1"], 2: ["n0", "n3"]}, nodes, {"n3"}, names_of(nodes))
    assert {(move.source, move.destination): move.why for move in moves} == {
        ("n3", "n2"): "n3 drains",
        ("n0", "n2"): "n0 has 3 replicas, n2 0",
    }


@pytest.mark.parametrize("zones", [1, 4])
def test_a_thousand_shards_on_twenty_nodes_are_planned_quickly(zones: int) -> None:
    nodes = equal_nodes(20, zones)
    before = place(1000, 3, nodes)
    began = process_time()  # that of a busy machine does not count
    moves = rebalance(before, nodes, {"n7"}, names_of(nodes))
    assert process_time() - began < 3.0, "about 0.2 s on an idle machine"
    now = after(before, moves)
    assert is_even(loads(now, names_of(nodes) - {"n7"}))
    assert len(moves) < 1.15 * loads(before, ["n7"])[0]


@quick
@given(clusters())
def test_steps_in_turns_are_the_same_steps(cluster: tuple[Replicas, list[NodeSpec], set[str], set[str]]) -> None:
    moves = rebalance(*cluster)
    shuffled = in_turns(moves[::-1])
    assert sorted(map(repr, shuffled)) == sorted(map(repr, moves))


def test_steps_that_can_be_made_side_by_side_come_together() -> None:
    steps = [Move(0, "a", "x", ""), Move(1, "a", "x", ""), Move(0, "b", "y", ""), Move(2, "b", "y", "")]
    assert [(step.shard, step.source) for step in in_turns(steps)] == [(0, "a"), (2, "b"), (1, "a"), (0, "b")]


# Leaders.


def leads(leaders: Mapping[int, str], transfers: Iterable[Transfer], names: Iterable[str]) -> list[int]:
    now = dict(leaders)
    for transfer in transfers:
        assert now[transfer.shard] == transfer.source
        now[transfer.shard] = transfer.destination
    counts = Counter(now.values())
    return [counts[name] for name in sorted(names)]


@quick
@given(st.integers(1, 40), st.integers(1, 3), st.integers(0, 4), st.data())
def test_leaders_are_even_after_a_rolling_restart(
    shards: int, replication: int, more: int, data: st.DataObject
) -> None:
    nodes = equal_nodes(replication + more)
    replicas = place(shards, replication, nodes)
    leaders = {shard: data.draw(st.sampled_from(names)) for shard, names in replicas.items()}
    transfers = spread_leaders(leaders, replicas, names_of(nodes), NONE)
    assert transfers == spread_leaders(leaders, replicas, names_of(nodes), NONE)
    assert is_even(leads(leaders, transfers, names_of(nodes)))
    assert all(transfer.destination in replicas[transfer.shard] for transfer in transfers)
    now = leaders | {transfer.shard: transfer.destination for transfer in transfers}
    assert len(now) == len(leaders)
    assert spread_leaders(now, replicas, names_of(nodes), NONE) == []
    first_of_all = {shard: names[0] for shard, names in replicas.items()}
    assert spread_leaders(first_of_all, replicas, names_of(nodes), NONE) == [], "as a new cluster should begin"


@quick
@given(clusters(), st.data())
def test_leaders_of_any_cluster(
    cluster: tuple[Replicas, list[NodeSpec], set[str], set[str]], data: st.DataObject
) -> None:
    replicas, _, draining, alive = cluster
    leaders = {shard: data.draw(st.sampled_from(names)) for shard, names in replicas.items()}
    transfers = spread_leaders(leaders, replicas, alive, draining)
    assert len({transfer.shard for transfer in transfers}) == len(transfers)
    for transfer in transfers:
        assert transfer.source == leaders[transfer.shard] != transfer.destination
        assert transfer.source in alive
        assert transfer.destination in set(replicas[transfer.shard]) & alive - draining
    now = leaders | {transfer.shard: transfer.destination for transfer in transfers}
    for shard, names in replicas.items():
        if leaders[shard] in alive and set(names) & alive - draining:
            assert now[shard] not in draining
    assert spread_leaders(now, replicas, alive, draining) == []


@settings(max_examples=50, deadline=None, print_blob=True)
@given(st.lists(st.permutations(range(4)), min_size=1, max_size=5), st.integers(0, 2))
def test_no_transfers_that_are_fewer_are_as_good(orders: list[list[int]], leader: int) -> None:
    """Against all that there are."""
    replicas = {shard: [f"n{index}" for index in order[:3]] for shard, order in enumerate(orders)}
    names = {"n0", "n1", "n2", "n3"}
    leaders = {shard: group[leader] for shard, group in replicas.items()}
    transfers = spread_leaders(leaders, replicas, names, NONE)
    costs = [
        sum(leaders[shard] != name for shard, name in enumerate(choice))
        for choice in product(*replicas.values())
        if is_even([choice.count(name) for name in names])
    ]
    if costs:
        assert is_even(leads(leaders, transfers, names))
        assert len(transfers) == min(costs)


def test_large_nodes_lead_more_if_capacities_are_given() -> None:
    replicas = {shard: ["big", "small"] for shard in range(9)}
    leaders = dict.fromkeys(range(9), "small")
    alive = {"big", "small"}
    even, by_capacity = (
        spread_leaders(leaders, replicas, alive, NONE, capacities) for capacities in (None, {"big": 200, "small": 100})
    )
    assert (len(even), len(by_capacity)) == (4, 6)
    assert even[0] == Transfer(0, "small", "big", "small leads 9 shards, big 0")


# What is refused.

FIVE = equal_nodes(5)
ALL = names_of(FIVE)
THREE = {0: ["n0", "n1", "n2"], 1: ["n1", "n2", "n3"]}


def why(*moves: tuple[int, str, str], draining: Iterable[str] = (), away: Iterable[str] = ()) -> list[str]:
    steps = [Move(*move, "") for move in moves]
    verdict = check_moves(steps, THREE, FIVE, set(draining), ALL - set(away))
    assert all(problem.sentence.endswith(".") for problem in verdict.problems)
    return [problem.why for problem in verdict.problems]


def test_what_can_be_done_is_not_refused() -> None:
    assert why((0, "n0", "n3"), (0, "n1", "n4"), (1, "n1", "n0")) == []
    assert why((0, "n0", "n3"), (0, "n3", "n0")) == [], "and back"
    assert why((0, "n0", "n3"), away=["n0"]) == [], "the others have the data"
    assert why((0, "n0", "n3"), draining=["n0"]) == []


@pytest.mark.parametrize(
    ("move", "word"),
    [
        ((7, "n0", "n3"), "UNKNOWN_SHARD"),
        ((0, "n0", "nope"), "UNKNOWN_NODE"),
        ((0, "nope", "n3"), "NOT_A_REPLICA"),
        ((0, "n3", "n4"), "NOT_A_REPLICA"),
        ((0, "n0", "n1"), "ALREADY_A_REPLICA"),
        ((0, "n0", "n0"), "ALREADY_A_REPLICA"),
    ],
)
def test_a_move_that_does_not_fit_the_map_is_refused(move: tuple[int, str, str], word: str) -> None:
    assert why(move) == [word]


def test_nothing_moves_onto_a_node_that_is_away_or_drains() -> None:
    assert why((0, "n0", "n3"), away=["n3"]) == ["NODE_NOT_ALIVE"]
    assert why((0, "n0", "n3"), draining=["n3"]) == ["NODE_DRAINS"]


def test_each_move_is_judged_after_those_before_it() -> None:
    assert why((0, "n0", "n3"), (0, "n1", "n3")) == ["ALREADY_A_REPLICA"]
    assert why((0, "n0", "n3"), (0, "n0", "n4")) == ["NOT_A_REPLICA"]


def test_a_shard_without_a_majority_cannot_move() -> None:
    assert why((0, "n0", "n3"), away=["n1", "n2"]) == ["NO_MAJORITY"]
    assert why((0, "n0", "n3"), away=["n0", "n1"]) == ["NO_MAJORITY"]
    assert why((0, "n0", "n3"), away=["n2"]) == []
    [problem] = check_moves([Move(0, "n0", "n3", "")], THREE, FIVE, NONE, ALL - {"n1", "n2"}).problems
    assert problem.sentence == (
        "Expected a majority of the replicas of shard 0 to be alive, but of 3 only 1 would be: "
        "bring back n1 or n2 first."
    )


@pytest.mark.parametrize(("replication", "away_max"), [(1, 0), (2, 0), (3, 1), (4, 1), (5, 2)])
def test_a_majority_is_kept_at_every_step_with_as_many_away_as_the_group_can_bear(
    replication: int, away_max: int
) -> None:
    nodes = equal_nodes(replication + 1)
    group = [f"n{index}" for index in range(replication)]
    for source, count in product(group, range(replication + 1)):
        move = Move(0, source, f"n{replication}", "")
        verdict = check_moves([move], {0: group}, nodes, NONE, names_of(nodes) - set(group[:count]))
        assert [problem.why for problem in verdict.problems] == ["NO_MAJORITY"][: count > away_max]


def test_a_move_into_a_crowded_zone_is_only_warned_of() -> None:
    nodes = [NodeSpec("a1", "a"), NodeSpec("b1", "b"), NodeSpec("c1", "c"), NodeSpec("a2", "a")]
    verdict = check_moves([Move(0, "b1", "a2", "")], {0: ["a1", "b1", "c1"]}, nodes, NONE, names_of(nodes))
    assert verdict.problems == []
    assert [(warning.why, warning.sentence) for warning in verdict.warnings] == [
        ("ZONE", "Shard 0 would have 2 of its replicas in zone a (a1, a2); 1 would be possible.")
    ]
    assert check_moves([Move(0, "a1", "a2", "")], {0: ["a1", "b1", "c1"]}, nodes, NONE, names_of(nodes)).warnings == []


def test_a_drain_that_cannot_end_is_refused() -> None:
    nodes = equal_nodes(3)
    before = place(4, 3, nodes)
    moves = rebalance(before, nodes, {"n0"}, names_of(nodes))
    assert moves == []
    verdict = check_moves(moves, before, nodes, {"n0"}, names_of(nodes), must_empty=True)
    assert [(problem.why, problem.sentence) for problem in verdict.problems] == [
        (
            "NOT_ENOUGH_NODES",
            "Expected nodes to take over from n0, but only 2 are alive and not draining (n1, n2), and shard 0 has 3 "
            "replicas: start another node, or undrain one.",
        )
    ]
    assert check_moves(moves, before, nodes, {"n0"}, names_of(nodes)).problems == []


def test_a_drain_of_a_shard_without_a_majority_says_so() -> None:
    before = {0: ["n0", "n1", "n2"]}
    alive = {"n0", "n3", "n4"}
    assert rebalance(before, FIVE, {"n0"}, alive) == []
    verdict = check_moves([], before, FIVE, {"n0"}, alive, must_empty=True)
    assert [problem.why for problem in verdict.problems] == ["NO_MAJORITY"]


@pytest.mark.parametrize(
    ("transfer", "draining", "away", "words"),
    [
        ((0, "n0", "n1"), "", "", []),
        ((9, "n0", "n1"), "", "", ["UNKNOWN_SHARD"]),
        ((0, "n0", "n3"), "", "", ["NOT_A_REPLICA"]),
        ((0, "n0", "n1"), "n1", "", ["NODE_DRAINS"]),
        ((0, "n0", "n1"), "", "n1", ["NODE_NOT_ALIVE"]),
        ((0, "n0", "n1"), "", "n0 n2", ["NO_MAJORITY"]),
    ],
)
def test_transfers_that_cannot_be_made_are_refused(
    transfer: tuple[int, str, str], draining: str, away: str, words: list[str]
) -> None:
    verdict = check_transfers([Transfer(*transfer, "")], THREE, FIVE, set(draining.split()), ALL - set(away.split()))
    assert [problem.why for problem in verdict.problems] == words
