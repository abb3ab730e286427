"""What tenants, priorities, caps, rates and request ids cost: whole lives of tasks in queues with and without them, in
turns.

The caps and the rates are too high to hold anything up, so what is measured is the bookkeeping alone.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from statistics import mean
from typing import NamedTuple

from harness.bench import Bench, FleetRun
from harness.loads import tenant_name
from harness.protocol import LoadSpec
from harness.results import Aim, BrokenRunError, Measured, Target, expect
from harness.server import ServerProcess
from holdfast.client import AsyncClient, QueuePolicy, TenantPolicy
from scenarios.batches import CONSUMERS, consumer, producer

TENANTS = 100
WEIGHT_MAX = 5
PRIORITIES = 10
LIMIT_KEYS = 100
CAP = 100_000
RATE_PER_S = 100_000.0  # of the queue
PART_RATE_PER_S = 10_000.0  # of each tenant and each key

_TENANTS = QueuePolicy(
    tenants=[TenantPolicy(tenant_name(number), weight=1 + number % WEIGHT_MAX) for number in range(TENANTS)]
)
_CAPS = QueuePolicy(concurrency_max=CAP, key_concurrency_max=CAP)
_RATES = QueuePolicy(rate_per_second=RATE_PER_S, key_rate_per_second=PART_RATE_PER_S)
_TOGETHER = dataclasses.replace(_CAPS, tenant_concurrency_max=CAP, tenants=_TENANTS.tenants)
_EVERYTHING = dataclasses.replace(
    _TOGETHER,
    rate_per_second=RATE_PER_S,
    tenant_rate_per_second=PART_RATE_PER_S,
    key_rate_per_second=PART_RATE_PER_S,
)


class Kind(NamedTuple):
    """Of queues."""

    name: str
    policy: QueuePolicy | None = None
    tenants: int = 0
    priorities: int = 0
    limit_keys: int = 0
    limit_keys_mixed: bool = False
    own_ids: bool = False


PLAIN = Kind("plain")
TOGETHER = Kind("tenants, caps and priorities", _TOGETHER, TENANTS, PRIORITIES, LIMIT_KEYS)
# As a program has them that serves some customers: each batch has tasks of ten tenants in turns.
MIXED = Kind("ten tenants, caps, priorities and own ids", _TOGETHER, 10, 2, 10, own_ids=True)
KINDS = (
    PLAIN,
    Kind("own ids", own_ids=True),
    MIXED,
    Kind("priorities", priorities=PRIORITIES),
    Kind("tenants", _TENANTS, tenants=TENANTS),
    Kind("caps", _CAPS, limit_keys=LIMIT_KEYS),
    Kind("rates", _RATES, limit_keys=LIMIT_KEYS),
    TOGETHER,
    # Every tenant has tasks of every key and every priority: nearly each task is alone in its sub-queue.
    Kind("everything, a sub-queue for each task", _EVERYTHING, TENANTS, PRIORITIES, LIMIT_KEYS, limit_keys_mixed=True),
)
_LIMITED = KINDS[1:]
# Of a turn, each between two plain ones. What the aim is for comes more often: single runs differ much.
_OTHERS = [kind for kind in _LIMITED if kind is not TOGETHER]
_ORDER = [run for index, kind in enumerate(_OTHERS) for run in ((kind,) if index % 2 else (kind, TOGETHER))]
_REPLICATED_ORDER = (TOGETHER,) * 3

_COST = f"cost of {TOGETHER.name}"
_LIFE = f"server CPU of a life, {MIXED.name} to plain"
AIMS = (
    Aim(_COST, "%", Target(25.0)),
    Aim(_LIFE, "×", Target(3.0)),
    # Where others use the machine too, it says more: what the cores can do is divided by it.
    *(Aim(f"cost of {kind.name}, by CPU", "%") for kind in _LIMITED),
    *(Aim(f"rate, {kind.name}", "tasks/s", more_is_better=True) for kind in KINDS),
    *(Aim(f"server, {kind.name}", "µs CPU/task") for kind in KINDS),
    *(Aim(f"clients, {kind.name}", "µs CPU/task") for kind in KINDS),
)
REPLICATED_AIMS = (
    Aim(_COST, "%", Target(25.0)),
    Aim(f"{_COST}, by CPU", "%"),
    *(Aim(f"rate, {kind.name}", "tasks/s", more_is_better=True) for kind in (PLAIN, TOGETHER)),
    *(Aim(f"leader, {kind.name}", "µs CPU/task") for kind in (PLAIN, TOGETHER)),
)


class Where(NamedTuple):
    """A single node, or a cluster."""

    address: str
    servers: Mapping[str, ServerProcess]  # the one that leads first


async def measure(bench: Bench) -> Measured:
    async with bench.server() as server:
        measured = await _take_turns(bench, Where(server.address, {"server": server}), _ORDER)
        await server.stop()
    return measured


async def measure_replicated(bench: Bench) -> Measured:
    async with bench.cluster() as cluster:
        term, leader = await cluster.leadership()
        measured = await _take_turns(bench, Where(cluster.address, cluster.by_role(leader)), _REPLICATED_ORDER)
        if await cluster.leadership() != (term, leader):
            raise BrokenRunError("another node leads than before the load, so nobody knows whose figures these are")
        await cluster.check_equal()
        await cluster.stop()
    return measured


async def _take_turns(bench: Bench, where: Where, order: Sequence[Kind]) -> Measured:
    """Each run is compared with the mean of the plain ones before and after it: what a kind leaves to do for those
    after it, and what the machine does meanwhile, must not count for one of the two only."""
    measured = Measured()
    turns = bench.sizes.limit_turns

    def note(run: FleetRun, figures: dict[str, float]) -> None:
        measured.add(run.measured)
        measured.add(Measured(figures={name: [value] for name, value in figures.items()}))

    for turn in range(turns):
        before = await _live(bench, where, PLAIN, f"turn-{turn}-plain-0")
        note(before, _figures_of(where, PLAIN, before))
        for index, kind in enumerate(order, 1):
            run = await _live(bench, where, kind, f"turn-{turn}-{index}")
            after = await _live(bench, where, PLAIN, f"turn-{turn}-plain-{index}")
            note(run, _figures_of(where, kind, run) | _costs_of(where, kind, run, (before, after)))
            note(after, _figures_of(where, PLAIN, after))
            before = after
    measured.counts = {"succeeded": turns * (2 * len(order) + 1) * bench.sizes.limit_tasks}
    return measured


async def _live(bench: Bench, where: Where, kind: Kind, queue: str) -> FleetRun:
    """All tasks of one queue, from their enqueue to their ack."""
    tasks, address = bench.sizes.limit_tasks, where.address
    if kind.policy is not None:
        async with AsyncClient(address) as client:
            await client.set_queue(queue, policy=kind.policy)
    consumers = [f"consumer {number}" for number in range(1, CONSUMERS + 1)]
    specs: dict[str, LoadSpec] = {"producer": _producer(address, tasks, kind, queue)}
    specs |= {name: consumer(address, name, queue=queue) for name in consumers}
    run = await bench.run_fleet(where.servers, kind.name, specs, counted=consumers, tasks=tasks, stop_after=consumers)
    stats = await bench.stats(address, queue)
    expect(f"tasks enqueued, {kind.name},", stats.enqueued_total, tasks)
    expect(f"tasks succeeded, {kind.name},", stats.succeeded_total, tasks)
    expect(f"tasks claimed in all, {kind.name},", stats.claimed_total, tasks)
    run.measured.cpu_us = {f"{kind.name}, {name}": values for name, values in run.measured.cpu_us.items()}
    run.measured.stages = {f"{kind.name}, {name}": values for name, values in run.measured.stages.items()}
    return run


def _producer(address: str, tasks: int, kind: Kind, queue: str) -> LoadSpec:
    return dataclasses.replace(
        producer(address, tasks, queue=queue),
        tenants=kind.tenants,
        priorities=kind.priorities,
        limit_keys=kind.limit_keys,
        limit_keys_mixed=kind.limit_keys_mixed,
        request_ids=kind.own_ids,
    )


def _figures_of(where: Where, kind: Kind, run: FleetRun) -> dict[str, float]:
    first = next(iter(where.servers))
    return {
        f"rate, {kind.name}": run.rate_per_s,
        f"{first}, {kind.name}": _cpu_us(kind, run, first),
        f"clients, {kind.name}": sum(_cpu_us(kind, run, name) for name in run.results),
    }


def _costs_of(where: Where, kind: Kind, run: FleetRun, neighbours: Sequence[FleetRun]) -> dict[str, float]:
    """What a kind costs against the plain runs before and after it."""

    def all_processes_us(kind: Kind, run: FleetRun) -> float:
        return sum(_cpu_us(kind, run, name) for name in (*where.servers, *run.results))

    plain_us = mean(all_processes_us(PLAIN, neighbour) for neighbour in neighbours)
    costs = {f"cost of {kind.name}, by CPU": 100 * (1 - plain_us / all_processes_us(kind, run))}
    if kind is MIXED:
        [server] = where.servers
        costs[_LIFE] = _cpu_us(kind, run, server) / mean(_cpu_us(PLAIN, neighbour, server) for neighbour in neighbours)
    if kind is TOGETHER:
        costs[_COST] = 100 * (1 - run.rate_per_s / mean(neighbour.rate_per_s for neighbour in neighbours))
    return costs


def _cpu_us(kind: Kind, run: FleetRun, process: str) -> float:
    return run.measured.cpu_us[f"{kind.name}, {process}"][0]
