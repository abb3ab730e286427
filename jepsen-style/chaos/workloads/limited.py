"""Caps and rates of queues that are spread over shards, tenants that take turns, and mutual exclusion by limit key; the
tasks are done by the real workers, which have room for more than the caps allow. Most tasks have no request id and no
limit key, so that they go to all shards of their queue; the others are at its home."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass

from chaos.calling import Caller
from chaos.verdicts import Rate
from chaos.workloads.base import (
    Expected,
    Setting,
    enqueue,
    handler_task,
    maybe_own_id,
    spread_queues,
    with_caller,
)
from holdfast.client import AsyncClient, NewTask, QueuePolicy

CAPPED, TENANTS, KEYED, RATED = "limit-cap", "limit-tenants", "limit-keys", "limit-rate"
QUEUES = (CAPPED, TENANTS, KEYED, RATED)
CAP, TENANT_CAP, KEY_CAP = 3, 2, 1
RATE = Rate(per_second=3, burst=3)
POLICIES = {
    CAPPED: QueuePolicy(concurrency_max=CAP),
    TENANTS: QueuePolicy(tenant_concurrency_max=TENANT_CAP),
    KEYED: QueuePolicy(key_concurrency_max=KEY_CAP),
    RATED: QueuePolicy(rate_per_second=RATE.per_second, rate_burst=RATE.burst),
}
SPREAD = {CAPPED: 3, TENANTS: 2, KEYED: 3, RATED: 2}
KEYS = 3
KEYED_SHARE = 0.5  # of the tasks of KEYED: they are all at its home, the others are not
TASK_S = (0.1, 0.3, 0.6)
# Several calls, because all tasks of one go to one shard; then nothing, so that what waited is done. Of RATED so many
# at once that twice the rate would be seen: some claims more than expected are no proof.
BURSTS = {CAPPED: (6, 12), TENANTS: (6, 12), KEYED: (6, 12), RATED: (24, 36)}
BATCH_MAX = 3
EVERY_S = 0.5  # for each task of a burst: less than the limits allow, on average


@dataclass
class Limited:
    """Producers; each sends more at once than the limit of its queue allows."""

    setting: Setting
    producing: bool = True
    working: bool = True
    queues: Sequence[str] = QUEUES
    worker_queues: Sequence[str] = QUEUES
    spreadable: Sequence[str] = QUEUES
    has_gaps: bool = False

    async def prepare(self, client: AsyncClient) -> None:
        """Spread some time before the first task, as users do."""
        for queue, policy in POLICIES.items():
            await client.set_queue(queue, policy=policy, spread=min(SPREAD[queue], self.setting.shards))

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number, queue in enumerate(QUEUES):
                retries = number % 2 == 1
                group.create_task(with_caller(self.setting, number, queue, self._produce, retries=retries))

    async def _produce(self, caller: Caller, draw: random.Random, queue: str) -> None:
        sent = 0
        while self.producing:
            burst = left = draw.randint(*BURSTS[queue])
            while left > 0 and self.producing:
                count = min(left, draw.randint(1, BATCH_MAX))
                await enqueue(caller, [self._task(draw, queue, f"{queue}-{sent + index}") for index in range(count)])
                sent, left = sent + count, left - count
            await self._rest(draw.uniform(0.5, 1.5) * burst * EVERY_S * self.setting.pace)

    async def _rest(self, seconds: float) -> None:
        for _ in range(int(seconds * 2)):
            if self.producing:
                await asyncio.sleep(0.5)

    @staticmethod
    def _task(draw: random.Random, queue: str, value: str) -> NewTask:
        key = f"k{draw.randrange(KEYS)}" if queue == KEYED and draw.random() < KEYED_SHARE else ""
        tenant = f"t{draw.randrange(KEYS)}" if queue == TENANTS else ""
        kind = draw.choice(("quick", "quick-async"))
        return handler_task(
            kind, queue, value, draw.choice(TASK_S), limit_key=key, tenant=tenant, request_id=maybe_own_id(draw, value)
        )

    async def finish(self, client: AsyncClient) -> list[str]:
        return []

    def expected(self) -> Expected:
        return Expected(
            caps={CAPPED: CAP}, tenant_caps={TENANTS: TENANT_CAP}, key_caps={KEYED: KEY_CAP}, rates={RATED: RATE},
            spread=spread_queues(self.setting, QUEUES),
        )  # fmt: skip
