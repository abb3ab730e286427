"""How long a worker of the library behind a router gets nothing of a shard whose leader is gone (SIGKILL) or stands
still (SIGSTOP).

Eight shards, each with a queue. A producer goes on enqueueing to all of them through the router, a worker works on all
of them. What is measured, of each shard that the node led, is from the signal until the worker begins with a task that
was sent after it: the election, the way of producer and worker to the new leader, and the hand-out.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable

from harness.bench import Bench
from harness.failovers import aims, all_trials, fail_over
from harness.mapped import MappedCluster
from harness.probes import calibration_ms
from harness.results import BrokenRunError, Measured, reasons
from holdfast.client import Call, Holdfast, HoldfastError, Worker
from holdfast.routing.homes import home_shard

SHARDS = 8
TASKS_PER_S = 20.0  # of each shard
TASK_SECONDS_MAX = 30.0
SLOTS = 32
PAUSE_SECONDS = 1.0  # before a signal, so that everything goes its usual way
WHAT = "task"

AIMS = aims(WHAT, 1.0, 2.0)


class Traffic:
    """A producer and a worker of every shard, and when the worker began with what was sent when."""

    def __init__(self, address: str) -> None:
        self.app = Holdfast(address)
        self._calls = [self._call_of(shard) for shard in range(SHARDS)]
        self._waiting: dict[tuple[int, float], asyncio.Future[float]] = {}
        self._stopping = False
        self.enqueued = self.handled = 0

    def _call_of(self, shard: int) -> Callable[[float], Call[None]]:
        queue = next(name for name in (f"q{number}" for number in range(1_000)) if home_shard(name, SHARDS) == shard)

        @self.app.task(queue=queue, name=f"on-{shard}")
        async def handle(sent_s: float) -> None:
            self._handled(shard, sent_s)

        return handle.call

    def _handled(self, shard: int, sent_s: float) -> None:
        self.handled += 1
        now_s = time.monotonic()
        for (wanted, since_s), waiting in self._waiting.items():
            if wanted == shard and sent_s >= since_s and not waiting.done():
                waiting.set_result(now_s)

    async def produce(self) -> None:
        """Returns once it is stopped and everything is accepted."""
        async with asyncio.TaskGroup() as group:
            while not self._stopping:
                for call in self._calls:
                    group.create_task(self._enqueue(call))
                    await asyncio.sleep(1 / TASKS_PER_S / SHARDS)

    async def _enqueue(self, call: Callable[[float], Call[None]]) -> None:
        await self.app.enqueue_async(call(time.monotonic()))
        self.enqueued += 1

    def stop(self) -> None:
        self._stopping = True

    async def next_handled_s(self, shard: int) -> float:
        """When the worker began with the first of the tasks of a shard that are sent from now on."""
        key = shard, time.monotonic()
        self._waiting[key] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(TASK_SECONDS_MAX):
                return await self._waiting[key]
        except TimeoutError:
            raise BrokenRunError(f"no task of shard {shard} was handled for {TASK_SECONDS_MAX:g} s") from None
        finally:
            del self._waiting[key]

    async def next_handled_of(self, shards: Iterable[int]) -> list[float]:
        return await asyncio.gather(*map(self.next_handled_s, shards))

    async def all_handled(self) -> None:
        ends_s = time.monotonic() + TASK_SECONDS_MAX
        while self.handled < self.enqueued:
            if time.monotonic() > ends_s:
                raise BrokenRunError(f"of {self.enqueued} tasks only {self.handled} were handled")
            await asyncio.sleep(0.1)


async def measure(bench: Bench) -> Measured:
    measured = Measured()
    before_ms = calibration_ms()
    async with bench.mapped_cluster(shards=SHARDS) as cluster:
        traffic = Traffic(cluster.router.address)
        worker = Worker(traffic.app, concurrency=SLOTS, name="bench")
        try:
            async with asyncio.TaskGroup() as group:
                working = group.create_task(_serve(worker.serve))
                producing = group.create_task(traffic.produce())
                await all_trials(bench, measured, WHAT, lambda kind: _trial(cluster, traffic, kind))
                traffic.stop()
                await producing
                await traffic.all_handled()
                worker.stop()
                await working
        except* (BrokenRunError, HoldfastError) as broken:
            raise BrokenRunError(reasons(broken)) from None
        traffic.app.close()
        await cluster.wait_whole()
        await cluster.stop()
    measured.calibration_ms = [before_ms, calibration_ms()]
    measured.counts["enqueued"] = traffic.enqueued
    return measured


async def _serve(serve: Callable[[], Awaitable[object]]) -> None:
    await serve()


async def _trial(cluster: MappedCluster, traffic: Traffic, kind: str) -> Measured:
    await traffic.next_handled_of(range(SHARDS))
    await asyncio.sleep(PAUSE_SECONDS)
    leaders = await cluster.leaders()
    victim = max(cluster.nodes, key=lambda name: list(leaders.values()).count(name))
    led = [shard for shard, name in leaders.items() if name == victim]
    part, _ = await fail_over(cluster, victim, kind, WHAT, lambda: traffic.next_handled_of(led))
    return part
