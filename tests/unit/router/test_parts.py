"""Batches over several shards of which one does not answer; and calls that name another shard than they are about."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from holdfast.proto.v1 import queues_pb2, schedules_pb2, shards_pb2
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.routing.homes import home_shard, shard_of_key
from holdfast.transport import parts
from tests.unit.router.router_stage import Call, Stage, accept_all, never, not_leader, task_id
from tests.unit.router.test_batches import ids, task
from tests.unit.router.test_passing import refusal_of

LONG_S = 90.0  # the caller has time, and no test has as much
LOST = 1  # the shard that does not answer

pytestmark = pytest.mark.timeout(40)


@pytest.fixture
async def stage(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    monkeypatch.setattr(parts, "PART_S", 0.3)
    monkeypatch.setattr(parts, "UNHEALTHY_PART_S", LONG_S)
    async with Stage(3) as built:
        for shard in range(3):
            built.table.at_home(f"q{shard}", shard)
            built.brokers[shard].on["Enqueue"] = accept_all()
            built.brokers[shard].on["FindLeader"] = not_leader(None, 0)
        yield built


def lose(stage: Stage, how: str) -> None:
    def answer(call: Call) -> Any:
        if call.shard != LOST:
            return accept_all()(call)
        return never(call) if how == "silent" else not_leader(None, 0)

    for broker in stage.brokers:
        broker.on["Enqueue"] = answer


def batch(*shards: int) -> pb.EnqueueRequest:
    return pb.EnqueueRequest(tasks=[task(f"q{shard}", n, f"id-{n}") for n, shard in enumerate(shards)])


@pytest.mark.parametrize(("how", "reason"), [("silent", "OUTCOME_UNKNOWN"), ("leaderless", "NOT_LEADER")])
async def test_a_part_without_an_answer_is_given_up_when_the_others_have_theirs(
    stage: Stage, how: str, reason: str
) -> None:
    lose(stage, how)
    response = await stage.call("Enqueue", batch(0, 1, 2, 1), timeout_s=LONG_S)
    assert ids(response) == ["0:0", reason, "2:2", reason]
    assert all(response.outcomes[index].rejection.retry_after_ms > 0 for index in (1, 3))
    if how == "silent":
        await stage.brokers[LOST].wait_for_hang_up("Enqueue")


async def test_a_shard_that_was_given_up_has_less_time_until_it_answers_or_another_one_leads_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose(stage, "silent")
    await stage.call("Enqueue", batch(0, 1), timeout_s=LONG_S)
    monkeypatch.setattr(parts, "PART_S", LONG_S)
    monkeypatch.setattr(parts, "UNHEALTHY_PART_S", 0.3)
    response = await stage.call("Enqueue", batch(0, 1), timeout_s=LONG_S)
    assert ids(response) == ["0:0", "OUTCOME_UNKNOWN"]

    async def slow(call: Call) -> Any:
        await asyncio.sleep(0.6)
        return accept_all()(call)

    stage.brokers[2].on["Enqueue"] = slow
    stage.table.leaders[LOST] = (stage.brokers[2].address, 2)
    assert ids(await stage.call("Enqueue", batch(0, 1), timeout_s=LONG_S)) == ["0:0", "1:1"], "another one leads"
    assert ids(await stage.call("Enqueue", batch(0, 1), timeout_s=LONG_S)) == ["0:0", "1:1"], "it has answered"


async def test_a_part_that_waits_for_a_task_is_not_given_up(stage: Stage) -> None:
    async def wait(call: Call) -> pb.WaitTasksResponse:
        if call.shard == LOST:
            await asyncio.sleep(0.9)
        done = pb.TaskInfo(task_id=call.request.task_ids[0])
        return pb.WaitTasksResponse(outcomes=[pb.WaitOutcome(task=done)])

    for broker in stage.brokers:
        broker.on["WaitTasks"] = wait
    names = [task_id(0, 1), task_id(LOST, 2)]
    response = await stage.call("WaitTasks", pb.WaitTasksRequest(task_ids=names, wait_ms=30_000), timeout_s=LONG_S)
    assert [outcome.task.task_id for outcome in response.outcomes] == names


@pytest.mark.parametrize(
    ("method", "request_of"),
    [
        ("Ack", lambda: pb.AckRequest(items=[pb.AckItem(claim=pb.ClaimRef(task_id=task_id(n, 1))) for n in (0, 1)])),
        ("Extend", lambda: pb.ExtendRequest(items=[pb.ExtendItem(claim=pb.ClaimRef(task_id=task_id(1, 1)))])),
        ("Release", lambda: pb.ReleaseRequest(claims=[pb.ClaimRef(task_id=task_id(1, 1))])),
        ("Cancel", lambda: pb.CancelRequest(task_ids=[task_id(1, 1)])),
        ("WaitTasks", lambda: pb.WaitTasksRequest(task_ids=[task_id(1, 1)])),
        ("GetTask", lambda: pb.GetTaskRequest(task_id=task_id(1, 1))),
        ("FindLeader", lambda: shards_pb2.FindLeaderRequest(shard=1)),
        ("ProbeShard", lambda: shards_pb2.ProbeShardRequest(shard=1)),
    ],
)
async def test_a_call_that_names_another_shard_than_it_is_about_is_refused_at_once(
    stage: Stage, method: str, request_of: Any
) -> None:
    code, reason, error = await refusal_of(stage.call(method, request_of(), shard=0, timeout_s=LONG_S))
    assert (code, reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")
    assert error.details() == (
        "Expected the metadata holdfast-shard to name the shard of what is asked for, 1, but it names 0."
    )
    assert not any(broker.calls for broker in stage.brokers)


QUEUE = "at-1"


def enqueue(**fields: Any) -> pb.EnqueueRequest:
    return pb.EnqueueRequest(tasks=[pb.TaskSpec(queue=QUEUE, type="t", **fields)])


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        ("Enqueue", enqueue()),
        ("Enqueue", enqueue(request_id="~0.key.0")),
        ("Enqueue", enqueue(request_id="order-17")),
        ("Enqueue", enqueue(unique_key="u")),
        ("Enqueue", enqueue(limit_key="l")),
        ("Reserve", pb.ReserveRequest(queues=[QUEUE], max_tasks=1, lease_ms=5000, wait_ms=8000)),
        ("AwaitTasks", pb.AwaitTasksRequest(queues=[QUEUE], wait_ms=8000)),
        ("PutSchedule", schedules_pb2.PutScheduleRequest(queue=QUEUE, name="n")),
        ("GetSchedule", schedules_pb2.GetScheduleRequest(queue=QUEUE, name="n")),
    ],
)
async def test_a_call_that_names_a_shard_that_its_queue_is_not_on_is_refused_at_once(
    stage: Stage, method: str, request_: Any
) -> None:
    stage.table.at_home(QUEUE, 1)
    code, reason, error = await refusal_of(stage.call(method, request_, shard=0, timeout_s=LONG_S))
    assert (code, reason) == (grpc.StatusCode.UNAVAILABLE, "WRONG_SHARD")
    assert f"queue {QUEUE}" in str(error.details())
    assert not any(broker.calls for broker in stage.brokers)
    stage.brokers[1].on[method] = b""
    await stage.call(method, request_, shard=1, timeout_s=LONG_S)


async def test_a_worker_is_asked_about_at_the_home_of_its_name(stage: Stage) -> None:
    meant = home_shard("w1", stage.table.shard_count)
    request = queues_pb2.HeartbeatRequest(worker="w1")
    other = (meant + 1) % stage.table.shard_count
    _, reason, error = await refusal_of(stage.call("Heartbeat", request, shard=other, timeout_s=LONG_S))
    assert (reason, f"asked for, {meant}," in str(error.details())) == ("INVALID_FIELD", True)


async def test_shards_of_every_set_of_a_queue_may_be_named(stage: Stage) -> None:
    """The caller may have heard of the newest set, or not yet."""
    stage.table.pin(QUEUE, 0, 1, generation=1)
    claim = pb.ReserveRequest(queues=[QUEUE, "other"], max_tasks=1, lease_ms=5000)
    for shard in (0, 1):
        stage.brokers[shard].on |= {"Enqueue": b"", "Reserve": b""}
        await stage.call("Enqueue", enqueue(), shard=shard)
        await stage.call("Reserve", claim, shard=shard)
    key = next(f"k{n}" for n in range(99) if shard_of_key(f"k{n}", (0, 1)) == 1)
    await stage.call("Enqueue", enqueue(request_id=f"~1.{key}.0"), shard=1)
    _, reason, _ = await refusal_of(stage.call("Enqueue", enqueue(request_id=f"~1.{key}.0"), shard=0))
    assert reason == "WRONG_SHARD"
    _, reason, _ = await refusal_of(stage.call("Enqueue", enqueue(request_id=f"~7.{key}.0"), shard=1))
    assert reason == "STALE_MAP"


async def test_what_was_claimed_is_asked_for_wherever_that_was(stage: Stage) -> None:
    stage.table.at_home(QUEUE, 1)
    stage.brokers[0].on["Reserve"] = b""
    request = pb.ReserveRequest(queues=[QUEUE], max_tasks=1, lease_ms=5000, claim_request_id="c", held_only=True)
    await stage.call("Reserve", request, shard=0)


async def test_ids_that_no_shard_of_the_cluster_made_go_where_the_metadata_says(stage: Stage) -> None:
    stage.brokers[LOST].on["Cancel"] = pb.CancelResponse(outcomes=[pb.CancelOutcome() for _ in range(3)])
    names = ["nonsense", task_id(77, 1), task_id(LOST, 1)]
    assert len((await stage.call("Cancel", pb.CancelRequest(task_ids=names), shard=LOST)).outcomes) == 3
