"""Weighted turns between tenants."""

import hypothesis.strategies as st
from hypothesis import given, settings

from holdfast.limits.turns import WEIGHT_MAX, WEIGHT_MIN, WeightsSeen, turn

weights = st.integers(WEIGHT_MIN, WEIGHT_MAX)


@given(st.lists(weights, min_size=1, max_size=10))
def test_shares_are_those_of_the_weights(ring: list[int]) -> None:
    given_out, carries = [0] * len(ring), [0] * len(ring)
    rounds = 60
    for _ in range(rounds):
        for place, weight in enumerate(ring):
            tasks, carries[place] = turn(weight, min(ring), carries[place])
            assert tasks >= 1, "no turn is empty"
            given_out[place] += tasks
    for place, weight in enumerate(ring):
        assert given_out[place] == rounds * weight // min(ring)


def test_turns_are_as_short_as_they_can_be() -> None:
    assert turn(100, 100).tasks == 1
    assert turn(3, 2) == (1, 1)
    assert turn(3, 2, 1) == (2, 0)
    assert turn(100, 1).tasks == 100


@given(st.lists(st.tuples(st.booleans(), weights), max_size=60))
@settings(max_examples=50)
def test_the_lightest_is_the_smallest_weight_there_is(moves: list[tuple[bool, int]]) -> None:
    seen, ring = WeightsSeen(), list[int]()
    for comes, weight in moves:
        if comes or not ring:
            ring.append(weight)
            seen.add(weight)
        else:
            seen.remove(ring.pop(weight % len(ring)))
        assert seen.lightest == min(ring, default=WEIGHT_MAX)
