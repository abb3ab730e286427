"""Many shards that are all busy, on nodes without any fault: who leads goes on leading, and every write is answered.

Real rounds, replicas, engines and logs on virtual time. What is modelled is that applying takes time, and how long the
disks take for a sync.
"""

import asyncio
import random
from collections import Counter
from dataclasses import replace

import pytest

from holdfast.broker.replica import shard as shard_module
from holdfast.broker.replica.commit_loop import Sync
from holdfast.broker.replica.replica import Replica
from holdfast.machine.entries import Enqueue
from holdfast.serving.refusals import OutcomeUnknownError, RefusedError
from tests.simulation import group_world, virtual_time
from tests.simulation.group_plan import Plan
from tests.simulation.group_world import Machine, Network, Node, PausableRounds, Watch, WatchedShard
from tests.unit.machine.machine_shard import new_task

SECONDS = 5.0
CALLERS = 2  # of each shard


class BusyShard(WatchedShard):
    """As long as there is something to apply, it takes all the time that it may."""

    turn_seconds = shard_module.APPLY_SECONDS_MAX

    async def apply_committed(self, *, callers_first: bool = False) -> bool:
        if self._replicator.ready_index > self.applied_index:
            await asyncio.sleep(self.turn_seconds)
        return await super().apply_committed(callers_first=callers_first)


class BusyCluster:
    """Three nodes with many shards, and callers who never pause."""

    def __init__(self, shards: int, sync_seconds: float) -> None:
        self._shards = range(shards)
        plan = replace(
            Plan.draw(random.Random(7)), nodes=3, loss=0.0, repetition=0.0, no_room=0.0, latency_seconds=0.0005,
            sync_seconds=sync_seconds, apply_pause_seconds=0.0, flush_age_seconds=1000.0, flush_bytes=1 << 30,
        )  # fmt: skip
        self.watch = Watch()
        machines = [Machine(number + 1, random.Random(number)) for number in range(3)]
        network = Network(random.Random(1), plan)
        self.nodes = [
            Node(plan, machine, network, self.watch, [machine.identity for machine in machines]) for machine in machines
        ]
        self.answers: Counter[str] = Counter()
        self.answered: Counter[int] = Counter()  # by shard

    def _leader(self, shard: int) -> WatchedShard | None:
        led = [node.replicas[shard].shard for node in self.nodes if shard in node.replicas]
        serving = [shard for shard in led if shard.serves]
        return serving[0] if serving else None  # type: ignore[return-value]

    async def _produce(self, number: int) -> None:
        while True:
            shard = self._leader(number)
            if shard is None:
                await asyncio.sleep(0.02)
                continue
            try:
                await shard.submit(Enqueue(shard.now_ms(), [new_task(envelope=b"x" * 100)]))
            except OutcomeUnknownError:
                self.answers["unknown"] += 1
            except RefusedError:
                self.answers["refused"] += 1
                await asyncio.sleep(0.02)
            else:
                self.answers["accepted"] += 1
                self.answered[number] += 1

    async def run(self) -> None:
        for node in self.nodes:
            node.start()
        while not all(self._leader(number) for number in self._shards):
            await asyncio.sleep(0.1)
        before = len(self.watch.leaders)
        calls = [asyncio.ensure_future(self._produce(number)) for number in self._shards for _ in range(CALLERS)]
        await asyncio.sleep(SECONDS)
        self.leader_changes = len(self.watch.leaders) - before
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        for node in self.nodes:
            node.end(None)
            await node.kill()


class SilentRounds(PausableRounds):
    """Signs of life wait for the end of a round."""

    def _beat(self) -> None:
        """Not in the middle."""


class UnfairRounds(SilentRounds):
    """Every shard has its time in each round."""

    async def apply(self, active: list[Replica], *, callers_first: bool, syncing: Sync | None = None) -> None:
        for replica in active:
            await replica.apply(callers_first=callers_first)


def run(
    shards: int, sync_seconds: float, monkeypatch: pytest.MonkeyPatch, rounds: type[PausableRounds] = PausableRounds
) -> BusyCluster:
    monkeypatch.setattr(group_world, "SHARDS", tuple(range(shards)))
    monkeypatch.setattr(group_world, "WatchedShard", BusyShard)
    monkeypatch.setattr(group_world, "PausableRounds", rounds)

    async def whole() -> BusyCluster:
        cluster = BusyCluster(shards, sync_seconds)
        await cluster.run()
        return cluster

    return virtual_time.run(whole, 1)


@pytest.mark.parametrize("shards", [24, 64])
def test_busy_shards_keep_their_leaders(shards: int, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = run(shards, 0.0005, monkeypatch)
    assert cluster.leader_changes == 0
    assert set(cluster.answers) == {"accepted"}
    assert len(cluster.answered) == shards, "nobody starves"
    assert max(cluster.answered.values()) <= 2 * min(cluster.answered.values())


@pytest.mark.parametrize("sync_seconds", [0.1, 0.11, 0.13, 0.15])
def test_slow_syncs_of_all_disks_cost_no_leader(sync_seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sync takes a second now and then, more than twice what a leader or a follower may be silent."""
    cluster = run(4, sync_seconds, monkeypatch)
    assert cluster.leader_changes == 0
    assert set(cluster.answers) == {"accepted"}


def test_giving_every_shard_its_time_in_each_round_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BusyShard, "turn_seconds", 0.02)
    assert run(24, 0.0005, monkeypatch, UnfairRounds).leader_changes > 0


def test_signs_of_life_that_wait_for_the_end_of_a_round_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    # With slower syncs leaders step down as well, but nobody is elected before the end, so nothing would change.
    assert any(run(4, seconds, monkeypatch, SilentRounds).leader_changes for seconds in (0.11, 0.13))
