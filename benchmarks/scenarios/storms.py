"""Very many tasks that need something at the same moment: what a producer feels until all of them have it.

Delayed tasks that are due together, and claims whose leases end together. A probe enqueues single tasks in another
queue of the same shard: for a while before that moment, until the last task is ready, and for a while after it.
"""

import asyncio
import dataclasses
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from harness.bench import Bench, FleetRun
from harness.numbers import percentile
from harness.probes import NoiseMeter, calibration_ms, process_cpu_s
from harness.probing import Probing, Window, latencies, probe, probing, window_of
from harness.protocol import HOLD, LoadSpec
from harness.results import Aim, BrokenRunError, Measured, Target, expect
from harness.server import ServerProcess
from harness.stages import StageMeter
from holdfast.client import AsyncClient, QueueStats
from scenarios.batches import producer

QUEUE = "storm"
PRACTICE_QUEUE = "practice"
PROBE_QUEUE = "bench"
PAYLOAD_BYTES = 100
FILL_BATCH_TASKS = 500
FILL_CALLS = 2
HOLD_BATCH_TASKS = 500
PRACTICE_SHARE = 50  # one task for so many: shows how long the rest will take
PRACTICE_TASKS_MIN = 200
SLACK = 1.5  # of that time
SLACK_SECONDS = 10.0
STORM_TASKS_PER_S_MIN = 500.0
STORM_SECONDS_MIN = 60.0
POLL_SECONDS = 0.25
METER_LEAD_SECONDS = 0.5  # what the server has done by then is read

_BEFORE, _DURING, _AFTER = "before", "meanwhile", "after"
_RATIO = "p99 meanwhile to idle"  # the quieter of before and after: what a fill leaves behind is not idle


def _aims(what: str) -> Sequence[Aim]:
    return (
        Aim(_RATIO, "×", Target(5.0)),
        *(Aim(f"{what}, {when}", "ms") for what in ("p50", "p99", "slowest") for when in (_BEFORE, _DURING, _AFTER)),
        Aim(f"until all are {what}", "s"),
        Aim(what, "tasks/s", more_is_better=True),
        Aim("server", "µs CPU/task"),
        Aim("peak RSS", "MB"),
    )


class Storm(NamedTuple):
    """What is to happen."""

    what: str
    set_up: Callable[[Bench, ServerProcess], Awaitable[float]]  # the moment on the monotonic clock
    left: Callable[[QueueStats], int]
    happened: Callable[[QueueStats], int]


async def measure_due(bench: Bench) -> Measured:
    return await _measure(bench, _DUE)


async def measure_expiry(bench: Bench) -> Measured:
    return await _measure(bench, _EXPIRY)


# ------------------------------------------------------------------------------------------------------- before it


async def _delay_all(bench: Bench, server: ServerProcess) -> float:
    tasks = bench.sizes.storm_tasks
    practice = await _fill(bench, server, PRACTICE_QUEUE, _practice_tasks(tasks))
    lead_s = _lead_s(bench, practice)
    at_s, run_at_ms = time.monotonic() + lead_s, round((time.time() + lead_s) * 1000)
    await _fill(bench, server, QUEUE, tasks, run_at_ms)
    return at_s


async def _claim_all(bench: Bench, server: ServerProcess) -> float:
    tasks = bench.sizes.storm_tasks
    await _fill(bench, server, QUEUE, tasks)
    await _fill(bench, server, PRACTICE_QUEUE, _practice_tasks(tasks))
    practice = await _hold(bench, server, PRACTICE_QUEUE, _practice_tasks(tasks), time.monotonic() + 3600)
    at_s = time.monotonic() + _lead_s(bench, practice)
    await _hold(bench, server, QUEUE, tasks, at_s)
    return at_s


def _practice_tasks(tasks: int) -> int:
    return max(PRACTICE_TASKS_MIN, tasks // PRACTICE_SHARE)


def _lead_s(bench: Bench, practice: FleetRun) -> float:
    """How long before the moment the work towards it has to begin."""
    return SLACK * bench.sizes.storm_tasks / practice.rate_per_s + SLACK_SECONDS + bench.sizes.steady_seconds


async def _fill(bench: Bench, server: ServerProcess, queue: str, tasks: int, run_at_ms: int = 0) -> FleetRun:
    spec = dataclasses.replace(
        producer(server.address, tasks, queue=queue, calls=FILL_CALLS),
        batch_tasks=FILL_BATCH_TASKS,
        payload_bytes=PAYLOAD_BYTES,
        run_at_ms=run_at_ms,
    )
    what = f"filling {queue}"
    return await bench.run_fleet({"server": server}, what, {"producer": spec}, counted=["producer"], tasks=tasks)


async def _hold(bench: Bench, server: ServerProcess, queue: str, tasks: int, until_s: float) -> FleetRun:
    spec = LoadSpec(
        role=HOLD,
        address=server.address,
        queue=queue,
        tasks=tasks,
        batch_tasks=HOLD_BATCH_TASKS,
        calls_in_flight=FILL_CALLS,
        worker="holder",
        lease_ends_s=until_s,
    )
    what = f"claiming {queue}"
    return await bench.run_fleet({"server": server}, what, {"holder": spec}, counted=["holder"], tasks=tasks)


# ----------------------------------------------------------------------------------------------------- while it is

_DUE = Storm("promoted", _delay_all, lambda stats: stats.delayed, lambda stats: stats.ready)
_EXPIRY = Storm("expired", _claim_all, lambda stats: stats.claimed, lambda stats: stats.expired_total)
DUE_AIMS = _aims(_DUE.what)
EXPIRY_AIMS = _aims(_EXPIRY.what)


async def _measure(bench: Bench, storm: Storm) -> Measured:
    tasks, before_ms = bench.sizes.storm_tasks, calibration_ms()
    async with bench.server() as server:
        at_s = await storm.set_up(bench, server)
        expect("tasks that wait for the moment", storm.left(await bench.stats(server.address, QUEUE)), tasks)
        noise, spent_s = NoiseMeter(), process_cpu_s(server.pid)
        async with probing(probe(server.address, PROBE_QUEUE)) as probed:
            before = Window(at_s - bench.sizes.steady_seconds, at_s)
            if time.monotonic() > before.began_s:
                raise BrokenRunError("setting it up took longer than practice had shown: the machine is busier now")
            await asyncio.sleep(at_s - METER_LEAD_SECONDS - time.monotonic())
            meter = await StageMeter.begin("server", server)
            await asyncio.sleep(at_s - time.monotonic())
            during = Window(at_s, await _wait_for_all(bench, server, storm, at_s))
            cpu_us, stages = await meter.end(tasks)
            after = await window_of(bench.sizes.steady_seconds)
        others_percent = noise.others_percent(process_cpu_s(server.pid) - spent_s + probed.cpu_s)
        peak_rss_mb = server.memory().peak_rss_mb
        stats = await bench.stats(server.address, QUEUE)
        expect(f"tasks {storm.what}", storm.happened(stats), tasks)
        expect("tasks ready", stats.ready, tasks)
        enqueued = (await bench.stats(server.address, PROBE_QUEUE)).enqueued_total
        expect("tasks enqueued", enqueued, probed.enqueued)
        await server.stop()
    figures = _figures(probed, before, during, after)
    figures |= {
        f"until all are {storm.what}": [during.ended_s - during.began_s],
        storm.what: [tasks / (during.ended_s - during.began_s)],
        "server": [cpu_us["server"]],
        "peak RSS": [peak_rss_mb],
    }
    return Measured(
        figures=figures,
        cpu_us={name: [value] for name, value in cpu_us.items()},
        stages={name: [value] for name, value in stages.items()},
        others_percent=[others_percent],
        calibration_ms=[before_ms, calibration_ms()],
        counts={storm.what: tasks, "enqueued": enqueued},
    )


def _figures(probed: Probing, before: Window, during: Window, after: Window) -> dict[str, list[float]]:
    figures: dict[str, list[float]] = {}
    for when, window in ((_BEFORE, before), (_DURING, during), (_AFTER, after)):
        figures |= latencies(probed.took_ms(window), when)
    idle_ms = min(percentile(probed.took_ms(window), 99) for window in (before, after))
    figures[_RATIO] = [percentile(probed.took_ms(during), 99) / idle_ms]
    return figures


async def _wait_for_all(bench: Bench, server: ServerProcess, storm: Storm, began_s: float) -> float:
    """When the last task had it."""
    tasks = bench.sizes.storm_tasks
    limit_s = STORM_SECONDS_MIN + tasks / STORM_TASKS_PER_S_MIN
    async with AsyncClient(server.address) as client:
        with bench.display.progress(storm.what, tasks) as on_progress:
            while left := storm.left(await client.queue_stats(QUEUE)):
                on_progress(tasks - left)
                if time.monotonic() > began_s + limit_s:
                    raise BrokenRunError(f"{left:,} tasks were not {storm.what} within {limit_s:g} s")
                await asyncio.sleep(POLL_SECONDS)
    return time.monotonic()
