"""Calls that wait for tasks to finish: none is missed, none stays behind."""

import asyncio
import random

import pytest

from holdfast.broker.leader.result_waiters import ENDS
from holdfast.machine import entries
from holdfast.machine.operator_entries import DiscardDead
from holdfast.machine.outcomes import Claimed
from holdfast.machine.rows import READY, SUCCEEDED, WORKER_GAVE_UP, Execution
from holdfast.serving.refusals import OVERLOADED, SHUTTING_DOWN, RefusedError
from tests.unit.machine.machine_shard import DEAD_KEEP_MS, KEEP_MS, PAUSE_MS
from tests.unit.replica.small_shard import WAIT_MS, SmallShard, settle

UNKNOWN = bytes(16)

Found = list[Execution | None]


def wait(small: SmallShard, *task_ids: bytes, wait_ms: int = WAIT_MS) -> asyncio.Task[Found]:
    """A call that has begun."""
    return asyncio.ensure_future(small.shard.wait_finished(list(task_ids), wait_ms))


def states(found: Found) -> list[int | None]:
    return [task.state if task is not None else None for task in found]


async def finish(small: SmallShard) -> None:
    (claim,) = await small.claim()
    await small.ack(claim)


def bury_entry(small: SmallShard, claim: Claimed) -> entries.Fail:
    item = entries.FailItem(claim.task_id, claim.token, 0, WORKER_GAVE_UP, b"error")
    return entries.Fail(small.time.now_ms, KEEP_MS, DEAD_KEEP_MS, [item])


async def refused(call: asyncio.Task[Found]) -> str:
    with pytest.raises(RefusedError) as caught:
        await call
    return caught.value.reason


async def test_a_call_for_many_waits_for_the_last(small: SmallShard) -> None:
    tasks = await small.enqueue(3)
    call = wait(small, *tasks, UNKNOWN, tasks[0])
    await settle()
    assert small.shard.watched_tasks == 3, "a task named twice is one, an unknown one is none"
    for _ in range(2):
        await finish(small)
    assert not call.done()
    assert small.shard.watched_tasks == 1
    await finish(small)
    assert states(await call) == [SUCCEEDED] * 3 + [None, SUCCEEDED]


async def test_an_end_between_the_look_and_the_round_is_not_missed(small: SmallShard) -> None:
    """The ack is on its way when the call comes: its state is still CLAIMED."""
    (task_id,) = await small.enqueue()
    (claim,) = await small.claim()
    item = entries.AckItem(task_id, claim.token, None, ())
    acking = asyncio.ensure_future(small.shard.submit(entries.Ack(small.time.now_ms, KEEP_MS, [item])))
    await settle()
    call = wait(small, task_id)
    await small.round()
    await acking
    assert states(await call) == [SUCCEEDED]


async def test_an_end_that_the_state_has_no_room_for_is_told_when_it_has(small: SmallShard) -> None:
    (task_id,) = await small.enqueue()
    (claim,) = await small.claim()
    small.kv.is_full = True
    acking = asyncio.ensure_future(small.ack(claim))
    while not small.shard.state_lags:
        await asyncio.sleep(0)
    call = wait(small, task_id)
    await settle()
    assert not call.done()
    small.kv.is_full = False
    await acking
    assert states(await call) == [SUCCEEDED]


async def test_the_end_of_a_wait_tells_the_states_of_that_moment(small: SmallShard) -> None:
    tasks = await small.enqueue(2)
    call = wait(small, *tasks, wait_ms=1)
    assert states(await call) == [READY, READY]
    assert small.shard.watched_tasks == 0
    assert states(await wait(small, *tasks, wait_ms=0)) == [READY, READY]


async def test_a_task_that_is_purged_or_discarded_meanwhile_is_unknown(small: SmallShard) -> None:
    purged, discarded, last = await small.enqueue(3)
    call = wait(small, purged, discarded, last)
    one, two, three = await small.claim(tasks_max=3)
    await small.ack(one)
    await small.submit(bury_entry(small, two))
    await small.submit(DiscardDead(small.time.now_ms, [discarded]))
    small.time.now_ms += PAUSE_MS
    await small.submit(entries.Purge(small.time.now_ms, [purged]))
    assert not call.done()
    await small.ack(three)
    assert states(await call) == [None, None, SUCCEEDED]


async def test_a_caller_that_goes_leaves_nothing_behind(small: SmallShard) -> None:
    tasks = await small.enqueue(3)
    leaving, staying = wait(small, *tasks), wait(small, *tasks)
    await settle()
    await finish(small)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    assert small.shard.watched_tasks == 2
    staying.cancel()
    await settle()
    assert small.shard.watched_tasks == 0
    assert len(small.leadership.result_waiters) == 0


async def test_tasks_that_are_waited_for_are_bounded() -> None:
    small = SmallShard(watched_tasks_max=3)
    tasks = await small.enqueue(3)
    first = wait(small, *tasks[:2])
    await settle()
    assert await refused(wait(small, *tasks[:2])) == OVERLOADED
    second = wait(small, tasks[2])
    await settle()
    assert states(await wait(small, *tasks, wait_ms=0)) == [READY] * 3, "who does not wait takes no room"
    for _ in tasks:
        await finish(small)
    await asyncio.gather(first, second)
    assert small.shard.watched_tasks == 0


async def test_calls_that_wait_are_bounded() -> None:
    small = SmallShard(waiters_max=1)
    (task_id,) = await small.enqueue()
    call = wait(small, task_id)
    await settle()
    assert await refused(wait(small, task_id)) == OVERLOADED
    await finish(small)
    assert states(await call) == [SUCCEEDED]


async def test_a_drain_sends_everyone_home_with_what_is_known(small: SmallShard) -> None:
    tasks = await small.enqueue(2)
    call = wait(small, *tasks)
    await settle()
    await finish(small)
    small.shard.drain()
    assert states(await call) == [SUCCEEDED, READY]
    assert await refused(wait(small, *tasks)) == SHUTTING_DOWN
    assert states(await wait(small, tasks[0])) == [SUCCEEDED]
    assert states(await wait(small, *tasks, wait_ms=0)) == [SUCCEEDED, READY]


@pytest.mark.parametrize("seed", range(8))
async def test_whatever_happens_a_call_waits_exactly_while_something_is_unfinished(seed: int) -> None:
    rng = random.Random(seed)
    small = SmallShard()
    tasks: list[bytes] = []
    calls: dict[asyncio.Task[Found], list[bytes]] = {}
    for _ in range(120):
        action = rng.random()
        if action < 0.2 or not tasks:
            tasks += await small.enqueue(rng.randint(1, 3))
        elif action < 0.4:
            wanted = rng.choices([*tasks[-8:], UNKNOWN], k=rng.randint(1, 4))
            calls[wait(small, *wanted)] = wanted
        elif action < 0.5 and calls:
            rng.choice(list(calls)).cancel()
        else:
            changes = [await _something(small, rng, tasks) for _ in range(rng.randint(1, 3))]
            submitting = [asyncio.ensure_future(small.shard.submit(entry)) for entry in changes]
            await small.round()
            await asyncio.gather(*submitting)
        await settle()
        for call, wanted in list(calls.items()):
            now = small.shard.executions(wanted)
            waits = any(task is not None and task.state not in ENDS for task in now)
            assert call.done() != waits or call.cancelled()
            if call.done():
                assert call.cancelled() or states(call.result()) == states(now)
                del calls[call]
    small.shard.drain()
    await asyncio.gather(*calls)
    assert small.shard.watched_tasks == 0
    assert len(small.leadership.result_waiters) == 0


async def _something(small: SmallShard, rng: random.Random, tasks: list[bytes]) -> entries.Entry:
    """What may end a task, bring it back or delete it."""
    now_ms, task_id = small.time.now_ms, rng.choice(tasks)
    (task,) = small.shard.executions([task_id])
    if task is not None and task.state == READY and rng.random() < 0.6:
        await small.claim(tasks_max=rng.randint(1, 3))
    (task,) = small.shard.executions([task_id])
    token = task.token if task is not None else 1
    possible: list[entries.Entry] = [
        entries.Ack(now_ms, KEEP_MS, [entries.AckItem(task_id, token, None, ())]),
        entries.Fail(now_ms, KEEP_MS, DEAD_KEEP_MS, [entries.FailItem(task_id, token, 0, WORKER_GAVE_UP, b"error")]),
        entries.Release(now_ms, KEEP_MS, [entries.ClaimRef(task_id, token)]),
        entries.Cancel(now_ms, KEEP_MS, [task_id]),
        entries.RetryDead(now_ms, [task_id]),
        entries.RetryDead(now_ms, [task_id]),
        DiscardDead(now_ms, [task_id]),
    ]
    return rng.choice(possible)
