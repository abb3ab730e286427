"""Real workers that hold tasks of every shard at any time, so that whichever shard goes away, each of them has reports
for it and for others at the same time."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass

from chaos.calling import Caller
from chaos.workloads.base import Expected, Setting, enqueue, handler_task, with_caller
from chaos.workloads.kinds import queue_at
from holdfast.client import AsyncClient

TASK_S = (0.5, 1.0, 2.0)
HELD = 15  # on average, over all shards and workers: two thirds of the slots of three workers


@dataclass
class Steady:
    """One producer for each shard."""

    setting: Setting
    producing: bool = True
    working: bool = True
    queues: Sequence[str] = ()
    worker_queues: Sequence[str] = ()
    spreadable: Sequence[str] = ()
    has_gaps: bool = False

    def __post_init__(self) -> None:
        shards = self.setting.shards
        self.queues = self.worker_queues = [queue_at(shard, shards, "steady-") for shard in range(shards)]

    async def prepare(self, client: AsyncClient) -> None:
        pass

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number, queue in enumerate(self.queues):
                group.create_task(with_caller(self.setting, number, queue, self._produce))

    async def _produce(self, caller: Caller, draw: random.Random, queue: str) -> None:
        sent = 0
        every_s = sum(TASK_S) / len(TASK_S) * len(self.queues) / HELD
        while self.producing:
            await enqueue(caller, [handler_task("steady", queue, f"{queue}-{sent}", draw.choice(TASK_S))])
            sent += 1
            await asyncio.sleep(draw.uniform(0.5, 1.5) * every_s * self.setting.pace)

    async def finish(self, client: AsyncClient) -> list[str]:
        return []

    def expected(self) -> Expected:
        return Expected()
