"""What it costs to be watched, through a router: heartbeats of workers, and pages of lists of tasks with a small
backlog and with a large one, before and after that is worked off.

One process stands for all workers: each heartbeat is a call of its own, in the name of its worker, but over one
connection.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from harness.bench import Bench
from harness.mapped import MappedCluster
from harness.numbers import percentile
from harness.probes import NoiseMeter, calibration_ms, process_cpu_s
from harness.results import Aim, Measured, Target, expect
from holdfast.client import AsyncClient, TaskFilter, TaskState, WorkerState
from holdfast.routing.homes import home_shard
from scenarios.batches import consumer, producer

SHARDS: Final = 8
BEATS: Final = 5  # of each worker
BEATS_AT_ONCE: Final = 32
PAGES: Final = 50
IDLE_SECONDS: Final = 1.0
PAGE_TASKS: Final = 100
SMALL_TASKS: Final = 1_000  # as many as one call looks at
QUEUES_OF_A_WORKER: Final = 4  # that it names

# CPU is that of the router and all brokers.
# Kinds of lists: what they are called, whether they are of one queue, and which tasks they are to have.
_PAGE: Final = "page of 100"
_NONE: Final = "none of 1,000 fits"
_CLAIMS: Final = "all claims"
_LISTS: Final = {
    _PAGE: (True, TaskFilter()),
    _NONE: (True, TaskFilter(states=[TaskState.READY], type="no such type")),
    _CLAIMS: (False, TaskFilter(states=[TaskState.CLAIMED])),
}
_ALONE: Final = "small"
_BESIDE: Final = "small beside large"  # tells what is due to the size of the state, not of the queue
_LARGE: Final = "large"
_WORKED_OFF: Final = "worked off"
_SIZES: Final = (_ALONE, _BESIDE, _LARGE, _WORKED_OFF)


def _name(size: str, kind: str, what: str) -> str:
    return f"{size}, {kind}, {what}"


AIMS = (
    Aim("heartbeat, router, CPU", "µs"),
    Aim("heartbeat, brokers, CPU", "µs"),
    Aim("1,000 workers, router, CPU", "% of a core", Target(10.0)),
    Aim("1,000 workers, brokers, CPU", "% of a core", Target(10.0)),
    *(
        aim
        for kind in _LISTS
        for size in _SIZES
        for aim in (Aim(_name(size, kind, "CPU"), "µs"), Aim(_name(size, kind, "p50"), "ms"))
    ),
    *(Aim(f"{size} to {_ALONE}, {kind}, CPU", "×", Target(1.5)) for kind in _LISTS for size in _SIZES[1:]),
)


async def measure(bench: Bench) -> Measured:
    measured = Measured(calibration_ms=[calibration_ms()])
    small, large = _queues_of_one_shard()
    async with bench.mapped_cluster(shards=SHARDS) as cluster:
        async with AsyncClient(cluster.router.address, timeout_s=30) as client:
            await _measure_beats(bench, cluster, client, measured)
            await _fill(bench, cluster, small, SMALL_TASKS)
            await _measure_lists(cluster, client, small, _ALONE, measured)
            await _fill(bench, cluster, large, bench.sizes.listed_tasks)
            await _measure_lists(cluster, client, small, _BESIDE, measured)
            await _measure_lists(cluster, client, large, _LARGE, measured)
            await _work_off(bench, cluster, large, bench.sizes.listed_tasks)
            await _measure_lists(cluster, client, large, _WORKED_OFF, measured)
        await cluster.stop()
    for kind in _LISTS:
        alone_us = measured.figures[_name(_ALONE, kind, "CPU")][0]
        for size in _SIZES[1:]:
            ratio = measured.figures[_name(size, kind, "CPU")][0] / alone_us
            measured.figures[f"{size} to {_ALONE}, {kind}, CPU"] = [ratio]
    measured.calibration_ms.append(calibration_ms())
    measured.counts = {"workers": bench.sizes.beating_workers, "listed": bench.sizes.listed_tasks}
    return measured


def _queues_of_one_shard() -> tuple[str, str]:
    """So that the small backlog and the large one are of the same state."""
    names = [name for name in (f"watched-{number}" for number in range(200)) if home_shard(name, SHARDS) == 0]
    return names[0], names[1]


async def _measure_beats(bench: Bench, cluster: MappedCluster, client: AsyncClient, measured: Measured) -> None:
    names = [f"host-{number % 50}-{number}-a1b2c3" for number in range(bench.sizes.beating_workers)]
    queues = [f"queue-{number}" for number in range(QUEUES_OF_A_WORKER)]
    next_s = [0.0]

    async def beat(worker: str) -> None:
        answer = await client.heartbeat(worker, state=WorkerState.RUNNING, slots=8, version="1.0", queues=queues)
        next_s[0] = answer.next_s

    await _for_each(names, beat)
    router_s, brokers_s = await _spent(cluster, measured, lambda: _for_each(names * BEATS, beat))
    beats, per_s = BEATS * len(names), 1_000 / next_s[0]
    for who, spent_s in (("router", router_s), ("brokers", brokers_s)):
        measured.figures[f"heartbeat, {who}, CPU"] = [spent_s / beats * 1e6]
        measured.figures[f"1,000 workers, {who}, CPU"] = [100 * per_s * spent_s / beats]


async def _measure_lists(
    cluster: MappedCluster, client: AsyncClient, queue: str, size: str, measured: Measured
) -> None:
    for kind, (is_of_queue, where) in _LISTS.items():
        pages = Pages(client, queue if is_of_queue else "", where)
        await pages.read()
        pages.call_ms.clear()
        spent_s = sum(await _spent(cluster, measured, pages.read))
        measured.figures[_name(size, kind, "CPU")] = [spent_s / PAGES * 1e6]
        measured.figures[_name(size, kind, "p50")] = [percentile(pages.call_ms, 50)]


class Pages:
    """The first page of a list, again and again."""

    def __init__(self, client: AsyncClient, queue: str, where: TaskFilter) -> None:
        self._client = client
        self._queue = queue
        self._where = where
        self.call_ms: list[float] = []

    async def read(self) -> None:
        for _ in range(PAGES):
            began_s = time.perf_counter()
            await self._client.list_tasks(self._queue, where=self._where, page_size=PAGE_TASKS)
            self.call_ms.append((time.perf_counter() - began_s) * 1000)


async def _for_each(workers: Sequence[str], beat: Callable[[str], Awaitable[None]]) -> None:
    left = iter(workers)

    async def some() -> None:
        for worker in left:
            await beat(worker)

    await asyncio.gather(*(some() for _ in range(BEATS_AT_ONCE)))


def _cpu_s(cluster: MappedCluster) -> tuple[float, float]:
    """Of the router, and of all brokers."""
    return process_cpu_s(cluster.router.pid), sum(process_cpu_s(node.pid) for node in cluster.nodes.values())


async def _spent(
    cluster: MappedCluster, measured: Measured, work: Callable[[], Awaitable[None]]
) -> tuple[float, float]:
    """On this work by the router and by all brokers, without what they use when there is nothing to do."""
    await asyncio.sleep(IDLE_SECONDS)
    idle_s = _cpu_s(cluster)
    await asyncio.sleep(IDLE_SECONDS)
    noise, before_s, own_s, began_s = NoiseMeter(), _cpu_s(cluster), time.process_time(), time.monotonic()
    await work()
    after_s, idle_times = _cpu_s(cluster), (time.monotonic() - began_s) / IDLE_SECONDS
    spent_s = sum(after_s) - sum(before_s)
    measured.others_percent.append(noise.others_percent(spent_s + time.process_time() - own_s))
    router_s, brokers_s = (
        max(0.0, after - before - (before - idle) * idle_times)
        for idle, before, after in zip(idle_s, before_s, after_s, strict=True)
    )
    return router_s, brokers_s


async def _fill(bench: Bench, cluster: MappedCluster, queue: str, tasks: int) -> None:
    specs = {"producer": producer(cluster.router.address, tasks, queue=queue)}
    await bench.run_fleet({"router": cluster.router}, f"filling {queue}", specs, counted=["producer"], tasks=tasks)
    expect("tasks ready", (await bench.stats(cluster.router.address, queue)).ready, tasks)


async def _work_off(bench: Bench, cluster: MappedCluster, queue: str, tasks: int) -> None:
    specs = {"consumer": consumer(cluster.router.address, "drain", queue=queue, tasks=tasks)}
    await bench.run_fleet({"router": cluster.router}, f"draining {queue}", specs, counted=["consumer"], tasks=tasks)
    expect("tasks left", (await bench.stats(cluster.router.address, queue)).ready, 0)
