"""A node made of the real parts on a simulated machine: its disk, its memory, its clocks and its thread.

The disk forgets what was not synced, the state forgets what was not flushed, blocking calls take virtual time, the wall
clock jumps, space runs out, and the power fails wherever the seed says.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from enum import Enum
from types import SimpleNamespace
from typing import Any, TypeVar
from unittest.mock import patch

from holdfast.broker import round_budget
from holdfast.broker.config import BrokerConfig
from holdfast.broker.metrics import Metrics
from holdfast.broker.replica import shard as shard_module
from holdfast.broker.replica.commit_loop import CommitLoop
from holdfast.broker.replica.shard import Shard
from holdfast.broker.scheduler import lines, scheduler
from holdfast.machine import keys
from holdfast.machine.kv import MemoryKV
from holdfast.storage import checkpoints
from holdfast.storage.checkpoints import Checkpointer
from holdfast.storage.disk_guard import DiskGuard
from holdfast.storage.rocksdb import StateError, StateFullError
from holdfast.wal.errors import DiskFailedError
from holdfast.wal.node_log import NodeLog
from tests.simulation.fake_disk import FakeDisk, SimulatedCrash
from tests.simulation.lone_replica import lone_replica
from tests.simulation.syncs import beside

START_SECONDS = 5.0  # how long a start may take before it is given up
START_WALL_MS = 1_800_000_000_000
DAY_MS = 24 * 3600 * 1000
ROOMY_BYTES = 1 << 40
CALM_SECONDS = 5.0  # how long after a start or a full disk overdue rows are forgiven
OVERDUE_MS = 4000
GRACE_SECONDS = 1.0  # for what is on its way when a node is stopped

Result = TypeVar("Result")

_METRICS = Metrics()
_CONFIG = BrokerConfig()


class BrokenPromiseError(AssertionError):
    """Something that Holdfast promises did not hold."""


class NodeDiedError(Exception):
    """The answer of a call will never come: the node is gone."""


class Ending(Enum):
    POWER_FAILS = "the power fails"
    KILLED = "the process is killed"
    SYNC_FAILS = "a sync fails"
    STOPPED = "it is stopped"


@dataclass(frozen=True)
class Plan:
    """What one seed does, apart from the choices made under way."""

    lives: int
    life_seconds: float  # about how long a process lives
    pause_seconds: float  # about how long a caller does nothing between two calls
    cuts_log: bool
    disk_fills: bool
    clock_jumps: bool
    outlasts_retention: bool
    sync_seconds: float  # about how long a write to the log takes
    flush_seconds: float  # about how long a flush of the state takes
    segment_bytes: int
    sweep_batch_tasks: int
    window_tasks: int
    refill_tasks: int
    windows_max: int
    claims_per_worker_max: int
    round_entries_max: int
    slice_steps: float  # how fast the time of a slice of applying runs out; 0: never

    @staticmethod
    def draw(rng: random.Random) -> Plan:
        life_seconds = rng.choice((0.1, 0.3, 1.0, 6.0))
        return Plan(
            lives=rng.randint(1, 4),
            life_seconds=life_seconds,
            pause_seconds=max(life_seconds / 6, 0.02),
            cuts_log=rng.random() < 0.65,
            disk_fills=rng.random() < 0.5,
            clock_jumps=rng.random() < 0.5,
            outlasts_retention=rng.random() < 0.1,
            sync_seconds=rng.choice((0.0, 0.0005, 0.004, 0.03)),
            flush_seconds=rng.choice((0.0, 0.03, 0.3)),
            segment_bytes=rng.choice((16, 24, 64)) * 1024,
            sweep_batch_tasks=rng.choice((1, 2, 5, 1000)),
            window_tasks=rng.choice((2, 5, 20, 4096)),
            refill_tasks=rng.choice((1, 2, 7, 256)),
            windows_max=rng.choice((1, 2, 10_000)),
            claims_per_worker_max=rng.choice((3, 5, 1000)),
            round_entries_max=rng.choice((1, 3, 256)),
            slice_steps=rng.choice((0.0, 0.0009, 0.003)),
        )

    def config(self) -> BrokerConfig:
        """Tighter than a node would accept, so that few tasks reach every limit."""
        return _CONFIG.model_copy(
            update={
                "ready_window_tasks": self.window_tasks,
                "sweep_batch_tasks": self.sweep_batch_tasks,
                "claims_per_worker_max": self.claims_per_worker_max,
                "batch_bytes_max": 2000,
                "finished_retention_ms": 10 * 60 * 1000,
                "dead_retention_ms": 10 * 365 * DAY_MS,
                "retry_base_ms": 20,
                "retry_cap_ms": 800,
            }
        )

    def applied(self, rng: random.Random) -> AbstractContextManager[None]:
        return constants(
            rng,
            self.slice_steps,
            (lines, "REFILL_TASKS", self.refill_tasks),
            (lines, "SUBQUEUE_REFILL_TASKS", min(self.refill_tasks, lines.SUBQUEUE_REFILL_TASKS)),
            (scheduler, "WINDOWS_MAX", self.windows_max),
            (round_budget, "SHARD_ENTRIES_MAX", self.round_entries_max),
        )


@contextmanager
def constants(rng: random.Random, slice_steps: float, *values: tuple[object, str, object]) -> Iterator[None]:
    """Sets those of the code under test. What applying takes is drawn."""
    elapsed = 0.0

    def perf_counter() -> float:
        nonlocal elapsed
        elapsed += rng.random() * slice_steps
        return elapsed

    with ExitStack() as stack:
        for module, name, value in (
            *values,
            (shard_module, "time", SimpleNamespace(perf_counter=perf_counter, monotonic=_loop_time)),
            (checkpoints, "_log", SimpleNamespace(debug=_say_nothing, warning=_say_nothing)),
        ):
            stack.enter_context(patch.object(module, name, value))
        yield


def _loop_time() -> float:
    return asyncio.get_running_loop().time()


def _say_nothing(*_args: object, **_fields: object) -> None:
    """Flushes that fail are part of the story; thousands of lines about them are not."""


class VolatileKV:
    """What RocksDB is without its write-ahead log: after a crash, some prefix of the batches since the last flush."""

    def __init__(self) -> None:
        self._view = MemoryKV()
        self._kept: dict[bytes, bytes] = {}
        self._unkept: list[dict[bytes, bytes | None]] = []
        self.fail_next_flush = False
        self.writes_left: int | None = None  # the power fails at the write after these
        self.is_full = False

    def get(self, key: bytes) -> bytes | None:
        return self._view.get(key)

    def get_many(self, wanted: list[bytes]) -> list[bytes | None]:
        return self._view.get_many(wanted)

    def scan(self, start: bytes, stop: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        return self._view.scan(start, stop, limit)

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        if self.writes_left is not None:
            if not self.writes_left:
                raise SimulatedCrash
            self.writes_left -= 1
        if self.is_full:
            raise StateFullError("there is no room for the simulated state")
        batch = dict(changes)
        self._view.write(batch)
        self._unkept.append(batch)

    def flush(self) -> None:
        if self.fail_next_flush:
            self.fail_next_flush = False
            raise StateError("the simulated state could not be flushed")
        self._keep(len(self._unkept))

    def crash(self, rng: random.Random) -> None:
        """A flush in the background may have kept more than the last explicit one."""
        count = len(self._unkept)
        self._keep(rng.choice((0, rng.randint(0, count), count)))
        self._unkept.clear()
        self._view = MemoryKV(self._kept)
        self.writes_left = None
        self.fail_next_flush = self.is_full = False

    def _keep(self, count: int) -> None:
        for batch in self._unkept[:count]:
            for key, value in batch.items():
                if value is None:
                    self._kept.pop(key, None)
                else:
                    self._kept[key] = value
        del self._unkept[:count]


class SimulatedTime:
    """The machine's clocks: a TimeSource whose wall clock can be set."""

    def __init__(self) -> None:
        self.wall_offset_ms = 0

    def monotonic_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    def wall_ms(self) -> int:
        return START_WALL_MS + self.monotonic_ms() + self.wall_offset_ms


@dataclass
class Machine:
    """What outlives a process."""

    plan: Plan
    rng: random.Random
    disk: FakeDisk
    kv: VolatileKV
    time: SimulatedTime


class SimulatedProcess:
    """What callers see of a node, what it does by itself, and its end, whichever that is."""

    watch_seconds: float
    checkpointer: Checkpointer

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._calls: dict[asyncio.Task[Any], None] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self.is_dead = False
        self.power_fails = False
        self.going = asyncio.Event()  # not set: it is stopped, as by SIGSTOP
        self.going.set()
        # Why the process cannot go on; None when it was killed or the power has failed.
        self.ended: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()

    async def call(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Runs a caller's request until it ends or the node does."""
        task = asyncio.ensure_future(work)
        self._calls[task] = None
        try:
            return await task
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if self.is_dead and current is not None and not current.cancelling():
                raise NodeDiedError from None
            raise
        finally:
            self._calls.pop(task, None)

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        def note_end(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                has_no_power = isinstance(error, SimulatedCrash)
                self.end(None if has_no_power else error, power_fails=has_no_power)

        task = asyncio.ensure_future(work)
        task.add_done_callback(note_end)
        self._tasks.append(task)

    def end(self, failure: BaseException | None, *, power_fails: bool = False) -> None:
        if not self.ended.done():
            self.power_fails = power_fails
            self.ended.set_result(failure)

    async def end_all(self, shards: Iterable[Shard]) -> None:
        """The process is gone from one moment to the next."""
        self.is_dead = True
        doomed = [*self._calls, *self._tasks]
        led = [leading for shard in shards if (leading := shard.leading) is not None]
        parts = [part for leading in led for part in leading.parts()]
        for task in doomed:
            task.cancel()
        for part in parts:
            part.cancel()
        await asyncio.gather(*doomed, *(part.stop() for part in parts), return_exceptions=True)

    async def run_blocking(self, function: Callable[[], None], seconds: float) -> None:
        """A thread that takes a while, before and after it has done its work."""
        await self.take_a_while(seconds)
        if self.is_dead:
            raise asyncio.CancelledError
        try:
            function()
        except SimulatedCrash:
            self.end(None, power_fails=True)
            await asyncio.get_running_loop().create_future()  # such a call never returns
        await self.take_a_while(seconds)
        await self.going.wait()

    async def take_a_while(self, seconds: float) -> None:
        if seconds:
            await asyncio.sleep(self._rng.expovariate(1 / seconds))
        for _ in range(self._rng.randrange(3)):
            await asyncio.sleep(0)

    async def checkpoint_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(self.watch_seconds * self._rng.random())
            await self.checkpointer.poll()


class Node(SimulatedProcess):
    """One process, from its start to its end."""

    def __init__(self, machine: Machine, queues: list[bytes]) -> None:
        super().__init__(machine.rng)
        self._machine = machine
        self._queues = queues
        self._calm_since = asyncio.get_running_loop().time()
        self.watch_seconds = min(1.0, machine.plan.life_seconds / 4)
        self.config = machine.plan.config()

    def recover(self) -> None:
        """Opens the log. SimulatedCrash passes through."""
        machine = self._machine
        self.log = NodeLog.open(
            machine.disk, segment_bytes=machine.plan.segment_bytes, random_bytes=machine.rng.randbytes
        )

    async def serve(self) -> None:
        """Applies what is in the log and begins to serve. Raises NodeDiedError if that takes too long: the disk has no
        room for the first entry."""
        machine, loop = self._machine, asyncio.get_running_loop()
        self.guard = DiskGuard(machine.disk.free_bytes, 0)
        self.commit_loop = CommitLoop(
            self.log,
            _METRICS,
            begin_sync=beside(lambda function: self.run_blocking(function, machine.plan.sync_seconds)),
            disk=self.guard,
            monotonic=loop.time,
        )
        self.replica = lone_replica(
            self.log, machine.kv, self.commit_loop, self.guard, machine.time, self.config, _METRICS,
            monotonic=loop.time, draw=machine.rng.random,
        )  # fmt: skip
        self.shard = self.replica.shard
        self.checkpointer = Checkpointer(
            self.log,
            lambda: [self.replica],
            log_bytes_max=machine.rng.choice((1, 20_000, 1 << 30)),
            age_seconds_max=machine.rng.choice((0.1, 1.0)),
            keep_bytes=0,
            run_blocking=lambda function: self.run_blocking(function, machine.plan.flush_seconds),
            monotonic=loop.time,
        )
        self.begin(self.commit_loop.run())
        await self._until_it_serves()
        machine.kv.writes_left = None
        self.begin(self._watch())
        self.begin(self._look_after_promises())
        if machine.plan.cuts_log:
            self.begin(self.checkpoint_now_and_then())

    async def _until_it_serves(self) -> None:
        starting = asyncio.ensure_future(self._next_rounds())
        either: list[asyncio.Future[Any]] = [starting, self.ended]
        await asyncio.wait(either, timeout=START_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            raise NodeDiedError

    async def _next_rounds(self) -> None:
        while not self.shard.serves:
            await self.replica.next_round()

    @property
    def kv(self) -> VolatileKV:
        return self._machine.kv

    async def _until_ended_or(self, task: asyncio.Task[None]) -> None:
        either: list[asyncio.Future[Any]] = [task, self.ended]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)

    async def kill(self) -> None:
        await self.end_all([self.shard] if hasattr(self, "shard") else [])

    async def stop(self) -> None:
        """As a node stops on SIGTERM, unless it comes to another end meanwhile."""
        stopping = asyncio.ensure_future(self._stop())
        await self._until_ended_or(stopping)
        stopping.cancel()
        await asyncio.wait([stopping])
        if not stopping.cancelled():
            stopping.result()

    async def _stop(self) -> None:
        self.shard.drain()
        if self._calls:
            await asyncio.wait([*self._calls], timeout=GRACE_SECONDS)
        await self.shard.stop()
        self.commit_loop.stop()
        done, _ = await asyncio.wait([self._tasks[0]], timeout=GRACE_SECONDS)
        if not done:
            return  # the state takes nothing; the log has everything
        if self._machine.plan.cuts_log:
            await self.checkpointer.flush_all()
        try:
            self.log.close(clean=True)
        except SimulatedCrash:
            self.end(None, power_fails=True)

    async def _watch(self) -> None:
        """As the node does it, once a second."""
        while True:
            if self.guard.poll():
                self.shard.serve_all_waiters()
            if self.guard.refusing:
                self._calm_since = asyncio.get_running_loop().time()
            failure = self.shard.failed()
            if failure is not None:
                raise failure
            await asyncio.sleep(self.watch_seconds)

    # --- promises that hold at every moment -------------------------------------------------------------------

    async def _look_after_promises(self) -> None:
        loop = asyncio.get_running_loop()
        started_at, started_ms = loop.time(), self.shard.now_ms()
        while True:
            await asyncio.sleep(self.watch_seconds * 0.2)
            self._check_pace((loop.time() - started_at) * 1000, self.shard.now_ms() - started_ms)
            self._check_overdue()
            await self._check_waiters()

    def _check_pace(self, real_ms: float, shard_ms: int) -> None:
        if not 0.9 * real_ms - 3 <= shard_ms <= 1.1 * real_ms + 3:
            raise BrokenPromiseError(f"shard time went {shard_ms} ms forward in {real_ms} ms")

    def _check_overdue(self) -> None:
        """No sweep has passed over a row."""
        if self.guard.refusing:
            self._calm_since = asyncio.get_running_loop().time()
        if asyncio.get_running_loop().time() - self._calm_since < CALM_SECONDS:
            return
        now_ms = self.shard.now_ms()
        for family in (keys.CLAIM_EXPIRY, keys.DUE):
            rows = self._machine.kv.scan(keys.family_start(family), keys.timed_from(family, now_ms - OVERDUE_MS), 1)
            if rows:
                late_ms = now_ms - keys.timed(rows[0][0])[0]
                raise BrokenPromiseError(f"a row of family {family} is {late_ms} ms overdue")

    async def _check_waiters(self) -> None:
        """Nobody waits for a task while there is one and nothing is on its way."""
        seen = self._waiting_in_vain()
        if seen:
            applied_index = self.shard.applied_index
            await asyncio.sleep(0.001)
            if seen & self._waiting_in_vain() and applied_index == self.shard.applied_index:
                raise BrokenPromiseError(f"a reserve call waits although a task is ready in {sorted(seen)}")

    def _waiting_in_vain(self) -> set[bytes]:
        if self.shard.proposals_waiting or self.guard.refusing:
            return set()
        found = set()
        for queue in self._queues:
            row = self.shard.queue(queue)
            # Suspects wait for a worker that holds nothing, and not every one that waits does.
            if row is not None and row.in_line and self.shard.waiting_for(queue):
                found.add(queue)
        return found


async def make_trouble(machine: Machine, node: Node, ending: Ending) -> None:
    """Everything that goes wrong while a node serves, until it is time for its end, which it brings about."""
    rng, disk, plan = machine.rng, machine.disk, machine.plan
    loop = asyncio.get_running_loop()
    end_at = loop.time() + rng.expovariate(1 / plan.life_seconds)
    if ending is Ending.POWER_FAILS and rng.random() < 0.7:
        disk.crash_after(int(rng.expovariate(1 / 30)))
        end_at += plan.life_seconds
    while loop.time() < end_at and not node.ended.done():
        await _first(node.ended, min(rng.expovariate(4 / plan.life_seconds), end_at - loop.time()))
        if plan.disk_fills and rng.random() < 0.3:
            free = rng.randrange(2 * plan.segment_bytes)
            disk.capacity_bytes += free - disk.free_bytes()
            machine.kv.is_full = rng.random() < 0.3
        elif rng.random() < 0.5:
            disk.capacity_bytes = ROOMY_BYTES
            machine.kv.is_full = False
        if plan.clock_jumps and rng.random() < 0.3:
            machine.time.wall_offset_ms += rng.choice((-DAY_MS, DAY_MS, -5000, 5000, -700, 700))
        machine.kv.fail_next_flush = rng.random() < 0.05
    if ending is Ending.SYNC_FAILS:
        disk.fail_next_sync = True
        await _first(node.ended, 1.0)


async def _first(event: Awaitable[object], seconds: float) -> None:
    await asyncio.wait([asyncio.ensure_future(event)], timeout=seconds)


def is_expected(failure: BaseException | None) -> bool:
    """Whether a process may end like this: the power failed or the disk did. Everything else is a bug."""
    return failure is None or isinstance(failure, DiskFailedError)
