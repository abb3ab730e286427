"""One small task after the other for each shard, in a queue that is at home there: how long each takes tells how the
shard is, and whether it suffers from another one's trouble."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from chaos.calling import Caller
from chaos.workloads.base import Expected, Setting, enqueue, handler_task, with_caller
from chaos.workloads.kinds import probe_queue
from holdfast.client import AsyncClient

SHARDS_MAX = 16  # so many are probed
EVERY_S = 0.5


@dataclass
class Probes:
    """One caller per shard."""

    setting: Setting
    producing: bool = True
    working: bool = True
    queues: Sequence[str] = ()
    worker_queues: Sequence[str] = ()
    spreadable: Sequence[str] = ()
    _sent: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        shards = self.setting.shards
        step = max(1, -(-shards // SHARDS_MAX))
        self.queues = self.worker_queues = [probe_queue(shard, shards) for shard in range(0, shards, step)]

    async def prepare(self, client: AsyncClient) -> None:
        pass

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number, queue in enumerate(self.queues):
                group.create_task(with_caller(self.setting, number, queue, self._probe))

    async def _probe(self, caller: Caller, draw: random.Random, queue: str) -> None:
        await asyncio.sleep(draw.uniform(0, EVERY_S))
        while self.producing:
            self._sent[queue] = self._sent.get(queue, 0) + 1
            await enqueue(caller, [handler_task("quick", queue, f"{queue}-{self._sent[queue]}")])
            await asyncio.sleep(EVERY_S * self.setting.pace)

    async def finish(self, client: AsyncClient) -> list[str]:
        return []

    def expected(self) -> Expected:
        return Expected()
