"""AwaitTasks over the wire: woken by an enqueue, without claiming anything."""

import asyncio
import time

from holdfast.client import AsyncClient, NewTask
from holdfast.proto.v1 import tasks_pb2 as pb
from tests.integration.server import ServerProcess
from tests.integration.wire import Wire

PROMPT_S = 10.0  # far above what a wake-up takes, also of a busy machine, and far below the wait


async def await_tasks(
    wire: Wire, queue: str, wait_ms: int, *, worker: str = "", claim_request_id: str = ""
) -> pb.AwaitTasksResponse:
    request = pb.AwaitTasksRequest(queues=[queue], wait_ms=wait_ms, worker=worker, claim_request_id=claim_request_id)
    answer = await wire.call("AwaitTasks", request)
    assert isinstance(answer, bytes), answer
    return pb.AwaitTasksResponse.FromString(answer)


async def test_a_call_that_waits_is_told_of_a_task_and_claims_nothing(
    shared_server: ServerProcess, client: AsyncClient, queue: str
) -> None:
    async with Wire(shared_server.address) as wire:
        assert await await_tasks(wire, queue, 0) == pb.AwaitTasksResponse()
        waiting = asyncio.create_task(await_tasks(wire, queue, 20_000))
        other = asyncio.create_task(await_tasks(wire, queue, 20_000))
        await asyncio.sleep(0.05)  # there are no statistics yet that could tell that they wait
        sent_s = time.monotonic()
        await client.enqueue(NewTask(queue, "t"))
        ready = pb.AwaitTasksResponse(ready=True, tasks=1)
        assert await waiting == await other == ready, "nobody took it, so both were told"
        assert time.monotonic() - sent_s < PROMPT_S
        assert (await client.queue_stats(queue)).ready == 1
        [claim] = await client.reserve([queue], worker="w", claim_request_id="r")
        assert await await_tasks(wire, queue, 0) == pb.AwaitTasksResponse()
        held = await await_tasks(wire, queue, 20_000, worker="w", claim_request_id="r")
        assert held == pb.AwaitTasksResponse(ready=True, held=True, tasks=1)
        await client.ack(claim)
