"""Producers and workers that go on through every fault, some of them badly behaved on purpose.

Producers send with and without request ids, in batches and one at a time, and send again: what was not answered, and
some that was. Workers claim, extend, ack, fail, release, repeat themselves, or do nothing until the lease has run out.
Holders keep tokens until they are stale and then try everything with them; they cancel tasks and read what became of
some. Who is wrong is for the checkers to say.
"""

import asyncio
import random
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from chaos.calling import Caller, Outcomes, number_of
from chaos.history import ACK, CANCEL, CLAIM, EXTEND, FAIL_TASK, INFO, NEEDS_TOKEN, READ, RELEASE
from chaos.verdicts import Ticks
from chaos.workloads.base import Expected, Setting, enqueue_line, line, spread_queues, with_caller
from chaos.workloads.options import (
    BRIEF,
    BRIEF_EVERY_S,
    IDLE_SHARE,
    KEY_CAPS,
    OPTION_QUEUES,
    POLICIES,
    RANKED,
    SCHEDULES,
    STRICT,
    TENANT_CAPS,
    TICK_EVERY_MS,
    TICKS,
    TIMED,
    TIMED_BUDGET,
    option_task,
    schedules,
)
from holdfast.client import (
    Accepted,
    Ack,
    AsyncClient,
    ClaimedTask,
    Extension,
    Failure,
    HoldfastError,
    NewTask,
    QueuePolicy,
)

PLAIN_QUEUES = ("work", "more")  # spread over so many shards, for their tasks without a request id:
SPREAD_OVER = 3
QUEUES = (*PLAIN_QUEUES, *OPTION_QUEUES)  # of all workers
# Low enough to be reached: claims that nobody ends hold on to it until their lease has run out.
CAPS = {"more": 8}
LEASE_MS = 1200
RETRY_MS = (20, 20, 400)
DELAYS_MS = (None, None, None, None, 20, 700)
POISON = "poison"  # the type of tasks that no attempt helps: they end dead
POISON_SHARE = 0.05
POISON_BUDGET = 2
BUDGETS = {POISON: POISON_BUDGET, TIMED: TIMED_BUDGET}  # by type
OPTION_SHARE = 0.4  # of tasks that ask for more than to be done
AGAIN_SHARE = 0.1  # of what was answered and is sent again nevertheless
NO_ID_SHARE = 0.25
HELD_MAX = 200
RECENT_MAX = 30  # tasks that may be cancelled, and that may be read
CANCEL_SHARE, READ_SHARE = 0.5, 0.5  # of the rounds of a holder
SCHEDULE_S_MAX = 30.0
HEARD_S = 3.0  # until every shard has heard of its settings
RANKED_MAX = 6  # tasks that are sent to a queue, or claimed, in one call

# How a worker ends its claims. `late` acks after the lease has run out, `stale` waits until somebody else has the task.
FATES = ("ack", "extend", "fail", "release", "repeat", "late", "stale", "never")
WEIGHTS = (66, 8, 6, 6, 4, 4, 4, 2)


@dataclass(frozen=True)
class Size:
    """How much load."""

    producers: int = 2
    workers: int = 3
    holders: int = 1
    pause_s: float = 0.15  # of a producer, on average, between two batches


@dataclass
class Calls:
    """Runs until `producing` and then `working` are switched off."""

    setting: Setting
    size: Size = Size()
    producing: bool = True
    working: bool = True
    newest: dict[str, int] = field(default_factory=dict)  # by task: the largest token that anybody here was given
    held: list[tuple[str, ClaimedTask]] = field(default_factory=list)  # claims for the holders, each with its fate
    accepted: deque[str] = field(default_factory=lambda: deque(maxlen=RECENT_MAX))  # tasks that may be cancelled
    ended: deque[str] = field(default_factory=lambda: deque(maxlen=RECENT_MAX))  # tasks to be read
    first_ticks_ms: dict[str, int] = field(default_factory=dict)  # by schedule
    ticks: dict[str, Ticks] = field(default_factory=dict)
    queues: Sequence[str] = (*QUEUES, *RANKED)
    worker_queues: Sequence[str] = ()
    spreadable: Sequence[str] = PLAIN_QUEUES
    has_gaps: bool = False
    _sent: int = 0
    _begun_s: float = field(default_factory=time.monotonic)

    async def prepare(self, client: AsyncClient) -> None:
        """Limits and schedules."""
        policies = {queue: QueuePolicy(concurrency_max=most) for queue, most in CAPS.items()} | POLICIES
        policies |= dict.fromkeys(RANKED, STRICT)
        for queue, policy in policies.items():
            await client.set_queue(queue, policy=policy)
        for queue in PLAIN_QUEUES:
            await client.set_queue(queue, spread=min(SPREAD_OVER, self.setting.shards))
        for schedule in schedules():
            info = await client.put_schedule(schedule)
            self.first_ticks_ms[schedule.name] = info.last_at_ms or info.next_at_ms or 0

    async def run(self) -> None:
        roles = [(self._produce, self.size.producers), (self._work, self.size.workers), (self._hold, self.size.holders)]
        async with asyncio.TaskGroup() as group:
            for act, count in roles:
                for number in range(count):
                    name = f"{act.__name__.strip('_')}-{number}"
                    group.create_task(with_caller(self.setting, number, name, act))
            for number, queue in enumerate(RANKED):  # the second one goes straight to the brokers
                group.create_task(with_caller(self.setting, 2 * number, queue, self._rank))

    async def finish(self, client: AsyncClient) -> list[str]:
        """Lets each schedule come up to this moment, and pauses it."""
        try:
            return [problem for name in SCHEDULES if (problem := await self._end_schedule(client, name))]
        except HoldfastError as error:
            return [f"the schedules could not be read: {error}"]

    async def _end_schedule(self, client: AsyncClient, name: str) -> str:
        problem = ""
        give_up_s = time.monotonic() + SCHEDULE_S_MAX
        wanted_ms = (await client.get_schedule(TICKS, name)).next_at_ms or 0
        while ((await client.get_schedule(TICKS, name)).last_at_ms or 0) < wanted_ms:
            if time.monotonic() > give_up_s:
                problem = f"schedule {name} did not come to its next tick in time"
                break
            await asyncio.sleep(0.1)
        info = await client.pause_schedule(TICKS, name)
        self.ticks[name] = Ticks(
            first_ms=self.first_ticks_ms[name], every_ms=TICK_EVERY_MS, last_ms=info.last_at_ms or 0,
            fired_total=info.fired_total,
        )  # fmt: skip
        return problem

    def expected(self) -> Expected:
        return Expected(
            caps=dict(CAPS), key_caps=dict(KEY_CAPS), tenant_caps=dict(TENANT_CAPS), ticks=self.ticks,
            ranked=RANKED, spread=spread_queues(self.setting, PLAIN_QUEUES),
        )  # fmt: skip

    # --- producers --------------------------------------------------------------------------------------------

    async def _produce(self, caller: Caller, draw: random.Random, name: str) -> None:
        again: list[NewTask] = []  # what was not answered, and some that was
        while self.producing:
            batch = again[:3] + [self._task(draw, name) for _ in range(draw.randint(1, 5))]
            again = again[3:]
            outcomes = await self._enqueue(caller, batch)
            for task, outcome in zip(batch, outcomes, strict=True):
                # Without a request id it would be another task: only the producer of one with an id may send it again.
                if task.request_id and (outcome == INFO or draw.random() < AGAIN_SHARE):
                    again.append(task)
            await asyncio.sleep(draw.uniform(0, 2 * self.size.pause_s * self.setting.pace))

    def _task(self, draw: random.Random, name: str) -> NewTask:
        self._sent += 1
        value = f"{name}-{self._sent}"
        padding = b" " + draw.randbytes(draw.choice((16, 16, 200, 3000)))
        if draw.random() < OPTION_SHARE:
            return option_task(draw, value, value.encode() + padding)
        is_poison = draw.random() < POISON_SHARE
        return NewTask(
            draw.choice(PLAIN_QUEUES), POISON if is_poison else "t", value.encode() + padding,
            request_id=value if draw.random() >= NO_ID_SHARE else "", priority=draw.randint(0, 9),
            delay_ms=draw.choice(DELAYS_MS), max_attempts=POISON_BUDGET if is_poison else 1000, max_claims=10_000,
        )  # fmt: skip

    async def _enqueue(self, caller: Caller, batch: list[NewTask]) -> list[str]:
        lines = [enqueue_line(task, BUDGETS) for task in batch]

        async def send(client: AsyncClient) -> Outcomes:
            outcomes = await client.enqueue_many(batch)
            for task, outcome in zip(batch, outcomes, strict=True):
                if task.queue in OPTION_QUEUES and isinstance(outcome, Accepted):
                    self.accepted.append(outcome.task_id)
            return outcomes

        return await caller.send(lines, send)

    # --- workers ----------------------------------------------------------------------------------------------

    async def _work(self, caller: Caller, draw: random.Random, name: str) -> None:
        request_id, asked = "", 0
        while self.working:
            if not request_id:
                asked += 1
                request_id = f"{name}-{asked}"
            claims = await self._claim(caller, draw, name, request_id)
            if claims is None and draw.random() < 0.5:
                continue  # the same request again: it gets what the first one was given, if it was
            request_id = ""
            await self._end_claims(caller, draw, claims or [])

    async def _claim(self, caller: Caller, draw: random.Random, name: str, request_id: str) -> list[ClaimedTask] | None:
        queues = draw.sample(QUEUES, len(QUEUES))
        if self.producing and (time.monotonic() - self._begun_s) % BRIEF_EVERY_S >= 1:
            queues.remove(BRIEF)

        async def send(client: AsyncClient) -> list[ClaimedTask]:
            return await client.reserve(
                queues, max_tasks=draw.randint(1, 12), lease_ms=LEASE_MS, wait_ms=100, worker=name,
                claim_request_id=request_id,
            )  # fmt: skip

        claims = await caller.claim(line(CLAIM, req_id=request_id), send)
        for claim in claims or []:
            self.newest[claim.task_id] = max(claim.token, self.newest.get(claim.task_id, 0))
        return claims

    async def _end_claims(self, caller: Caller, draw: random.Random, claims: list[ClaimedTask]) -> None:
        fates = draw.choices(FATES, weights=WEIGHTS, k=len(claims)) if self.producing else ["ack"] * len(claims)
        by_fate: dict[str, list[ClaimedTask]] = {fate: [] for fate in FATES}
        for fate, claim in zip(fates, claims, strict=True):
            if self.producing and draw.random() < IDLE_SHARE.get(claim.type, 0):
                continue
            by_fate["fail" if fate == "ack" and claim.type == POISON else fate].append(claim)
            if fate in ("late", "stale") and len(self.held) < HELD_MAX:
                self.held.append((fate, claim))
        await self.use(caller, EXTEND, by_fate["extend"])
        await self.use(caller, ACK, by_fate["ack"] + by_fate["extend"])
        await self.use(caller, FAIL_TASK, by_fate["fail"])
        await self.use(caller, RELEASE, by_fate["release"])
        for kind in (draw.choice((ACK, FAIL_TASK, RELEASE)),) * 2:
            await self.use(caller, kind, by_fate["repeat"])

    async def use(self, caller: Caller, kind: str, claims: Sequence[ClaimedTask]) -> None:
        """One call with the tokens of these claims."""
        if not claims:
            return
        self._sent += 1
        # Another one each time it is sent: the first that counted stays.
        results = [f"{number_of(claim)}-{self._sent}" if kind == ACK else "" for claim in claims]

        async def send(client: AsyncClient) -> Outcomes:
            if kind == ACK:
                self.ended += [claim.task_id for claim in claims]
                return await client.ack_many(
                    [Ack(claim, result.encode()) for claim, result in zip(claims, results, strict=True)]
                )
            if kind == FAIL_TASK:
                return await client.fail_many([Failure(claim, retry_delay_ms=_retry_ms(claim)) for claim in claims])
            if kind == RELEASE:
                return await client.release_many(claims)
            return await client.extend_many([Extension(claim, LEASE_MS) for claim in claims])

        lines = [
            line(kind, queue=claim.queue, task=claim.task_id, token=number_of(claim),
                  lease_ms=LEASE_MS if kind == EXTEND else 0, delay_ms=_retry_ms(claim) if kind == FAIL_TASK else 0,
                  result=result)
            for claim, result in zip(claims, results, strict=True)
        ]  # fmt: skip
        await caller.send(lines, send)

    # --- both at once -------------------------------------------------------------------------------------------

    async def _rank(self, caller: Caller, draw: random.Random, queue: str) -> None:
        await asyncio.sleep(HEARD_S)
        asked = 0
        while self.working:
            if self.producing:
                await self._enqueue(caller, [self._ranked(draw, queue) for _ in range(draw.randint(1, RANKED_MAX))])
            asked += 1
            request_id, tasks_max = f"{queue}-{asked}", draw.randint(1, RANKED_MAX)

            async def send(
                client: AsyncClient, tasks_max: int = tasks_max, name: str = request_id
            ) -> list[ClaimedTask]:
                return await client.reserve(
                    [queue], max_tasks=tasks_max, lease_ms=LEASE_MS, wait_ms=100, worker=queue, claim_request_id=name
                )

            claims = await caller.claim(line(CLAIM, queue=queue, req_id=request_id), send)
            await self.use(caller, ACK, claims or [])
            await asyncio.sleep(draw.uniform(0, self.size.pause_s * self.setting.pace))

    def _ranked(self, draw: random.Random, queue: str) -> NewTask:
        self._sent += 1
        value = f"{queue}-{self._sent}"
        return NewTask(
            queue, "t", value.encode(), request_id=value, priority=draw.randint(0, 9), max_attempts=1000,
            max_claims=10_000,
        )  # fmt: skip

    # --- holders of tokens that have ended ----------------------------------------------------------------------

    async def _hold(self, caller: Caller, draw: random.Random, _name: str) -> None:
        while self.working:
            due = [item for item in self.held if self._is_due(*item)][:20]
            self.held = [item for item in self.held if item not in due]
            for fate, claim in due:
                kinds = [ACK] if fate == "late" else draw.sample(NEEDS_TOKEN, 2)
                for kind in kinds:
                    await self.use(caller, kind, [claim])
            if self.accepted and self.producing and draw.random() < CANCEL_SHARE:
                await self._cancel(caller, self.accepted.pop())  # the newest still waits, perhaps
            if self.ended and draw.random() < READ_SHARE:
                await self._read(caller, draw.choice(self.ended))
            await asyncio.sleep(0.05)

    async def _cancel(self, caller: Caller, task_id: str) -> None:
        self.ended.append(task_id)
        await caller.send([line(CANCEL, task=task_id)], lambda client: client.cancel_many([task_id]))

    async def _read(self, caller: Caller, task_id: str) -> None:
        async def send(client: AsyncClient) -> Outcomes:
            return [await client.get_task(task_id)]

        await caller.send([line(READ, task=task_id)], send)

    def _is_due(self, fate: str, claim: ClaimedTask) -> bool:
        if fate == "late":
            return claim.lease_ends_s < time.monotonic()
        return self.newest[claim.task_id] > claim.token


def _retry_ms(claim: ClaimedTask) -> int:
    """The same whenever the failure of this claim is reported."""
    return RETRY_MS[number_of(claim) % len(RETRY_MS)]
