"""Raft under fire: seeds are histories of lost messages, cut networks, crashes that lose what was not synced, members
that change, replicas that are deleted and taken back, and disks that are gone.

`make sim SEEDS=1000 START=0` runs more of them.
"""

import pytest

from tests.long import IS_LONG
from tests.simulation.raft_histories import counts, history
from tests.simulation.raft_seeds import ALL_ABLATIONS, KNOWN

SEEDS_PER_TEST = 20
TESTS = {3: 12, 5: 8} if IS_LONG else {3: 2, 5: 1}  # by the number of replicas
SEEDS_TO_CATCH = 60


@pytest.mark.parametrize(
    ("replicas", "block"), [(replicas, block) for replicas in TESTS for block in range(TESTS[replicas])]
)
def test_nothing_acknowledged_is_lost_and_no_two_replicas_differ(replicas: int, block: int) -> None:
    first = block * SEEDS_PER_TEST
    worlds = [history(seed, replicas) for seed in range(first, first + SEEDS_PER_TEST)]
    assert sum(map(counts, worlds)) >= 0.9 * len(worlds), "too little happens in these histories to prove anything"
    assert sum(world.checks.installed for world in worlds) >= len(worlds) // 4, "too few snapshots"
    assert sum(world.checks.changed for world in worlds) >= len(worlds) // 2, "too few changes of members"
    assert any(world.lost for world in worlds), "no lost disk"
    assert sum(world.wiped for world in worlds) >= len(worlds) // 4, "too few replicas were deleted and came back"


def test_a_seed_is_one_history() -> None:
    first, second = history(7, 3), history(7, 3)
    assert first.checks.leaders == second.checks.leaders
    assert first.checks.log == second.checks.log
    assert first.checks.acknowledged == second.checks.acknowledged
    assert first.now_s == second.now_s


@pytest.mark.parametrize("name", ALL_ABLATIONS)
def test_histories_find_out_what_is_missing(name: str) -> None:
    ablation = ALL_ABLATIONS[name]
    if name in KNOWN and ablation.is_found_out(*KNOWN[name]):
        return
    # The known seed is of an older engine.
    assert ablation.find_out(range(SEEDS_TO_CATCH)) is not None
