"""What a task costs by how many come in a call, how large they are, and on how many shards and replicas they are."""

import asyncio
import dataclasses

from harness.bench import Bench
from harness.cluster import Cluster
from harness.fleet import Fleet
from harness.probes import NoiseMeter, calibration_ms
from harness.protocol import CONSUME, PRODUCE, SATURATE, LoadSpec
from harness.results import Aim, Measured
from harness.server import ServerProcess
from holdfast.routing.homes import home_shard

BATCHES = (1, 10, 100, 1_000)
CALLS_MAX = 2_000  # of a turn: with one task in each it would take minutes
PAYLOADS = {"0": 0, "1 KB": 1024, "64 KB": 64 * 1024}
PAYLOAD_BATCH_TASKS = 10  # as many of the largest as a call may carry, and as many of the others
PAYLOAD_BYTES = 1024
CALLERS = 2

SHARDS = (1, 4)
REPLICAS = (1, 3)
QUEUES = 4  # with four shards each is on one of its own
LOADS = 2  # processes
SHARD_BATCH_TASKS = 50

_FIGURES = (
    ("enqueue, rate", "tasks/s"),
    ("enqueue, server", "µs CPU/task"),
    ("enqueue, client", "µs CPU/task"),
    ("claim and ack, rate", "tasks/s"),
    ("claim and ack, server", "µs CPU/task"),
    ("claim and ack, client", "µs CPU/task"),
)
_SHARD_FIGURES = (("rate", "tasks/s"), ("servers", "µs CPU/task"), ("clients", "µs CPU/task"))


def _aims(groups: list[str], figures: tuple[tuple[str, str], ...]) -> tuple[Aim, ...]:
    return tuple(
        Aim(f"{group}, {name}", unit, more_is_better=unit == "tasks/s") for group in groups for name, unit in figures
    )


def _cluster_name(shards: int, replicas: int) -> str:
    return f"{shards} shard{'s' * (shards > 1)}, {replicas} replica{'s' * (replicas > 1)}"


BATCH_AIMS = _aims([f"{batch:,} per call" for batch in BATCHES], _FIGURES)
PAYLOAD_AIMS = _aims([f"payload {name}" for name in PAYLOADS], _FIGURES)
SHARD_AIMS = _aims([_cluster_name(shards, replicas) for shards in SHARDS for replicas in REPLICAS], _SHARD_FIGURES)


async def measure_batches(bench: Bench) -> Measured:
    measured = Measured()
    async with bench.server() as server:
        for batch in BATCHES:
            tasks = min(bench.sizes.shape_tasks, batch * CALLS_MAX)
            part = await _there_and_back(bench, server, f"{batch:,} per call", tasks, batch, PAYLOAD_BYTES)
            measured.add(part)
        await server.stop()
    return measured


async def measure_payloads(bench: Bench) -> Measured:
    measured = Measured()
    async with bench.server() as server:
        for name, size_bytes in PAYLOADS.items():
            tasks = min(bench.sizes.shape_tasks, PAYLOAD_BATCH_TASKS * CALLS_MAX)
            if size_bytes > PAYLOAD_BYTES:
                tasks //= 4
            part = await _there_and_back(bench, server, f"payload {name}", tasks, PAYLOAD_BATCH_TASKS, size_bytes)
            measured.add(part)
        await server.stop()
    return measured


async def _there_and_back(
    bench: Bench, server: ServerProcess, group: str, tasks: int, batch_tasks: int, payload_bytes: int
) -> Measured:
    """A queue is filled, and then emptied, in calls of the same size."""
    filling = LoadSpec(
        role=PRODUCE, address=server.address, queue=group.replace(" ", "-").replace(",", ""), tasks=tasks,
        batch_tasks=batch_tasks, payload_bytes=payload_bytes, calls_in_flight=CALLERS,
    )  # fmt: skip
    emptying = dataclasses.replace(filling, role=CONSUME, worker="consumer")
    measured = Measured()
    for what, spec in (("enqueue", filling), ("claim and ack", emptying)):
        run = await bench.run_fleet(
            {"server": server}, f"{group}, {what}", {"client": spec}, counted=["client"], tasks=tasks
        )
        part = run.measured
        part.figures = {
            f"{group}, {what}, rate": [run.rate_per_s],
            f"{group}, {what}, server": part.cpu_us["server"],
            f"{group}, {what}, client": part.cpu_us["client"],
        }
        part.cpu_us, part.stages = {}, {}
        part.counts = {f"{group}, {what}": tasks}
        measured.add(part)
    return measured


async def measure_shards(bench: Bench) -> Measured:
    """The same load on the same three nodes, whatever they have."""
    measured = Measured()
    for shards in SHARDS:
        for replicas in REPLICAS:
            async with bench.mapped_cluster(shards=shards, replication=replicas) as cluster:
                measured.add(await _saturate(bench, cluster, _cluster_name(shards, replicas)))
                await cluster.stop()
    return measured


async def _saturate(bench: Bench, cluster: Cluster, group: str) -> Measured:
    async with Fleet(_specs(cluster.address)) as fleet:
        before_ms, noise, before_s = calibration_ms(), NoiseMeter(), sum(cluster.cpu_s.values())
        stop = asyncio.get_running_loop().call_later(bench.sizes.turn_seconds, fleet.stop)
        try:
            results = (await fleet.run(on_progress=lambda _: None, counted=(), tasks=1)).values()
        finally:
            stop.cancel()
        seconds = noise.seconds
        servers_s = sum(cluster.cpu_s.values()) - before_s
    clients_s = sum(result.cpu_s for result in results)
    tasks = sum(result.done for result in results)
    return Measured(
        figures={
            f"{group}, rate": [tasks / seconds],
            f"{group}, servers": [servers_s / tasks * 1e6],
            f"{group}, clients": [clients_s / tasks * 1e6],
        },
        others_percent=[noise.others_percent(servers_s + clients_s)],
        calibration_ms=[before_ms, calibration_ms()],
        counts={group: tasks},
    )


def _specs(address: str) -> dict[str, LoadSpec]:
    """Whole lives in as many queues as there can be shards, each of which has one of them then."""
    of_shard: dict[int, str] = {}
    for number in range(100 * QUEUES):
        of_shard.setdefault(home_shard(f"q{number}", QUEUES), f"q{number}")
    queues = list(of_shard.values())
    return {
        f"load {number + 1}": LoadSpec(
            role=SATURATE, address=address, queue="", queues=queues[number::LOADS], batch_tasks=SHARD_BATCH_TASKS,
            calls_in_flight=CALLERS, direct=True,
        )
        for number in range(LOADS)
    }  # fmt: skip
