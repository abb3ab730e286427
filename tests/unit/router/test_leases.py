"""What a worker is told of its leases through a router: the time that the router had the call is added to the wait."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import grpc
import pytest

from holdfast.proto.v1 import tasks_pb2 as pb
from tests.unit.router.router_stage import Answer, Call, Refusal, Stage, leads, never, not_leader, task_id

PAUSE_S = 0.3
CLAIM = pb.ReserveResponse(claims=[pb.Claim(task_id="a", token=1, lease_ms=5000)], waited_ms=7)
RESERVE = pb.ReserveRequest(queues=["q"], max_tasks=1, lease_ms=5000, wait_ms=20_000, claim_request_id="mine")
LOST = Refusal(grpc.StatusCode.UNAVAILABLE, "OUTCOME_UNKNOWN", "Lost.", retry_after_ms=1)


def refuses_late(refusal: Refusal) -> Callable[[Call], Awaitable[Answer]]:
    async def refuse(_call: Call) -> Answer:
        await asyncio.sleep(PAUSE_S)
        return refusal

    return refuse


def extend(*task_ids: str) -> pb.ExtendRequest:
    items = [pb.ExtendItem(claim=pb.ClaimRef(task_id=item, token=1), lease_ms=5000) for item in task_ids]
    return pb.ExtendRequest(items=items)


def extended(call: Call) -> pb.ExtendResponse:
    outcome = pb.ExtendOutcome(extended=pb.Extended(lease_ms=5000, waited_ms=7))
    return pb.ExtendResponse(outcomes=[outcome] * len(call.request.items))


async def test_the_wait_for_a_task_at_several_shards_is_told() -> None:
    async with Stage(2) as stage:
        stage.table.pin("q", 0, 1)
        ready = asyncio.Event()

        async def await_tasks(_call: Call) -> pb.AwaitTasksResponse:
            await ready.wait()
            return pb.AwaitTasksResponse(ready=True)

        for broker in stage.brokers:
            broker.on |= {"Reserve": pb.ReserveResponse(), "AwaitTasks": never}
        stage.brokers[1].on |= {"AwaitTasks": await_tasks}
        sent_s = time.monotonic()
        call = asyncio.create_task(stage.call("Reserve", RESERVE))
        await stage.brokers[1].wait_for("AwaitTasks")
        await asyncio.sleep(PAUSE_S)
        stage.brokers[1].on["Reserve"] = CLAIM
        ready.set()
        answer = await call
        assert (list(answer.claims), answer.waited_ms) == (list(CLAIM.claims), 7)
        assert PAUSE_S * 1000 - 1 <= answer.routed_ms <= (time.monotonic() - sent_s) * 1000


@pytest.mark.parametrize("refusal", [LOST, "moved"])
async def test_what_a_repeated_claim_waited_before_is_told(refusal: "Refusal | str") -> None:
    async with Stage(2, shards=1) as stage:
        old, new = stage.brokers
        reported = not_leader(new.address, 2) if isinstance(refusal, str) else refusal
        old.on |= {"Reserve": refuses_late(reported), "FindLeader": leads(new.address, 2)}
        new.on |= {"Reserve": CLAIM, "FindLeader": leads(new.address, 2)}
        sent_s = time.monotonic()
        answer = await stage.call("Reserve", RESERVE)
        assert answer.claims
        assert PAUSE_S * 1000 - 1 <= answer.routed_ms <= (time.monotonic() - sent_s) * 1000


async def test_an_answer_without_claims_stays_empty() -> None:
    async with Stage(2, shards=1) as stage:
        old, new = stage.brokers
        old.on["Reserve"] = refuses_late(not_leader(new.address, 2))
        new.on["Reserve"] = pb.ReserveResponse()
        request = pb.ReserveRequest(queues=["q"], max_tasks=1, lease_ms=5000, claim_request_id="mine")
        assert await stage.raw("Reserve", request.SerializeToString()) == b""


async def test_what_a_repeated_extension_waited_before_is_told() -> None:
    async with Stage(2, shards=1) as stage:
        old, new = stage.brokers
        old.on["Extend"] = refuses_late(not_leader(new.address, 2))
        new.on["Extend"] = extended
        sent_s = time.monotonic()
        answer = await stage.call("Extend", extend(task_id(0, 1)))
        assert PAUSE_S * 1000 - 1 <= answer.routed_ms <= (time.monotonic() - sent_s) * 1000
        assert answer.outcomes[0].extended.waited_ms == 7


async def test_each_part_of_a_split_extension_tells_its_own_wait() -> None:
    async with Stage(3, shards=2) as stage:
        stage.brokers[0].on["Extend"] = extended
        stage.brokers[1].on["Extend"] = refuses_late(not_leader(stage.brokers[2].address, 2))
        stage.brokers[2].on["Extend"] = extended
        answer = await stage.call("Extend", extend(task_id(1, 1), task_id(0, 1)))
        late, soon = (outcome.extended.waited_ms for outcome in answer.outcomes)
        assert answer.routed_ms == 0
        assert soon == 7
        assert late >= PAUSE_S * 1000
