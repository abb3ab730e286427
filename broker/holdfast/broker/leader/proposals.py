"""Writes on their way into a shard's state: bounded, in order, each with a caller who waits for its outcome."""

import asyncio
from collections import deque

from holdfast.broker.round_budget import RoundBudget
from holdfast.broker.scheduler.scheduler import Picked
from holdfast.machine.entries import Entry, encode
from holdfast.machine.outcomes import Outcome
from holdfast.serving.refusals import overloaded


class Proposal:
    """An entry that the leader decided, and the future of its outcomes."""

    __slots__ = ("abandoned", "calls", "entry", "future", "is_callers", "payload", "picks")

    def __init__(self, entry: Entry, picks: list[Picked] | None = None, calls: int = 1) -> None:
        self.entry = entry
        self.calls = calls  # of how many callers it is
        self.payload = encode(entry)
        self.picks = picks or []  # for a claim: what the scheduler set aside for it
        self.abandoned = False  # for a claim: nobody will take what it brings
        self.is_callers = False  # and not housekeeping; those of callers are bounded
        self.future: asyncio.Future[list[Outcome]] = asyncio.get_running_loop().create_future()

    def resolve(self, outcomes: list[Outcome]) -> None:
        if not self.future.done():
            self.future.set_result(outcomes)

    def reject(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)
            self.future.exception()  # the caller may be gone; that is no reason for a warning


class ProposalQueue:
    """Proposals that wait for a round, and those that were staged in one and are not applied yet.

    Both take room: while a majority is slow it is the second kind that piles up. The node's own housekeeping waits
    apart and yields to callers; it takes no room from them and needs none, so that it goes on.
    """

    def __init__(self, proposals_max: int, bytes_max: int) -> None:
        self._proposals_max = proposals_max
        self._bytes_max = bytes_max
        self._waiting: deque[Proposal] = deque()
        self._housekeeping: deque[Proposal] = deque()
        self._staged: dict[int, Proposal] = {}  # by index, in order
        self.staged_housekeeping = 0  # how many of these
        self._calls = 0  # that take room
        self._calls_bytes = 0

    @property
    def waiting(self) -> int:
        """How many wait for a round."""
        return len(self._waiting) + len(self._housekeeping)

    @property
    def callers_wait(self) -> bool:
        """Whether a caller's waits for a round."""
        return bool(self._waiting)

    @property
    def staged(self) -> int:
        """How many are in the log, or on the way there, and not applied yet."""
        return len(self._staged)

    # --- room -------------------------------------------------------------------------------------------------

    def check_room(self, coming: int = 0) -> None:
        """Refuses when too much is on its way. `coming`: calls that will be added in a moment."""
        if self._calls + coming >= self._proposals_max:
            raise overloaded("writes waiting for the log", self._proposals_max)
        if self._calls_bytes >= self._bytes_max:
            raise overloaded("bytes waiting for the log", self._bytes_max)

    def _give_back_room(self, proposal: Proposal) -> None:
        if proposal.is_callers:
            self._calls -= proposal.calls
            self._calls_bytes -= len(proposal.payload)

    # --- waiting for a round ----------------------------------------------------------------------------------

    def add(self, proposal: Proposal) -> None:
        proposal.is_callers = True
        self._calls += proposal.calls
        self._calls_bytes += len(proposal.payload)
        self._waiting.append(proposal)

    def add_housekeeping(self, proposal: Proposal) -> None:
        self._housekeeping.append(proposal)

    def take_round(self, budget: RoundBudget | None = None) -> list[Proposal]:
        """What the next round appends: callers first, then a little housekeeping. It is the caller's to stage."""
        budget = budget or RoundBudget()
        taken: list[Proposal] = []
        if self._waiting:
            share = budget.share()
            while self._waiting and share.has_room:
                proposal = self._waiting.popleft()
                share.take(len(proposal.payload))
                taken.append(proposal)
        if self._housekeeping:
            for _ in range(min(budget.housekeeping_each, len(self._housekeeping))):
                taken.append(self._housekeeping.popleft())
        return taken

    def drop_waiting(self) -> list[Proposal]:
        """Forgets all that wait for a round; the caller rejects what it gets."""
        dropped = [*self._waiting, *self._housekeeping]
        self._waiting.clear()
        self._housekeeping.clear()
        for proposal in dropped:
            self._give_back_room(proposal)
        return dropped

    # --- staged -----------------------------------------------------------------------------------------------

    def stage(self, index: int, proposal: Proposal) -> None:
        """One that was taken for a round has this place in the log."""
        self._staged[index] = proposal
        self.staged_housekeeping += not proposal.is_callers

    def staged_at(self, index: int) -> Proposal | None:
        return self._staged.get(index)

    def applied(self, last_index: int) -> None:
        """What is staged up to this entry is in the state."""
        staged = self._staged
        while staged and (index := next(iter(staged))) <= last_index:
            self._left(staged.pop(index))

    def drop_staged(self, last_index: int = 0) -> list[Proposal]:
        """Forgets all that are staged after this entry; the caller rejects what it gets."""
        dropped = [self._staged.pop(index) for index in list(self._staged) if index > last_index]
        for proposal in dropped:
            self._left(proposal)
        return dropped

    def _left(self, proposal: Proposal) -> None:
        self.staged_housekeeping -= not proposal.is_callers
        self._give_back_room(proposal)
