"""Calls with a request id while it is not known whether the node still leads: what waits for a proof, and what not."""

import asyncio

import pytest

from holdfast.machine.outcomes import Claimed
from holdfast.serving.refusals import NOT_LEADER, RefusedError
from tests.unit.machine.machine_shard import QUEUE
from tests.unit.replica.small_shard import SmallShard, settle


class Doubted(SmallShard):
    """A shard in a group of several; the others answer heartbeats when a test says so."""

    def __init__(self, claims_per_worker_max: int = 1) -> None:
        super().__init__(claims_per_worker_max=claims_per_worker_max)
        self.log.is_alone = False
        self.is_proven = False
        self.log.may_read = lambda number: self.is_proven  # type: ignore[method-assign]

    async def round(self) -> None:
        await super().round()
        self.shard.step_reads()
        await settle()

    async def waits(self, call: "asyncio.Task[list[Claimed]]") -> bool:
        """Whether a call is answered only once there is a proof."""
        await self.round()
        await self.round()
        return not call.done()

    async def proven(self, call: "asyncio.Task[list[Claimed]]") -> list[Claimed]:
        self.is_proven = True
        while not call.done():
            await self.round()
        return await call


@pytest.fixture
async def doubted() -> Doubted:
    return Doubted()


async def test_a_claim_is_its_own_proof(doubted: Doubted) -> None:
    [task_id] = await doubted.enqueue()
    call = doubted.reserve(request_id=b"r")
    await doubted.round()
    [claim] = await call
    assert claim.task_id == task_id


async def test_of_a_leader_that_was_cut_off_no_claim_is_committed(doubted: Doubted) -> None:
    await doubted.enqueue()
    call = doubted.reserve(request_id=b"r")
    await settle()
    assert not call.done()
    doubted.log.term, doubted.log.serves, doubted.log.accepts = 2, False, False
    doubted.follow_role()
    with pytest.raises(RefusedError) as refusal:
        await call
    assert refusal.value.reason == NOT_LEADER


async def test_that_there_is_nothing_to_claim_waits_for_a_proof(doubted: Doubted) -> None:
    call = doubted.reserve(request_id=b"r", wait_ms=0)
    assert await doubted.waits(call)
    assert await doubted.proven(call) == []


async def test_a_call_that_waits_asks_for_no_proof_before_it_has_waited_in_vain() -> None:
    doubted = Doubted(claims_per_worker_max=2)
    call = doubted.reserve(request_id=b"r", wait_ms=60_000)
    await settle()
    assert doubted.shard.waiters == 1
    [task_id] = await doubted.enqueue()
    await doubted.round()
    [claim] = await call
    assert claim.task_id == task_id
    in_vain = doubted.reserve(request_id=b"s", wait_ms=1)
    while doubted.shard.waiters:
        await asyncio.sleep(0.001)
    assert await doubted.waits(in_vain), "that there was nothing to claim"
    assert await doubted.proven(in_vain) == []


async def test_who_repeats_a_request_whose_claim_is_on_its_way_does_not_wait_for_another() -> None:
    doubted = Doubted(claims_per_worker_max=2)
    [task_id] = await doubted.enqueue()
    first = doubted.reserve(request_id=b"r", worker=b"w")
    await settle()
    first.cancel()
    repeated = doubted.reserve(request_id=b"r", worker=b"w", wait_ms=60_000)
    await settle()
    assert doubted.shard.waiters == 0
    [claim] = await doubted.proven(repeated)
    assert claim.task_id == task_id


async def test_what_a_repeated_request_holds_waits_for_a_proof(doubted: Doubted) -> None:
    await doubted.enqueue(2)
    [claim] = await doubted.claim(request_id=b"r")
    call = doubted.reserve(request_id=b"r")
    assert await doubted.waits(call)
    assert [again.token for again in await doubted.proven(call)] == [claim.token]


async def test_a_call_that_only_asks_what_is_held_claims_nothing(doubted: Doubted) -> None:
    await doubted.enqueue()
    call = doubted.reserve(request_id=b"r", held_only=True)
    assert await doubted.waits(call)
    assert await doubted.proven(call) == []
    queue = doubted.shard.queue(QUEUE)
    assert queue is not None
    assert (queue.ready, queue.claimed) == (1, 0)


async def test_a_refusal_waits_for_a_proof(doubted: Doubted) -> None:
    """The worker may have finished what it held at another node, which leads by now."""
    await doubted.enqueue(2)
    await doubted.claim(request_id=b"first")
    call = doubted.reserve(request_id=b"second")
    assert await doubted.waits(call)
    with pytest.raises(RefusedError):
        await doubted.proven(call)


async def test_a_claim_of_the_same_request_that_is_on_its_way_is_found_where_the_second_is_applied() -> None:
    doubted = Doubted(claims_per_worker_max=2)
    await doubted.enqueue(2)
    calls = [doubted.reserve(request_id=b"r", worker=b"w") for _ in range(2)]
    await settle()
    assert doubted.shard.proposals_waiting == 2
    await doubted.round()
    [first], [second] = [await call for call in calls]
    assert first.token == second.token
    queue = doubted.shard.queue(QUEUE)
    assert queue is not None
    assert (queue.ready, queue.claimed) == (1, 1)
