"""What the router costs: batches and single tasks through it and straight to the leader, in turns.

Both ways lead to the same three replicas, so both meet the same noise, and each pair of turns gives a ratio. Clients
are as users have them: their calls may be repeated, so each task has a request_id.
"""

import dataclasses
from collections.abc import Callable, Mapping

from harness.bench import Bench, FleetRun
from harness.mapped import MappedCluster
from harness.numbers import percentile
from harness.protocol import LoadSpec
from harness.results import Aim, BrokenRunError, Measured, Target, expect
from scenarios.batches import QUEUE, producer
from scenarios.singles import pacer

SINGLE_RATE_PER_S = 100.0

_THROUGH = "through the router"
_DIRECT = "direct"
_WAYS = (_THROUGH, _DIRECT)
_TO_BROKERS = "router to all brokers, CPU"
_TO_LEADER = "router to the leader, CPU"
_TO_ALL = "router to brokers and client, CPU"
_TO_DIRECT = "router to direct, p50"

# What each ratio is of: the CPU of the router per task that passes it, to that of others per task that does not.
ENQUEUE_AIMS = (
    Aim(_TO_BROKERS, "×", Target(0.40)),
    Aim(_TO_LEADER, "×"),
    Aim(_TO_ALL, "×"),
    Aim("router", "µs CPU/task"),
    *(Aim(f"{who}, {way}", "µs CPU/task") for who in ("brokers", "leader", "client") for way in _WAYS),
    *(Aim(f"rate, {way}", "tasks/s", more_is_better=True) for way in _WAYS),
    *(Aim(f"call of 100, p50, {way}", "ms") for way in _WAYS),
)
# From sending: how late a busy client wakes up for a tick has nothing to do with the way.
SINGLE_AIMS = (
    Aim(_TO_DIRECT, "×", Target(2.0)),
    *(Aim(f"p{percent}, {way}", "ms") for percent in (50, 99) for way in _WAYS),
)


Figures = dict[str, float]


async def measure_enqueue(bench: Bench) -> Measured:
    return await _measure(bench, bench.sizes.router_tasks, producer, _enqueue_figures, _enqueue_ratios)


async def measure_single(bench: Bench) -> Measured:
    tasks = max(1, round(bench.sizes.turn_seconds * SINGLE_RATE_PER_S))
    return await _measure(bench, tasks, _single_pacer, _single_figures, _single_ratios)


def _single_pacer(address: str, tasks: int) -> LoadSpec:
    return pacer(address, tasks, SINGLE_RATE_PER_S)


async def _measure(
    bench: Bench,
    tasks: int,
    make_spec: Callable[[str, int], LoadSpec],
    figures_of: Callable[[FleetRun, str], Figures],
    ratios_of: Callable[[Figures], Figures],
) -> Measured:
    """`tasks` in each turn of each way."""
    measured = Measured()
    async with bench.mapped_cluster() as cluster:
        term, leader = await cluster.leadership()
        addresses = {_THROUGH: cluster.router.address, _DIRECT: cluster.address}
        for turn in range(bench.sizes.turns):
            figures: Figures = {}
            # Whoever comes second finds what the first left to do: each way does, in every other turn.
            for way in reversed(_WAYS) if turn % 2 else _WAYS:
                spec = dataclasses.replace(make_spec(addresses[way], tasks), direct=way == _DIRECT, retry=True)
                run = await _run_turn(bench, cluster, leader, way, spec)
                figures |= figures_of(run, way)
                measured.add(run.measured)
            figures |= ratios_of(figures)
            measured.add(Measured(figures={name: [value] for name, value in figures.items()}))
        if await cluster.leadership() != (term, leader):
            raise BrokenRunError("another node leads than before the load, so nobody knows whose figures these are")
        stats = await bench.stats(cluster.router.address, QUEUE)
        expect("tasks enqueued", stats.enqueued_total, len(_WAYS) * bench.sizes.turns * tasks)
        await cluster.check_equal()
        await cluster.stop()
    measured.counts = {"enqueued": stats.enqueued_total}
    return measured


async def _run_turn(bench: Bench, cluster: MappedCluster, leader: str, way: str, spec: LoadSpec) -> FleetRun:
    servers = {**cluster.by_role(leader), "router": cluster.router}
    run = await bench.run_fleet(servers, way, {"client": spec}, counted=["client"], tasks=spec.tasks)
    run.measured.cpu_us = {f"{way}, {name}": values for name, values in run.measured.cpu_us.items()}
    run.measured.stages = {f"{way}, {name}": values for name, values in run.measured.stages.items()}
    return run


def _enqueue_figures(run: FleetRun, way: str) -> Figures:
    cpu_us = {name: values[0] for name, values in run.measured.cpu_us.items()}
    figures = {
        f"brokers, {way}": sum(cpu_us[f"{way}, {who}"] for who in ("leader", "follower 1", "follower 2")),
        f"leader, {way}": cpu_us[f"{way}, leader"],
        f"client, {way}": cpu_us[f"{way}, client"],
        f"rate, {way}": run.rate_per_s,
        f"call of 100, p50, {way}": percentile(run.results["client"].call_ms, 50),
    }
    return figures | {"router": cpu_us[f"{way}, router"]} if way == _THROUGH else figures


def _enqueue_ratios(figures: Mapping[str, float]) -> Figures:
    router_us, brokers_us = figures["router"], figures[f"brokers, {_DIRECT}"]
    return {
        _TO_BROKERS: router_us / brokers_us,
        _TO_LEADER: router_us / figures[f"leader, {_DIRECT}"],
        _TO_ALL: router_us / (brokers_us + figures[f"client, {_DIRECT}"]),
    }


def _single_figures(run: FleetRun, way: str) -> Figures:
    send_ms = run.results["client"].send_ms
    return {f"p{percent}, {way}": percentile(send_ms, percent) for percent in (50, 99)}


def _single_ratios(figures: Mapping[str, float]) -> Figures:
    return {_TO_DIRECT: figures[f"p50, {_THROUGH}"] / figures[f"p50, {_DIRECT}"]}
