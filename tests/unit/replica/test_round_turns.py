"""One budget for all shards of a node: a round does not grow with the number of busy shards, and nobody starves."""

import asyncio
import random
from typing import Any, cast

import pytest

from holdfast.broker.metrics import Metrics
from holdfast.broker.replica.commit_loop import APPLY_SECONDS_MAX, ROUND_RECEIVED_BYTES_MAX, CommitLoop
from holdfast.broker.replica.replica import Replica
from holdfast.broker.round_budget import (
    BYTES_MAX,
    ENTRIES_MAX,
    SEND_BYTES_MAX,
    SHARD_BYTES_MAX,
    SHARD_BYTES_MIN,
    SHARD_ENTRIES_MAX,
    SHARD_ENTRIES_MIN,
    SHARD_HOUSEKEEPING_MAX,
    RoundBudget,
)
from holdfast.storage.disk_guard import DiskGuard
from holdfast.wal.node_log import NodeLog
from tests.simulation.fake_disk import FakeDisk
from tests.simulation.syncs import Beside, beside

TURN_SECONDS = 0.004


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class BusyReplica:
    """A replica that always has more to propose and to apply, and takes its time for it."""

    is_detached = False
    group = 1

    def __init__(self, number: int, clock: Clock, *, only_housekeeping: bool = False) -> None:
        self.number = number
        self.shard = self
        self.staged_turn = self.sent_turn = self.applied_turn = 0
        self.has_work = self.has_to_apply = True
        self.callers_wait = not only_housekeeping
        self.only_housekeeping_is_left = only_housekeeping
        self.entry_bytes = 10_000
        self.staged: list[int] = []  # entries, by round
        self.lacking_bytes = 0  # that other replicas lack, again and again
        self.sent = 0  # rounds in which it could send
        self.turns = 0
        self.delivered = 0
        self._clock = clock

    def step(self, _now_s: float, budget: RoundBudget) -> int:
        share, taken = budget.share(), 0
        while self.callers_wait and share.has_room:
            share.take(self.entry_bytes)
            taken += 1
        self.staged.append(taken)
        return taken + 1  # and a chore

    def replicate(self, budget: RoundBudget) -> int:
        sent_bytes = min(self.lacking_bytes, budget.send_bytes_each)
        budget.send_bytes -= sent_bytes
        self.sent += sent_bytes > 0
        return sent_bytes

    async def apply(self, *, callers_first: bool) -> bool:
        del callers_first
        self._clock.now_s += TURN_SECONDS
        self.turns += 1
        return True

    def deliver(self, _sender: str, _data: bytes, _now_s: float) -> None:
        self.delivered += 1

    def overhear(self, _sender: str, _data: bytes, _now_s: float) -> None:
        """Nothing is said."""

    def detach(self) -> None:
        """It is a test."""


def rounds_of(clock: Clock) -> CommitLoop:
    disk = FakeDisk(random.Random(0))
    log = NodeLog.open(disk, segment_bytes=16 * 1024)
    guard = DiskGuard(disk.free_bytes, 0)

    async def run_blocking(_work: Any) -> None:
        """Nothing is written."""

    return CommitLoop(log, Metrics(), begin_sync=beside(run_blocking), disk=guard, monotonic=clock)


def stage_of(count: int, *, chores: int = 0) -> tuple[CommitLoop, Clock, list[BusyReplica], list[Replica]]:
    clock = Clock()
    commit_loop = rounds_of(clock)
    busy = [BusyReplica(number, clock, only_housekeeping=number >= count - chores) for number in range(count)]
    active = [cast(Replica, replica) for replica in busy]
    for replica in active:
        commit_loop.attach(replica)
    return commit_loop, clock, busy, active


@pytest.mark.parametrize("count", [1, 8, 64])
async def test_applying_takes_as_long_for_many_busy_shards_as_for_one(count: int) -> None:
    commit_loop, clock, _busy, active = stage_of(count)
    await commit_loop._apply(active, callers_first=True)
    assert APPLY_SECONDS_MAX <= clock.now_s < APPLY_SECONDS_MAX + TURN_SECONDS


async def test_who_got_no_turn_to_apply_is_first_in_the_next_round() -> None:
    commit_loop, _clock, busy, active = stage_of(64)
    for _ in range(40):
        random.Random(1).shuffle(active)
        await commit_loop._apply(active, callers_first=True)
    turns = [replica.turns for replica in busy]
    assert max(turns) - min(turns) <= 1


async def test_beside_a_sync_there_is_one_turn_at_least_and_no_more_once_it_is_done() -> None:
    commit_loop, clock, busy, active = stage_of(8)
    syncing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    syncing.set_result(None)
    await commit_loop._apply(active, callers_first=False, syncing=Beside(syncing))
    assert (sum(replica.turns for replica in busy), clock.now_s) == (1, TURN_SECONDS)


async def test_beside_a_long_sync_all_is_applied() -> None:
    commit_loop, clock, busy, active = stage_of(8)
    syncing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    applying = asyncio.ensure_future(commit_loop._apply(active, callers_first=False, syncing=Beside(syncing)))
    while clock.now_s < 10 * APPLY_SECONDS_MAX:
        await asyncio.sleep(0)
    for replica in busy:
        replica.has_to_apply = False
    syncing.set_result(None)
    await applying
    assert min(replica.turns for replica in busy) > 1


async def test_housekeeping_of_one_shard_yields_to_callers_of_another() -> None:
    commit_loop, _clock, (caller, chore), active = stage_of(2, chores=1)
    for _ in range(3):
        await commit_loop._apply(active, callers_first=True)
    assert caller.turns > 3
    assert chore.turns == 0
    syncing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    syncing.set_result(None)
    await commit_loop._apply(active, callers_first=False, syncing=Beside(syncing))
    assert chore.turns == 1, "it waits for no longer than the next sync"
    caller.callers_wait = caller.has_to_apply = False
    await commit_loop._apply(active, callers_first=True)
    assert chore.turns > 1


async def test_what_a_round_stages_is_bounded_for_the_node_and_everybody_gets_a_share() -> None:
    commit_loop, _clock, busy, active = stage_of(64)
    for _ in range(32):
        assert 0 < commit_loop._step(active, 0.0) <= ENTRIES_MAX + len(busy)
    for replica in busy:
        assert sum(replica.staged) > 0
        waits = "".join("x" if taken else " " for taken in replica.staged).strip("x").split("x")
        assert max(map(len, waits)) <= 3, "nobody is passed over again and again"
    for taken in zip(*(replica.staged for replica in busy), strict=True):
        assert sum(taken) * 10_000 <= BYTES_MAX + 10_000


async def test_a_shard_with_chores_in_every_round_has_its_turn_with_callers() -> None:
    """Some shards used up the entries of a round, and a chore of the others counted as their turn: they stayed last."""
    commit_loop, _clock, busy, active = stage_of(100)
    for replica in busy:
        replica.entry_bytes = 100
    for _ in range(20):
        commit_loop._step(active, 0.0)
    taken = [sum(replica.staged) for replica in busy]
    assert max(taken) <= 2 * min(taken)


async def test_who_could_not_send_is_first_in_the_next_round() -> None:
    """Also if all of them stage something in every round."""
    commit_loop, _clock, busy, active = stage_of(8)
    for replica in busy:
        replica.lacking_bytes = SEND_BYTES_MAX // 4
    for _ in range(20):
        commit_loop._step(active, 0.0)
    assert [replica.sent for replica in busy] == [10] * 8


def test_a_shard_on_its_own_may_take_as_much_as_ever() -> None:
    share = RoundBudget(busy=1).share()
    assert (share.entries, share.size_bytes) == (SHARD_ENTRIES_MAX, SHARD_BYTES_MAX)
    assert RoundBudget(busy=1).housekeeping_each == SHARD_HOUSEKEEPING_MAX


def test_a_share_is_a_part_but_not_too_small_and_ends_with_the_budget() -> None:
    assert RoundBudget(busy=4).share().size_bytes == BYTES_MAX // 4
    budget = RoundBudget(busy=1000)
    assert (budget.share().entries, budget.share().size_bytes) == (SHARD_ENTRIES_MIN, SHARD_BYTES_MIN)
    assert budget.housekeeping_each == 1
    budget.share().take(BYTES_MAX + 5)  # one entry is taken whatever its size
    assert not budget.share().has_room
    budget.send_bytes -= SEND_BYTES_MAX + 1
    assert budget.send_bytes_each == 0


async def test_what_a_round_delivers_is_bounded_in_bytes_and_in_time() -> None:
    commit_loop, clock, (busy,), _active = stage_of(1)
    large = bytes(ROUND_RECEIVED_BYTES_MAX // 4)
    commit_loop.receive("n2/x", [(0, 1, large)] * 10)
    commit_loop._deliver(0.0)
    assert busy.delivered == 4
    clock.now_s = 1.0  # it took long
    commit_loop._deliver(0.0)
    assert busy.delivered == 4
    commit_loop._deliver(clock.now_s)
    assert busy.delivered == 8
