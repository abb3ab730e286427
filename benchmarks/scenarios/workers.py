"""Apps and workers: handlers that do nothing, so that what is measured is the way to them and back."""

from harness.bench import Bench
from harness.numbers import percentile
from harness.protocol import PRODUCE_CALLS, PRODUCE_SINGLY, WORK, LoadSpec
from harness.results import Aim, Measured, Target, expect

QUEUE = "bench"
BATCH_TASKS = 100
SLOTS = 200

WORKER_AIMS = (
    Aim("rate", "tasks/s", Target(3_000, at_least=True)),
    Aim("producer process", "µs CPU/task"),
    Aim("worker process", "µs CPU/task"),
)
CALLER_AIMS = (
    Aim("producer process", "µs CPU/task"),
    Aim("call, p50", "ms"),
    Aim("call, p99", "ms"),
)


async def measure_worker(bench: Bench) -> Measured:
    """One process enqueues calls, one worker process runs them, both from the first to the last."""
    tasks = bench.sizes.worker_tasks
    async with bench.server() as server:
        specs = {
            "producer": LoadSpec(
                role=PRODUCE_CALLS, address=server.address, queue=QUEUE, tasks=tasks, batch_tasks=BATCH_TASKS
            ),
            "worker": LoadSpec(role=WORK, address=server.address, queue=QUEUE, calls_in_flight=SLOTS, worker="bench"),
        }
        run = await bench.run_fleet(
            {"server": server}, "worker", specs, counted=["worker"], tasks=tasks, stop_after=["worker"]
        )
        stats = await bench.stats(server.address, QUEUE)
        expect("tasks enqueued", stats.enqueued_total, tasks)
        expect("tasks succeeded", stats.succeeded_total, tasks)
        expect("tasks claimed in all", stats.claimed_total, tasks)
        await server.stop()
    run.measured.figures = {
        "rate": [run.rate_per_s],
        "producer process": run.measured.cpu_us["producer"],
        "worker process": run.measured.cpu_us["worker"],
    }
    run.measured.counts = {"enqueued": stats.enqueued_total, "succeeded": stats.succeeded_total}
    return run.measured


async def measure_caller(bench: Bench) -> Measured:
    """A plain program that enqueues one call after the other: the dearest way."""
    tasks = bench.sizes.caller_tasks
    async with bench.server() as server:
        specs = {"producer": LoadSpec(role=PRODUCE_SINGLY, address=server.address, queue=QUEUE, tasks=tasks)}
        run = await bench.run_fleet({"server": server}, "caller", specs, counted=["producer"], tasks=tasks)
        stats = await bench.stats(server.address, QUEUE)
        expect("tasks enqueued", stats.enqueued_total, tasks)
        await server.stop()
    call_ms = run.results["producer"].call_ms
    run.measured.figures = {
        "producer process": run.measured.cpu_us["producer"],
        "call, p50": [percentile(call_ms, 50)],
        "call, p99": [percentile(call_ms, 99)],
    }
    run.measured.counts = {"enqueued": stats.enqueued_total}
    return run.measured
