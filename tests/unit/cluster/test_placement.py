"""Which nodes get the replicas of a new cluster."""

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from math import ceil

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from holdfast.cluster.placement.placement import NodeSpec, fair_shares, place, zone_limit

quick = settings(max_examples=60, deadline=None, print_blob=True)

Placement = dict[int, list[str]]


def equal_nodes(count: int, zones: int = 1) -> list[NodeSpec]:
    return [NodeSpec(f"n{index}", f"z{index % zones}") for index in range(count)]


def loads(placed: Placement, nodes: Sequence[NodeSpec]) -> list[int]:
    counts = Counter(name for names in placed.values() for name in names)
    return [counts[node.name] for node in nodes]


def leads(placed: Placement, nodes: Sequence[NodeSpec]) -> list[int]:
    counts = Counter(names[0] for names in placed.values())
    return [counts[node.name] for node in nodes]


def assert_distinct(placed: Placement, shards: int, replication: int) -> None:
    assert sorted(placed) == list(range(shards))
    assert all(len(names) == len(set(names)) == replication for names in placed.values())


def most_in_a_zone(names: Sequence[str], nodes: Sequence[NodeSpec]) -> int:
    zone_of = {node.name: node.zone for node in nodes}
    return max(Counter(zone_of[name] for name in names).values())


@quick
@given(st.integers(1, 60), st.integers(1, 5), st.integers(0, 6))
def test_equal_nodes_have_and_lead_the_same_within_one(shards: int, replication: int, more: int) -> None:
    nodes = equal_nodes(replication + more)
    placed = place(shards, replication, nodes)
    assert_distinct(placed, shards, replication)
    for counts in (loads(placed, nodes), leads(placed, nodes)):
        assert max(counts) - min(counts) <= 1


@quick
@given(st.integers(1, 60), st.integers(1, 5), st.integers(1, 4), st.integers(1, 3))
def test_zones_of_equal_size_are_apart_and_their_nodes_within_one(
    shards: int, replication: int, zones: int, per_zone: int
) -> None:
    nodes = equal_nodes(max(zones * per_zone, ceil(replication / zones) * zones), zones)
    placed = place(shards, replication, nodes)
    assert_distinct(placed, shards, replication)
    assert all(most_in_a_zone(names, nodes) <= ceil(replication / zones) for names in placed.values())
    counts = loads(placed, nodes)
    assert max(counts) - min(counts) <= 1


@quick
@given(
    st.integers(1, 40), st.integers(1, 4),
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 4)), min_size=4, max_size=9),
)  # fmt: skip
def test_zones_and_capacities_of_any_kind(shards: int, replication: int, kinds: list[tuple[str, int]]) -> None:
    nodes = [NodeSpec(f"n{index}", zone, capacity) for index, (zone, capacity) in enumerate(kinds)]
    placed = place(shards, replication, nodes)
    assert_distinct(placed, shards, replication)
    sizes = Counter(node.zone for node in nodes)
    best = min(limit for limit in range(1, 5) if sum(min(limit, size) for size in sizes.values()) >= replication)
    limit = max(best, ceil(replication / len(sizes)))
    assert all(most_in_a_zone(names, nodes) <= limit for names in placed.values())
    by_kind: dict[tuple[str, int], list[int]] = {}
    for node, count in zip(nodes, loads(placed, nodes), strict=True):
        by_kind.setdefault((node.zone, node.capacity), []).append(count)
    assert all(max(counts) - min(counts) <= 1 for counts in by_kind.values()), "equal nodes of a zone"


@quick
@given(st.integers(1, 60), st.lists(st.integers(1, 3), min_size=8, max_size=10))
def test_nodes_have_their_share_by_capacity_within_one(shards: int, capacities: list[int]) -> None:
    """With one or two replicas no node of these is so large that it would have all shards."""
    nodes = [NodeSpec(f"n{index}", capacity=capacity) for index, capacity in enumerate(capacities)]
    for replication in (1, 2):
        placed = place(shards, replication, nodes)
        for node, count in zip(nodes, loads(placed, nodes), strict=True):
            assert abs(count - Fraction(shards * replication * node.capacity, sum(capacities))) < 1


def test_the_order_in_which_nodes_are_named_does_not_matter() -> None:
    nodes = [NodeSpec(f"n{index}", f"z{index % 3}", 100 + index % 2) for index in range(9)]
    assert place(50, 3, nodes) == place(50, 3, nodes[::-1]) == place(50, 3, nodes[4:] + nodes[:4])


def test_a_node_shares_its_shards_with_many_others() -> None:
    """When it dies, they all take over a part of what it led."""
    placed = place(120, 3, equal_nodes(12))
    for name in (f"n{index}" for index in range(12)):
        partners = {other for names in placed.values() if name in names for other in names} - {name}
        assert len(partners) >= 8, name


def test_a_node_of_no_capacity_gets_something_only_if_it_has_to() -> None:
    nodes = [*equal_nodes(3), NodeSpec("none", "z0", 0)]
    assert loads(place(8, 3, nodes), nodes) == [8, 8, 8, 0]
    assert loads(place(8, 4, nodes), nodes) == [8, 8, 8, 8]


def test_small_nodes_have_less_than_large_ones_until_those_have_all() -> None:
    nodes = [NodeSpec("large", capacity=1000), NodeSpec("s1", capacity=1), NodeSpec("s2", capacity=1)]
    assert loads(place(10, 2, nodes), nodes) == [10, 5, 5]


def test_the_room_of_a_zone_bounds_what_its_nodes_get() -> None:
    nodes = [NodeSpec("a1", "a"), NodeSpec("b1", "b"), NodeSpec("b2", "b"), NodeSpec("b3", "b")]
    assert fair_shares(20, nodes, [10] * 4, {"a": 10, "b": 10}) == [
        10,
        Fraction(10, 3),
        Fraction(10, 3),
        Fraction(10, 3),
    ]
    assert fair_shares(20, nodes, [10] * 4, {"a": 10, "b": 30}) == [5, 5, 5, 5]
    assert fair_shares(20, nodes, [2, 10, 10, 10], {}) == [2, 6, 6, 6]


@pytest.mark.parametrize(
    ("replication", "zones", "sizes", "fixed", "limit"),
    [
        (3, 3, {"a": 1, "b": 1, "c": 1}, {}, 1),
        (3, 2, {"a": 2, "b": 2}, {}, 2),
        (3, 1, {"": 5}, {}, 3),
        (4, 2, {"a": 1, "b": 5}, {}, 3),  # one node in a: three have to be in b
        (3, 3, {"b": 2, "c": 1}, {"a": 1}, 1),  # one replica on a node that is away
        (3, 3, {"b": 2}, {"a": 1}, 2),
        (3, 2, {"a": 1}, {}, 3),  # does not fit at all
    ],
)  # fmt: skip
def test_how_many_replicas_may_be_in_one_zone(
    replication: int, zones: int, sizes: dict[str, int], fixed: dict[str, int], limit: int
) -> None:
    assert zone_limit(replication, zones, sizes, fixed, replication - sum(fixed.values())) == limit


def test_what_cannot_be_placed_is_refused() -> None:
    with pytest.raises(ValueError, match="replication factor of 1 to 2, as many as nodes, but got 3"):
        place(4, 3, equal_nodes(2))
    with pytest.raises(ValueError, match="at least one shard, but got 0"):
        place(0, 1, equal_nodes(2))
