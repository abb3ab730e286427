"""Waiting for tasks to finish: long polls that go on through whatever happens to the server."""

import asyncio
import math
import time
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from holdfast.client import (
    AsyncClient,
    ClaimRef,
    ConnectionFailed,
    Holdfast,
    InvalidArgument,
    NewTask,
    NotFound,
    Rejected,
    ResultExpired,
    ResultTimeout,
    ServerError,
    TaskCancelled,
    TaskInfo,
    TaskState,
    Unavailable,
    UnexpectedAnswer,
    _attempts,
)
from holdfast.proto.v1 import tasks_pb2 as pb
from tests.unit.client.scripted_server import LOST, Hang, Refusal, ScriptedServer, error_of

Code = grpc.StatusCode
UNKNOWN = pb.WaitOutcome(rejection=pb.Rejection(reason="TASK_NOT_FOUND", message="Expected a task."))


def outcome(task_id: str, state: "pb.TaskState" = pb.TASK_STATE_SUCCEEDED, **fields: object) -> pb.WaitOutcome:
    return pb.WaitOutcome(task=pb.TaskInfo(task_id=task_id, state=state, **fields))  # type: ignore[arg-type]


def answer(*outcomes: pb.WaitOutcome) -> pb.WaitTasksResponse:
    return pb.WaitTasksResponse(outcomes=outcomes)


def answer_each(make: Callable[[str], pb.WaitOutcome]) -> Callable[[pb.WaitTasksRequest], pb.WaitTasksResponse]:
    return lambda request: answer(*map(make, request.task_ids))


DONE = answer(outcome("id-1", result=b"42"))
READY = answer(outcome("id-1", pb.TASK_STATE_READY))


@pytest.mark.parametrize("state", ["SUCCEEDED", "DEAD", "CANCELLED"])
async def test_a_wait_ends_when_the_task_has_finished(server: ScriptedServer, state: str) -> None:
    server.on("WaitTasks", READY, answer(outcome("id-1", getattr(pb, f"TASK_STATE_{state}"), result=b"42")))
    async with AsyncClient(server.address, timeout_s=20) as client:
        info = await client.wait_task("id-1")
    assert (info.state, info.result) == (TaskState(state), b"42")
    assert [list(request.task_ids) for request in server.requests["WaitTasks"]] == [["id-1"]] * 2
    assert [request.wait_ms for request in server.requests["WaitTasks"]] == [30_000] * 2
    assert all(30 < (remaining_s or 0) <= 51 for remaining_s in server.deadlines_s["WaitTasks"])


@pytest.mark.parametrize("state", ["SUCCEEDED", "CANCELLED"])
async def test_a_result_that_is_gone_is_told_from_none(server: ScriptedServer, state: str) -> None:
    gone = outcome("id-1", result_expired_at_ms=1_893_553_445_678)
    server.on("WaitTasks", answer(gone), answer(gone), answer(outcome("id-1", getattr(pb, f"TASK_STATE_{state}"))))
    async with AsyncClient(server.address) as client:
        info = await client.wait_task("id-1")
    assert (info.result, info.result_expired_at_ms) == (None, 1_893_553_445_678)
    with Holdfast(server.address) as app:
        expired = await error_of(app.handle_async("id-1").result(), ResultExpired)
        assert (expired.task_id, expired.expired_at_ms) == ("id-1", 1_893_553_445_678)
        if state == "SUCCEEDED":
            assert app.handle("id-1").result() is None
        else:
            with pytest.raises(TaskCancelled):
                app.handle("id-1").result()


@pytest.mark.parametrize(
    "trouble",
    [
        LOST,
        Refusal(Code.UNAVAILABLE, "SHUTTING_DOWN"),
        Refusal(Code.UNAVAILABLE, "OUTCOME_UNKNOWN"),
        Refusal(Code.RESOURCE_EXHAUSTED, "OVERLOADED", retry_after_ms=20),
    ],
)
async def test_a_wait_goes_on_through_trouble(server: ScriptedServer, client: AsyncClient, trouble: Refusal) -> None:
    server.on("WaitTasks", trouble, trouble, READY, trouble, DONE)
    assert (await client.wait_task("id-1", timeout_s=60)).result == b"42"
    waits_ms = [request.wait_ms for request in server.requests["WaitTasks"]]
    assert len(waits_ms) == 5


async def test_a_wait_goes_on_when_the_server_falls_silent(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_attempts, "POLL_S_MAX", 0.1)
    server.on("WaitTasks", Hang(), DONE)
    async with AsyncClient(server.address, timeout_s=0.2) as client:
        assert (await client.wait_task("id-1")).result == b"42"
    assert len(server.requests["WaitTasks"]) >= 2


async def test_a_wait_goes_on_through_a_restart(server: ScriptedServer, client: AsyncClient) -> None:
    hang = Hang()
    server.on("WaitTasks", hang, DONE)
    call = asyncio.create_task(client.wait_task("id-1"))
    await asyncio.to_thread(hang.arrived.wait)
    await asyncio.to_thread(server.stop)
    server.start()
    assert (await call).result == b"42"


async def test_each_attempt_waits_only_for_what_is_left(server: ScriptedServer, client: AsyncClient) -> None:
    server.on("WaitTasks", READY, LOST, LOST, DONE)
    await client.wait_task("id-1", timeout_s=20)
    waits_ms = [request.wait_ms for request in server.requests["WaitTasks"]]
    assert waits_ms == sorted(waits_ms, reverse=True)
    assert 10_000 < waits_ms[-1] < waits_ms[0] <= 20_000


async def test_the_end_of_the_time_is_an_error_of_its_own(server: ScriptedServer, client: AsyncClient) -> None:
    server.on("WaitTasks", READY)
    with pytest.raises(ResultTimeout, match="id-1 did not finish within 0 s") as over:
        await client.wait_task("id-1", timeout_s=0)
    assert isinstance(over.value, TimeoutError)
    assert [request.wait_ms for request in server.requests["WaitTasks"]] == [0]


@pytest.mark.parametrize("trouble", [LOST, Refusal(Code.RESOURCE_EXHAUSTED, "OVERLOADED", retry_after_ms=60_000)])
async def test_time_that_is_over_without_an_answer_is_over_too(server: ScriptedServer, trouble: Refusal) -> None:
    server.on("WaitTasks", trouble)
    async with AsyncClient(server.address, timeout_s=30) as client:
        began_s = time.monotonic()
        over = await error_of(client.wait_task("id-1", timeout_s=0.3), ResultTimeout)
        assert 0.3 <= time.monotonic() - began_s < 5
        assert over.__cause__ is not None
        with pytest.raises(type(over.__cause__)):
            await client.wait_tasks(["id-1"], timeout_s=0.1)


async def test_what_was_known_before_the_server_went_is_returned(server: ScriptedServer, client: AsyncClient) -> None:
    server.on("WaitTasks", READY, LOST)
    [task] = await client.wait_tasks(["id-1"], timeout_s=0.3)
    assert isinstance(task, TaskInfo)
    assert task.state == TaskState.READY


@pytest.mark.parametrize(
    ("refusal", "kind"),
    [
        (Refusal(Code.INTERNAL, "INTERNAL"), ServerError),
        (Refusal(Code.INVALID_ARGUMENT, "OUT_OF_RANGE"), InvalidArgument),
        (Refusal(Code.UNIMPLEMENTED), UnexpectedAnswer),
        (b"\xff", UnexpectedAnswer),
        (answer(), UnexpectedAnswer),
    ],
)
async def test_what_waiting_cannot_mend_is_raised_at_once(
    server: ScriptedServer, client: AsyncClient, refusal: Refusal, kind: type[Exception]
) -> None:
    server.on("WaitTasks", refusal)
    with pytest.raises(kind):
        await client.wait_task("id-1", timeout_s=60)
    assert len(server.requests["WaitTasks"]) == 1


async def test_retry_can_be_switched_off(server: ScriptedServer) -> None:
    server.on("WaitTasks", LOST, Refusal(Code.UNAVAILABLE, "SHUTTING_DOWN"))
    async with AsyncClient(server.address, retry=False) as client:
        with pytest.raises(ConnectionFailed):
            await client.wait_task("id-1", timeout_s=60)
        with pytest.raises(Unavailable):
            await client.wait_tasks(["id-1"], timeout_s=60)


async def test_an_unknown_task_is_not_waited_for(server: ScriptedServer, client: AsyncClient) -> None:
    server.on("WaitTasks", answer(UNKNOWN))
    with pytest.raises(NotFound):
        await client.wait_task("id-1")
    [refused] = await client.wait_tasks(["id-1"])
    assert isinstance(refused, NotFound)


async def test_only_what_is_unfinished_is_asked_for_again(server: ScriptedServer, client: AsyncClient) -> None:
    first = answer(outcome("a"), outcome("b", pb.TASK_STATE_CLAIMED), UNKNOWN, outcome("d", pb.TASK_STATE_READY))
    server.on("WaitTasks", first, answer_each(outcome))
    results = await client.wait_tasks(["a", "b", "c", "d"])
    assert [list(request.task_ids) for request in server.requests["WaitTasks"]] == [["a", "b", "c", "d"], ["b", "d"]]
    assert [isinstance(result, Rejected) for result in results] == [False, False, True, False]
    assert [result.task_id for result in results if isinstance(result, TaskInfo)] == ["a", "b", "d"]


async def test_any_number_of_tasks_can_be_waited_for(server: ScriptedServer, client: AsyncClient) -> None:
    server.on("WaitTasks", answer_each(outcome))
    ids = [f"id-{n}" for n in range(2_500)] + ["id-0"]
    assert await client.wait_tasks([]) == []
    results = await client.wait_tasks(ids)
    assert [result.task_id for result in results if isinstance(result, TaskInfo)] == ids
    assert [len(request.task_ids) for request in server.requests["WaitTasks"]] == [1_000, 1_000, 501]


async def test_when_the_time_is_over_the_rest_is_looked_at_without_waiting(
    server: ScriptedServer, client: AsyncClient
) -> None:
    server.on("WaitTasks", answer_each(lambda task_id: outcome(task_id, pb.TASK_STATE_READY)))
    results = await client.wait_tasks([f"id-{n}" for n in range(2_001)], timeout_s=0)
    assert len(results) == 2_001
    assert [request.wait_ms for request in server.requests["WaitTasks"]] == [0, 0, 0]


async def test_results_that_did_not_fit_are_fetched(server: ScriptedServer, client: AsyncClient) -> None:
    """As a server does it: the first result of an answer always fits."""

    def one_fits(request: pb.WaitTasksRequest) -> pb.WaitTasksResponse:
        first, *others = request.task_ids
        return answer(outcome(first, result=first.encode()), *(outcome(name, result_omitted=True) for name in others))

    server.on("WaitTasks", one_fits)
    results = await client.wait_tasks(["a", "b", "c"])
    assert [result.result for result in results if isinstance(result, TaskInfo)] == [b"a", b"b", b"c"]
    assert [list(request.task_ids) for request in server.requests["WaitTasks"]] == [["a", "b", "c"], ["b", "c"], ["c"]]


async def test_a_result_that_never_comes_is_not_asked_for_for_ever(server: ScriptedServer, client: AsyncClient) -> None:
    server.on("WaitTasks", answer_each(lambda task_id: outcome(task_id, result_omitted=True)))
    with pytest.raises(UnexpectedAnswer):
        await client.wait_tasks(["a"])


@pytest.mark.parametrize("bad", ["id-1", [1], [None], ["\ud800"], 7])
async def test_what_are_no_ids_is_refused(server: ScriptedServer, client: AsyncClient, bad: list[str]) -> None:
    server.on("WaitTasks", DONE)
    with pytest.raises(InvalidArgument):
        await client.wait_tasks(bad)
    assert server.requests["WaitTasks"] == []


@pytest.mark.parametrize("timeout_s", [math.nan, -1, "5", True])
async def test_a_time_limit_that_is_none_is_refused_at_once(server: ScriptedServer, timeout_s: Any) -> None:
    """Nothing is after NaN: a wait with it would go on for ever."""
    async with AsyncClient(server.address) as client, asyncio.timeout(10):
        for call in (
            client.wait_task("id-1", timeout_s=timeout_s),
            client.wait_tasks(["id-1"], timeout_s=timeout_s),
            client.enqueue(NewTask("q", "t"), timeout_s=timeout_s),
            client.reserve(["q"], timeout_s=timeout_s),
            client.extend(ClaimRef("id-1", 1), 1_000, timeout_s=timeout_s),
            client.list_workers(timeout_s=timeout_s),
            client.describe_cluster(timeout_s=timeout_s),
            client.describe_nodes(timeout_s=timeout_s),
            client.hash_shard(0, timeout_s=timeout_s),
            client.transfer(0, "n1", timeout_s=timeout_s),
        ):
            with pytest.raises(InvalidArgument, match="Expected timeout_s "):
                await call
    with pytest.raises(InvalidArgument, match="Expected timeout_s "):
        AsyncClient(server.address, timeout_s=timeout_s)
    assert not server.requests


async def test_a_wait_may_have_no_end(server: ScriptedServer, client: AsyncClient) -> None:
    server.on("WaitTasks", DONE)
    assert (await client.wait_task("id-1", timeout_s=math.inf)).result == b"42"
