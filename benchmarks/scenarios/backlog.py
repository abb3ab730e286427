"""Does a large backlog make anything slow? The cost of claim and ack, start-up after a crash and a stop, memory."""

from pathlib import Path

from harness.bench import Bench, FleetRun
from harness.numbers import median
from harness.results import Aim, Measured, Target, expect
from harness.server import ServerProcess
from scenarios.batches import QUEUE, consumer, producer

FILL_CALLS = 4

_SMALL_CPU = "claim+ack, small backlog, server CPU"
_LARGE_CPU = "claim+ack, large backlog, server CPU"
_SMALL_WALL = "claim+ack, small backlog, wall"
_LARGE_WALL = "claim+ack, large backlog, wall"
_RATIO_CPU = "large to small, server CPU"
_RATIO_WALL = "large to small, wall"
_FILL = "fill rate"
_START_KILLED = "start after SIGKILL"
_START_CLEAN = "start after a clean stop"
_RSS_FILLING = "peak RSS while filling"
_RSS_DRAINING = "peak RSS while draining"
_RSS_KILLED = "RSS after SIGKILL and start"
_RSS_CLEAN = "RSS after clean stop and start"

AIMS = (
    Aim(_SMALL_CPU, "µs"),
    Aim(_LARGE_CPU, "µs"),
    Aim(_RATIO_CPU, "×", Target(1.5)),
    Aim(_SMALL_WALL, "µs"),
    Aim(_LARGE_WALL, "µs"),
    Aim(_RATIO_WALL, "×", Target(1.5)),
    Aim(_START_KILLED, "s", Target(5.0)),
    Aim(_START_CLEAN, "s", Target(5.0)),
    Aim(_RSS_FILLING, "MB", Target(600.0)),
    Aim(_RSS_DRAINING, "MB", Target(600.0)),
    Aim(_RSS_KILLED, "MB", Target(600.0)),
    Aim(_RSS_CLEAN, "MB", Target(600.0)),
    Aim(_FILL, "tasks/s", more_is_better=True),
)


async def measure(bench: Bench) -> Measured:
    sizes = bench.sizes
    measured = Measured()
    drained = sizes.drain_samples * sizes.drain_tasks
    async with bench.data_dir() as path:
        await _fill_and_kill(bench, path, measured)
        await _start_and_drain(bench, path, measured)
        async with await ServerProcess.start(path) as server:
            stats = await bench.stats(server.address, QUEUE)
            expect("tasks ready after the restart", stats.ready, sizes.backlog_tasks - drained)
            expect("tasks succeeded after the restart", stats.succeeded_total, drained)
            measured.figures[_START_CLEAN] = [server.start_seconds]
            measured.figures[_RSS_CLEAN] = [server.memory().rss_mb]
            await server.stop()
    figures = measured.figures
    figures[_RATIO_CPU] = [median(figures[_LARGE_CPU]) / median(figures[_SMALL_CPU])]
    figures[_RATIO_WALL] = [median(figures[_LARGE_WALL]) / median(figures[_SMALL_WALL])]
    measured.counts = {"enqueued": stats.enqueued_total, "succeeded": stats.succeeded_total}
    return measured


async def _fill_and_kill(bench: Bench, path: Path, measured: Measured) -> None:
    async with await ServerProcess.start(path) as server:
        filled = await _fill(bench, server, QUEUE, bench.sizes.backlog_tasks)
        measured.figures[_FILL] = [filled.rate_per_s]
        measured.figures[_RSS_FILLING] = [server.memory().peak_rss_mb]
        # At once, while the state is furthest behind the log: the slowest start there is.
        await server.kill()


async def _start_and_drain(bench: Bench, path: Path, measured: Measured) -> None:
    """Samples of the large and of a small backlog take turns, so that both meet the same noise."""
    sizes = bench.sizes
    async with await ServerProcess.start(path) as large:
        measured.figures[_START_KILLED] = [large.start_seconds]
        expect("tasks ready after the crash", (await bench.stats(large.address, QUEUE)).ready, sizes.backlog_tasks)
        measured.figures[_RSS_KILLED] = [large.memory().rss_mb]
        await bench.settle(large)
        async with bench.server() as small:
            for sample in range(1, sizes.drain_samples + 1):
                await _sample_small(bench, small, f"small-{sample}", measured)
                run = await _drain(bench, large, QUEUE)
                _note(measured, run, "large", _LARGE_CPU, _LARGE_WALL)
                left = sizes.backlog_tasks - sample * sizes.drain_tasks
                expect("tasks left", (await bench.stats(large.address, QUEUE)).ready, left)
            await small.stop()
        measured.figures[_RSS_DRAINING] = [large.memory().peak_rss_mb]
        await large.stop()


async def _sample_small(bench: Bench, server: ServerProcess, queue: str, measured: Measured) -> None:
    """Fills a queue with just what it drains."""
    await _fill(bench, server, queue, bench.sizes.drain_tasks)
    run = await _drain(bench, server, queue)
    _note(measured, run, "small", _SMALL_CPU, _SMALL_WALL)
    expect("tasks left", (await bench.stats(server.address, queue)).ready, 0)


async def _fill(bench: Bench, server: ServerProcess, queue: str, tasks: int) -> FleetRun:
    specs = {"producer": producer(server.address, tasks, queue=queue, calls=FILL_CALLS)}
    run = await bench.run_fleet({"server": server}, f"filling {queue}", specs, counted=["producer"], tasks=tasks)
    expect("tasks enqueued", (await bench.stats(server.address, queue)).enqueued_total, tasks)
    return run


async def _drain(bench: Bench, server: ServerProcess, queue: str) -> FleetRun:
    tasks = bench.sizes.drain_tasks
    specs = {"consumer": consumer(server.address, "drain", queue=queue, tasks=tasks)}
    return await bench.run_fleet({"server": server}, f"draining {queue}", specs, counted=["consumer"], tasks=tasks)


def _note(measured: Measured, run: FleetRun, which: str, cpu: str, wall: str) -> None:
    """Adds one sample, the CPU and stages told apart by the size of the backlog."""
    part = run.measured
    part.figures = {cpu: list(part.cpu_us["server"]), wall: [run.seconds / run.tasks * 1e6]}
    part.cpu_us = {f"{which} backlog, {name}": values for name, values in part.cpu_us.items()}
    part.stages = {f"{which} backlog, {name}": values for name, values in part.stages.items()}
    measured.add(part)
