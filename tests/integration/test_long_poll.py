"""Who gets which task when: waiting workers are woken by events, priorities hold, and nothing starves."""

import asyncio
import time

from holdfast.client import AsyncClient, ClaimedTask, NewTask
from tests.integration.waiters import use, wait_for_waiters

LONG_LEASE_MS = 600_000
# A worker that is woken gets its task far below this, also if the machine is busy for seconds; one that is not woken
# gets nothing before its wait of a minute is over.
PROMPT_S = 20.0


async def claim_all(client: AsyncClient, queue: str, number: int) -> list[ClaimedTask]:
    """One claim after the other."""
    return [
        claim for _ in range(number) for claim in await client.reserve([queue], lease_ms=LONG_LEASE_MS, max_tasks=1)
    ]


async def test_an_enqueue_wakes_a_waiting_worker(client: AsyncClient, queue: str) -> None:
    await use(client, queue)
    waiting = asyncio.create_task(client.reserve([queue], wait_ms=60_000))
    await wait_for_waiters(client, queue, 1)
    sent_s = time.monotonic()
    accepted = await client.enqueue(NewTask(queue, "t"))
    [claim] = await waiting
    assert time.monotonic() - sent_s < PROMPT_S
    assert claim.task_id == accepted.task_id


async def test_a_worker_waits_for_several_queues(client: AsyncClient, queue: str) -> None:
    queues = [f"{queue}.{name}" for name in "abc"]
    await use(client, *queues)
    waiting = asyncio.create_task(client.reserve(queues, wait_ms=60_000))
    await wait_for_waiters(client, queues[2], 1)
    await client.enqueue(NewTask(queues[2], "t"))
    [claim] = await waiting
    assert claim.queue == queues[2]
    await wait_for_waiters(client, queues[0], 0)


async def test_queues_are_tried_in_the_order_given(client: AsyncClient, queue: str) -> None:
    await client.enqueue_many([NewTask(f"{queue}.{name}", "t") for name in ("late", "early")])
    claims = await client.reserve([f"{queue}.early", f"{queue}.late"], max_tasks=2)
    assert [claim.queue for claim in claims] == [f"{queue}.early", f"{queue}.late"]


async def test_the_one_who_waited_longest_is_served_first(client: AsyncClient, queue: str) -> None:
    await use(client, queue)
    waiting = []
    for number in range(4):
        waiting.append(asyncio.create_task(client.reserve([queue], wait_ms=60_000)))
        await wait_for_waiters(client, queue, number + 1)
    for number in range(4):
        accepted = await client.enqueue(NewTask(queue, "t"))
        [claim] = await waiting[number]
        assert claim.task_id == accepted.task_id


async def test_each_waiting_worker_gets_a_task_of_a_batch(client: AsyncClient, queue: str) -> None:
    await use(client, queue)
    waiting = [asyncio.create_task(client.reserve([queue], wait_ms=60_000)) for _ in range(20)]
    await wait_for_waiters(client, queue, 20)
    await client.enqueue_many([NewTask(queue, "t") for _ in range(20)])
    async with asyncio.timeout(20):
        claims = [claim for claims in await asyncio.gather(*waiting) for claim in claims]
    assert len({claim.task_id for claim in claims}) == len({claim.token for claim in claims}) == 20


async def test_promotion_wakes_a_waiting_worker(client: AsyncClient, queue: str) -> None:
    sent_s = time.monotonic()
    accepted = await client.enqueue(NewTask(queue, "t", delay_ms=300))
    [claim] = await client.reserve([queue], wait_ms=60_000)
    assert claim.task_id == accepted.task_id
    assert time.monotonic() - sent_s < 0.3 + PROMPT_S


async def test_a_release_and_a_due_retry_wake_a_waiting_worker(client: AsyncClient, queue: str) -> None:
    await client.enqueue_many([NewTask(queue, "t") for _ in range(2)])
    to_release, to_fail = await client.reserve([queue], max_tasks=2, lease_ms=LONG_LEASE_MS)
    waiting = [asyncio.create_task(client.reserve([queue], wait_ms=60_000)) for _ in range(2)]
    await wait_for_waiters(client, queue, 2)
    sent_s = time.monotonic()
    await client.release(to_release)
    await client.fail(to_fail, retry_delay_ms=100)
    [first], [second] = await asyncio.gather(*waiting)
    assert time.monotonic() - sent_s < 0.1 + PROMPT_S
    assert (first.task_id, second.task_id) == (to_release.task_id, to_fail.task_id)
    assert (first.attempt, second.attempt) == (1, 2)


async def test_a_wait_that_brings_nothing_ends_empty(client: AsyncClient, queue: str) -> None:
    started_s = time.monotonic()
    assert await client.reserve([queue], wait_ms=300) == []
    assert 0.29 <= time.monotonic() - started_s < 0.3 + PROMPT_S
    assert await client.reserve([queue]) == []


async def test_higher_priorities_first_and_in_order_within_one(client: AsyncClient, queue: str) -> None:
    priorities = [1, 9, 5, 0, 9, None, 1, 9]
    accepted = await client.enqueue_many([NewTask(queue, str(n), priority=p) for n, p in enumerate(priorities)])
    assert len(accepted) == len(priorities)
    claims = await claim_all(client, queue, len(priorities))
    assert [int(claim.type) for claim in claims] == [1, 4, 7, 2, 5, 0, 6, 3], "5 is the default"


async def test_a_late_task_of_high_priority_overtakes(client: AsyncClient, queue: str) -> None:
    await client.enqueue_many([NewTask(queue, "low", priority=3) for _ in range(3)])
    [first] = await claim_all(client, queue, 1)
    await client.enqueue(NewTask(queue, "high", priority=8))
    assert [claim.type for claim in [first, *await claim_all(client, queue, 3)]] == ["low", "high", "low", "low"]


async def test_a_released_task_keeps_its_place(client: AsyncClient, queue: str) -> None:
    await client.enqueue_many([NewTask(queue, str(n)) for n in range(4)])
    first, _second = await claim_all(client, queue, 2)
    await client.release(first)
    assert [claim.type for claim in await claim_all(client, queue, 3)] == ["0", "2", "3"]


async def test_the_oldest_task_gets_through_under_load_of_higher_priority(client: AsyncClient, queue: str) -> None:
    """A tenth of the claims goes to the oldest task, whatever its priority; the rest stays in order of priority."""
    await client.enqueue(NewTask(queue, "old", priority=0))
    seen: list[str] = []
    for _ in range(25):
        await client.enqueue_many([NewTask(queue, "new", priority=9) for _ in range(2)])
        [claim] = await client.reserve([queue])
        seen.append(claim.type)
    assert seen.count("old") == 1
    assert seen.index("old") < 10
