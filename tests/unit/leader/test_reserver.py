"""How tasks are handed out: who waits is woken, who has gone gets nothing, who asks twice gets the same."""

import asyncio

import pytest

from holdfast.machine import entries
from holdfast.machine.outcomes import Acked, Claimed
from holdfast.machine.rejections import Rejection
from holdfast.machine.rows import CLAIMED, READY
from holdfast.serving.refusals import DISK_LOW, OVERLOADED, SHUTTING_DOWN, WORKER_AT_LIMIT, OutcomeUnknownError
from tests.unit.machine.machine_shard import KEEP_MS, QUEUE, START_MS, new_task
from tests.unit.replica.small_shard import SmallShard, refusal, settle

OTHER = b"other"


def ids(claims: list[Claimed]) -> list[bytes]:
    return [claim.task_id for claim in claims]


async def gone(call: asyncio.Task[list[Claimed]]) -> None:
    """The caller goes away."""
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_every_claim_has_a_secret_of_its_own_that_its_tasks_share(small: SmallShard) -> None:
    await small.enqueue(4)
    both = await small.rounds_until(_both(small.reserve(tasks_max=2), small.reserve(tasks_max=2)))
    secrets = [[claim.token % 2**64 for claim in claims] for claims in both]
    assert [len(set(of_one)) for of_one in secrets] == [1, 1]
    assert secrets[0] != secrets[1]
    assert 0 not in (secrets[0][0], secrets[1][0])


async def _both(one: asyncio.Task[list[Claimed]], other: asyncio.Task[list[Claimed]]) -> list[list[Claimed]]:
    return [await one, await other]


# --- waiting ----------------------------------------------------------------------------------------------------------


async def test_who_does_not_wait_gets_nothing_from_an_empty_queue(small: SmallShard) -> None:
    assert await small.reserve(wait_ms=0) == []
    assert small.shard.waiters == 0


async def test_who_waits_is_served_by_the_enqueue_in_order_of_arrival(small: SmallShard) -> None:
    first, second, third = small.reserve(), small.reserve(), small.reserve()
    await settle()
    assert small.shard.waiting_for(QUEUE) == small.shard.waiters == 3
    tasks = await small.enqueue(2)
    await small.round()
    assert [ids(await first), ids(await second)] == [tasks[:1], tasks[1:]]
    assert not third.done()
    assert small.shard.waiters == 1


async def test_who_comes_later_does_not_overtake(small: SmallShard) -> None:
    waiting = small.reserve(tasks_max=1)
    await settle()
    tasks = await small.enqueue(1)
    late = small.reserve()
    await small.round()
    assert ids(await waiting) == tasks
    assert not late.done()


async def test_others_waiting_in_one_queue_do_not_hold_up_another(small: SmallShard) -> None:
    in_front = small.reserve(OTHER)
    tasks = await small.enqueue(1)
    await settle()
    newcomer = small.reserve(OTHER, QUEUE)
    await small.round()
    assert newcomer.done()
    assert ids(await newcomer) == tasks
    assert not in_front.done()


async def test_a_wait_ends_empty_handed(small: SmallShard) -> None:
    call = small.reserve(wait_ms=1)
    assert await call == []
    assert small.shard.waiters == 0


async def test_a_wait_goes_on_when_all_that_was_picked_is_cancelled_on_the_way(small: SmallShard) -> None:
    (task_id,) = await small.enqueue()
    cancelling = small.begin(entries.Cancel(START_MS, KEEP_MS, [task_id]))
    await settle()
    call = small.reserve()
    await small.round()
    await cancelling
    assert not call.done()
    tasks = await small.enqueue()
    await small.round()
    assert ids(await call) == tasks


async def test_what_a_repeated_request_does_not_need_goes_to_who_waits(small: SmallShard) -> None:
    await small.enqueue(2)
    first = small.reserve(request_id=b"r")
    again = small.reserve(request_id=b"r")
    await settle()
    waiting = small.reserve(worker=b"another")
    await small.round()
    assert await first == await again
    await small.round()
    assert waiting.done(), "the second task is ready and somebody waits for it"
    assert ids(await waiting) != ids(await first)


async def test_waiters_are_bounded() -> None:
    small = SmallShard(waiters_max=1)
    call = small.reserve()
    await settle()
    assert await refusal(small.reserve()) == OVERLOADED
    await gone(call)
    assert small.shard.waiters == 0


# --- limits of single queues ------------------------------------------------------------------------------------------


async def test_a_queue_gives_no_more_than_its_own_limit(small: SmallShard) -> None:
    slow = await small.enqueue(5)
    quick = await small.enqueue(5, queue=OTHER)
    claims = await small.claim(QUEUE, OTHER, tasks_max=6, queue_tasks_max={QUEUE: 2})
    assert ids(claims) == slow[:2] + quick[:4]
    claims = await small.claim(QUEUE, OTHER, tasks_max=1, queue_tasks_max={QUEUE: 2})
    assert ids(claims) == slow[2:3], "the limit of the call still holds"


async def test_each_type_is_claimed_for_its_own_lease(small: SmallShard) -> None:
    """In one claim of one queue, also for a call that had to wait."""
    leases = {b"slow": 90_000, b"quick": 1_000, b"elsewhere": 5_000}
    tasks = [new_task(type=name) for name in (b"slow", b"other", b"quick")]
    call = small.reserve(tasks_max=3, type_lease_ms=leases)
    await settle()
    await small.submit(entries.Enqueue(small.time.now_ms, tasks))
    await small.round()
    await small.submit(entries.Enqueue(small.time.now_ms, tasks))
    for claims in (await call, await small.claim(tasks_max=3, type_lease_ms=leases)):
        assert [claim.expiry_ms - small.time.now_ms for claim in claims] == [90_000, 30_000, 1_000]


async def test_who_waits_keeps_the_limit_of_a_queue(small: SmallShard) -> None:
    call = small.reserve(QUEUE, OTHER, tasks_max=10, queue_tasks_max={QUEUE: 2, OTHER: 1})
    await settle()
    both = [new_task(queue=queue) for queue in (QUEUE, OTHER) for _ in range(4)]
    await small.submit(entries.Enqueue(START_MS, both))
    await small.round()
    claims = await call
    assert len(claims) == 3
    assert [small.machine.queue(queue).ready for queue in (QUEUE, OTHER)] == [2, 3]  # type: ignore[union-attr]


async def test_what_a_limit_leaves_goes_to_the_next_who_waits(small: SmallShard) -> None:
    modest = small.reserve(tasks_max=10, queue_tasks_max={QUEUE: 1})
    greedy = small.reserve(tasks_max=10)
    await settle()
    tasks = await small.enqueue(4)
    await small.round()
    assert ids(await modest) == tasks[:1]
    assert ids(await greedy) == tasks[1:]


# --- limits -----------------------------------------------------------------------------------------------------------


async def test_a_worker_gets_what_its_limit_allows_counting_claims_on_their_way() -> None:
    small = SmallShard(claims_per_worker_max=5)
    await small.enqueue(20)
    calls = [small.reserve(tasks_max=2) for _ in range(3)]
    await settle()
    assert await refusal(small.reserve()) == WORKER_AT_LIMIT
    await small.round()
    assert [len(await call) for call in calls] == [2, 2, 1]
    assert await refusal(small.reserve()) == WORKER_AT_LIMIT
    assert len(await small.claim(worker=b"another")) == 1
    assert len(await small.claim(worker=b"", tasks_max=10)) == 10
    await small.ack((await calls[0])[0])
    assert len(await small.claim(tasks_max=9)) == 1


async def test_claims_that_have_just_come_are_counted_once() -> None:
    small = SmallShard(claims_per_worker_max=3)
    first, second = small.reserve(tasks_max=2), small.reserve(OTHER, tasks_max=1)
    await settle()
    await small.enqueue(2)
    enqueueing = small.begin_enqueue(queue=OTHER)
    await small.round()
    await enqueueing
    await small.round()
    assert (len(await first), len(await second)) == (2, 1)


async def test_a_waiting_call_of_a_worker_that_got_its_share_elsewhere_is_refused_and_the_next_is_served() -> None:
    small = SmallShard(claims_per_worker_max=1)
    call, other = small.reserve(), small.reserve(worker=b"another")
    await small.enqueue(queue=OTHER)
    await small.claim(OTHER)
    tasks = await small.enqueue()
    await small.round()
    assert await refusal(call) == WORKER_AT_LIMIT
    assert ids(await other) == tasks


async def test_a_caller_that_goes_as_it_is_refused_is_gone() -> None:
    small = SmallShard(claims_per_worker_max=1)
    call = small.reserve()
    await small.enqueue(queue=OTHER)
    await small.claim(OTHER)
    enqueueing = small.begin_enqueue()
    await settle()
    await small.commit_staged()
    await gone(call)
    await enqueueing
    assert small.shard.waiters == 0


async def test_a_dropped_round_frees_the_room_of_its_claims() -> None:
    small = SmallShard(claims_per_worker_max=1)
    tasks = await small.enqueue()
    call = small.reserve()
    await small.round_without_room()
    assert await refusal(call) == DISK_LOW
    assert ids(await small.claim()) == tasks


async def test_a_reply_is_bounded_in_bytes() -> None:
    small = SmallShard(batch_bytes_max=100)
    await small.enqueue(5, envelope=bytes(60))
    await small.enqueue(5, envelope=bytes(60), queue=OTHER)
    assert len(await small.claim(QUEUE, OTHER, tasks_max=9)) == 2


# --- callers that have gone -------------------------------------------------------------------------------------------


async def test_what_a_caller_that_has_gone_would_have_got_goes_back_at_once(small: SmallShard) -> None:
    (task_id,) = await small.enqueue()
    call = small.reserve()
    await settle()
    await gone(call)
    await small.round()
    assert small.shard.executions([task_id])[0].state == CLAIMED  # type: ignore[union-attr]
    await small.round()
    (task,) = small.shard.executions([task_id])
    assert task is not None
    assert (task.state, task.claims) == (READY, 0)


async def test_a_caller_that_goes_after_the_claim_and_before_its_answer(small: SmallShard) -> None:
    (task_id,) = await small.enqueue()
    call = small.reserve()
    await settle()
    await small.commit_staged()
    await gone(call)
    await small.round()
    assert ids(await small.claim()) == [task_id]


async def test_a_waiting_caller_that_goes_as_it_is_served(small: SmallShard) -> None:
    call = small.reserve()
    await settle()
    enqueueing = small.begin_enqueue()
    await settle()
    await small.commit_staged()
    await gone(call)
    await enqueueing
    await small.round()
    await small.round()
    assert len(await small.claim()) == 1
    assert small.shard.waiters == 0


async def test_a_caller_that_gave_up_waiting_takes_nothing(small: SmallShard) -> None:
    call = small.reserve()
    await settle()
    enqueueing = small.begin_enqueue()
    await settle()
    small.shard.stage()
    small.log.flushed()
    call.cancel()  # and has not had its turn when the task comes
    await small.shard.apply_committed()
    assert small.shard.proposals_waiting == 0
    await gone(call)
    await enqueueing


async def test_who_asks_again_never_gets_what_is_on_its_way_back(small: SmallShard) -> None:
    """The claims of the first call go back because its caller has gone; the second call gets claims that hold."""
    await small.enqueue()
    first = small.reserve(request_id=b"r")
    await settle()
    await gone(first)
    await small.round()
    again = small.reserve(request_id=b"r")
    for _ in range(3):
        await small.round()
    assert await small.ack((await again)[0]) == Acked(())


async def test_who_asked_again_in_time_never_gets_what_is_on_its_way_back(small: SmallShard) -> None:
    """As before, but the second call is on its way already and would be answered with the claims of the first."""
    await small.enqueue()
    await small.enqueue(queue=OTHER)
    first, again = small.reserve(request_id=b"r"), small.reserve(QUEUE, OTHER, request_id=b"r")
    await settle()
    await gone(first)
    for _ in range(4):
        await small.round()
    assert await small.ack((await again)[0]) == Acked(())


async def test_two_calls_of_one_request_at_once_get_the_same(small: SmallShard) -> None:
    await small.enqueue(6)
    calls = [small.reserve(request_id=b"r", tasks_max=2) for _ in range(3)]
    await small.round()
    assert await calls[0] == await calls[1] == await calls[2]
    assert len(await small.claim(tasks_max=9)) == 4


async def test_who_asks_again_does_not_wait_behind_itself(small: SmallShard) -> None:
    """The connection of the first call broke, but here it still waits: what came would have gone to nobody."""
    broken, others = small.reserve(request_id=b"r"), small.reserve(request_id=b"s")
    await settle()
    again = small.reserve(request_id=b"r")
    await settle()
    assert await broken == []
    tasks = await small.enqueue(2)
    await small.round()
    assert [ids(await others), ids(await again)] == [tasks[:1], tasks[1:]]
    assert small.shard.waiters == 0


async def test_a_repeat_whose_caller_has_gone_leaves_the_claims_to_the_first(small: SmallShard) -> None:
    await small.enqueue(2)
    first, repeat = small.reserve(request_id=b"r"), small.reserve(request_id=b"r")
    await settle()
    await gone(repeat)
    for _ in range(3):
        await small.round()
    assert await small.ack((await first)[0]) == Acked(())


async def test_a_claim_that_has_run_out_is_not_given_again(small: SmallShard) -> None:
    await small.enqueue()
    (claim,) = await small.claim(request_id=b"r")
    small.time.now_ms = claim.expiry_ms - 1
    assert await small.claim(request_id=b"r") == [claim]
    small.time.now_ms = claim.expiry_ms
    assert await small.claim(request_id=b"r") == []


async def test_who_asks_for_what_was_claimed_gets_nothing_new(small: SmallShard) -> None:
    await small.enqueue(2)
    assert await small.reserve(request_id=b"r", held_only=True) == [], "and does not wait for anything"
    claims = await small.claim(request_id=b"r")
    assert await small.reserve(request_id=b"r", held_only=True) == claims
    assert await small.ack(claims[0]) == Acked(())
    assert await small.reserve(request_id=b"r", held_only=True) == []
    assert len(await small.claim(request_id=b"s")) == 1


async def test_what_is_on_its_way_counts_as_claimed(small: SmallShard) -> None:
    """Whoever asks too soon would be told that there is nothing, and would not come back."""
    await small.enqueue()
    first = small.reserve(request_id=b"r")
    await settle()
    asking = small.reserve(request_id=b"r", held_only=True)
    await settle()
    assert not asking.done()
    while not first.done():
        await small.round()
    assert await asking == await first


async def test_a_claim_that_has_run_out_does_not_hide_others_of_the_same_call(small: SmallShard) -> None:
    await small.enqueue()
    await small.enqueue(type=b"short")
    claims = await small.claim(request_id=b"r", tasks_max=2, type_lease_ms={b"short": 1_000})
    long, short = sorted(claims, key=lambda claim: -claim.expiry_ms)
    assert short.expiry_ms < long.expiry_ms
    small.time.now_ms = short.expiry_ms
    assert await small.reserve(request_id=b"r", held_only=True) == [long]


# --- refused and dropped ----------------------------------------------------------------------------------------------


async def test_a_round_without_room_refuses_its_claims_and_those_behind_it(small: SmallShard) -> None:
    tasks = await small.enqueue(3)
    first = small.reserve()
    await settle()
    small.shard.stage()
    second = small.reserve()
    await small.round_without_room()
    assert [await refusal(call) for call in (first, second)] == [DISK_LOW, DISK_LOW]
    assert ids(await small.claim(tasks_max=5)) == tasks


async def test_who_waits_is_served_when_there_is_room_again(small: SmallShard) -> None:
    call = small.reserve()
    await settle()
    enqueueing = small.begin_enqueue()
    await settle()
    small.refuses = True
    await small.round()
    await enqueueing
    assert not call.done()
    assert await refusal(small.reserve(wait_ms=0)) == DISK_LOW
    small.refuses = False
    small.shard.serve_all_waiters()
    await small.round()
    assert len(await call) == 1


async def test_nothing_is_picked_while_the_state_lags_behind(small: SmallShard) -> None:
    """A task that came back is not in the ready line yet, but its mark's version is: a claim now would strand it."""
    await small.enqueue(4)
    (claim,) = await small.claim()
    releasing = asyncio.ensure_future(small.release(claim))
    await settle()
    small.kv.is_full = True
    lagging = asyncio.ensure_future(small.round())
    await settle()
    assert await refusal(small.reserve(wait_ms=0)) == DISK_LOW
    small.kv.is_full = False
    await asyncio.gather(releasing, lagging)
    assert len(await small.claim(tasks_max=9)) == 4


async def test_nobody_is_told_of_claims_before_they_are_written(small: SmallShard) -> None:
    """They may go back: their first caller has gone meanwhile."""
    await small.enqueue()
    first = small.reserve(request_id=b"r")
    await settle()
    small.kv.is_full = True
    lagging = asyncio.ensure_future(small.round())
    await settle()
    await gone(first)
    assert await refusal(small.reserve(request_id=b"r")) == DISK_LOW
    small.kv.is_full = False
    await lagging
    await small.round()
    assert await small.ack((await small.claim(request_id=b"r"))[0]) == Acked(())


# --- the end ----------------------------------------------------------------------------------------------------------


async def test_draining_sends_everyone_home(small: SmallShard) -> None:
    call = small.reserve(QUEUE, OTHER)
    await settle()
    small.shard.drain()
    assert await call == []
    assert await refusal(small.reserve()) == SHUTTING_DOWN


async def test_giving_up_leaves_the_outcome_open(small: SmallShard) -> None:
    await small.enqueue()
    call, waiting = small.reserve(), small.reserve()
    await settle()
    small.shard.give_up()
    with pytest.raises(OutcomeUnknownError):
        await call
    assert await waiting == []


async def test_a_token_of_a_claim_that_went_back_is_stale(small: SmallShard) -> None:
    await small.enqueue()
    (claim,) = await small.claim()
    await small.release(claim)
    assert isinstance(await small.ack(claim), Rejection)
