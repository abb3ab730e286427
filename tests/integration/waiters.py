"""Workers that wait for tasks of a queue, as its statistics show them."""

import asyncio

from holdfast.client import AsyncClient, NewTask
from tests.integration.server import DEADLINE_S


async def wait_for_waiters(client: AsyncClient, queue: str, number: int) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while (await client.queue_stats(queue)).waiting_reserves != number:
            await asyncio.sleep(0.01)


async def use(client: AsyncClient, *queues: str) -> None:
    """Statistics exist only for a queue that was used."""
    for queue in queues:
        await client.enqueue(NewTask(queue, "first"))
        [claim] = await client.reserve([queue])
        await client.ack(claim)
