"""How a total is allocated to shards: never more than there is, nobody starves, and all of it is used."""

import random
from collections.abc import Callable, Iterator, Mapping

import hypothesis.strategies as st
import pytest
from hypothesis import given

from holdfast.limits.allocation import (
    HELD_PERCENT,
    Allocated,
    Allocation,
    AllocationReport,
    Grant,
    Holding,
    aim,
    allocate,
)

LEASE_MS = 1_000
START_MS = 1_000_000


def granted_now(ledger: Mapping[int, Allocation], now_ms: int) -> int:
    """What may be in use of the total."""
    return sum(allocation.granted for allocation in ledger.values() if allocation.expires_ms > now_ms)


class Clock:
    """Runs up to 10 % off true time, from some moment of its own."""

    def __init__(self, chance: random.Random, percent: int = 10) -> None:
        self._start_ms = chance.randrange(10**6)
        self._percent = 100 + chance.choice([-percent, 0, percent])

    def at(self, true_ms: int) -> int:
        return self._start_ms + true_ms * self._percent // 100


class Shard:
    """One shard of the queue: its tasks, and the holding of its present leader."""

    def __init__(self, number: int, chance: random.Random) -> None:
        self.number = number
        self.term = 0
        self.uses = 0
        self.waiting = 0
        self.alive = True
        self.chance = chance
        self.restart()

    def restart(self) -> None:
        """A new leader: it knows what is in use, and holds nothing."""
        self.term += 1
        self.clock = Clock(self.chance)
        self.holding = Holding(self.number, self.term)

    def allowance(self, true_ms: int) -> int:
        return self.holding.allowance(self.clock.at(true_ms)) if self.alive else 0

    def work(self, true_ms: int) -> None:
        while self.waiting > 0 and self.uses < self.allowance(true_ms):
            self.uses += 1
            self.waiting -= 1

    def finish(self, count: int) -> None:
        self.uses -= min(count, self.uses)


class Stage:
    """A coordinator, shards, and a net between them that loses, delays and repeats."""

    def __init__(self, seed: int, shards: int, total: int, *, lost: float, late_ms: int) -> None:
        self.chance = random.Random(seed)
        self.shards = [Shard(number, self.chance) for number in range(shards)]
        self.clock = Clock(self.chance)
        self.ledger: dict[int, Allocation] = {}
        self.totals = [(0, total)]
        self.now_ms = 0
        self.lost = lost
        self.late_ms = late_ms
        self._net: list[tuple[int, int, Callable[[], None]]] = []
        self._sent = 0

    @property
    def total(self) -> int:
        return self.totals[-1][1]

    def change_total(self, total: int) -> None:
        self.totals.append((self.now_ms, total))

    def largest_total(self, within_ms: int) -> int:
        """The largest that was in force in the time before now."""
        from_ms = self.now_ms - within_ms
        ends = [start_ms for start_ms, _ in self.totals[1:]] + [self.now_ms + 1]
        return max(total for (_, total), end_ms in zip(self.totals, ends, strict=True) if end_ms > from_ms)

    def report(self, shard: Shard) -> None:
        message = shard.holding.report(shard.uses, shard.uses + shard.waiting, shard.clock.at(self.now_ms))
        self._send(lambda: self._allocate(shard, shard.holding, message))

    def _allocate(self, shard: Shard, holding: Holding, message: AllocationReport) -> None:
        self.ledger, grant = allocate(self.total, self.ledger, message, self.clock.at(self.now_ms), LEASE_MS)
        if grant is not None:
            self._send(lambda: self._accept(holding, grant))

    @staticmethod
    def _accept(holding: Holding, grant: Grant) -> None:
        holding.accept(grant)  # a former leader may get it too: that concerns nobody

    def _send(self, deliver: Callable[[], None]) -> None:
        for _ in range(1 + (self.chance.random() < self.lost / 2)):
            if self.chance.random() >= self.lost:
                self._sent += 1
                # One in twenty can be so late that no lease lasts that long.
                most_ms = self.late_ms * (3 if self.chance.random() < 0.05 else 1)
                self._net.append((self.now_ms + self.chance.randint(0, most_ms), self._sent, deliver))

    def step(self, by_ms: int) -> None:
        self.now_ms += by_ms
        while due := [message for message in self._net if message[0] <= self.now_ms]:
            message = min(due, key=lambda message: message[:2])
            self._net.remove(message)
            message[2]()
        for shard in self.shards:
            shard.work(self.now_ms)

    def believed(self) -> list[int]:
        return [shard.allowance(self.now_ms) for shard in self.shards]

    def assert_within_ledger(self) -> None:
        """What a holder believes is in the ledger; and what all believe is not more than there was to allocate."""
        coordinator_ms = self.clock.at(self.now_ms)
        for shard, believed in zip(self.shards, self.believed(), strict=True):
            allocation = self.ledger.get(shard.number)
            assert believed <= (
                allocation.granted if allocation is not None and allocation.expires_ms > coordinator_ms else 0
            )
        assert sum(self.believed()) <= self.largest_total(LEASE_MS)


def rounds(stage: Stage, count: int, *, every_ms: int = 200) -> Iterator[None]:
    """In each round every live shard reports once, in some order."""
    for _ in range(count):
        order = [shard for shard in stage.shards if shard.alive]
        stage.chance.shuffle(order)
        for shard in order:
            stage.report(shard)
            stage.step(every_ms // (len(order) + 1))
        stage.step(every_ms - len(order) * (every_ms // (len(order) + 1)))
        yield


@pytest.mark.parametrize("seed", range(30))
def test_holders_never_believe_more_than_there_is(seed: int) -> None:
    """Messages lost, late and repeated, leaders that change, shards out of touch, demand and totals that change."""
    stage = Stage(seed, 1 + seed % 6, 8, lost=0.05 * (seed % 7), late_ms=[20, 150, 500][seed % 3])
    chance, most = stage.chance, 0
    for _ in range(600):
        shard = chance.choice(stage.shards)
        event = chance.random()
        if event < 0.5 and shard.alive:
            stage.report(shard)
        elif event < 0.7:
            shard.waiting += chance.choice([0, 1, 3, 20])
        elif event < 0.9:
            shard.finish(chance.randint(0, 4))
        elif event < 0.93:
            shard.waiting = 0
        elif event < 0.95:
            shard.alive = not shard.alive
        elif event < 0.97:
            shard.restart()
        elif event < 0.98:
            stage.change_total(chance.randint(0, 12))
        stage.step(chance.choice([1, 10, 30, 30, 200]))
        stage.assert_within_ledger()
        most = max(most, sum(stage.believed()))
    assert most >= 4, "something was allocated"


@pytest.mark.parametrize("seed", range(10))
def test_no_more_is_in_use_than_the_total_while_all_are_in_touch(seed: int) -> None:
    """Slots in use are never over the total, although grants move to and fro and running tasks cannot be stopped."""
    stage = Stage(seed, 4, 7, lost=0.1, late_ms=60)
    most = 0
    for number, _ in enumerate(rounds(stage, 100, every_ms=150)):
        for shard in stage.shards:
            shard.waiting = stage.chance.choice([0, 0, 2, 9]) if number % 4 == 0 else shard.waiting
            shard.finish(stage.chance.choice([0, 1, 3]))
            shard.work(stage.now_ms)
        used = sum(shard.uses for shard in stage.shards)
        assert used <= 7
        most = max(most, used)
    assert most == 7


@pytest.mark.parametrize("demands", [[5, 5, 5], [1, 1, 40], [100, 0, 0], [1000, 1, 1], [4, 4, 4]])
def test_all_of_the_total_is_used_after_a_few_rounds(demands: list[int]) -> None:
    stage = Stage(1, 3, 12, lost=0.0, late_ms=0)
    # It starts from the worst: one shard has it all, for it was alone.
    stage.shards[0].waiting = 50
    for _ in rounds(stage, 3):
        pass
    assert stage.believed() == [12, 0, 0]
    stage.shards[0].uses = 0
    for _ in rounds(stage, 5):
        for shard, demand in zip(stage.shards, demands, strict=True):
            shard.uses, shard.waiting = 0, demand
    assert sum(stage.believed()) == 12
    assert all(believed >= min(1, demand) for believed, demand in zip(stage.believed(), demands, strict=True))


@pytest.mark.parametrize("seed", range(6))
def test_no_shard_with_demand_starves(seed: int) -> None:
    """Also if there are more shards than the total, and tasks that run on: each gets its turns."""
    shards, total = 5, 1 + seed % 3
    stage = Stage(seed, shards, total, lost=0.05, late_ms=20)
    turns = [0] * shards
    for _ in rounds(stage, 200):
        for shard in stage.shards:
            shard.waiting = 3 if shard.number else 500
            if stage.chance.random() < 0.7:
                shard.uses = 0
            shard.work(stage.now_ms)
            turns[shard.number] += shard.uses
        stage.assert_within_ledger()
    assert min(turns) >= 200 * total // shards // 3
    assert sum(turns) >= 200 * total // 2


def test_no_shard_starves_while_the_demand_of_others_goes_up_and_down() -> None:
    stage = Stage(3, 4, 6, lost=0.0, late_ms=0)
    small, *others = stage.shards
    for number, _ in enumerate(rounds(stage, 60)):
        small.uses, small.waiting = 0, 1
        for shard in others:
            shard.uses, shard.waiting = 0, 1_000 if (number + shard.number) % 3 else 0
        if number >= 3:
            assert small.allowance(stage.now_ms) >= 1


# --- one step at a time -------------------------------------------------------------------------------------------


class QuotaCoordinator:
    """Deals by hand."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.now_ms = START_MS
        self.ledger: dict[int, Allocation] = {}
        self._number = 0

    def hear(self, shard: int, holds: int, demand: int, uses: int = 0) -> int:
        self._number += 1
        grant = self.send(AllocationReport(shard, self._number, holds, uses, demand)).grant
        assert grant is not None
        assert grant.shard == shard
        return grant.amount

    def send(self, report: AllocationReport) -> Allocated:
        before = dict(self.ledger)
        allocated = allocate(self.total, self.ledger, report, self.now_ms, LEASE_MS)
        assert self.ledger == before, "what was given is not changed"
        self.ledger = allocated.ledger
        return allocated

    def granted(self) -> dict[int, int]:
        return {shard: allocation.granted for shard, allocation in self.ledger.items()}


def test_a_raise_comes_at_once_and_a_lowering_once_it_is_confirmed() -> None:
    coordinator = QuotaCoordinator(10)
    assert coordinator.hear(1, holds=0, demand=30) == 10
    assert coordinator.hear(2, holds=0, demand=30) == 0, "all is granted"
    assert coordinator.hear(1, holds=10, demand=30) == 5
    assert coordinator.hear(2, holds=0, demand=30) == 0, "the first may not know yet"
    assert coordinator.hear(1, holds=5, demand=30) == 5
    assert coordinator.hear(2, holds=0, demand=30) == 5
    assert coordinator.granted() == {1: 5, 2: 5}


def test_what_is_in_use_stays_in_the_ledger() -> None:
    coordinator = QuotaCoordinator(10)
    coordinator.hear(1, holds=0, demand=30)
    coordinator.hear(2, holds=0, demand=30)
    assert coordinator.hear(1, holds=10, demand=30, uses=8) == 5
    assert coordinator.hear(1, holds=5, demand=30, uses=8) == 5
    assert coordinator.granted() == {1: 8, 2: 0}
    assert coordinator.hear(2, holds=0, demand=30) == 2


def test_an_idle_shard_leaves_its_part_to_others() -> None:
    coordinator = QuotaCoordinator(10)
    assert coordinator.hear(1, holds=0, demand=6) == 6
    assert coordinator.hear(2, holds=0, demand=9) == 4
    assert coordinator.hear(1, holds=6, demand=0) == 0
    assert coordinator.hear(1, holds=0, demand=0) == 0
    assert coordinator.hear(2, holds=4, demand=9) == 9
    assert coordinator.hear(1, holds=0, demand=1) == 1, "what is free is there at once"


def test_what_a_shard_is_sure_of_is_kept_for_it() -> None:
    coordinator = QuotaCoordinator(6)
    assert coordinator.hear(1, holds=0, demand=3) == 3
    assert coordinator.hear(2, holds=0, demand=3) == 3
    assert coordinator.hear(3, holds=0, demand=1) == 0
    assert coordinator.hear(1, holds=3, demand=1_000) == 2, "it should have 4, but one is for the third"
    assert coordinator.hear(1, holds=2, demand=1_000) == 2
    assert coordinator.hear(3, holds=0, demand=1) == 1


def test_a_turn_goes_to_who_has_wanted_it_longest() -> None:
    coordinator = QuotaCoordinator(1)
    assert coordinator.hear(3, holds=0, demand=0) == 0
    assert coordinator.hear(1, holds=0, demand=9) == 1
    coordinator.now_ms += LEASE_MS // 2
    assert coordinator.hear(2, holds=0, demand=9) == 0
    coordinator.now_ms += LEASE_MS // 4
    assert coordinator.hear(3, holds=0, demand=9) == 0
    assert coordinator.hear(1, holds=1, demand=9) == 1
    coordinator.now_ms += LEASE_MS // 4
    assert coordinator.hear(1, holds=1, demand=9) == 0, "it has had its turn"
    assert coordinator.hear(1, holds=0, demand=9) == 0
    assert coordinator.hear(3, holds=0, demand=9) == 0, "it was there first, but wanted nothing"
    assert coordinator.hear(2, holds=0, demand=9) == 1


def test_a_lease_that_ran_out_frees_the_share() -> None:
    coordinator = QuotaCoordinator(10)
    coordinator.hear(1, holds=0, demand=30)
    coordinator.now_ms += LEASE_MS - 1
    assert coordinator.hear(2, holds=0, demand=30) == 0
    assert granted_now(coordinator.ledger, coordinator.now_ms) == 10
    assert granted_now(coordinator.ledger, coordinator.now_ms + 1) == 0
    coordinator.now_ms += 1
    assert coordinator.hear(2, holds=0, demand=30) == 10
    assert 1 not in coordinator.ledger
    assert coordinator.hear(1, holds=10, demand=30) == 0, "what it says to hold is over"
    assert granted_now(coordinator.ledger, coordinator.now_ms) == 10


def test_a_repeated_report_gets_the_same_answer_and_an_older_one_none() -> None:
    coordinator = QuotaCoordinator(10)
    first, second = AllocationReport(1, 1, 0, 0, 4), AllocationReport(1, 2, 4, 0, 6)
    assert coordinator.send(first).grant == Grant(1, 1, 4, LEASE_MS)
    assert coordinator.send(second).grant == Grant(1, 2, 6, LEASE_MS)
    ledger = coordinator.ledger
    coordinator.now_ms += 300
    assert coordinator.send(second).grant == Grant(1, 2, 6, LEASE_MS - 300)
    assert coordinator.send(first).grant is None
    assert coordinator.ledger == ledger


def test_a_lower_total_fits_once_all_have_confirmed() -> None:
    coordinator = QuotaCoordinator(20)
    held = {1: coordinator.hear(1, 0, 8), 2: coordinator.hear(2, 0, 8), 3: coordinator.hear(3, 0, 4)}
    assert sum(held.values()) == 20
    coordinator.total = 5
    for demand in [8, 20]:
        for shard in held:
            held[shard] = coordinator.hear(shard, held[shard], demand * shard)
    assert sum(coordinator.granted().values()) <= 5
    for _ in range(3):
        for shard in held:
            held[shard] = coordinator.hear(shard, held[shard], 9)
    assert sum(held.values()) == sum(coordinator.granted().values()) == 5
    coordinator.total = 30
    assert coordinator.hear(1, held[1], 9) == 9


def test_a_total_of_nothing_gives_nothing() -> None:
    coordinator = QuotaCoordinator(0)
    assert [coordinator.hear(shard, 0, 9) for shard in [1, 2, 1, 2]] == [0] * 4


def test_slots_in_use_after_a_lease_leave_others_less() -> None:
    coordinator = QuotaCoordinator(10)
    coordinator.hear(1, holds=0, demand=30)
    coordinator.now_ms += LEASE_MS
    assert coordinator.hear(2, holds=0, demand=30) == 10
    assert coordinator.hear(1, holds=0, demand=30, uses=7) == 0
    assert coordinator.hear(2, holds=10, demand=30, uses=10) == 3
    assert coordinator.hear(2, holds=3, demand=30, uses=3) == 3
    assert granted_now(coordinator.ledger, coordinator.now_ms) == 10


shares = st.builds(
    Allocation, st.just(0), st.integers(0, 1), st.integers(0, 60), st.just(1), st.integers(0, 99), st.just(START_MS)
)


@given(st.integers(0, 50), st.dictionaries(st.integers(0, 9), shares), st.integers(1, 9))
def test_targets(total: int, ledger: dict[int, Allocation], least: int) -> None:
    targets = aim(total, ledger, 100, 50, least)
    demands = {shard: allocation.demand for shard, allocation in ledger.items() if allocation.demand}
    assert sum(target.amount for target in targets.values()) == min(total, sum(demands.values()))
    assert targets == aim(total, dict(reversed(ledger.items())), 100, 50, least), "the order does not matter"
    for shard, target in targets.items():
        assert 0 < target.sure <= target.amount <= demands[shard]
    if total >= len(demands) > 0:
        part = min(least, total // len(demands))
        for shard, demand in demands.items():
            assert targets[shard].amount >= min(demand, part)
            for other in demands:
                if demand >= demands[other]:
                    assert targets[shard].amount >= targets[other].amount - 1


def test_targets_follow_demand() -> None:
    ledger = {shard: Allocation(0, 0, demand, 1, 0, START_MS) for shard, demand in {1: 301, 2: 101, 3: 1, 4: 0}.items()}
    assert {shard: target.amount for shard, target in aim(103, ledger, 0, 50).items()} == {1: 76, 2: 26, 3: 1}


# --- the holder ---------------------------------------------------------------------------------------------------


def test_a_holder_counts_from_when_it_asked_and_stops_before_the_lease_ends() -> None:
    holding = Holding(3, term=7)
    report = holding.report(uses=2, demand=9, now_ms=500)
    assert (report.shard, report.holds, report.uses, report.demand) == (3, 0, 2, 9)
    assert holding.accept(Grant(3, report.number, 5, LEASE_MS))
    assert 500 < holding.renew_ms < 500 + LEASE_MS // 2
    end_ms = 500 + LEASE_MS * HELD_PERCENT // 100
    assert end_ms < 500 + LEASE_MS
    assert [holding.allowance(now_ms) for now_ms in [600, end_ms - 1, end_ms]] == [5, 5, 0]
    assert holding.report(0, 9, end_ms - 1).holds == 5
    assert holding.report(0, 9, end_ms).holds == 0


def test_a_holder_heeds_the_first_answer_to_its_latest_report_only() -> None:
    holding = Holding(3, term=7)
    first, second = holding.report(0, 9, 0), holding.report(0, 9, 100)
    assert second.number > first.number
    assert not holding.accept(Grant(3, first.number, 5, LEASE_MS))
    assert not holding.accept(Grant(4, second.number, 5, LEASE_MS))
    assert holding.allowance(200) == 0
    assert holding.accept(Grant(3, second.number, 6, LEASE_MS))
    assert not holding.accept(Grant(3, second.number, 6, 10))
    assert holding.allowance(200) == 6
    assert Holding(3, term=8).report(0, 9, 0).number > second.number
