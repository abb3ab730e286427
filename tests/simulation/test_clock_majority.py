"""Shard time across leaders: seeds are histories of clocks that lie, frames that are late and nodes that crash."""

import pytest

from holdfast.broker.leader.clock import MedianRange, ShardClock, Witnesses
from holdfast.broker.leader.clock_evidence import GroupEvidence
from tests.simulation.clock_world import AHEAD_MS_MAX, SETTLED_MS, SKEW_MS_MAX, START_MS, TICK_MS, ClockWorld, Member

SEEDS = {3: range(12), 5: range(6)}
SEEDS_TO_CATCH = 16
FAULTS_MS = 90_000
CALM_MS = SETTLED_MS + 15_000


def history(seed: int, nodes: int, member: type[Member] = Member) -> ClockWorld:
    world = ClockWorld(seed, nodes, member)
    world.run(FAULTS_MS)
    world.heal()
    world.run(CALM_MS, faults=False)
    return world


@pytest.mark.parametrize("nodes", SEEDS)
def test_time_never_goes_back_and_stays_with_the_honest_clocks(nodes: int) -> None:
    worlds = [history(seed, nodes) for seed in SEEDS[nodes]]
    for world in worlds:
        assert world.leader is not None, "somebody leads once the faults are over"
        off_ms = world.shard_ms - (START_MS + world.now_ms)
        assert abs(off_ms) <= SKEW_MS_MAX + AHEAD_MS_MAX + 1000, "and has found back to the right time"
    ticks = len(worlds) * FAULTS_MS // TICK_MS
    assert sum(world.checked_behind for world in worlds) > ticks / 4, "agreement is too rare to prove anything"
    assert sum(len(world.leaders) for world in worlds) > 4 * len(worlds), "too few leaders"
    assert any(world.steps for world in worlds), "no step was ever needed"
    assert sum(world.changes_checked for world in worlds) > 3 * len(worlds), "few durations have seen two leaders"
    assert any(set(world.leaders) & world.liars for world in worlds), "a wrong clock never led"


def test_a_seed_is_one_history() -> None:
    first, second = history(3, 3), history(3, 3)
    assert (first.leaders, first.committed_ms, first.steps) == (second.leaders, second.committed_ms, second.steps)


class BelievesItself(Member):
    """Every leader goes by its own wall clock."""

    def witnesses(self) -> Witnesses | None:
        return None


class BareMedian(GroupEvidence):
    def median_range(self) -> MedianRange | None:
        if super().median_range() is None:
            return None
        heard = sorted(self._evidence.offsets_ms(self._voters(), self._me))
        return MedianRange(heard[len(heard) // 2], heard[len(heard) // 2])


class TakesTheMedianOfWhoIsThere(Member):
    """As if those who are silent could not change it."""

    def forget(self) -> None:
        super().forget()
        self.group = BareMedian(self.evidence, lambda: self.voters, self.name)


class ForgetsTheFormerLeader(Member):
    """Starts at what is applied, although it has heard of later times and has later entries in its log."""

    def start_clock(self) -> ShardClock:
        return ShardClock(self.machine, self.applied_ms, witnesses=self.witnesses())


@pytest.mark.parametrize("ablation", [BelievesItself, TakesTheMedianOfWhoIsThere, ForgetsTheFormerLeader])
def test_histories_find_out_what_is_missing(ablation: type[Member]) -> None:
    def histories() -> None:
        for seed in range(SEEDS_TO_CATCH):
            for nodes in SEEDS:
                history(seed, nodes, ablation)

    with pytest.raises(AssertionError):
        histories()


class HurriedClock(ShardClock):
    def now_ms(self) -> int:
        before_ms = self._monotonic_ms
        super().now_ms()
        behind_ms = self._believed.offset_ms + self._monotonic_ms - self._now_ms
        self._now_ms += min(max(behind_ms, 0.0), (self._monotonic_ms - before_ms) / 10)
        return int(self._now_ms)


class Hurries(Member):
    """Makes up for what it is behind by running faster than clocks drift."""

    def start_clock(self) -> ShardClock:
        clock = HurriedClock(self.machine, self.applied_ms, continued=self.continued(), witnesses=self.witnesses())
        clock.not_before(self.log_ms)
        return clock


class ForgetsThatItLed(Member):
    """Goes on with what a leader before it has told."""

    def note_own_time(self, term: int, shard_ms: int) -> None:
        """Only others are heard."""


@pytest.mark.parametrize("ablation", [Hurries, ForgetsThatItLed])
def test_histories_find_durations_that_are_short(ablation: type[Member]) -> None:
    def histories() -> None:
        for seed in range(SEEDS_TO_CATCH):
            for nodes in SEEDS:
                history(seed, nodes, ablation)

    with pytest.raises(AssertionError, match="duration is short|left its pace"):
        histories()
