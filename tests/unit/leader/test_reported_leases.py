"""What a broker tells of leases is true: no lease ends before the moment that the worker counts with."""

import asyncio

import pytest

from holdfast.broker.api.tasks import TaskService
from holdfast.broker.config import BrokerConfig
from holdfast.broker.metrics import Metrics
from holdfast.machine.entries import LeaderStarted
from holdfast.proto.v1 import tasks_pb2 as pb
from tests.unit.replica.small_shard import SmallShard, settle

LEASE_MS = 30_000


class Broker:
    """A service whose shard makes a round when a test says so, and whose clocks move when a test says so."""

    def __init__(self) -> None:
        self.small = SmallShard()
        self.service = TaskService(self.small.shard, BrokerConfig(), Metrics())

    def pass_ms(self, elapsed_ms: int) -> None:
        self.small.time.now_ms += elapsed_ms

    async def step(self, ahead_ms: int) -> None:
        """As follow_clock does once a majority of clocks has been that far ahead for a while."""
        clock = self.small.shard.leader_clock()
        to_ms = clock.now_ms() + ahead_ms
        await self.small.submit(LeaderStarted(to_ms, stepped=True))
        clock.stepped(to_ms)

    async def enqueue(self, timeout_ms: int | None = None) -> None:
        spec = pb.TaskSpec(queue="mail", type="t", timeout_ms=timeout_ms)
        await self.small.rounds_until(self.service.enqueue(pb.EnqueueRequest(tasks=[spec])))

    def reserve(self, wait_ms: int = 0, request_id: str = "") -> "asyncio.Task[pb.ReserveResponse]":
        request = pb.ReserveRequest(
            queues=["mail"], max_tasks=1, lease_ms=LEASE_MS, wait_ms=wait_ms, worker="w", claim_request_id=request_id
        )
        return asyncio.ensure_future(self.service.reserve(request))

    async def claim(self) -> pb.Claim:
        call = self.reserve()
        await self.small.round()
        [claim] = (await call).claims
        return claim

    def extend(self, claim: pb.Claim) -> "asyncio.Task[pb.ExtendResponse]":
        ref = pb.ClaimRef(task_id=claim.task_id, token=claim.token, secret=claim.secret)
        items = [pb.ExtendItem(claim=pb.ClaimRef()), pb.ExtendItem(claim=ref, lease_ms=LEASE_MS)]
        return asyncio.ensure_future(self.service.extend(pb.ExtendRequest(items=items)))


@pytest.fixture
async def broker() -> Broker:
    return Broker()


async def test_a_claim_tells_how_long_it_waited_and_the_whole_lease(broker: Broker) -> None:
    call = broker.reserve(wait_ms=60_000)
    await settle()
    broker.pass_ms(8_000)
    await broker.enqueue()
    await broker.small.round()
    answer = await call
    assert (answer.waited_ms, answer.claims[0].lease_ms) == (8_000, LEASE_MS)


async def test_an_answer_without_claims_is_empty(broker: Broker) -> None:
    call = broker.reserve(wait_ms=1)
    await settle()
    broker.pass_ms(8_000)
    assert await call == pb.ReserveResponse()


async def test_a_step_of_shard_time_during_the_wait_adds_nothing_to_the_lease(broker: Broker) -> None:
    call = broker.reserve(wait_ms=60_000)
    await settle()
    await broker.step(3_600_000)
    await broker.enqueue()
    await broker.small.round()
    answer = await call
    assert (answer.waited_ms, answer.claims[0].lease_ms) == (0, LEASE_MS)


async def test_a_lease_that_a_step_has_ended_before_the_answer_is_not_told(broker: Broker) -> None:
    await broker.enqueue()
    call = broker.reserve()
    await settle()  # the claim is proposed with the time of before
    clock = broker.small.shard.leader_clock()
    clock.stepped(clock.now_ms() + 3_600_000)
    await broker.small.round()
    [claim] = (await call).claims
    assert claim.lease_ms == 0


async def test_claims_held_since_an_earlier_call_are_told_with_what_is_left_of_them(broker: Broker) -> None:
    await broker.enqueue()
    first = broker.reserve(request_id="r")
    await broker.small.round()
    broker.pass_ms(12_000)
    again = await broker.reserve(wait_ms=60_000, request_id="r")
    assert again.claims[0].token == (await first).claims[0].token
    assert (again.waited_ms, again.claims[0].lease_ms) == (0, LEASE_MS - 12_000)


async def test_a_claim_that_took_long_to_commit_tells_what_is_left(broker: Broker) -> None:
    await broker.enqueue()
    call = broker.reserve()
    await settle()
    broker.pass_ms(2_000)
    await broker.small.round()
    answer = await call
    assert (answer.waited_ms, answer.claims[0].lease_ms) == (2_000, LEASE_MS - 2_000)


async def test_an_extension_tells_what_is_left_and_how_long_it_took(broker: Broker) -> None:
    await broker.enqueue()
    claim = await broker.claim()
    broker.pass_ms(10_000)
    call = broker.extend(claim)
    await settle()
    broker.pass_ms(2_000)
    await broker.small.round()
    refused, outcome = (await call).outcomes
    assert refused.HasField("rejection")
    assert outcome.extended == pb.Extended(lease_ms=LEASE_MS - 2_000, waited_ms=2_000)


async def test_an_extension_says_whether_the_timeout_has_cut_it(broker: Broker) -> None:
    await broker.enqueue(timeout_ms=40_000)
    claim = await broker.claim()
    for passed_ms, lease_ms, is_cut in ((10_000, 30_000, False), (5_000, 25_000, True)):
        broker.pass_ms(passed_ms)
        _, outcome = (await broker.small.rounds_until(_of(broker.extend(claim)))).outcomes
        assert (outcome.extended.lease_ms, outcome.extended.ends_attempt) == (lease_ms, is_cut)


async def test_a_step_of_shard_time_that_comes_before_an_extension_shortens_what_is_told(broker: Broker) -> None:
    await broker.enqueue()
    claim = await broker.claim()
    call = broker.extend(claim)
    await settle()  # it is proposed with the time of before
    clock = broker.small.shard.leader_clock()
    clock.stepped(clock.now_ms() + 20_000)
    await broker.small.round()
    _, outcome = (await call).outcomes
    assert outcome.extended == pb.Extended(lease_ms=LEASE_MS - 20_000)


async def _of(call: "asyncio.Task[pb.ExtendResponse]") -> pb.ExtendResponse:
    return await call
