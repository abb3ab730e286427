"""What a workload is, and what all of them share."""

import json
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from chaos.calling import VALUE_HEADER, Caller, Outcomes, value_in
from chaos.history import ENQUEUE, INFO, INVOKE, Event, History
from chaos.verdicts import Rate, Ticks
from chaos.workloads.kinds import GUILTY
from holdfast.client import AsyncClient, NewTask

# What a plain task may cost before it is dead: more than any run brings about by itself.
ATTEMPTS_MAX = 1000
# Of tasks for queues that are spread. Those with a request id of the producer's own are all at the queue's home.
OWN_ID_SHARE = 0.25


@dataclass(frozen=True)
class Setting:
    """Where a workload runs."""

    history: History
    addresses: Sequence[str]  # of the routers
    seed: int
    shards: int
    pace: float = 1.0  # more is slower


@dataclass
class Expected:
    """What the judges must know of a workload."""

    caps: dict[str, int] = field(default_factory=dict)
    key_caps: dict[str, int] = field(default_factory=dict)
    tenant_caps: dict[str, int] = field(default_factory=dict)
    rates: dict[str, Rate] = field(default_factory=dict)
    ticks: dict[str, Ticks] = field(default_factory=dict)
    ranked: Sequence[str] = ()  # queues of one caller each, whose priorities are strict
    spread: Sequence[str] = ()  # queues that must have had tasks on several shards, or else nothing was tried


class Workload(Protocol):
    """Runs until `producing` and then `working` are switched off."""

    producing: bool
    working: bool

    @property
    def queues(self) -> Sequence[str]:
        """All that must be empty in the end."""

    @property
    def worker_queues(self) -> Sequence[str]:
        """Those that the real workers serve."""

    @property
    def has_gaps(self) -> bool:
        """Whether nothing is sent for longer than leases are, now and then: its workers are to wait for that long."""

    @property
    def spreadable(self) -> Sequence[str]:
        """Those whose shards may be changed at any time."""

    async def prepare(self, client: AsyncClient) -> None: ...

    async def run(self) -> None: ...

    async def finish(self, client: AsyncClient) -> list[str]:
        """While all is well again and it still produces; what did not come to its end, a sentence each."""

    def expected(self) -> Expected: ...


def line(f: str, **fields: Any) -> Event:
    """An invoke line without time and process."""
    return Event(t_ns=0, proc=0, type=INVOKE, f=f, **fields)


def handler_task(kind: str, queue: str, value: str, *arguments: object, **options: Any) -> NewTask:
    """A task for a handler of the real workers' app."""
    payload = json.dumps([value, *arguments]).encode()
    given = {"request_id": value, "max_attempts": ATTEMPTS_MAX, **options}
    return NewTask(queue, kind, payload, headers={VALUE_HEADER: value}, **given)


def spread_queues(setting: Setting, queues: Iterable[str]) -> tuple[str, ...]:
    """Those of which tasks can be on several shards here."""
    return tuple(queues) if setting.shards > 1 else ()


def maybe_own_id(draw: random.Random, value: str) -> str:
    """The request id of a task for a spread queue: mostly none, so that it goes to any of its shards. It is known by
    its value all the same, whatever becomes of the call."""
    return value if draw.random() < OWN_ID_SHARE else ""


def to_send_again(tasks: Sequence[NewTask], outcomes: Sequence[str]) -> list[NewTask]:
    """Those that nobody answered. Without a request id of its own it would be another task."""
    return [task for task, outcome in zip(tasks, outcomes, strict=True) if task.request_id and outcome == INFO]


def enqueue_line(task: NewTask, budgets: Mapping[str, int]) -> Event:
    """`budgets`: by type, failures after which such a task is dead."""
    return line(
        ENQUEUE, queue=task.queue, req_id=task.request_id or "",
        value=task.headers.get(VALUE_HEADER) or value_in(task.payload), delay_ms=task.delay_ms or 0,
        budget=budgets.get(task.type, 0), unique=task.unique_key,
        scope=task.unique_scope.value if task.unique_key else "", ttl_ms=task.ttl_ms or 0,
        timeout_ms=task.timeout_ms or 0, guilty=task.type in GUILTY, priority=task.priority or 0,
    )  # fmt: skip


async def enqueue(caller: Caller, batch: list[NewTask], budgets: Mapping[str, int] | None = None) -> list[str]:
    """Sends a batch; ok, fail or info of each."""

    async def send(client: AsyncClient) -> Outcomes:
        return await client.enqueue_many(batch)

    return await caller.send([enqueue_line(task, budgets or {}) for task in batch], send)


async def with_caller(
    setting: Setting, number: int, name: str, act: Callable[[Caller, random.Random, str], Awaitable[None]],
    *, retries: bool = False,
) -> None:  # fmt: skip
    """Runs one producer or worker. Every other one knows one router at a time; one in three goes to the brokers."""
    caller = Caller(
        setting.history, setting.addresses, first=number, knows_all=number % 2 == 0, direct=number % 3 == 2,
        retries=retries,
    )  # fmt: skip
    try:
        await act(caller, random.Random(f"{setting.seed}-{name}"), name)
    finally:
        await caller.close()
