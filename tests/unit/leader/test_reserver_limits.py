"""Who waits is served when a limit lets something through: a claim ended, a policy changed, or a rate's time came."""

import asyncio
from typing import Any

import pytest

from holdfast.broker.leader.ready_waiters import NOTHING, READY, Awaited, AwaitWanted
from holdfast.broker.scheduler import scheduler as scheduler_module
from holdfast.broker.scheduler import subqueues as subqueues
from holdfast.broker.scheduler.allocation_use import NOTHING_OPEN
from holdfast.broker.scheduler.limiter import Allowance
from holdfast.machine import entries
from holdfast.machine.outcomes import Claimed
from holdfast.proto.v1.cluster_pb2 import QueuePolicy
from tests.unit.machine.machine_shard import KEEP_MS, QUEUE
from tests.unit.replica.small_shard import WAIT_MS, SmallShard, settle


class LimitedShard(SmallShard):
    """A shard whose queue has a policy of its own."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.version = 0

    async def set(self, **policy: Any) -> None:
        self.version += 1
        message = QueuePolicy(**policy).SerializeToString()
        await self.submit(entries.SetQueue(self.time.now_ms, QUEUE, self.version, message))

    def await_tasks(self, wait_ms: int = WAIT_MS) -> asyncio.Task[Awaited]:
        return asyncio.ensure_future(self.shard.await_tasks(AwaitWanted([QUEUE], wait_ms, b"", b"")))

    @property
    def claimed(self) -> int:
        queue = self.machine.queue(QUEUE)
        return 0 if queue is None else queue.claimed

    async def served(self, call: asyncio.Task[list[Claimed]]) -> list[Claimed]:
        """Rounds until the call has its answer."""

        async def answer() -> list[Claimed]:
            return await call

        return await asyncio.wait_for(self.rounds_until(answer()), 10)


@pytest.fixture
async def small() -> LimitedShard:
    return LimitedShard()


async def test_who_waits_is_served_when_a_claim_ends(small: LimitedShard) -> None:
    await small.set(concurrency_max=2)
    tasks = await small.enqueue(4)
    first = await small.claim(tasks_max=4)
    assert len(first) == 2
    waiting, next_one = small.reserve(tasks_max=4), small.reserve(tasks_max=4)
    await small.round()
    assert not waiting.done()
    await small.ack(first[0])
    assert [claim.task_id for claim in await small.served(waiting)] == tasks[2:3]
    assert not next_one.done()
    await small.ack(first[1])
    assert len(await small.served(next_one)) == 1
    assert small.claimed == 2


@pytest.mark.parametrize("cap", ["tenant_concurrency_max", "key_concurrency_max"])
async def test_who_waits_is_served_when_a_claim_of_a_tenant_or_a_key_ends(small: LimitedShard, cap: str) -> None:
    await small.set(**{cap: 1})
    await small.enqueue(2, tenant=b"a", limit_key=b"x")
    (first,) = await small.claim(tasks_max=4)
    waiting = small.reserve(tasks_max=4)
    await small.round()
    assert not waiting.done()
    await small.release(first)
    assert len(await small.served(waiting)) == 1


async def test_who_waits_is_served_when_what_was_picked_is_cancelled_on_the_way(small: LimitedShard) -> None:
    await small.set(concurrency_max=1)
    tasks = await small.enqueue(2)
    cancelling = asyncio.ensure_future(small.shard.submit(entries.Cancel(small.time.now_ms, KEEP_MS, tasks[:1])))
    await settle()
    call, waiting = small.reserve(), small.reserve(worker=b"another")
    await small.round()
    await cancelling
    for _ in range(3):
        await small.round()
    done = [item for item in (call, waiting) if item.done()]
    assert len(done) == 1
    assert (await done[0])[0].task_id == tasks[1]


async def test_who_waits_is_served_when_the_queue_goes_on(small: LimitedShard) -> None:
    await small.set(paused=True)
    await small.enqueue(2)
    waiting, awaiting = small.reserve(), small.await_tasks()
    await small.round()
    assert not waiting.done()
    assert not awaiting.done()
    assert await small.await_tasks(wait_ms=0) == NOTHING
    await small.set(paused=False)
    assert len(await small.served(waiting)) == 1
    assert await asyncio.wait_for(awaiting, 10) == READY


async def test_who_waits_is_served_when_a_rate_lets_something_through(small: LimitedShard) -> None:
    await small.set(rate_per_second=100.0, rate_burst=1)
    await small.enqueue(3)
    assert len(await small.claim(tasks_max=3)) == 1
    waiting, awaiting = small.reserve(tasks_max=3), small.await_tasks()
    await small.round()
    assert not waiting.done()
    small.time.now_ms += 10
    assert len(await small.served(waiting)) == 1
    await settle()
    assert not awaiting.done(), "the token is spent"
    small.time.now_ms += 10
    assert await asyncio.wait_for(awaiting, 10) == READY


async def test_those_who_await_are_not_told_while_a_tenant_is_blocked(small: LimitedShard) -> None:
    await small.set(tenant_concurrency_max=1)
    await small.enqueue(5, tenant=b"a")
    (first,) = await small.claim(tasks_max=5)
    calls = [small.await_tasks() for _ in range(3)]
    await small.round()
    assert not any(call.done() for call in calls)
    await small.ack(first)
    await settle()
    assert [call.done() for call in calls] == [True, False, False], "one place, one call"
    (second,) = await small.claim(tasks_max=5)
    await small.ack(second)
    await settle()
    assert calls[1].done()


async def test_claims_in_the_log_count_when_those_behind_them_are_dropped(small: LimitedShard) -> None:
    await small.set(concurrency_max=1)
    await small.enqueue(3)
    first = small.reserve()
    await settle()
    small.shard.stage()
    small.log.flushed()  # it will be applied, whatever becomes of the rest
    await small.round_without_room()
    late = small.reserve(wait_ms=0)
    await small.round()
    assert len(await first) == 1
    assert await late == []
    assert small.claimed == 1
    (claim,) = await first
    await small.ack(claim)
    assert len(await small.claim(tasks_max=3)) == 1


async def test_a_look_that_was_cut_short_goes_on_by_itself(
    small: LimitedShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler_module, "SCAN_BUDGET", 4)
    monkeypatch.setattr(subqueues, "SUBQUEUES_PAGE", 4)
    monkeypatch.setattr(subqueues, "TENANTS_HELD_MAX", 4)
    monkeypatch.setattr(subqueues, "ASIDE_MAX", 4)
    await small.set(tenant_concurrency_max=1)
    for number in range(40):
        await small.enqueue(2 if number < 39 else 1, tenant=b"t%02d" % number)
    claims = await small.served(small.reserve(tasks_max=39))
    while len(claims) < 39:
        claims += await small.served(small.reserve(tasks_max=39 - len(claims)))
    waiting = small.reserve()
    assert len(await small.served(waiting)) == 1


async def test_an_allowance_that_changes_serves_who_waits(small: LimitedShard) -> None:
    reserver = small.leadership.reserver
    granted = [Allowance(0, None)]
    reserver.scheduler.allowance = lambda _queue: granted[-1]
    await small.enqueue(2)
    waiting = small.reserve()
    await small.round()
    assert not waiting.done()
    granted.append(Allowance(1, None))
    reserver.limits_changed(QUEUE)
    assert len(await small.served(waiting)) == 1
    assert await small.claim() == []


async def test_what_holds_tasks_up_is_told_to_who_asks_for_shares(small: LimitedShard) -> None:
    reserver = small.leadership.reserver
    await small.set(concurrency_max=1, key_concurrency_max=1)
    await small.enqueue(2)
    assert reserver.outlook(QUEUE) == (True, False, False, 0, False)
    assert len(await small.claim()) == 1
    assert await small.claim() == []
    assert reserver.outlook(QUEUE) == (True, True, False, 1, True)


async def test_nobody_looks_for_what_is_open_while_the_state_lags_behind(small: LimitedShard) -> None:
    """Claims that are applied and not settled count twice then, so open limiters would be taken for closed ones."""
    reserver = small.leadership.reserver
    await small.set(tenant_concurrency_max=2)
    await small.enqueue(2, tenant=b"t")
    assert reserver.outlook(QUEUE).is_open
    claiming = small.reserve()
    await settle()
    small.kv.is_full = True
    lagging = asyncio.ensure_future(small.round())
    async with asyncio.timeout(10):
        while small.machine.meta.applied_index == small.shard.applied_index:
            await settle()
    assert reserver.outlook(QUEUE) == NOTHING_OPEN
    small.kv.is_full = False
    await lagging
    assert len(await small.served(claiming)) == 1
    assert reserver.outlook(QUEUE).is_open


async def test_no_timer_is_left_behind(small: LimitedShard, monkeypatch: pytest.MonkeyPatch) -> None:
    loop, timers = asyncio.get_running_loop(), list[asyncio.TimerHandle]()
    call_later = loop.call_later

    def noted(delay_s: float, *call: Any) -> asyncio.TimerHandle:
        timers.append(call_later(delay_s, *call))
        return timers[-1]

    def pending() -> list[asyncio.TimerHandle]:
        return [timer for timer in timers if not timer.cancelled() and timer.when() > loop.time()]

    monkeypatch.setattr(loop, "call_later", noted)
    await small.set(rate_per_second=1.0, rate_burst=1)
    await small.enqueue(3)
    await small.claim(tasks_max=3)
    assert await small.claim() == []
    assert len(pending()) == 1
    small.shard.drain()
    assert pending() == []


@pytest.mark.parametrize("times", [1, 2])
async def test_claims_in_the_log_count_however_often_the_disk_was_full(small: LimitedShard, times: int) -> None:
    await small.set(concurrency_max=1, oldest_share_percent=0)
    await small.enqueue(3, tenant=b"a")
    await small.enqueue(3, tenant=b"b")
    (before,) = await small.claim(tasks_max=1)
    await small.ack(before)  # a scheduler that begins anew begins with another tenant than this one would
    first = small.reserve(tasks_max=1, worker=b"a")
    await settle()
    small.shard.stage()
    small.log.flushed()  # durable, and not yet applied
    refused = []
    for _ in range(times):
        refused.append(asyncio.ensure_future(small.shard.submit(entries.Cancel(small.time.now_ms, KEEP_MS, []))))
        await small.round_without_room()
    second = small.reserve(tasks_max=1, worker=b"b")
    for _ in range(4):
        await small.round()
    assert small.claimed == 1
    assert all(call.exception() for call in refused)
    first.cancel()
    second.cancel()
