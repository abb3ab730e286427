"""Tasks for real workers of the library: in bursts, with gaps between them that are longer than leases, so that workers
wait for longer than what they are given then. Long ones live by heartbeats; some fail, some take too long, and now and
then one kills its worker or stalls it, which must not cost its neighbours their lives."""

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

from chaos.calling import Caller
from chaos.workloads.base import (
    Expected,
    Setting,
    enqueue,
    handler_task,
    maybe_own_id,
    spread_queues,
    to_send_again,
    with_caller,
)
from holdfast.client import AsyncClient, NewTask, RetryPolicy

QUEUES = tuple(f"life-{number}" for number in range(6))
SPREAD = QUEUES[:2]  # over so many shards:
SPREAD_OVER = 3
PERIOD_S, ON_S = 10.0, 4.0  # all producers are silent for the rest of each period: longer than most leases
BURST = (2, 8)
PRODUCERS = {0: False, 5: True}  # by number: whether its client repeats by itself; the last one goes to the brokers
KINDS = ("quick", "quick-async", "steady", "long", "long-async", "flaky", "poison", "slow-first", "delayed")
WEIGHTS = (25, 25, 12, 8, 8, 8, 4, 4, 8)
GUILTY_FIRST_S = 4.0
POISON = "poison"  # never succeeds
POISON_BUDGET = 2
SOON = RetryPolicy(base_ms=100, jitter=0)


@dataclass(frozen=True)
class Guilt:
    """How often a task kills or stalls its worker, and how many claims tasks allow."""

    every_s: float = 25.0
    claims_max: int = 4  # of the guilty
    innocent_claims_max: int = 20  # the server's own default: as many lost workers does a task survive


# Many that kill, and innocents that survive little: so it is seen soon whether they pay for others.
KILLERS = Guilt(every_s=3.0, claims_max=5, innocent_claims_max=5)


@dataclass
class Lifecycle:
    """Producers; the workers are processes of their own."""

    setting: Setting
    producing: bool = True
    working: bool = True
    queues: Sequence[str] = QUEUES
    worker_queues: Sequence[str] = QUEUES
    spreadable: Sequence[str] = SPREAD
    has_gaps: bool = True
    guilt: Guilt = Guilt()

    async def prepare(self, client: AsyncClient) -> None:
        for queue in SPREAD:
            await client.set_queue(queue, spread=min(SPREAD_OVER, self.setting.shards))

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number, retries in PRODUCERS.items():
                name = f"life-{number}"
                group.create_task(with_caller(self.setting, number, name, self._produce, retries=retries))
            group.create_task(with_caller(self.setting, 0, "guilty", self._produce_guilty))

    async def _produce(self, caller: Caller, draw: random.Random, name: str) -> None:
        sent = 0
        again: list[NewTask] = []  # what was not answered
        while self.producing:
            fresh = [draw_task(draw, f"{name}-{sent + number}", self.guilt) for number in range(draw.randint(*BURST))]
            sent += len(fresh)
            again = await self._send(caller, [*again, *fresh])
            if not again:
                await asyncio.sleep(draw.choice((0.2, 1.0)) * self.setting.pace)
            await self._rest(_gap_left_s(time.monotonic()))
        await self._send(caller, again)

    async def _produce_guilty(self, caller: Caller, draw: random.Random, name: str) -> None:
        sent = 0
        await self._rest(GUILTY_FIRST_S)
        while self.producing:
            kind, arguments = draw.choice((("killer", ()), ("staller", (3.0,))))
            value = f"{kind}-{sent}"
            sent += 1
            task = handler_task(kind, draw.choice(QUEUES), value, *arguments, max_claims=self.guilt.claims_max)
            while self.producing and await self._send(caller, [task]):
                pass
            await self._rest(self.guilt.every_s * self.setting.pace)

    async def _rest(self, seconds: float) -> None:
        for _ in range(int(seconds * 2)):
            if self.producing:
                await asyncio.sleep(0.5)

    @staticmethod
    async def _send(caller: Caller, tasks: list[NewTask]) -> list[NewTask]:
        """Those that are to be sent again."""
        if not tasks:
            return []
        outcomes = await enqueue(caller, tasks, {POISON: POISON_BUDGET})
        return to_send_again(tasks, outcomes)

    async def finish(self, client: AsyncClient) -> list[str]:
        return []

    def expected(self) -> Expected:
        return Expected(spread=spread_queues(self.setting, SPREAD))


def _gap_left_s(now_s: float) -> float:
    """The same for all producers: 0 while there is no gap."""
    at_s = now_s % PERIOD_S
    return PERIOD_S - at_s if at_s > ON_S else 0.0


def draw_task(draw: random.Random, value: str, guilt: Guilt) -> NewTask:
    kind = draw.choices(KINDS, WEIGHTS)[0]
    queue = draw.choice(QUEUES)
    common = {
        "max_claims": guilt.innocent_claims_max,
        "priority": draw.randint(0, 9),
        "retry": SOON,
        "max_attempts": 15,
        "request_id": maybe_own_id(draw, value) if queue in SPREAD else value,
    }
    if kind in ("quick", "quick-async"):
        return handler_task(kind, queue, value, draw.choice((0.0, 0.0, 0.05, 0.3)), **common)
    if kind == "steady":
        return handler_task(kind, queue, value, draw.choice((0.5, 2.0)), **common)
    if kind in ("long", "long-async"):
        return handler_task(kind, queue, value, draw.choice((2.5, 4.0)), **common)
    if kind == "flaky":
        return handler_task(kind, queue, value, draw.randint(1, 3), **common)
    if kind == "slow-first":
        return handler_task(kind, queue, value, 4.0, **common | {"timeout_ms": 1500})
    if kind == "delayed":
        return handler_task("quick", queue, value, **common | {"delay_ms": draw.choice((300, 1500, 4000))})
    return handler_task(POISON, queue, value, **common | {"max_attempts": POISON_BUDGET})
