"""Writes on their way into a shard's log: bounded, in order, each with a caller who waits for its outcome."""

import asyncio
from collections import deque

from holdfast.broker.scheduling.scheduler import Picked
from holdfast.machine.entries import Entry, encode
from holdfast.machine.outcomes import Outcome
from holdfast.serving.refusals import overloaded

ROUND_ENTRIES_MAX = 256
ROUND_HOUSEKEEPING_MAX = 4  # entries: a sweep has one at a time, but schedules have many small ones
ROUND_BYTES_MAX = 2 * 1024 * 1024


class Proposal:
    """An entry that the leader decided, and the future of its outcomes."""

    __slots__ = ("abandoned", "entry", "future", "payload", "picks")

    def __init__(self, entry: Entry, picks: list[Picked] | None = None) -> None:
        self.entry = entry
        self.payload = encode(entry)
        self.picks = picks or []  # for a claim: what the scheduler set aside for it
        self.abandoned = False  # for a claim: nobody will take what it brings
        self.future: asyncio.Future[list[Outcome]] = asyncio.get_running_loop().create_future()

    def resolve(self, outcomes: list[Outcome]) -> None:
        if not self.future.done():
            self.future.set_result(outcomes)

    def reject(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)
            self.future.exception()  # the caller may be gone; that is no reason for a warning


class ProposalQueue:
    """Proposals waiting for a round. The node's own housekeeping waits apart and yields to callers."""

    def __init__(self, proposals_max: int, bytes_max: int) -> None:
        self._proposals_max = proposals_max
        self._bytes_max = bytes_max
        self._waiting: deque[Proposal] = deque()
        self._housekeeping: deque[Proposal] = deque()
        self.waiting_bytes = 0

    def __len__(self) -> int:
        return len(self._waiting) + len(self._housekeeping)

    def check_room(self) -> None:
        """Refuses when too much is waiting."""
        if len(self._waiting) >= self._proposals_max:
            raise overloaded("writes waiting for the log", self._proposals_max)
        if self.waiting_bytes >= self._bytes_max:
            raise overloaded("bytes waiting for the log", self._bytes_max)

    def add(self, proposal: Proposal) -> None:
        self._waiting.append(proposal)
        self.waiting_bytes += len(proposal.payload)

    def add_housekeeping(self, proposal: Proposal) -> None:
        self._housekeeping.append(proposal)

    def take_round(self) -> list[Proposal]:
        """What the next round appends: callers first, then a little housekeeping."""
        taken: list[Proposal] = []
        taken_bytes = 0
        while self._waiting and len(taken) < ROUND_ENTRIES_MAX and taken_bytes < ROUND_BYTES_MAX:
            proposal = self._waiting.popleft()
            taken_bytes += len(proposal.payload)
            taken.append(proposal)
        self.waiting_bytes -= taken_bytes
        for _ in range(min(ROUND_HOUSEKEEPING_MAX, len(self._housekeeping))):
            taken.append(self._housekeeping.popleft())
        return taken

    def drop_all(self) -> list[Proposal]:
        """Empties the queue; the caller rejects what it gets."""
        dropped = [*self._waiting, *self._housekeeping]
        self._waiting.clear()
        self._housekeeping.clear()
        self.waiting_bytes = 0
        return dropped
