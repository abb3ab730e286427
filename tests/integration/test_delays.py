"""Tasks for later: never early, and not much late."""

import asyncio
import time

from holdfast.client import AsyncClient, NewTask, TaskState

# Shard time is counted in whole milliseconds, so something may seem to happen a little before its time.
ROUNDING_S = 0.005
LATE_S = 10.0  # on a machine that stalls for seconds; a sweep that missed its moment would be far later
HOUR_MS = 3_600_000


async def test_what_is_delayed_is_not_handed_out(client: AsyncClient, queue: str) -> None:
    accepted = await client.enqueue(NewTask(queue, "t", delay_ms=HOUR_MS))
    info = await client.get_task(accepted.task_id)
    assert info.state is TaskState.DELAYED
    assert info.due_at_ms == info.enqueued_at_ms + HOUR_MS
    assert await client.reserve([queue]) == []


async def test_a_delay_is_kept(client: AsyncClient, queue: str) -> None:
    sent_s = time.monotonic()
    accepted = await client.enqueue(NewTask(queue, "t", delay_ms=800))
    [claim] = await client.reserve([queue], wait_ms=20_000)
    assert 0.8 - ROUNDING_S <= time.monotonic() - sent_s < 0.8 + LATE_S
    assert claim.task_id == accepted.task_id
    info = await client.get_task(accepted.task_id)
    assert info.changed_at_ms >= info.enqueued_at_ms + 800


async def test_a_time_to_run_at_is_kept(client: AsyncClient, queue: str) -> None:
    run_at_ms = time.time_ns() // 1_000_000 + 800
    await client.enqueue(NewTask(queue, "t", run_at_ms=run_at_ms))
    [claim] = await client.reserve([queue], wait_ms=20_000)
    assert -ROUNDING_S <= time.time() - run_at_ms / 1000 < LATE_S
    await client.ack(claim)


async def test_a_time_in_the_past_means_now(client: AsyncClient, queue: str) -> None:
    past_ms = time.time_ns() // 1_000_000 - 3_600_000
    await client.enqueue_many([NewTask(queue, "t", run_at_ms=past_ms), NewTask(queue, "t", run_at_ms=0)])
    await client.enqueue(NewTask(queue, "t", delay_ms=0))
    assert len(await client.reserve([queue], max_tasks=5)) == 3


async def test_many_delayed_tasks_become_ready_in_the_order_of_their_times(client: AsyncClient, queue: str) -> None:
    """Enqueued in the reverse order, each noted when it arrives."""
    sent_s = time.monotonic()
    delays_ms = list(range(900, 100, -50))
    await client.enqueue_many([NewTask(queue, str(delay_ms), delay_ms=delay_ms) for delay_ms in delays_ms])
    seen: list[int] = []
    async with asyncio.timeout(30):
        while len(seen) < len(delays_ms):
            for claim in await client.reserve([queue], wait_ms=20_000):
                assert time.monotonic() - sent_s >= int(claim.type) / 1000 - ROUNDING_S
                seen.append(int(claim.type))
    assert seen == sorted(delays_ms)


async def test_a_retry_is_never_early(client: AsyncClient, queue: str) -> None:
    """One waits for an hour and is not handed out, another one for half a second."""
    await client.enqueue_many([NewTask(queue, "t") for _ in range(2)])
    claim, later = await client.reserve([queue], max_tasks=2)
    assert (await client.fail(later, retry_delay_ms=HOUR_MS)).state is TaskState.RETRY_PENDING
    assert await client.reserve([queue]) == []
    sent_s = time.monotonic()
    failed = await client.fail(claim, retry_delay_ms=500)
    assert failed.state is TaskState.RETRY_PENDING
    task_id = claim.task_id
    [claim] = await client.reserve([queue], wait_ms=20_000)
    assert 0.5 - ROUNDING_S <= time.monotonic() - sent_s < 0.5 + LATE_S
    assert (claim.task_id, claim.attempt) == (task_id, 2)


async def test_a_delayed_task_can_be_cancelled(client: AsyncClient, queue: str) -> None:
    accepted = await client.enqueue(NewTask(queue, "t", delay_ms=100))
    assert (await client.cancel(accepted.task_id)).state is TaskState.CANCELLED
    assert await client.reserve([queue], wait_ms=300) == []
    assert (await client.queue_stats(queue)).delayed == 0
