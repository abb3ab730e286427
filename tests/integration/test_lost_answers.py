"""An answer is lost on its way: the client repeats the call by itself, and the task is there once."""

import asyncio

import pytest

from holdfast.client import Accepted, AsyncClient, ConnectionFailed, NewTask, QueueStats, Rejected, TaskState
from tests.integration.proxy import Flow, Proxy
from tests.integration.server import ServerProcess


async def send_and_lose_the_answer(
    proxy: Proxy, direct: AsyncClient, queue: str, tasks: list[NewTask]
) -> "asyncio.Task[list[Accepted | Rejected]]":
    """An enqueue whose connection breaks once the server has carried it out, before the caller has heard of it."""
    producer = AsyncClient(proxy.address, transport="grpc")  # the proxy knows one port
    await producer.list_queues(page_size=1)  # the connection is there
    proxy.set(answers=Flow.LOSE)
    call = asyncio.create_task(_enqueue_and_close(producer, tasks))
    while not isinstance((await direct.queue_stats_many([queue]))[0], QueueStats):
        assert not call.done()
    proxy.reset()
    return call


async def _enqueue_and_close(producer: AsyncClient, tasks: list[NewTask]) -> list[Accepted | Rejected]:
    async with producer:
        return await producer.enqueue_many(tasks)


async def test_automatic_keys_make_one_task_each(shared_server: ServerProcess, client: AsyncClient, queue: str) -> None:
    with Proxy(shared_server.port) as proxy:
        outcomes = await (await send_and_lose_the_answer(proxy, client, queue, [NewTask(queue, "t")] * 3))
    accepted = [outcome for outcome in outcomes if isinstance(outcome, Accepted)]
    assert [one.duplicate for one in accepted] == [False] * 3
    stats = await client.queue_stats(queue)
    assert (stats.ready, stats.enqueued_total) == (3, 3)
    claims = await client.reserve([queue], max_tasks=10)
    assert [claim.task_id for claim in claims] == [one.task_id for one in accepted]


async def test_without_an_id_the_caller_is_told(shared_server: ServerProcess, client: AsyncClient, queue: str) -> None:
    with Proxy(shared_server.port) as proxy:
        call = await send_and_lose_the_answer(proxy, client, queue, [NewTask(queue, "t", request_id="")])
        with pytest.raises(ConnectionFailed):
            await call
    assert (await client.queue_stats(queue)).enqueued_total == 1


async def test_the_ids_of_two_calls_differ(client: AsyncClient, queue: str) -> None:
    task = NewTask(queue, "t")
    first, second = await client.enqueue(task), await client.enqueue(task)
    assert first.task_id != second.task_id
    assert (await client.queue_stats(queue)).enqueued_total == 2


async def test_a_request_id_with_a_short_life(client: AsyncClient, queue: str) -> None:
    """It is remembered while its task lives, however short its time."""
    task = NewTask(queue, "t", request_id="once", request_id_ttl_ms=1_000)
    first = await client.enqueue(task)
    assert await client.enqueue(task) == Accepted(first.task_id, duplicate=True, state=TaskState.READY)
    info = await client.get_task(first.task_id)
    assert info.task == task
