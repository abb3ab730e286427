"""Very many idle workers, at one broker or behind one router whose queue is spread over several shards: what they cost
while there is nothing to do, and how soon one of them has a task.

Few processes stand for all workers: each worker is a long poll of its own, as long as those of the library, with a name
of its own.
"""

import asyncio
import dataclasses
import time
from collections.abc import Mapping
from typing import Protocol

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
BROKER_SECONDS = 30.0  # while those at one broker have nothing to do
_IDLE_CPU = "router, idle, CPU"

BROKER_AIMS = (
    Aim("pickup, p50", "ms", Target(3.0)),
    Aim("pickup, p99", "ms", Target(50.0)),
    Aim("broker, RSS", "MB", Target(300.0)),
    Aim("broker, RSS before they came", "MB"),
    Aim("broker, idle, CPU", "% of a core"),
)
AIMS = (
    Aim("pickup, p50", "ms", Target(6.0)),
    Aim("pickup, p99", "ms"),
    Aim("router, RSS", "MB", Target(600.0)),
    Aim(_IDLE_CPU, "% of a core", Target(5.0)),
    Aim("brokers, idle, CPU of all", "% of a core"),
    Aim("waits at brokers", ""),
    Aim("the same with one worker, pickup p50", "ms"),
)


class _Scraped(Protocol):
    """A server whose metrics can be read."""

    async def scrape(self) -> Mapping[str, float]: ...


async def measure_broker(bench: Bench) -> Measured:
    """All of them at one broker."""
    measured = Measured(calibration_ms=[probes.calibration_ms()])
    workers, tasks = bench.sizes.waiting_workers, bench.sizes.pickup_tasks
    async with bench.server() as server:
        before_mb = server.memory().rss_mb
        async with Fleet(_workers(server.address, workers)) as fleet:
            running = asyncio.create_task(_run(fleet, tasks))
            try:
                await _all_wait(server, "holdfast_waiters", workers)
                await asyncio.sleep(SETTLE_SECONDS_QUICK)
                began_s, before_s = time.monotonic(), probes.process_cpu_s(server.pid)
                await asyncio.sleep(min(bench.sizes.waiting_seconds, BROKER_SECONDS))
                idle_s = probes.process_cpu_s(server.pid) - before_s
                idle_percent = 100 * idle_s / (time.monotonic() - began_s)
                waiting_mb = server.memory().rss_mb
                await bench.run_fleet({"server": server}, "pickup", {"producer": _producer(server.address, tasks)},
                                      counted=["producer"], tasks=tasks)  # fmt: skip
                results = await running
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
        picked_ms = [ms for result in results.values() for ms in result.call_ms]
        stats = await bench.stats(server.address, QUEUE)
        expect("tasks succeeded", stats.succeeded_total, tasks)
        await server.stop()
    measured.figures = {
        "pickup, p50": [percentile(picked_ms, 50)],
        "pickup, p99": [percentile(picked_ms, 99)],
        "broker, RSS": [waiting_mb],
        "broker, RSS before they came": [before_mb],
        "broker, idle, CPU": [idle_percent],
    }
    measured.calibration_ms.append(probes.calibration_ms())
    measured.counts = {"workers": workers, "picked up": len(picked_ms)}
    return measured


async def measure(bench: Bench) -> Measured:
    measured = Measured(calibration_ms=[probes.calibration_ms()])
    async with bench.mapped_cluster(shards=SHARDS) as cluster:
        async with AsyncClient(cluster.router.address) as client:
            await client.set_queue(QUEUE, spread=SHARDS)
        alone_ms = await _pick_up(bench, cluster, 1)
        async with Fleet(_workers(cluster.router.address, bench.sizes.waiting_workers)) as fleet:
            tasks = bench.sizes.pickup_tasks
            running = asyncio.create_task(_run(fleet, tasks))
            try:
                await _all_wait(cluster.router, "holdfast_router_calls_waiting", bench.sizes.waiting_workers)
                quick = bench.sizes.waiting_seconds < SETTLE_SECONDS_QUICK * 5
                await asyncio.sleep(SETTLE_SECONDS_QUICK if quick else SETTLE_SECONDS)
                measured.add(await _idle(bench, cluster))
                producer = {"producer": _producer(cluster.router.address, tasks)}
                await bench.run_fleet({"router": cluster.router}, "pickup", producer, counted=["producer"], tasks=tasks)
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


def _producer(address: str, tasks: int) -> LoadSpec:
    return dataclasses.replace(pacer(address, tasks, RATE_PER_S), retry=True)


def _workers(address: str, workers: int) -> dict[str, LoadSpec]:
    processes = min(PROCESSES, workers)
    return {
        f"workers {number + 1}": LoadSpec(
            role=PICK_UP,
            address=address,
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
    address = cluster.router.address
    specs = {"producer": _producer(address, bench.sizes.pickup_tasks), **_workers(address, workers)}
    waiting = [name for name in specs if name != "producer"]
    run = await bench.run_fleet({"router": cluster.router}, "pickup by one worker", specs, counted=waiting,
                                tasks=bench.sizes.pickup_tasks, stop_after=waiting)  # fmt: skip
    return [ms for name in waiting for ms in run.results[name].call_ms]


async def _all_wait(server: _Scraped, metric: str, workers: int) -> None:
    ends_s = time.monotonic() + ALL_WAIT_SECONDS_MAX
    while (waiting := await _waiting(server, metric)) < workers:
        if time.monotonic() > ends_s:
            raise BrokenRunError(f"only {waiting:g} of {workers} workers waited after {ALL_WAIT_SECONDS_MAX:g} s")
        await asyncio.sleep(POLL_SECONDS)


async def _waiting(server: _Scraped, metric: str) -> float:
    try:
        return (await server.scrape())[metric]
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
