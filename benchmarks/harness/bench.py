"""What every scenario works with: sizes, a place for data, servers, and one way to measure a fleet."""

import asyncio
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from harness.cluster import NODES, Cluster
from harness.display import Display
from harness.fleet import Fleet
from harness.mapped import MappedCluster
from harness.probes import NoiseMeter, calibration_ms, process_cpu_s
from harness.protocol import LoadResult, LoadSpec
from harness.results import BrokenRunError, Measured, reasons
from harness.server import ServerProcess
from harness.stages import StageMeter
from holdfast.client import AsyncClient, QueueStats

SETTLE_SECONDS_MAX = 60.0
SETTLED_BUSY = 0.05  # of one core


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much each scenario does."""

    enqueue_tasks: int
    lifecycle_tasks: int
    single_seconds: float  # at SINGLE_RATE_PER_S
    pickup_tasks: int
    backlog_tasks: int  # in runs
    single_backlog_tasks: int  # each with rows of its own
    backlog_samples: int
    worker_tasks: int
    caller_tasks: int  # enqueued one after the other
    turns: int  # of three replicas and one
    turn_seconds: float
    trials: int  # of each kind of fail-over
    idle_seconds: float
    router_tasks: int  # per turn
    move_mb: int
    move_seconds: float  # before and after the move
    map_shards: int
    map_queues: int
    starts: int  # of a router
    limit_tasks: int  # per turn
    limit_turns: int  # of all kinds of queues
    tenants: int
    tenant_turns: int
    storm_tasks: int  # due, or with a lease that ends, at the same moment
    steady_seconds: float  # of a probe, each time
    rest_seconds: float  # after an overload, until memory is looked at again
    saturated_seconds: float
    waiting_workers: int  # at one router
    waiting_seconds: float  # while they have nothing to do
    beating_workers: int  # whose heartbeats are measured
    listed_tasks: int  # in one queue, while lists are measured
    shape_tasks: int  # for each size of calls and payloads


FULL = Sizes(
    enqueue_tasks=200_000,
    lifecycle_tasks=100_000,
    single_seconds=20.0,
    pickup_tasks=500,
    backlog_tasks=10_000_000,
    single_backlog_tasks=1_000_000,
    backlog_samples=5,
    worker_tasks=50_000,
    caller_tasks=2_000,
    turns=8,
    turn_seconds=4.0,
    trials=20,
    idle_seconds=20.0,
    router_tasks=20_000,
    move_mb=1_000,
    move_seconds=20.0,
    map_shards=1_000,
    map_queues=10_000,
    starts=5,
    limit_tasks=30_000,
    limit_turns=4,
    tenants=100_000,
    tenant_turns=3,
    storm_tasks=1_000_000,
    steady_seconds=15.0,
    rest_seconds=30.0,
    saturated_seconds=30.0,
    waiting_workers=10_000,
    waiting_seconds=310.0,
    beating_workers=1_000,
    listed_tasks=100_000,
    shape_tasks=20_000,
)
QUICK = Sizes(
    enqueue_tasks=20_000,
    lifecycle_tasks=10_000,
    single_seconds=3.0,
    pickup_tasks=100,
    backlog_tasks=30_000,
    single_backlog_tasks=10_000,
    backlog_samples=2,
    worker_tasks=5_000,
    caller_tasks=200,
    turns=1,
    turn_seconds=1.0,
    trials=2,
    idle_seconds=3.0,
    router_tasks=2_000,
    move_mb=20,
    move_seconds=3.0,
    map_shards=100,
    map_queues=1_000,
    starts=1,
    limit_tasks=2_000,
    limit_turns=1,
    tenants=2_000,
    tenant_turns=1,
    storm_tasks=10_000,
    steady_seconds=3.0,
    rest_seconds=3.0,
    saturated_seconds=3.0,
    waiting_workers=200,
    waiting_seconds=3.0,
    beating_workers=100,
    listed_tasks=5_000,
    shape_tasks=1_000,
)


@dataclass(slots=True)
class FleetRun:
    """What a fleet did, and what the server spent on it."""

    results: dict[str, LoadResult]
    seconds: float  # from the first start to the last answer of those that were counted
    tasks: int
    measured: Measured

    @property
    def rate_per_s(self) -> float:
        return self.tasks / self.seconds


class Bench:
    def __init__(self, sizes: Sizes, directory: Path, display: Display) -> None:
        self.sizes = sizes
        self.display = display
        self._directory = directory

    @asynccontextmanager
    async def data_dir(self) -> AsyncIterator[Path]:
        """An empty data directory, gone afterwards."""
        path = Path(tempfile.mkdtemp(prefix="bench-", suffix=".holdfast-data", dir=self._directory))
        try:
            yield path
        finally:
            await asyncio.to_thread(shutil.rmtree, path, ignore_errors=True)

    @asynccontextmanager
    async def server(self) -> AsyncIterator[ServerProcess]:
        """A fresh server on an empty data directory."""
        async with self.data_dir() as path, await ServerProcess.start(path) as server:
            yield server

    @asynccontextmanager
    async def cluster(self, *, shards: int = 1) -> AsyncIterator[Cluster]:
        """A fresh cluster on empty data directories."""
        async with self.data_dir() as path, await Cluster.start(path, shards=shards) as cluster:
            yield cluster

    @asynccontextmanager
    async def mapped_cluster(self, *, shards: int = 1, replication: int = NODES) -> AsyncIterator[MappedCluster]:
        """A fresh cluster with a map and a router, on empty data directories."""
        async with (
            self.data_dir() as path,
            await MappedCluster.start(path, shards=shards, replication=replication) as cluster,
        ):
            yield cluster

    async def run_fleet(
        self,
        servers: Mapping[str, ServerProcess],
        what: str,
        specs: Mapping[str, LoadSpec],
        *,
        counted: Sequence[str],
        tasks: int,
        stop_after: Sequence[str] = (),
    ) -> FleetRun:
        """Runs load processes to their end. `counted` are those whose tasks are counted: together `tasks`.

        What each of the servers spent is told by its name; the stages of the first without one.
        """
        async with Fleet(specs) as fleet:
            with self.display.progress(what, tasks) as on_progress:
                before_ms = calibration_ms()
                noise = NoiseMeter()
                meters = [await StageMeter.begin(name, server) for name, server in servers.items()]
                try:
                    results = await fleet.run(
                        on_progress=on_progress, counted=counted, tasks=tasks, stop_after=stop_after
                    )
                except* BrokenRunError as group:
                    raise BrokenRunError(reasons(group)) from None
            cpu_us, stages = await _end_all(meters, tasks)
            measured_s = sum(meter.cpu_s for meter in meters) + sum(result.cpu_s for result in results.values())
            others_percent = noise.others_percent(measured_s)
            after_ms = calibration_ms()
        for name, result in results.items():
            cpu_us[name] = result.cpu_s / tasks * 1e6
        measured = Measured(
            cpu_us={name: [value] for name, value in cpu_us.items()},
            stages={name: [value] for name, value in stages.items()},
            others_percent=[others_percent],
            calibration_ms=[before_ms, after_ms],
        )
        ended_s = max(results[name].ended_s for name in counted)
        seconds = ended_s - min(result.started_s for result in results.values())
        done = sum(results[name].done for name in counted)
        if done != tasks:
            raise BrokenRunError(f"expected {what} to do {tasks:,} tasks, but it did {done:,}")
        return FleetRun(results, seconds, tasks, measured)

    async def settle(self, server: ServerProcess) -> None:
        """Waits until the compactions that a fill left behind are done: they are not the cost of what comes next."""
        ends_s = time.monotonic() + SETTLE_SECONDS_MAX
        with self.display.progress("waiting for compactions", round(SETTLE_SECONDS_MAX)) as on_progress:
            while (now_s := time.monotonic()) < ends_s:
                on_progress(round(SETTLE_SECONDS_MAX - (ends_s - now_s)))
                before_s = process_cpu_s(server.pid)
                await asyncio.sleep(1.0)
                if process_cpu_s(server.pid) - before_s < SETTLED_BUSY:
                    return

    async def stats(self, address: str, queue: str) -> QueueStats:
        async with AsyncClient(address) as client:
            return await client.queue_stats(queue)


async def _end_all(meters: Sequence[StageMeter], tasks: int) -> tuple[dict[str, float], dict[str, float]]:
    cpu_us: dict[str, float] = {}
    stages: dict[str, float] = {}
    for index, meter in enumerate(meters):
        its_cpu_us, its_stages = await meter.end(tasks)
        cpu_us |= its_cpu_us
        stages |= {f"{meter.name}: {name}" if index else name: value for name, value in its_stages.items()}
    return cpu_us, stages
