"""What operators ask a router: what it passes on as it is, and what it makes of failures. How lists are joined is in
tests/unit/transport/test_over_shards.py."""

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from holdfast.proto.v1 import queues_pb2, schedules_pb2
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.routing.sets import QueueRoute
from tests.unit.router.router_stage import METHODS, Refusal, Stage, never, not_leader, random_bytes
from tests.unit.router.test_listing import but_of
from tests.unit.router.test_passing import UNKNOWN, refusal_of


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with Stage(3) as built:
        yield built


@pytest.mark.parametrize("how", [never, Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED")])
async def test_tasks_without_those_of_a_shard_that_does_not_answer(
    stage: Stage, how: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For who wants that; otherwise, and if there is no other shard, the list is refused."""
    monkeypatch.setattr("holdfast.router.split_calls.PARTIAL_S_MAX", 0.5)
    stage.table.at_home("plain", 1)
    found = queues_pb2.ListTasksResponse(tasks=[pb.TaskInfo(task_id="a")])
    stage.on_all(ListTasks=but_of(1, how, lambda _call: found), FindLeader=not_leader(None, 0))
    request = queues_pb2.ListTasksRequest(partial=True)
    first = await stage.call("ListTasks", request, timeout_s=60)
    second = await stage.call("ListTasks", queues_pb2.ListTasksRequest(partial=True, page_token=first.next_page_token))
    assert [[task.task_id for task in page.tasks] for page in (first, second)] == [["a"], ["a"]]
    assert [list(page.missing_shards) for page in (first, second)] == [[1], []]
    assert second.next_page_token == ""
    for refused in (queues_pb2.ListTasksRequest(), queues_pb2.ListTasksRequest(queue="plain", partial=True)):
        await refusal_of(stage.call("ListTasks", refused, timeout_s=1))
    stage.brokers[0].on["ListTasks"] = Refusal(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD", "Bad filter.")
    _, reason, _ = await refusal_of(stage.call("ListTasks", request))
    assert reason == "INVALID_FIELD"


# --- purges --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["PurgeQueue", "ListDeadLetters", "ListTasks"])
async def test_a_token_that_no_page_ended_with_is_refused(stage: Stage, method: str) -> None:
    stage.table.pin("q", 1, 0)
    request = METHODS[method].request(queue="q", page_token="nonsense.1")
    _, reason, _ = await refusal_of(stage.call(method, request))
    assert reason == "INVALID_FIELD"


async def test_a_purge_without_an_answer_is_not_repeated_but_its_next_page_is(stage: Stage) -> None:
    stage.table.at_home("q", 1)
    lost = [Refusal(grpc.StatusCode.UNAVAILABLE)]
    stage.on_all(PurgeQueue=lambda _call: lost.pop() if lost else queues_pb2.PurgeQueueResponse(purged=3))
    _, reason, _ = await refusal_of(stage.call("PurgeQueue", queues_pb2.PurgeQueueRequest(queue="q")))
    assert reason == "OUTCOME_UNKNOWN"
    lost.append(Refusal(grpc.StatusCode.UNAVAILABLE))
    page = await stage.call("PurgeQueue", queues_pb2.PurgeQueueRequest(queue="q", page_token="1.t"))
    assert page.purged == 3


# --- workers -------------------------------------------------------------------------------------------------------


async def test_workers_of_a_single_shard_pass_as_they_are() -> None:
    async with Stage(1) as stage:
        stage.brokers[0].on["ListWorkers"] = answer = random_bytes(100)
        assert await stage.raw("ListWorkers", UNKNOWN) == answer
        assert stage.brokers[0].calls[0].data == UNKNOWN


async def test_a_list_of_workers_with_a_part_missing_is_refused(stage: Stage) -> None:
    stage.on_all(ListWorkers=queues_pb2.ListWorkersResponse())
    stage.brokers[1].on["ListWorkers"] = Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED")
    _, reason, _ = await refusal_of(stage.call("ListWorkers", queues_pb2.ListWorkersRequest()))
    assert reason == "OVERLOADED"


# --- schedules -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "fields"),
    [
        ("PutSchedule", {"must_be_new": True}), ("GetSchedule", {}), ("DeleteSchedule", {}),
        ("PauseSchedule", {"paused": True}), ("TriggerSchedule", {"request_id": "r"}),
        ("PreviewSchedule", {"count": 3}),
    ],
)  # fmt: skip
async def test_a_schedule_lives_on_the_home_of_its_queue(stage: Stage, method: str, fields: dict[str, Any]) -> None:
    stage.table.routes["q"] = QueueRoute("q", 2, 1, ((1, (0, 1)),))
    stage.brokers[2].on[method] = answer = random_bytes(50)
    data = METHODS[method].request(queue="q", name="nightly", **fields).SerializeToString() + UNKNOWN
    for _ in range(2):  # whose turn it is does not matter
        assert await stage.raw(method, data) == answer
    assert [(call.shard, call.data) for call in stage.brokers[2].calls] == [(2, data)] * 2
    assert not stage.brokers[0].calls
    assert not stage.brokers[1].calls


async def test_only_a_trigger_with_an_id_is_sent_twice(stage: Stage) -> None:
    stage.table.at_home("q", 0)
    lost: list[Refusal] = []
    done = schedules_pb2.TriggerScheduleResponse(task_id="t")
    stage.on_all(TriggerSchedule=lambda _call: lost.pop() if lost else done)
    lost.append(Refusal(grpc.StatusCode.UNAVAILABLE))
    request = schedules_pb2.TriggerScheduleRequest(queue="q", name="n")
    _, reason, _ = await refusal_of(stage.call("TriggerSchedule", request))
    assert reason == "OUTCOME_UNKNOWN"
    lost.append(Refusal(grpc.StatusCode.UNAVAILABLE))
    request.request_id = "r"
    assert (await stage.call("TriggerSchedule", request)).task_id == "t"
