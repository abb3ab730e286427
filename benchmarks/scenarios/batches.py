"""Batched enqueue, and whole lives of tasks."""

from collections.abc import Mapping

from harness.bench import Bench
from harness.numbers import percentile
from harness.protocol import CONSUME, PRODUCE, LoadSpec
from harness.results import Aim, Measured, Target, expect
from harness.server import ServerProcess

QUEUE = "bench"
BATCH_TASKS = 100
PAYLOAD_BYTES = 1024
PRODUCER_CALLS = 4
CONSUMERS = 2
CONSUMER_CALLS = 2  # one batch is acked while the next is claimed

ENQUEUE_AIMS = (
    Aim("rate", "tasks/s", Target(30_000, at_least=True)),
    Aim("call of 100, p50", "ms"),
    Aim("call of 100, p99", "ms"),
)
LIFECYCLE_AIMS = (
    Aim("rate", "tasks/s", Target(10_000, at_least=True)),
    Aim("enqueue call of 100, p50", "ms"),
    Aim("ack call of 100, p50", "ms"),
)


def producer(address: str, tasks: int, *, queue: str = QUEUE, calls: int = PRODUCER_CALLS) -> LoadSpec:
    return LoadSpec(
        role=PRODUCE,
        address=address,
        queue=queue,
        tasks=tasks,
        batch_tasks=BATCH_TASKS,
        payload_bytes=PAYLOAD_BYTES,
        calls_in_flight=calls,
    )


def consumer(address: str, worker: str, *, queue: str = QUEUE, tasks: int = 0) -> LoadSpec:
    return LoadSpec(
        role=CONSUME,
        address=address,
        queue=queue,
        tasks=tasks,
        batch_tasks=BATCH_TASKS,
        calls_in_flight=CONSUMER_CALLS,
        worker=worker,
    )


async def measure_enqueue(bench: Bench) -> Measured:
    async with bench.server() as server:
        measured = await run_enqueue(bench, server.address, {"server": server})
        await server.stop()
    return measured


async def measure_lifecycle(bench: Bench) -> Measured:
    async with bench.server() as server:
        measured = await run_lifecycle(bench, server.address, {"server": server})
        await server.stop()
    return measured


async def run_enqueue(bench: Bench, address: str, servers: Mapping[str, ServerProcess]) -> Measured:
    """Into one server, or into a leader and its followers."""
    tasks = bench.sizes.enqueue_tasks
    specs = {"producer": producer(address, tasks)}
    run = await bench.run_fleet(servers, "enqueue", specs, counted=["producer"], tasks=tasks)
    stats = await bench.stats(address, QUEUE)
    expect("tasks enqueued", stats.enqueued_total, tasks)
    expect("tasks ready", stats.ready, tasks)
    call_ms = run.results["producer"].call_ms
    run.measured.figures = {
        "rate": [run.rate_per_s],
        "call of 100, p50": [percentile(call_ms, 50)],
        "call of 100, p99": [percentile(call_ms, 99)],
    }
    run.measured.counts = {"enqueued": stats.enqueued_total}
    return run.measured


async def run_lifecycle(bench: Bench, address: str, servers: Mapping[str, ServerProcess]) -> Measured:
    tasks = bench.sizes.lifecycle_tasks
    consumers = [f"consumer {number}" for number in range(1, CONSUMERS + 1)]
    specs = {"producer": producer(address, tasks)}
    specs |= {name: consumer(address, name) for name in consumers}
    run = await bench.run_fleet(servers, "lifecycle", specs, counted=consumers, tasks=tasks, stop_after=consumers)
    stats = await bench.stats(address, QUEUE)
    expect("tasks enqueued", stats.enqueued_total, tasks)
    expect("tasks succeeded", stats.succeeded_total, tasks)
    expect("tasks claimed in all", stats.claimed_total, tasks)
    expect("tasks left", stats.ready + stats.claimed + stats.retrying + stats.dead, 0)
    run.measured.figures = {
        "rate": [run.rate_per_s],
        "enqueue call of 100, p50": [percentile(run.results["producer"].call_ms, 50)],
        "ack call of 100, p50": [percentile([ms for name in consumers for ms in run.results[name].call_ms], 50)],
    }
    run.measured.counts = {"enqueued": stats.enqueued_total, "succeeded": stats.succeeded_total}
    return run.measured
