"""Does a large backlog make anything slow? Enqueue, claim and ack, start-up after a crash and after a stop, memory."""

import dataclasses
from pathlib import Path
from typing import NamedTuple

from harness.bench import Bench, FleetRun
from harness.numbers import median
from harness.results import Aim, Measured, Target, expect
from harness.server import ServerProcess
from scenarios.batches import QUEUE, consumer, producer

FILL_CALLS = 4
PAYLOAD_BYTES = 100
SAMPLE_SHARE = 20  # of the backlog: enough for the state to be flushed and compacted meanwhile

# Samples of both take turns, so that both meet the same noise; each leaves as many tasks as there were.
_EMPTY, _LARGE = "empty queue", "large backlog"
_STEPS = ("enqueue", "claim+ack")
_FILL = "fill rate"
_FILL_CPU = "filling, server CPU"
_START_KILLED = "ready after SIGKILL"
_START_CLEAN = "ready after a clean stop"
_RSS_FILLING = "peak RSS while filling"
_RSS_KILLED = "RSS after SIGKILL and start"
_RSS_WORKING = "peak RSS while working"
_RSS_CLEAN = "RSS after clean stop and start"


def _cpu(step: str, which: str) -> str:
    return f"{step}, {which}, server CPU"


def _rate(step: str, which: str) -> str:
    return f"{step}, {which}, rate"


def _ratio(step: str) -> str:
    return f"{step}, large backlog to empty queue, server CPU"


def _rate_ratio(step: str) -> str:
    return f"{step}, empty queue to large backlog, rate"


AIMS = (
    *(Aim(_ratio(step), "×", Target(1.2)) for step in _STEPS),
    *(Aim(_rate_ratio(step), "×", Target(1.2)) for step in _STEPS),
    *(Aim(_cpu(step, which), "µs/task") for step in _STEPS for which in (_EMPTY, _LARGE)),
    *(Aim(_rate(step, which), "tasks/s", more_is_better=True) for step in _STEPS for which in (_EMPTY, _LARGE)),
    Aim(_START_KILLED, "s", Target(5.0)),
    Aim(_START_CLEAN, "s", Target(5.0)),
    *(Aim(name, "MB", Target(600.0)) for name in (_RSS_FILLING, _RSS_KILLED, _RSS_WORKING, _RSS_CLEAN)),
    Aim(_FILL, "tasks/s", more_is_better=True),
    Aim(_FILL_CPU, "µs/task"),
)


class Backlog(NamedTuple):
    """What waits."""

    tasks: int
    request_ids: bool  # each has its own

    @property
    def sample_tasks(self) -> int:
        return max(1, self.tasks // SAMPLE_SHARE)


async def measure(bench: Bench) -> Measured:
    return await _measure(bench, Backlog(bench.sizes.backlog_tasks, request_ids=False))


async def measure_singles(bench: Bench) -> Measured:
    return await _measure(bench, Backlog(bench.sizes.single_backlog_tasks, request_ids=True))


async def _measure(bench: Bench, backlog: Backlog) -> Measured:
    measured = Measured()
    sampled = bench.sizes.backlog_samples * backlog.sample_tasks
    async with bench.data_dir() as path:
        await _fill_and_kill(bench, path, backlog, measured)
        await _start_and_work(bench, path, backlog, measured)
        async with await ServerProcess.start(path) as server:
            measured.figures[_START_CLEAN] = [await server.wait_ready()]
            stats = await bench.stats(server.address, QUEUE)
            expect("tasks ready after the restart", stats.ready, backlog.tasks)
            expect("tasks succeeded after the restart", stats.succeeded_total, sampled)
            measured.figures[_RSS_CLEAN] = [server.memory().rss_mb]
            await server.stop()
    figures = measured.figures
    for step in _STEPS:
        for ratio, name, (above, below) in (
            (_ratio, _cpu, (_LARGE, _EMPTY)),
            (_rate_ratio, _rate, (_EMPTY, _LARGE)),
        ):
            figures[ratio(step)] = [median(figures[name(step, above)]) / median(figures[name(step, below)])]
    measured.counts = {"enqueued": stats.enqueued_total, "succeeded": stats.succeeded_total}
    return measured


async def _fill_and_kill(bench: Bench, path: Path, backlog: Backlog, measured: Measured) -> None:
    async with await ServerProcess.start(path) as server:
        filled = await _enqueue(bench, server, QUEUE, backlog, backlog.tasks)
        expect("tasks enqueued", (await bench.stats(server.address, QUEUE)).enqueued_total, backlog.tasks)
        measured.figures[_FILL] = [filled.rate_per_s]
        measured.figures[_FILL_CPU] = list(filled.measured.cpu_us["server"])
        measured.figures[_RSS_FILLING] = [server.memory().peak_rss_mb]
        # At once, while the state is furthest behind the log: the slowest start there is.
        await server.kill()


async def _start_and_work(bench: Bench, path: Path, backlog: Backlog, measured: Measured) -> None:
    async with await ServerProcess.start(path) as large:
        measured.figures[_START_KILLED] = [await large.wait_ready()]
        expect("tasks ready after the crash", (await bench.stats(large.address, QUEUE)).ready, backlog.tasks)
        measured.figures[_RSS_KILLED] = [large.memory().rss_mb]
        await bench.settle(large)
        async with bench.server() as empty:
            for sample in range(1, bench.sizes.backlog_samples + 1):
                await _sample(bench, empty, f"empty-{sample}", backlog, _EMPTY, measured)
                expect("tasks left", (await bench.stats(empty.address, f"empty-{sample}")).ready, 0)
                await _sample(bench, large, QUEUE, backlog, _LARGE, measured)
                expect("tasks left", (await bench.stats(large.address, QUEUE)).ready, backlog.tasks)
            await empty.stop()
        measured.figures[_RSS_WORKING] = [large.memory().peak_rss_mb]
        await large.stop()


async def _sample(
    bench: Bench, server: ServerProcess, queue: str, backlog: Backlog, which: str, measured: Measured
) -> None:
    tasks = backlog.sample_tasks
    enqueued = await _enqueue(bench, server, queue, backlog, tasks)
    specs = {"consumer": consumer(server.address, "drain", queue=queue, tasks=tasks)}
    drained = await bench.run_fleet({"server": server}, f"draining {queue}", specs, counted=["consumer"], tasks=tasks)
    for step, run in zip(_STEPS, (enqueued, drained), strict=True):
        _note(measured, run, step, which)


async def _enqueue(bench: Bench, server: ServerProcess, queue: str, backlog: Backlog, tasks: int) -> FleetRun:
    spec = dataclasses.replace(
        producer(server.address, tasks, queue=queue, calls=FILL_CALLS),
        payload_bytes=PAYLOAD_BYTES,
        request_ids=backlog.request_ids,
    )
    specs = {"producer": spec}
    return await bench.run_fleet({"server": server}, f"filling {queue}", specs, counted=["producer"], tasks=tasks)


def _note(measured: Measured, run: FleetRun, step: str, which: str) -> None:
    """Adds one sample, the CPU and stages told apart by the size of the backlog."""
    part = run.measured
    part.figures = {_cpu(step, which): list(part.cpu_us["server"]), _rate(step, which): [run.rate_per_s]}
    part.cpu_us = {f"{which}, {step}: {name}": values for name, values in part.cpu_us.items()}
    part.stages = {f"{which}, {step}: {name}": values for name, values in part.stages.items()}
    measured.add(part)
