"""One caller of the cluster: sends through the public client and writes down each attempt and what became of it."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from chaos.history import CLAIM, FAIL, INFO, INVOKE, OK, Event, History
from chaos.verdicts import tick_value
from holdfast.client import (
    Accepted,
    AsyncClient,
    Cancelled,
    Claim,
    ClaimedTask,
    Extended,
    HoldfastError,
    InvalidAddress,
    InvalidArgument,
    Rejected,
    TaskInfo,
)

# The refusals that say that nothing was done. Whatever is not in this list may have happened.
NOTHING_DONE = frozenset({
    "NOT_LEADER", "OVERLOADED", "SHUTTING_DOWN", "DISK_LOW", "WORKER_AT_LIMIT", "STALE_TOKEN", "TASK_NOT_FOUND",
    "QUEUE_NOT_FOUND", "TASK_FINISHED", "SHARD_NOT_FOUND", "STALE_MAP",
})  # fmt: skip
VALUE_HEADER = "chaos-value"  # of tasks whose payload is for a handler of the library
CALL_S_MAX = 1.0  # a paused broker answers nobody: so long does a caller stay with it
RETRIES_S_MAX = 10.0  # and so long does one whose client repeats by itself
# After a call that was refused or not answered, growing with each: callers that spin would take the processor from the
# brokers that are to come up again. Short enough to measure how long that takes.
PAUSE_S = 0.02
PAUSE_S_MAX = 0.1

T = TypeVar("T")
Outcomes = Sequence[object]  # one per item; a Rejected in the place of each refused one


def outcome_of(error: HoldfastError) -> str:
    """Whether a failed call certainly did nothing (fail), or nobody knows (info)."""
    if isinstance(error, InvalidArgument | InvalidAddress):
        raise error  # the harness itself is wrong
    return FAIL if isinstance(error, Rejected) and error.reason in NOTHING_DONE else INFO


def error_text(error: HoldfastError) -> str:
    return f"{type(error).__name__} {error.reason}" if isinstance(error, Rejected) else type(error).__name__


def number_of(claim: Claim) -> int:
    """What orders tokens; their secrets stay out of histories."""
    return claim.token >> 64


class Caller:
    """A process id and a client. The id is given up when an outcome is unknown, and somebody else is asked."""

    def __init__(
        self,
        history: History,
        addresses: Sequence[str],
        *,
        first: int = 0,
        knows_all: bool = True,
        direct: bool = False,
        retries: bool = False,
    ) -> None:
        """`first`: at which address it begins. `knows_all`: gives its client all addresses, or else only that one.
        `direct`: learns there where the brokers are, and goes to them. `retries`: its client repeats by itself."""
        self._history = history
        self._knows_all = knows_all
        self._direct = direct
        self._retries = retries
        self._addresses = list(addresses)
        self._first = first % len(self._addresses)
        self._proc = history.new_proc()
        self._failed = 0  # calls without an answer, one after the other
        self._client: AsyncClient | None = None
        self._closing: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        self._drop_client()
        await asyncio.gather(*self._closing)

    async def send(self, items: Sequence[Event], call: Callable[[AsyncClient], Awaitable[Outcomes]]) -> list[str]:
        """Sends a batch; `items` are its invoke lines without time and process. Returns ok, fail or info per item."""
        for item in items:
            self._write(item, INVOKE)
        invoked_s = time.monotonic()
        try:
            outcomes = await call(self._open())
        except HoldfastError as error:
            kind = outcome_of(error)
            for item in items:
                self._write(item, kind, err=error_text(error))
            await self._after(error)
            return [kind] * len(items)
        self._failed = 0
        kinds = [self._complete(item, outcome, invoked_s) for item, outcome in zip(items, outcomes, strict=True)]
        if INFO in kinds:
            self._retire()
        return kinds

    async def claim(
        self, item: Event, call: Callable[[AsyncClient], Awaitable[list[ClaimedTask]]]
    ) -> list[ClaimedTask] | None:
        """Claims; None if there was no answer, and then the same claim request id may be sent again."""
        assert item.f == CLAIM
        self._write(item, INVOKE)
        invoked_s = time.monotonic()
        try:
            claims = await call(self._open())
        except HoldfastError as error:
            kind = outcome_of(error)
            self._write(item, kind, err=error_text(error))
            await self._after(error)
            return None if kind == INFO else []
        self._failed = 0
        for claim in claims:
            self._write(
                item, OK, queue=claim.queue, task=claim.task_id, token=number_of(claim), value=value_of(claim),
                lease_ms=_lease_ms(claim, invoked_s), attempt=claim.attempt, nth=claim.claims,
                made_ms=claim.enqueued_at_ms, limit_key=claim.limit_key, tenant=claim.tenant,
            )  # fmt: skip
        if not claims:
            self._write(item, OK)
        return claims

    def _complete(self, item: Event, outcome: object, invoked_s: float) -> str:
        if isinstance(outcome, Rejected):
            kind = outcome_of(outcome)
            self._write(item, kind, err=error_text(outcome))
            return kind
        self._write(item, OK, **_told(outcome, invoked_s))
        return OK

    def _write(self, item: Event, kind: str, **changes: object) -> None:
        self._history.write(replace(item, proc=self._proc, type=kind, **changes))  # type: ignore[arg-type]

    def _open(self) -> AsyncClient:
        if self._client is None:
            turned = self._addresses[self._first :] + self._addresses[: self._first]
            # Without retries it repeats nothing, save at another broker what may be repeated. Either way that is one
            # attempt of ours.
            address = ",".join(turned if self._knows_all else turned[:1])
            timeout_s = RETRIES_S_MAX if self._retries else CALL_S_MAX
            self._client = AsyncClient(address, retry=self._retries, timeout_s=timeout_s, direct=self._direct)
        return self._client

    async def _after(self, error: HoldfastError) -> None:
        """A refusal by a follower names the leader; after anything unknown somebody else is asked."""
        leader = error.metadata.get("leader", "") if isinstance(error, Rejected) else ""
        if outcome_of(error) == INFO:
            self._retire()
        elif leader in self._addresses:
            self._begin_at(self._addresses.index(leader))
        else:
            self._begin_at(self._first + 1)
        self._failed += 1
        await asyncio.sleep(min(PAUSE_S_MAX, PAUSE_S * self._failed))

    def _retire(self) -> None:
        self._proc = self._history.new_proc()
        self._begin_at(self._first + 1)

    def _begin_at(self, first: int) -> None:
        """A client that knows all addresses finds its way by itself, and is kept to show that it does."""
        if not self._knows_all:
            self._drop_client()
            self._first = first % len(self._addresses)

    def _drop_client(self) -> None:
        if self._client is not None:
            closing = asyncio.create_task(self._client.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
            self._client = None


def _lease_ms(answer: ClaimedTask | Extended, invoked_s: float) -> int:
    """How long the lease holds, counted from the invoke, as the client was told."""
    return max(0, int((answer.lease_ends_s - invoked_s) * 1000))


def _told(outcome: object, invoked_s: float) -> dict[str, object]:
    """What an answer says beyond yes."""
    match outcome:
        case Accepted():
            return {"task": outcome.task_id, "duplicate": outcome.duplicate}
        case Extended():
            return {"lease_ms": _lease_ms(outcome, invoked_s)}
        case Cancelled():
            return {"state": outcome.state.value}
        case TaskInfo():
            return {"state": outcome.state.value, "result": (outcome.result or b"").decode()}
        case _:
            return {}


def value_of(claim: ClaimedTask) -> str:
    """What names a task that was handed out, whoever made it."""
    if VALUE_HEADER in claim.headers:
        return claim.headers[VALUE_HEADER]
    schedule = claim.headers.get("holdfast-schedule")
    return tick_value(schedule, claim.headers["holdfast-tick-ms"]) if schedule else value_in(claim.payload)


def value_in(payload: bytes) -> str:
    """What names the task: the payload up to its padding."""
    return payload.partition(b" ")[0].decode(errors="replace")
