"""Two routers with many idle workers on real shards, in one process: how often brokers are asked, and that every task
is claimed once."""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from holdfast.broker.api.tasks import TaskService
from holdfast.broker.config import BrokerConfig
from holdfast.broker.metrics import Metrics
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.router import reserving
from holdfast.router.callers import Caller
from holdfast.router.methods import Method
from holdfast.router.ready_waiters import Waiter, WaiterLine
from holdfast.router.releases import Releases
from holdfast.router.reserving import Reserving
from holdfast.transport.channels import CallFailedError
from holdfast.transport.giving_up import ENDLESS, Patience
from tests.unit.replica.small_shard import SmallShard, settle

SHARDS = 4
WAIT_MS = 60_000
pytestmark = pytest.mark.timeout(60)


class World:
    """Shards that make a round whenever the loop has time for it, and routers that call them without a network."""

    def __init__(self, shards: int = SHARDS) -> None:
        self.shards = [SmallShard() for _ in range(shards)]
        self._services = [TaskService(small.shard, BrokerConfig(), Metrics()) for small in self.shards]
        self.calls: Counter[str] = Counter()
        self._rounds = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            for small in self.shards:
                await small.round()
            await asyncio.sleep(0.001)

    async def close(self) -> None:
        self._rounds.cancel()
        await asyncio.gather(self._rounds, return_exceptions=True)

    def router(self, idle_wait_ms_max: int = 0) -> Reserving:
        forwarder: Any = self
        return Reserving(
            forwarder, Releases(forwarder), wait_ms_max=WAIT_MS, leader_of=lambda _shard: None,
            idle_wait_ms_max=idle_wait_ms_max,
            find_places=lambda queues: {shard: [*range(len(queues))] for shard in range(len(self.shards))},
        )  # fmt: skip

    async def send(
        self, method: Method, shard: int, data: bytes, deadline_s: float, patience: Patience = ENDLESS, **_: Any
    ) -> bytes:
        """As a Forwarder does."""
        self.calls[method.name] += 1
        handle = self._services[shard].reserve if method.name == "Reserve" else self._services[shard].await_tasks
        answering = asyncio.ensure_future(handle(method.parse(data)))
        patience.began(answering)
        try:
            answer: bytes = (await answering).SerializeToString()
        except asyncio.CancelledError:
            if patience.is_over:
                raise CallFailedError("CANCELLED", "It was given up.") from None
            answering.cancel()
            raise
        return answer

    async def enqueue(self, shard: int, names: Sequence[str]) -> None:
        specs = [pb.TaskSpec(queue="q", type="t", payload=name.encode()) for name in names]
        await self._services[shard].enqueue(pb.EnqueueRequest(tasks=specs))


def worker(
    router: Reserving, name: str, claimed: list[str], wait_ms: int = WAIT_MS
) -> "asyncio.Task[pb.ReserveResponse]":
    request = pb.ReserveRequest(
        queues=["q"], max_tasks=1, lease_ms=30_000, wait_ms=wait_ms, worker=name, claim_request_id=name
    )

    async def call() -> pb.ReserveResponse:
        caller = Caller(None, 1, float("inf"), lambda: False)
        answer = await router.reserve(request, request.SerializeToString(), caller, time.monotonic() + 90)
        claimed.append(name)
        return pb.ReserveResponse.FromString(answer)

    return asyncio.create_task(call())


async def until_waiting(routers: Sequence[Reserving], count: int) -> None:
    while sum(router.waits.callers for router in routers) != count:
        await asyncio.sleep(0.002)


async def reserves_of(workers: int, tasks: int) -> int:
    """How often brokers were asked to claim when so many tasks came to idle workers: one by one, and many at once."""
    world = World()
    routers = [world.router(), world.router()]
    claimed: list[str] = []
    calls = []
    for number in range(workers):
        calls.append(worker(routers[number % 2], f"w{number:03}", claimed))
        await settle()
    await until_waiting(routers, workers)
    assert sum(router.waits.at_brokers for router in routers) == 2 * SHARDS
    before = world.calls["Reserve"]
    for number in range(tasks // 2):
        await world.enqueue(number % SHARDS, [f"single {number}"])
    for shard in range(SHARDS):
        await world.enqueue(shard, [f"{shard} {number}" for number in range(tasks // 2 // SHARDS)])
    while len(claimed) < tasks:
        await asyncio.sleep(0.01)
    await until_waiting(routers, workers - tasks)
    got = [claim.task.payload for call in calls if call.done() for claim in call.result().claims]
    assert len(got) == len(set(got)) == tasks
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    assert [(router.waits.callers, router.waits.at_brokers) for router in routers] == [(0, 0)] * 2
    for router in routers:
        await router.waits.close()
    await world.close()
    return world.calls["Reserve"] - before


async def test_every_task_wakes_about_one_worker_and_is_claimed_once() -> None:
    # Some are woken for a task that a worker behind the other router was faster to claim.
    assert await reserves_of(workers=160, tasks=120) <= 2 * 120


async def test_the_check_notices_that_all_are_woken_for_one_task(monkeypatch: pytest.MonkeyPatch) -> None:
    def everyone(line: WaiterLine, _tasks: int) -> list[Waiter]:
        return [waiter for waiter in line.everyone() if waiter.is_free]

    monkeypatch.setattr(WaiterLine, "first", everyone)
    assert await reserves_of(workers=160, tasks=120) > 2 * 120


async def test_the_more_workers_wait_the_longer_they_are_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as it takes for few of them to come back in a second, up to the limit, and not all at the same moment."""
    monkeypatch.setattr(reserving, "IDLE_MS_MIN", 10 * reserving.IDLE_MS_PER_CALLER)
    most_ms = 20 * reserving.IDLE_MS_PER_CALLER
    world = World()
    router = world.router(idle_wait_ms_max=most_ms)
    reported: dict[int, list[int]] = {}
    for workers in (5, 15, 60):
        # Long enough for all of them to begin before the first has waited for its time.
        polls = [worker(router, f"{workers}w{number}", [], wait_ms=50 * workers) for number in range(workers)]
        reported[workers] = sorted(answer.suggested_wait_ms for answer in await asyncio.gather(*polls))
    assert set(reported[5]) == {0}, "few cost nothing"
    assert reported[15][-1] <= 15 * reserving.IDLE_MS_PER_CALLER
    assert 0.5 * most_ms <= reported[60][-1] <= most_ms
    assert len(set(reported[60])) > 10
    await router.waits.close()
    await world.close()
