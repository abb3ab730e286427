"""A replica moves to a new node while somebody enqueues: how long it takes, and what the others feel of it.

The shard is filled first, with payloads that nothing can make smaller. Single tasks are then enqueued through the
router by a schedule: for a while before the move, as long as it takes, and for a while after it. What they feel is the
p99 while it moves, compared with the one just before.
"""

import asyncio
import time

from harness.bench import Bench
from harness.mapped import MappedCluster
from harness.numbers import percentile
from harness.probes import NoiseMeter, calibration_ms, process_cpu_s
from harness.protocol import PRODUCE, LoadSpec
from harness.results import Aim, BrokenRunError, Measured, Target, expect, reasons
from holdfast.client import AsyncClient, HoldfastError, MoveWish, NewTask, NotFound

FILL_QUEUE = "fill"
QUEUE = "bench"
FILL_PAYLOAD_BYTES = 16 * 1024
FILL_BATCH_TASKS = 200
FILL_CALLS = 2
PAYLOAD = bytes(1024)
WRITES_PER_S = 100.0
WRITE_SECONDS_MAX = 60.0
NEW_NODE = "n4"
ADVANCE_SECONDS = 0.25  # between two looks at the plan
MOVE_SECONDS_MAX = 120.0
MOVE_MB_PER_S_MIN = 2.0
HASH_MB_PER_S_MIN = 5.0
SETTLE_SECONDS_MAX = 60.0
SETTLED_CORES = 0.3  # of all processes together, over a second

_RATIO = "p99 while moving to before"
_RATIO_TO_BOTH = "p99 while moving to before and after"  # where others come and go, it says more
_BEFORE, _DURING, _AFTER = "before", "while moving", "after"

AIMS = (
    Aim(_RATIO, "×", Target(3.0)),
    Aim(_RATIO_TO_BOTH, "×"),
    Aim("move", "s"),
    Aim("moved", "MB/s", more_is_better=True),
    *(Aim(f"p{percent}, {when}", "ms") for percent in (50, 99) for when in (_BEFORE, _DURING, _AFTER)),
    Aim(f"slowest, {_DURING}", "ms"),
    Aim("fill", "MB/s", more_is_better=True),
)


class Writer:
    """Sends single tasks by a schedule, whether or not earlier ones are acknowledged."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._stopping = False
        self.took_ms: dict[str, list[float]] = {_BEFORE: [], _DURING: [], _AFTER: []}
        self.when = ""  # of those that are sent now; empty: of no interest
        self.acknowledged = 0

    async def run(self) -> None:
        """Returns once it is stopped and every task is acknowledged."""
        first_s, ticks = time.monotonic(), 0
        async with asyncio.TaskGroup() as group:
            while not self._stopping:
                group.create_task(self._write())
                ticks += 1
                await asyncio.sleep(max(0.0, first_s + ticks / WRITES_PER_S - time.monotonic()))

    def stop(self) -> None:
        self._stopping = True

    async def _write(self) -> None:
        when, sent_s = self.when, time.monotonic()
        await self._client.enqueue(NewTask(QUEUE, "bench", PAYLOAD))
        self.acknowledged += 1
        if when:
            self.took_ms[when].append((time.monotonic() - sent_s) * 1000)


async def measure(bench: Bench) -> Measured:
    before_ms = calibration_ms()
    async with bench.mapped_cluster() as cluster:
        await cluster.add_node(NEW_NODE)
        filled, fill_mb_per_s = await _fill(bench, cluster)
        await _settle(cluster)
        noise, before_s = NoiseMeter(), _spent_s(cluster)
        async with AsyncClient(cluster.router.address, timeout_s=WRITE_SECONDS_MAX) as client:
            writer = Writer(client)
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(writer.run())
                    move_s = await _before_while_and_after(bench, cluster, client, writer)
                    writer.stop()
            except* (BrokenRunError, HoldfastError) as broken:
                raise BrokenRunError(reasons(broken)) from None
            written, kept = await bench.stats(client.address, QUEUE), await bench.stats(client.address, FILL_QUEUE)
        expect("tasks enqueued", written.enqueued_total, writer.acknowledged)
        expect("tasks that fill the shard", kept.ready, filled)
        others_percent = noise.others_percent(_spent_s(cluster) - before_s)
        await cluster.check_equal(timeout_s=WRITE_SECONDS_MAX + bench.sizes.move_mb / HASH_MB_PER_S_MIN)
        await cluster.stop()
    return Measured(
        figures=_figures(writer, move_s, filled) | {"fill": [fill_mb_per_s]},
        others_percent=[others_percent],
        calibration_ms=[before_ms, calibration_ms()],
        counts={"filled": kept.ready, "enqueued": written.enqueued_total, "moves": 1},
    )


def _figures(writer: Writer, move_s: float, filled: int) -> dict[str, list[float]]:
    figures = {
        f"p{percent}, {when}": [percentile(took_ms, percent)]
        for when, took_ms in writer.took_ms.items()
        for percent in (50, 99)
    }
    return figures | {
        _RATIO: [figures[f"p99, {_DURING}"][0] / figures[f"p99, {_BEFORE}"][0]],
        _RATIO_TO_BOTH: [
            figures[f"p99, {_DURING}"][0] / percentile(writer.took_ms[_BEFORE] + writer.took_ms[_AFTER], 99)
        ],
        f"slowest, {_DURING}": [max(writer.took_ms[_DURING])],
        "move": [move_s],
        "moved": [filled * FILL_PAYLOAD_BYTES / 1e6 / move_s],
    }


async def _fill(bench: Bench, cluster: MappedCluster) -> tuple[int, float]:
    """How many tasks there are then, and at how many MB/s they came."""
    _, leader = await cluster.leadership()
    tasks = -(-bench.sizes.move_mb * 1_000_000 // FILL_PAYLOAD_BYTES)
    spec = LoadSpec(
        role=PRODUCE,
        address=cluster.router.address,
        queue=FILL_QUEUE,
        tasks=tasks,
        batch_tasks=FILL_BATCH_TASKS,
        payload_bytes=FILL_PAYLOAD_BYTES,
        calls_in_flight=FILL_CALLS,
        retry=True,  # a broker may say that it is too much for now
    )
    run = await bench.run_fleet(
        cluster.by_role(leader), "fill", {"producer": spec}, counted=["producer"], tasks=tasks
    )  # fmt: skip
    return tasks, run.rate_per_s * FILL_PAYLOAD_BYTES / 1e6


def _spent_s(cluster: MappedCluster) -> float:
    """CPU time of all servers so far."""
    return sum(cluster.cpu_s.values()) + process_cpu_s(cluster.router.pid)


async def _settle(cluster: MappedCluster) -> None:
    """Waits until what the filling left behind is done, so that it does not count as what is usual."""
    ends_s = time.monotonic() + SETTLE_SECONDS_MAX
    await cluster.wait_whole()
    while time.monotonic() < ends_s:
        began_s, before_s = time.monotonic(), sum(cluster.cpu_s.values())
        await asyncio.sleep(1.0)
        if sum(cluster.cpu_s.values()) - before_s < SETTLED_CORES * (time.monotonic() - began_s):
            return


async def _before_while_and_after(
    bench: Bench, cluster: MappedCluster, client: AsyncClient, writer: Writer
) -> float:  # fmt: skip
    """How many seconds the move took."""
    await asyncio.sleep(1.0)  # the writer has found its way
    writer.when = _BEFORE
    await asyncio.sleep(bench.sizes.move_seconds)
    before = await cluster.voters()
    _, leader = await cluster.leadership()
    source = min(before - {leader})
    writer.when = _DURING
    move_s = await _move(bench, client, MoveWish(0, source, NEW_NODE))
    writer.when = _AFTER
    if await cluster.voters() != before - {source} | {NEW_NODE}:
        raise BrokenRunError(f"expected {NEW_NODE} in the place of {source}, but there are {await cluster.voters()}")
    await asyncio.sleep(bench.sizes.move_seconds)
    return move_s


async def _move(bench: Bench, client: AsyncClient, move: MoveWish) -> float:
    began_s = time.monotonic()
    plan = await client.start_plan(await client.make_plan(move=move))
    limit_s = MOVE_SECONDS_MAX + bench.sizes.move_mb / MOVE_MB_PER_S_MIN
    while not await _is_done(client, plan.id):
        if time.monotonic() > began_s + limit_s:
            raise BrokenRunError(f"the replica had not moved within {limit_s:g} s")
        await asyncio.sleep(ADVANCE_SECONDS)
    return time.monotonic() - began_s


async def _is_done(client: AsyncClient, plan_id: str) -> bool:
    try:
        return (await client.advance_plan(plan_id)).is_done
    except NotFound:
        return True  # and forgotten
