"""Batches over several shards: who gets what, and answers in the order of the request."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.router.batches import fit, place
from holdfast.routing.homes import shard_of_key
from holdfast.routing.sets import automatic_key
from holdfast.serving.refusals import STALE_MAP, RefusedError
from tests.unit.router.router_stage import (
    BATCH_BYTES_MAX,
    METHODS,
    Call,
    Refusal,
    Stage,
    Table,
    accept_all,
    never,
    not_leader,
    task_id,
)
from tests.unit.router.test_passing import UNKNOWN, refusal_of


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with Stage(3) as built:
        for shard in range(3):
            built.table.at_home(f"q{shard}", shard)
            built.brokers[shard].on["Enqueue"] = accept_all()
        yield built


def task(queue: str, payload: object, request_id: str = "", **fields: Any) -> pb.TaskSpec:
    return pb.TaskSpec(queue=queue, type="t", payload=str(payload).encode(), request_id=request_id, **fields)


def task_run(queue: str, first: int, count: int, request_id: str = "") -> pb.TaskRun:
    payloads = [str(n).encode() for n in range(first, first + count)]
    return pb.TaskRun(task=pb.TaskSpec(queue=queue, type="t", request_id=request_id), payloads=payloads)


def ids(response: pb.EnqueueResponse) -> list[str]:
    return [outcome.accepted.task_id or outcome.rejection.reason for outcome in response.outcomes]


def run_ids(response: pb.EnqueueResponse) -> list[str]:
    return [outcome.first_task_id or outcome.rejection.reason for outcome in response.runs]


# --- where tasks go -----------------------------------------------------------------------------------------------


def test_tasks_go_by_their_request_ids() -> None:
    table = Table(8)
    table.pin("spread", 3, 5, 6, generation=2)
    own = place(pb.EnqueueRequest(tasks=[task("spread", 0, "order-1")]), table, 1)
    assert (own.shards, own.generations) == ([3], {})
    picked = {
        place(pb.EnqueueRequest(tasks=[task("spread", n) for n in range(5)]), table, index).shards[0]
        for index in range(9)
    }
    assert picked == {3, 5, 6}
    automatic = [task("spread", n, automatic_key(2, "key", n)) for n in range(9)]
    placed = place(pb.EnqueueRequest(tasks=automatic), table, 1)
    assert len(placed.shards) == 1  # all of one call land on one shard
    assert placed.generations == {}


def test_a_run_goes_whole_where_a_task_with_its_id_would() -> None:
    table = Table(8)
    table.pin("spread", 3, 5, 6, generation=2)
    table.at_home("plain", 1)
    shard = shard_of_key("key", (3, 5, 6))
    runs = [task_run("spread", 0, 5, automatic_key(2, "key", 0)), task_run("plain", 5, 2, automatic_key(0, "key", 5))]
    placed = place(pb.EnqueueRequest(tasks=[task("plain", 7)], runs=runs), table, 1)
    assert placed.shards == [1, shard, 1]
    picked = {place(pb.EnqueueRequest(runs=[task_run("spread", 0, 2)]), table, index).shards[0] for index in range(9)}
    assert picked == {3, 5, 6}
    old = pb.EnqueueRequest(runs=[task_run("spread", 0, 5, automatic_key(0, "key", 0))])
    assert place(old, table, 1).generations == {"spread": 2}
    with pytest.raises(RefusedError) as refused:
        place(old, table, 1, is_first=True)
    assert refused.value.reason == STALE_MAP


def test_a_caller_with_an_old_set_is_told_of_the_new_one() -> None:
    table = Table(8)
    table.pin("spread", 3, 5, 6, generation=2)
    placed = place(pb.EnqueueRequest(tasks=[task("spread", 1, automatic_key(0, "key", 0)), task("other", 1)]), table, 1)
    assert placed.shards[0] == 3  # generation 0 is the home
    assert placed.generations == {"spread": 2}


def test_tasks_of_one_call_and_queue_part_ways_by_their_keys() -> None:
    table = Table(8)
    table.pin("spread", 3, 5, 6, generation=2)
    table.at_home("plain", 1)
    called = next(key for key in ("key", *"abcdefgh") if shard_of_key(key, (3, 5, 6)) != 3)
    elsewhere = shard_of_key(called, (3, 5, 6))
    tasks = [
        task("spread", 0, automatic_key(2, called, 0)),
        task("spread", 1, automatic_key(2, called, 1), limit_key="l1"),
        task("spread", 2, automatic_key(2, called, 2), unique_key="u", limit_key="l1"),
        task("spread", 3, "", limit_key="l2"),
        task("spread", 4, automatic_key(2, called, 4)),
        task("plain", 5, automatic_key(0, called, 5), limit_key="l1"),
    ]
    expected = [elsewhere, 3, 3, 3, elsewhere, 1]
    assert place(pb.EnqueueRequest(tasks=tasks), table, 1).shards == expected
    assert place(pb.EnqueueRequest(tasks=tasks), table, 2).shards == expected, "a repetition meets its first attempt"


def test_a_task_that_goes_home_anyway_needs_no_known_set_but_its_neighbour_does() -> None:
    table = Table(8)
    table.pin("spread", 3, 5, 6, generation=4)
    for generation in (3, 5):
        for keys in ({"unique_key": "u"}, {"limit_key": "l"}):
            keyed = task("spread", 0, automatic_key(generation, "key", 0), **keys)
            placed = place(pb.EnqueueRequest(tasks=[keyed]), table, 1, is_first=True)
            assert (placed.shards, placed.generations) == ([3], {})
            other = task("spread", 1, automatic_key(generation, "key", 1))
            with pytest.raises(RefusedError, match="sets of shards of queue spread"):
                place(pb.EnqueueRequest(tasks=[keyed, other]), table, 1)


def test_the_first_attempt_of_a_call_goes_to_the_newest_set_or_nowhere() -> None:
    """A repetition goes where its first attempt went."""
    table = Table(8)
    table.pin("spread", 3, 5, 6, generation=2)
    table.pin("wide", 1, 2, generation=9)
    old = [task(queue, n, automatic_key(0, "key", n)) for n, queue in enumerate(("spread", "plain", "wide", "spread"))]
    with pytest.raises(RefusedError, match="newest set of shards of queue spread, which is 2") as refused:
        place(pb.EnqueueRequest(tasks=old), table, 1, is_first=True)
    expected = {"queue": "spread", "generation": "2", "why": "older", "others": "wide=9"}
    assert (refused.value.reason, refused.value.metadata) == (STALE_MAP, expected)
    assert place(pb.EnqueueRequest(tasks=old), table, 1).generations == {"spread": 2, "wide": 9}
    new = [task("spread", 0, automatic_key(2, "key", 0)), task("plain", 1, automatic_key(0, "key", 1)), task("wide", 2)]
    assert place(pb.EnqueueRequest(tasks=new), table, 1, is_first=True).generations == {}


async def test_a_part_that_is_lost_is_sent_again_to_the_same_shard_and_no_other(stage: Stage) -> None:
    """The tasks of one call are on three shards; only one of them had no answer."""
    stage.table.pin("spread", 0, 1, 2)
    lost = iter([Refusal(grpc.StatusCode.UNAVAILABLE)])
    stage.brokers[1].on["Enqueue"] = lambda call: next(lost, None) or accept_all()(call)
    calls = {shard_of_key(key, (0, 1, 2)): key for key in map(str, range(30))}
    tasks = [task("spread", n, automatic_key(1, calls[n % 3], n)) for n in range(6)]
    response = await stage.call("Enqueue", pb.EnqueueRequest(tasks=tasks))
    assert ids(response) == [f"{n % 3}:{n}" for n in range(6)]
    sent = sorted((call.shard, call.data) for broker in stage.brokers for call in broker.calls)
    assert [shard for shard, _ in sent] == [0, 1, 1, 2]
    assert sent[1] == sent[2], "with the same ids"


def test_an_empty_batch_goes_anywhere() -> None:
    assert place(pb.EnqueueRequest(), Table(8), 1).shards == [0]


# --- split and join -----------------------------------------------------------------------------------------------


async def test_outcomes_come_in_the_order_of_the_request(stage: Stage) -> None:
    tasks = [task(f"q{n * 7 % 3}", n) for n in range(20)]
    response = await stage.call("Enqueue", pb.EnqueueRequest(tasks=tasks))
    assert ids(response) == [f"{n * 7 % 3}:{n}" for n in range(20)]
    for shard, broker in enumerate(stage.brokers):
        [request] = broker.requests("Enqueue")
        assert [spec.queue for spec in request.tasks] == [f"q{shard}"] * len(request.tasks)


async def test_unknown_fields_survive_a_split(stage: Stage) -> None:
    spec = pb.TaskSpec.FromString(task("q0", "a").SerializeToString() + UNKNOWN)
    data = pb.EnqueueRequest(tasks=[spec, task("q1", "b")]).SerializeToString() + UNKNOWN
    await stage.raw("Enqueue", data)
    [first], [second] = (broker.calls for broker in stage.brokers[:2])
    assert first.data.count(UNKNOWN) == 2
    assert second.data.count(UNKNOWN) == 1


async def test_shards_are_asked_at_the_same_time(stage: Stage) -> None:
    """Each answers only once all have been asked."""
    everybody = asyncio.Barrier(3)

    async def together(call: Call) -> Any:
        await everybody.wait()
        return accept_all()(call)

    for broker in stage.brokers:
        broker.on["Enqueue"] = together
    response = await stage.call("Enqueue", pb.EnqueueRequest(tasks=[task(f"q{n}", n) for n in range(3)]))
    assert ids(response) == ["0:0", "1:1", "2:2"]


async def test_a_part_that_fails_is_told_item_by_item(stage: Stage) -> None:
    stage.brokers[1].on["Enqueue"] = Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "DISK_LOW", "Full.", retry_after_ms=70)
    tasks = [task("q1", 0), task("q0", 1), task("q1", 2), task("q2", 3)]
    response = await stage.call("Enqueue", pb.EnqueueRequest(tasks=tasks))
    assert ids(response) == ["DISK_LOW", "0:1", "DISK_LOW", "2:3"]
    assert response.outcomes[0].rejection == pb.Rejection(reason="DISK_LOW", message="Full.", retry_after_ms=70)


async def test_if_all_parts_fail_alike_the_call_does(stage: Stage) -> None:
    for broker in stage.brokers:
        broker.on["Enqueue"] = Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "DISK_LOW", "Full.", retry_after_ms=70)
    code, reason, _ = await refusal_of(stage.call("Enqueue", pb.EnqueueRequest(tasks=[task("q0", 0), task("q1", 1)])))
    assert (code, reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "DISK_LOW")


async def test_parts_that_fail_in_different_ways(stage: Stage) -> None:
    stage.brokers[0].on["Enqueue"] = Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "DISK_LOW", "Full.")
    stage.brokers[1].on["Enqueue"] = Refusal(grpc.StatusCode.INTERNAL, message="Oops.")
    response = await stage.call("Enqueue", pb.EnqueueRequest(tasks=[task("q0", 0), task("q1", 1)]))
    assert ids(response) == ["DISK_LOW", "INTERNAL"]


async def test_a_part_without_an_answer_does_not_take_the_others_with_it(stage: Stage) -> None:
    """The caller hears of what was done before its deadline."""
    stage.brokers[1].on["Enqueue"] = never
    for broker in stage.brokers:
        broker.on["FindLeader"] = Refusal(grpc.StatusCode.UNAVAILABLE)
    tasks = [task("q0", 0), task("q1", 1)]
    response = await stage.call("Enqueue", pb.EnqueueRequest(tasks=tasks), timeout_s=2.5)
    assert ids(response) == ["0:0", "OUTCOME_UNKNOWN"]


async def test_a_part_whose_leader_moved_finds_it(stage: Stage) -> None:
    stage.brokers[1].on["Enqueue"] = not_leader(stage.brokers[2].address, 3)
    response = await stage.call("Enqueue", pb.EnqueueRequest(tasks=[task("q0", 0), task("q1", 1)]))
    assert ids(response) == ["0:0", "1:1"]
    assert [call.shard for call in stage.brokers[2].calls] == [1]


async def test_positions_in_rejections_are_the_callers(stage: Stage) -> None:
    def reject_last(call: Call) -> pb.EnqueueResponse:
        response: pb.EnqueueResponse = accept_all()(call)  # type: ignore[assignment]
        last = len(call.request.tasks) - 1
        response.outcomes[last].rejection.MergeFrom(
            pb.Rejection(
                reason="OUT_OF_RANGE",
                field=f"tasks[{last}].priority",
                message=f"Expected tasks[{last}].priority from 0 to 9.",
            )
        )
        return response

    stage.brokers[1].on["Enqueue"] = reject_last
    tasks = [task(f"q{queue}", n) for n, queue in enumerate([1, 0, 0, 2, 1, 0])]
    response = await stage.call("Enqueue", pb.EnqueueRequest(tasks=tasks))
    assert ids(response) == ["1:0", "0:1", "0:2", "2:3", "OUT_OF_RANGE", "0:5"]
    rejection = response.outcomes[4].rejection
    assert (rejection.field, rejection.message) == ("tasks[4].priority", "Expected tasks[4].priority from 0 to 9.")


async def test_a_broker_that_answers_for_fewer_tasks_is_not_believed(stage: Stage) -> None:
    stage.brokers[1].on["Enqueue"] = pb.EnqueueResponse()
    response = await stage.call("Enqueue", pb.EnqueueRequest(tasks=[task("q0", 0), task("q1", 1)]))
    assert ids(response) == ["0:0", "INTERNAL"]


async def test_generations_are_told_with_whole_and_split_batches(stage: Stage) -> None:
    stage.table.pin("wide", 0, generation=4)
    old = task("wide", "a", automatic_key(0, "key", 0))
    whole = await stage.call("Enqueue", pb.EnqueueRequest(tasks=[old]))
    assert (ids(whole), dict(whole.generations)) == (["0:a"], {"wide": 4})
    stage.brokers[1].on["Enqueue"] = pb.EnqueueResponse(
        outcomes=[pb.EnqueueOutcome(accepted=pb.Accepted(task_id="x"))], generations={"other": 2}
    )
    parts = await stage.call("Enqueue", pb.EnqueueRequest(tasks=[old, task("q1", "b")]))
    assert (ids(parts), dict(parts.generations)) == (["0:a", "x"], {"wide": 4, "other": 2})


async def test_more_bytes_than_any_broker_takes_are_refused_by_the_router(stage: Stage) -> None:
    tasks = [task(f"q{n % 2}", "x" * (BATCH_BYTES_MAX // 4)) for n in range(4)]
    _, reason, error = await refusal_of(stage.call("Enqueue", pb.EnqueueRequest(tasks=tasks)))
    assert reason == "BATCH_TOO_LARGE"
    assert f"at most {BATCH_BYTES_MAX} bytes" in str(error.details())
    assert not any(broker.calls for broker in stage.brokers)


async def test_acks_with_more_follow_ups_than_a_broker_takes_are_not_split(stage: Stage) -> None:
    """One broker says what is wrong: in parts they might be accepted, and that must not depend on the map."""
    refused = Refusal(grpc.StatusCode.INVALID_ARGUMENT, "BATCH_TOO_LARGE", "Too many.")
    for broker in stage.brokers:
        broker.on["Ack"] = lambda call: pb.AckResponse(
            outcomes=[pb.AckOutcome(acked=pb.Acked()) for _ in call.request.items]
        )
    items = [
        pb.AckItem(claim=pb.ClaimRef(task_id=task_id(n % 2, n)), follow_ups=[task("q0", 0)] * 100) for n in range(10)
    ]
    await stage.call("Ack", pb.AckRequest(items=items))
    assert [len(broker.requests("Ack")) for broker in stage.brokers] == [1, 1, 0]
    stage.brokers[0].on["Ack"] = refused
    items[0].follow_ups.append(task("q0", 0))
    _, reason, _ = await refusal_of(stage.call("Ack", pb.AckRequest(items=items)))
    assert reason == "BATCH_TOO_LARGE"
    assert [len(broker.requests("Ack")) for broker in stage.brokers] == [2, 1, 0]


async def test_more_than_any_broker_takes_is_refused_by_one(stage: Stage) -> None:
    """Split in two it would pass, and with one shard more or less it would not: that must not depend on the map."""
    refusal = Refusal(grpc.StatusCode.INVALID_ARGUMENT, "BATCH_TOO_LARGE", "Too many.")
    for broker in stage.brokers:
        broker.on["Enqueue"] = refusal
    tasks = [task(f"q{n % 2}", n) for n in range(1001)]
    _, reason, _ = await refusal_of(stage.call("Enqueue", pb.EnqueueRequest(tasks=tasks)))
    assert reason == "BATCH_TOO_LARGE"
    assert sum(len(broker.calls) for broker in stage.brokers) == 1


async def test_acks_are_split_by_the_shard_in_their_ids(stage: Stage) -> None:
    def acked(call: Call) -> pb.AckResponse:
        response = pb.AckResponse()
        for item in call.request.items:
            response.outcomes.add().acked.follow_ups.add(task_id=item.claim.task_id)
        return response

    for broker in stage.brokers:
        broker.on["Ack"] = acked
    names = [task_id(n % 3, n) for n in range(7)] + ["nonsense", task_id(77, 1)]
    items = [pb.AckItem(claim=pb.ClaimRef(task_id=name, token=1)) for name in names]
    response = await stage.call("Ack", pb.AckRequest(items=items))
    assert [outcome.acked.follow_ups[0].task_id for outcome in response.outcomes] == names
    assert [len(broker.calls) for broker in stage.brokers] == [1, 1, 1]


@pytest.mark.parametrize(
    ("method", "request_of", "items", "kept"),
    [
        ("UpdateTasks", lambda ids: pb.UpdateTasksRequest(items=[_update(name) for name in ids]), "items", {}),
        (
            "Release",
            lambda ids: pb.ReleaseRequest(claims=[pb.ClaimRef(task_id=name) for name in ids], delay_ms=700),
            "claims",
            {"delay_ms": 700},
        ),
        (
            "DiscardDeadLetters",
            lambda ids: pb.DiscardDeadLettersRequest(task_ids=ids, by="me", note="why"),
            "task_ids",
            {"by": "me", "note": "why"},
        ),
    ],
)
async def test_a_part_says_what_the_whole_says_of_all_items(
    stage: Stage, method: str, request_of: Any, items: str, kept: dict[str, Any]
) -> None:
    def answer(call: Call) -> Any:
        response = METHODS[method].response()
        for _ in getattr(call.request, items):
            response.outcomes.add().rejection.reason = f"OF_{call.shard}"
        return response

    for broker in stage.brokers:
        broker.on[method] = answer
    request = request_of([task_id(2, 1), task_id(0, 2), task_id(2, 3)])
    response = await stage.call(method, request)
    assert [outcome.rejection.reason for outcome in response.outcomes] == ["OF_2", "OF_0", "OF_2"]
    [at_0], [at_2] = (stage.brokers[shard].requests(method) for shard in (0, 2))
    assert list(getattr(at_0, items)) == [getattr(request, items)[1]]
    for part in (at_0, at_2):
        assert {name: getattr(part, name) for name in kept} == kept


def _update(name: str) -> pb.UpdateItem:
    return pb.UpdateItem(task_id=name, priority=7, delay_ms=5)


async def test_waits_are_waited_at_all_shards(stage: Stage) -> None:
    def done(call: Call) -> pb.WaitTasksResponse:
        tasks = [pb.TaskInfo(task_id=name) for name in call.request.task_ids]
        return pb.WaitTasksResponse(outcomes=[pb.WaitOutcome(task=one) for one in tasks])

    for broker in stage.brokers:
        broker.on["WaitTasks"] = done
    names = [task_id(n % 2, n) for n in range(4)]
    response = await stage.call("WaitTasks", pb.WaitTasksRequest(task_ids=names, wait_ms=1500))
    assert [outcome.task.task_id for outcome in response.outcomes] == names
    assert [broker.requests("WaitTasks")[0].wait_ms for broker in stage.brokers[:2]] == [1500, 1500]


def test_results_are_left_out_of_answers_that_grew_too_large() -> None:
    sizes = [10, 5000, 300, 4000]
    response = pb.WaitTasksResponse(
        outcomes=[pb.WaitOutcome(task=pb.TaskInfo(task_id="t", result=b"x" * size)) for size in sizes]
    )
    fit(response, 5000)
    assert response.ByteSize() <= 5000
    assert [len(outcome.task.result) for outcome in response.outcomes] == [10, 0, 300, 4000]
    assert [outcome.task.result_omitted for outcome in response.outcomes] == [False, True, False, False]


# --- runs and ranges ----------------------------------------------------------------------------------------------


async def test_tasks_and_runs_of_several_shards_are_answered_in_their_order(stage: Stage) -> None:
    request = pb.EnqueueRequest(
        tasks=[task("q1", 1), task("q0", 2)],
        runs=[task_run("q2", 10, 3), task_run("q0", 20, 1), task_run("q2", 30, 2)],
    )
    response = await stage.call("Enqueue", request)
    assert (ids(response), run_ids(response)) == (["1:1", "0:2"], ["2:10", "0:20", "2:30"])
    assert [list(broker.requests("Enqueue")[0].runs) for broker in stage.brokers] == [
        [request.runs[1]], [], [request.runs[0], request.runs[2]],
    ]  # fmt: skip


async def test_a_call_with_one_run_passes_unread(stage: Stage) -> None:
    data = pb.EnqueueRequest(runs=[task_run("q1", 0, 100, automatic_key(0, "key", 0))]).SerializeToString()
    assert run_ids(pb.EnqueueResponse.FromString(await stage.raw("Enqueue", data))) == ["1:0"]
    assert [call.data for call in stage.brokers[1].calls] == [data]


async def test_a_part_that_failed_refuses_its_runs(stage: Stage) -> None:
    stage.brokers[1].on["Enqueue"] = Refusal(grpc.StatusCode.INVALID_ARGUMENT, "OUT_OF_RANGE")
    request = pb.EnqueueRequest(tasks=[task("q0", 1)], runs=[task_run("q1", 10, 3), task_run("q2", 20, 3)])
    response = await stage.call("Enqueue", request)
    assert (ids(response), run_ids(response)) == (["0:1"], ["OUT_OF_RANGE", "2:20"])


async def test_a_run_without_an_id_is_not_repeated(stage: Stage) -> None:
    lost = Refusal(grpc.StatusCode.UNAVAILABLE, "OUTCOME_UNKNOWN", retry_after_ms=1)
    outcomes = []
    for request_id in ("", automatic_key(0, "key", 0)):
        answers: list[Any] = [lost, lost, accept_all()]

        def answer(call: Call, left: list[Any] = answers) -> Any:
            return left.pop(0) if len(left) > 1 else left[0](call)

        stage.brokers[1].on["Enqueue"] = answer
        request = pb.EnqueueRequest(runs=[task_run("q1", 0, 2, request_id)])
        try:
            outcomes.append(run_ids(await stage.call("Enqueue", request)))
        except grpc.aio.AioRpcError:
            outcomes.append(["failed"])
    assert outcomes == [["failed"], ["1:0"]]


async def test_a_batch_with_too_many_tasks_in_its_runs_is_refused_by_one_broker(stage: Stage) -> None:
    request = pb.EnqueueRequest(tasks=[task("q0", 1)], runs=[task_run(f"q{n % 3}", 0, 100) for n in range(10)])
    await stage.call("Enqueue", request)
    assert [len(broker.calls) for broker in stage.brokers] == [1, 0, 0]
    ranges = [pb.AckRange(task_id=task_id(n, 1), count=500 + n) for n in range(2)]
    stage.brokers[0].on["Ack"] = pb.AckResponse()
    await stage.call("Ack", pb.AckRequest(ranges=ranges))
    assert [len(broker.requests("Ack")) for broker in stage.brokers] == [1, 0, 0]


async def test_items_and_ranges_of_acks_go_to_their_shards(stage: Stage) -> None:
    def ack(call: Call) -> pb.AckResponse:
        items = [pb.AckOutcome(acked=pb.Acked()) for _ in call.request.items]
        refused = pb.RefusedItem(at=1, rejection=pb.Rejection(reason="STALE_TOKEN", message=str(call.shard)))
        return pb.AckResponse(outcomes=items, ranges=[pb.RangeOutcome(refused=[refused]) for _ in call.request.ranges])

    for broker in stage.brokers:
        broker.on["Ack"] = ack
    stage.brokers[2].on["Ack"] = Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "DISK_LOW")
    request = pb.AckRequest(
        items=[{"claim": {"task_id": task_id(1, 1)}}, {"claim": {"task_id": task_id(2, 2)}}],
        ranges=[{"task_id": task_id(shard, 9), "token": 5, "count": 3} for shard in (2, 0, 1)],
    )  # fmt: skip
    response = await stage.call("Ack", request)
    assert [outcome.rejection.reason for outcome in response.outcomes] == ["", "DISK_LOW"]
    assert [outcome.rejection.reason for outcome in response.ranges] == ["DISK_LOW", "", ""]
    assert [[item.rejection.message for item in outcome.refused] for outcome in response.ranges] == [[], ["0"], ["1"]]
    assert list(stage.brokers[1].requests("Ack")[0].ranges) == [request.ranges[2]]
