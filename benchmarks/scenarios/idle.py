"""What many shards cost when there is nothing to do."""

import asyncio
import time

from harness import probes
from harness.bench import Bench
from harness.cluster import Cluster
from harness.results import Aim, Measured, Target

SHARDS = 64
SETTLE_SECONDS_MAX = 20.0
SETTLED_CHANGE_PERCENT = 1.0  # of a core, from one second to the next
_BUSIEST = "busiest node, CPU"
_EACH = "each node, CPU"

AIMS = (
    Aim(_BUSIEST, "% of a core", Target(10.0)),
    Aim(_EACH, "% of a core"),
    Aim("RSS of a node", "MB"),
)


async def measure(bench: Bench) -> Measured:
    before_ms = probes.calibration_ms()
    async with bench.cluster(shards=SHARDS) as cluster:
        await _settle(bench, cluster)
        noise = probes.NoiseMeter()
        shares = await _shares_percent(cluster, bench.sizes.idle_seconds)
        spent_s = sum(shares) / 100 * bench.sizes.idle_seconds
        others_percent = noise.others_percent(spent_s)
        after_ms = probes.calibration_ms()
        await cluster.wait_whole()  # nobody has lost a leader meanwhile
        memory = [node.memory().rss_mb for node in cluster.nodes.values()]
        await cluster.stop()
    return Measured(
        figures={_BUSIEST: [max(shares)], _EACH: shares, "RSS of a node": memory},
        others_percent=[others_percent],
        calibration_ms=[before_ms, after_ms],
        counts={"nodes": len(shares), "shards": SHARDS},
    )


async def _shares_percent(cluster: Cluster, seconds: float) -> list[float]:
    """How much of a core each node uses."""
    pids = [node.pid for node in cluster.nodes.values()]
    began_s = time.monotonic()
    before_s = [probes.process_cpu_s(pid) for pid in pids]
    await asyncio.sleep(seconds)
    after_s = [probes.process_cpu_s(pid) for pid in pids]
    elapsed_s = time.monotonic() - began_s
    return [100 * (after - before) / elapsed_s for before, after in zip(before_s, after_s, strict=True)]


async def _settle(bench: Bench, cluster: Cluster) -> None:
    """Waits until what the start left behind is done: it is not the cost of being idle."""
    ends_s = time.monotonic() + min(SETTLE_SECONDS_MAX, bench.sizes.idle_seconds)
    last = await _shares_percent(cluster, 1.0)
    while time.monotonic() < ends_s:
        shares = await _shares_percent(cluster, 1.0)
        if max(abs(now - then) for now, then in zip(shares, last, strict=True)) < SETTLED_CHANGE_PERCENT:
            return
        last = shares
