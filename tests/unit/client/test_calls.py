"""Each call of the client: what it puts on the wire, and what it makes of the answer."""

import asyncio
import time
from typing import Any, cast

import pytest

from holdfast.client import (
    Accepted,
    Ack,
    Acked,
    AsyncClient,
    Cancelled,
    ClaimedTask,
    ClaimRef,
    DeadLetterDone,
    DeadLetterPage,
    Extended,
    Extension,
    Failed,
    Failure,
    Histogram,
    InvalidArgument,
    NewTask,
    NotDead,
    NotFound,
    QueuePage,
    QueueStats,
    Rejected,
    Released,
    StaleToken,
    TaskError,
    TaskFinished,
    TaskInfo,
    TaskState,
    TypeLatency,
    UnexpectedAnswer,
    _wire,
)
from holdfast.proto.v1 import tasks_pb2 as pb
from tests.unit.client.scripted_server import ScriptedServer

CLAIM = ClaimRef("id-1", (2**64 - 1) << 64 | 3)
STALE = pb.Rejection(reason="STALE_TOKEN", message="Expected the current token.", field="items[1]", retry_after_ms=0)

FULL_TASK = NewTask(
    "mail",
    "welcome",
    b"\x00\xff",
    headers={"content-type": "application/json", "traceparent": "00-ab"},
    priority=0,
    tenant="acme",
    request_id="r-1",
    request_id_ttl_ms=5_000,
    run_at_ms=1_893_456_000_000,
    max_attempts=3,
    max_claims=7,
    result_ttl_ms=0,
)
FULL_SPEC = pb.TaskSpec(
    queue="mail",
    type="welcome",
    payload=b"\x00\xff",
    headers={"content-type": "application/json", "traceparent": "00-ab"},
    priority=0,
    tenant="acme",
    request_id="r-1",
    request_id_ttl_ms=5_000,
    run_at_ms=1_893_456_000_000,
    max_attempts=3,
    max_claims=7,
    result_ttl_ms=0,
)


async def test_enqueue_sends_every_field_that_is_set(server: ScriptedServer, client: AsyncClient) -> None:
    accepted = pb.EnqueueOutcome(accepted=pb.Accepted(task_id="id-1", duplicate=True))
    server.on("Enqueue", pb.EnqueueResponse(outcomes=[accepted]))
    assert await client.enqueue(FULL_TASK) == Accepted("id-1", duplicate=True)
    assert server.requests["Enqueue"] == [pb.EnqueueRequest(tasks=[FULL_SPEC])]


async def test_enqueue_leaves_the_defaults_to_the_server(server: ScriptedServer, client: AsyncClient) -> None:
    server.on("Enqueue", pb.EnqueueResponse(outcomes=[pb.EnqueueOutcome(accepted=pb.Accepted(task_id="id-1"))]))
    await client.enqueue(NewTask("mail", "welcome"))
    await client.enqueue(NewTask("mail", "welcome", delay_ms=0))
    bare, delayed = (request.tasks[0] for request in server.requests["Enqueue"])
    for spec in (bare, delayed):  # but the id that lets the client repeat the call
        spec.ClearField("request_id")
        spec.ClearField("request_id_ttl_ms")
    assert bare == pb.TaskSpec(queue="mail", type="welcome")
    assert delayed == pb.TaskSpec(queue="mail", type="welcome", delay_ms=0)
    assert delayed.WhichOneof("start") == "delay_ms"


def _accept_all_but_bad_priorities(request: pb.EnqueueRequest) -> pb.EnqueueResponse:
    response = pb.EnqueueResponse()
    for place, spec in enumerate(request.tasks):
        field = f"tasks[{place}].priority"
        if spec.priority > 9:
            rejection = pb.Rejection(reason="OUT_OF_RANGE", message=f"Expected {field} from 0 to 9.", field=field)
            response.outcomes.add(rejection=rejection)
        else:
            response.outcomes.add(accepted=pb.Accepted(task_id=spec.type))
    return response


async def test_single_enqueues_at_the_same_time_share_a_request(server: ScriptedServer, client: AsyncClient) -> None:
    server.on("Enqueue", _accept_all_but_bad_priorities)
    tasks = [NewTask("mail", f"type-{n}", priority=99 if n == 7 else 5) for n in range(20)]
    outcomes = await asyncio.gather(*map(client.enqueue, tasks), return_exceptions=True)
    assert len(server.requests["Enqueue"]) < 5
    refused = outcomes.pop(7)
    assert isinstance(refused, InvalidArgument)
    # Not the place in a request that its caller knows nothing of.
    assert (refused.field, refused.message) == ("tasks[0].priority", "Expected tasks[0].priority from 0 to 9.")
    accepted = [outcome.task_id for outcome in outcomes if isinstance(outcome, Accepted)]
    assert accepted == [task.type for task in tasks if task.priority == 5]


async def test_what_must_not_be_repeated_or_has_its_own_deadline_shares_no_request(
    server: ScriptedServer, client: AsyncClient
) -> None:
    server.on("Enqueue", _accept_all_but_bad_priorities)
    without_id = [client.enqueue(NewTask("mail", "t", request_id="")) for _ in range(3)]
    in_a_hurry = [client.enqueue(NewTask("mail", "t"), timeout_s=5) for _ in range(3)]
    await asyncio.gather(*without_id, *in_a_hurry)
    assert [len(request.tasks) for request in server.requests["Enqueue"]] == [1] * 6


async def test_enqueue_many_answers_per_item_in_order(server: ScriptedServer, client: AsyncClient) -> None:
    bad = pb.Rejection(reason="OUT_OF_RANGE", message="Expected 0-9.", field="tasks[1].priority")
    busy = pb.Rejection(reason="OVERLOADED", message="Too much is waiting.", retry_after_ms=250)
    server.on(
        "Enqueue",
        pb.EnqueueResponse(
            outcomes=[
                pb.EnqueueOutcome(accepted=pb.Accepted(task_id="id-1")),
                pb.EnqueueOutcome(rejection=bad),
                pb.EnqueueOutcome(rejection=busy),
            ]
        ),
    )
    first, second, third = await client.enqueue_many([NewTask("q", "t", priority=n) for n in (9, 10, 0)])
    assert first == Accepted("id-1")
    assert isinstance(second, InvalidArgument)
    assert (second.reason, second.message, second.field) == ("OUT_OF_RANGE", "Expected 0-9.", "tasks[1].priority")
    assert isinstance(third, Rejected)
    assert (third.reason, third.retry_after_ms) == ("OVERLOADED", 250)


async def test_a_refused_single_item_raises_its_typed_error(server: ScriptedServer, client: AsyncClient) -> None:
    rejection = pb.Rejection(reason="OUT_OF_RANGE", message="Expected 0-9.", field="tasks[0].priority")
    server.on("Enqueue", pb.EnqueueResponse(outcomes=[pb.EnqueueOutcome(rejection=rejection)]))
    with pytest.raises(InvalidArgument) as caught:
        await client.enqueue(NewTask("q", "t", priority=10))
    assert caught.value.field == "tasks[0].priority"


async def test_empty_batches_send_nothing(client: AsyncClient) -> None:
    """The server knows no call at all, so that anything sent would fail."""
    assert await client.enqueue_many([]) == []
    assert await client.ack_many([]) == []
    assert await client.fail_many([]) == []
    assert await client.extend_many([]) == []
    assert await client.release_many([]) == []
    assert await client.cancel_many([]) == []
    assert await client.queue_stats_many([]) == []
    assert await client.retry_dead_letters([]) == []
    assert await client.discard_dead_letters([]) == []


async def test_reserve(server: ScriptedServer, client: AsyncClient) -> None:
    claim = pb.Claim(
        task_id="id-1",
        token=2**64 - 1,
        secret=3,
        task=FULL_SPEC,
        lease_ms=5_000,
        attempt=2,
        claims=3,
        enqueued_at_ms=17,
    )
    server.on("Reserve", pb.ReserveResponse(claims=[claim, pb.Claim(task_id="id-2")]))
    before_s = time.monotonic()
    full, bare = await client.reserve(["a", "b"], max_tasks=2, lease_ms=5_000, wait_ms=1, worker="w")
    after_s = time.monotonic()
    assert full == ClaimedTask(
        task_id="id-1",
        token=CLAIM.token,
        queue="mail",
        type="welcome",
        payload=b"\x00\xff",
        headers=FULL_TASK.headers,
        priority=0,
        tenant="acme",
        request_id="r-1",
        attempt=2,
        claims=3,
        max_attempts=3,
        enqueued_at_ms=17,
        lease_ms=5_000,
        lease_ends_s=full.lease_ends_s,
    )
    assert before_s <= full.lease_ends_s - 5 <= after_s
    assert (bare.priority, bare.max_attempts, bare.headers) == (None, None, {})
    [request] = server.requests["Reserve"]
    assert request.claim_request_id
    assert request == pb.ReserveRequest(
        queues=["a", "b"],
        max_tasks=2,
        lease_ms=5_000,
        wait_ms=1,
        worker="w",
        takes_runs=True,
        claim_request_id=request.claim_request_id,
    )


async def test_reserve_draws_a_new_request_id_for_each_call(server: ScriptedServer, client: AsyncClient) -> None:
    server.on("Reserve", pb.ReserveResponse())
    assert await client.reserve(["q"]) == []
    assert await client.reserve(["q"]) == []
    await client.reserve(["q"], claim_request_id="mine")
    first, second, third = (request.claim_request_id for request in server.requests["Reserve"])
    assert first != second
    assert third == "mine"


async def test_ack_many_takes_claims_and_results(server: ScriptedServer, client: AsyncClient) -> None:
    follow_up = pb.Acked(follow_ups=[pb.Accepted(task_id="id-9")])
    server.on(
        "Ack",
        pb.AckResponse(
            outcomes=[
                pb.AckOutcome(acked=pb.Acked()),
                pb.AckOutcome(rejection=STALE),
                pb.AckOutcome(acked=follow_up),
            ]
        ),
    )
    claimed = ClaimedTask(task_id="id-2", token=2 * 2**64 + 5, queue="q", type="t")
    outcomes = await client.ack_many([CLAIM, claimed, Ack(claimed, b"", [NewTask("q", "next")])])
    assert outcomes[0] == Acked()
    assert isinstance(outcomes[1], StaleToken)
    assert outcomes[1].field == "items[1]"
    assert outcomes[2] == Acked((Accepted("id-9"),))
    first, second, third = server.requests["Ack"][0].items
    assert first == pb.AckItem(claim=pb.ClaimRef(task_id="id-1", token=2**64 - 1, secret=3))
    assert second == pb.AckItem(claim=pb.ClaimRef(task_id="id-2", token=2, secret=5))
    assert third == pb.AckItem(claim=second.claim, result=b"", follow_ups=[pb.TaskSpec(queue="q", type="next")])
    assert third.HasField("result")
    assert not first.HasField("result")


async def test_ack_many_makes_several_calls_of_many_follow_ups(server: ScriptedServer, client: AsyncClient) -> None:
    """A server takes 1,000 follow-ups in one call: nobody who has more of them in all is refused for it."""
    made = {"id-1": 100, "id-2": 0}

    def answer(request: pb.AckRequest) -> pb.AckResponse:
        refused = pb.Rejection(reason="INVALID_FIELD", message="Expected items[1] otherwise.", field="items[1].result")
        outcomes = [pb.AckOutcome(acked=pb.Acked(follow_ups=[pb.Accepted(task_id="f")])) for _ in request.items]
        outcomes[1].rejection.CopyFrom(refused)
        return pb.AckResponse(outcomes=outcomes)

    server.on("Ack", answer, answer)
    follow_ups = [NewTask("q", "next")]
    items = [Ack(ClaimRef(f"id-{1 + n % 2}", 2**64 + 1), b"", follow_ups * made[f"id-{1 + n % 2}"]) for n in range(40)]
    outcomes = await client.ack_many(items)
    requests = server.requests["Ack"]
    assert [sum(len(item.follow_ups) for item in request.items) for request in requests] == [1000, 1000]
    assert [item for request in requests for item in request.items] == list(_wire.ack_request(items).items)
    assert [index for index, outcome in enumerate(outcomes) if isinstance(outcome, Rejected)] == [1, 21]
    assert isinstance(outcomes[21], Rejected)
    assert (outcomes[21].field, outcomes[21].message) == ("items[21].result", "Expected items[21] otherwise.")


async def test_fail(server: ScriptedServer, client: AsyncClient) -> None:
    server.on(
        "Fail",
        pb.FailResponse(outcomes=[pb.FailOutcome(failed=pb.Failed(state=pb.TASK_STATE_RETRY_PENDING, retry_at_ms=9))]),
        pb.FailResponse(
            outcomes=[
                pb.FailOutcome(failed=pb.Failed(state=pb.TASK_STATE_DEAD)),
                pb.FailOutcome(rejection=STALE),
            ]
        ),
    )
    error = TaskError("ValueError", "no", "Traceback …")
    assert await client.fail(CLAIM, error, retry_delay_ms=0) == Failed(TaskState.RETRY_PENDING, 9)
    dead, stale = await client.fail_many([Failure(CLAIM, dead=True), Failure(CLAIM)])
    assert dead == Failed(TaskState.DEAD, None)
    assert isinstance(stale, StaleToken)
    claim = pb.ClaimRef(task_id="id-1", token=2**64 - 1, secret=3)
    wire_error = pb.TaskError(type="ValueError", message="no", traceback="Traceback …")
    assert server.requests["Fail"][0].items[0] == pb.FailItem(claim=claim, error=wire_error, retry_delay_ms=0)
    assert server.requests["Fail"][1].items[0].dead
    assert not server.requests["Fail"][1].items[1].HasField("retry_delay_ms")


async def test_a_lease_is_counted_from_when_the_claim_was_made(server: ScriptedServer, client: AsyncClient) -> None:
    """However long the call waited before that, at a broker or at a router."""
    claim = pb.Claim(task_id="id-1", lease_ms=5_000)
    server.on("Reserve", pb.ReserveResponse(claims=[claim], waited_ms=8_000, routed_ms=20_000))
    before_s = time.monotonic()
    [task] = await client.reserve(["q"])
    assert before_s + 28 <= task.lease_ends_s - 5 <= time.monotonic() + 28
    assert task.lease_ms == 5_000


async def test_extend(server: ScriptedServer, client: AsyncClient) -> None:
    extended = pb.Extended(lease_ms=2_000, cancel_requested=True, draining=True)
    server.on("Extend", pb.ExtendResponse(outcomes=[pb.ExtendOutcome(extended=extended)]))
    before_s = time.monotonic()
    outcome = await client.extend(CLAIM, 2_000)
    assert outcome == Extended(2_000, outcome.lease_ends_s, cancel_requested=True, draining=True)
    assert before_s <= outcome.lease_ends_s - 2 <= time.monotonic()
    assert await client.extend_many([Extension(CLAIM, 5_000)])
    assert [request.items[0].lease_ms for request in server.requests["Extend"]] == [2_000, 5_000]


async def test_an_extension_is_counted_from_when_it_was_made(server: ScriptedServer, client: AsyncClient) -> None:
    extended = pb.Extended(lease_ms=2_000, waited_ms=300, ends_attempt=True)
    server.on("Extend", pb.ExtendResponse(outcomes=[pb.ExtendOutcome(extended=extended)], routed_ms=4_000))
    before_s = time.monotonic()
    outcome = await client.extend(CLAIM, 5_000)
    assert before_s + 4.3 <= outcome.lease_ends_s - 2 <= time.monotonic() + 4.3
    assert (outcome.lease_ms, outcome.ends_attempt) == (2_000, True)


async def test_release(server: ScriptedServer, client: AsyncClient) -> None:
    released = pb.ReleaseOutcome(released=pb.Released(state=pb.TASK_STATE_READY))
    server.on("Release", pb.ReleaseResponse(outcomes=[released]))
    assert await client.release(CLAIM) == Released(TaskState.READY)
    assert server.requests["Release"][0].claims[0].token == 2**64 - 1


async def test_cancel(server: ScriptedServer, client: AsyncClient) -> None:
    server.on(
        "Cancel",
        pb.CancelResponse(
            outcomes=[
                pb.CancelOutcome(cancelled=pb.Cancelled(state=pb.TASK_STATE_CLAIMED)),
                pb.CancelOutcome(rejection=pb.Rejection(reason="TASK_FINISHED", message="It is SUCCEEDED.")),
                pb.CancelOutcome(rejection=pb.Rejection(reason="TASK_NOT_FOUND", message="There is none.")),
            ]
        ),
    )
    first, second, third = await client.cancel_many(["a", "b", "c"])
    assert first == Cancelled(TaskState.CLAIMED)
    assert isinstance(second, TaskFinished)
    assert isinstance(third, NotFound)
    assert list(server.requests["Cancel"][0].task_ids) == ["a", "b", "c"]


async def test_get_task(server: ScriptedServer, client: AsyncClient) -> None:
    running = pb.TaskInfo(
        task_id="id-1",
        state=pb.TASK_STATE_CLAIMED,
        queue="mail",
        task=FULL_SPEC,
        priority=0,
        failures=1,
        max_attempts=3,
        claims=2,
        max_claims=7,
        enqueued_at_ms=10,
        changed_at_ms=20,
        lease_expires_at_ms=30,
        worker="w",
        cancel_requested=True,
        last_error=pb.TaskError(type="E", message="m", traceback="t"),
    )
    newer = cast(pb.TaskState, 99)
    done = pb.TaskInfo(task_id="id-1", state=newer, queue="mail", result=b"", purge_at_ms=5)
    server.on("GetTask", pb.GetTaskResponse(task=running), pb.GetTaskResponse(task=done), pb.GetTaskResponse())
    assert await client.get_task("id-1") == TaskInfo(
        task_id="id-1",
        state=TaskState.CLAIMED,
        queue="mail",
        task=FULL_TASK,
        failures=1,
        max_attempts=3,
        claims=2,
        max_claims=7,
        enqueued_at_ms=10,
        changed_at_ms=20,
        lease_expires_at_ms=30,
        worker="w",
        cancel_requested=True,
        last_error=TaskError("E", "m", "t"),
    )
    finished = await client.get_task("id-1")
    assert (finished.state, finished.task, finished.result) == (TaskState.UNKNOWN, None, b"")
    with pytest.raises(UnexpectedAnswer):
        await client.get_task("id-1")


async def test_queue_stats(server: ScriptedServer, client: AsyncClient) -> None:
    special = ("queue", "paused", "dead_alert", "latencies")
    names = (name for name in pb.QueueCounts.DESCRIPTOR.fields_by_name if name not in special)
    numbers: dict[str, Any] = {name: number for number, name in enumerate(names, 1)}
    latency = pb.TypeLatency(
        type="t", ready_to_claim=[1, 2], claim_to_ack=[0] * 25 + [3], ready_to_claim_ms_total=4, claim_to_ack_ms_total=5
    )
    missing = pb.Rejection(reason="QUEUE_NOT_FOUND", message="There is no such queue.")
    server.on(
        "QueueStats",
        pb.QueueStatsResponse(
            outcomes=[
                pb.QueueStatsOutcome(
                    counts=pb.QueueCounts(queue="mail", paused=True, dead_alert=True, latencies=[latency], **numbers)
                ),
                pb.QueueStatsOutcome(rejection=missing),
            ]
        ),
        pb.QueueStatsResponse(outcomes=[pb.QueueStatsOutcome(rejection=missing)]),
    )
    found, refused = await client.queue_stats_many(["mail", "nope"])
    took = TypeLatency("t", Histogram((1, 2), 4), Histogram((*[0] * 25, 3), 5))
    assert found == QueueStats(queue="mail", paused=True, dead_alert=True, latencies=(took,), **numbers)
    assert isinstance(refused, NotFound)
    with pytest.raises(NotFound):
        await client.queue_stats("nope")


async def test_dead_letters(server: ScriptedServer, client: AsyncClient) -> None:
    dead = pb.TaskInfo(task_id="id-1", state=pb.TASK_STATE_DEAD, queue="mail", dead_reason="ATTEMPTS_SPENT")
    info = TaskInfo(task_id="id-1", state=TaskState.DEAD, queue="mail", dead_reason="ATTEMPTS_SPENT")
    done = pb.DeadLetterOutcome(done=pb.DeadLetterDone())
    alive = pb.DeadLetterOutcome(rejection=pb.Rejection(reason="NOT_DEAD", message="It is READY."))
    server.on("ListDeadLetters", pb.ListDeadLettersResponse(tasks=[dead], next_page_token="more"))
    server.on("GetDeadLetter", pb.GetDeadLetterResponse(task=dead))
    server.on("RetryDeadLetters", pb.RetryDeadLettersResponse(outcomes=[done]))
    server.on("DiscardDeadLetters", pb.DiscardDeadLettersResponse(outcomes=[done, alive]))
    assert await client.list_dead_letters("mail", page_size=1, page_token="x") == DeadLetterPage((info,), "more")
    assert server.requests["ListDeadLetters"] == [pb.ListDeadLettersRequest(queue="mail", page_size=1, page_token="x")]
    assert await client.get_dead_letter("id-1") == info
    assert await client.retry_dead_letter("id-1") == DeadLetterDone()
    gone, refused = await client.discard_dead_letters(["id-1", "id-2"])
    assert gone == DeadLetterDone()
    assert isinstance(refused, NotDead)


@pytest.mark.parametrize(
    ("task", "field"),
    [
        (NewTask("q", "t", priority=2**63), "tasks[1].priority"),
        (NewTask("q", "t", delay_ms=-(2**63) - 1), "tasks[1].delay_ms"),
        (NewTask("q", "t", request_id="\ud800"), "tasks[1].request_id"),
        (NewTask("q", "t", "text"), "tasks[1].payload"),  # type: ignore[arg-type]  # on purpose
        (NewTask("q", "t", headers={"n": 1}), "tasks[1].headers"),  # type: ignore[dict-item]  # on purpose
        (NewTask("q", "t", run_at_ms=1, delay_ms=1), "tasks[1].run_at_ms"),
        ({"queue": "q"}, "tasks[1]"),
    ],
)
async def test_values_that_do_not_fit_are_refused_by_name_and_not_sent(
    server: ScriptedServer, client: AsyncClient, task: NewTask, field: str
) -> None:
    refused = pb.Rejection(reason="OUT_OF_RANGE", message="Expected less of tasks[1].ttl_ms.", field="tasks[1].ttl_ms")
    outcomes = [pb.EnqueueOutcome(accepted=pb.Accepted(task_id="id-1")), pb.EnqueueOutcome(rejection=refused)]
    server.on("Enqueue", pb.EnqueueResponse(outcomes=outcomes))
    first, misfit, last = await client.enqueue_many([NewTask("q", "first"), task, NewTask("q", "last")])
    assert isinstance(misfit, InvalidArgument)
    assert misfit.field == field
    assert "9223372036854775808" not in str(misfit), "values are not shown"
    assert first == Accepted("id-1")
    assert isinstance(last, InvalidArgument)
    assert (last.field, last.message) == ("tasks[2].ttl_ms", "Expected less of tasks[2].ttl_ms."), (
        "as its caller counts"
    )
    assert [spec.type for spec in server.requests["Enqueue"][0].tasks] == ["first", "last"]


async def test_a_batch_of_which_nothing_fits_is_not_sent(server: ScriptedServer, client: AsyncClient) -> None:
    wrong = NewTask("q", "t", priority=2**63)
    assert [type(item) for item in await client.enqueue_many([wrong] * 2)] == [InvalidArgument] * 2
    with pytest.raises(InvalidArgument):
        await client.enqueue(wrong, timeout_s=1)
    assert not server.requests


async def test_other_calls_refuse_what_does_not_fit_too(client: AsyncClient) -> None:
    negative = ClaimRef("id-1", -1)
    for call, field in (
        (client.ack(negative), "items[0].claim.token"),
        (client.fail(negative), "items[0].claim.token"),
        (client.extend(CLAIM, 2**63), "items[0].lease_ms"),
        (client.ack(ClaimRef("id-1", 2**128)), "items[0].claim.token"),
        (client.ack(CLAIM, result="text"), "items[0].result"),  # type: ignore[arg-type]
        (client.release(negative), "claims[0].token"),
        (client.cancel("\ud800"), "task_ids"),
        (client.reserve("mail"), "queues"),
        (client.reserve(["mail"], wait_ms=float("nan")), "wait_ms"),  # type: ignore[arg-type]  # on purpose
        (client.queue_stats_many("mail"), "queues"),
        (client.ack(CLAIM, follow_ups=[NewTask("q", "t", priority=2**63)]), "items[0].follow_ups[0].priority"),
    ):
        with pytest.raises(InvalidArgument) as caught:
            await call
        assert caught.value.field == field


async def test_a_request_that_is_too_large_is_refused_before_it_is_sent(
    server: ScriptedServer, client: AsyncClient
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        await client.enqueue(NewTask("q", "t", bytes(16 * 1024 * 1024)))
    assert caught.value.reason == "BATCH_TOO_LARGE"
    assert not server.requests


async def test_answers_that_make_no_sense_are_named(server: ScriptedServer, client: AsyncClient) -> None:
    accepted = pb.EnqueueOutcome(accepted=pb.Accepted(task_id="id-1"))
    server.on(
        "Enqueue",
        pb.EnqueueResponse(outcomes=[accepted, accepted]),
        pb.EnqueueResponse(outcomes=[pb.EnqueueOutcome()]),
        b"\xff\xff\xff",
    )
    for problem in ("2 outcomes for 1 items", "an outcome of an unknown kind", "its message cannot be read"):
        with pytest.raises(UnexpectedAnswer, match=problem):
            await client.enqueue(NewTask("q", "t"))


# ------------------------------------------------------------------------------------------------- queues


async def test_reserve_sends_one_limit_per_queue(server: ScriptedServer, client: AsyncClient) -> None:
    server.on("Reserve", pb.ReserveResponse())
    await client.reserve(["a", "b", "c"], max_tasks=9, max_tasks_by_queue={"b": 2})
    await client.reserve(["a", "b"], max_tasks_by_queue={})
    limited, free = server.requests["Reserve"]
    assert list(limited.queue_tasks_max) == [0, 2, 0]
    assert list(free.queue_tasks_max) == []


@pytest.mark.parametrize("limits", [{"c": 1}, {"a": 0}, {"a": -1}, {"a": "1"}, {"a": 2**63}, {"a": None}])
async def test_a_limit_that_makes_no_sense_is_refused(
    server: ScriptedServer, client: AsyncClient, limits: dict[str, int]
) -> None:
    server.on("Reserve", pb.ReserveResponse())
    with pytest.raises(InvalidArgument):
        await client.reserve(["a", "b"], max_tasks_by_queue=limits)
    assert server.requests["Reserve"] == []


async def test_a_refused_limit_says_what_is_wrong_with_it(client: AsyncClient) -> None:
    with pytest.raises(InvalidArgument, match="names another"):
        await client.reserve(["a"], max_tasks_by_queue={"c": 1})
    with pytest.raises(InvalidArgument, match="leave the queue out"):
        await client.reserve(["a"], max_tasks_by_queue={"a": 0})


async def test_queues_come_in_pages(server: ScriptedServer, client: AsyncClient) -> None:
    counts = [pb.QueueCounts(queue="a", ready=3), pb.QueueCounts(queue="b", waiting_reserves=1)]
    server.on("ListQueues", pb.ListQueuesResponse(queues=counts, next_page_token="b"))
    page = await client.list_queues(page_size=2, page_token="Z")
    assert page == QueuePage((QueueStats(queue="a", ready=3), QueueStats(queue="b", waiting_reserves=1)), "b")
    assert server.requests["ListQueues"] == [pb.ListQueuesRequest(page_size=2, page_token="Z")]


async def test_an_automatic_idempotency_key_is_not_shown_as_the_producers(
    server: ScriptedServer, client: AsyncClient
) -> None:
    """Handed over once more, such a task would be taken for a repetition."""
    for request_id, shown in (("~0.k.0", None), ("~mine", "~mine"), ("r-1", "r-1"), ("", "")):
        spec = pb.TaskSpec(queue="q", type="t", request_id=request_id, request_id_ttl_ms=70_000)
        server.instead("GetTask", pb.GetTaskResponse(task=pb.TaskInfo(task_id="id-1", task=spec)))
        info = await client.get_task("id-1")
        assert info.task is not None
        assert (info.task.request_id, info.task.request_id_ttl_ms) == (shown, None if shown is None else 70_000)
