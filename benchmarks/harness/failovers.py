"""What measurements of fail-overs share: a node that leads is gone (SIGKILL) or stands still (SIGSTOP), somebody waits
for what comes next, and then the node is back and catches up."""

import time
from collections.abc import Awaitable, Callable, Sequence

from harness.bench import Bench
from harness.cluster import Cluster
from harness.probes import NoiseMeter
from harness.results import Aim, Measured, Target

LAG_ENTRIES_MAX = 10  # of a replica that has caught up: as many may be on their way
KILL = "SIGKILL"
STOP = "SIGSTOP"
_KINDS = (KILL, STOP)


def aims(what: str, target_s: float, slowest_s: float) -> tuple[Aim, ...]:
    """what: somebody waits for, e.g. "write"."""
    return tuple(
        aim
        for kind in _KINDS
        for aim in (
            Aim(f"{kind}, next {what}", "s", Target(target_s)),
            Aim(f"{kind}, slowest of all", "s", Target(slowest_s)),
            Aim(f"{kind}, next leader", "s"),
        )
    )


async def all_trials(bench: Bench, measured: Measured, what: str, trial: Callable[[str], Awaitable[Measured]]) -> None:
    """Both kinds take turns, so that both meet the same noise."""
    count = len(_KINDS) * bench.sizes.trials
    with bench.display.progress("fail-over", count) as on_progress:
        for index in range(count):
            measured.add(await trial(_KINDS[index % len(_KINDS)]))
            on_progress(index + 1)
    for kind in _KINDS:
        measured.figures[f"{kind}, slowest of all"] = [max(measured.figures[f"{kind}, next {what}"])]
    measured.counts["fail-overs"] = count


async def fail_over(
    cluster: Cluster, victim: str, kind: str, what: str, wait: Callable[[], Awaitable[Sequence[float]]]
) -> tuple[Measured, bool]:
    """What was measured, and whether another node has begun to lead since.

    wait: returns the moments at which what was waited for came."""
    node, noise, before_s = cluster.nodes[victim], NoiseMeter(), cluster.cpu_s
    gone_s = time.monotonic()
    if kind == KILL:
        await node.kill()
    else:
        await node.pause()
    came_s = await wait()
    others_percent = noise.others_percent(sum(spent_s - before_s[pid] for pid, spent_s in cluster.cpu_s.items()))
    figures = {f"{kind}, next {what}": [at_s - gone_s for at_s in came_s]}
    led_s = cluster.led_at_s - gone_s
    if led_s > 0:  # otherwise that line of its log has not been read yet
        figures[f"{kind}, next leader"] = [led_s]
    if kind == KILL:
        await cluster.start_node(victim)
    else:
        node.resume()
    await cluster.wait_whole(lag_max=LAG_ENTRIES_MAX)
    return Measured(figures=figures, others_percent=[others_percent]), cluster.led_at_s > gone_s
