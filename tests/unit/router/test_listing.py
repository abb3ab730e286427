"""Numbers and pages of queues that are on several shards."""

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from holdfast.proto.v1 import queues_pb2
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.routing.sets import QueueRoute
from tests.unit.router.router_stage import Call, Refusal, Stage, never, not_leader, random_bytes
from tests.unit.router.test_passing import refusal_of


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with Stage(3) as built:
        yield built


def counts(queue: str, number: int) -> pb.QueueCounts:
    return pb.QueueCounts(queue=queue, ready=number, claimed_total=10 * number, oldest_ready_age_ms=100 - number)


def answer_stats(known: dict[str, int]) -> object:
    def answer(call: Call) -> pb.QueueStatsResponse:
        response = pb.QueueStatsResponse()
        for index, queue in enumerate(call.request.queues):
            outcome = response.outcomes.add()
            if queue in known:
                outcome.counts.MergeFrom(counts(queue, known[queue]))
            elif queue == "bad!":
                outcome.rejection.MergeFrom(
                    pb.Rejection(
                        reason="INVALID_FIELD", field=f"queues[{index}]", message=f"Expected queues[{index}] of …"
                    )
                )
            else:
                outcome.rejection.reason = "QUEUE_NOT_FOUND"
        return response

    return answer


async def test_numbers_are_added_up_over_the_shards_of_a_queue(stage: Stage) -> None:
    stage.table.pin("wide", 0, 1, draining=(2,))
    stage.table.at_home("narrow", 1)
    stage.table.at_home("bad!", 0)
    stage.table.at_home("new", 2)
    for shard, known in enumerate([{"wide": 1}, {"wide": 2, "narrow": 40}, {}]):
        stage.brokers[shard].on["QueueStats"] = answer_stats(known)
    response = await stage.call("QueueStats", pb.QueueStatsRequest(queues=["new", "wide", "narrow", "bad!"]))
    new, wide, narrow, bad = response.outcomes
    assert new.rejection.reason == "QUEUE_NOT_FOUND"
    assert wide.counts == pb.QueueCounts(queue="wide", ready=3, claimed_total=30, oldest_ready_age_ms=99)
    assert narrow.counts == counts("narrow", 40)
    assert (bad.rejection.field, bad.rejection.message) == ("queues[3]", "Expected queues[3] of …")


async def test_a_sum_with_a_part_missing_is_no_sum(stage: Stage) -> None:
    stage.table.pin("wide", 0, 1)
    stage.table.at_home("narrow", 0)
    stage.brokers[0].on["QueueStats"] = answer_stats({"wide": 1, "narrow": 2})
    stage.brokers[1].on["QueueStats"] = Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED", retry_after_ms=9)
    response = await stage.call("QueueStats", pb.QueueStatsRequest(queues=["wide", "narrow"]))
    assert response.outcomes[0].rejection.reason == "OVERLOADED"
    assert response.outcomes[1].counts == counts("narrow", 2)


async def test_stats_of_one_shard_pass_as_they_are(stage: Stage) -> None:
    stage.table.at_home("narrow", 1)
    stage.brokers[1].on["QueueStats"] = answer = random_bytes(200)
    data = pb.QueueStatsRequest(queues=["narrow", "narrow"]).SerializeToString()
    assert await stage.raw("QueueStats", data) == answer


def answer_queues(names: list[str]) -> object:
    """As a broker does it: by name, after the token."""

    def answer(call: Call) -> pb.ListQueuesResponse:
        left = [name for name in sorted(names) if name > call.request.page_token]
        page = left[: call.request.page_size]
        token = page[-1] if len(left) > len(page) else ""
        return pb.ListQueuesResponse(queues=[counts(name, 1) for name in page], next_page_token=token)

    return answer


@pytest.mark.parametrize("page_size", [1, 2, 3, 7, 100])
async def test_queues_are_listed_by_name_over_all_shards(stage: Stage, page_size: int) -> None:
    by_shard = [["a", "d", "e", "x"], ["b", "d", "z"], ["c", "d", "e", "f", "g"]]
    for broker, names in zip(stage.brokers, by_shard, strict=True):
        broker.on["ListQueues"] = answer_queues(names)
    found: list[tuple[str, int]] = []
    token, pages = "", 0
    while True:
        page = await stage.call("ListQueues", pb.ListQueuesRequest(page_size=page_size, page_token=token))
        assert len(page.queues) <= page_size
        found += [(queue.queue, queue.ready) for queue in page.queues]
        token, pages = page.next_page_token, pages + 1
        if not token:
            break
    assert found == [("a", 1), ("b", 1), ("c", 1), ("d", 3), ("e", 2), ("f", 1), ("g", 1), ("x", 1), ("z", 1)]
    assert pages <= -(-9 // page_size) + 1


async def test_a_list_with_a_part_missing_is_refused(stage: Stage) -> None:
    for broker in stage.brokers:
        broker.on["ListQueues"] = answer_queues(["a"])
    stage.brokers[2].on["ListQueues"] = Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED")
    _, reason, _ = await refusal_of(stage.call("ListQueues", pb.ListQueuesRequest()))
    assert reason == "OVERLOADED"
    _, reason, _ = await refusal_of(stage.call("ListQueues", pb.ListQueuesRequest(page_size=1001)))
    assert reason == "OUT_OF_RANGE"


@pytest.mark.parametrize("how", ["leaderless", "silent", "overloaded"])
async def test_who_wants_that_hears_what_the_other_shards_know(
    stage: Stage, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And which are missing, on every page. Before its time is up: the shard has all of it for itself otherwise."""
    monkeypatch.setattr("holdfast.router.split_calls._PARTIAL_S_MAX", 0.5)
    refusals = {
        "leaderless": not_leader(None, 0),
        "silent": never,
        "overloaded": Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED"),
    }
    workers = {0: ["v", "w"], 1: ["w"]}
    for broker, names in zip(stage.brokers, [["a", "d"], ["b", "d"], ["c"]], strict=True):
        broker.on |= {
            "ListQueues": but_of(2, refusals[how], answer_queues(names)),
            "ListWorkers": but_of(2, refusals[how], lambda call: answer_workers(workers[call.shard])(call)),
            "FindLeader": not_leader(None, 0),
        }
    request = pb.ListQueuesRequest(page_size=2, partial=True)
    first = await stage.call("ListQueues", request, timeout_s=60)
    assert [(queue.queue, queue.ready) for queue in first.queues] == [("a", 1), ("b", 1)]
    request.page_token = first.next_page_token
    second = await stage.call("ListQueues", request, timeout_s=60)
    assert [(queue.queue, queue.ready) for queue in second.queues] == [("d", 2)]
    assert [list(page.missing_shards) for page in (first, second)] == [[2], [2]]
    page = await stage.call("ListWorkers", queues_pb2.ListWorkersRequest(partial=True), timeout_s=60)
    assert [(worker.worker, worker.claims) for worker in page.workers] == [("v", 1), ("w", 2)]
    assert list(page.missing_shards) == [2]
    # Nobody knows anything, or the request is wrong: that is told as ever.
    for broker in stage.brokers:
        broker.on["ListQueues"] = refusals["overloaded"]
    _, reason, _ = await refusal_of(stage.call("ListQueues", request))
    assert reason == "OVERLOADED"
    stage.brokers[0].on["ListQueues"] = Refusal(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD", "Bad token.")
    _, reason, _ = await refusal_of(stage.call("ListQueues", request))
    assert reason == "INVALID_FIELD"


def but_of(shard: int, refusal: Any, answer: Any) -> Any:
    def either(call: Call) -> Any:
        if call.shard != shard:
            return answer(call)
        return refusal(call) if callable(refusal) else refusal

    return either


def answer_workers(names: list[str]) -> Any:
    def answer(_call: Call) -> queues_pb2.ListWorkersResponse:
        return queues_pb2.ListWorkersResponse(workers=[queues_pb2.WorkerInfo(worker=name, claims=1) for name in names])

    return answer


def answer_dead(names: list[str]) -> object:
    def answer(call: Call) -> pb.ListDeadLettersResponse:
        start = int(call.request.page_token or 0)
        page = names[start : start + call.request.page_size]
        end = start + len(page)
        token = str(end) if end < len(names) else ""
        return pb.ListDeadLettersResponse(tasks=[pb.TaskInfo(task_id=name) for name in page], next_page_token=token)

    return answer


@pytest.mark.parametrize("page_size", [1, 2, 4, 100])
async def test_dead_letters_are_listed_shard_by_shard(stage: Stage, page_size: int) -> None:
    stage.table.pin("q", 1, 0, draining=(2,))
    for broker, names in zip(stage.brokers, [["0a", "0b", "0c"], ["1a", "1b"], ["2a"]], strict=True):
        broker.on["ListDeadLetters"] = answer_dead(names)
    found: list[str] = []
    token = ""
    for _ in range(10):
        request = pb.ListDeadLettersRequest(queue="q", page_size=page_size, page_token=token)
        page = await stage.call("ListDeadLetters", request)
        assert len(page.tasks) <= page_size
        found += [task.task_id for task in page.tasks]
        token = page.next_page_token
        if not token:
            break
    assert found == ["1a", "1b", "0a", "0b", "0c", "2a"]


async def test_pages_go_on_while_the_shards_of_a_queue_change(stage: Stage) -> None:
    for broker, names in zip(stage.brokers, [["0a"], ["1a", "1b"], ["2a"]], strict=True):
        broker.on["ListDeadLetters"] = answer_dead(names)
    # A token of the time when the queue was at home only names no shard.
    stage.table.at_home("q", 1)
    page = await stage.call("ListDeadLetters", pb.ListDeadLettersRequest(queue="q", page_size=1))
    assert page.next_page_token == "1"
    stage.table.routes["q"] = QueueRoute("q", 1, 1, ((1, (0, 2)),))
    rest = pb.ListDeadLettersRequest(queue="q", page_size=9, page_token=page.next_page_token)
    page = await stage.call("ListDeadLetters", rest)
    assert [task.task_id for task in page.tasks] == ["1b", "0a", "2a"]
    # The shard of a token has drained: the next one follows.
    stage.table.routes["q"] = QueueRoute("q", 1, 2, ((2, (2,)),))
    page = await stage.call("ListDeadLetters", pb.ListDeadLettersRequest(queue="q", page_size=9, page_token="0.x"))
    assert [task.task_id for task in page.tasks] == ["2a"]
    bad = pb.ListDeadLettersRequest(queue="q", page_token="nonsense.1")
    _, reason, _ = await refusal_of(stage.call("ListDeadLetters", bad))
    assert reason == "INVALID_FIELD"
