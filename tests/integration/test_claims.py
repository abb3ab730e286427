"""A claim: exclusive, for a time, under a token; its calls can be repeated, and a caller that goes away lets it go."""

import asyncio
import subprocess
import sys
import time

import pytest

from holdfast.client import Accepted, AsyncClient, ClaimRef, NewTask, RequestIdConflict, StaleToken, TaskState
from tests.integration.server import ServerProcess
from tests.integration.waiters import use, wait_for_waiters

LONG_LEASE_MS = 600_000
# Shard time is counted in whole milliseconds, so something may seem to happen a little before its time.
ROUNDING_S = 0.005


async def test_a_lease_that_ends_hands_the_task_to_another_worker(client: AsyncClient, queue: str) -> None:
    await client.enqueue(NewTask(queue, "t", b"body"))
    sent_s = time.monotonic()
    [first] = await client.reserve([queue], lease_ms=1000, worker="first")
    [second] = await client.reserve([queue], lease_ms=LONG_LEASE_MS, wait_ms=20_000, worker="second")
    assert time.monotonic() - sent_s >= 1 - ROUNDING_S, "the first lease was cut short"

    assert (second.task_id, second.payload) == (first.task_id, b"body")
    assert second.token > first.token
    assert (second.claims, second.attempt) == (1, 1), (
        "a lost worker spends no attempt, and no claim of a task in company"
    )
    assert (first.alone, second.alone) == (False, True)

    with pytest.raises(StaleToken) as late:
        await client.ack(first)
    assert late.value.reason == "STALE_TOKEN"
    with pytest.raises(StaleToken):
        await client.fail(first)
    with pytest.raises(StaleToken):
        await client.extend(first, 5000)
    with pytest.raises(StaleToken):
        await client.release(first)

    await client.ack(second)
    stats = await client.queue_stats(queue)
    assert (stats.claimed, stats.ready, stats.succeeded_total, stats.expired_total) == (0, 0, 1, 1)
    with pytest.raises(StaleToken):
        await client.ack(first)


async def test_extending_keeps_the_task(client: AsyncClient, queue: str) -> None:
    await client.enqueue(NewTask(queue, "t"))
    [claim] = await client.reserve([queue], lease_ms=3500)
    extended = await client.extend(claim, LONG_LEASE_MS)
    assert LONG_LEASE_MS - 10_000 < extended.lease_ms <= LONG_LEASE_MS
    # The old lease would have ended by the time this one gives up.
    assert await client.reserve([queue], wait_ms=4000) == []
    await client.ack(claim)


async def test_a_repeated_settlement_gets_its_first_answer(client: AsyncClient, queue: str) -> None:
    await client.enqueue_many([NewTask(queue, "t") for _ in range(3)])
    to_ack, to_fail, to_release = await client.reserve([queue], max_tasks=3, lease_ms=LONG_LEASE_MS)

    follow_ups = [NewTask(f"{queue}.next", "n", request_id="once"), NewTask(f"{queue}.next", "n")]
    acked = await client.ack(to_ack, result=b"42", follow_ups=follow_ups)
    assert len({accepted.task_id for accepted in acked.follow_ups}) == 2
    failed = await client.fail(to_fail, retry_delay_ms=3_600_000)
    released = await client.release(to_release)
    [held] = await client.reserve([queue], lease_ms=LONG_LEASE_MS)
    assert held.task_id == to_release.task_id

    for _ in range(2):
        assert await client.ack(to_ack, result=b"42", follow_ups=follow_ups) == acked
        assert await client.fail(to_fail, retry_delay_ms=0) == failed
        assert await client.release(to_release) == released
    assert (await client.queue_stats(f"{queue}.next")).enqueued_total == 2
    assert (await client.get_task(to_fail.task_id)).failures == 1
    # The repeated release does not take the task from the one who holds it now.
    await client.ack(held)


async def test_a_follow_up_whose_id_stands_for_another_task_keeps_the_claim(client: AsyncClient, queue: str) -> None:
    known = await client.enqueue(NewTask(f"{queue}.next", "n", b"1", request_id="once"))
    await client.enqueue(NewTask(queue, "t"))
    [claim] = await client.reserve([queue], lease_ms=LONG_LEASE_MS)
    other, same = (NewTask(f"{queue}.next", "n", payload, request_id="once") for payload in (b"2", b"1"))
    with pytest.raises(RequestIdConflict) as refused:
        await client.ack(claim, follow_ups=[NewTask(f"{queue}.next", "n"), other])
    assert refused.value.field == "items[0].follow_ups[1].request_id"
    assert (await client.queue_stats(f"{queue}.next")).enqueued_total == 1
    acked = await client.ack(claim, follow_ups=[same])
    assert acked.follow_ups == (Accepted(known.task_id, True, TaskState.READY),)
    assert await client.ack(claim, follow_ups=[same]) == acked


async def test_another_call_with_a_settled_token_is_refused(client: AsyncClient, queue: str) -> None:
    await client.enqueue_many([NewTask(queue, "t") for _ in range(2)])
    acked, failed = await client.reserve([queue], max_tasks=2, lease_ms=LONG_LEASE_MS)
    await client.ack(acked)
    await client.fail(failed, retry_delay_ms=3_600_000)
    for attempt in (client.fail(acked), client.release(acked), client.ack(failed), client.extend(failed, 5000)):
        with pytest.raises(StaleToken):
            await attempt
    assert (await client.get_task(acked.task_id)).state is TaskState.SUCCEEDED
    assert (await client.get_task(failed.task_id)).state is TaskState.RETRY_PENDING


async def test_a_token_that_was_never_given_out_is_refused(client: AsyncClient, queue: str) -> None:
    await client.enqueue(NewTask(queue, "t"))
    [claim] = await client.reserve([queue], lease_ms=LONG_LEASE_MS)
    next_number = claim.token + 2**64
    for token in (claim.token - 1, claim.token + 1, next_number, claim.token % 2**64 + 2**64, 2**128 - 1):
        with pytest.raises(StaleToken):
            await client.ack(ClaimRef(claim.task_id, token))
    await client.ack(claim)


async def test_a_repeated_claim_request_gets_the_same_claims(client: AsyncClient, queue: str) -> None:
    await client.enqueue_many([NewTask(queue, "t") for _ in range(5)])
    first = await client.reserve([queue], max_tasks=2, lease_ms=LONG_LEASE_MS, claim_request_id=f"{queue}-1")
    again = await client.reserve([queue], max_tasks=2, lease_ms=LONG_LEASE_MS, claim_request_id=f"{queue}-1")
    assert [(claim.task_id, claim.token) for claim in again] == [(claim.task_id, claim.token) for claim in first]
    assert len(first) == 2
    assert (await client.queue_stats(queue)).claimed == 2

    other = await client.reserve([queue], max_tasks=2, lease_ms=LONG_LEASE_MS, claim_request_id=f"{queue}-2")
    assert not {claim.task_id for claim in other} & {claim.task_id for claim in first}
    await client.ack(first[0])
    left = await client.reserve([queue], max_tasks=2, lease_ms=LONG_LEASE_MS, claim_request_id=f"{queue}-1")
    assert [claim.token for claim in left] == [first[1].token], "what is settled is not handed out again"


async def test_claim_requests_repeated_at_the_same_moment_claim_once(client: AsyncClient, queue: str) -> None:
    await client.enqueue_many([NewTask(queue, "t") for _ in range(40)])
    answers = await asyncio.gather(*(
        client.reserve([queue], max_tasks=4, lease_ms=LONG_LEASE_MS, claim_request_id=f"{queue}-1") for _ in range(8)
    ))  # fmt: skip
    assert len({tuple(claim.token for claim in answer) for answer in answers}) == 1
    stats = await client.queue_stats(queue)
    assert (stats.claimed, stats.ready) == (4, 36)
    # What the others had picked is still there for everyone else, in its old order.
    rest = await client.reserve([queue], max_tasks=100, lease_ms=LONG_LEASE_MS)
    assert len(rest) == 36
    assert [claim.task_id for claim in rest] == sorted(claim.task_id for claim in rest)


async def test_cancelling_a_running_task_reaches_its_worker(client: AsyncClient, queue: str) -> None:
    accepted = await client.enqueue(NewTask(queue, "t"))
    [claim] = await client.reserve([queue], lease_ms=LONG_LEASE_MS)
    assert (await client.cancel(accepted.task_id)).state is TaskState.CLAIMED
    assert (await client.extend(claim, LONG_LEASE_MS)).cancel_requested
    assert (await client.release(claim)).state is TaskState.CANCELLED
    assert await client.reserve([queue]) == []


# --- callers that go away -----------------------------------------------------------------------------------------

WAITING_WORKER = """
import asyncio, sys
from holdfast.client import AsyncClient

async def main() -> None:
    async with AsyncClient(sys.argv[1]) as client:
        await client.reserve([sys.argv[2]], lease_ms=600_000, wait_ms=60_000, worker="doomed")

asyncio.run(main())
"""


async def test_a_killed_worker_that_waits_does_not_take_a_task(
    shared_server: ServerProcess, client: AsyncClient, queue: str
) -> None:
    await use(client, queue)
    doomed = subprocess.Popen([sys.executable, "-c", WAITING_WORKER, shared_server.address, queue])
    try:
        await wait_for_waiters(client, queue, 1)
    finally:
        doomed.kill()
        doomed.wait()
    # At once: the server may not have noticed yet that the one who waits first is gone.
    accepted = await client.enqueue(NewTask(queue, "t"))
    [claim] = await client.reserve([queue], wait_ms=20_000, lease_ms=LONG_LEASE_MS)
    assert claim.task_id == accepted.task_id
    await client.ack(claim)
    await wait_for_waiters(client, queue, 0)


async def test_a_cancelled_reserve_leaves_the_line(client: AsyncClient, queue: str) -> None:
    await use(client, queue)
    waiting = asyncio.create_task(client.reserve([queue], wait_ms=60_000, lease_ms=LONG_LEASE_MS))
    await wait_for_waiters(client, queue, 1)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    accepted = await client.enqueue(NewTask(queue, "t"))
    [claim] = await client.reserve([queue], wait_ms=20_000, lease_ms=LONG_LEASE_MS)
    assert claim.task_id == accepted.task_id
    await wait_for_waiters(client, queue, 0)


async def test_who_holds_a_task_can_be_looked_up(client: AsyncClient, queue: str) -> None:
    accepted = await client.enqueue(NewTask(queue, "t"))
    await client.reserve([queue], lease_ms=LONG_LEASE_MS, worker="worker-7")
    info = await client.get_task(accepted.task_id)
    assert (info.state, info.worker, info.claims) == (TaskState.CLAIMED, "worker-7", 1)
    assert info.lease_expires_at_ms == info.changed_at_ms + LONG_LEASE_MS
