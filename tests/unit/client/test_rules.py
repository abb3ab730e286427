"""What a task can ask for, and what happens to it later: retries, keys, timeouts, snoozing, updates."""

import math
from collections.abc import Coroutine
from dataclasses import fields
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from holdfast.client import (
    Accepted,
    AsyncClient,
    Attempt,
    ClaimRef,
    Conflict,
    DeadLetterFilter,
    Failed,
    Failure,
    InvalidArgument,
    NewTask,
    NotWaiting,
    OutcomeUnknown,
    Released,
    RequestIdConflict,
    RetryPolicy,
    RetryShape,
    TaskState,
    TaskUpdate,
    UniqueScope,
    Updated,
    _request_ids,
    _wire,
)
from holdfast.proto.v1 import tasks_pb2 as pb
from tests.unit.client.scripted_server import Refusal, ScriptedServer

CLAIM = ClaimRef("id-1", 7)
LOST = Refusal(grpc.StatusCode.UNAVAILABLE)
ACCEPTED = pb.EnqueueResponse(outcomes=[pb.EnqueueOutcome(accepted=pb.Accepted(task_id="id-1"))])

RETRY = RetryPolicy(
    shape=RetryShape.LINEAR, base_ms=500, factor=1.5, cap_ms=60_000, jitter=0.0, non_retryable=("PaymentRefused",)
)
TASK = NewTask(
    "mail",
    "welcome",
    request_id="r-1",
    retry=RETRY,
    unique_key="user-17",
    unique_scope=UniqueScope.WHILE_WAITING,
    limit_key="acme.example",
    timeout_ms=90_000,
    ttl_ms=3_600_000,
)
SPEC = pb.TaskSpec(
    queue="mail",
    type="welcome",
    request_id="r-1",
    retry=pb.RetryPolicy(
        shape=pb.RETRY_SHAPE_LINEAR,
        base_ms=500,
        factor=1.5,
        cap_ms=60_000,
        jitter=0.0,
        non_retryable=["PaymentRefused"],
    ),
    unique_key="user-17",
    unique_scope=pb.UNIQUE_SCOPE_WHILE_WAITING,
    limit_key="acme.example",
    timeout_ms=90_000,
    ttl_ms=3_600_000,
)


def refused(reason: str, field: str = "") -> pb.Rejection:
    return pb.Rejection(reason=reason, message="No.", field=field)


# ---------------------------------------------------------------------------------------------------- new tasks


async def test_every_rule_of_a_task_is_sent(server: ScriptedServer, client: AsyncClient) -> None:
    server.on("Enqueue", ACCEPTED)
    await client.enqueue(TASK)
    [request] = server.requests["Enqueue"]
    assert request.tasks[0] == SPEC
    assert request.tasks[0].retry.HasField("jitter")


async def test_rules_come_back_as_they_were_given(server: ScriptedServer, client: AsyncClient) -> None:
    server.on("GetTask", pb.GetTaskResponse(task=pb.TaskInfo(task_id="id-1", task=SPEC)))
    server.on("Reserve", pb.ReserveResponse(claims=[pb.Claim(task_id="id-1", task=SPEC), pb.Claim(task_id="id-2")]))
    assert (await client.get_task("id-1")).task == TASK
    claimed, bare = await client.reserve(["mail"])
    assert (claimed.limit_key, claimed.unique_key, claimed.timeout_ms) == ("acme.example", "user-17", 90_000)
    assert (bare.limit_key, bare.unique_key, bare.timeout_ms) == ("", "", None)


async def test_choices_of_a_newer_server_are_unknown(server: ScriptedServer, client: AsyncClient) -> None:
    spec: Any = pb.TaskSpec(queue="q", type="t")
    spec.unique_scope = spec.retry.shape = 99
    server.on("GetTask", pb.GetTaskResponse(task=pb.TaskInfo(task_id="id-1", task=spec)))
    task = (await client.get_task("id-1")).task
    assert task is not None
    assert (task.unique_scope, task.retry) == (UniqueScope.UNKNOWN, RetryPolicy(shape=RetryShape.UNKNOWN))
    with pytest.raises(InvalidArgument) as caught:  # nobody knows what it would mean
        await client.enqueue(task)
    assert caught.value.field == "tasks[0].retry.shape"


async def test_an_empty_policy_is_still_a_policy(server: ScriptedServer, client: AsyncClient) -> None:
    server.on("Enqueue", ACCEPTED)
    await client.enqueue(NewTask("q", "t", retry=RetryPolicy()))
    assert server.requests["Enqueue"][0].tasks[0].HasField("retry")


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"timeout_ms": 2**63}, "timeout_ms"),
        ({"ttl_ms": "1"}, "ttl_ms"),
        ({"unique_key": "\ud800"}, "unique_key"),
        ({"limit_key": 5}, "limit_key"),
        ({"unique_scope": "sometimes"}, "unique_scope"),
        ({"unique_scope": UniqueScope.UNKNOWN}, "unique_scope"),
        ({"retry": {"base_ms": 1}}, "retry"),
        ({"retry": RetryPolicy(shape="sideways")}, "retry.shape"),  # type: ignore[arg-type]  # on purpose
        ({"retry": RetryPolicy(base_ms=2**63)}, "retry.base_ms"),
        ({"retry": RetryPolicy(factor="2")}, "retry.factor"),  # type: ignore[arg-type]  # on purpose
        ({"retry": RetryPolicy(cap_ms=-(2**63) - 1)}, "retry.cap_ms"),
        ({"retry": RetryPolicy(jitter=[])}, "retry.jitter"),  # type: ignore[arg-type]  # on purpose
        ({"retry": RetryPolicy(base_ms=10, cap_ms=5)}, "retry.base_ms"),
        ({"retry": RetryPolicy(non_retryable="ValueError")}, "retry.non_retryable"),
    ],
)
async def test_what_does_not_fit_is_refused_by_name_and_not_sent(
    server: ScriptedServer, client: AsyncClient, given: dict[str, Any], field: str
) -> None:
    server.on("Enqueue", ACCEPTED)
    accepted, misfit = await client.enqueue_many([NewTask("q", "t"), NewTask("q", "t", **given)])
    assert accepted == Accepted("id-1")
    assert isinstance(misfit, InvalidArgument)
    assert misfit.field == f"tasks[1].{field}"
    assert len(server.requests["Enqueue"][0].tasks) == 1


NUMBERS = (FieldDescriptor.TYPE_INT64, FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_DOUBLE)


def numbers_of(kind: type[Message]) -> list[str]:
    return [
        field_name.name
        for field_name in kind.DESCRIPTOR.fields
        if field_name.type in NUMBERS and not field_name.is_repeated
    ]


@pytest.mark.parametrize("value", [True, False])
async def test_true_is_no_number_of_a_task(server: ScriptedServer, client: AsyncClient, value: Any) -> None:
    """Protobuf takes it for 1 and warns, which only tests hear: there it is another refusal."""
    tasks: dict[str, Any] = {name: NewTask("q", "t", **{name: value}) for name in numbers_of(pb.TaskSpec)}
    for name in numbers_of(pb.RetryPolicy):
        tasks[f"retry.{name}"] = NewTask("q", "t", retry=RetryPolicy(**{name: value}))
    assert len(tasks) == 13
    server.on("Enqueue", ACCEPTED)
    accepted, *misfits = await client.enqueue_many([NewTask("q", "t"), *tasks.values()])
    assert accepted == Accepted("id-1")
    for index, (field, misfit) in enumerate(zip(tasks, misfits, strict=True), 1):
        assert isinstance(misfit, InvalidArgument)
        assert (misfit.field, "number" in misfit.message) == (f"tasks[{index}].{field}", True)
    assert len(server.requests["Enqueue"][0].tasks) == 1


async def test_true_is_no_number_of_other_calls(server: ScriptedServer, client: AsyncClient) -> None:
    claim = ClaimRef("id-1", 1)
    calls: list[tuple[Coroutine[Any, Any, object], str]] = [
        (client.update_task("id-1", priority=True), "items[0].priority"),
        (client.update_task("id-1", run_at_ms=True), "items[0].run_at_ms"),
        (client.update_task("id-1", delay_ms=True), "items[0].delay_ms"),
        (client.fail(claim, retry_delay_ms=True), "items[0].retry_delay_ms"),
        (client.fail(claim, retry_at_ms=True), "items[0].retry_at_ms"),
        (client.extend(claim, True), "items[0].lease_ms"),
        (client.release(claim, delay_ms=True), "delay_ms"),
        (client.reserve(["q"], max_tasks=True), "max_tasks"),
        (client.reserve(["q"], max_tasks_by_queue={"q": True}), "max_tasks_by_queue"),
        (client.list_queues(page_size=True), "page_size"),
        (client.list_dead_letters("q", where=DeadLetterFilter(died_from_ms=True)), "filter.died_from_ms"),
        (client.preview_schedule("@daily", after_ms=True), "after_ms"),
        (client.set_queue("q", spread=True), "spread"),
        (client.set_queue("q", pin=[1, True]), "pin"),
    ]
    for call, field in calls:
        with pytest.raises(InvalidArgument, match="of another type") as caught:
            await call
        assert caught.value.field == field
    assert not server.requests


async def test_what_only_a_server_can_judge_arrives_there_unchanged(
    server: ScriptedServer, client: AsyncClient
) -> None:
    """So that it is refused by name, item by item, and its neighbours are not disturbed."""
    outcomes = [
        pb.EnqueueOutcome(rejection=refused("OUT_OF_RANGE", "tasks[0].timeout_ms")),
        pb.EnqueueOutcome(accepted=pb.Accepted(task_id="id-2")),
    ]
    server.on("Enqueue", pb.EnqueueResponse(outcomes=outcomes))
    wrong = NewTask("q", "t", timeout_ms=-1, ttl_ms=0, retry=RetryPolicy(base_ms=-5, factor=math.nan, jitter=math.inf))
    bad, good = await client.enqueue_many([wrong, NewTask("q", "t")])
    assert isinstance(bad, InvalidArgument)
    assert bad.field == "tasks[0].timeout_ms"
    assert good == Accepted("id-2")
    spec = server.requests["Enqueue"][0].tasks[0]
    assert (spec.timeout_ms, spec.ttl_ms, spec.retry.base_ms, spec.retry.jitter) == (-1, 0, -5, math.inf)
    assert spec.HasField("ttl_ms")
    assert math.isnan(spec.retry.factor)


def test_no_rule_is_forgotten_between_values_and_messages() -> None:
    """Whoever adds a field to the wire meets this test."""
    assert {field.name for field in fields(NewTask)} == {field.name for field in pb.TaskSpec.DESCRIPTOR.fields}
    assert {field.name for field in fields(RetryPolicy)} == {field.name for field in pb.RetryPolicy.DESCRIPTOR.fields}


def test_the_size_of_a_request_is_never_underestimated() -> None:
    task = NewTask(
        "q",
        "t",
        unique_key="ä" * 50,
        limit_key="\N{SNOWMAN}" * 100,
        retry=RetryPolicy(
            shape=RetryShape.FIXED,
            base_ms=2**62,
            factor=1.1,
            cap_ms=2**62,
            jitter=0.1,
            non_retryable=["\N{SNOWMAN}" * 40] * 9,
        ),
        unique_scope=UniqueScope.WHILE_WAITING,
        priority=2**62,
        run_at_ms=2**62,
        max_attempts=2**62,
        max_claims=2**62,
        result_ttl_ms=2**62,
        timeout_ms=2**62,
        ttl_ms=2**62,
    )
    request = _wire.enqueue_request([task])
    _request_ids.add_automatic_keys(request, [task], 2**62, lambda queue: 2**31)
    assert request.ByteSize() <= _wire.approximate_bytes(task)


# --------------------------------------------------------------------------------------------------- duplicates


def duplicate(state: pb.TaskState = pb.TASK_STATE_UNSPECIFIED) -> pb.EnqueueResponse:
    accepted = pb.Accepted(task_id="id-9", duplicate=True, state=state)
    return pb.EnqueueResponse(outcomes=[pb.EnqueueOutcome(accepted=accepted)])


async def test_a_duplicate_says_what_became_of_the_first(server: ScriptedServer, client: AsyncClient) -> None:
    server.on("Enqueue", duplicate(pb.TASK_STATE_SUCCEEDED), duplicate())
    mine = NewTask("q", "t", request_id="r-1")
    assert await client.enqueue(mine) == Accepted("id-9", duplicate=True, state=TaskState.SUCCEEDED)
    assert await client.enqueue(mine) == Accepted("id-9", duplicate=True, state=None)


async def test_a_duplicate_by_its_unique_key_is_one_also_without_a_request_id(
    server: ScriptedServer, client: AsyncClient
) -> None:
    """The client makes a request id up for both: without a key, a duplicate can only be its own repetition."""
    server.on("Enqueue", duplicate(pb.TASK_STATE_CLAIMED))
    keyed = await client.enqueue(NewTask("q", "t", unique_key="k"))
    assert keyed == Accepted("id-9", duplicate=True, state=TaskState.CLAIMED)
    assert await client.enqueue(NewTask("q", "t")) == Accepted("id-9")
    assert all(request.tasks[0].request_id.startswith("~") for request in server.requests["Enqueue"])


async def test_the_same_request_id_with_other_content_is_a_conflict(
    server: ScriptedServer, client: AsyncClient
) -> None:
    conflict = pb.EnqueueOutcome(rejection=refused("REQUEST_ID_CONFLICT", "tasks[0].request_id"))
    server.on("Enqueue", pb.EnqueueResponse(outcomes=[conflict]))
    with pytest.raises(RequestIdConflict) as caught:
        await client.enqueue(NewTask("q", "t", request_id="r-1"))
    assert isinstance(caught.value, Conflict)
    assert (caught.value.field, caught.value.retry_after_ms) == ("tasks[0].request_id", 0)
    assert len(server.requests["Enqueue"]) == 1


# ----------------------------------------------------------------------------------------------- failing, snoozing


async def test_fail_with_a_time_for_the_next_attempt(server: ScriptedServer, client: AsyncClient) -> None:
    failed = pb.FailOutcome(failed=pb.Failed(state=pb.TASK_STATE_RETRY_PENDING, retry_at_ms=5_000))
    server.on("Fail", pb.FailResponse(outcomes=[failed]))
    assert await client.fail(CLAIM, retry_at_ms=5_000) == Failed(TaskState.RETRY_PENDING, 5_000)
    await client.fail_many([Failure(CLAIM, retry_at_ms=0)])
    first, second = (request.items[0] for request in server.requests["Fail"])
    assert (first.retry_at_ms, first.HasField("retry_delay_ms")) == (5_000, False)
    assert (second.retry_at_ms, second.HasField("retry_at_ms")) == (0, True)


async def test_two_times_for_the_next_attempt_are_refused(server: ScriptedServer, client: AsyncClient) -> None:
    with pytest.raises(InvalidArgument) as caught:
        await client.fail_many([Failure(CLAIM), Failure(CLAIM, retry_at_ms=1, retry_delay_ms=1)])
    assert caught.value.field == "items[1].retry_at_ms"
    assert not server.requests


async def test_snooze(server: ScriptedServer, client: AsyncClient) -> None:
    delayed = pb.ReleaseOutcome(released=pb.Released(state=pb.TASK_STATE_DELAYED))
    server.on("Release", pb.ReleaseResponse(outcomes=[delayed]))
    assert await client.release(CLAIM, delay_ms=60_000) == Released(TaskState.DELAYED)
    await client.release_many([CLAIM], delay_ms=-1)  # for the server to refuse
    await client.release(CLAIM)
    assert [request.delay_ms for request in server.requests["Release"]] == [60_000, -1, 0]
    with pytest.raises(InvalidArgument) as caught:
        await client.release(CLAIM, delay_ms=2**63)
    assert caught.value.field == "delay_ms"


# ------------------------------------------------------------------------------------------------------ updates


async def test_update_tasks(server: ScriptedServer, client: AsyncClient) -> None:
    server.on(
        "UpdateTasks",
        pb.UpdateTasksResponse(
            outcomes=[
                pb.UpdateOutcome(updated=pb.Updated(state=pb.TASK_STATE_READY)),
                pb.UpdateOutcome(updated=pb.Updated(state=pb.TASK_STATE_DELAYED)),
                pb.UpdateOutcome(rejection=refused("TASK_NOT_WAITING")),
            ]
        ),
    )
    items = [TaskUpdate("a", priority=0), TaskUpdate("b", run_at_ms=17), TaskUpdate("c", priority=9, delay_ms=0)]
    ready, delayed, claimed = await client.update_tasks(items)
    assert (ready, delayed) == (Updated(TaskState.READY), Updated(TaskState.DELAYED))
    assert isinstance(claimed, NotWaiting)
    [request] = server.requests["UpdateTasks"]
    assert list(request.items) == [
        pb.UpdateItem(task_id="a", priority=0),
        pb.UpdateItem(task_id="b", run_at_ms=17),
        pb.UpdateItem(task_id="c", priority=9, delay_ms=0),
    ]
    assert request.items[2].WhichOneof("start") == "delay_ms"
    assert await client.update_tasks([]) == []


async def test_update_one_task(server: ScriptedServer, client: AsyncClient) -> None:
    server.on(
        "UpdateTasks",
        pb.UpdateTasksResponse(outcomes=[pb.UpdateOutcome(updated=pb.Updated(state=pb.TASK_STATE_RETRY_PENDING))]),
        pb.UpdateTasksResponse(outcomes=[pb.UpdateOutcome(rejection=refused("TASK_FINISHED"))]),
    )
    assert await client.update_task("a", priority=3, run_at_ms=5) == Updated(TaskState.RETRY_PENDING)
    with pytest.raises(Conflict):
        await client.update_task("a", delay_ms=1)
    assert [request.items[0] for request in server.requests["UpdateTasks"]] == [
        pb.UpdateItem(task_id="a", priority=3, run_at_ms=5),
        pb.UpdateItem(task_id="a", delay_ms=1),
    ]


@pytest.mark.parametrize(
    ("item", "field"),
    [
        (TaskUpdate("a", run_at_ms=1, delay_ms=1), "items[1].run_at_ms"),
        (TaskUpdate("a", priority=2**63), "items[1].priority"),
        (TaskUpdate(7), "items[1].task_id"),  # type: ignore[arg-type]  # on purpose
        ("a", "items[1]"),
    ],
)
async def test_an_update_that_does_not_fit_is_refused(
    server: ScriptedServer, client: AsyncClient, item: TaskUpdate, field: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        await client.update_tasks([TaskUpdate("b"), item])
    assert caught.value.field == field
    assert not server.requests


async def test_an_update_is_repeated_and_after_a_refusal_of_the_second_it_is_unknown(
    server: ScriptedServer, client: AsyncClient
) -> None:
    busy = pb.UpdateOutcome(rejection=pb.Rejection(reason="OVERLOADED", message="Busy.", retry_after_ms=1))
    server.on("UpdateTasks", LOST, pb.UpdateTasksResponse(outcomes=[busy]))
    with pytest.raises(OutcomeUnknown):
        await client.update_task("a", priority=1)
    assert len(server.requests["UpdateTasks"]) == 2


# ---------------------------------------------------------------------------------------------------- task info


async def test_what_a_task_is_and_was(server: ScriptedServer, client: AsyncClient) -> None:
    attempt = pb.Attempt(
        worker="w", claimed_at_ms=1, ended_at_ms=2, how="TIMED_OUT", error_type="TaskTimeout", error_message="too long"
    )
    full = pb.TaskInfo(
        task_id="id-1", attempts=[attempt], type="t", tenant="acme", limit_key="l", unique_key="u", timeout_ms=5,
        start_by_ms=6,
    )  # fmt: skip
    server.on("GetDeadLetter", pb.GetDeadLetterResponse(task=full), pb.GetDeadLetterResponse(task=pb.TaskInfo()))
    info = await client.get_dead_letter("id-1")
    assert info.attempts == (
        Attempt(
            worker="w", claimed_at_ms=1, ended_at_ms=2, how="TIMED_OUT", error_type="TaskTimeout",
            error_message="too long",
        ),
    )  # fmt: skip
    assert (info.type, info.tenant, info.limit_key, info.unique_key) == ("t", "acme", "l", "u")
    assert (info.timeout_ms, info.start_by_ms) == (5, 6)
    bare = await client.get_dead_letter("id-1")
    assert (bare.attempts, bare.timeout_ms, bare.start_by_ms) == ((), None, None)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"payload": "text"}, "Expected tasks[0].payload to hold bytes, but it is of another type."),
        ({"headers": {"a": 1}}, "Expected tasks[0].headers to hold texts by names that are texts, but"),
        ({"headers": 5}, "Expected tasks[0].headers to hold texts by names that are texts, but"),
        ({"priority": math.nan}, "Expected tasks[0].priority to hold a whole number, but it is of another type."),
        (
            {"unique_scope": "foo"},
            "Expected tasks[0].unique_scope to be one of until_done, while_waiting, but got 'foo'.",
        ),
        (
            {"retry": RetryPolicy(shape="foo")},  # type: ignore[arg-type]  # on purpose
            "Expected tasks[0].retry.shape to be one of exponential, linear, fixed, but got 'foo'.",
        ),
        (
            {"retry": RetryPolicy(non_retryable=[3])},  # type: ignore[list-item]  # on purpose
            "Expected tasks[0].retry.non_retryable to hold a list of texts, but it is of another type.",
        ),
    ],
)
async def test_what_a_field_holds_is_told_where_a_value_does_not_fit(
    server: ScriptedServer, client: AsyncClient, fields: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        await client.enqueue(NewTask("q", "t", **fields))
    assert str(caught.value).startswith(sentence)
    assert not server.requests
