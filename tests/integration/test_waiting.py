"""Waiting for tasks to finish, on a real server."""

import asyncio
import time
from collections.abc import Sequence

import pytest

from holdfast.client import (
    Accepted,
    Ack,
    AsyncClient,
    InvalidArgument,
    NewTask,
    NotFound,
    Overloaded,
    ResultTimeout,
    TaskError,
    TaskInfo,
    TaskState,
)
from holdfast.proto.v1 import tasks_pb2 as pb
from tests.integration.conftest import MakeServer
from tests.integration.proxy import Flow, Proxy
from tests.integration.server import ServerProcess, wait_until
from tests.integration.wire import Wire

OTHER_TASK_ID = "01984f6e-0000-8000-8000-000000000001"  # well formed, but nobody has it


async def watched(server: ServerProcess, count: int) -> None:
    """Returns once the server has so many tasks that are waited for; the gauge is renewed once a second."""
    await asyncio.to_thread(
        wait_until, lambda: server.metric("holdfast_watched_tasks") == count, f"{count} tasks to be waited for"
    )


async def enqueue_many(client: AsyncClient, tasks: list[NewTask]) -> list[str]:
    outcomes = await client.enqueue_many(tasks)
    return [outcome.task_id for outcome in outcomes if isinstance(outcome, Accepted)]


def states(tasks: Sequence[TaskInfo | Exception]) -> list[TaskState | None]:
    return [task.state if isinstance(task, TaskInfo) else None for task in tasks]


async def test_a_wait_is_woken_by_the_ack(client: AsyncClient, queue: str) -> None:
    accepted = await client.enqueue(NewTask(queue, "t", b"body"))
    waiting = asyncio.create_task(client.wait_task(accepted.task_id, timeout_s=30))
    [claim] = await client.reserve([queue])
    await client.queue_stats(queue)  # the wait was sent before, so it has arrived
    assert not waiting.done()
    began_s = time.monotonic()
    await client.ack(claim, result=b"42")
    info = await waiting
    assert time.monotonic() - began_s < 15, "woken, not found out when the wait was over"
    assert (info.state, info.result, info.task) == (TaskState.SUCCEEDED, b"42", None)


async def test_dead_and_cancelled_tasks_are_finished(client: AsyncClient, queue: str) -> None:
    dead, running, ready, acked = await enqueue_many(client, [NewTask(queue, "t", priority=9 - n) for n in range(4)])
    waiting = asyncio.create_task(client.wait_tasks([dead, running, ready, OTHER_TASK_ID, acked], timeout_s=30))
    first, second = await client.reserve([queue], max_tasks=2)
    await client.fail(first, TaskError("Boom", "it broke", "line 1"), dead=True)
    await client.cancel(running)
    await client.fail(second, TaskError("Stopped"))
    await client.cancel(ready)
    assert not waiting.done()
    [last] = await client.reserve([queue])
    await client.ack(last)
    results = await waiting
    assert states(results) == [TaskState.DEAD, TaskState.CANCELLED, TaskState.CANCELLED, None, TaskState.SUCCEEDED]
    assert isinstance(results[0], TaskInfo)
    assert results[0].last_error == TaskError("Boom", "it broke"), "without the traceback"
    assert results[0].dead_reason
    assert isinstance(results[3], NotFound)


async def test_a_retried_dead_letter_is_waited_for_again(client: AsyncClient, queue: str) -> None:
    accepted = await client.enqueue(NewTask(queue, "t"))
    [claim] = await client.reserve([queue])
    await client.fail(claim, dead=True)
    assert (await client.wait_task(accepted.task_id)).state == TaskState.DEAD
    await client.retry_dead_letter(accepted.task_id)
    waiting = asyncio.create_task(client.wait_task(accepted.task_id, timeout_s=30))
    [claim] = await client.reserve([queue])
    assert not waiting.done()
    await client.ack(claim)
    assert (await waiting).state == TaskState.SUCCEEDED


async def test_a_wait_that_is_over(client: AsyncClient, queue: str) -> None:
    accepted = await client.enqueue(NewTask(queue, "t"))
    began_s = time.monotonic()
    with pytest.raises(ResultTimeout):
        await client.wait_task(accepted.task_id, timeout_s=0.3)
    assert 0.3 <= time.monotonic() - began_s < 5
    [task, unknown] = await client.wait_tasks([accepted.task_id, OTHER_TASK_ID], timeout_s=0)
    assert isinstance(task, TaskInfo)
    assert task.state == TaskState.READY
    assert isinstance(unknown, NotFound)
    with pytest.raises(NotFound):
        await client.wait_task(OTHER_TASK_ID)
    with pytest.raises(InvalidArgument):
        await client.wait_task("nonsense")


async def test_many_tasks(client: AsyncClient, queue: str) -> None:
    ids: list[str] = []
    for _ in range(3):
        ids += await enqueue_many(client, [NewTask(queue, "t") for _ in range(700)])
    waiting = asyncio.create_task(client.wait_tasks(ids, timeout_s=60))
    done = 0
    while done < len(ids):
        claims = await client.reserve([queue], max_tasks=500)
        await client.ack_many([Ack(claim, claim.task_id.encode()) for claim in claims])
        done += len(claims)
    results = await waiting
    assert [result.result for result in results if isinstance(result, TaskInfo)] == [
        task_id.encode() for task_id in ids
    ]


async def test_large_results_all_arrive(client: AsyncClient, shared_server: ServerProcess, queue: str) -> None:
    """Together they are too large for one answer: what does not fit is left out, and the client fetches it."""
    ids = await enqueue_many(client, [NewTask(queue, "t") for _ in range(7)])
    for claim in await client.reserve([queue], max_tasks=7):
        await client.ack(claim, result=claim.task_id.encode() * 27_000)
    results = await client.wait_tasks(ids)
    assert [result.result for result in results if isinstance(result, TaskInfo)] == [
        task_id.encode() * 27_000 for task_id in ids
    ]
    async with Wire(shared_server.address) as wire:
        answer = await wire.call("WaitTasks", pb.WaitTasksRequest(task_ids=ids))
    assert isinstance(answer, bytes)
    tasks = [outcome.task for outcome in pb.WaitTasksResponse.FromString(answer).outcomes]
    assert [task.result_omitted for task in tasks] == [False] * 4 + [True] * 3
    assert [task.HasField("result") for task in tasks] == [True] * 4 + [False] * 3
    assert len(answer) < 4 * 1024 * 1024


async def test_a_wait_goes_on_when_the_server_is_killed_and_comes_back(make_server: MakeServer) -> None:
    server = make_server().start()
    async with AsyncClient(server.address) as client:
        done, later = await enqueue_many(client, [NewTask("work", str(n)) for n in range(2)])
        claims = await client.reserve(["work"], max_tasks=2, lease_ms=3_600_000)
    with Proxy(server.port) as proxy:
        async with AsyncClient(proxy.address, transport="grpc") as waiter:
            waiting = asyncio.create_task(waiter.wait_tasks([done, later], timeout_s=60))
            await watched(server, 2)
            async with AsyncClient(server.address) as client:
                await client.ack(claims[0], result=b"before")
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
            proxy.target_port = server.port
            assert not waiting.done()
            await watched(server, 1)
            async with AsyncClient(server.address) as client:
                await client.ack(claims[1], result=b"after")
            results = await waiting
    assert [result.result for result in results if isinstance(result, TaskInfo)] == [b"before", b"after"]


async def test_an_end_while_the_connection_is_lost_is_not_missed(make_server: MakeServer) -> None:
    server = make_server().start()
    with Proxy(server.port) as proxy:
        async with AsyncClient(proxy.address, transport="grpc") as waiter, AsyncClient(server.address) as client:
            accepted = await client.enqueue(NewTask("work", "t"))
            [claim] = await client.reserve(["work"])
            waiting = asyncio.create_task(waiter.wait_task(accepted.task_id, timeout_s=60))
            await watched(server, 1)
            proxy.set(answers=Flow.LOSE)
            await client.ack(claim)
            assert not waiting.done()
            proxy.reset()
            assert (await waiting).state == TaskState.SUCCEEDED


async def test_a_stop_sends_those_who_wait_home(make_server: MakeServer) -> None:
    server = make_server(shutdown_grace_seconds=30).start()
    async with AsyncClient(server.address, retry=False) as client:
        accepted = await client.enqueue(NewTask("work", "t"))
        async with Wire(server.address) as wire:
            request = pb.WaitTasksRequest(task_ids=[accepted.task_id], wait_ms=60_000)
            waiting = asyncio.create_task(wire.call("WaitTasks", request))
            await watched(server, 1)
            began_s = time.monotonic()
            assert await asyncio.to_thread(server.stop) == 0
            assert time.monotonic() - began_s < 15, "nobody was waited for"
            answer = await waiting
    assert isinstance(answer, bytes)
    [outcome] = pb.WaitTasksResponse.FromString(answer).outcomes
    assert outcome.task.state == pb.TASK_STATE_READY


async def test_a_caller_that_goes_leaves_nothing_behind(make_server: MakeServer) -> None:
    server = make_server(watched_tasks_max=3, batch_tasks_max=3).start()
    async with AsyncClient(server.address) as client, AsyncClient(server.address, retry=False) as hasty:
        ids = await enqueue_many(client, [NewTask("work", "t") for _ in range(3)])
        leaving = asyncio.create_task(client.wait_tasks(ids))
        await watched(server, 3)
        with pytest.raises(Overloaded) as refused:
            await hasty.wait_task(ids[0], timeout_s=10)
        assert refused.value.retry_after_ms > 0
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        await watched(server, 0)
        with pytest.raises(ResultTimeout):
            await hasty.wait_task(ids[0], timeout_s=0.1)
