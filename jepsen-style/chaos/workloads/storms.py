"""The same request ids from several producers at the same time, over all routers and straight to the brokers, while the
shards of the queues change: each id makes one task. Ids of a producer's own are remembered at the home of their queue,
so that is where all of these tasks are: what is tried is that they stay there."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass

from chaos.calling import Caller
from chaos.history import INFO
from chaos.workloads.base import Expected, Setting, enqueue, handler_task, with_caller
from holdfast.client import AsyncClient

QUEUES = ("storm-0", "storm-1", "storm-2")
PRODUCERS = 4  # all of them send all ids, in about the same order
BATCH = 4
PAUSE_S = 0.5


@dataclass
class Storms:
    """The tasks are done by the real workers."""

    setting: Setting
    producing: bool = True
    working: bool = True
    queues: Sequence[str] = QUEUES
    worker_queues: Sequence[str] = QUEUES
    spreadable: Sequence[str] = QUEUES
    has_gaps: bool = False

    async def prepare(self, client: AsyncClient) -> None:
        await client.set_queue(QUEUES[0], spread=min(3, self.setting.shards))

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(PRODUCERS):
                group.create_task(with_caller(self.setting, number, f"storm-{number}", self._produce))

    async def _produce(self, caller: Caller, draw: random.Random, _name: str) -> None:
        """Every producer walks through the same numbers, and now and then goes back a little."""
        first = 0
        while self.producing:
            numbers = [first + number for number in draw.sample(range(BATCH), BATCH)]
            numbers.append(draw.randrange(first + 1))
            tasks = [
                handler_task("quick", QUEUES[number % len(QUEUES)], f"storm-{number}")
                for number in dict.fromkeys(numbers)
            ]
            outcomes = await enqueue(caller, tasks)
            if INFO not in outcomes:  # or else the same ids again
                first += BATCH
            await asyncio.sleep(draw.uniform(0.5, 1.5) * PAUSE_S * self.setting.pace)

    async def finish(self, client: AsyncClient) -> list[str]:
        return []

    def expected(self) -> Expected:
        return Expected()
