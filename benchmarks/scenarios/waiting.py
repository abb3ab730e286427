"""Very many idle workers behind one router, whose queue is spread over several shards: what they cost while there is
nothing to do, and how soon one of them has a task.

Few processes stand for all workers: each worker is a long poll of its own, as long as those of the library, with a name
of its own.
"""

import asyncio
import dataclasses
import time

from harness import probes
from harness.bench import Bench
from harness.fleet import Fleet
from harness.mapped import MappedCluster
from harness.numbers import percentile
from harness.protocol import PICK_UP, LoadResult, LoadSpec
from harness.results import Aim, BrokenRunError, Measured, Target, expect
from holdfast.client import AsyncClient
from scenarios.singles import QUEUE, pacer

SHARDS = 8
PROCESSES = 4
RATE_PER_S = 20.0
ALL_WAIT_SECONDS_MAX = 60.0
SETTLE_SECONDS = 35.0  # after the last has come: a poll of each, then all have been told how long to wait
SETTLE_SECONDS_QUICK = 1.0
POLL_SECONDS = 0.25
_IDLE_CPU = "router, idle, CPU"

AIMS = (
    Aim("pickup, p50", "ms", Target(20.0)),
    Aim("pickup, p99", "ms"),
    Aim("router, RSS", "MB", Target(600.0)),
    Aim(_IDLE_CPU, "% of a core", Target(5.0)),
    Aim("brokers, idle, CPU of all", "% of a core"),
    Aim("waits at brokers", ""),
    Aim("the same with one worker, pickup p50", "ms"),
)


async def measure(bench: Bench) -> Measured:
    measured = Measured(calibration_ms=[probes.calibration_ms()])
    async with bench.mapped_cluster(shards=SHARDS) as cluster:
        async with AsyncClient(cluster.router.address) as client:
            await client.set_queue(QUEUE, spread=SHARDS)
        alone_ms = await _pick_up(bench, cluster, 1)
        async with Fleet(_workers(cluster, bench.sizes.waiting_workers)) as fleet:
            tasks = bench.sizes.pickup_tasks
            running = asyncio.create_task(_run(fleet, tasks))
            try:
                await _all_wait(cluster, bench.sizes.waiting_workers)
                quick = bench.sizes.waiting_seconds < SETTLE_SECONDS_QUICK * 5
                await asyncio.sleep(SETTLE_SECONDS_QUICK if quick else SETTLE_SECONDS)
                measured.add(await _idle(bench, cluster))
                await bench.run_fleet({"router": cluster.router}, "pickup", {"producer": _producer(cluster, tasks)},
                                      counted=["producer"], tasks=tasks)  # fmt: skip
                results = await running
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
        picked_ms = [ms for result in results.values() for ms in result.call_ms]
        stats = await bench.stats(cluster.router.address, QUEUE)
        expect("tasks succeeded", stats.succeeded_total, 2 * tasks)
        await cluster.stop()
    measured.figures |= {
        "pickup, p50": [percentile(picked_ms, 50)],
        "pickup, p99": [percentile(picked_ms, 99)],
        "the same with one worker, pickup p50": [percentile(alone_ms, 50)],
    }
    measured.calibration_ms.append(probes.calibration_ms())
    measured.counts = {"workers": bench.sizes.waiting_workers, "shards": SHARDS, "picked up": len(picked_ms)}
    return measured


def _producer(cluster: MappedCluster, tasks: int) -> LoadSpec:
    return dataclasses.replace(pacer(cluster.router.address, tasks, RATE_PER_S), retry=True)


def _workers(cluster: MappedCluster, workers: int) -> dict[str, LoadSpec]:
    processes = min(PROCESSES, workers)
    return {
        f"workers {number + 1}": LoadSpec(
            role=PICK_UP,
            address=cluster.router.address,
            queue=QUEUE,
            worker=f"waiting-{number}",
            calls_in_flight=workers // processes + (number < workers % processes),
            retry=True,  # as users have it
        )
        for number in range(processes)
    }


async def _run(fleet: Fleet, tasks: int) -> dict[str, LoadResult]:
    names = fleet.names
    return await fleet.run(on_progress=lambda _done: None, counted=names, tasks=tasks, stop_after=names)


async def _pick_up(bench: Bench, cluster: MappedCluster, workers: int) -> list[float]:
    specs = {"producer": _producer(cluster, bench.sizes.pickup_tasks), **_workers(cluster, workers)}
    waiting = [name for name in specs if name != "producer"]
    run = await bench.run_fleet({"router": cluster.router}, "pickup by one worker", specs, counted=waiting,
                                tasks=bench.sizes.pickup_tasks, stop_after=waiting)  # fmt: skip
    return [ms for name in waiting for ms in run.results[name].call_ms]


async def _all_wait(cluster: MappedCluster, workers: int) -> None:
    ends_s = time.monotonic() + ALL_WAIT_SECONDS_MAX
    while (waiting := await _waiting(cluster)) < workers:
        if time.monotonic() > ends_s:
            raise BrokenRunError(f"only {waiting:g} of {workers} workers waited after {ALL_WAIT_SECONDS_MAX:g} s")
        await asyncio.sleep(POLL_SECONDS)


async def _waiting(cluster: MappedCluster) -> float:
    try:
        return (await cluster.router.scrape())["holdfast_router_calls_waiting"]
    except TimeoutError:
        return 0.0  # it has much to do while they all come at once


async def _idle(bench: Bench, cluster: MappedCluster) -> Measured:
    """Over one poll of all workers at least, if the run is not a quick one: they come back at their own moments."""
    nodes = list(cluster.nodes.values())
    noise = probes.NoiseMeter()
    began_s = time.monotonic()
    before_s = [probes.process_cpu_s(process.pid) for process in (cluster.router, *nodes)]
    await asyncio.sleep(bench.sizes.waiting_seconds)
    elapsed_s = time.monotonic() - began_s
    after_s = [probes.process_cpu_s(process.pid) for process in (cluster.router, *nodes)]
    router, *brokers = [100 * (after - before) / elapsed_s for before, after in zip(before_s, after_s, strict=True)]
    gauges = await cluster.router.scrape()
    return Measured(
        figures={
            _IDLE_CPU: [router],
            "brokers, idle, CPU of all": [sum(brokers)],
            "router, RSS": [cluster.router.memory().rss_mb],
            "waits at brokers": [gauges["holdfast_router_broker_waits"]],
        },
        others_percent=[noise.others_percent(sum(after_s) - sum(before_s))],
    )
