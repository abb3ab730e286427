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
from holdfast.routing.homes import home_shard, shard_of_key
from holdfast.routing.sets import automatic_key
from tests.unit.client.scripted_server import Refusal
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


async def all_pages(direct: Direct, name: str, items: str, request: Any) -> list[list[Any]]:
    pages: list[list[Any]] = []
    while not pages or request.page_token:
        page = await ask(direct, name, request)
        pages.append(list(getattr(page, items)))
        request.page_token = page.next_page_token
        assert len(pages) < 50
    return pages


# --------------------------------------------------------------------------------------------- tasks with keys


def call_keys() -> list[str]:
    """By shard, one that goes there."""
    return [next(key for key in map(str, range(50)) if shard_of_key(key, (0, 1)) == shard) for shard in (0, 1)]


async def test_tasks_of_one_call_part_ways_by_their_keys(cluster: Cluster, direct: Direct) -> None:
    cluster.routes[AT_0] = spread(AT_0, 3)
    cluster.both("Enqueue", accept)
    _, call = call_keys()
    wanted = [
        ("a", 1, {}), ("b", 0, {"limit_key": "l"}), ("c", 0, {"unique_key": "u"}),
        ("d", 0, {"limit_key": "l", "unique_key": "u"}), ("e", 1, {}),
    ]  # fmt: skip
    request = pb.EnqueueRequest()
    for n, (kind, _, keys) in enumerate(wanted):
        request.tasks.add(queue=AT_0, type=kind, request_id=automatic_key(3, call, n), **keys)
    request.tasks.add(queue=AT_0, type="f", limit_key="l")
    request.tasks.add(queue=AT_0, type="g", request_id="own", limit_key="l")
    response = await ask(direct, "Enqueue", request)
    expected = [f"{shard}:{kind}" for kind, shard, _ in wanted] + ["0:f", "0:g"]
    assert [outcome.accepted.task_id for outcome in response.outcomes] == expected


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
    with pytest.raises(Unavailable) as stale:
        await ask(direct, "Enqueue", pb.EnqueueRequest(tasks=[unique, other]))
    assert (stale.value.reason, stale.value.metadata["why"]) == ("STALE_MAP", "forgotten")
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


# ------------------------------------------------------------------------------------------------------- numbers


async def test_rates_latencies_and_flags_of_a_queue_are_put_together(cluster: Cluster, direct: Direct) -> None:
    cluster.routes[AT_0] = spread(AT_0)

    def stats(shard: int) -> Any:
        counts = pb.QueueCounts(queue=AT_0, enqueued_per_second=1.5, paused=shard == 1, oldest_ready_age_ms=9 - shard)
        counts.latencies.add(type="t", ready_to_claim=[1, 2], claim_to_ack_ms_total=4)
        return lambda request: pb.QueueStatsResponse(outcomes=[pb.QueueStatsOutcome(counts=counts)])

    cluster.both("QueueStats", stats)
    response = await ask(direct, "QueueStats", pb.QueueStatsRequest(queues=[AT_0]))
    assert response.outcomes[0].counts == pb.QueueCounts(
        queue=AT_0, enqueued_per_second=3.0, paused=True, oldest_ready_age_ms=9,
        latencies=[pb.TypeLatency(type="t", ready_to_claim=[2, 4], claim_to_ack_ms_total=8)],
    )  # fmt: skip


async def test_workers_of_all_shards_by_name(cluster: Cluster, direct: Direct) -> None:
    names = ["ac", "bcd"]

    def workers(shard: int) -> Any:
        def answer(request: queues_pb2.ListWorkersRequest) -> queues_pb2.ListWorkersResponse:
            after = bytes.fromhex(request.page_token).decode()
            left = [name for name in names[shard] if name > after]
            page = left[: request.page_size]
            token = page[-1].encode().hex() if len(left) > len(page) else ""
            found = [queues_pb2.WorkerInfo(worker=name, claims=1, is_waiting=shard == 1) for name in page]
            return queues_pb2.ListWorkersResponse(workers=found, next_page_token=token)

        return answer

    cluster.both("ListWorkers", workers)
    pages = await all_pages(direct, "ListWorkers", "workers", queues_pb2.ListWorkersRequest(page_size=2))
    reported = [[(item.worker, item.claims, item.is_waiting) for item in page] for page in pages]
    assert reported == [[("a", 1, False), ("b", 1, True)], [("c", 2, True), ("d", 1, True)]]


# -------------------------------------------------------------------------------------------- shard after shard


def paged(name: str, items: str, found: dict[int, list[Any]], looks_max: int = 1000) -> Callable[[int], Any]:
    """As a broker does it: it looks at so many, and None is what does not match."""

    def of_shard(shard: int) -> Any:
        def answer(request: Any) -> Any:
            start = int(request.page_token or 0)
            end = min(start + min(request.page_size, looks_max), len(found[shard]))
            response = METHODS[name].response(next_page_token=str(end) if end < len(found[shard]) else "")
            getattr(response, items).extend([item for item in found[shard][start:end] if item is not None])
            return response

        return answer

    return of_shard


async def test_a_look_for_dead_letters_that_match_is_bounded_and_ends(cluster: Cluster, direct: Direct) -> None:
    cluster.routes[AT_0] = spread(AT_0)
    found: dict[int, list[Any]] = {0: [None, None, None, pb.TaskInfo(task_id="a")], 1: [pb.TaskInfo(task_id="b")]}
    cluster.both("ListDeadLetters", paged("ListDeadLetters", "tasks", found, looks_max=1))
    wanted = pb.DeadLetterFilter(tenant="t")
    request = pb.ListDeadLettersRequest(queue=AT_0, page_size=5, filter=wanted)
    pages = await all_pages(direct, "ListDeadLetters", "tasks", request)
    assert [[task.task_id for task in page] for page in pages] == [[], [], [], ["a", "b"]]
    assert cluster.sent("ListDeadLetters") == [0, 4, 1]
    assert all(request.filter == wanted for leader in cluster.leaders for request in leader.requests["ListDeadLetters"])


@pytest.mark.parametrize(("queue", "expected"), [("", [["0a", "0b"], ["1a"]]), (AT_1, [["1a"]])])
@pytest.mark.parametrize(
    ("method", "items", "kind", "request_of"),
    [
        ("ListDiscards", "discards", pb.Discard, pb.ListDiscardsRequest),
        ("ListTasks", "tasks", pb.TaskInfo, queues_pb2.ListTasksRequest),
    ],
)
async def test_discards_and_tasks_of_a_queue_and_of_all(
    cluster: Cluster, direct: Direct, method: str, items: str, kind: Any, request_of: Any, queue: str, expected: Any
) -> None:
    found = {0: [kind(task_id=name) for name in ("0a", "0b")], 1: [kind(task_id="1a")]}
    cluster.both(method, paged(method, items, found))
    pages = await all_pages(direct, method, items, request_of(queue=queue, page_size=2))
    assert [[item.task_id for item in page] for page in pages] == expected


async def test_what_is_about_a_worker_goes_to_the_home_of_its_name(cluster: Cluster, direct: Direct) -> None:
    cluster.both("Heartbeat", lambda _shard: lambda _request: queues_pb2.HeartbeatResponse(next_ms=1))
    names = [f"host-{number}" for number in range(12)]
    for worker in names:
        await ask(direct, "Heartbeat", queues_pb2.HeartbeatRequest(worker=worker))
    reported = {request.worker: shard for shard in (0, 1) for request in cluster.leaders[shard].requests["Heartbeat"]}
    assert reported == {worker: home_shard(worker, 2) for worker in names}


async def test_a_purge_goes_from_shard_to_shard(cluster: Cluster, direct: Direct) -> None:
    cluster.routes[AT_1] = spread(AT_1)
    first = queues_pb2.PurgeQueueResponse(purged=5, next_page_token="x.y")
    cluster.leaders[1].on("PurgeQueue", first, queues_pb2.PurgeQueueResponse(purged=2))
    cluster.leaders[0].on("PurgeQueue", queues_pb2.PurgeQueueResponse(purged=1))
    request = queues_pb2.PurgeQueueRequest(queue=AT_1, dry_run=True)
    reported: list[tuple[int, str]] = []
    while not reported or reported[-1][1]:
        page = await ask(direct, "PurgeQueue", request)
        request.page_token = page.next_page_token
        reported.append((page.purged, page.next_page_token))
    assert reported == [(5, "1.x.y"), (2, "0."), (1, "")], "with tokens that a router understands"
    assert [request.page_token for request in cluster.leaders[1].requests["PurgeQueue"]] == ["", "x.y"]
    assert all(request.dry_run for leader in cluster.leaders for request in leader.requests["PurgeQueue"])
    request.page_token = "7."
    assert await ask(direct, "PurgeQueue", request) == queues_pb2.PurgeQueueResponse()


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
    with pytest.raises(HoldfastError) as lost:
        await ask(direct, "PurgeQueue", queues_pb2.PurgeQueueRequest(queue=AT_0))
    assert getattr(lost.value, "sent", False) or isinstance(lost.value, OutcomeUnknown)


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


async def test_schedules_of_a_queue_and_of_all(cluster: Cluster, direct: Direct) -> None:
    cluster.routes[AT_1] = spread(AT_1)
    found = {shard: [schedules_pb2.ScheduleInfo(name=f"{shard}{name}") for name in "ab"] for shard in (0, 1)}
    cluster.both("ListSchedules", paged("ListSchedules", "schedules", found))
    request = schedules_pb2.ListSchedulesRequest(page_size=3)
    pages = await all_pages(direct, "ListSchedules", "schedules", request)
    assert [[item.name for item in page] for page in pages] == [["0a", "0b", "1a"], ["1b"]]
    page = await ask(direct, "ListSchedules", schedules_pb2.ListSchedulesRequest(queue=AT_1, page_size=1))
    assert ([schedule.name for schedule in page.schedules], page.next_page_token) == (["1a"], "1")
    assert cluster.sent("GetTopology")[0] <= 2, "no queue is no name to ask for"


async def test_any_shard_tells_when_an_expression_fires(cluster: Cluster, direct: Direct) -> None:
    cluster.both("PreviewSchedule", lambda shard: lambda request: schedules_pb2.PreviewScheduleResponse(at_ms=[5]))
    for _ in range(2):
        await ask(direct, "PreviewSchedule", schedules_pb2.PreviewScheduleRequest(expression="@daily"))
    assert cluster.sent("PreviewSchedule") == [0, 1, 1]
