"""The shards of one node fall silent, or lose their majority: what the queues of all others notice of it, through the
router, straight to the leaders, and with a worker of the library.

Every shard has one replica: those of a node that is stopped are silent, those of one that is killed have no majority
and nobody who leads. The same loops run before and after in one run, and each pair gives a ratio. The queues that are
away go on being used by the same clients.
"""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from harness.bench import Bench
from harness.mapped import MappedCluster
from harness.numbers import percentile
from harness.results import Aim, Measured, Target
from holdfast.client import AsyncClient, Holdfast, HoldfastError, NewTask
from holdfast.client.worker import Worker
from holdfast.routing.homes import home_shard

SHARDS = 8
AWAY_CALLERS = 3  # of each queue that is away
_WAYS = ("router", "direct", "worker")
_HOWS = ("silent", "without majority")
_CALLS = {"router": ("enqueue", "claim", "ack"), "direct": ("enqueue", "claim", "ack"), "worker": ("whole life",)}

AIMS = tuple(
    aim
    for how in _HOWS
    for way in _WAYS
    for call in _CALLS[way]
    for aim in (
        Aim(f"{how}, {way}, {call}, p50 to before", "×", Target(1.5)),
        Aim(f"{how}, {way}, {call}, rate to before", "×", Target(0.8, at_least=True), more_is_better=True),
        Aim(f"{how}, {way}, {call}, p50 before", "ms"),
    )
)

T = TypeVar("T")

Times = dict[str, list[float]]  # by call: how long each took


async def measure(bench: Bench) -> Measured:
    measured = Measured()
    for how, way in itertools.product(_HOWS, _WAYS):
        async with bench.mapped_cluster(shards=SHARDS, replication=1) as cluster:
            is_killed = how != "silent"
            before, after = await _before_and_after(bench, cluster, way, is_killed=is_killed)
            if not is_killed:
                await cluster.stop()
        for call in _CALLS[way]:
            then, now = before[call], after[call]
            median_s = percentile(then, 50)
            name = f"{how}, {way}, {call}"
            measured.figures[f"{name}, p50 to before"] = [percentile(now, 50) / median_s]
            measured.figures[f"{name}, rate to before"] = [len(now) / len(then)]
            measured.figures[f"{name}, p50 before"] = [median_s * 1000]
    return measured


async def _before_and_after(bench: Bench, cluster: MappedCluster, way: str, *, is_killed: bool) -> tuple[Times, Times]:
    seconds = bench.sizes.turn_seconds
    queues = {shard: _queue_of(shard) for shard in range(SHARDS)}
    async with AsyncClient(cluster.router.address, direct=way == "direct") as client:
        for queue in queues.values():  # from now on it is known where they are
            await client.enqueue(NewTask(queue, "noop", b"[]"))
        info = await client.describe_cluster()
        gone = next(shard.replicas[0] for shard in info.shards if shard.shard == 0)
        lost = [queues[shard.shard] for shard in info.shards if shard.replicas[0] == gone]
        healthy = [queue for queue in queues.values() if queue not in lost]
        worker = _worker(cluster.router.address, list(queues.values())) if way == "worker" else None
        serving = asyncio.create_task(worker.serve()) if worker is not None else None
        one = _life_by_worker if way == "worker" else _life_by_calls
        try:
            before = await _run(client, healthy, lost, one, seconds)
            if is_killed:
                await cluster.nodes[gone].kill()
                after = await _run(client, healthy, lost, one, seconds)
            else:
                await cluster.nodes[gone].pause()
                try:
                    after = await _run(client, healthy, lost, one, seconds)
                finally:
                    cluster.nodes[gone].resume()
        finally:
            if worker is not None and serving is not None:
                worker.stop()
                worker.stop()
                await asyncio.gather(serving, return_exceptions=True)
    return before, after


def _queue_of(shard: int) -> str:
    return next(name for name in (f"q{n}" for n in range(100 * SHARDS)) if home_shard(name, SHARDS) == shard)


def _worker(address: str, queues: list[str]) -> Worker:
    app = Holdfast(address)

    @app.task(queue=queues[0], name="noop")
    async def noop() -> None:
        pass

    return Worker(app, queues, concurrency=50)


_One = Callable[[AsyncClient, str, Times], Awaitable[None]]


async def _run(client: AsyncClient, healthy: list[str], lost: list[str], one: _One, seconds: float) -> Times:
    times: Times = {}
    ends_s = time.monotonic() + seconds

    async def loop(queue: str) -> None:
        while time.monotonic() < ends_s:
            await one(client, queue, times)

    async def beside(queue: str) -> None:
        while True:
            try:
                await client.enqueue(NewTask(queue, "noop", b"[]"))
            except HoldfastError:
                pass
            await asyncio.sleep(0.1)

    others = [asyncio.create_task(beside(queue)) for queue in lost for _ in range(AWAY_CALLERS)]
    try:
        await asyncio.gather(*map(loop, healthy))
    finally:
        for other in others:
            other.cancel()
        await asyncio.gather(*others, return_exceptions=True)
    return times


async def _life_by_calls(client: AsyncClient, queue: str, times: Times) -> None:
    await _timed(times, "enqueue", client.enqueue(NewTask(queue, "noop", b"[]")))
    [claim] = await _timed(times, "claim", client.reserve([queue], wait_ms=10_000))
    await _timed(times, "ack", client.ack(claim))


async def _life_by_worker(client: AsyncClient, queue: str, times: Times) -> None:
    async def life() -> None:
        accepted = await client.enqueue(NewTask(queue, "noop", b"[]"))
        await client.wait_task(accepted.task_id)

    await _timed(times, "whole life", life())


async def _timed(times: Times, call: str, answer: Awaitable[T]) -> T:
    began_s = time.monotonic()
    result = await answer
    times.setdefault(call, []).append(time.monotonic() - began_s)
    return result
