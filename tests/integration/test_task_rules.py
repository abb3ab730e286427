"""What a task can ask for itself: when it is tried again, how long it may run and wait, and that it is the only one."""

import asyncio
import contextlib
import time

import pytest

from holdfast.client import (
    Accepted,
    AsyncClient,
    ClaimedTask,
    DeadLetterFilter,
    NewTask,
    NotWaiting,
    QueuePolicy,
    RequestIdConflict,
    RetryPolicy,
    RetryShape,
    TaskError,
    TaskState,
    UniqueScope,
)

LONG_LEASE_MS = 600_000
# For what has to be done before a time is over: a machine that stood still for longer than that gets more of it.
TIMES_MS = (1000, 4000, 16_000)
WAIT_MS = 20_000


async def enqueue_all(client: AsyncClient, tasks: list[NewTask]) -> list[str]:
    return [outcome.task_id for outcome in await client.enqueue_many(tasks) if isinstance(outcome, Accepted)]


async def test_a_task_says_how_it_is_retried(client: AsyncClient, queue: str) -> None:
    linear = RetryPolicy(shape=RetryShape.LINEAR, base_ms=3_600_000, cap_ms=7_000_000, jitter=0)
    task = await client.enqueue(NewTask(queue, "t", retry=linear, max_attempts=3))
    for base_ms in (3_600_000, 7_000_000):
        [claim] = await client.reserve([queue], wait_ms=WAIT_MS)
        failed = await client.fail(claim, TaskError("Timeout", "too slow"))
        info = await client.get_task(task.task_id)
        assert (failed.state, failed.retry_at_ms) == (TaskState.RETRY_PENDING, info.changed_at_ms + base_ms)
        await client.update_task(task.task_id, delay_ms=0)
    [claim] = await client.reserve([queue], wait_ms=WAIT_MS)
    assert (await client.fail(claim)).state is TaskState.DEAD
    info = await client.get_task(task.task_id)
    assert (info.dead_reason, info.failures, len(info.attempts)) == ("ATTEMPTS_SPENT", 3, 3)
    assert [attempt.error_type for attempt in info.attempts] == ["Timeout", "Timeout", ""]
    assert {attempt.how for attempt in info.attempts} == {"FAILED"}


async def test_an_error_after_which_no_attempt_helps(client: AsyncClient, queue: str) -> None:
    await client.set_queue(queue, policy=QueuePolicy(non_retryable=["CardStolen"]))
    tasks = [NewTask(queue, "t", retry=RetryPolicy(non_retryable=["NoSuchUser"])) for _ in range(3)]
    ids = await enqueue_all(client, tasks)
    claims = await client.reserve([queue], max_tasks=3)
    for claim, error_type in zip(claims, ["users.NoSuchUser", "CardStolen", "Other"], strict=True):
        await client.fail(claim, TaskError(error_type, "it said"))
    found = [await client.get_task(task_id) for task_id in ids]
    assert [info.dead_reason for info in found] == ["NON_RETRYABLE", "NON_RETRYABLE", ""]


async def test_a_worker_says_when_to_try_again(client: AsyncClient, queue: str) -> None:
    accepted = await client.enqueue(NewTask(queue, "t"))
    [claim] = await client.reserve([queue])
    when_ms = (await client.get_task(accepted.task_id)).changed_at_ms + 3_600_000
    assert (await client.fail(claim, retry_at_ms=when_ms)).retry_at_ms == when_ms


async def test_a_task_that_runs_for_too_long_has_failed(client: AsyncClient, queue: str) -> None:
    await client.enqueue(NewTask(queue, "t", timeout_ms=60_000))
    [claim] = await client.reserve([queue], lease_ms=LONG_LEASE_MS)
    assert claim.lease_ms < 61_000, "counted from when it asked"
    assert (await client.extend(claim, LONG_LEASE_MS)).lease_ms <= 60_000, "no extension is longer than the timeout"
    accepted = await client.enqueue(NewTask(queue, "t", timeout_ms=1000, max_attempts=1))
    [claim] = await client.reserve([queue], lease_ms=LONG_LEASE_MS, worker="slow")
    assert claim.lease_ms < 2000
    info = await client.wait_task(accepted.task_id, timeout_s=WAIT_MS / 1000)
    assert (info.state, info.dead_reason, info.failures) == (TaskState.DEAD, "ATTEMPTS_SPENT", 1)
    info = await client.get_task(accepted.task_id)
    assert info.last_error is not None
    assert info.last_error.type == "TaskTimeout"
    assert [(attempt.how, attempt.worker) for attempt in info.attempts] == [("TIMED_OUT", "slow")]


async def test_a_task_that_nobody_starts_in_time_dies(client: AsyncClient, queue: str) -> None:
    claims: list[ClaimedTask] = []
    for ttl_ms in TIMES_MS:
        waits, starts = await enqueue_all(client, [NewTask(queue, "t", ttl_ms=ttl_ms)] * 2)
        with contextlib.suppress(NotWaiting):
            await client.update_task(starts, priority=9)
            if claims := await client.reserve([queue], lease_ms=LONG_LEASE_MS):
                break
    [claim] = claims
    assert claim.task_id == starts, "the more urgent one goes first"
    info = await client.wait_task(waits, timeout_s=WAIT_MS / 1000)
    assert (info.state, info.dead_reason) == (TaskState.DEAD, "TTL_PASSED")
    assert (await client.get_task(starts)).state is TaskState.CLAIMED
    await client.release(claim)
    info = await client.wait_task(starts, timeout_s=WAIT_MS / 1000)
    assert (info.state, info.dead_reason) == (TaskState.DEAD, "TTL_PASSED"), "given back is not started"


async def test_a_task_that_was_started_does_not_die_of_waiting(client: AsyncClient, queue: str) -> None:
    for ttl_ms in TIMES_MS:
        accepted = await client.enqueue(NewTask(queue, "t", ttl_ms=ttl_ms))
        if claims := await client.reserve([queue], lease_ms=LONG_LEASE_MS):
            break
    [claim] = claims
    failed = await client.fail(claim, TaskError("E", "no"), retry_delay_ms=ttl_ms + 500)
    assert failed.state is TaskState.RETRY_PENDING
    [claim] = await client.reserve([queue], wait_ms=WAIT_MS)
    await client.release(claim)
    assert (await client.get_task(accepted.task_id)).state is TaskState.READY


async def test_a_snoozed_task_comes_back_with_nothing_spent(client: AsyncClient, queue: str) -> None:
    await client.enqueue(NewTask(queue, "t"))
    [first] = await client.reserve([queue])
    assert (await client.release(first, delay_ms=3_600_000)).state is TaskState.DELAYED
    assert await client.reserve([queue]) == []
    await client.update_task(first.task_id, delay_ms=0)
    [again] = await client.reserve([queue], wait_ms=WAIT_MS)
    assert (again.attempt, again.claims) == (1, 1)
    assert (await client.release(again, delay_ms=300)).state is TaskState.DELAYED
    [again] = await client.reserve([queue], wait_ms=WAIT_MS)
    assert (again.attempt, again.claims) == (1, 1)


async def test_a_task_that_is_claimed_is_not_updated(client: AsyncClient, queue: str) -> None:
    accepted = await client.enqueue(NewTask(queue, "t"))
    await client.reserve([queue])
    with pytest.raises(NotWaiting):
        await client.update_task(accepted.task_id, priority=1)


async def test_one_task_at_a_time_for_a_unique_key(client: AsyncClient, queue: str) -> None:
    until_done = NewTask(queue, "t", unique_key="report")
    first = await client.enqueue(until_done)
    [claim] = await client.reserve([queue])
    second = await client.enqueue(until_done)
    assert (second.task_id, second.duplicate, second.state) == (first.task_id, True, TaskState.CLAIMED)
    await client.ack(claim)
    assert not (await client.enqueue(until_done)).duplicate

    while_waiting = NewTask(queue, "t", unique_key="mail", unique_scope=UniqueScope.WHILE_WAITING)
    first = await client.enqueue(while_waiting)
    assert (await client.enqueue(while_waiting)).duplicate
    claims = await client.reserve([queue], max_tasks=2)
    assert first.task_id in {claim.task_id for claim in claims}
    assert not (await client.enqueue(while_waiting)).duplicate


async def test_a_request_id_stands_for_one_task_only(client: AsyncClient, queue: str) -> None:
    first = await client.enqueue(NewTask(queue, "t", b"1", request_id="r"))
    with pytest.raises(RequestIdConflict) as refused:
        await client.enqueue(NewTask(queue, "t", b"2", request_id="r"))
    assert refused.value.field == "tasks[0].request_id"
    again = await client.enqueue(NewTask(queue, "t", b"1", request_id="r", priority=9, delay_ms=1000))
    assert (again.task_id, again.duplicate, again.state) == (first.task_id, True, TaskState.READY)


async def test_a_result_goes_after_its_time_although_its_task_is_known(client: AsyncClient, queue: str) -> None:
    for result_ttl_ms in TIMES_MS:
        accepted = await client.enqueue(NewTask(queue, "t", result_ttl_ms=result_ttl_ms))
        [claim] = await client.reserve([queue], lease_ms=LONG_LEASE_MS)
        await client.ack(claim, result=b"42")
        result = (await client.wait_task(accepted.task_id)).result
        if result is not None:
            break
    assert result == b"42"
    ends_s = time.monotonic() + WAIT_MS / 1000
    while (info := await client.get_task(accepted.task_id)).result is not None:
        assert time.monotonic() < ends_s, "the result outlived its time"
        await asyncio.sleep(0.1)
    assert info.state is TaskState.SUCCEEDED
    assert (await client.wait_task(accepted.task_id)).result is None


async def test_dead_letters_by_what_they_are(client: AsyncClient, queue: str) -> None:
    tasks = [NewTask(queue, "mail", tenant="acme"), NewTask(queue, "mail", tenant="other"), NewTask(queue, "pdf")]
    ids = await enqueue_all(client, tasks)
    for claim in await client.reserve([queue], max_tasks=3):
        await client.fail(claim, TaskError("Boom", f"could not make {claim.type}"), dead=True)

    async def found(where: DeadLetterFilter) -> set[int]:
        return {ids.index(letter.task_id) async for letter in client.iter_dead_letters(queue, where=where)}

    assert await found(DeadLetterFilter()) == {0, 1, 2}
    assert await found(DeadLetterFilter(type="mail")) == {0, 1}
    assert await found(DeadLetterFilter(tenant="acme")) == {0}
    assert await found(DeadLetterFilter(error="MAKE PDF")) == {2}
    assert await found(DeadLetterFilter(reason="TTL_PASSED")) == set()
    died_ms = min([(await client.get_task(task_id)).changed_at_ms for task_id in ids])
    assert await found(DeadLetterFilter(died_before_ms=died_ms)) == set()

    seen = await client.discard_dead_letters_where(queue, DeadLetterFilter(type="pdf"), dry_run=True)
    assert (seen.found, seen.done) == (1, 0)
    done = await client.discard_dead_letters_where(queue, DeadLetterFilter(type="pdf"), by="ops", note="known bug")
    assert (done.found, done.done) == (1, 1)
    page = await client.list_discards(queue)
    assert [(gone.task_id, gone.by, gone.note, gone.type) for gone in page.discards] == [
        (ids[2], "ops", "known bug", "pdf")
    ]
    retried = await client.retry_dead_letters_where(queue)
    assert retried.done == 2
    assert (await client.queue_stats(queue)).ready == 2


async def test_a_purge_finds_the_tasks_of_every_subqueue(client: AsyncClient, queue: str) -> None:
    """Long sub-queues and short ones, more than fit on a page, and those without a tenant."""
    tenants = [f"tenant-{n // 2}" for n in range(1400)] + ["burst"] * 20 + [""] * 5
    for index in range(0, len(tenants), 1000):
        await client.enqueue_many([NewTask(queue, "t", tenant=tenant) for tenant in tenants[index : index + 1000]])
    assert await client.purge_queue(queue, dry_run=True) == len(tenants)
    assert await client.purge_queue(queue) == len(tenants)
    stats = await client.queue_stats(queue)
    assert (stats.ready, stats.cancelled_total) == (0, len(tenants))


async def test_a_purge_leaves_what_runs(client: AsyncClient, queue: str) -> None:
    await client.enqueue_many([NewTask(queue, "t", delay_ms=3_600_000 * (n % 2)) for n in range(10)])
    [claim] = await client.reserve([queue])
    assert await client.purge_queue(queue, dry_run=True) == 9
    assert await client.purge_queue(queue) == 9
    stats = await client.queue_stats(queue)
    assert (stats.ready, stats.delayed, stats.claimed, stats.cancelled_total) == (0, 0, 1, 9)
    await client.ack(claim)
