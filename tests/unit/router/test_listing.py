"""Numbers and pages of queues that are on several shards: what a router makes of failures. How they are joined is in
tests/unit/transport/test_over_shards.py."""

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from holdfast.proto.v1 import queues_pb2
from holdfast.proto.v1 import tasks_pb2 as pb
from tests.unit.router.router_stage import Call, Refusal, Stage, never, not_leader, random_bytes
from tests.unit.router.test_passing import refusal_of


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with Stage(3) as built:
        yield built


def counts(queue: str, number: int) -> pb.QueueCounts:
    return pb.QueueCounts(queue=queue, ready=number, claimed_total=10 * number, oldest_ready_age_ms=100 - number)


def answer_stats(**known: int) -> Any:
    def answer(call: Call) -> pb.QueueStatsResponse:
        outcomes = [pb.QueueStatsOutcome(counts=counts(queue, known[queue])) for queue in call.request.queues]
        return pb.QueueStatsResponse(outcomes=outcomes)

    return answer


async def test_a_sum_with_a_part_missing_is_no_sum(stage: Stage) -> None:
    stage.table.pin("wide", 0, 1)
    stage.table.at_home("narrow", 0)
    stage.brokers[0].on["QueueStats"] = answer_stats(wide=1, narrow=2)
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


async def test_a_list_with_a_part_missing_is_refused(stage: Stage) -> None:
    stage.on_all(ListQueues=answer_queues(["a"]))
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
    monkeypatch.setattr("holdfast.router.split_calls.PARTIAL_S_MAX", 0.5)
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
    stage.on_all(ListQueues=refusals["overloaded"])
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
