"""Tasks of runs at the leader: claimed, given back, expired, purged and waited for like all others."""

import asyncio

import pytest

from holdfast.broker.api import purging
from holdfast.broker.api.purging import Purging
from holdfast.broker.api.validation import Validator
from holdfast.broker.leader import reserver, timers, watermarks
from holdfast.broker.policy.policies import default_policy
from holdfast.machine import entries, keys, run_entries
from holdfast.machine.outcomes import Claimed, Outcome
from holdfast.machine.rows import CANCELLED, READY, SUCCEEDED, Execution
from holdfast.machine.run_entries import AckRange
from holdfast.proto.v1 import queues_pb2 as queues_pb
from tests.unit.machine.machine_shard import KEEP_MS, QUEUE
from tests.unit.replica.small_shard import SmallShard, counted, refusal, settle


def parts(claims: list[Claimed]) -> list[tuple[bytes, int]]:
    return [(claim.task_id, claim.tasks) for claim in claims]


def tasks_of(small: SmallShard, task_ids: list[bytes]) -> list[Execution]:
    return [task for task in small.shard.executions(task_ids) if task is not None]


def states(small: SmallShard, task_ids: list[bytes]) -> set[int]:
    return {task.state for task in tasks_of(small, task_ids)}


async def ack_ranges(small: SmallShard, *claims: Claimed) -> list[Outcome]:
    ranges = [AckRange(claim.task_id, claim.token, claim.tasks) for claim in claims]
    return await small.submit(run_entries.AckRanges(small.time.now_ms, KEEP_MS, ranges))


# --- claims -----------------------------------------------------------------------------------------------------------


async def test_a_run_is_claimed_in_slices_beside_other_tasks(small: SmallShard) -> None:
    run = await small.enqueue_run(10)
    (single,) = await small.enqueue()
    assert parts(await small.claim(tasks_max=6)) == [(run[0], 6)]
    assert parts(await small.claim(tasks_max=6)) == [(run[6], 4), (single, 1)]


async def test_limits_of_a_call_and_of_a_worker_count_tasks() -> None:
    small = SmallShard(claims_per_worker_max=7)
    await small.enqueue_run(10)
    await small.enqueue_run(10, queue=b"other")
    claims = await small.claim(QUEUE, b"other", tasks_max=9, queue_tasks_max={QUEUE: 4})
    assert [claim.tasks for claim in claims] == [4, 3]
    assert await refusal(small.reserve(wait_ms=0)) == "WORKER_AT_LIMIT"
    await ack_ranges(small, claims[0])
    assert [claim.tasks for claim in await small.claim(tasks_max=9)] == [4]


async def test_a_slice_wakes_as_many_as_it_has_tasks_for(small: SmallShard) -> None:
    calls = [small.reserve(tasks_max=2) for _ in range(3)]
    run = await small.enqueue_run(5)
    await small.round()
    assert [parts(await call) for call in calls] == [[(run[0], 2)], [(run[2], 2)], [(run[4], 1)]]


async def test_a_reply_is_bounded_in_bytes() -> None:
    small = SmallShard(batch_bytes_max=1000)
    await small.enqueue_run(30, size_bytes=98)
    assert [claim.tasks for claim in await small.claim(tasks_max=30)] == [10]


async def test_what_a_caller_that_has_gone_would_have_got_goes_back_task_by_task(small: SmallShard) -> None:
    run = await small.enqueue_run(4)
    call = small.reserve(tasks_max=3)
    await settle()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await small.round()
    await small.round()
    assert [(task.state, task.claims) for task in tasks_of(small, run)] == [(READY, 0)] * 4
    assert parts(await small.claim(tasks_max=9)) == [(task_id, 1) for task_id in run]


async def test_a_repeat_gets_what_was_claimed_and_leaves_the_rest_ready(small: SmallShard) -> None:
    run = await small.enqueue_run(9)
    calls = [small.reserve(request_id=b"r", tasks_max=3) for _ in range(3)]
    await small.round()
    assert [parts(await call) for call in calls] == [[(run[0], 3)]] * 3
    assert parts(await small.claim(tasks_max=9)) == [(run[3], 3), (run[6], 3)]


async def test_a_task_that_is_cancelled_on_the_way_is_missing_in_its_slice(small: SmallShard) -> None:
    run = await small.enqueue_run(5)
    cancelling = asyncio.ensure_future(small.shard.submit(entries.Cancel(small.time.now_ms, KEEP_MS, [run[0], run[2]])))
    await settle()
    assert parts(await small.claim(tasks_max=9, request_id=b"r")) == [(run[1], 1), (run[3], 2)]
    await cancelling
    assert await small.reserve(wait_ms=0) == []


# --- ends -------------------------------------------------------------------------------------------------------------


async def test_who_waits_for_a_task_of_a_run_is_woken_by_the_ack_of_its_slice(small: SmallShard) -> None:
    run = await small.enqueue_run(5)
    (claim,) = await small.claim(tasks_max=4)
    calls = [asyncio.ensure_future(small.shard.wait_finished(ids, 60_000)) for ids in ([run[2]], run[:4], run[3:])]
    await settle()
    assert small.shard.watched_tasks == 7
    await ack_ranges(small, claim)
    assert [[task.state for task in await call if task is not None] for call in calls[:2]] == [
        [SUCCEEDED],
        [SUCCEEDED] * 4,
    ]
    assert not calls[2].done()
    assert small.shard.watched_tasks == 1
    small.shard.drain()
    await calls[2]


async def test_times_are_counted_by_task(small: SmallShard) -> None:
    await small.enqueue_run(5, type=b"send")
    small.time.now_ms += 40
    (claim,) = await small.claim(tasks_max=4)
    small.time.now_ms += 7
    await ack_ranges(small, claim)
    ((_, ready, claimed),) = small.leadership.stats.latencies_of(QUEUE)
    assert (sum(ready.counts), ready.total_ms) == (4, 160)
    assert (sum(claimed.counts), claimed.total_ms) == (4, 28)


async def test_claims_of_a_slice_are_as_old_as_each_other(small: SmallShard) -> None:
    await small.enqueue_run(5)
    (claim,) = await small.claim(tasks_max=4)
    small.time.now_ms += 500
    ages = small.leadership.claim_ages
    await ages.poll()
    assert ages.age_ms(QUEUE) == 500
    await ack_ranges(small, claim._replace(tasks=2))
    assert ages.age_ms(QUEUE) == 500


# --- what time brings about -------------------------------------------------------------------------------------------


def due(small: SmallShard, family: int) -> list[tuple[int, bytes]]:
    rows = small.kv.scan(keys.family_start(family), keys.family_start(family + 1), 1000)
    return [keys.timed(key) for key, _ in rows]


async def test_a_slice_whose_lease_ends_expires_task_by_task_in_short_entries() -> None:
    small = SmallShard(sweep_batch_tasks=3)
    run = await small.enqueue_run(8)
    await small.claim(tasks_max=8)
    small.time.now_ms += 60_000
    assert len(due(small, keys.CLAIM_EXPIRY)) == 1
    before = small.machine.meta.applied_index
    assert await small.rounds_until(small.leadership.housekeeping.expire(due(small, keys.CLAIM_EXPIRY)))
    assert small.machine.meta.applied_index == before + 3
    assert counted(small.metrics.tasks_expired) == 8
    assert all(task.is_suspect and task.state == READY for task in tasks_of(small, run))


async def test_an_entry_of_expiries_takes_only_so_many_payloads_out_of_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timers, "DEPARTING_BYTES_MAX", 35)
    small = SmallShard()
    run = await small.enqueue_run(7, size_bytes=8, header=b"")  # and two bytes for what a payload is
    singles = await small.enqueue(2)
    await small.claim(tasks_max=9)
    small.time.now_ms += 60_000
    before = small.machine.meta.applied_index
    assert await small.rounds_until(small.leadership.housekeeping.expire(due(small, keys.CLAIM_EXPIRY)))
    assert small.machine.meta.applied_index == before + 3
    assert states(small, [*run, *singles]) == {READY}


async def test_what_goes_back_to_its_run_goes_in_entries_of_few_payloads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reserver, "DEPARTING_BYTES_MAX", 35)
    small = SmallShard()
    run = await small.enqueue_run(7, size_bytes=8, header=b"")  # and two bytes for what a payload is
    call = small.reserve(tasks_max=7)
    await settle()
    call.cancel()
    await small.round()
    before = small.machine.meta.applied_index
    await small.round()
    assert small.machine.meta.applied_index == before + 3
    assert [(task.state, task.claims) for task in tasks_of(small, run)] == [(READY, 0)] * 7


async def test_finished_tasks_of_a_run_are_purged_together(small: SmallShard) -> None:
    run = await small.enqueue_run(8)
    (single,) = await small.enqueue()
    claims = await small.claim(tasks_max=9)
    await ack_ranges(small, *claims)
    assert states(small, run) == {SUCCEEDED}
    small.time.now_ms += KEEP_MS
    assert len(due(small, keys.RETENTION)) == 2
    assert await small.rounds_until(small.leadership.housekeeping.purge(due(small, keys.RETENTION)))
    assert tasks_of(small, [*run, single]) == []
    assert counted(small.metrics.tasks_purged) == 9


async def test_a_queue_is_emptied_of_slices_page_by_page(small: SmallShard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(purging, "ENTRY_ITEMS_MAX", 5)
    runs = [await small.enqueue_run(count) for count in (3, 1, 4)]
    api_calls = Purging(small.shard, Validator(small.config), default_policy(small.config))
    for dry_run in (True, False):
        token, purged = "", list[int]()
        while token or not purged:
            request = queues_pb.PurgeQueueRequest(queue=QUEUE.decode(), page_token=token, dry_run=dry_run)
            page = await small.rounds_until(api_calls.purge_page(request))
            purged.append(page.purged)
            token = page.next_page_token
        assert purged == [0, 4, 4, 0]
        assert states(small, [task_id for run in runs for task_id in run]) == {READY if dry_run else CANCELLED}


async def test_marks_are_raised_to_the_first_task_of_a_slice(
    small: SmallShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watermarks, "RAISE_AT", 3)
    run = await small.enqueue_run(8)
    await small.claim()  # it holds a window
    await small.submit(entries.Cancel(small.time.now_ms, KEEP_MS, run[1:4]))
    assert await small.rounds_until(small.leadership.marks.raise_marks(QUEUE))
    queue = small.machine.queue(QUEUE)
    assert queue is not None
    assert queue.marks[4] == tasks_of(small, [run[4]])[0].sequence
    assert parts(await small.claim(tasks_max=2)) == [(run[4], 2)]
