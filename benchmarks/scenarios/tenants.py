"""A queue with very many tenants that all have tasks: what a producer feels while workers take turns through them.

Beside the server that does nothing else, a queue without tenants under the same load is the control: what the workers
alone cost the producer is in both.
"""

import dataclasses

from harness.bench import Bench
from harness.numbers import percentile
from harness.probes import NoiseMeter, calibration_ms, process_cpu_s
from harness.probing import Probing, Window, latencies, probe, probing, window_of
from harness.protocol import WORK_STEADILY, LoadSpec
from harness.results import Aim, Measured, Target, expect
from harness.server import ServerProcess
from scenarios.batches import producer

IDLE_QUEUE = "idle"
PLAIN_QUEUE = "plain"
QUEUE = "tenants"
TASKS_PER_TENANT = 2  # the first goes to a worker, and the tenant still has one
WORKERS = 2
WORKER_RATE_PER_S = 1000.0
WORKER_BATCH_TASKS = 20

_IDLE, _PLAIN, _TENANTS = "idle", "workers, no tenants", "workers, many tenants"
_RATIO = "p99 with many tenants to idle"
_RATIO_TO_PLAIN = "p99 with many tenants to none"
AIMS = (
    Aim(_RATIO, "×", Target(5.0)),
    Aim(_RATIO_TO_PLAIN, "×"),
    *(Aim(f"{what}, {when}", "ms") for what in ("p50", "p99", "slowest") for when in (_IDLE, _PLAIN, _TENANTS)),
    *(Aim(f"server, {when}", "% of a core") for when in (_IDLE, _PLAIN, _TENANTS)),
    *(Aim(f"claimed and acked, {when}", "tasks/s", more_is_better=True) for when in (_PLAIN, _TENANTS)),
    *(Aim(f"fill, {when}", "tasks/s", more_is_better=True) for when in (_PLAIN, _TENANTS)),
    Aim("peak RSS", "MB"),
)


async def measure(bench: Bench) -> Measured:
    tenants = bench.sizes.tenants
    filled = TASKS_PER_TENANT * tenants
    measured = Measured()
    async with bench.server() as server:
        for queue, when in ((PLAIN_QUEUE, _PLAIN), (QUEUE, _TENANTS)):
            rate_per_s = await _fill(bench, server, queue, filled)
            measured.figures[f"fill, {when}"] = [rate_per_s]
        await bench.settle(server)
        for _ in range(bench.sizes.tenant_turns):
            measured.add(await _turn(bench, server))
        measured.figures["peak RSS"] = [server.memory().peak_rss_mb]
        for queue, enqueued in ((IDLE_QUEUE, 0), (PLAIN_QUEUE, filled), (QUEUE, filled)):
            stats = await bench.stats(server.address, queue)
            expect(f"tasks enqueued in {queue}", stats.enqueued_total, enqueued + measured.counts[queue])
            expect(f"tasks that {queue} has", stats.ready + stats.succeeded_total, stats.enqueued_total)
        await server.stop()
    measured.counts["tenants with tasks"] = tenants
    return measured


async def _fill(bench: Bench, server: ServerProcess, queue: str, tasks: int) -> float:
    """Every tenant gets its first task before the first gets its second."""
    tenants = bench.sizes.tenants if queue == QUEUE else 0
    specs = {"producer": dataclasses.replace(producer(server.address, tasks, queue=queue), tenants=tenants)}
    run = await bench.run_fleet({"server": server}, f"filling {queue}", specs, counted=["producer"], tasks=tasks)
    return run.rate_per_s


async def _turn(bench: Bench, server: ServerProcess) -> Measured:
    turn = Measured()
    p99_ms: dict[str, float] = {}
    for when, queue in ((_IDLE, IDLE_QUEUE), (_PLAIN, PLAIN_QUEUE), (_TENANTS, QUEUE)):
        before_ms, noise, spent_s = calibration_ms(), NoiseMeter(), process_cpu_s(server.pid)
        probed, window = await _probe(bench, server, when, queue)
        spent_s = process_cpu_s(server.pid) - spent_s
        others_percent = noise.others_percent(spent_s + probed.cpu_s)
        took_ms = probed.took_ms(window)
        p99_ms[when] = percentile(took_ms, 99)
        figures = latencies(took_ms, when) | {f"server, {when}": [100 * spent_s / noise.seconds]}
        if when != _IDLE:
            figures[f"claimed and acked, {when}"] = [_worked_per_s(probed)]
        turn.add(
            Measured(
                figures=figures,
                others_percent=[others_percent],
                calibration_ms=[before_ms, calibration_ms()],
                counts={queue: probed.enqueued},
            )
        )
    turn.figures[_RATIO] = [p99_ms[_TENANTS] / p99_ms[_IDLE]]
    turn.figures[_RATIO_TO_PLAIN] = [p99_ms[_TENANTS] / p99_ms[_PLAIN]]
    return turn


async def _probe(bench: Bench, server: ServerProcess, when: str, queue: str) -> tuple[Probing, Window]:
    tenants = bench.sizes.tenants if queue == QUEUE else 0
    spec = dataclasses.replace(probe(server.address, queue), tenants=tenants)
    workers = {} if when == _IDLE else {name: _worker(server.address, queue, name) for name in _WORKER_NAMES}
    async with probing(spec, workers) as probed:
        window = await window_of(bench.sizes.steady_seconds)
    return probed, window


_WORKER_NAMES = [f"worker {number}" for number in range(1, WORKERS + 1)]


def _worker(address: str, queue: str, name: str) -> LoadSpec:
    return LoadSpec(
        role=WORK_STEADILY,
        address=address,
        queue=queue,
        batch_tasks=WORKER_BATCH_TASKS,
        rate_per_s=WORKER_RATE_PER_S,
        worker=name,
    )


def _worked_per_s(probed: Probing) -> float:
    results = [probed.results[name] for name in _WORKER_NAMES]
    return sum(result.done / (result.ended_s - result.started_s) for result in results)
