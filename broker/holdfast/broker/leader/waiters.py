"""Calls that want a task, and those that wait for one: woken by the event that makes one ready, in the order in which
they came."""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Generic, Protocol, TypeVar

from holdfast.broker.leader.proposals import Proposal
from holdfast.broker.leader.suspects import Hands
from holdfast.broker.scheduler.picks import Picked
from holdfast.machine.entries import Claim
from holdfast.machine.outcomes import Claimed, Outcome
from holdfast.serving.refusals import overloaded

_FULL_HANDS = Hands(may_take_suspects=False, may_run_dry=False)
_NONE: Mapping[bytes, int] = MappingProxyType({})


class Waiter:
    """One call."""

    __slots__ = (
        "_lines", "future", "hands", "lease_ms", "proposal", "queue_tasks_max", "queues", "request_id", "runs_dry",
        "tasks_max", "type_lease_ms", "worker",
    )  # fmt: skip

    def __init__(
        self,
        queues: list[bytes],
        tasks_max: int,
        lease_ms: int,
        worker: bytes,
        request_id: bytes,
        queue_tasks_max: Mapping[bytes, int] = _NONE,
        type_lease_ms: Mapping[bytes, int] = _NONE,
        hands: Hands = _FULL_HANDS,
    ) -> None:
        self.queues = queues
        self.hands = hands
        self._lines: list[bytes] | None = None
        self.runs_dry = False  # the wait is over because it was asked to
        self.tasks_max = tasks_max
        self.queue_tasks_max = queue_tasks_max  # for the queues that have a limit of their own
        self.lease_ms = lease_ms
        self.type_lease_ms = type_lease_ms  # for the types that have a lease of their own
        self.worker = worker
        self.request_id = request_id
        self.proposal: ClaimProposal | None = None  # the claim that was proposed for it
        # What it was given, or None when the wait is over without a claim.
        self.future: asyncio.Future[list[Claimed] | None] = asyncio.get_running_loop().create_future()

    @property
    def lines(self) -> list[bytes]:
        """In which it waits, if it does."""
        if self._lines is None:
            self._lines = self.hands.lines(self.queues)
        return self._lines

    def give_up(self) -> None:
        """The wait is over. With a claim on its way it was before."""
        if self.proposal is None:
            self.answer(None)

    def answer(self, claimed: list[Claimed] | None) -> None:
        if not self.future.done():
            self.future.set_result(claimed)

    def refuse(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)
            self.future.exception()  # the caller may be gone; that is no reason for a warning


def _as_picked(claims: list[Claimed], picks: list[Picked]) -> list[Claimed]:
    """With the places that they have in the order of the picks. If not all of that was claimed, or something else, they
    come run by run."""
    if [claim.tasks for claim in claims] != [count for picked in picks for count in picked.counts]:
        return claims
    places: list[list[int]] = [[] for _ in claims]
    first = position = 0
    for picked in picks:
        counts = picked.counts
        for index in picked.order or [index for index, count in enumerate(counts) for _ in range(count)]:
            places[first + index].append(position)
            position += 1
        first += len(counts)
    return [claim._replace(at=at) for claim, at in zip(claims, places, strict=True)]


class ClaimProposal(Proposal):
    """A claim on its way: whoever wanted it hears of its end with everybody else, and nothing is in between."""

    __slots__ = ("waiter",)

    def __init__(self, entry: Claim, picks: list[Picked], waiter: Waiter) -> None:
        super().__init__(entry, picks)
        self.waiter = waiter

    def resolve(self, outcomes: list[Outcome]) -> None:
        super().resolve(outcomes)
        claims = [outcome for outcome in outcomes if isinstance(outcome, Claimed)]
        self.waiter.answer(_as_picked(claims, self.picks) if any(picked.order for picked in self.picks) else claims)

    def reject(self, error: Exception) -> None:
        super().reject(error)
        self.waiter.refuse(error)


class _HasLines(Protocol):
    @property
    def lines(self) -> list[bytes]: ...


W = TypeVar("W", bound=_HasLines)


class Waiters(Generic[W]):
    """All waiting calls of one kind of a shard, by line: one for each queue, and see `suspects`."""

    def __init__(self, waiters_max: int, what: str = "waiting reserve calls") -> None:
        self._waiters_max = waiters_max
        self._what = what
        self._by_line: dict[bytes, OrderedDict[W, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def waiting_for(self, queue: bytes) -> int:
        return len(self._by_line.get(queue, ()))

    def of(self, line_name: bytes) -> Iterable[W]:
        return self._by_line.get(line_name, ())

    def lines(self) -> list[bytes]:
        return list(self._by_line)

    def add(self, waiter: W) -> None:
        if self._count >= self._waiters_max:
            raise overloaded(self._what, self._waiters_max)
        self._count += 1
        for line_name in waiter.lines:
            self._by_line.setdefault(line_name, OrderedDict())[waiter] = None

    def remove(self, waiter: W) -> None:
        """Takes the waiter out of every line; does nothing if it is not there."""
        present = False
        for line_name in waiter.lines:
            line = self._by_line.get(line_name)
            if line is not None and waiter in line:
                present = True
                del line[waiter]
                if not line:
                    del self._by_line[line_name]
        self._count -= present

    def first(self, line_name: bytes) -> W | None:
        line = self._by_line.get(line_name)
        return next(iter(line)) if line else None

    def everyone(self) -> list[W]:
        return list(dict.fromkeys(waiter for line in self._by_line.values() for waiter in line))
