"""Clients that go straight to the leaders: tasks with keys, what all parts of a call say, lists, schedules."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest
import pytest_asyncio
from google.protobuf.message_factory import GetMessageClass

from holdfast.client._direct import Direct
from holdfast.client._rpc import Connection, Method
from holdfast.client.errors import HoldfastError, InvalidArgument, OutcomeUnknown, Unavailable
from holdfast.proto.v1 import queues_pb2, schedules_pb2
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.routing.homes import shard_of_key
from holdfast.routing.sets import automatic_key
from tests.unit.client.scripted_server import Refusal, error_of
from tests.unit.client.scripted_shards import Cluster, accept, queue_at, spread, task_id

Code = grpc.StatusCode
AT_0, AT_1 = queue_at(0), queue_at(1)
METHODS: dict[str, Method[Any, Any]] = {
    method.name: Method(
        method.name, f"/{method.containing_service.full_name}/{method.name}", GetMessageClass(method.input_type),
        GetMessageClass(method.output_type),
    )
    for module in (pb, queues_pb2, schedules_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}  # fmt: skip


@pytest_asyncio.fixture
async def direct(cluster: Cluster) -> AsyncIterator[Direct]:
    connection = Connection(cluster.router.address, retry=True)
    direct = Direct(connection)
    yield direct
    await direct.close()
    await connection.close()


async def ask(direct: Direct, name: str, request: Any, *, repeatable: bool = True) -> Any:
    return (await direct.call(METHODS[name], request, timeout_s=5.0, repeatable=repeatable)).message


# --------------------------------------------------------------------------------------------- tasks with keys


def call_keys() -> list[str]:
    """By shard, one that goes there."""
    return [next(key for key in map(str, range(50)) if shard_of_key(key, (0, 1)) == shard) for shard in (0, 1)]


async def test_a_part_that_fails_does_not_hide_what_the_other_shard_took(cluster: Cluster, direct: Direct) -> None:
    cluster.routes[AT_0] = spread(AT_0)
    cluster.leaders[0].on("Enqueue", accept(0))
    for server in (cluster.leaders[1], cluster.router):
        server.on("Enqueue", Refusal(Code.UNAVAILABLE, "DISK_LOW"))
    request = pb.EnqueueRequest()
    for n, key in enumerate(call_keys()):
        request.tasks.add(queue=AT_0, type="t", request_id=automatic_key(1, key, n))
    response = await ask(direct, "Enqueue", request)
    assert response.outcomes[0].accepted.task_id == "0:t"
    assert response.outcomes[1].rejection.reason == "DISK_LOW"


async def test_a_set_that_the_map_does_not_know_is_refused_before_anything_is_sent(
    cluster: Cluster, direct: Direct
) -> None:
    cluster.routes[AT_0] = spread(AT_0, 4)
    cluster.both("Enqueue", accept)
    unique = pb.TaskSpec(queue=AT_0, type="u", request_id=automatic_key(3, "call", 0), unique_key="u")
    other = pb.TaskSpec(queue=AT_0, type="l", request_id=automatic_key(3, "call", 1))
    stale = await error_of(ask(direct, "Enqueue", pb.EnqueueRequest(tasks=[unique, other])), Unavailable)
    assert (stale.reason, stale.metadata["why"]) == ("STALE_MAP", "forgotten")
    assert cluster.sent("Enqueue") == [0, 0, 0]
    response = await ask(direct, "Enqueue", pb.EnqueueRequest(tasks=[unique]))
    assert response.outcomes[0].accepted.task_id == "0:u", "the home is on every map"


# ------------------------------------------------------------------------------------- what all parts of a call say


@pytest.mark.parametrize(
    ("name", "request_of", "kept"),
    [
        (
            "Release",
            lambda ids: pb.ReleaseRequest(claims=[pb.ClaimRef(task_id=item) for item in ids], delay_ms=700),
            {"delay_ms": 700},
        ),
        (
            "DiscardDeadLetters",
            lambda ids: pb.DiscardDeadLettersRequest(task_ids=ids, by="me", note="why"),
            {"by": "me", "note": "why"},
        ),
        (
            "UpdateTasks",
            lambda ids: pb.UpdateTasksRequest(items=[pb.UpdateItem(task_id=item, delay_ms=0) for item in ids]),
            {},
        ),
    ],
)
async def test_a_part_says_what_the_whole_says_of_all_items(
    cluster: Cluster, direct: Direct, name: str, request_of: Callable[[list[str]], Any], kept: dict[str, Any]
) -> None:
    def answer(shard: int) -> Any:
        response = METHODS[name].response()
        response.outcomes.add().rejection.reason = f"OF_{shard}"
        return lambda request: response

    cluster.both(name, answer)
    response = await ask(direct, name, request_of([task_id(1), task_id(0)]))
    assert [outcome.rejection.reason for outcome in response.outcomes] == ["OF_1", "OF_0"]
    for shard, leader in enumerate(cluster.leaders):
        [part] = leader.requests[name]
        assert part == request_of([task_id(shard)])
        assert {field: getattr(part, field) for field in kept} == kept


async def test_an_update_that_may_have_been_made_has_an_unknown_outcome(cluster: Cluster, direct: Direct) -> None:
    refused = pb.UpdateOutcome(rejection=pb.Rejection(reason="NOT_LEADER", message="No.", retry_after_ms=5))
    cluster.leaders[0].on("UpdateTasks", Refusal(Code.UNAVAILABLE))
    cluster.router.on("UpdateTasks", pb.UpdateTasksResponse(outcomes=[refused]))
    request = pb.UpdateTasksRequest(items=[pb.UpdateItem(task_id=task_id(0), priority=1)])
    response = await ask(direct, "UpdateTasks", request)
    assert response.outcomes[0].rejection.reason == "OUTCOME_UNKNOWN"


@pytest.mark.parametrize("name", ["PurgeQueue", "ListDiscards", "ListSchedules", "ListTasks"])
async def test_a_token_that_no_page_ended_with_is_refused_by_a_server(
    cluster: Cluster, direct: Direct, name: str
) -> None:
    refusal = Refusal(Code.INVALID_ARGUMENT, "INVALID_FIELD", metadata={"field": "page_token"})
    cluster.leaders[0].on(name, refusal)
    request = METHODS[name].request(page_token="nonsense.1")
    if name == "PurgeQueue":
        request.queue = AT_0
    with pytest.raises(InvalidArgument):
        await ask(direct, name, request)
    [asked] = cluster.leaders[0].requests[name]
    assert asked.page_token == "nonsense.1"


async def test_a_purge_whose_answer_is_lost_may_have_taken_effect(cluster: Cluster, direct: Direct) -> None:
    cluster.leaders[0].on("PurgeQueue", Refusal(Code.UNAVAILABLE))
    cluster.router.on("PurgeQueue", Refusal(Code.NOT_FOUND, "QUEUE_NOT_FOUND"))
    lost = await error_of(ask(direct, "PurgeQueue", queues_pb2.PurgeQueueRequest(queue=AT_0)), HoldfastError)
    assert getattr(lost, "sent", False) or isinstance(lost, OutcomeUnknown)


# ----------------------------------------------------------------------------------------------------- schedules


@pytest.mark.parametrize(
    "name", ["PutSchedule", "GetSchedule", "DeleteSchedule", "PauseSchedule", "TriggerSchedule", "PreviewSchedule"]
)
async def test_a_schedule_lives_on_the_home_of_its_queue(cluster: Cluster, direct: Direct, name: str) -> None:
    cluster.routes[AT_1] = spread(AT_1, 2, [0])
    cluster.leaders[1].on(name, METHODS[name].response())
    request = METHODS[name].request(queue=AT_1, name="nightly")
    for _ in range(2):  # whose turn it is does not matter
        await ask(direct, name, request)
    assert cluster.leaders[1].requests[name] == [request] * 2
    assert cluster.shards_named(name) == [[], ["1", "1"]]


async def test_any_shard_tells_when_an_expression_fires(cluster: Cluster, direct: Direct) -> None:
    cluster.both("PreviewSchedule", lambda shard: lambda request: schedules_pb2.PreviewScheduleResponse(at_ms=[5]))
    for _ in range(2):
        await ask(direct, "PreviewSchedule", schedules_pb2.PreviewScheduleRequest(expression="@daily"))
    assert cluster.sent("PreviewSchedule") == [0, 1, 1]
    assert cluster.sent("GetTopology")[0] <= 2, "no queue is no name to ask for"
