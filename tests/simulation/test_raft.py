"""Raft under fire: seeds are histories of lost messages, cut networks, crashes that lose what was not synced.

`make sim SEEDS=1000 START=0` runs more of them.
"""

import pytest

from holdfast.broker.raft.engine import ShardRaft
from tests.simulation import raft_ablations as without
from tests.simulation.raft_histories import counts, history

SEEDS = {3: range(80), 5: range(40)}
SEEDS_TO_CATCH = 60


@pytest.mark.parametrize("replicas", SEEDS)
def test_nothing_acknowledged_is_lost_and_no_two_replicas_differ(replicas: int) -> None:
    worlds = [history(seed, replicas) for seed in SEEDS[replicas]]
    assert sum(map(counts, worlds)) >= len(worlds) // 4, "too little happens in these histories to prove anything"


def test_a_seed_is_one_history() -> None:
    first, second = history(7, 3), history(7, 3)
    assert (first.log, first.leaders, first.acknowledged) == (second.log, second.leaders, second.acknowledged)


# The others need a chain of events that hardly ever comes by chance: tests/unit/test_raft_engine.py plays each of them.
@pytest.mark.parametrize(
    "ablation",
    [
        without.CutsWhatFits,
        without.CountsVotesTwice,
        without.PromisesAtOnce,
        without.VotesForAnyone,
        without.VotesTwice,
    ],
)
def test_histories_find_out_what_is_missing(ablation: type[ShardRaft]) -> None:
    def histories() -> None:
        for seed in range(SEEDS_TO_CATCH):
            for replicas in (3, 5):
                history(seed, replicas, ablation)

    with pytest.raises((AssertionError, IndexError)):  # a broken engine may also trip over itself
        histories()
