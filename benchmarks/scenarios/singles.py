"""Single tasks: how long an enqueue takes at a moderate rate, and how soon a waiting worker has the task."""

from harness.bench import Bench
from harness.numbers import percentile
from harness.protocol import PACE, PICK_UP, LoadSpec
from harness.results import Aim, Measured, Target, expect

QUEUE = "bench"
PAYLOAD_BYTES = 1024
SINGLE_RATE_PER_S = 200.0
PICKUP_RATE_PER_S = 50.0  # slow enough that the worker waits again before the next task comes

# Counted from the tick of the schedule: what a caller feels who does not wait for others. The client's own lateness
# (asyncio wakes up to a millisecond late) is in it; "from sending" is without.
SINGLE_AIMS = (
    Aim("p50", "ms"),
    Aim("p99", "ms", Target(5.0)),
    Aim("max", "ms"),
    Aim("p50 from sending", "ms"),
    Aim("p99 from sending", "ms"),
)
PICKUP_AIMS = (
    Aim("p50", "ms", Target(5.0)),
    Aim("p99", "ms"),
    Aim("max", "ms"),
)


def pacer(address: str, tasks: int, rate_per_s: float) -> LoadSpec:
    return LoadSpec(
        role=PACE, address=address, queue=QUEUE, tasks=tasks, payload_bytes=PAYLOAD_BYTES, rate_per_s=rate_per_s
    )


async def measure_single(bench: Bench) -> Measured:
    tasks = max(1, round(bench.sizes.single_seconds * SINGLE_RATE_PER_S))
    async with bench.server() as server:
        specs = {"producer": pacer(server.address, tasks, SINGLE_RATE_PER_S)}
        run = await bench.run_fleet({"server": server}, "single", specs, counted=["producer"], tasks=tasks)
        stats = await bench.stats(server.address, QUEUE)
        expect("tasks enqueued", stats.enqueued_total, tasks)
        expect("tasks ready", stats.ready, tasks)
        await server.stop()
    from_tick_ms, from_send_ms = run.results["producer"].call_ms, run.results["producer"].send_ms
    run.measured.figures = {
        "p50": [percentile(from_tick_ms, 50)],
        "p99": [percentile(from_tick_ms, 99)],
        "max": [max(from_tick_ms)],
        "p50 from sending": [percentile(from_send_ms, 50)],
        "p99 from sending": [percentile(from_send_ms, 99)],
    }
    run.measured.counts = {"enqueued": stats.enqueued_total}
    return run.measured


async def measure_pickup(bench: Bench) -> Measured:
    """From before the enqueue call until the worker's reserve call has returned the task, in two processes."""
    tasks = bench.sizes.pickup_tasks
    async with bench.server() as server:
        specs = {
            "producer": pacer(server.address, tasks, PICKUP_RATE_PER_S),
            "worker": LoadSpec(role=PICK_UP, address=server.address, queue=QUEUE, worker="waiting"),
        }
        run = await bench.run_fleet(
            {"server": server}, "pickup", specs, counted=["worker"], tasks=tasks, stop_after=["worker"]
        )
        stats = await bench.stats(server.address, QUEUE)
        expect("tasks enqueued", stats.enqueued_total, tasks)
        expect("tasks succeeded", stats.succeeded_total, tasks)
        await server.stop()
    picked_ms = run.results["worker"].call_ms
    run.measured.figures = {
        "p50": [percentile(picked_ms, 50)],
        "p99": [percentile(picked_ms, 99)],
        "max": [max(picked_ms)],
    }
    run.measured.counts = {"enqueued": stats.enqueued_total, "succeeded": stats.succeeded_total}
    return run.measured
