"""Whole shards under load on virtual time, through crashes of every kind, all chosen by seed.

Real rounds, scheduler, sweeps, waiters, log, recovery and checkpoints on a simulated machine (world.py). Simulated
callers note what they were told (ledger.py, actors.py). After each crash the node must stand by it, and in the end,
when everything works again, every task must reach its end in time.

SEEDS=5000 START=100000 runs other seeds than the usual ones.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from holdfast.broker.leader import reserver as reserving
from holdfast.broker.leader import timers
from holdfast.broker.leader.clock import ShardClock
from holdfast.broker.leader.reserver import Reserver
from holdfast.broker.leader.sweeps import Sweep
from holdfast.broker.scheduler.scheduler import Scheduler
from holdfast.machine.draft import Draft
from holdfast.machine.entries import Mark
from holdfast.machine.handlers import claiming
from holdfast.machine.kv import MemoryKV, state_hash
from holdfast.machine.outcomes import Claimed, Outcome
from holdfast.serving.refusals import RefusedError
from holdfast.storage.startup_checks import RecoveryError
from holdfast.wal.errors import LogError
from tests.long import IS_LONG
from tests.simulation import lone_replica, virtual_time, world
from tests.simulation.actors import QUEUES, Actor, Finisher, Operator, Producer, Worker, live_tasks, unforgotten_rows
from tests.simulation.fake_disk import FakeDisk, SimulatedCrash
from tests.simulation.ledger import Ledger
from tests.simulation.lone_replica import SHARD, replay
from tests.simulation.shard_ablations import AnswersBeforeTheSync, CutsWhatTheFlushDidNotReach
from tests.simulation.world import (
    ROOMY_BYTES,
    BrokenPromiseError,
    Ending,
    Machine,
    Node,
    NodeDiedError,
    Plan,
    SimulatedTime,
    VolatileKV,
    is_expected,
    make_trouble,
)

SEEDS = int(os.environ.get("SEEDS", "64" if IS_LONG else "12"))
START = int(os.environ.get("START", "0"))
SEEDS_OF_AN_ABLATION = 100
DRAIN_SECONDS = 40.0
TTL_EXPIRE_SECONDS = 45 * 60.0


class Simulation:
    """One seed: a machine, the processes that run on it one after the other, and their callers."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.rng = rng
        self.plan = Plan.draw(rng)
        disk = FakeDisk(random.Random(rng.random()))
        self.machine = Machine(self.plan, rng, disk, VolatileKV(), SimulatedTime())
        self.ledger = Ledger(self.plan.claims_per_worker_max)
        self.recoveries = 0
        self._labels = 0
        self._node: Node | None = None
        self._serving = asyncio.Event()

    async def serving(self) -> Node:
        while self._node is None or self._node.is_dead:
            await self._serving.wait()
        return self._node

    def new_label(self) -> bytes:
        self._labels += 1
        return b"order-%d" % self._labels

    async def run(self) -> None:
        actors: list[Actor] = [Producer(self, self._draw(), b"producer-%d" % number) for number in range(2)]
        actors += [Worker(self, self._draw(), b"worker-%d" % number) for number in range(3)]
        actors.append(Operator(self, self._draw(), b"operator"))
        acting = [asyncio.ensure_future(actor.run()) for actor in actors]
        for _ in range(self.plan.lives):
            await self._live(self.rng.choice(list(Ending)))
            _raise_failures(acting)
        await self._start(calm=True)
        await asyncio.sleep(self.rng.expovariate(1 / self.plan.life_seconds))
        _raise_failures(acting)
        for task in acting:
            task.cancel()
        await asyncio.gather(*acting, return_exceptions=True)
        await self._finish()

    def _draw(self) -> random.Random:
        return random.Random(self.rng.random())

    # --- lives ------------------------------------------------------------------------------------------------

    async def _live(self, ending: Ending) -> None:
        """One process from its start to its end."""
        node = await self._start(calm=False)
        trouble = asyncio.ensure_future(make_trouble(self.machine, node, ending))
        await trouble
        if ending is Ending.STOPPED and not node.ended.done():
            self._hide()
            await node.stop()
        await self._end(node, power_fails=ending is Ending.POWER_FAILS or self.rng.random() < 0.3)

    async def _end(self, node: Node, *, power_fails: bool) -> None:
        failure = node.ended.result() if node.ended.done() else None
        if not is_expected(failure):
            assert failure is not None
            raise failure
        if failure is not None:
            node.shard.give_up()
        self._hide()
        await node.kill()
        self._lose(power_fails=power_fails)
        await asyncio.sleep(self.rng.choice((0.001, 0.5, 3)))

    def _hide(self) -> None:
        """No more calls."""
        self._serving.clear()
        self._node = None

    def _lose(self, *, power_fails: bool) -> None:
        machine = self.machine
        if power_fails:
            machine.disk.crash()
        else:
            machine.disk.restart()
        machine.kv.crash(self.rng)

    async def _start(self, *, calm: bool) -> Node:
        """Starts until it works: starts are interrupted, too, and need room."""
        while True:
            if not calm and self.rng.random() < 0.2:
                self.machine.disk.crash_after(self.rng.randrange(8))
            if not calm and self.rng.random() < 0.2:
                self.machine.kv.writes_left = self.rng.randrange(5)
            if calm or self.rng.random() < 0.9:
                self.machine.disk.capacity_bytes = ROOMY_BYTES
            node = Node(self.machine, QUEUES)
            try:
                node.recover()
                await node.serve()
                self._check_recovered(node)
            except SimulatedCrash:
                self._lose(power_fails=True)
            except (NodeDiedError, RefusedError):
                await self._end(node, power_fails=True)
            else:
                self._node = node
                self._serving.set()
                return node

    def _check_recovered(self, node: Node) -> None:
        self.recoveries += 1
        self.ledger.check_state(self.machine.kv)
        if node.log.first_index(SHARD) == 1 and node.shard.applied_index == node.log.last_index(SHARD):
            replayed = MemoryKV()
            replay(node.log, replayed)
            if state_hash(replayed) != state_hash(self.machine.kv):
                raise BrokenPromiseError("replaying the whole log gives another state")

    # --- the end ----------------------------------------------------------------------------------------------

    async def _finish(self) -> None:
        """Everything works again: all that was accepted must end in time, and be forgotten in time."""
        node = await self.serving()
        node.watch_seconds = 1.0
        operator = Operator(self, self._draw(), b"operator")
        await operator.revive(operator.dead(node))
        wait_ms = int(DRAIN_SECONDS * 2000)
        lines = [[QUEUES[0]], [QUEUES[1]], QUEUES[:2], QUEUES, QUEUES[::-1]]
        finishers = [Finisher(self, self._draw(), b"finisher-%d" % n, line, wait_ms) for n, line in enumerate(lines)]
        finishing = [asyncio.ensure_future(finisher.run()) for finisher in finishers]
        await self._wait_until(node, lambda: not live_tasks(node), DRAIN_SECONDS, finishing)
        for task in finishing:
            task.cancel()
        await asyncio.gather(*finishing, return_exceptions=True)
        await operator.discard(operator.dead(node))
        self.ledger.check_end(self.machine.kv)
        if self.plan.outlasts_retention:
            node.watch_seconds = 60.0
            await self._wait_until(node, lambda: not unforgotten_rows(node), TTL_EXPIRE_SECONDS, [])
        await node.stop()
        await node.kill()

    async def _wait_until(
        self, node: Node, is_done: Callable[[], bool], seconds: float, working: list[asyncio.Task[None]]
    ) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while not is_done():
            _raise_failures(working)
            if node.ended.done():
                failure = node.ended.result()
                raise failure if failure is not None else BrokenPromiseError("the node has ended")
            if loop.time() > deadline:
                raise BrokenPromiseError(f"after {seconds} s this is left: {self.ledger.describe(self.machine.kv)}")
            await asyncio.sleep(seconds / 200)


def _raise_failures(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        if task.done():
            task.result()


def simulate(seed: int) -> Simulation:
    async def main() -> Simulation:
        simulation = Simulation(seed)
        with simulation.plan.applied(random.Random(seed)):
            await simulation.run()
        return simulation

    return virtual_time.run(main, seed)


def test_every_promise_holds_through_every_crash() -> None:
    claims = recoveries = 0
    for seed in range(START, START + SEEDS):
        try:
            simulation = simulate(seed)
        except BaseException:
            print(f"seed {seed} failed; it alone: START={seed} SEEDS=1 pytest {__file__} -k promise")
            raise
        claims += simulation.ledger.claims
        recoveries += simulation.recoveries
    assert claims > 20 * SEEDS, "the histories do too little to mean anything"
    assert recoveries > 2 * SEEDS


def test_a_seed_is_one_history(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reserving, "draw_secret", lambda: 1)  # no part of a history
    first, second = simulate(START), simulate(START)
    assert first.ledger.describe(first.machine.kv) == second.ledger.describe(second.machine.kv)
    assert state_hash(first.machine.kv) == state_hash(second.machine.kv)


# --- The checks can fail: each of these breaks one thing, and must be caught ------------------------------------------


class DiskWithoutSync(FakeDisk):
    def fdatasync(self, handle: int) -> None:
        self._change()


class PassesOverRows(Sweep):
    def arm(self, when_ms: int) -> None:
        cursor = self._cursor
        super().arm(when_ms)
        self._cursor = cursor


class BelievesTheWall(ShardClock):
    def now_ms(self) -> int:
        return int(self._source.wall_ms())


def raise_blindly(draft: Draft, mark: Mark, raise_mark: Callable[[Draft, Mark], None] = claiming.raise_mark) -> None:
    """Without looking at the version of the mark."""
    raise_mark(draft, mark._replace(mark_version=draft.queue(mark.queue).mark_version))


def all_claims(_reserver: Reserver, outcomes: Sequence[Outcome]) -> list[Claimed]:
    """Also those that are on their way back."""
    return [outcome for outcome in outcomes if isinstance(outcome, Claimed)]


def fills(plan: Plan) -> bool:
    return plan.disk_fills


@dataclass(frozen=True)
class Ablation:
    """What is put in the place of what. Histories in which it plays no role are passed over. A seed that is known to
    find it out is tried first; a change of the code may give it another history."""

    where: object
    name: str
    instead: object
    known_seed: int = 0
    matters: Callable[[Plan], bool] = lambda _plan: True

    def is_caught(self) -> bool:
        """Whether some history fails."""
        seeds = (seed for seed in itertools.count() if self.matters(Plan.draw(random.Random(seed))))
        for seed in itertools.chain([self.known_seed], itertools.islice(seeds, SEEDS_OF_AN_ABLATION)):
            try:
                simulate(seed)
            except (BrokenPromiseError, RecoveryError, LogError):
                return True
        return False


ABLATIONS = {
    "a disk that does not sync": Ablation(sys.modules[__name__], "FakeDisk", DiskWithoutSync),
    "acknowledging before the sync": Ablation(
        world, "CommitLoop", AnswersBeforeTheSync, 5, lambda plan: not plan.disk_fills
    ),
    "raising marks without looking at their version": Ablation(claiming, "raise_mark", raise_blindly, 38),
    "a sweep that passes over rows": Ablation(
        timers, "Sweep", PassesOverRows, 27, lambda plan: plan.life_seconds > 1 and plan.sync_seconds > 0.001
    ),
    "a sweep that nobody wakes": Ablation(Sweep, "arm", lambda _sweep, _when_ms: None),
    "tasks that were picked in vain and are not given back": Ablation(Scheduler, "give_back", Scheduler.settle, 12),
    "a scheduler that outlives a round without room": Ablation(Scheduler, "reset", lambda _scheduler: None, 17, fills),
    "waiters that nobody wakes": Ablation(Reserver, "serve_waiters", lambda _reserver, _queue: None),
    "answering with claims that are on their way back": Ablation(Reserver, "still_held", all_claims, 111),
    "cutting what the flush did not reach": Ablation(
        world, "Checkpointer", CutsWhatTheFlushDidNotReach, 11, lambda plan: plan.cuts_log and plan.flush_seconds > 0.1
    ),
    "a clock that believes the wall": Ablation(
        lone_replica, "ShardClock", BelievesTheWall, 0, lambda plan: plan.clock_jumps
    ),
}


@pytest.mark.parametrize("name", ABLATIONS)
def test_what_must_not_be_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ablation = ABLATIONS[name]
    monkeypatch.setattr(ablation.where, ablation.name, ablation.instead)
    assert ablation.is_caught()
