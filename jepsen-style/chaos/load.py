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
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from chaos.calling import Caller, Outcomes, number_of, value_in
from chaos.history import (
    ACK,
    CANCEL,
    CLAIM,
    ENQUEUE,
    EXTEND,
    FAIL_TASK,
    INFO,
    INVOKE,
    NEEDS_TOKEN,
    READ,
    RELEASE,
    Event,
    History,
)
from chaos.options import BRIEF, BRIEF_EVERY_S, IDLE_SHARE, OPTION_QUEUES, TIMED, TIMED_BUDGET, option_task
from holdfast.client import Accepted, Ack, AsyncClient, ClaimedTask, Extension, Failure, NewTask

PLAIN_QUEUES = ("work", "more")
QUEUES = (*PLAIN_QUEUES, *OPTION_QUEUES)
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
PROBE_EVERY_S = 0.03

# How a worker ends its claims. `late` acks after the lease has run out, `stale` waits until somebody else has the task.
FATES = ("ack", "extend", "fail", "release", "repeat", "late", "stale", "never")
WEIGHTS = (66, 8, 6, 6, 4, 4, 4, 2)


@dataclass(frozen=True)
class Size:
    """How much load."""

    producers: int = 3
    workers: int = 4
    holders: int = 2
    probes: int = 3  # single enqueues, one after the other: they measure how long nobody accepts
    pause_s: float = 0.03  # of a producer, on average, between two batches


@dataclass
class Load:
    """Runs until `producing` and then `working` are switched off."""

    history: History
    addresses: Sequence[str]
    seed: int
    size: Size = Size()
    producing: bool = True
    working: bool = True
    newest: dict[str, int] = field(default_factory=dict)  # by task: the largest token that anybody here was given
    held: list[tuple[str, ClaimedTask]] = field(default_factory=list)  # claims for the holders, each with its fate
    accepted: deque[str] = field(default_factory=lambda: deque(maxlen=RECENT_MAX))  # tasks that may be cancelled
    ended: deque[str] = field(default_factory=lambda: deque(maxlen=RECENT_MAX))  # tasks to be read
    _sent: int = 0
    _begun_s: float = field(default_factory=time.monotonic)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(self.size.producers):
                group.create_task(self._with_caller(self._produce, number))
            for number in range(self.size.probes):
                group.create_task(self._with_caller(self._probe, number))
            for number in range(self.size.workers):
                group.create_task(self._with_caller(self._work, number))
            for number in range(self.size.holders):
                group.create_task(self._with_caller(self._hold, number))

    async def _with_caller(self, act: Callable[[Caller, random.Random, str], Awaitable[None]], number: int) -> None:
        name = f"{act.__name__.strip('_')}-{number}"
        # Every other one knows only one broker at a time, and finds the leader through it.
        caller = Caller(self.history, self.addresses, first=number, knows_all=number % 2 == 0)
        try:
            await act(caller, random.Random(f"{self.seed}-{name}"), name)
        finally:
            await caller.close()

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
            await asyncio.sleep(draw.uniform(0, 2 * self.size.pause_s))

    async def _probe(self, caller: Caller, draw: random.Random, name: str) -> None:
        while self.producing:
            await self._enqueue(caller, [self._task(draw, name, has_id=True)])
            await asyncio.sleep(PROBE_EVERY_S)

    def _task(self, draw: random.Random, name: str, *, has_id: bool = False) -> NewTask:
        self._sent += 1
        value = f"{name}-{self._sent}"
        padding = b" " + draw.randbytes(draw.choice((16, 16, 200, 3000)))
        if not has_id and draw.random() < OPTION_SHARE:
            return option_task(draw, value, value.encode() + padding)
        is_poison = draw.random() < POISON_SHARE
        return NewTask(
            draw.choice(PLAIN_QUEUES), POISON if is_poison else "t", value.encode() + padding,
            request_id=value if has_id or draw.random() >= NO_ID_SHARE else "", priority=draw.randint(0, 9),
            delay_ms=draw.choice(DELAYS_MS), max_attempts=POISON_BUDGET if is_poison else 1000, max_claims=10_000,
        )  # fmt: skip

    async def _enqueue(self, caller: Caller, batch: list[NewTask]) -> list[str]:
        lines = [
            _line(
                ENQUEUE,
                queue=task.queue,
                req_id=task.request_id or "",
                value=value_in(task.payload),
                delay_ms=task.delay_ms or 0,
                budget=BUDGETS.get(task.type, 0),
                unique=task.unique_key,
                scope=task.unique_scope.value if task.unique_key else "",
                ttl_ms=task.ttl_ms or 0,
                timeout_ms=task.timeout_ms or 0,
            )
            for task in batch
        ]

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

        claims = await caller.claim(_line(CLAIM, req_id=request_id), send)
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
            _line(kind, queue=claim.queue, task=claim.task_id, token=number_of(claim),
                  lease_ms=LEASE_MS if kind == EXTEND else 0, delay_ms=_retry_ms(claim) if kind == FAIL_TASK else 0,
                  result=result)
            for claim, result in zip(claims, results, strict=True)
        ]  # fmt: skip
        await caller.send(lines, send)

    # --- holders of tokens that have ended ----------------------------------------------------------------------

    async def _hold(self, caller: Caller, draw: random.Random, _name: str) -> None:
        while self.working:
            due = [each for each in self.held if self._is_due(*each)][:20]
            self.held = [each for each in self.held if each not in due]
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
        await caller.send([_line(CANCEL, task=task_id)], lambda client: client.cancel_many([task_id]))

    async def _read(self, caller: Caller, task_id: str) -> None:
        async def send(client: AsyncClient) -> Outcomes:
            return [await client.get_task(task_id)]

        await caller.send([_line(READ, task=task_id)], send)

    def _is_due(self, fate: str, claim: ClaimedTask) -> bool:
        if fate == "late":
            return claim.lease_ends_s < time.monotonic()
        return self.newest[claim.task_id] > claim.token


def _retry_ms(claim: ClaimedTask) -> int:
    """The same whenever the failure of this claim is reported."""
    return RETRY_MS[number_of(claim) % len(RETRY_MS)]


def _line(f: str, **fields: object) -> Event:
    return Event(t_ns=0, proc=0, type=INVOKE, f=f, **fields)  # type: ignore[arg-type]  # fields of an event
