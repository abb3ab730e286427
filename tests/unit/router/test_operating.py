"""What operators ask a router: dead letters that match, what was discarded, purges, workers, schedules."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
import pytest

from holdfast.proto.v1 import queues_pb2, schedules_pb2
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.routing.homes import home_shard
from holdfast.routing.sets import QueueRoute
from tests.unit.router.router_stage import METHODS, Call, Handler, Refusal, Stage, never, not_leader, random_bytes
from tests.unit.router.test_listing import but_of
from tests.unit.router.test_passing import UNKNOWN, refusal_of


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with Stage(3) as built:
        yield built


def paged(method: str, items: str, found: Sequence[Any], looks_max: int = 1000) -> Handler:
    """As a broker does it: it looks at so many, and None is what does not match."""

    def answer(call: Call) -> Any:
        start = int(call.request.page_token or 0)
        end = min(start + min(call.request.page_size, looks_max), len(found))
        response = METHODS[method].response(next_page_token=str(end) if end < len(found) else "")
        getattr(response, items).extend([item for item in found[start:end] if item is not None])
        return response

    return answer


async def all_pages(stage: Stage, method: str, items: str, request: Any) -> list[list[Any]]:
    pages: list[list[Any]] = []
    while not pages or request.page_token:
        page = await stage.call(method, request)
        pages.append(list(getattr(page, items)))
        request.page_token = page.next_page_token
        assert len(pages) < 50
    return pages


# --- dead letters --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_spread", [False, True])
async def test_a_look_for_dead_letters_that_match_is_bounded_and_ends(stage: Stage, is_spread: bool) -> None:
    """A page that has nothing, and a token to go on with, goes back to the caller: it may be one of thousands."""
    by_shard: list[list[pb.TaskInfo | None]] = [[None] * 6 + [pb.TaskInfo(task_id="a")], [pb.TaskInfo(task_id="b")]]
    for broker, found in zip(stage.brokers, by_shard, strict=False):
        broker.on["ListDeadLetters"] = paged("ListDeadLetters", "tasks", found, looks_max=2)
    if is_spread:
        stage.table.pin("q", 0, 1)
    else:
        stage.table.at_home("q", 0)
    wanted = pb.DeadLetterFilter(type="mail", error="boom")
    request = pb.ListDeadLettersRequest(queue="q", page_size=10, filter=wanted)
    pages = await all_pages(stage, "ListDeadLetters", "tasks", request)
    assert [[task.task_id for task in page] for page in pages] == [[], [], [], ["a", "b"] if is_spread else ["a"]]
    assert [len(broker.calls) for broker in stage.brokers] == [4, int(is_spread), 0]
    assert all(call.request.filter == wanted for broker in stage.brokers for call in broker.calls)


@pytest.mark.parametrize(("queue", "expected"), [("", "0a 0b 1a 1b 2a"), ("spread", "1a 1b 2a"), ("plain", "2a")])
async def test_discards_of_a_queue_and_of_all(stage: Stage, queue: str, expected: str) -> None:
    stage.table.pin("spread", 1, 2)
    stage.table.at_home("plain", 2)
    for broker, names in zip(stage.brokers, ("0a 0b", "1a 1b", "2a"), strict=True):
        found = [pb.Discard(task_id=name) for name in names.split()]
        broker.on["ListDiscards"] = paged("ListDiscards", "discards", found)
    pages = await all_pages(stage, "ListDiscards", "discards", pb.ListDiscardsRequest(queue=queue, page_size=2))
    assert " ".join(item.task_id for page in pages for item in page) == expected
    assert all(len(page) <= 2 for page in pages)
    assert {call.request.queue for broker in stage.brokers for call in broker.calls} == {queue}


@pytest.mark.parametrize(("queue", "expected"), [("", "0a 0b 1a 1b 2a"), ("spread", "2a 1a 1b"), ("plain", "2a")])
async def test_tasks_of_a_queue_and_of_all(stage: Stage, queue: str, expected: str) -> None:
    stage.table.pin("spread", 2, 1)
    stage.table.at_home("plain", 2)
    for broker, names in zip(stage.brokers, ("0a 0b", "1a 1b", "2a"), strict=True):
        broker.on["ListTasks"] = paged("ListTasks", "tasks", [pb.TaskInfo(task_id=name) for name in names.split()])
    wanted = queues_pb2.TaskFilter(type="send", min_age_ms=7)
    request = queues_pb2.ListTasksRequest(queue=queue, page_size=2, filter=wanted)
    pages = await all_pages(stage, "ListTasks", "tasks", request)
    assert " ".join(item.task_id for page in pages for item in page) == expected
    assert all(len(page) <= 2 for page in pages)
    assert all(call.request.filter == wanted for broker in stage.brokers for call in broker.calls)


@pytest.mark.parametrize("how", [never, Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED")])
async def test_tasks_without_those_of_a_shard_that_does_not_answer(
    stage: Stage, how: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For who wants that; otherwise, and if there is no other shard, the list is refused."""
    monkeypatch.setattr("holdfast.router.split_calls._PARTIAL_S_MAX", 0.5)
    stage.table.at_home("plain", 1)
    found = queues_pb2.ListTasksResponse(tasks=[pb.TaskInfo(task_id="a")])
    for broker in stage.brokers:
        broker.on |= {"ListTasks": but_of(1, how, lambda _call: found), "FindLeader": not_leader(None, 0)}
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


@pytest.mark.parametrize("name", ["Heartbeat", "SignalWorker"])
async def test_what_is_about_a_worker_goes_to_the_home_of_its_name(stage: Stage, name: str) -> None:
    request = METHODS[name].request
    for broker in stage.brokers:
        broker.on[name] = METHODS[name].response()
    names = [f"host-{number}" for number in range(12)]
    for worker in names:
        await stage.call(name, request(worker=worker))
    asked = {call.request.worker: call.shard for broker in stage.brokers for call in broker.calls}
    assert asked == {worker: home_shard(worker, 3) for worker in names}
    assert len(set(asked.values())) > 1


async def test_many_shards_without_anything_take_several_pages() -> None:
    async with Stage(1, shards=70) as stage:
        stage.brokers[0].on["ListDiscards"] = pb.ListDiscardsResponse()
        pages = await all_pages(stage, "ListDiscards", "discards", pb.ListDiscardsRequest())
        assert pages == [[], [], []]
        assert [call.shard for call in stage.brokers[0].calls] == list(range(70))


# --- purges --------------------------------------------------------------------------------------------------------


async def test_a_purge_goes_from_shard_to_shard(stage: Stage) -> None:
    stage.table.pin("q", 1, 0, draining=(2,))
    script = {0: [(5, "x.y"), (2, "")], 1: [(1, "")], 2: [(0, "")]}
    left = {shard: list(pages) for shard, pages in script.items()}

    def purge(call: Call) -> queues_pb2.PurgeQueueResponse:
        purged, token = left[call.shard].pop(0)
        return queues_pb2.PurgeQueueResponse(purged=purged, next_page_token=token)

    for broker in stage.brokers:
        broker.on["PurgeQueue"] = purge
    request = queues_pb2.PurgeQueueRequest(queue="q", dry_run=True)
    purged: list[int] = []
    tokens: list[str] = []
    while not tokens or tokens[-1]:
        page = await stage.call("PurgeQueue", request)
        purged.append(page.purged)
        request.page_token = page.next_page_token
        tokens.append(page.next_page_token)
    assert (purged, tokens) == ([1, 5, 2, 0], ["0.", "0.x.y", "2.", ""])
    assert [call.request.page_token for call in stage.brokers[0].calls] == ["", "x.y"]
    assert all(call.request.dry_run and call.request.queue == "q" for broker in stage.brokers for call in broker.calls)
    stage.table.routes["q"] = QueueRoute("q", 1)
    request.page_token = "2."
    assert await stage.call("PurgeQueue", request) == queues_pb2.PurgeQueueResponse(), "what has drained is empty"
    request.page_token = "nonsense.1"
    _, reason, _ = await refusal_of(stage.call("PurgeQueue", request))
    assert reason == "INVALID_FIELD"


async def test_a_purge_without_an_answer_is_not_repeated_but_its_next_page_is(stage: Stage) -> None:
    stage.table.at_home("q", 1)
    lost = [Refusal(grpc.StatusCode.UNAVAILABLE)]
    for broker in stage.brokers:
        broker.on["PurgeQueue"] = lambda _call: lost.pop() if lost else queues_pb2.PurgeQueueResponse(purged=3)
    _, reason, _ = await refusal_of(stage.call("PurgeQueue", queues_pb2.PurgeQueueRequest(queue="q")))
    assert reason == "OUTCOME_UNKNOWN"
    lost.append(Refusal(grpc.StatusCode.UNAVAILABLE))
    page = await stage.call("PurgeQueue", queues_pb2.PurgeQueueRequest(queue="q", page_token="1.t"))
    assert page.purged == 3


# --- workers -------------------------------------------------------------------------------------------------------


def answer_workers(names: str, shard: int) -> Handler:
    def answer(call: Call) -> queues_pb2.ListWorkersResponse:
        after = bytes.fromhex(call.request.page_token).decode()
        left = [name for name in names.split() if name > after]
        page = left[: call.request.page_size]
        response = queues_pb2.ListWorkersResponse(
            next_page_token=page[-1].encode().hex() if len(left) > len(page) else ""
        )
        for name in page:
            response.workers.add(worker=name, claims=1 + shard, last_seen_ms=100 - shard, queues=[f"q{shard}"])
        return response

    return answer


@pytest.mark.parametrize("page_size", [1, 2, 5, 0])
async def test_workers_of_all_shards_by_name(stage: Stage, page_size: int) -> None:
    for shard, names in enumerate(("a c é/1", "b c d", "c")):
        stage.brokers[shard].on["ListWorkers"] = answer_workers(names, shard)
    pages = await all_pages(stage, "ListWorkers", "workers", queues_pb2.ListWorkersRequest(page_size=page_size))
    assert all(len(page) <= (page_size or 100) for page in pages)
    found = [worker for page in pages for worker in page]
    assert [(worker.worker, worker.claims) for worker in found] == [("a", 1), ("b", 2), ("c", 6), ("d", 2), ("é/1", 1)]
    assert found[2] == queues_pb2.WorkerInfo(worker="c", claims=6, last_seen_ms=100, queues=["q0", "q1", "q2"])


async def test_workers_of_a_single_shard_pass_as_they_are() -> None:
    async with Stage(1) as stage:
        stage.brokers[0].on["ListWorkers"] = answer = random_bytes(100)
        assert await stage.raw("ListWorkers", UNKNOWN) == answer
        assert stage.brokers[0].calls[0].data == UNKNOWN


async def test_a_list_of_workers_with_a_part_missing_is_refused(stage: Stage) -> None:
    for broker in stage.brokers:
        broker.on["ListWorkers"] = answer_workers("a", 0)
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


async def test_schedules_of_a_queue_and_of_all(stage: Stage) -> None:
    stage.table.routes["q"] = QueueRoute("q", 2, 1, ((1, (0, 1)),))
    for shard, broker in enumerate(stage.brokers):
        found = [schedules_pb2.ScheduleInfo(queue=f"q{shard}", name=name) for name in "ab"]
        broker.on["ListSchedules"] = paged("ListSchedules", "schedules", found)
    request = schedules_pb2.ListSchedulesRequest(page_size=3)
    pages = await all_pages(stage, "ListSchedules", "schedules", request)
    expected = [["q0a", "q0b", "q1a"], ["q1b", "q2a", "q2b"]]
    assert [[f"{item.queue}{item.name}" for item in page] for page in pages] == expected
    page = await stage.call("ListSchedules", schedules_pb2.ListSchedulesRequest(queue="q", page_size=1))
    assert ([schedule.queue for schedule in page.schedules], page.next_page_token) == (["q2"], "1")


async def test_any_shard_tells_when_an_expression_fires(stage: Stage) -> None:
    for broker in stage.brokers:
        broker.on["PreviewSchedule"] = schedules_pb2.PreviewScheduleResponse(at_ms=[5])
    for _ in range(3):
        await stage.call("PreviewSchedule", schedules_pb2.PreviewScheduleRequest(expression="@daily", queue="q"))
    assert [len(broker.calls) for broker in stage.brokers] == [1, 1, 1]


async def test_only_a_trigger_with_an_id_is_sent_twice(stage: Stage) -> None:
    stage.table.at_home("q", 0)
    lost: list[Refusal] = []
    for broker in stage.brokers:
        broker.on["TriggerSchedule"] = lambda _call: (
            lost.pop() if lost else schedules_pb2.TriggerScheduleResponse(task_id="t")
        )
    lost.append(Refusal(grpc.StatusCode.UNAVAILABLE))
    request = schedules_pb2.TriggerScheduleRequest(queue="q", name="n")
    _, reason, _ = await refusal_of(stage.call("TriggerSchedule", request))
    assert reason == "OUTCOME_UNKNOWN"
    lost.append(Refusal(grpc.StatusCode.UNAVAILABLE))
    request.request_id = "r"
    assert (await stage.call("TriggerSchedule", request)).task_id == "t"
