"""What passes a router as it is, how it finds the leader (redirects, lost and silent ones, deadlines), its bounds."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from holdfast.common.service import end_tasks
from holdfast.proto.v1 import shards_pb2
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.serving.refusals import RefusedError
from tests.unit.router.router_stage import (
    METHODS,
    Call,
    Refusal,
    Stage,
    accept_all,
    elapsed_since,
    leads,
    never,
    not_leader,
    random_bytes,
    task_id,
)

# A field that no version of ours knows: number 1234, three bytes.
UNKNOWN = b"\x92\x4d\x03abc"


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with Stage(3) as built:
        built.table.at_home("q", 0)
        yield built


def enqueue(payload: str = "p", queue: str = "q", request_id: str = "r") -> pb.EnqueueRequest:
    task = pb.TaskSpec(queue=queue, type="t", payload=payload.encode(), request_id=request_id)
    return pb.EnqueueRequest(tasks=[task])


def reason_of(error: grpc.aio.AioRpcError) -> str:
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            assert isinstance(value, bytes)
            for detail in status_pb2.Status.FromString(value).details:
                info = error_details_pb2.ErrorInfo()
                if detail.Unpack(info):
                    return str(info.reason)
    return ""


async def refusal_of(answer: object) -> tuple[grpc.StatusCode, str, grpc.aio.AioRpcError]:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await answer  # type: ignore[misc]
    return refused.value.code(), reason_of(refused.value), refused.value


# --- bytes ------------------------------------------------------------------------------------------------------


async def test_a_call_that_names_its_shard_passes_as_it_came(stage: Stage) -> None:
    """What this router does not know of arrives as it was sent, and so does an answer that it could not even read."""
    stage.table.at_home("q", 2)
    answer = random_bytes(5000, seed=2)
    stage.brokers[2].on["Enqueue"] = answer
    request = enqueue().SerializeToString() + UNKNOWN
    assert await stage.raw("Enqueue", request, shard=2) == answer
    [call] = stage.brokers[2].calls
    assert (call.data, call.shard) == (request, 2)


async def test_a_batch_for_one_shard_passes_as_it_is(stage: Stage) -> None:
    stage.brokers[0].on["Enqueue"] = answer = random_bytes(300, seed=3)
    request = enqueue("a").SerializeToString() + enqueue("b", request_id="").SerializeToString() + UNKNOWN
    assert await stage.raw("Enqueue", request) == answer
    assert [call.data for call in stage.brokers[0].calls] == [request]


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        ("Ack", pb.AckRequest(items=[pb.AckItem(claim=pb.ClaimRef(task_id=task_id(2, 7), token=1), result=b"x")])),
        ("Fail", pb.FailRequest(items=[pb.FailItem(claim=pb.ClaimRef(task_id=task_id(2, 7), token=1))])),
        ("Extend", pb.ExtendRequest(items=[pb.ExtendItem(claim=pb.ClaimRef(task_id=task_id(2, 7), token=1))])),
        ("Release", pb.ReleaseRequest(claims=[pb.ClaimRef(task_id=task_id(2, 7), token=1)])),
        ("Cancel", pb.CancelRequest(task_ids=[task_id(2, 7), "no id at all"])),
        ("WaitTasks", pb.WaitTasksRequest(task_ids=[task_id(2, 7)], wait_ms=5)),
        ("GetTask", pb.GetTaskRequest(task_id=task_id(2, 7))),
        ("GetDeadLetter", pb.GetDeadLetterRequest(task_id=task_id(2, 7))),
        ("RetryDeadLetters", pb.RetryDeadLettersRequest(task_ids=[task_id(2, 7)])),
        ("DiscardDeadLetters", pb.DiscardDeadLettersRequest(task_ids=[task_id(2, 7)])),
        ("FindLeader", shards_pb2.FindLeaderRequest(shard=2)),
        ("TransferLeadership", shards_pb2.TransferLeadershipRequest(shard=2, to="n2")),
        ("ProbeShard", shards_pb2.ProbeShardRequest(shard=2)),
    ],
)
async def test_calls_go_to_the_shard_of_their_task(stage: Stage, method: str, request_: pb.AckRequest) -> None:
    data = request_.SerializeToString() + UNKNOWN
    stage.brokers[2].on[method] = b"\x0a\x02\x0a\x00"
    assert await stage.raw(method, data) == b"\x0a\x02\x0a\x00"
    assert [(call.data, call.shard) for call in stage.brokers[2].calls] == [(data, 2)]


async def test_refusals_of_brokers_pass_with_all_their_details(stage: Stage) -> None:
    refusal = Refusal(
        grpc.StatusCode.RESOURCE_EXHAUSTED, "DISK_LOW", "Full.", retry_after_ms=70, metadata={"limit": "5"}
    )
    stage.brokers[0].on["Enqueue"] = refusal
    code, reason, error = await refusal_of(stage.call("Enqueue", enqueue()))
    assert (code, reason, error.details()) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "DISK_LOW", "Full.")
    assert refusal.trailing_metadata()[0] in tuple(error.trailing_metadata() or ())


async def test_bytes_that_are_no_request_are_refused_here(stage: Stage) -> None:
    code, reason, _ = await refusal_of(stage.raw("Enqueue", b"\x0a\xff"))
    assert (code, reason) == (grpc.StatusCode.INVALID_ARGUMENT, "MALFORMED_REQUEST")


@pytest.mark.parametrize(("shard", "expected"), [(3, "SHARD_NOT_FOUND"), (99999, "SHARD_NOT_FOUND")])
async def test_a_shard_that_is_not_in_the_map_is_refused(stage: Stage, shard: int, expected: str) -> None:
    _, reason, _ = await refusal_of(stage.call("Enqueue", enqueue(), shard=shard))
    assert reason == expected
    assert not any(broker.calls for broker in stage.brokers)


async def test_a_router_describes_itself_as_a_node_without_replicas(stage: Stage) -> None:
    described = await stage.call("DescribeNode", shards_pb2.DescribeNodeRequest())
    assert (described.name, [node.name for node in described.nodes], list(described.replicas)) == ("router", ["n1"], [])
    _, reason, _ = await refusal_of(stage.call("ReadProbe", shards_pb2.ReadProbeRequest(shard=0, index=1)))
    assert reason == "SHARD_NOT_FOUND"


# --- leaders ----------------------------------------------------------------------------------------------------


async def test_a_stale_hint_is_corrected_by_a_redirect(stage: Stage) -> None:
    old, new = stage.brokers[0], stage.brokers[1]
    old.on["Enqueue"] = not_leader(new.address, 5)
    new.on["Enqueue"] = accept_all()
    for _ in range(3):
        await stage.call("Enqueue", enqueue())
    assert (len(old.calls), len(new.calls)) == (1, 3)
    # A hint of the map that is older than the redirect does not undo it; a newer one does.
    stage.table.leaders[0] = (old.address, 4)
    await stage.call("Enqueue", enqueue())
    assert (len(old.calls), len(new.calls)) == (1, 4)
    stage.table.leaders[0] = (old.address, 6)
    old.on["Enqueue"] = accept_all()
    await stage.call("Enqueue", enqueue())
    assert (len(old.calls), len(new.calls)) == (2, 4)


async def test_a_leader_that_moves_while_a_call_is_under_way(stage: Stage) -> None:
    """Even one without a request_id: the broker says that it did nothing."""
    old, new = stage.brokers[0], stage.brokers[2]
    may_answer = asyncio.Event()

    async def lose_leadership(_call: Call) -> Refusal:
        await may_answer.wait()
        return not_leader(None, 2)

    old.on["Enqueue"] = lose_leadership
    stage.brokers[1].on["Enqueue"] = not_leader(new.address, 2)
    new.on["Enqueue"] = accept_all()
    call = asyncio.create_task(stage.call("Enqueue", enqueue(request_id="")))
    await old.wait_for("Enqueue")
    may_answer.set()
    assert (await call).outcomes[0].accepted.task_id == "0:p"
    assert len(new.calls) == 1


async def test_a_leader_that_refuses_connections(stage: Stage) -> None:
    """Nothing was sent, so every call may be tried elsewhere."""
    await stage.brokers[0].stop()
    stage.brokers[1].on["Enqueue"] = not_leader(stage.brokers[2].address, 2)
    stage.brokers[2].on["Enqueue"] = accept_all()
    answer = await stage.call("Enqueue", enqueue(request_id=""))
    assert answer.outcomes[0].accepted.task_id == "0:p"


async def test_calls_wait_for_an_election(stage: Stage) -> None:
    asked = 0

    def elect(call: Call) -> object:
        nonlocal asked
        asked += 1
        return not_leader(None, 1) if asked < 7 else accept_all()(call)

    stage.on_all(Enqueue=elect)
    assert (await stage.call("Enqueue", enqueue(request_id=""))).outcomes[0].accepted.task_id == "0:p"


async def test_a_silent_leader_is_left_when_another_one_leads(stage: Stage) -> None:
    stage.brokers[0].on["Enqueue"] = never
    stage.brokers[1].on["FindLeader"] = leads(stage.brokers[2].address, 9)
    stage.brokers[2].on["FindLeader"] = leads(stage.brokers[2].address, 9)
    stage.brokers[2].on["Enqueue"] = accept_all()
    began_s = time.monotonic()
    assert (await stage.call("Enqueue", enqueue())).outcomes[0].accepted.task_id == "0:p"
    assert 0.5 < elapsed_since(began_s) < 8
    await stage.brokers[0].wait_for_hang_up("Enqueue")


@pytest.mark.parametrize("method", ["Enqueue", "AwaitTasks"])
async def test_a_silent_leader_is_left_as_soon_as_the_map_has_another_one(stage: Stage, method: str) -> None:
    """Nobody has to be asked, also not for a call that waits for tasks, which would be silent for long."""
    request: Any = enqueue() if method == "Enqueue" else pb.AwaitTasksRequest(queues=["q"], wait_ms=60_000)
    stage.table.at_home("q", 0)
    for broker in stage.brokers:
        broker.on[method] = never
        broker.on["FindLeader"] = never
    call = asyncio.create_task(stage.call(method, request, timeout_s=90.0))
    await stage.brokers[0].wait_for(method)
    stage.forwarder.leaders_changed({0})
    stage.table.leaders[1] = (stage.brokers[0].address, 9)
    stage.forwarder.leaders_changed({1})
    assert len(stage.brokers[0].requests(method)) == 1, "nothing was new for it"
    stage.table.leaders[0] = (stage.brokers[2].address, 9)
    stage.forwarder.leaders_changed({0, 1})
    await stage.brokers[0].wait_for_hang_up(method)
    await stage.brokers[2].wait_for(method)
    assert not any(broker.requests("FindLeader") for broker in stage.brokers)
    call.cancel()


async def test_what_must_not_be_repeated_is_not_given_up_for_a_new_leader_in_the_map(stage: Stage) -> None:
    may_answer = asyncio.Event()

    async def slow(call: Call) -> object:
        await may_answer.wait()
        return accept_all()(call)

    stage.brokers[0].on["Enqueue"] = slow
    call = asyncio.create_task(stage.call("Enqueue", enqueue(request_id="")))
    await stage.brokers[0].wait_for("Enqueue")
    stage.table.leaders[0] = (stage.brokers[2].address, 9)
    stage.forwarder.leaders_changed({0})
    may_answer.set()
    assert (await call).outcomes[0].accepted.task_id == "0:p"


async def test_a_silent_leader_that_is_confirmed_is_waited_for(stage: Stage) -> None:
    may_answer = asyncio.Event()

    async def slow(call: Call) -> object:
        await may_answer.wait()
        return accept_all()(call)

    stage.brokers[0].on["Enqueue"] = slow
    for broker in stage.brokers[1:]:
        broker.on["FindLeader"] = leads(stage.brokers[0].address, 1)
    call = asyncio.create_task(stage.call("Enqueue", enqueue()))
    await stage.brokers[1].wait_for("FindLeader", 2)
    may_answer.set()
    assert (await call).outcomes[0].accepted.task_id == "0:p"
    assert len(stage.brokers[0].requests("Enqueue")) == 1


async def test_what_must_not_be_repeated_ends_with_an_unknown_outcome(stage: Stage) -> None:
    """The leader took the call and died."""
    stage.brokers[0].on["Enqueue"] = never
    stage.brokers[1].on["Enqueue"] = accept_all()
    call = asyncio.create_task(stage.call("Enqueue", enqueue(request_id="")))
    await stage.brokers[0].wait_for("Enqueue")
    await stage.brokers[0].stop()
    code, reason, _ = await refusal_of(call)
    assert (code, reason) == (grpc.StatusCode.UNAVAILABLE, "OUTCOME_UNKNOWN")
    assert not stage.brokers[1].calls


async def test_what_may_be_repeated_is_when_its_answer_is_lost(stage: Stage) -> None:
    stage.brokers[0].on["Enqueue"] = never
    stage.brokers[1].on["Enqueue"] = accept_all()
    call = asyncio.create_task(stage.call("Enqueue", enqueue(request_id="mine")))
    await stage.brokers[0].wait_for("Enqueue")
    await stage.brokers[0].stop()
    assert (await call).outcomes[0].accepted.task_id == "0:p"
    assert stage.brokers[1].requests("Enqueue")[0].tasks[0].request_id == "mine"


async def last_word(stage: Stage, method: str, request: Any, within_s: float = 1.0) -> RefusedError:
    """What the caller would hear, if it had not hung up in the same moment."""
    with pytest.raises(RefusedError) as refused:
        await stage.forwarder.send(METHODS[method], 0, request.SerializeToString(), time.monotonic() + within_s)
    return refused.value


async def test_an_unknown_outcome_is_not_hidden_by_later_refusals(stage: Stage) -> None:
    """The first attempt may have been carried out, so it must not sound as if nothing was."""
    answers = [Refusal(grpc.StatusCode.UNAVAILABLE, "OUTCOME_UNKNOWN", "Who knows.")]
    stage.brokers[0].on["Ack"] = lambda _call: answers.pop() if answers else not_leader(None, 1)
    for broker in stage.brokers[1:]:
        broker.on["Ack"] = not_leader(None, 1)
    request = pb.AckRequest(items=[pb.AckItem(claim=pb.ClaimRef(task_id=task_id(0, 1), token=1))])
    assert (await last_word(stage, "Ack", request)).reason == "OUTCOME_UNKNOWN"
    assert len(stage.brokers[1].requests("Ack")) >= 1


async def test_the_callers_deadline_bounds_all_attempts(stage: Stage) -> None:
    stage.on_all(Enqueue=not_leader(None, 1))
    began_s = time.monotonic()
    refused = await last_word(stage, "Enqueue", enqueue(), 1.5)
    assert 0.3 < elapsed_since(began_s) < 8
    # On a busy machine the last attempt may be cut off, and then nobody knows.
    assert (refused.reason, refused.retry_after_ms) in (("NOT_LEADER", 100), ("OUTCOME_UNKNOWN", 1000))
    timeouts_s = [call.timeout_s for broker in stage.brokers for call in broker.calls]
    assert len(timeouts_s) > 3
    # gRPC sends a timeout rounded up to 10 ms, and tells what is left of it by the wall clock.
    assert all(timeout_s is not None and timeout_s <= 1.5 + 0.02 for timeout_s in timeouts_s)


async def test_a_redirect_never_reaches_the_caller(stage: Stage) -> None:
    """It may have no way to the brokers, and a client would follow it."""
    stage.on_all(Enqueue=not_leader(stage.brokers[0].address, 1))
    refused = await last_word(stage, "Enqueue", enqueue())
    assert refused.reason in ("NOT_LEADER", "OUTCOME_UNKNOWN")  # the last attempt may have been cut off
    assert "leader" not in refused.metadata


async def test_nobody_can_be_reached(stage: Stage) -> None:
    for broker in stage.brokers:
        await broker.stop()
    refused = await last_word(stage, "Enqueue", enqueue(request_id=""))
    assert refused.reason == "NOT_LEADER"
    assert "no connection" in refused.message
    stage.table.leaders.clear()
    stage.table.replicas.clear()
    assert (await last_word(stage, "Enqueue", enqueue())).reason == "NOT_LEADER"


# --- bounds -----------------------------------------------------------------------------------------------------


async def test_more_than_fits_is_shed_with_a_pause() -> None:
    async with Stage(1, calls_max=3, calls_per_shard_max=2) as stage:
        stage.brokers[0].on["Enqueue"] = never
        held = [asyncio.create_task(stage.call("Enqueue", enqueue())) for _ in range(2)]
        await stage.brokers[0].wait_for("Enqueue", 2)
        code, reason, error = await refusal_of(stage.call("Enqueue", enqueue()))
        assert (code, reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED")
        assert b"RetryInfo" in b"".join(v for _, v in error.trailing_metadata() or () if isinstance(v, bytes))
        assert len(stage.brokers[0].calls) == 2
        for task in held:
            task.cancel()
        await asyncio.gather(*held, return_exceptions=True)
        while stage.admission.calls:
            await asyncio.sleep(0.01)
        stage.brokers[0].on["Enqueue"] = accept_all()
        assert (await stage.call("Enqueue", enqueue())).outcomes[0].accepted.task_id == "0:p"
        assert (stage.admission.calls, stage.server.intake.bytes) == (0, 0)


async def test_bytes_under_way_are_bounded() -> None:
    async with Stage(1, bytes_max=700) as stage:
        stage.brokers[0].on["Enqueue"] = never
        held = asyncio.create_task(stage.call("Enqueue", enqueue("x" * 800)))
        await stage.brokers[0].wait_for("Enqueue")
        _, reason, _ = await refusal_of(stage.call("Enqueue", enqueue("x" * 800)))
        assert reason == "OVERLOADED"
        await end_tasks([held])


async def test_a_stop_sends_waiting_calls_elsewhere(stage: Stage) -> None:
    stage.brokers[0].on["Reserve"] = never
    request = pb.ReserveRequest(queues=["q"], max_tasks=1, lease_ms=5000, wait_ms=30_000)
    waiting = asyncio.create_task(stage.call("Reserve", request))
    await stage.brokers[0].wait_for("Reserve")
    stage.gateway.stop()
    code, reason, _ = await refusal_of(waiting)
    assert (code, reason) == (grpc.StatusCode.UNAVAILABLE, "SHUTTING_DOWN")
    _, reason, _ = await refusal_of(stage.call("Enqueue", enqueue()))
    assert reason == "SHUTTING_DOWN"


async def test_channels_are_kept_while_used_and_closed_after(stage: Stage) -> None:
    stage.brokers[0].on["Enqueue"] = accept_all()
    for _ in range(3):
        await stage.call("Enqueue", enqueue())
    assert len(stage.channels) == 1
    await stage.channels.close_unused(time.monotonic())
    assert len(stage.channels) == 1
    await stage.channels.close_unused(time.monotonic() + 3600)
    assert len(stage.channels) == 0
    await stage.call("Enqueue", enqueue())  # and opened again when there is something to send
