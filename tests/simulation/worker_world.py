"""A broker and a network for one worker, on virtual time: small, exact about claims, and faulty on purpose.

The broker keeps the rules that a worker must live with: claims end with their leases, a stale token is refused, a
repeated claim_request_id gives its claims again, a repeated report its first answer. The network loses requests and
answers.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from holdfast.client import (
    Ack,
    Acked,
    ClaimedTask,
    ConnectionFailed,
    Extended,
    Extension,
    Failed,
    Failure,
    Overloaded,
    Rejected,
    Released,
    StaleToken,
    TaskState,
)
from holdfast.client.models import TaskError
from holdfast.client.worker.jobs import AttemptFailed, Interrupted, Job, Outcome, Succeeded

T = TypeVar("T")


@dataclass
class SimTask:
    task_id: str
    queue: str
    type: str  # "async" handlers can be interrupted, "blocking" ones cannot
    state: TaskState = TaskState.READY
    token: int = 0
    expiry_s: float = 0.0
    attempt: int = 1
    claims: int = 0
    cancel_requested: bool = False
    answers: dict[int, Any] = field(default_factory=dict)  # by token


@dataclass
class Network:
    """What may go wrong on the way."""

    request_lost: float = 0.0
    answer_lost: float = 0.0
    overloaded: float = 0.0
    latency_s_max: float = 0.05
    down: bool = False


class SimBroker:
    def __init__(self, draw: random.Random, network: Network) -> None:
        self.network = network
        self.tasks: dict[str, SimTask] = {}
        self.expired = 0
        self.reported: set[tuple[str, int]] = set()  # task and token of every report that was sent
        self._draw = draw
        self._tokens = 0
        self._requests: dict[str, list[tuple[str, int]]] = {}
        self._ready = asyncio.Event()
        self._expiries_s: dict[tuple[str, int], float] = {}

    @staticmethod
    def now_s() -> float:
        return asyncio.get_running_loop().time()

    def add(self, count: int, queues: Sequence[str], kinds: Sequence[str]) -> None:
        for number in range(len(self.tasks), len(self.tasks) + count):
            task_id = f"task-{number}"
            self.tasks[task_id] = SimTask(task_id, self._draw.choice(queues), self._draw.choice(kinds))
        self._ready.set()

    def claimed(self) -> list[SimTask]:
        return [task for task in self.tasks.values() if task.state is TaskState.CLAIMED]

    def sweep(self) -> None:
        """Ends the leases that have run out."""
        for task in self.claimed():
            if task.expiry_s <= self.now_s():
                self.expired += 1
                self._make_ready(task)

    def _make_ready(self, task: SimTask) -> None:
        task.state = TaskState.CANCELLED if task.cancel_requested else TaskState.READY
        self._ready.set()

    # --- the calls, as AsyncClient has them -------------------------------------------------------------------

    async def reserve(
        self,
        queues: Sequence[str],
        *,
        max_tasks: int,
        max_tasks_by_queue: Mapping[str, int],
        lease_ms: int,
        wait_ms: int,
        worker: str,
        claim_request_id: str,
        timeout_s: float | None,
    ) -> list[ClaimedTask]:
        sent_s = self.now_s()

        async def claim() -> list[ClaimedTask]:
            ends_s = self.now_s() + wait_ms / 1000
            while True:
                refs = self._held(claim_request_id) or self._pick(queues, max_tasks, max_tasks_by_queue, lease_ms)
                if refs or self.now_s() >= ends_s:
                    self._requests[claim_request_id] = refs
                    return [self._claim_message(task_id, sent_s) for task_id, _ in refs]
                self._ready.clear()
                try:
                    async with asyncio.timeout(ends_s - self.now_s()):
                        await self._ready.wait()
                except TimeoutError:
                    pass

        return await self._over_the_network(claim)

    def _held(self, request_id: str) -> list[tuple[str, int]]:
        refs = self._requests.get(request_id, [])
        return [(task_id, token) for task_id, token in refs if self._is_current(task_id, token)]

    def _pick(
        self, queues: Sequence[str], max_tasks: int, by_queue: Mapping[str, int], lease_ms: int
    ) -> list[tuple[str, int]]:
        picked: list[tuple[str, int]] = []
        for queue in queues:
            room = min(by_queue.get(queue, max_tasks), max_tasks - len(picked))
            ready = (task for task in self.tasks.values() if task.queue == queue and task.state is TaskState.READY)
            for task, _ in zip(ready, range(room), strict=False):
                self._tokens += 1
                task.state, task.token, task.claims = TaskState.CLAIMED, self._tokens, task.claims + 1
                self._set_expiry(task, lease_ms)
                picked.append((task.task_id, task.token))
        return picked

    def _set_expiry(self, task: SimTask, lease_ms: int) -> None:
        task.expiry_s = self._expiries_s[task.task_id, task.token] = self.now_s() + lease_ms / 1000

    def expiry_s_of(self, claim: ClaimedTask) -> float:
        """When the lease of a claim ends, or ended."""
        return self._expiries_s[claim.task_id, claim.token]

    def _claim_message(self, task_id: str, sent_s: float) -> ClaimedTask:
        task = self.tasks[task_id]
        lease_s = max(0.0, task.expiry_s - sent_s)
        return ClaimedTask(
            task_id=task_id,
            token=task.token,
            queue=task.queue,
            type=task.type,
            attempt=task.attempt,
            claims=task.claims,
            lease_ms=int(lease_s * 1000),
            lease_ends_s=sent_s + lease_s,
        )

    def _is_current(self, task_id: str, token: int) -> bool:
        task = self.tasks[task_id]
        return task.state is TaskState.CLAIMED and task.token == token

    async def extend_many(self, items: Sequence[Extension], *, timeout_s: float) -> list[Extended | Rejected]:
        sent_s = self.now_s()

        async def extend() -> list[Extended | Rejected]:
            answers: list[Extended | Rejected] = []
            for item in items:
                task = self.tasks[item.claim.task_id]
                if self._is_current(task.task_id, item.claim.token):
                    self._set_expiry(task, item.lease_ms)
                    lease_s = task.expiry_s - sent_s
                    answers.append(Extended(int(lease_s * 1000), sent_s + lease_s, task.cancel_requested))
                else:
                    answers.append(StaleToken("", reason="STALE_TOKEN"))
            return answers

        return await self._over_the_network(extend, timeout_s)

    async def ack_many(self, items: Sequence[Ack], *, timeout_s: float) -> list[Acked | Rejected]:
        def finish(task: SimTask, _: Ack) -> Acked:
            task.state = TaskState.SUCCEEDED
            return Acked()

        return await self._report(items, finish)

    async def fail_many(self, items: Sequence[Failure], *, timeout_s: float) -> list[Failed | Rejected]:
        def fail(task: SimTask, _: Failure) -> Failed:
            task.attempt += 1
            self._make_ready(task)
            return Failed(TaskState.RETRY_PENDING)

        return await self._report(items, fail)

    async def release_many(self, claims: Sequence[ClaimedTask], *, timeout_s: float) -> list[Released | Rejected]:
        def release(task: SimTask, _: Failure) -> Released:
            self._make_ready(task)
            return Released(task.state)

        return await self._report([Failure(claim) for claim in claims], release)

    async def _report(self, items: Sequence[Any], settle: Callable[[SimTask, Any], T]) -> list[T | Rejected]:
        self.reported |= {(item.claim.task_id, item.claim.token) for item in items}

        async def report() -> list[T | Rejected]:
            answers: list[T | Rejected] = []
            for item in items:
                task, token = self.tasks[item.claim.task_id], item.claim.token
                if token in task.answers:
                    answers.append(task.answers[token])
                elif not self._is_current(task.task_id, token):
                    answers.append(StaleToken("", reason="STALE_TOKEN"))
                else:
                    task.answers[token] = settle(task, item)
                    answers.append(task.answers[token])
            return answers

        return await self._over_the_network(report)

    async def _over_the_network(self, act: Callable[[], Awaitable[T]], timeout_s: float | None = None) -> T:
        network, draw = self.network, self._draw
        await asyncio.sleep(draw.uniform(0, network.latency_s_max))
        if network.down or draw.random() < network.request_lost:
            await asyncio.sleep(draw.uniform(0, network.latency_s_max))
            raise ConnectionFailed("sim")
        if draw.random() < network.overloaded:
            raise Overloaded("", reason="OVERLOADED", retry_after_ms=draw.randint(0, 50))
        answer = await act()
        await asyncio.sleep(draw.uniform(0, network.latency_s_max))
        if network.down or draw.random() < network.answer_lost:
            raise ConnectionFailed("sim")
        return answer


@dataclass
class Run:
    """One run of a handler."""

    job: Job
    began_s: float
    ended_s: float | None = None
    lease_ended_s: float = 0.0  # by the broker's clock, as known when the handler ended


class SimHandlers:
    """Stands in for the threads and the loop of real handlers."""

    def __init__(
        self, broker: SimBroker, draw: random.Random, takes_s_max: float, ended: Callable[[Job, Outcome], None]
    ) -> None:
        self._broker = broker
        self.runs: list[Run] = []
        self.running_max = 0
        self._draw = draw
        self._takes_s_max = takes_s_max
        self._ended = ended
        self._tasks: set[asyncio.Task[None]] = set()

    def running(self) -> list[Run]:
        return [run for run in self.runs if run.ended_s is None]

    def reported_too_late(self) -> list[str]:
        """Tasks whose outcome was reported although their lease had ended before their handler did."""
        return [
            run.job.claim.task_id
            for run in self.runs
            if run.ended_s is not None
            and run.ended_s > run.lease_ended_s
            and (run.job.claim.task_id, run.job.claim.token) in self._broker.reported
        ]

    def start(self, job: Job) -> None:
        run = Run(job, SimBroker.now_s())
        self.runs.append(run)
        self.running_max = max(self.running_max, len(self.running()))
        task = asyncio.create_task(self._run(run))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if job.claim.type == "async":
            job.interrupt = task.cancel  # type: ignore[assignment]  # what it returns is of no interest

    async def _run(self, run: Run) -> None:
        outcome: Outcome
        try:
            await asyncio.sleep(self._draw.uniform(0, self._takes_s_max))
            failed = self._draw.random() < 0.1
            outcome = AttemptFailed(TaskError("Sim")) if failed else Succeeded(b"1")
        except asyncio.CancelledError:
            outcome = Interrupted()
        run.ended_s = SimBroker.now_s()
        run.lease_ended_s = self._broker.expiry_s_of(run.job.claim)
        self._ended(run.job, outcome)

    def close(self) -> None:
        pass
