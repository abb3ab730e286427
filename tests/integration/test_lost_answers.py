"""An answer is lost on its way: the client repeats the call by itself, and the task is there once."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from holdfast.client import Accepted, AsyncClient, ConnectionFailed, NewTask, QueueStats, Rejected, TaskState
from tests.integration.proxy import Flow, Proxy
from tests.integration.server import DEADLINE_S, ServerProcess

OTHER_HOST = "127.0.0.2"  # of this machine: there a server is found at the ports that it tells of, behind proxies


@pytest.fixture(params=["grpc", "frames"])
def way(request: pytest.FixtureRequest, shared_server: ServerProcess) -> Iterator["Way"]:
    """To the shared server, over a connection that can be broken."""
    ports = shared_server.port, shared_server.frames_port
    with (
        Proxy(ports[0], host=OTHER_HOST, port=ports[0]) as grpc,
        Proxy(ports[1], host=OTHER_HOST, port=ports[1]) as frames,
    ):
        yield Way(grpc.address, frames if request.param == "frames" else grpc, request.param)


@dataclass
class Way:
    address: str
    proxy: Proxy  # of what calls go over
    transport: str

    async def connect(self) -> AsyncClient:
        producer = AsyncClient(self.address, transport="grpc" if self.transport == "grpc" else "auto")
        async with asyncio.timeout(DEADLINE_S):
            while self.proxy.sent < 2:  # what comes first in frames is a hello, and no call
                await producer.list_queues(page_size=1)
        return producer


async def send_and_lose_the_answer(
    way: Way, direct: AsyncClient, queue: str, tasks: list[NewTask]
) -> "asyncio.Task[list[Accepted | Rejected]]":
    """An enqueue whose connection breaks once the server has carried it out, before the caller has heard of it."""
    producer = await way.connect()
    way.proxy.set(answers=Flow.LOSE)
    call = asyncio.create_task(_enqueue_and_close(producer, tasks))
    while not isinstance((await direct.queue_stats_many([queue]))[0], QueueStats):
        assert not call.done()
    way.proxy.reset()
    return call


async def _enqueue_and_close(producer: AsyncClient, tasks: list[NewTask]) -> list[Accepted | Rejected]:
    async with producer:
        return await producer.enqueue_many(tasks)


async def test_automatic_keys_make_one_task_each(way: Way, client: AsyncClient, queue: str) -> None:
    outcomes = await (await send_and_lose_the_answer(way, client, queue, [NewTask(queue, "t")] * 3))
    accepted = [outcome for outcome in outcomes if isinstance(outcome, Accepted)]
    assert [one.duplicate for one in accepted] == [False] * 3
    stats = await client.queue_stats(queue)
    assert (stats.ready, stats.enqueued_total) == (3, 3)
    claims = await client.reserve([queue], max_tasks=10)
    assert [claim.task_id for claim in claims] == [one.task_id for one in accepted]


async def test_without_an_id_the_caller_is_told(way: Way, client: AsyncClient, queue: str) -> None:
    call = await send_and_lose_the_answer(way, client, queue, [NewTask(queue, "t", request_id="")])
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
