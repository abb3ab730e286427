"""Many shards that are all saturated, without any fault: nobody loses a leader, every call has an outcome, and the
rounds of the nodes stay short."""

import asyncio
import math
import re

from harness.bench import Bench
from harness.cluster import Cluster
from harness.fleet import Fleet
from harness.numbers import histogram_percentile, percentile
from harness.probes import NoiseMeter, calibration_ms
from harness.protocol import SATURATE, LoadResult, LoadSpec
from harness.results import Aim, Measured, Target
from holdfast.routing.homes import home_shard

SHARDS = (16, 64)
LOADS = 2  # processes
CALLERS = 2  # of each shard
BATCH_TASKS = 50

AIMS = tuple(
    aim
    for shards in SHARDS
    for aim in (
        Aim(f"{shards} shards, leader changes", "", Target(0)),
        Aim(f"{shards} shards, outcomes unknown", "", Target(0)),
        Aim(f"{shards} shards, round, p99", "ms", Target(100)),
        Aim(f"{shards} shards, round, p50", "ms"),
        Aim(f"{shards} shards, batch of {BATCH_TASKS} enqueued, claimed and acked, p99", "ms"),
        Aim(f"{shards} shards, rate", "tasks/s", more_is_better=True),
        Aim(f"{shards} shards, refused", "calls"),
    )
)


async def measure(bench: Bench) -> Measured:
    measured = Measured()
    for shards in SHARDS:
        async with bench.mapped_cluster(shards=shards) as cluster:
            measured.add(await _saturate(bench, cluster, shards))
            await cluster.wait_whole()
            await cluster.stop()
    return measured


async def _saturate(bench: Bench, cluster: Cluster, shards: int) -> Measured:
    seconds = bench.sizes.saturated_seconds
    async with Fleet(_specs(cluster, shards)) as fleet:
        before_ms, noise, spent_s = calibration_ms(), NoiseMeter(), sum(cluster.cpu_s.values())
        terms, rounds = await cluster.terms(), await _rounds(cluster)
        stop = asyncio.get_running_loop().call_later(seconds, fleet.stop)
        try:
            with bench.display.progress(f"{shards} shards", 0) as on_progress:
                results = await fleet.run(on_progress=on_progress, counted=fleet.names, tasks=0)
        finally:
            stop.cancel()
        spent_s = sum(cluster.cpu_s.values()) - spent_s + sum(result.cpu_s for result in results.values())
        others_percent = noise.others_percent(spent_s)
        counted = {limit: count - rounds.get(limit, 0.0) for limit, count in (await _rounds(cluster)).items()}
        changes = sum(abs(term - terms[shard]) for shard, term in (await cluster.terms()).items())
    figures = _figures(shards, seconds, list(results.values()), counted, changes)
    return Measured(
        figures=figures, others_percent=[others_percent], calibration_ms=[before_ms, calibration_ms()],
        counts={f"tasks of {shards} shards": sum(result.done for result in results.values())},
    )  # fmt: skip


def _specs(cluster: Cluster, shards: int) -> dict[str, LoadSpec]:
    names = iter(f"q{number}" for number in range(100 * shards))
    of_shard: dict[int, str] = {}
    while len(of_shard) < shards:
        name = next(names)
        of_shard.setdefault(home_shard(name, shards), name)
    queues = list(of_shard.values())
    return {
        f"load {index + 1}": LoadSpec(
            role=SATURATE, address=cluster.address, queue="", queues=queues[index::LOADS], batch_tasks=BATCH_TASKS,
            calls_in_flight=CALLERS, direct=True,
        )
        for index in range(LOADS)
    }  # fmt: skip


async def _rounds(cluster: Cluster) -> dict[float, float]:
    """How many rounds of all nodes took at most so many seconds."""
    counts: dict[float, float] = {}
    for node in cluster.nodes.values():
        for series, count in (await node.scrape()).items():
            found = re.fullmatch(r'holdfast_round_seconds_bucket\{le="(.+)"\}', series)
            if found:
                limit = math.inf if found[1] == "+Inf" else float(found[1])
                counts[limit] = counts.get(limit, 0.0) + count
    return counts


def _figures(
    shards: int, seconds: float, results: list[LoadResult], rounds: dict[float, float], changes: int
) -> dict[str, list[float]]:
    call_ms = [item for result in results for item in result.call_ms]
    figures = {
        "leader changes": changes,
        "outcomes unknown": sum(result.unknown for result in results),
        "round, p99": histogram_percentile(rounds, 99) * 1000,
        "round, p50": histogram_percentile(rounds, 50) * 1000,
        f"batch of {BATCH_TASKS} enqueued, claimed and acked, p99": percentile(call_ms, 99),
        "rate": sum(result.done for result in results) / seconds,
        "refused": sum(result.refused for result in results),
    }
    return {f"{shards} shards, {name}": [value] for name, value in figures.items()}
