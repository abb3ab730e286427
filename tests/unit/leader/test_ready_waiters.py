"""Calls that wait for a task without claiming it: told in order, no more than there are tasks, none forgotten."""

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from holdfast.broker.api.tasks import TaskService
from holdfast.broker.leader import ready_waiters as ready_waiters_module
from holdfast.broker.leader.ready_waiters import HELD, NOTHING, READY, Awaited, AwaitWanted
from holdfast.machine import entries
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.serving.refusals import (
    DISK_LOW,
    INVALID_FIELD,
    MISSING_FIELD,
    NOT_LEADER,
    OUT_OF_RANGE,
    OVERLOADED,
    SHUTTING_DOWN,
    WORKER_AT_LIMIT,
    RefusedError,
)
from tests.unit.machine.machine_shard import QUEUE
from tests.unit.replica.small_shard import WAIT_MS, SmallShard, settle

OTHER = b"other"

Call = asyncio.Task[Awaited]


@pytest.fixture
async def small(monkeypatch: pytest.MonkeyPatch) -> SmallShard:
    """No offer ends because the machine is busy for a moment; where one has to end, a test says so."""
    monkeypatch.setattr(ready_waiters_module, "OFFER_SECONDS", 60.0)
    return SmallShard()


def await_ready(
    small: SmallShard, *queues: bytes, wait_ms: int = WAIT_MS, worker: bytes = b"", request_id: bytes = b""
) -> Call:
    wanted = AwaitWanted(list(queues or (QUEUE,)), wait_ms, worker, request_id)
    return asyncio.ensure_future(small.shard.await_tasks(wanted))


async def reported(*calls: Call) -> list[bool]:
    await settle()
    return [call.done() for call in calls]


async def in_time(call: Call) -> Awaited:
    return await asyncio.wait_for(call, 10)


async def reason_of(call: Call) -> str:
    with pytest.raises(RefusedError) as refused:
        await asyncio.wait_for(call, 10)
    return refused.value.reason


# --- being told -------------------------------------------------------------------------------------------------------


async def test_a_task_that_is_there_is_told_at_once_and_stays(small: SmallShard) -> None:
    (task_id,) = await small.enqueue()
    assert await await_ready(small) == READY
    assert await await_ready(small, OTHER, QUEUE, wait_ms=0) == READY
    assert [claim.task_id for claim in await small.claim()] == [task_id]


async def test_who_does_not_wait_hears_of_nothing(small: SmallShard) -> None:
    await small.enqueue(queue=OTHER)
    assert await await_ready(small, wait_ms=0) == NOTHING
    assert await await_ready(small, b"never-used", wait_ms=0) == NOTHING
    assert small.shard.waiters == 0


async def test_a_wait_ends_without_a_task(small: SmallShard) -> None:
    assert await await_ready(small, wait_ms=1) == NOTHING
    assert small.shard.waiters == 0


async def test_an_enqueue_tells_as_many_as_there_are_tasks_in_order_of_arrival(small: SmallShard) -> None:
    first, second, third = await_ready(small), await_ready(small, OTHER, QUEUE), await_ready(small)
    await settle()
    assert small.shard.waiting_for(QUEUE) == small.shard.waiters == 3
    await small.enqueue(2)
    assert await reported(first, second, third) == [True, True, False]
    assert (await first, await second) == (READY, READY)
    assert small.shard.waiters == 1


async def test_what_the_told_do_not_take_is_offered_to_the_next(
    small: SmallShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ready_waiters_module, "OFFER_SECONDS", 0.05)
    reported_s: list[tuple[Call, float]] = []
    loop = asyncio.get_running_loop()
    calls = [await_ready(small) for _ in range(3)]
    for call in calls:
        call.add_done_callback(lambda call: reported_s.append((call, loop.time())))
    await settle()
    await small.enqueue()
    assert [await in_time(call) for call in calls] == [READY] * 3
    await settle()
    assert [call for call, _ in reported_s] == calls, "one after the other"
    assert all(later_s - s >= 0.04 for (_, s), (_, later_s) in pairwise(reported_s)), "each has time to take it"


async def test_what_was_taken_is_not_offered_again(small: SmallShard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ready_waiters_module, "OFFER_SECONDS", 0.3)
    first, second = await_ready(small), await_ready(small)
    await settle()
    await small.enqueue()
    assert await first == READY
    await small.claim()
    await asyncio.sleep(0.35)  # longer than an offer holds: the proof of an absence takes time
    assert not second.done()
    await small.enqueue()
    assert await reported(second) == [True], "a taken task frees its offer, so the next one is told of at once"


async def test_a_newcomer_does_not_overtake_those_who_were_told(small: SmallShard) -> None:
    await small.enqueue(2)
    calls = [await_ready(small) for _ in range(3)]
    assert await reported(*calls) == [True, True, False]
    await small.claim(tasks_max=2)
    assert await reported(*calls) == [True, True, False]


async def test_who_waits_to_claim_comes_first(small: SmallShard) -> None:
    watching = await_ready(small)
    await settle()
    claiming = small.reserve()
    await settle()
    (task_id,) = await small.enqueue()
    await small.round()
    assert [claim.task_id for claim in await claiming] == [task_id]
    assert await reported(watching) == [False]
    await small.enqueue()
    assert await reported(watching) == [True]


async def test_a_claim_on_its_way_counts_as_taken(small: SmallShard) -> None:
    await small.enqueue()
    claiming = small.reserve()
    await settle()
    assert await await_ready(small, wait_ms=0) == NOTHING
    watching = await_ready(small)
    await small.round()
    (claim,) = await claiming
    assert await reported(watching) == [False]
    await small.release(claim)
    assert await reported(watching) == [True], "a task that comes back is told of like a new one"


async def test_a_call_that_came_while_a_claim_was_being_applied_is_not_forgotten(small: SmallShard) -> None:
    """The counters are ahead of the scheduler then, and show one task too few."""
    await small.enqueue(2)
    claiming = small.reserve()
    await settle()
    small.kv.is_full = True
    applying = asyncio.ensure_future(small.round())
    await settle()
    await settle()
    assert small.shard.state_lags
    small.shard.state_lags = False  # or the call would be refused: whether it is must not matter
    watching = await_ready(small)
    assert await reported(watching) == [False]
    small.kv.is_full = False
    await applying
    assert len(await claiming) == 1
    assert await in_time(watching) == READY


async def test_tasks_that_become_due_are_told_of(small: SmallShard) -> None:
    (task_id,) = await small.enqueue(run_at_ms=small.time.now_ms + 50)
    watching = await_ready(small)
    assert await reported(watching) == [False]
    small.time.now_ms += 50
    await small.submit(entries.Promote(small.time.now_ms, [task_id]))
    assert await reported(watching) == [True]


async def test_who_has_gone_costs_the_others_only_a_moment(small: SmallShard) -> None:
    first, second = await_ready(small), await_ready(small)
    await settle()
    first.cancel()
    await settle()
    assert small.shard.waiters == 1
    await small.enqueue()
    assert await reported(second) == [True]


# --- claims that are there already ------------------------------------------------------------------------------------


async def test_claims_of_the_same_request_are_told_at_once(small: SmallShard) -> None:
    await small.enqueue()
    await small.claim(worker=b"w", request_id=b"r")
    assert await await_ready(small, worker=b"w", request_id=b"r") == HELD
    assert await await_ready(small, worker=b"w", request_id=b"r", wait_ms=0) == HELD
    assert await await_ready(small, worker=b"another", request_id=b"r", wait_ms=0) == NOTHING
    assert await await_ready(small, worker=b"w", wait_ms=0) == NOTHING


async def test_claims_that_ended_are_not_held(small: SmallShard) -> None:
    await small.enqueue()
    (claim,) = await small.claim(worker=b"w", request_id=b"r")
    await small.ack(claim)
    assert await await_ready(small, worker=b"w", request_id=b"r", wait_ms=0) == NOTHING


async def test_a_claim_of_an_older_call_that_was_on_its_way_is_told(small: SmallShard) -> None:
    await small.enqueue()
    older = small.reserve(worker=b"w", request_id=b"r")
    await settle()
    watching = await_ready(small, worker=b"w", request_id=b"r")
    assert await reported(watching) == [False]
    await small.round()
    assert await watching == HELD
    assert len(await older) == 1


async def test_who_asks_again_sends_the_older_call_home(small: SmallShard) -> None:
    reserving = small.reserve(worker=b"w", request_id=b"r")
    await settle()
    watching = await_ready(small, worker=b"w", request_id=b"r")
    await settle()
    assert await reserving == []
    again = await_ready(small, worker=b"w", request_id=b"r")
    assert await reported(watching, again) == [True, False]
    assert await watching == NOTHING
    claiming = small.reserve(worker=b"w", request_id=b"r")
    assert await reported(again) == [True]
    await small.enqueue()
    await small.round()
    assert len(await claiming) == 1


# --- limits and ends --------------------------------------------------------------------------------------------------


async def test_waiting_calls_are_bounded() -> None:
    small = SmallShard(waiters_max=1)
    first = await_ready(small)
    await settle()
    assert await reason_of(await_ready(small)) == OVERLOADED
    claiming = small.reserve()  # has a limit of its own
    await settle()
    assert not claiming.done()
    await small.enqueue(2)
    await small.round()
    assert await first == READY


async def test_a_worker_that_could_not_claim_is_refused_as_by_reserve() -> None:
    small = SmallShard(claims_per_worker_max=1)
    await small.enqueue(2)
    await small.claim(worker=b"w")
    assert await reason_of(await_ready(small, worker=b"w")) == WORKER_AT_LIMIT
    assert await await_ready(small, worker=b"another") == READY


async def test_nothing_is_told_while_a_claim_would_be_refused(small: SmallShard) -> None:
    watching = await_ready(small)
    await settle()
    await small.enqueue()
    small.refuses = True
    assert await reason_of(await_ready(small)) == DISK_LOW
    waiting = await_ready(small, OTHER)
    assert await reason_of(waiting) == DISK_LOW
    assert await in_time(watching) == READY, "it was told before"
    small.refuses = False
    late = await_ready(small, OTHER)
    await settle()
    await small.enqueue(queue=OTHER)
    assert await in_time(late) == READY


async def test_space_that_is_back_is_told_of(small: SmallShard) -> None:
    watching = await_ready(small)
    await settle()
    enqueued = asyncio.ensure_future(small.enqueue())
    await settle()
    small.refuses = True
    await enqueued
    assert await reported(watching) == [False]
    small.refuses = False
    small.shard.serve_all_waiters()
    assert await reported(watching) == [True]


async def test_a_broker_that_stops_sends_everyone_home(small: SmallShard) -> None:
    watching = await_ready(small)
    await settle()
    small.shard.drain()
    assert await watching == NOTHING
    assert await reason_of(await_ready(small)) == SHUTTING_DOWN


async def test_lost_leadership_is_told(small: SmallShard) -> None:
    watching = await_ready(small)
    await settle()
    small.lose()
    assert await reason_of(watching) == NOT_LEADER
    assert await reason_of(await_ready(small)) == NOT_LEADER


# --- the wire ---------------------------------------------------------------------------------------------------------


def service(small: SmallShard) -> TaskService:
    return TaskService(small.shard, small.config, small.metrics)


async def test_the_wire_call(small: SmallShard) -> None:
    wire = service(small)
    nothing = await wire.await_tasks(pb.AwaitTasksRequest(queues=["mail", "mail"]))
    assert nothing == pb.AwaitTasksResponse()
    calling = asyncio.ensure_future(wire.await_tasks(pb.AwaitTasksRequest(queues=["mail"], wait_ms=WAIT_MS)))
    await settle()
    await small.enqueue()
    assert await calling == pb.AwaitTasksResponse(ready=True, tasks=1)
    await small.claim(worker=b"w", request_id=b"r")
    held = pb.AwaitTasksRequest(queues=["mail"], worker="w", claim_request_id="r")
    assert await wire.await_tasks(held) == pb.AwaitTasksResponse(ready=True, held=True, tasks=1)


@pytest.mark.parametrize(
    ("request_fields", "reason", "field"),
    [
        ({"queues": []}, MISSING_FIELD, "queues"),
        ({"queues": ["bad name"]}, INVALID_FIELD, "queues[0]"),
        ({"queues": ["mail"], "wait_ms": -1}, OUT_OF_RANGE, "wait_ms"),
        ({"queues": ["mail"], "wait_ms": 60_001}, OUT_OF_RANGE, "wait_ms"),
        ({"queues": ["mail"], "worker": "a\nb"}, INVALID_FIELD, "worker"),
        ({"queues": ["mail"], "claim_request_id": "a\nb"}, INVALID_FIELD, "claim_request_id"),
    ],
)
async def test_bad_requests(small: SmallShard, request_fields: dict[str, Any], reason: str, field: str) -> None:
    with pytest.raises(RefusedError) as refused:
        await service(small).await_tasks(pb.AwaitTasksRequest(**request_fields))
    assert (refused.value.reason, refused.value.field) == (reason, field)
