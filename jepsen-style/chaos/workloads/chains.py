"""Follow-ups and results over shards: each ack brings the next task of its chain, whose queue is mostly on another
shard. Accepted together with the ack or not at all, and exactly once."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from chaos.calling import Caller, Outcomes, number_of, value_of
from chaos.history import ACK, CLAIM
from chaos.workloads.base import (
    Expected,
    Setting,
    enqueue,
    handler_task,
    line,
    maybe_own_id,
    spread_queues,
    to_send_again,
    with_caller,
)
from holdfast.client import Ack, AsyncClient, ClaimedTask, NewTask

LENGTH = 4
QUEUES = tuple(f"chain{number}" for number in range(LENGTH))
SPREAD = QUEUES[0]  # over so many shards, so that follow-ups come from several:
SPREAD_OVER = 3
PRODUCERS, WORKERS = 1, 2
LEASE_MS = 2000
PAUSE_S = 0.6


@dataclass
class Chains:
    """Workers of our own: those of the library have no follow-ups."""

    setting: Setting
    producing: bool = True
    working: bool = True
    queues: Sequence[str] = QUEUES
    worker_queues: Sequence[str] = ()
    spreadable: Sequence[str] = QUEUES[2:]
    has_gaps: bool = False
    _asked: dict[str, int] = field(default_factory=dict)

    async def prepare(self, client: AsyncClient) -> None:
        await client.set_queue(SPREAD, spread=min(SPREAD_OVER, self.setting.shards))

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(PRODUCERS):
                group.create_task(with_caller(self.setting, number, f"chain-producer-{number}", self._produce))
            for number in range(WORKERS):
                group.create_task(with_caller(self.setting, number, f"chain-worker-{number}", self._work))

    async def _produce(self, caller: Caller, draw: random.Random, name: str) -> None:
        sent = 0
        again: list[NewTask] = []
        while self.producing:
            sent += 1
            value = f"{QUEUES[0]}:{name}-{sent}"
            tasks = [*again, handler_task("t", QUEUES[0], value, request_id=maybe_own_id(draw, value))]
            again = to_send_again(tasks, await enqueue(caller, tasks))
            await asyncio.sleep(draw.uniform(0.5, 1.5) * PAUSE_S * self.setting.pace)

    async def _work(self, caller: Caller, draw: random.Random, name: str) -> None:
        while self.working:
            self._asked[name] = self._asked.get(name, 0) + 1
            request_id = f"{name}-{self._asked[name]}"
            queues = draw.sample(QUEUES, len(QUEUES))

            async def claim(
                client: AsyncClient, queues: list[str] = queues, request_id: str = request_id
            ) -> list[ClaimedTask]:
                return await client.reserve(
                    queues, max_tasks=6, lease_ms=LEASE_MS, wait_ms=300, worker=name, claim_request_id=request_id
                )

            claims = await caller.claim(line(CLAIM, req_id=request_id), claim)
            if claims:
                await self._ack(caller, claims)

    @staticmethod
    async def _ack(caller: Caller, claims: list[ClaimedTask]) -> None:
        acks = [Ack(claim, value_of(claim).encode(), next_of(claim)) for claim in claims]

        async def send(client: AsyncClient) -> Outcomes:
            return await client.ack_many(acks)

        lines = [
            line(
                ACK, queue=claim.queue, task=claim.task_id, token=number_of(claim), result=value_of(claim),
                follow_ups=[value_in_header(task) for task in ack.follow_ups],
            )
            for claim, ack in zip(claims, acks, strict=True)
        ]  # fmt: skip
        await caller.send(lines, send)

    async def finish(self, client: AsyncClient) -> list[str]:
        return []

    def expected(self) -> Expected:
        return Expected(spread=spread_queues(self.setting, [SPREAD]))


def next_of(claim: ClaimedTask) -> list[NewTask]:
    """The next task of a chain: its value is that of the one before, under the name of the next queue."""
    stage = QUEUES.index(claim.queue) + 1
    if stage == LENGTH:
        return []
    rest = value_of(claim).partition(":")[2]
    return [handler_task("t", QUEUES[stage], f"{QUEUES[stage]}:{rest}", request_id="")]


def value_in_header(task: NewTask) -> str:
    return next(iter(task.headers.values()))
