"""Three replicas on this machine: batches, whole lives of tasks, and single enqueues beside one replica."""

from collections.abc import Awaitable, Callable, Mapping

from harness.bench import Bench
from harness.numbers import percentile
from harness.results import Aim, BrokenRunError, Measured, Target, expect
from harness.server import ServerProcess
from scenarios.batches import run_enqueue, run_lifecycle
from scenarios.singles import QUEUE, pacer

SINGLE_RATE_PER_S = 100.0

_CPU_AIMS = (
    Aim("leader", "µs CPU/task"),
    Aim("follower", "µs CPU/task"),  # the mean of both
    Aim("clients", "µs CPU/task"),  # all together
    # The cores divided by this are the highest rate there can be: where others use the machine too, it says more.
    Aim("all processes", "µs CPU/task"),
)
ENQUEUE_AIMS = (
    Aim("rate", "tasks/s", Target(12_000, at_least=True)),
    Aim("call of 100, p50", "ms"),
    Aim("call of 100, p99", "ms"),
    *_CPU_AIMS,
)
LIFECYCLE_AIMS = (
    Aim("rate", "tasks/s", Target(3_000, at_least=True)),
    Aim("enqueue call of 100, p50", "ms"),
    Aim("ack call of 100, p50", "ms"),
    *_CPU_AIMS,
)
_RATIO = "three to one, p50"
_THREE = "three replicas"
_ONE = "one replica"
# From sending: how late a busy client wakes up for a tick has nothing to do with how many replicas there are.
SINGLE_AIMS = (
    Aim(_RATIO, "×", Target(3.0)),
    Aim(f"{_THREE}, p50", "ms"),
    Aim(f"{_THREE}, p99", "ms"),
    Aim(f"{_ONE}, p50", "ms"),
    Aim(f"{_ONE}, p99", "ms"),
)

Load = Callable[[Bench, str, Mapping[str, ServerProcess]], Awaitable[Measured]]


async def measure_enqueue(bench: Bench) -> Measured:
    return await _measure_batches(bench, run_enqueue)


async def measure_lifecycle(bench: Bench) -> Measured:
    return await _measure_batches(bench, run_lifecycle)


async def _measure_batches(bench: Bench, load: Load) -> Measured:
    async with bench.cluster() as cluster:
        term, leader = await cluster.leadership()
        measured = await load(bench, cluster.address, cluster.by_role(leader))
        if await cluster.leadership() != (term, leader):
            raise BrokenRunError("another node leads than before the load, so nobody knows whose figures these are")
        await cluster.check_equal()
        await cluster.stop()
    cpu_us = {name: values[0] for name, values in measured.cpu_us.items()}
    followers_us = cpu_us["follower 1"] + cpu_us["follower 2"]
    clients_us = sum(spent_us for name, spent_us in cpu_us.items() if name.startswith(("producer", "consumer")))
    measured.figures |= {
        "leader": [cpu_us["leader"]],
        "follower": [followers_us / 2],
        "clients": [clients_us],
        "all processes": [cpu_us["leader"] + followers_us + clients_us],
    }
    return measured


async def measure_single(bench: Bench) -> Measured:
    """Three replicas and one take turns, so that both meet the same noise; each pair of turns gives a ratio."""
    tasks = max(1, round(bench.sizes.turn_seconds * SINGLE_RATE_PER_S))
    measured = Measured()
    async with bench.cluster() as cluster, bench.server() as alone:
        _, leader = await cluster.leadership()
        for _ in range(bench.sizes.turns):
            three = await _single_turn(bench, cluster.address, cluster.by_role(leader), _THREE, tasks)
            one = await _single_turn(bench, alone.address, {"server": alone}, _ONE, tasks)
            three.add(one)
            three.figures[_RATIO] = [three.figures[f"{_THREE}, p50"][0] / one.figures[f"{_ONE}, p50"][0]]
            measured.add(three)
        for address in (cluster.address, alone.address):
            stats = await bench.stats(address, QUEUE)
            expect("tasks enqueued", stats.enqueued_total, bench.sizes.turns * tasks)
        await cluster.check_equal()
        await cluster.stop()
        await alone.stop()
    measured.counts = {_THREE: bench.sizes.turns * tasks, _ONE: stats.enqueued_total}
    return measured


async def _single_turn(
    bench: Bench, address: str, servers: Mapping[str, ServerProcess], which: str, tasks: int
) -> Measured:
    specs = {"producer": pacer(address, tasks, SINGLE_RATE_PER_S)}
    run = await bench.run_fleet(servers, which, specs, counted=["producer"], tasks=tasks)
    send_ms = run.results["producer"].send_ms
    part = run.measured
    part.figures = {f"{which}, p{percent}": [percentile(send_ms, percent)] for percent in (50, 99)}
    part.cpu_us = {f"{which}, {name}": values for name, values in part.cpu_us.items()}
    part.stages = {f"{which}, {name}": values for name, values in part.stages.items()}
    return part
