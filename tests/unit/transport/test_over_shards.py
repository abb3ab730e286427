"""Calls over several shards, as routers and direct clients take them: where each goes, how pages follow each other, and
how answers are joined. What each of the two makes of failures is in its own tests."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from google.protobuf.message_factory import GetMessageClass

from holdfast.proto.v1 import queues_pb2, schedules_pb2
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.routing.homes import home_shard
from holdfast.routing.sets import QueueRoute
from holdfast.transport.giving_up import ENDLESS, Patience
from holdfast.transport.over_shards import SplitCall, send_over_shards
from holdfast.transport.parts import Parts

RESPONSES: dict[str, type[Any]] = {
    method.name: GetMessageClass(method.output_type)
    for module in (pb, queues_pb2, schedules_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}


class BadTokenError(Exception):
    pass


class Shards:
    """`on[name]` answers each call from the shard and the request; `asked` has them all."""

    def __init__(self, count: int = 3) -> None:
        self.count = count
        self.routes: dict[str, QueueRoute] = {}
        self.on: dict[str, Callable[[int, Any], Any]] = {}
        self.asked: list[tuple[int, Any]] = []
        self._parts: Parts[Any] = Parts(lambda _shard: None, lambda _answer: None)

    def pin(self, queue: str, *shards: int, draining: tuple[int, ...] = ()) -> None:
        """The first one is also the home."""
        self.routes[queue] = QueueRoute(queue, shards[0], 1, ((1, shards),), draining)

    def at_home(self, queue: str, shard: int) -> None:
        self.routes[queue] = QueueRoute(queue, shard)

    async def call(self, name: str, request: Any, turn: int = 0) -> Any:
        call = Split(self, name, request)
        return await send_over_shards(call, self._parts, self.routes.__getitem__, self.count, turn)

    async def pages(self, name: str, request: Any, items: str) -> list[list[Any]]:
        pages: list[list[Any]] = []
        while not pages or request.page_token:
            page = await self.call(name, request)
            pages.append(list(getattr(page, items)))
            request.page_token = page.next_page_token
            assert len(pages) < 50
        return pages

    def shards_asked(self) -> list[int]:
        return [shard for shard, _ in self.asked]


class Split(SplitCall[Any]):
    def __init__(self, shards: Shards, name: str, request: Any) -> None:
        super().__init__(name, request, RESPONSES[name], ())
        self._shards = shards

    async def send_whole(self, shard: int) -> Any:
        return await self.send(shard, self.request)

    async def send(self, shard: int, request: Any, patience: Patience = ENDLESS) -> Any:
        copy = type(request)()
        copy.CopyFrom(request)
        self._shards.asked.append((shard, copy))
        return self._shards.on[self.name](shard, request)

    def reply(self, response: Any) -> Any:
        return response

    def rejection(self, failure: Exception) -> Any:
        raise AssertionError(failure)

    def are_alike(self, failures: Sequence[Any]) -> bool:
        raise AssertionError(failures)

    def may_miss(self, failure: Exception) -> bool:
        raise AssertionError(failure)

    def malformed(self, outcomes: int, items: int) -> Exception:
        raise AssertionError(outcomes)

    async def bad_token(self, shard: int) -> Any:
        raise BadTokenError


@pytest.fixture
def shards() -> Shards:
    return Shards()


def paged(name: str, items: str, found: Sequence[Sequence[Any]], looks_max: int = 1000) -> Callable[[int, Any], Any]:
    """As a broker does it: it looks at so many, and None is what does not match."""

    def answer(shard: int, request: Any) -> Any:
        start = int(request.page_token or 0)
        end = min(start + min(request.page_size, looks_max), len(found[shard]))
        response = RESPONSES[name](next_page_token=str(end) if end < len(found[shard]) else "")
        getattr(response, items).extend([item for item in found[shard][start:end] if item is not None])
        return response

    return answer


# --- by name ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page_size", [1, 2, 3, 7, 100])
async def test_queues_are_listed_by_name_over_all_shards(shards: Shards, page_size: int) -> None:
    known = ["adex", "bdz", "cdefg"]

    def answer(shard: int, request: pb.ListQueuesRequest) -> pb.ListQueuesResponse:
        left = [name for name in known[shard] if name > request.page_token]
        page = left[: request.page_size]
        token = page[-1] if len(left) > len(page) else ""
        return pb.ListQueuesResponse(
            queues=[pb.QueueCounts(queue=name, ready=1) for name in page], next_page_token=token
        )

    shards.on["ListQueues"] = answer
    pages = await shards.pages("ListQueues", pb.ListQueuesRequest(page_size=page_size), "queues")
    assert all(len(page) <= page_size for page in pages)
    found = [(queue.queue, queue.ready) for page in pages for queue in page]
    assert found == [("a", 1), ("b", 1), ("c", 1), ("d", 3), ("e", 2), ("f", 1), ("g", 1), ("x", 1), ("z", 1)]
    assert len(pages) <= -(-9 // page_size) + 1


@pytest.mark.parametrize("page_size", [1, 2, 5, 0])
async def test_workers_of_all_shards_by_name(shards: Shards, page_size: int) -> None:
    known = [["a", "c", "é/1"], ["b", "c", "d"], ["c"]]

    def answer(shard: int, request: queues_pb2.ListWorkersRequest) -> queues_pb2.ListWorkersResponse:
        after = bytes.fromhex(request.page_token).decode()
        left = [name for name in known[shard] if name > after]
        page = left[: request.page_size]
        response = queues_pb2.ListWorkersResponse()
        response.next_page_token = page[-1].encode().hex() if len(left) > len(page) else ""
        for name in page:
            seen = {"last_seen_ms": 100 - shard, "queues": [f"q{shard}"], "is_waiting": shard == 1}
            response.workers.add(worker=name, claims=1 + shard, **seen)
        return response

    shards.on["ListWorkers"] = answer
    pages = await shards.pages("ListWorkers", queues_pb2.ListWorkersRequest(page_size=page_size), "workers")
    assert all(len(page) <= (page_size or 100) for page in pages)
    found = [worker for page in pages for worker in page]
    assert [(worker.worker, worker.claims) for worker in found] == [("a", 1), ("b", 2), ("c", 6), ("d", 2), ("é/1", 1)]
    assert found[2] == queues_pb2.WorkerInfo(
        worker="c", claims=6, last_seen_ms=100, queues=["q0", "q1", "q2"], is_waiting=True
    )


async def test_numbers_are_added_up_over_the_shards_of_a_queue(shards: Shards) -> None:
    shards.pin("wide", 0, 1, draining=(2,))
    for queue, home in (("narrow", 1), ("bad!", 0), ("new", 2)):
        shards.at_home(queue, home)
    known = [{"wide": 1}, {"wide": 2, "narrow": 40}, {}]

    def answer(shard: int, request: pb.QueueStatsRequest) -> pb.QueueStatsResponse:
        response = pb.QueueStatsResponse()
        for index, queue in enumerate(request.queues):
            outcome = response.outcomes.add()
            if queue in known[shard]:
                number = known[shard][queue]
                outcome.counts.MergeFrom(
                    pb.QueueCounts(
                        queue=queue, ready=number, claimed_total=10 * number, oldest_ready_age_ms=100 - number,
                        enqueued_per_second=1.5, paused=number == 2,
                        latencies=[pb.TypeLatency(type="t", ready_to_claim=[1, 2], claim_to_ack_ms_total=4)],
                    )
                )  # fmt: skip
            elif queue == "bad!":
                field = f"queues[{index}]"
                outcome.rejection.MergeFrom(pb.Rejection(reason="INVALID_FIELD", field=field, message=f"Not {field}."))
            else:
                outcome.rejection.reason = "QUEUE_NOT_FOUND"
        return response

    shards.on["QueueStats"] = answer
    response = await shards.call("QueueStats", pb.QueueStatsRequest(queues=["new", "wide", "narrow", "bad!"]))
    new, wide, narrow, bad = response.outcomes
    assert new.rejection.reason == "QUEUE_NOT_FOUND"
    assert wide.counts == pb.QueueCounts(
        queue="wide", ready=3, claimed_total=30, oldest_ready_age_ms=99, enqueued_per_second=3.0, paused=True,
        latencies=[pb.TypeLatency(type="t", ready_to_claim=[2, 4], claim_to_ack_ms_total=8)],
    )  # fmt: skip
    assert (narrow.counts.ready, narrow.counts.oldest_ready_age_ms) == (40, 60)
    assert (bad.rejection.field, bad.rejection.message) == ("queues[3]", "Not queues[3].")


# --- shard after shard ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page_size", [1, 2, 4, 100])
async def test_dead_letters_are_listed_shard_by_shard(shards: Shards, page_size: int) -> None:
    """The home first; what drains comes last."""
    shards.pin("q", 1, 0, draining=(2,))
    dead = [[pb.TaskInfo(task_id=name) for name in names] for names in (["0a", "0b", "0c"], ["1a", "1b"], ["2a"])]
    shards.on["ListDeadLetters"] = paged("ListDeadLetters", "tasks", dead)
    pages = await shards.pages("ListDeadLetters", pb.ListDeadLettersRequest(queue="q", page_size=page_size), "tasks")
    assert all(len(page) <= page_size for page in pages)
    assert [task.task_id for page in pages for task in page] == ["1a", "1b", "0a", "0b", "0c", "2a"]


async def test_pages_go_on_while_the_shards_of_a_queue_change(shards: Shards) -> None:
    dead = [[pb.TaskInfo(task_id=name) for name in names] for names in (["0a"], ["1a", "1b"], ["2a"])]
    shards.on["ListDeadLetters"] = paged("ListDeadLetters", "tasks", dead)

    async def page(token: str, page_size: int = 9) -> tuple[list[str], str]:
        request = pb.ListDeadLettersRequest(queue="q", page_size=page_size, page_token=token)
        found = await shards.call("ListDeadLetters", request)
        return [task.task_id for task in found.tasks], found.next_page_token

    # A token of the time when the queue was at home only names no shard.
    shards.at_home("q", 1)
    assert await page("", 1) == (["1a"], "1")
    shards.routes["q"] = QueueRoute("q", 1, 1, ((1, (0, 2)),))
    assert await page("1") == (["1b", "0a", "2a"], "")
    # The shard of a token has drained: the next one follows.
    shards.routes["q"] = QueueRoute("q", 1, 2, ((2, (2,)),))
    assert await page("0.x") == (["2a"], "")


@pytest.mark.parametrize("is_spread", [False, True])
async def test_a_look_for_dead_letters_that_match_is_bounded_and_ends(shards: Shards, is_spread: bool) -> None:
    """A page that has nothing, and a token to go on with, goes back to the caller: it may be one of thousands."""
    found: list[list[Any]] = [[*[None] * 6, pb.TaskInfo(task_id="a")], [pb.TaskInfo(task_id="b")], []]
    shards.on["ListDeadLetters"] = paged("ListDeadLetters", "tasks", found, looks_max=2)
    shards.pin("q", *((0, 1) if is_spread else (0,)))
    wanted = pb.DeadLetterFilter(type="mail", error="boom")
    pages = await shards.pages(
        "ListDeadLetters", pb.ListDeadLettersRequest(queue="q", page_size=10, filter=wanted), "tasks"
    )
    assert [[task.task_id for task in page] for page in pages] == [[], [], [], ["a", "b"] if is_spread else ["a"]]
    assert shards.shards_asked() == [0] * 4 + [1] * is_spread
    assert all(request.filter == wanted for _, request in shards.asked)


@pytest.mark.parametrize(
    ("name", "items", "kind", "request_"),
    [
        ("ListDiscards", "discards", pb.Discard, pb.ListDiscardsRequest(page_size=2)),
        (
            "ListTasks", "tasks", pb.TaskInfo,
            queues_pb2.ListTasksRequest(page_size=2, filter=queues_pb2.TaskFilter(type="send", min_age_ms=7)),
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize(("queue", "expected"), [("", "0a 0b 1a 1b 2a"), ("spread", "2a 1a 1b"), ("plain", "2a")])
async def test_discards_and_tasks_of_a_queue_and_of_all(
    shards: Shards, name: str, items: str, kind: type[Any], request_: Any, queue: str, expected: str,
) -> None:  # fmt: skip
    shards.pin("spread", 2, 1)
    shards.at_home("plain", 2)
    found = [[kind(task_id=item) for item in names.split()] for names in ("0a 0b", "1a 1b", "2a")]
    shards.on[name] = paged(name, items, found)
    request = type(request_)()
    request.CopyFrom(request_)
    request.queue = queue
    pages = await shards.pages(name, request, items)
    assert " ".join(item.task_id for page in pages for item in page) == expected
    assert all(len(page) <= 2 for page in pages)
    for _, asked in shards.asked:
        assert asked.queue == queue
        assert name != "ListTasks" or asked.filter == request_.filter


async def test_many_shards_without_anything_take_several_pages() -> None:
    shards = Shards(70)
    shards.on["ListDiscards"] = lambda _shard, _request: pb.ListDiscardsResponse()
    assert await shards.pages("ListDiscards", pb.ListDiscardsRequest(), "discards") == [[], [], []]
    assert shards.shards_asked() == list(range(70))


async def test_a_purge_goes_from_shard_to_shard(shards: Shards) -> None:
    shards.pin("q", 1, 0, draining=(2,))
    left = {0: [(5, "x.y"), (2, "")], 1: [(1, "")], 2: [(0, "")]}

    def purge(shard: int, _request: Any) -> queues_pb2.PurgeQueueResponse:
        purged, token = left[shard].pop(0)
        return queues_pb2.PurgeQueueResponse(purged=purged, next_page_token=token)

    shards.on["PurgeQueue"] = purge
    request = queues_pb2.PurgeQueueRequest(queue="q", dry_run=True)
    pages: list[tuple[int, str]] = []
    while not pages or request.page_token:
        page = await shards.call("PurgeQueue", request)
        request.page_token = page.next_page_token
        pages.append((page.purged, page.next_page_token))
    assert pages == [(1, "0."), (5, "0.x.y"), (2, "2."), (0, "")]
    assert [asked.page_token for shard, asked in shards.asked if shard == 0] == ["", "x.y"]
    assert all(asked.dry_run and asked.queue == "q" for _, asked in shards.asked)
    shards.at_home("q", 1)
    request.page_token = "2."
    assert await shards.call("PurgeQueue", request) == queues_pb2.PurgeQueueResponse(), "what has drained is empty"


@pytest.mark.parametrize("name", ["ListDeadLetters", "ListDiscards", "ListTasks", "PurgeQueue"])
async def test_a_token_that_no_page_ended_with_is_refused(shards: Shards, name: str) -> None:
    shards.pin("q", 1, 0)
    kinds = {"ListTasks": queues_pb2.ListTasksRequest, "PurgeQueue": queues_pb2.PurgeQueueRequest}
    kind: Any = kinds.get(name) or getattr(pb, f"{name}Request")
    with pytest.raises(BadTokenError):
        await shards.call(name, kind(queue="q", page_token="nonsense.1"))


async def test_schedules_of_a_queue_and_of_all(shards: Shards) -> None:
    shards.routes["q"] = QueueRoute("q", 2, 1, ((1, (0, 1)),))
    found = [[schedules_pb2.ScheduleInfo(queue=f"q{shard}", name=name) for name in "ab"] for shard in range(3)]
    shards.on["ListSchedules"] = paged("ListSchedules", "schedules", found)
    pages = await shards.pages("ListSchedules", schedules_pb2.ListSchedulesRequest(page_size=3), "schedules")
    expected = [["q0a", "q0b", "q1a"], ["q1b", "q2a", "q2b"]]
    assert [[f"{item.queue}{item.name}" for item in page] for page in pages] == expected
    page = await shards.call("ListSchedules", schedules_pb2.ListSchedulesRequest(queue="q", page_size=1))
    assert ([schedule.queue for schedule in page.schedules], page.next_page_token) == (["q2"], "1")


# --- one shard --------------------------------------------------------------------------------------------------------


async def test_what_is_about_a_worker_goes_to_the_home_of_its_name(shards: Shards) -> None:
    kinds = {"Heartbeat": queues_pb2.HeartbeatRequest, "SignalWorker": queues_pb2.SignalWorkerRequest}
    for name, kind in kinds.items():
        shards.on[name] = lambda _shard, _request: None
        for number in range(12):
            await shards.call(name, kind(worker=f"host-{number}"))
    assert all(shard == home_shard(asked.worker, 3) for shard, asked in shards.asked)
    assert len(set(shards.shards_asked())) > 1


async def test_any_shard_tells_when_an_expression_fires(shards: Shards) -> None:
    shards.on["PreviewSchedule"] = lambda _shard, _request: None
    for turn in range(7, 10):
        request = schedules_pb2.PreviewScheduleRequest(expression="@daily", queue="q")
        await shards.call("PreviewSchedule", request, turn)
    assert shards.shards_asked() == [1, 2, 0]
