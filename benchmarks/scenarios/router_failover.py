"""How long a worker of the library behind a router gets nothing of a shard whose leader is gone (SIGKILL) or stands
still (SIGSTOP).

Eight shards, each with a queue. A producer goes on enqueueing to all of them through the router, a worker works on all
of them. What is measured, of each shard that the node led, is from the signal until the worker begins with a task that
was sent after it: the election, the way of producer and worker to the new leader, and the hand-out.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

from harness.bench import Bench
from harness.mapped import MappedCluster
from harness.probes import NoiseMeter, calibration_ms
from harness.results import Aim, BrokenRunError, Measured, Target, reasons
from holdfast.client import Call, Holdfast, HoldfastError, Worker
from holdfast.routing.homes import home_shard
from scenarios.failover import KILL, LAG_ENTRIES_MAX, STOP

SHARDS = 8
TASKS_PER_S = 20.0  # of each shard
TASK_SECONDS_MAX = 30.0
SLOTS = 32
PAUSE_SECONDS = 1.0  # before a signal, so that everything goes its usual way
_KINDS = (KILL, STOP)

AIMS = tuple(
    aim
    for kind in _KINDS
    for aim in (
        Aim(f"{kind}, next task", "s", Target(1.0)),
        Aim(f"{kind}, slowest of all", "s", Target(2.0)),
        Aim(f"{kind}, next leader", "s"),
    )
)


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
                await _all_trials(bench, cluster, traffic, measured)
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
    for kind in _KINDS:
        measured.figures[f"{kind}, slowest of all"] = [max(measured.figures[f"{kind}, next task"])]
    measured.calibration_ms = [before_ms, calibration_ms()]
    measured.counts = {"fail-overs": len(_KINDS) * bench.sizes.trials, "enqueued": traffic.enqueued}
    return measured


async def _serve(serve: Callable[[], Awaitable[object]]) -> None:
    await serve()


async def _all_trials(bench: Bench, cluster: MappedCluster, traffic: Traffic, measured: Measured) -> None:
    """Both kinds take turns, so that both meet the same noise."""
    with bench.display.progress("fail-over", len(_KINDS) * bench.sizes.trials) as on_progress:
        for trial in range(bench.sizes.trials):
            for at, kind in enumerate(_KINDS):
                await asyncio.gather(*(traffic.next_handled_s(shard) for shard in range(SHARDS)))
                await asyncio.sleep(PAUSE_SECONDS)
                measured.add(await _trial(cluster, traffic, kind))
                on_progress(trial * len(_KINDS) + at + 1)


async def _trial(cluster: MappedCluster, traffic: Traffic, kind: str) -> Measured:
    leaders = await cluster.leaders()
    victim = max(cluster.nodes, key=lambda name: list(leaders.values()).count(name))
    node, led = cluster.nodes[victim], [shard for shard, name in leaders.items() if name == victim]
    noise, before_s = NoiseMeter(), cluster.cpu_s
    gone_s = time.monotonic()
    if kind == KILL:
        await node.kill()
    else:
        await node.pause()
    handled_s = await asyncio.gather(*(traffic.next_handled_s(shard) for shard in led))
    others_percent = noise.others_percent(sum(spent_s - before_s[pid] for pid, spent_s in cluster.cpu_s.items()))
    figures = {f"{kind}, next task": [at_s - gone_s for at_s in handled_s]}
    led_s = cluster.led_at_s - gone_s
    if led_s > 0:  # otherwise that line of its log has not been read yet
        figures[f"{kind}, next leader"] = [led_s]
    if kind == KILL:
        await cluster.start_node(victim)
    else:
        node.resume()
    await cluster.wait_whole(lag_max=LAG_ENTRIES_MAX)
    return Measured(figures=figures, others_percent=[others_percent])
