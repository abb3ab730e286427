"""A shard on its leader: takes entries into the log, applies them, answers.

    propose -> (rounds.py: stage, sync) -> apply -> commit -> effects -> answer

Between a commit and the end of its effects nothing else runs, so a reader never sees one without the other.
"""

import asyncio
import time
from collections.abc import Callable

from holdfast.broker.clock import ShardClock
from holdfast.broker.config import BrokerConfig
from holdfast.broker.finishing import Finishing
from holdfast.broker.housekeeping import Housekeeping
from holdfast.broker.log.node_log import Entry as LogEntry
from holdfast.broker.metrics import Metrics
from holdfast.broker.proposals import Proposal, ProposalQueue
from holdfast.broker.refusals import OutcomeUnknownError, RefusedError, shutting_down
from holdfast.broker.replication import Replicator
from holdfast.broker.reserving import Applied, Reserver, ReserveWanted
from holdfast.broker.state import StateFullError
from holdfast.broker.views import read_executions, read_oldest_ready
from holdfast.machine.effects import Effects
from holdfast.machine.entries import Entry, LeaderStarted, decode
from holdfast.machine.kv import OrderedKV
from holdfast.machine.machine import Machine
from holdfast.machine.outcomes import Claimed, Outcome
from holdfast.machine.rows import Execution, Queue

SLICE_SECONDS = 0.002  # how long entries are applied before other work of the loop gets a turn
STATE_FULL_SECONDS = 0.2  # between attempts to write the state when the disk has no room for it


class Shard:
    """One shard of this node."""

    def __init__(
        self,
        kv: OrderedKV,
        machine: Machine,
        replicator: Replicator,
        clock: ShardClock,
        config: BrokerConfig,
        metrics: Metrics,
        *,
        wake_rounds: Callable[[], None],
        check_disk: Callable[[Entry], None],
        found_full: Callable[[], RefusedError],
    ) -> None:
        self._kv = kv
        self._machine = machine
        self._replicator = replicator
        self._clock = clock
        self._metrics = metrics
        self._wake_rounds = wake_rounds
        self._check_disk = check_disk
        self._found_full = found_full
        self._draining = False
        self._committed_index = machine.meta.applied_index  # what the state holds; the machine may be ahead
        self._state_lags = False  # something is applied and, for lack of room, not yet written
        self._proposals = ProposalQueue(config.proposals_max, config.proposals_bytes_max)
        self._staged: dict[int, Proposal] = {}  # by index: in the log or on the way there, not yet applied
        self._reserver = Reserver(
            kv,
            machine,
            clock,
            config,
            propose=self._propose,
            check=self._check_open,
            check_disk=self._check_room,
            check_written=self._check_written,
        )
        self._finishing = Finishing(
            self.executions, watched_tasks_max=config.watched_tasks_max, calls_max=config.waiters_max
        )
        self._housekeeping = Housekeeping(
            kv, machine, config, metrics, now_ms=self.now_ms, submit=self._submit_housekeeping
        )

    # --- life -------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Writes the first entry of the term and begins to serve once it is applied."""
        # Below the watermark too: it adds next to nothing, and without it nobody could be served or even refused.
        proposal = Proposal(LeaderStarted(self._clock.now_ms(), self._clock.started_by_step))
        self._propose(proposal)
        await proposal.future
        self._housekeeping.start()

    def drain(self) -> None:
        """Refuses new work and sends everyone who waits home; what is on its way is finished."""
        self._draining = True
        self._reserver.drain()
        self._finishing.drain()

    async def stop(self) -> None:
        await self._housekeeping.stop()

    def failed(self) -> BaseException | None:
        """The error that ended a part of this shard, if one did: a bug that must stop the node."""
        return self._housekeeping.failed()

    @property
    def draining(self) -> bool:
        return self._draining

    # --- writes -----------------------------------------------------------------------------------------------

    def now_ms(self) -> int:
        return self._clock.now_ms()

    async def submit(self, entry: Entry) -> list[Outcome]:
        """Proposes an entry and waits for its outcomes: they come once it is durable on a majority and applied."""
        self._check_open(entry)
        proposal = Proposal(entry)
        self._propose(proposal)
        return await proposal.future

    async def reserve(self, wanted: ReserveWanted) -> list[Claimed]:
        """Claims tasks, waiting for the first one if there is none. A caller that goes away claims nothing."""
        return await self._reserver.reserve(wanted)

    async def wait_finished(self, task_ids: list[bytes], wait_ms: int) -> list[Execution | None]:
        """Waits until all are finished or unknown, or the time is over; returns what each is then."""
        return await self._finishing.wait(task_ids, wait_ms)

    def _check_open(self, entry: Entry) -> None:
        if self._draining:
            raise shutting_down()
        self._check_room(entry)
        self._proposals.check_room()

    def _check_room(self, entry: Entry) -> None:
        self._check_written()
        self._check_disk(entry)

    def _check_written(self) -> None:
        """Refuses while the state lags behind the machine: a claim would be picked from a ready line that lags behind
        its marks, or a caller be told of claims before it is known whether they go back."""
        if self._state_lags:
            raise self._found_full()

    def _propose(self, proposal: Proposal) -> None:
        self._proposals.add(proposal)
        self._wake_rounds()

    async def _submit_housekeeping(self, entry: Entry) -> list[Outcome]:
        self._check_room(entry)
        proposal = Proposal(entry)
        self._proposals.add_housekeeping(proposal)
        self._wake_rounds()
        return await proposal.future

    # --- rounds -----------------------------------------------------------------------------------------------

    def stage(self) -> int:
        """Hands waiting proposals to the replicator; returns how many."""
        taken = self._proposals.take_round()
        if taken:
            first_index = self._replicator.stage([proposal.payload for proposal in taken])
            for offset, proposal in enumerate(taken):
                self._staged[first_index + offset] = proposal
        return len(taken)

    def flushed(self) -> None:
        self._replicator.flushed()

    def aborted(self, error: Exception) -> None:
        """The disk had no room for the round: nothing of it was written, and what waits behind it must not be either.

        Entries that wait were decided as if those before them would be applied (low-water marks), so all are refused
        and the scheduler starts afresh. What is durable has been applied by now.
        """
        self._replicator.aborted()
        dropped = [*self._staged.values(), *self._proposals.drop_all()]
        self._staged.clear()
        self._reserver.reset()
        for proposal in dropped:
            proposal.reject(error)

    def give_up(self) -> None:
        """The node is about to stop: nobody here will learn how the writes on their way ended."""
        for proposal in [*self._staged.values(), *self._proposals.drop_all()]:
            proposal.reject(OutcomeUnknownError())
        self._staged.clear()
        self.drain()

    async def apply_committed(self) -> None:
        """Applies what is committed, in slices short enough for other work to get its turn."""
        committed = self._replicator.take_committed()
        at = 0
        while at < len(committed):
            started = time.perf_counter()
            at, applied = self._apply_slice(committed, at, started)
            self._follow(await self._commit(), applied)
            self._metrics.apply_seconds.observe(time.perf_counter() - started)
            if at < len(committed):
                await asyncio.sleep(0)

    def _apply_slice(self, committed: list[LogEntry], at: int, started: float) -> tuple[int, Applied]:
        applied: Applied = []
        while at < len(committed):
            record = committed[at]
            proposal = self._staged.get(record.index)
            entry = proposal.entry if proposal is not None else decode(record.payload)
            outcomes = self._machine.apply(record.index, record.term, entry)
            if proposal is not None:
                applied.append((proposal, outcomes))
            at += 1
            if time.perf_counter() - started > SLICE_SECONDS:
                break
        return at, applied

    async def _commit(self) -> Effects:
        """Writes what was applied. It is durable in the log, so a full disk only delays this."""
        while True:
            try:
                effects = self._machine.commit()
                self._state_lags = False
                self._committed_index = self._machine.meta.applied_index
                return effects
            except StateFullError:
                self._state_lags = True
                self._found_full()
                await asyncio.sleep(STATE_FULL_SECONDS)

    def _follow(self, effects: Effects, applied: Applied) -> None:
        for index in [index for index in self._staged if index <= self._committed_index]:
            del self._staged[index]
        self._reserver.follow(effects, applied)
        self._housekeeping.arm(effects)
        self._finishing.follow(effects.finished)
        for proposal, outcomes in applied:
            proposal.resolve(self._reserver.answer(proposal, outcomes) if proposal.picks else outcomes)

    def serve_all_waiters(self) -> None:
        """Looks for tasks for everyone who waits, after writes were refused for a while."""
        self._reserver.serve_all_waiters()

    # --- reads ------------------------------------------------------------------------------------------------

    def executions(self, task_ids: list[bytes]) -> list[Execution | None]:
        return read_executions(self._kv, task_ids)

    def queue(self, name: bytes) -> Queue | None:
        """A queue's counters; None if nothing was ever enqueued to it."""
        return self._machine.queue(name)

    def waiting_for(self, queue: bytes) -> int:
        return self._reserver.waiting_for(queue)

    def oldest_ready_age_ms(self, name: bytes, queue: Queue) -> int:
        """How long the oldest ready task has been ready; 0 if there is none."""
        task_id = read_oldest_ready(self._kv, name, queue) if queue.ready else None
        (task,) = self.executions([task_id]) if task_id is not None else (None,)
        return max(0, self.now_ms() - task.changed_ms) if task is not None else 0

    @property
    def waiters(self) -> int:
        return self._reserver.waiting

    @property
    def watched_tasks(self) -> int:
        return self._finishing.watched

    @property
    def proposals_waiting(self) -> int:
        return len(self._proposals) + len(self._staged)

    @property
    def applied_index(self) -> int:
        """The newest entry that is in the state."""
        return self._committed_index

    @property
    def clock(self) -> ShardClock:
        return self._clock
