"""One small task after the other for each shard, in a queue that is at home there: how long each takes tells how the
shard is, and whether it suffers from another one's trouble.

Some callers have a client of their own and give up soon. Others share one, as the parts of a program do: it repeats by
itself, and puts what they send at the same time into common requests.
"""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from chaos.calling import Caller, error_text, outcome_of
from chaos.history import OK
from chaos.workloads.base import Expected, Setting, enqueue, enqueue_line, handler_task, with_caller
from chaos.workloads.kinds import queue_at
from holdfast.client import AsyncClient, HoldfastError, NewTask

SHARDS_MAX = 16  # so many are probed
EVERY_S = 0.5
SHARED_EVERY_S = 1.0
SHARED_S_MAX = 20.0


@dataclass
class Probes:
    """One caller per shard."""

    setting: Setting
    producing: bool = True
    working: bool = True
    queues: Sequence[str] = ()
    worker_queues: Sequence[str] = ()
    spreadable: Sequence[str] = ()
    has_gaps: bool = False
    _sent: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        shards = self.setting.shards
        step = max(1, -(-shards // SHARDS_MAX))
        self.queues = self.worker_queues = [queue_at(shard, shards) for shard in range(0, shards, step)]

    async def prepare(self, client: AsyncClient) -> None:
        pass

    async def run(self) -> None:
        addresses = ",".join(self.setting.addresses)
        async with (
            AsyncClient(addresses, timeout_s=SHARED_S_MAX) as routed,
            AsyncClient(addresses, timeout_s=SHARED_S_MAX, direct=True) as direct,
            asyncio.TaskGroup() as group,
        ):
            for number, queue in enumerate(self.queues):
                group.create_task(with_caller(self.setting, number, queue, self._probe))
                group.create_task(self._probe_shared(direct if number % 2 else routed, queue))

    async def _probe(self, caller: Caller, draw: random.Random, queue: str) -> None:
        await asyncio.sleep(draw.uniform(0, EVERY_S))
        while self.producing:
            self._sent[queue] = self._sent.get(queue, 0) + 1
            await enqueue(caller, [handler_task("quick", queue, f"{queue}-{self._sent[queue]}")])
            await asyncio.sleep(EVERY_S * self.setting.pace)

    async def _probe_shared(self, client: AsyncClient, queue: str) -> None:
        """All of them at the same moments, so that their requests are put together. None waits for its answer: a shard
        that is away must not keep the others from being asked."""
        sent = 0
        async with asyncio.TaskGroup() as group:
            while True:
                await asyncio.sleep(SHARED_EVERY_S - asyncio.get_running_loop().time() % SHARED_EVERY_S)
                if not self.producing:
                    return
                sent += 1
                group.create_task(self._send_shared(client, handler_task("quick", queue, f"{queue}-shared-{sent}")))

    async def _send_shared(self, client: AsyncClient, task: NewTask) -> None:
        history = self.setting.history
        written = replace(enqueue_line(task, {}), proc=history.new_proc())
        history.write(written)
        try:
            accepted = await client.enqueue(task)
        except HoldfastError as error:
            history.write(replace(written, type=outcome_of(error), err=error_text(error)))
        else:
            history.write(replace(written, type=OK, task=accepted.task_id, duplicate=accepted.duplicate))

    async def finish(self, client: AsyncClient) -> list[str]:
        return []

    def expected(self) -> Expected:
        return Expected()
