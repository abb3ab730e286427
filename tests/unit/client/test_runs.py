"""Tasks that are alike travel together: on their way to a server as runs, from there as runs of claims, and back as
ranges of acks. Callers see single tasks, each with an outcome of its own.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

import grpc
import pytest

from holdfast.client import (
    Accepted,
    Ack,
    Acked,
    AsyncClient,
    ClaimRef,
    InvalidArgument,
    NewTask,
    OutcomeUnknown,
    Rejected,
    RequestIdConflict,
    RetryPolicy,
    StaleToken,
    TaskState,
    UnexpectedAnswer,
    UniqueScope,
)
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.routing.sets import is_automatic_key
from holdfast.routing.task_ids import later_task_ids, shard_of_task
from tests.unit.client.scripted_server import FIRST_ID, Refusal, ScriptedServer, ack_all, error_of, refused_field
from tests.unit.client.scripted_shards import Cluster, queue_at, task_id

SECRET = 77
ALONE = NewTask("mail", "alone", priority=3, unique_key="u")
LIKE_ALL = NewTask("mail", "welcome", headers={"a": "b"}, priority=3, max_attempts=4, retry=RetryPolicy(base_ms=5))
# A value for each field that tasks of a run have in common, of them those that say which line they are in, and for each
# that none of them has.
IN_COMMON: dict[str, Any] = {
    "type": "other", "headers": {"a": "c"}, "max_attempts": 5, "max_claims": 9, "result_ttl_ms": 1000,
    "retry": RetryPolicy(base_ms=6), "timeout_ms": 5000,
}  # fmt: skip
OF_A_LINE: dict[str, Any] = {"queue": "other", "priority": 4, "tenant": "t", "limit_key": "l"}
OF_ITS_OWN: dict[str, Any] = {
    "request_id_ttl_ms": 1000, "run_at_ms": 1, "delay_ms": 1, "unique_key": "u",
    "unique_scope": UniqueScope.WHILE_WAITING, "ttl_ms": 5000,
}  # fmt: skip


def accept_all(request: pb.EnqueueRequest) -> pb.EnqueueResponse:
    """Tasks are `1`, `2`, …; runs have ids of their own."""
    response = pb.EnqueueResponse()
    for number, _ in enumerate(request.tasks, 1):
        response.outcomes.add().accepted.task_id = str(number)
    for number, _ in enumerate(request.runs, 1):
        response.runs.add(first_task_id=run_id(number))
    return response


def run_id(number: int, offset: int = 0) -> str:
    return later_task_ids(task_id(0, 1000 * number), offset + 2)[offset]


def like(task: NewTask, *payloads: str) -> list[NewTask]:
    return [replace(task, payload=payload.encode()) for payload in payloads]


def ids_or_fields(outcomes: Sequence[Accepted | Rejected]) -> list[str]:
    return [outcome.task_id if isinstance(outcome, Accepted) else outcome.field for outcome in outcomes]


# --- new tasks ----------------------------------------------------------------------------------------------------


async def test_tasks_that_are_alike_are_one_run_with_one_id(server: ScriptedServer, client: AsyncClient) -> None:
    server.on("Enqueue", accept_all)
    outcomes = await client.enqueue_many(like(LIKE_ALL, "a", "b", "c"))
    assert outcomes == [Accepted(run_id(1, index)) for index in range(3)]
    [request] = server.requests["Enqueue"]
    [run] = request.runs
    assert is_automatic_key(run.task.request_id)
    assert run.task.request_id_ttl_ms > 0
    for field in ("request_id", "request_id_ttl_ms"):
        run.task.ClearField(field)
    spec = pb.TaskSpec(queue="mail", type="welcome", headers={"a": "b"}, priority=3, max_attempts=4)
    spec.retry.base_ms = 5
    assert request == pb.EnqueueRequest(runs=[pb.TaskRun(task=spec, payloads=[b"a", b"b", b"c"])])


@pytest.mark.parametrize("field", IN_COMMON)
async def test_a_task_that_differs_begins_another_run(server: ScriptedServer, client: AsyncClient, field: str) -> None:
    server.on("Enqueue", accept_all)
    other = replace(LIKE_ALL, **{field: IN_COMMON[field]})
    tasks = [*like(LIKE_ALL, "a", "b"), *like(other, "c", "d", "e"), *like(LIKE_ALL, "f")]
    ids = [run_id(1), run_id(1, 1), run_id(2), run_id(2, 1), run_id(2, 2), run_id(3)]
    assert ids_or_fields(await client.enqueue_many(tasks)) == ids
    [request] = server.requests["Enqueue"]
    assert [list(run.payloads) for run in request.runs] == [[b"a", b"b"], [b"c", b"d", b"e"], [b"f"]]
    ids = [run.task.request_id for run in request.runs]
    assert len(set(ids)) == 3
    assert len({item.split(".")[1] for item in ids}) == 1, "they are of one call"


@pytest.mark.parametrize("field", OF_A_LINE)
async def test_a_run_gathers_tasks_over_those_of_other_lines(
    server: ScriptedServer, client: AsyncClient, field: str
) -> None:
    server.on("Enqueue", accept_all)
    other = replace(LIKE_ALL, **{field: OF_A_LINE[field]})
    mixed = [
        task for pair in zip(like(LIKE_ALL, "a", "b", "c"), like(other, "d", "e", "f"), strict=True) for task in pair
    ]
    assert ids_or_fields(await client.enqueue_many(mixed)) == [
        run_id(number, index) for index in range(3) for number in (1, 2)
    ]  # fmt: skip
    [request] = server.requests["Enqueue"]
    assert [list(run.payloads) for run in request.runs] == [[b"a", b"b", b"c"], [b"d", b"e", b"f"]]


async def test_nothing_is_overtaken_by_what_came_behind_it_in_its_line(
    server: ScriptedServer, client: AsyncClient
) -> None:
    server.on("Enqueue", accept_all)
    first, second = like(LIKE_ALL, "a", "b"), like(LIKE_ALL, "c", "d")
    elsewhere = replace(ALONE, tenant="t")
    outcomes = await client.enqueue_many([elsewhere, *first, ALONE, elsewhere, *second, ALONE])
    assert ids_or_fields(outcomes) == ["1", run_id(1), run_id(1, 1), "2", "3", run_id(2), run_id(2, 1), "4"]
    [request] = server.requests["Enqueue"]
    assert [(list(run.payloads), run.behind) for run in request.runs] == [([b"a", b"b"], 1), ([b"c", b"d"], 3)]
    assert len(request.tasks) == 4


async def test_no_priority_is_that_of_the_middle(server: ScriptedServer, client: AsyncClient) -> None:
    server.on("Enqueue", accept_all)
    unsaid, said = replace(LIKE_ALL, priority=None), replace(LIKE_ALL, priority=5)
    await client.enqueue_many([*like(unsaid, "a", "b"), *like(said, "c", "d"), *like(unsaid, "e", "f")])
    [request] = server.requests["Enqueue"]
    assert [list(run.payloads) for run in request.runs] == [[b"a", b"b"], [b"c", b"d"], [b"e", b"f"]]


# --- their own request ids ----------------------------------------------------------------------------------------


def named(*names: str, task: NewTask = LIKE_ALL) -> list[NewTask]:
    return [replace(task, payload=name.encode(), request_id=name) for name in names]


async def test_request_ids_of_their_own_travel_beside_the_payloads(server: ScriptedServer, client: AsyncClient) -> None:
    server.on("Enqueue", accept_all)
    tasks = [*named("a", "b", "c"), *like(LIKE_ALL, "d", "e"), *like(replace(LIKE_ALL, request_id=""), "f", "g")]
    assert ids_or_fields(await client.enqueue_many(tasks)) == [
        run_id(1), run_id(1, 1), run_id(1, 2), run_id(2), run_id(2, 1), run_id(3), run_id(3, 1),
    ]  # fmt: skip
    [request] = server.requests["Enqueue"]
    assert [(run.task.request_id, list(run.request_ids)) for run in request.runs][::2] == [
        ("a", ["a", "b", "c"]), ("", []),
    ]  # fmt: skip
    assert is_automatic_key(request.runs[1].task.request_id)
    assert not request.runs[1].request_ids
    assert not request.runs[0].task.HasField("request_id_ttl_ms")


async def test_tasks_that_were_there_are_told_from_new_ones(server: ScriptedServer, client: AsyncClient) -> None:
    conflict = pb.Rejection(reason="REQUEST_ID_CONFLICT", field="runs[0].request_ids[3]", message="Expected …")
    known = pb.Accepted(task_id=run_id(9), duplicate=True, state=pb.TASK_STATE_READY)
    outcome = pb.RunOutcome(
        first_task_id=run_id(1), refused=[pb.RefusedItem(at=3, rejection=conflict)],
        duplicates=[pb.DuplicateItem(at=at, accepted=known) for at in (0, 2)],
    )  # fmt: skip
    all_there = pb.RunOutcome(duplicates=[pb.DuplicateItem(at=at, accepted=known) for at in (0, 1)])
    server.on("Enqueue", pb.EnqueueResponse(runs=[outcome]), pb.EnqueueResponse(runs=[all_there]))
    outcomes = await client.enqueue_many(named("a", "b", "c", "d", "e"))
    there = Accepted(run_id(9), duplicate=True, state=TaskState.READY)
    assert outcomes[:3] == [there, Accepted(run_id(1)), there]
    assert isinstance(outcomes[3], RequestIdConflict)
    assert (outcomes[3].field, outcomes[4]) == ("tasks[3].request_id", Accepted(run_id(1, 1)))
    assert await client.enqueue_many(named("a", "b")) == [there] * 2


async def test_of_two_tasks_with_one_request_id_the_first_of_the_batch_counts(
    server: ScriptedServer, client: AsyncClient
) -> None:
    server.on("Enqueue", accept_all)
    other = replace(LIKE_ALL, priority=4)
    tasks = [*named("a", task=other), *named("b"), *named("b", "c", task=other), *named("d")]
    assert ids_or_fields(await client.enqueue_many(tasks)) == ["1", "2", "3", "4", "5"]
    assert [spec.request_id for spec in server.requests["Enqueue"][0].tasks] == ["a", "b", "b", "c", "d"]


@pytest.mark.parametrize("bad", ["~0.x.0", 7])
async def test_an_id_that_cannot_be_ones_own_is_refused_by_itself(
    server: ScriptedServer, client: AsyncClient, bad: Any
) -> None:
    server.on("Enqueue", accept_all)
    tasks = named("a", "b", "c")
    tasks[1] = replace(tasks[1], request_id=bad)
    assert ids_or_fields(await client.enqueue_many(tasks)) == [run_id(1), "tasks[1].request_id", run_id(1, 1)]


async def test_where_hardly_any_are_alike_all_go_alone(server: ScriptedServer, client: AsyncClient) -> None:
    server.on("Enqueue", accept_all)
    tasks = [replace(LIKE_ALL, priority=index % 9) for index in range(8)]
    assert ids_or_fields(await client.enqueue_many([*tasks, tasks[-1]])) == [str(number) for number in range(1, 10)]


@pytest.mark.parametrize("field", OF_ITS_OWN)
async def test_what_has_something_of_its_own_goes_alone(
    server: ScriptedServer, client: AsyncClient, field: str
) -> None:
    server.on("Enqueue", accept_all)
    tasks = like(replace(LIKE_ALL, **{field: OF_ITS_OWN[field]}), "a", "b")
    assert ids_or_fields(await client.enqueue_many(tasks)) == ["1", "2"]
    assert ids_or_fields(await client.enqueue_run(replace(tasks[0], payload=b""), [b"a", b"b"])) == ["1", "2"]
    assert not any(request.runs for request in server.requests["Enqueue"])


def test_every_field_of_a_task_is_known_here() -> None:
    assert {field.name for field in fields(NewTask)} == {*IN_COMMON, *OF_A_LINE, *OF_ITS_OWN, "payload", "request_id"}


async def test_outcomes_are_in_the_order_of_the_batch(server: ScriptedServer, client: AsyncClient) -> None:
    """Whatever was refused, and however the server counts."""

    def answer(request: pb.EnqueueRequest) -> pb.EnqueueResponse:
        response = accept_all(request)
        bad = pb.Rejection(reason="OUT_OF_RANGE", field="tasks[1].priority", message="Expected tasks[1].priority: no.")
        response.outcomes[1].rejection.CopyFrom(bad)
        large = pb.Rejection(reason="TOO_LARGE", field="runs[0].payloads[1]", message="Expected runs[0].payloads[1] …")
        response.runs[0].refused.add(at=1, rejection=large)
        type_ = pb.Rejection(reason="INVALID_FIELD", field="runs[1].task.type", message="Expected runs[1].task.type …")
        response.runs[1].CopyFrom(pb.RunOutcome(rejection=type_))
        return response

    server.on("Enqueue", answer)
    tasks = [ALONE, ALONE, *like(LIKE_ALL, "a", "b", "c"), *like(NewTask("mail", "other"), "d", "e")]
    outcomes = await client.enqueue_many(tasks)
    assert ids_or_fields(outcomes) == [
        "1", "tasks[1].priority", run_id(1), "tasks[3].payload", run_id(1, 1), "tasks[5].type", "tasks[6].type",
    ]  # fmt: skip
    refused = [outcome.message for outcome in outcomes if isinstance(outcome, Rejected)]
    assert refused[:2] == ["Expected tasks[1].priority: no.", "Expected tasks[3].payload …"]
    assert refused[2:] == ["Expected tasks[5].type …", "Expected tasks[6].type …"]
    assert outcomes[5] is not outcomes[6], "each is raised by itself"


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ("runs[1].task.queue", "tasks[4].queue"),
        ("runs[0].payloads[2]", "tasks[3].payload"),
        ("runs[1].request_ids[1]", "tasks[5].request_id"),
        ("runs.payloads", "tasks"),
        ("tasks[0].queue", "tasks[0].queue"),
        ("runs[9].task", "runs[9].task"),
        ("request", "request"),
    ],
)
async def test_a_refusal_of_the_whole_call_names_tasks_of_the_caller(
    server: ScriptedServer, client: AsyncClient, field: str, expected: str
) -> None:
    refusal = Refusal(
        grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD", f"Expected {field} …", metadata={"field": field}
    )
    server.on("Enqueue", refusal)
    tasks = [ALONE, *like(LIKE_ALL, "a", "b", "c"), *like(NewTask("x", "y"), "d", "e")]
    refused = await error_of(client.enqueue_many(tasks), InvalidArgument)
    assert (refused.field, refused.message) == (expected, f"Expected {expected} …")


@pytest.mark.parametrize(("offset", "payload"), [(1, "text"), (2, None)])
async def test_a_payload_that_does_not_fit_is_named(
    server: ScriptedServer, client: AsyncClient, offset: int, payload: Any
) -> None:
    server.on("Enqueue", accept_all)
    tasks = [ALONE, *like(LIKE_ALL, "a", "b", "c")]
    tasks[offset] = replace(tasks[offset], payload=payload)
    outcomes = ids_or_fields(await client.enqueue_many(tasks))
    assert outcomes.pop(offset) == f"tasks[{offset}].payload"
    assert outcomes == ["1", run_id(1), run_id(1, 1)], "the others are sent without it"
    assert await refused_field(client.enqueue_run(LIKE_ALL, [task.payload for task in tasks])) == f"payloads[{offset}]"


async def test_what_is_no_task_is_named(server: ScriptedServer, client: AsyncClient) -> None:
    server.on("Enqueue", accept_all)
    not_a_task: Any = "task"
    outcomes = await client.enqueue_many([*like(LIKE_ALL, "a", "b"), not_a_task, not_a_task])
    assert ids_or_fields(outcomes) == [run_id(1), run_id(1, 1), "tasks[2]", "tasks[3]"]
    too_urgent = like(NewTask("mail", "t", priority=2**70), "a", "b")
    assert ids_or_fields(await client.enqueue_many(too_urgent)) == ["tasks[0].priority", "tasks[1].priority"]


async def test_a_lost_run_is_sent_again_with_its_id(server: ScriptedServer, client: AsyncClient) -> None:
    lost = Refusal(grpc.StatusCode.UNAVAILABLE, "OUTCOME_UNKNOWN", retry_after_ms=1)
    again = pb.EnqueueResponse(runs=[pb.RunOutcome(first_task_id=FIRST_ID, duplicate=True)])
    server.on("Enqueue", lost, again)
    outcomes = await client.enqueue_many(like(LIKE_ALL, "a", "b"))
    assert outcomes == [Accepted(item) for item in later_task_ids(FIRST_ID, 2)], "its own first attempt is no duplicate"
    first, second = server.requests["Enqueue"]
    assert first == second


async def test_runs_without_an_id_are_not_sent_again(server: ScriptedServer, client: AsyncClient) -> None:
    lost = Refusal(grpc.StatusCode.UNAVAILABLE, "OUTCOME_UNKNOWN", retry_after_ms=1)
    server.on("Enqueue", lost, accept_all)
    with pytest.raises(OutcomeUnknown):
        await client.enqueue_many(like(replace(LIKE_ALL, request_id=""), "a", "b"))
    [request] = server.requests["Enqueue"]
    assert [run.task.request_id for run in request.runs] == [""]


async def test_a_run_that_was_refused_after_a_lost_answer_is_unknown(
    server: ScriptedServer, client: AsyncClient
) -> None:
    lost = Refusal(grpc.StatusCode.UNAVAILABLE, "OUTCOME_UNKNOWN", retry_after_ms=1)
    refused = pb.RunOutcome(rejection=pb.Rejection(reason="NOT_LEADER", retry_after_ms=1))
    server.on("Enqueue", lost, pb.EnqueueResponse(runs=[refused]))
    outcomes = await client.enqueue_many(like(LIKE_ALL, "a", "b"))
    assert [type(outcome) for outcome in outcomes] == [OutcomeUnknown] * 2


@pytest.mark.parametrize(
    "runs",
    [
        [],
        [pb.RunOutcome(first_task_id=FIRST_ID)] * 2,
        [pb.RunOutcome(first_task_id="the-id")],
        [pb.RunOutcome(first_task_id=FIRST_ID, refused=[pb.RefusedItem(at=7)])],
        [pb.RunOutcome(first_task_id=FIRST_ID, duplicates=[pb.DuplicateItem(at=3)])],
        [pb.RunOutcome()],
    ],
)
async def test_answers_that_do_not_fit_are_not_understood(
    server: ScriptedServer, client: AsyncClient, runs: list[pb.RunOutcome]
) -> None:
    server.on("Enqueue", pb.EnqueueResponse(runs=runs))
    with pytest.raises(UnexpectedAnswer):
        await client.enqueue_many(like(LIKE_ALL, "a", "b", "c"))


async def test_who_has_only_payloads_needs_one_task(server: ScriptedServer, client: AsyncClient) -> None:
    server.on("Enqueue", accept_all)
    assert await client.enqueue_run(LIKE_ALL, []) == []
    assert ids_or_fields(await client.enqueue_run(LIKE_ALL, [b"a", b"b"])) == [run_id(1), run_id(1, 1)]
    assert ids_or_fields(await client.enqueue_run(LIKE_ALL, [b"a"])) == ["1"]
    await client.enqueue_many(like(LIKE_ALL, "a", "b"))
    by_payloads, _, by_tasks = server.requests["Enqueue"]
    for request in (by_payloads, by_tasks):
        request.runs[0].task.ClearField("request_id")
    assert by_payloads == by_tasks


@pytest.mark.parametrize("task", [replace(LIKE_ALL, payload=b"x"), replace(LIKE_ALL, request_id="mine")])
async def test_what_only_one_task_could_have_is_refused(client: AsyncClient, task: NewTask) -> None:
    with pytest.raises(InvalidArgument, match="each payload is a task"):
        await client.enqueue_run(task, [b"a", b"b"])


async def test_single_enqueues_keep_their_own_ids(server: ScriptedServer, client: AsyncClient) -> None:
    """They are sent again one by one."""
    server.on("Enqueue", accept_all)
    await client.enqueue(LIKE_ALL)
    [request] = server.requests["Enqueue"]
    assert (len(request.tasks), len(request.runs)) == (1, 0)


async def test_a_run_goes_straight_to_its_shard(cluster: Cluster) -> None:
    def accept(shard: int) -> Callable[[pb.EnqueueRequest], pb.EnqueueResponse]:
        return lambda request: pb.EnqueueResponse(
            runs=[pb.RunOutcome(first_task_id=task_id(shard))] * len(request.runs)
        )

    cluster.both("Enqueue", accept)
    tasks = [*like(NewTask(queue_at(1), "t"), "a", "b"), *like(NewTask(queue_at(0), "t"), "c", "d", "e")]
    async with AsyncClient(cluster.router.address, direct=True) as client:
        outcomes = await client.enqueue_many(tasks)
    assert [shard_of_task(item) for item in ids_or_fields(outcomes)] == [1, 1, 0, 0, 0]
    assert cluster.sent("Enqueue") == [0, 1, 1]


# --- claims -------------------------------------------------------------------------------------------------------


async def test_claims_of_a_run_are_single_tasks(server: ScriptedServer, client: AsyncClient) -> None:
    run = pb.ClaimRun(
        task_id=FIRST_ID, token=41, secret=SECRET, task=pb.TaskSpec(queue="q", type="t", headers={"a": "b"}),
        payloads=[b"x", b"y", b"z"], lease_ms=5000, attempt=2, claims=3, enqueued_at_ms=17,
    )  # fmt: skip
    alone = pb.ClaimRun(task_id="any", token=9, secret=1, task=pb.TaskSpec(queue="other"), payloads=[b""], alone=True)
    server.on("Reserve", pb.ReserveResponse(runs=[run, alone]))
    claims = await client.reserve(["q"], max_tasks=4)
    assert server.requests["Reserve"][0].takes_runs
    assert [claim.task_id for claim in claims] == [*later_task_ids(FIRST_ID, 3), "any"]
    assert [claim.token for claim in claims] == [(41 + index << 64) + SECRET for index in range(3)] + [(9 << 64) + 1]
    assert [claim.payload for claim in claims] == [b"x", b"y", b"z", b""]
    first, *_, last = claims
    assert claims[1] == replace(first, task_id=claims[1].task_id, token=claims[1].token, payload=b"y")
    assert (first.queue, first.headers, first.attempt, first.claims, first.alone) == ("q", {"a": "b"}, 2, 3, False)
    assert (last.queue, last.alone) == ("other", True)
    assert claims[0].headers is not claims[1].headers


async def test_claims_of_a_run_have_their_own_request_ids(server: ScriptedServer, client: AsyncClient) -> None:
    spec = pb.TaskSpec(queue="q", type="t", tenant="acme")
    run = pb.ClaimRun(
        task_id=FIRST_ID, token=41, secret=SECRET, task=spec, payloads=[b"x", b"y"], request_ids=["one", "two"]
    )  # fmt: skip
    one_too_few = pb.ClaimRun(task_id=FIRST_ID, token=41, task=spec, payloads=[b"x", b"y"], request_ids=["one"])
    server.on("Reserve", pb.ReserveResponse(runs=[run]), pb.ReserveResponse(runs=[one_too_few]))
    claims = await client.reserve(["q"], max_tasks=4)
    assert [(claim.request_id, claim.tenant) for claim in claims] == [("one", "acme"), ("two", "acme")]
    with pytest.raises(UnexpectedAnswer):
        await client.reserve(["q"], max_tasks=4)


def in_turns(*at: tuple[int, ...]) -> list[pb.ClaimRun]:
    """Two runs of two claims, and a single one."""
    sizes = (2, 2, 1)
    return [
        pb.ClaimRun(
            task_id=run_id(number), token=100 * number, secret=SECRET, task=pb.TaskSpec(queue="q"), at=places,
            payloads=[b"%d%d" % (number, index) for index in range(size)],
        )
        for number, (size, places) in enumerate(zip(sizes, at, strict=True), 1)
    ]  # fmt: skip


async def test_claims_are_in_the_order_in_which_they_were_handed_out(
    server: ScriptedServer, client: AsyncClient
) -> None:
    server.on("Reserve", pb.ReserveResponse(runs=in_turns((0, 2), (1, 4), (3,))))
    claims = await client.reserve(["q"], max_tasks=5)
    assert [claim.payload for claim in claims] == [b"10", b"20", b"11", b"30", b"21"]
    assert claims[4].task_id == run_id(2, 1)


@pytest.mark.parametrize("looked_at", [True, False])
async def test_acks_are_answered_in_the_order_of_the_claims(
    server: ScriptedServer, client: AsyncClient, looked_at: bool
) -> None:
    server.on("Reserve", pb.ReserveResponse(runs=in_turns((0, 2), (1, 4), (3,))))
    claims = await client.reserve(["q"], max_tasks=5)
    if looked_at:
        assert len([*claims]) == 5
    stale = pb.Rejection(reason="STALE_TOKEN")

    def answer(request: pb.AckRequest) -> pb.AckResponse:
        response = ack_all(request)
        place = next(place for place, item in enumerate(request.ranges) if item.task_id == run_id(2))
        response.ranges[place].refused.add(at=1, rejection=stale)
        return response

    server.on("Ack", answer)
    outcomes = await client.ack_many(claims)
    assert [isinstance(outcome, StaleToken) for outcome in outcomes] == [False] * 4 + [True]


@pytest.mark.parametrize(
    "at", [((0, 2), (1, 3), (3,)), ((0, 2), (1, 5), (3,)), ((0,), (1, 4), (2, 3)), ((0, 1), (), ())]
)
async def test_places_that_do_not_fit_are_not_understood(
    server: ScriptedServer, client: AsyncClient, at: tuple[tuple[int, ...], ...]
) -> None:
    server.on("Reserve", pb.ReserveResponse(runs=in_turns(*at)))
    with pytest.raises(UnexpectedAnswer):
        await client.reserve(["q"], max_tasks=5)


async def test_claims_that_name_no_tasks_are_not_understood(server: ScriptedServer, client: AsyncClient) -> None:
    server.on("Reserve", pb.ReserveResponse(runs=[pb.ClaimRun(task_id="any", payloads=[b"x", b"y"])]))
    with pytest.raises(UnexpectedAnswer):
        await client.reserve(["q"], max_tasks=4)


# --- acks ---------------------------------------------------------------------------------------------------------


def refs(first_id: str, token: int, count: int, secret: int = SECRET) -> list[ClaimRef]:
    ids = later_task_ids(first_id, count)
    return [ClaimRef(item, (token + index << 64) + secret) for index, item in enumerate(ids)]


def ranges_of(request: pb.AckRequest) -> list[tuple[str, int, int, int]]:
    return [
        (claim_range.task_id, claim_range.token, claim_range.secret, claim_range.count)
        for claim_range in request.ranges
    ]


async def test_claims_that_follow_each_other_are_acked_as_a_range(server: ScriptedServer, client: AsyncClient) -> None:
    server.on("Ack", ack_all)
    claims = refs(FIRST_ID, 41, 300)
    random.Random(3).shuffle(claims)
    assert await client.ack_many(claims) == [Acked()] * 300
    assert await client.ack_many([Ack(claim) for claim in claims[:300]]) == [Acked()] * 300
    for request in server.requests["Ack"]:
        assert (len(request.items), ranges_of(request)) == (0, [(FIRST_ID, 41, SECRET, 300)])


@pytest.mark.parametrize(
    "other",
    [
        ClaimRef(task_id(0, 51), (43 << 64) + SECRET),
        ClaimRef(later_task_ids(FIRST_ID, 3)[2], (44 << 64) + SECRET),
        ClaimRef(later_task_ids(FIRST_ID, 3)[2], (43 << 64) + SECRET + 1),
        ClaimRef("id-1", (43 << 64) + SECRET),
        Ack(refs(FIRST_ID, 41, 3)[2], result=b"x"),
        Ack(refs(FIRST_ID, 41, 3)[2], follow_ups=[NewTask("q", "t")]),
    ],
    ids=["another run", "another token", "another secret", "no id", "a result", "a follow-up"],
)
async def test_what_does_not_follow_is_acked_alone(
    server: ScriptedServer, client: AsyncClient, other: ClaimRef | Ack
) -> None:
    server.on("Ack", ack_all)
    assert await client.ack_many([other, *refs(FIRST_ID, 41, 2)]) == [Acked()] * 3
    [request] = server.requests["Ack"]
    assert (len(request.items), ranges_of(request)) == (1, [(FIRST_ID, 41, SECRET, 2)])


async def test_a_claim_that_is_named_twice_is_acked_twice(server: ScriptedServer, client: AsyncClient) -> None:
    server.on("Ack", ack_all)
    assert await client.ack_many([*refs(FIRST_ID, 41, 2), *refs(FIRST_ID, 41, 2)]) == [Acked()] * 4
    [request] = server.requests["Ack"]
    assert len(request.items) + sum(claim_range.count for claim_range in request.ranges) == 4


async def test_refusals_of_a_range_are_told_to_their_claims(server: ScriptedServer, client: AsyncClient) -> None:
    stale = pb.Rejection(reason="STALE_TOKEN", message="No.")
    bad = pb.Rejection(reason="INVALID_FIELD", field="items[0].result", message="Expected items[0].result …")
    server.on(
        "Ack",
        pb.AckResponse(
            outcomes=[pb.AckOutcome(rejection=bad)],
            ranges=[  # in the order of their ids
                pb.RangeOutcome(rejection=stale),
                pb.RangeOutcome(refused=[pb.RefusedItem(at=0, rejection=stale), pb.RefusedItem(at=2, rejection=stale)]),
            ],
        ),
    )
    first, second, third = refs(FIRST_ID, 41, 3)
    others = refs(task_id(0, 1000), 41, 2)
    outcomes = await client.ack_many([third, others[0], second, Ack(refs(FIRST_ID, 99, 1)[0], b"x"), first, others[1]])
    assert [type(outcome) for outcome in outcomes] == [
        StaleToken, StaleToken, Acked, InvalidArgument, StaleToken, StaleToken,
    ]  # fmt: skip
    assert isinstance(outcomes[3], Rejected)
    assert (outcomes[3].field, outcomes[3].message) == ("items[3].result", "Expected items[3].result …")


async def test_an_answer_without_all_ranges_is_not_understood(server: ScriptedServer, client: AsyncClient) -> None:
    server.on("Ack", pb.AckResponse())
    with pytest.raises(UnexpectedAnswer):
        await client.ack_many(refs(FIRST_ID, 41, 3))


async def test_a_claim_that_does_not_fit_is_named(client: AsyncClient) -> None:
    with pytest.raises(InvalidArgument) as refused:
        await client.ack_many([*refs(FIRST_ID, 41, 2), *refs(task_id(0, 1000), 2**64, 2)])
    assert refused.value.field == "items[2].claim.token"


async def test_acks_with_many_follow_ups_are_several_calls(server: ScriptedServer, client: AsyncClient) -> None:
    """The places of refusals are those of the caller in each of them."""

    def answer(request: pb.AckRequest) -> pb.AckResponse:
        response = ack_all(request)
        response.outcomes[0].rejection.CopyFrom(pb.Rejection(reason="X", field="items[0].follow_ups[1].queue"))
        return response

    server.on("Ack", answer)
    many = [Ack(claim, follow_ups=[NewTask("q", "t")] * 100) for claim in refs(task_id(0, 5000), 7, 12)]
    outcomes = await client.ack_many([*refs(FIRST_ID, 41, 3), *many])
    assert [request.ranges[0].count if request.ranges else 0 for request in server.requests["Ack"]] == [3, 0]
    found = {index: outcome.field for index, outcome in enumerate(outcomes) if isinstance(outcome, Rejected)}
    assert found == {3: "items[3].follow_ups[1].queue", 13: "items[13].follow_ups[1].queue"}
