"""A broker and a network for one worker, on virtual time: small, exact about claims, and faulty on purpose.

The broker keeps the rules that a worker must live with: claims end with their leases, no lease goes beyond the timeout
of its task, a stale token is refused, a repeated claim_request_id gives its claims again, a repeated report its first
answer. The network loses requests and answers.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from holdfast.client import (
    Ack,
    Acked,
    Claim,
    ClaimedTask,
    Claims,
    ConnectionFailed,
    DeadlineExceeded,
    Extended,
    Extension,
    Failed,
    Failure,
    HeartbeatAnswer,
    Overloaded,
    Rejected,
    Released,
    StaleToken,
    TaskState,
    WorkerState,
)
from holdfast.client.models import TaskError
from holdfast.client.worker.jobs import AttemptFailed, Interrupted, Job, Outcome, Snoozed, Succeeded
from holdfast.machine.ids import format_task_id, make_task_id
from holdfast.routing.task_ids import shard_of_task

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
    timeout_s: float | None = None
    timeout_is_told: bool = True  # in the claim; the timeout of a queue is not
    due_s: float = 0.0  # while it is snoozed
    answers: dict[int, Any] = field(default_factory=dict)  # by token


@dataclass
class Network:
    """What may go wrong on the way."""

    request_lost: float = 0.0
    answer_lost: float = 0.0
    overloaded: float = 0.0
    unsettled: float = 0.0  # of claims: the answer is that it may have been made, or may not
    latency_s_max: float = 0.05
    down: bool = False
    silent: frozenset[int] = frozenset()  # shards: a call with a task of one of them is not answered


class SimBroker:
    def __init__(self, draw: random.Random, network: Network) -> None:
        self.network = network
        self.tasks: dict[str, SimTask] = {}
        self.expired = 0
        self.expired_of: list[int | None] = []  # their shards
        self.timed_out = 0  # noticed here, before the worker had reported it
        self.reported: set[tuple[str, int]] = set()  # task and token of every report that was sent
        self.came_late: set[tuple[str, int]] = set()  # likewise, of those that came when the attempt had timed out
        self.error_types: list[str] = []  # of the failures that were recorded
        self.worker_states: list[WorkerState] = []  # as the worker has told them
        self.desired: WorkerState | None = None  # what operators want of it
        self.succeeded_s: dict[tuple[str, int], float] = {}
        self._draw = draw
        self._tokens = 0
        self._requests: dict[str, list[tuple[str, int]]] = {}
        self._ready = asyncio.Event()
        self._expiries_s: dict[tuple[str, int], float] = {}
        self._deadlines_s: dict[tuple[str, int], float] = {}

    @staticmethod
    def now_s() -> float:
        return asyncio.get_running_loop().time()

    def add(
        self, count: int, queues: Sequence[str], kinds: Sequence[str], shards: Sequence[int] = (), **options: Any
    ) -> None:
        for number in range(len(self.tasks), len(self.tasks) + count):
            shard = shards[number % len(shards)] if shards else None
            task_id = f"task-{number}" if shard is None else format_task_id(make_task_id(0, shard, number))
            self.tasks[task_id] = SimTask(task_id, self._draw.choice(queues), self._draw.choice(kinds), **options)
        self._ready.set()

    def claimed(self) -> list[SimTask]:
        return [task for task in self.tasks.values() if task.state is TaskState.CLAIMED]

    def sweep(self) -> None:
        """Ends the leases that have run out, and the pauses."""
        now_s = self.now_s()
        for task in self.tasks.values():
            if task.state is TaskState.CLAIMED and task.expiry_s <= now_s:
                if task.expiry_s >= self._deadlines_s[task.task_id, task.token]:
                    self.timed_out += 1
                    task.attempt += 1
                else:
                    self.expired += 1
                    self.expired_of.append(shard_of_task(task.task_id))
                self._make_ready(task)
            elif task.state is TaskState.DELAYED and task.due_s <= now_s:
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
        lease_ms_by_type: Mapping[str, int],
        wait_ms: int,
        worker: str,
        claim_request_id: str,
        empty_handed: bool,
        suspects_only: bool,
        settles_later: bool,
        held_only: bool,
        held_at: Sequence[int],
    ) -> Claims:
        sent_s = self.now_s()
        is_unsettled = settles_later and self._draw.random() < self.network.unsettled
        is_lost = is_unsettled and self._draw.random() < 0.5

        async def claim() -> Claims:
            arrived_s = self.now_s()
            ends_s = arrived_s + wait_ms / 1000
            while True:
                refs = self._held(claim_request_id)
                if not refs and not held_only and not is_lost:
                    refs = self._pick(queues, max_tasks, max_tasks_by_queue, lease_ms, lease_ms_by_type)
                if refs or is_unsettled or self.now_s() >= ends_s:
                    self._requests[claim_request_id] = refs
                    if is_unsettled:
                        return Claims(unsettled_shards=(0,))
                    return Claims(self._claim_message(task_id, sent_s, arrived_s) for task_id, _ in refs)
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
        self,
        queues: Sequence[str],
        max_tasks: int,
        by_queue: Mapping[str, int],
        lease_ms: int,
        by_type: Mapping[str, int],
    ) -> list[tuple[str, int]]:
        picked: list[tuple[str, int]] = []
        for queue in queues:
            room = min(by_queue.get(queue, max_tasks), max_tasks - len(picked))
            ready = (
                task
                for task in self.tasks.values()
                if task.queue == queue and task.state is TaskState.READY and not self._is_silent(task.task_id)
            )
            for task, _ in zip(ready, range(room), strict=False):
                self._tokens += 1
                task.state, task.token, task.claims = TaskState.CLAIMED, self._tokens, task.claims + 1
                deadline_s = float("inf") if task.timeout_s is None else self.now_s() + task.timeout_s
                self._deadlines_s[task.task_id, task.token] = deadline_s
                self._set_expiry(task, by_type.get(task.type, lease_ms))
                picked.append((task.task_id, task.token))
        return picked

    def _set_expiry(self, task: SimTask, lease_ms: int) -> None:
        name = (task.task_id, task.token)
        task.expiry_s = self._expiries_s[name] = min(self.now_s() + lease_ms / 1000, self._deadlines_s[name])

    def expiry_s_of(self, claim: ClaimedTask) -> float:
        """When the lease of a claim ends, or ended."""
        return self._expiries_s[claim.task_id, claim.token]

    def deadline_s_of(self, claim: ClaimedTask) -> float:
        """When the attempt of a claim has taken too long."""
        return self._deadlines_s[claim.task_id, claim.token]

    def _claim_message(self, task_id: str, sent_s: float, arrived_s: float) -> ClaimedTask:
        task = self.tasks[task_id]
        reported_ms = None if task.timeout_s is None or not task.timeout_is_told else round(task.timeout_s * 1000)
        lease_ms = max(0, _lease_ms(task.expiry_s - self.now_s()))
        return ClaimedTask(
            task_id=task_id,
            token=task.token,
            queue=task.queue,
            type=task.type,
            attempt=task.attempt,
            claims=task.claims,
            timeout_ms=reported_ms,
            lease_ms=lease_ms,
            lease_ends_s=sent_s + self.waited_s(arrived_s) + lease_ms / 1000,
        )

    def _is_silent(self, task_id: str) -> bool:
        return shard_of_task(task_id) in self.network.silent

    async def _be_silent(self, items: Sequence[Any], timeout_s: float) -> None:
        if any(self._is_silent(item.claim.task_id) for item in items):
            await asyncio.sleep(timeout_s)
            raise DeadlineExceeded("sim", timeout_s)

    def waited_s(self, arrived_s: float) -> float:
        """What the answer says of how long the call has been waiting."""
        return self.now_s() - arrived_s

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
                    lease_ms = _lease_ms(task.expiry_s - self.now_s())
                    is_cut = task.expiry_s < self.now_s() + item.lease_ms / 1000
                    ends_s = sent_s + lease_ms / 1000
                    answers.append(Extended(lease_ms, ends_s, task.cancel_requested, ends_attempt=is_cut))
                else:
                    answers.append(StaleToken("", reason="STALE_TOKEN"))
            return answers

        await self._be_silent(items, timeout_s)
        return await self._over_the_network(extend)

    async def heartbeat(self, worker: str, *, state: WorkerState, timeout_s: float, **_: object) -> HeartbeatAnswer:
        """Without latency, so that it changes nothing of what else is drawn."""
        if self.network.down:
            await asyncio.sleep(0.01)
            raise ConnectionFailed("sim")
        self.worker_states.append(state)
        return HeartbeatAnswer(self.desired if self.desired is not state else None, 1.0)

    async def ack_many(self, claims: Sequence[Claim | Ack], *, timeout_s: float) -> list[Acked | Rejected]:
        def finish(task: SimTask, _: Ack) -> Acked:
            task.state = TaskState.SUCCEEDED
            self.succeeded_s[task.task_id, task.token] = self.now_s()
            return Acked()

        items = [claim if isinstance(claim, Ack) else Ack(claim) for claim in claims]
        return await self._report(items, finish, timeout_s)

    async def fail_many(self, items: Sequence[Failure], *, timeout_s: float) -> list[Failed | Rejected]:
        def fail(task: SimTask, failure: Failure) -> Failed:
            task.attempt += 1
            self.error_types.append(failure.error.type)
            self._make_ready(task)
            return Failed(TaskState.RETRY_PENDING)

        return await self._report(items, fail, timeout_s)

    async def release_many(
        self, claims: Sequence[ClaimedTask], *, delay_ms: int = 0, timeout_s: float
    ) -> list[Released | Rejected]:
        def release(task: SimTask, _: Failure) -> Released:
            if delay_ms and not task.cancel_requested:
                task.state, task.due_s = TaskState.DELAYED, self.now_s() + delay_ms / 1000
            else:
                self._make_ready(task)
            return Released(task.state)

        return await self._report([Failure(claim) for claim in claims], release, timeout_s)

    async def _report(
        self, items: Sequence[Any], settle: Callable[[SimTask, Any], T], timeout_s: float
    ) -> list[T | Rejected]:
        await self._be_silent(items, timeout_s)
        self.reported |= {(item.claim.task_id, item.claim.token) for item in items}

        async def report() -> list[T | Rejected]:
            answers: list[T | Rejected] = []
            for item in items:
                task, token = self.tasks[item.claim.task_id], item.claim.token
                if token in task.answers:
                    answers.append(task.answers[token])
                elif not self._is_current(task.task_id, token):
                    if self.now_s() >= self._deadlines_s[task.task_id, token]:
                        self.came_late.add((task.task_id, token))
                    answers.append(StaleToken("", reason="STALE_TOKEN"))
                else:
                    task.answers[token] = settle(task, item)
                    answers.append(task.answers[token])
            return answers

        return await self._over_the_network(report)

    async def _over_the_network(self, act: Callable[[], Awaitable[T]]) -> T:
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


def _lease_ms(lease_s: float) -> int:
    return int(lease_s * 1000 + 1e-6)  # whole milliseconds, like the server's clock


@dataclass
class Run:
    """One run of a handler."""

    job: Job
    began_s: float
    ended_s: float | None = None
    reported_s: float | None = None  # when the handler was told to stop
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
        """Tasks whose outcome was reported although their lease had ended before their handler did.

        That an attempt took too long may be reported at any time: the server knows it by itself.
        """
        return [
            run.job.claim.task_id
            for run in self.runs
            if run.ended_s is not None
            and not run.job.timed_out
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

        def notify() -> None:
            run.reported_s = SimBroker.now_s()
            if job.claim.type == "async":
                task.cancel()

        job.interrupt = notify

    async def _run(self, run: Run) -> None:
        outcome: Outcome
        try:
            await asyncio.sleep(self._draw.uniform(0, self._takes_s_max))
            outcome = self._draw_outcome()
        except asyncio.CancelledError:
            outcome = Interrupted()
        run.ended_s = SimBroker.now_s()
        run.lease_ended_s = self._broker.expiry_s_of(run.job.claim)
        self._ended(run.job, outcome)

    def _draw_outcome(self) -> Outcome:
        drawn = self._draw.random()
        if drawn < 0.1:
            return AttemptFailed(TaskError("Sim"))
        return Snoozed(self._draw.choice([0, 100, 1_000])) if drawn < 0.2 else Succeeded(b"1")

    def close(self) -> None:
        pass
