"""A shard on this node: applies its log, and while this node leads it, takes entries into the log and answers.

    propose -> (commit_loop.py: stage, sync, majority) -> apply -> commit -> effects -> answer

Between a commit and the end of its effects nothing else runs, so a reader never sees one without the other.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Protocol

from holdfast.broker.leader.clock import ShardClock
from holdfast.broker.leader.leader import Leadership, OutboxHold
from holdfast.broker.leader.proposals import Proposal, ProposalQueue
from holdfast.broker.leader.ready_waiters import Awaited, AwaitWanted
from holdfast.broker.leader.reserver import Applied, ReserveWanted
from holdfast.broker.leader.roles import NodeContext
from holdfast.broker.leader.stats import Stats
from holdfast.broker.leader.suspects import RunDry
from holdfast.broker.policy.policies import POLICY_BYTES_MAX, Policies
from holdfast.broker.replica.decoded_entries import DecodedEntries
from holdfast.broker.replica.read_barrier import ReadBarrier
from holdfast.broker.replica.replication import Replicator
from holdfast.broker.round_budget import RoundBudget
from holdfast.limits.reports import LimitGrant, LimitReport
from holdfast.machine.effects import Effects
from holdfast.machine.entries import MACHINE_LEVEL, Entry, LeaderStarted, RaiseLevel, SetQueue
from holdfast.machine.machine import Machine
from holdfast.machine.new_tasks import NewTask
from holdfast.machine.outcomes import Changed, Claimed, Outcome
from holdfast.machine.reader import Reader, TaskView
from holdfast.machine.rejections import task_not_found
from holdfast.machine.rows import Execution, Queue
from holdfast.raft.messages import EntryKind, LogEntry
from holdfast.serving.refusals import OutcomeUnknownError, RefusedError, change_refused, shutting_down
from holdfast.storage.rocksdb import StateFullError

SLICE_SECONDS = 0.002  # how long entries are applied before other work of the loop gets a turn
APPLY_SECONDS_MAX = 0.004  # how long before another shard of the node gets its turn
APPLY_ENTRIES_MAX = 64  # taken from the log at once
FULL_SECONDS = 0.2  # between attempts to write when the disk has no room


class ShardHost(Protocol):
    """The node that a shard is on, as the shard sees it. Shards are named by their numbers."""

    def make_clock(self, number: int, last_applied_ms: int) -> ShardClock:
        """For one leadership."""
        ...

    def wake(self, number: int) -> None:
        """There is something for a round."""
        ...

    def redirect(self, number: int) -> RefusedError:
        """Says who leads instead."""
        ...

    def leading_changed(self, number: int, leads: bool) -> None:
        """Calls are answered here from now on, or not any more."""
        ...

    def probe_reached(self, number: int, index: int) -> None:
        """The state is as of this mark."""
        ...


class Shard:
    """One shard of this node. What its leader's parts write goes through it: it is their `Proposer`."""

    def __init__(self, machine: Machine, replicator: Replicator, host: ShardHost, context: NodeContext) -> None:
        self.machine = machine
        self._replicator = replicator
        self._host = host
        self._context = context
        self._disk = context.disk
        self._metrics = context.metrics
        self._draining = False
        self._committed_index = machine.meta.applied_index  # what the state holds; the machine may be ahead
        self.state_lags = False  # something is applied and, for lack of room, not yet written
        config = context.config
        self.proposals = ProposalQueue(config.proposals_max, config.proposals_bytes_max)
        self._reads = ReadBarrier(config.proposals_max)
        self.entries = DecodedEntries(machine.meta.shard, config.skipped)
        self._term = 0  # in which this replica leads; 0: it does not
        self._leading: Leadership | None = None  # what it has for that, once it has begun
        self._lead_not_before_s = 0.0

    # --- life -------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Refuses new work and cancels waiters; what is on its way is finished."""
        self._draining = True
        if self._leading is not None:
            self._leading.drain()

    async def stop(self) -> None:
        if self._leading is not None:
            await self._leading.stop()

    def failed(self) -> BaseException | None:
        """The error that ended a part of this shard, if one did: a bug that must stop the node."""
        return None if self._leading is None else self._leading.failed()

    def replace_state(self, machine: Machine) -> None:
        """A snapshot took the place of the state. Only followers get one."""
        assert self._leading is None, "a leader needs no snapshot"
        self.machine = machine
        self._committed_index = machine.meta.applied_index

    def replace_replicator(self, replicator: Replicator) -> None:
        """What was staged is lost here, and this replica goes on as if it had crashed: it leads nobody."""
        self._replicator = replicator

    # --- leading ----------------------------------------------------------------------------------------------

    def role_changed(self, term: int) -> None:
        """This replica leads in this term from now on, or not any more: 0. What it led in before has ended."""
        self._term = term
        if self._leading is not None:
            self._stop_leading(self._leading)
        self._lead_if_due()

    def _lead_if_due(self) -> None:
        if self._leading is None and self._term and not self._draining and time.monotonic() >= self._lead_not_before_s:
            self._start_leading(self._term)

    def _start_leading(self, term: int) -> None:
        clock = self._host.make_clock(self.number, self.machine.meta.now_ms)
        leading = Leadership(term, self.machine, clock, self, self._context)
        self._leading = leading
        # Below the watermark too: it adds next to nothing, and without it nobody could be served or even refused.
        proposal = Proposal(LeaderStarted(clock.now_ms(), clock.started_by_step))
        proposal.future.add_done_callback(lambda done: self._open(leading) if not done.exception() else None)
        self.proposals.add(proposal)

    def _open(self, leading: Leadership) -> None:
        if leading is self._leading and not self._draining:
            leading.open()
            self._host.leading_changed(self.number, True)

    def _stop_leading(self, leading: Leadership) -> None:
        """Of what is in the log nobody here can know whether it will be committed; the rest was not begun."""
        self._leading = None
        for proposal in self.proposals.drop_staged():
            proposal.reject(OutcomeUnknownError())
        for proposal in self.proposals.drop_waiting():
            proposal.reject(self._redirect())
        leading.end(self._redirect())
        self._reads.end(self._redirect())
        if leading.is_open:
            self._host.leading_changed(self.number, False)

    async def follow_clock(self) -> bool:
        """Moves shard time by an entry of its own, if a majority has been far ahead for a while. To be called often."""
        leading = self._leading
        to_ms = leading.clock.step_wanted_ms() if leading is not None and leading.is_open else None
        if leading is None or to_ms is None:
            return False
        try:
            await self.submit_housekeeping(LeaderStarted(to_ms, stepped=True))
        except (RefusedError, OutcomeUnknownError):
            return False
        leading.clock.stepped(to_ms)
        leading.time_was_moved()
        return True

    def time_ms(self) -> int:
        """Shard time for the other replicas to hear; 0 unless this node leads."""
        return self._leading.clock.now_ms() if self._leading is not None and self._leading.is_open else 0

    @property
    def term(self) -> int:
        """In which this replica leads; 0 if it does not."""
        return self._term

    @property
    def leading(self) -> Leadership | None:
        """What it has as the leader; None if it does not lead."""
        return self._leading

    @property
    def is_draining(self) -> bool:
        return self._draining

    @property
    def serves(self) -> bool:
        """Whether calls are answered here."""
        return self._leading is not None and self._leading.is_open

    def _redirect(self) -> RefusedError:
        return self._host.redirect(self.number)

    def _leads(self) -> Leadership:
        if self._leading is None or not self._leading.is_open:
            raise self._redirect()
        return self._leading

    # --- writes -----------------------------------------------------------------------------------------------

    def now_ms(self) -> int:
        """Shard time; only the leader knows it."""
        return self.leader_clock().now_ms()

    def leader_clock(self) -> ShardClock:
        """For a call that needs it until its end: it runs on if the leadership ends before."""
        return self._leads().clock

    async def submit(self, entry: Entry) -> list[Outcome]:
        """Proposes an entry and waits for its outcomes: they come once it is durable on a majority and applied."""
        self.check_open(entry)
        proposal = Proposal(entry)
        self.propose(proposal)
        return await proposal.future

    async def submit_all(self, entries: Sequence[Entry]) -> list[list[Outcome]]:
        """Proposes entries that belong together, one behind the other; all of them or none are taken up."""
        for entry in entries:
            self.check_open(entry)
        proposals = [Proposal(entry) for entry in entries]
        for proposal in proposals:
            self.propose(proposal)
        ended = await asyncio.gather(*(proposal.future for proposal in proposals), return_exceptions=True)
        failed = [error for error in ended if isinstance(error, BaseException)]
        if failed and len(failed) < len(ended):
            raise OutcomeUnknownError  # for some it is known, but the caller asks for all
        if failed:
            unknown = [error for error in failed if isinstance(error, OutcomeUnknownError)]
            raise (unknown or failed)[0]
        return [outcomes for outcomes in ended if not isinstance(outcomes, BaseException)]

    async def set_queue(self, queue: bytes, version: int, policy: bytes) -> bool:
        """Logs what a queue does in its own way, a serialized QueuePolicy. False if this version or a newer one is
        known already."""
        if len(policy) > POLICY_BYTES_MAX:
            raise ValueError(f"a policy of {len(policy)} bytes is too large: at most {POLICY_BYTES_MAX} are allowed")
        policies = self._leads().policies
        new = policies.parse(policy)  # what nobody can read must not get into the log
        changes_rates = policies.of(queue).limits.changes_rates(new.limits)
        await self.use_level(MACHINE_LEVEL)
        (outcome,) = await self.submit(SetQueue(self.now_ms(), queue, version, policy, changes_rates))
        return isinstance(outcome, Changed)

    async def use_level(self, level: int) -> None:
        """Returns once entries of this level may be used, or refuses: not every replica is known to know them."""
        if self.machine.meta.machine_level >= level:
            return
        self._leads()
        members = self._replicator.configuration.members
        if not self._context.cluster_view.all_know_level(members, level):
            sentence = (
                f"Expected every replica to have a machine of level {level}, but some do not; upgrade them first."
            )
            raise change_refused("machine_level", sentence)
        await self.submit_housekeeping(RaiseLevel(self.now_ms(), level))

    async def reserve(self, wanted: ReserveWanted) -> list[Claimed] | RunDry:
        """Claims tasks, waiting for the first one if there is none. A caller that goes away claims nothing."""
        return await self._leads().reserver.reserve(wanted)

    async def await_tasks(self, wanted: AwaitWanted) -> Awaited:
        """Waits until there is a task to claim, without claiming it."""
        leading = self._leads()
        if wanted.request_id:
            await self.read_barrier()
        return await leading.reserver.await_tasks(wanted)

    async def wait_finished(self, task_ids: list[bytes], wait_ms: int) -> list[Execution | None]:
        """Waits until all are finished or unknown, or the time is over; returns what each is then."""
        leading = self._leads()
        await self.read_barrier()
        return await leading.result_waiters.wait(task_ids, wait_ms)

    async def hold_outbox(self) -> OutboxHold:
        """Keeps tasks for other shards in the outbox; returns when none is on its way."""
        return await self._leads().hold_outbox()

    async def read_barrier(self) -> None:
        """Returns once the state is known to have everything that was acknowledged before the call."""
        self._leads()
        if not self._replicator.is_alone:
            self._host.wake(self.number)
            await self._reads.wait()

    def check_open(self, entry: Entry | None = None, coming: int = 0) -> None:
        """Refuses if no write of a caller can be taken now: whatever it is, or this one. `coming`: calls that were
        taken already, and are proposed in a moment."""
        if self._draining:
            raise shutting_down()
        self._leads()
        self.check_written()
        self.proposals.check_room(coming)
        if entry is not None:
            self._disk.check(entry)

    def check_room(self, entry: Entry) -> None:
        self.check_written()
        self._disk.check(entry)

    def check_written(self) -> None:
        """Refuses while the state lags behind the machine: a claim would be picked from a ready line that lags behind
        its marks, or a caller be told of claims before it is known whether they go back."""
        if self.state_lags:
            raise self._disk.found_full()

    def propose(self, proposal: Proposal) -> None:
        if self._leading is None:  # lost since the proposal was decided
            proposal.reject(self._redirect())
            return
        self.proposals.add(proposal)
        self._host.wake(self.number)

    async def submit_housekeeping(self, entry: Entry) -> list[Outcome]:
        self.check_room(entry)
        if self._leading is None:
            raise self._redirect()
        proposal = Proposal(entry)
        self.proposals.add_housekeeping(proposal)
        self._host.wake(self.number)
        return await proposal.future

    # --- rounds -----------------------------------------------------------------------------------------------

    def stage(self, budget: RoundBudget | None = None) -> int:
        """Hands waiting proposals to the replicator, as many as the round takes; returns how many."""
        self.step_reads()
        self._lead_if_due()
        if self._leading is None or not self._replicator.accepts:
            return 0
        taken = self.proposals.take_round(budget)
        for proposal in taken:
            index = self._replicator.propose(proposal.payload)
            assert index is not None
            self.proposals.stage(index, proposal)
        return len(taken)

    def aborted(self, error: Exception, last_index: int) -> None:
        """The disk had no room for the round: nothing of it was written, and what waits behind it must not be either.

        Entries that wait were decided as if those before them would be applied (low-water marks), so all after
        `last_index` are refused and the scheduler starts afresh. Those up to it are in the log and will be applied.
        """
        dropped = [*self.proposals.drop_staged(last_index), *self.proposals.drop_waiting()]
        if self._leading is not None:
            self._leading.reserver.reset()
            if not self._leading.is_open:
                # Its first entry is among them: it begins again, a little later.
                self._leading = None
                self._lead_not_before_s = time.monotonic() + FULL_SECONDS
        for proposal in dropped:
            proposal.reject(error)

    def give_up(self) -> None:
        """The node is about to stop: nobody here will learn how the writes on their way ended."""
        for proposal in [*self.proposals.drop_staged(), *self.proposals.drop_waiting()]:
            proposal.reject(OutcomeUnknownError())
        self._reads.end(shutting_down())
        self.drain()

    async def apply_committed(self, *, callers_first: bool = False) -> bool:
        """One turn: applies what is committed, in slices that leave room for other work. False if more is left.

        With `callers_first`, housekeeping is left while callers wait for a round, unless others wait behind it for
        their answers. To be followed by a call without it: what was agreed later cannot be applied before.
        """
        began = started = time.perf_counter()
        replicator = self._replicator
        while replicator.ready_index > self._committed_index and (committed := replicator.committed(APPLY_ENTRIES_MAX)):
            position = 0
            while position < len(committed):
                if callers_first and self.callers_wait and self._is_all_housekeeping(committed[position:]):
                    return False
                position, applied = self._apply_slice(committed, position, started)
                self._follow(await self._commit(), applied)
                replicator.applied(self._committed_index)
                if committed[position - 1].kind == EntryKind.PROBE:
                    self._host.probe_reached(self.number, self._committed_index)
                ended = time.perf_counter()
                self._metrics.apply_seconds.observe(ended - started)
                if position < len(committed):
                    await asyncio.sleep(0)
                started = time.perf_counter()
                if started - began > APPLY_SECONDS_MAX:
                    return False
        self.step_reads()
        return True

    def step_reads(self) -> None:
        """Ends the reads that are known to be current by now."""
        self._reads.step(self._replicator, self._committed_index)

    def _apply_slice(self, committed: Sequence[LogEntry], position: int, started: float) -> tuple[int, Applied]:
        applied: Applied = []
        while position < len(committed):
            record = committed[position]
            proposal = self.proposals.staged_at(record.index)
            if proposal is not None and not proposal.is_callers and applied and applied[-1][0].is_callers:
                break  # callers get their answers before housekeeping is applied
            entry: Entry | None = None
            if record.kind == EntryKind.REGULAR:
                entry = proposal.entry if proposal is not None else self.entries.take(record)
            if entry is not None:
                outcomes = self.machine.apply(record.index, record.term, entry)
                if proposal is not None:
                    applied.append((proposal, outcomes))
            else:
                self.machine.pass_over(record.index, record.term)
            position += 1
            if record.kind == EntryKind.PROBE or time.perf_counter() - started > SLICE_SECONDS:
                break  # a probe asks for the state as it is after it
        return position, applied

    def _is_all_housekeeping(self, committed: Sequence[LogEntry]) -> bool:
        """Whether nobody waits for an answer to one of these."""
        proposals = [self.proposals.staged_at(record.index) for record in committed]
        return all(proposal is not None and not proposal.is_callers for proposal in proposals)

    @property
    def only_housekeeping_is_left(self) -> bool:
        """Whether nobody waits for an answer to what is to be applied next. A follower answers nobody, but it must keep
        up with its leader: what it has to apply is no housekeeping."""
        if not self.proposals.staged_housekeeping:
            return False
        last_index = min(self._replicator.ready_index, self._committed_index + APPLY_ENTRIES_MAX)
        proposals = [self.proposals.staged_at(index) for index in range(self._committed_index + 1, last_index + 1)]
        return all(proposal is not None and not proposal.is_callers for proposal in proposals)

    @property
    def callers_wait(self) -> bool:
        """Whether the next round will take something of a caller's."""
        return self._leading is not None and self.proposals.callers_wait and self._replicator.accepts

    async def _commit(self) -> Effects:
        """Writes what was applied. It is durable in the log, so a full disk only delays this."""
        while True:
            try:
                effects = self.machine.commit()
                self.state_lags = False
                self._committed_index = self.machine.meta.applied_index
                return effects
            except StateFullError:
                self.state_lags = True
                self._disk.found_full()
                await asyncio.sleep(FULL_SECONDS)

    def _follow(self, effects: Effects, applied: Applied) -> None:
        self.proposals.applied(self._committed_index)
        if self._leading is not None:
            self._leading.clock.not_before(self.machine.meta.now_ms)
            self._leading.follow(effects, applied)

    def serve_all_waiters(self) -> None:
        """Looks for tasks for everyone who waits, after writes were refused for a while."""
        if self._leading is not None:
            self._leading.reserver.serve_all_waiters()

    def elsewhere(self, new: NewTask) -> int | None:
        """The other shard to which a new task belongs; None if it belongs here, or nothing can be brought elsewhere."""
        if self._context.others is None:
            return None
        owner = self._context.cluster_view.owner_of(self.number, new)
        return None if owner == self.number else owner

    # --- reads ------------------------------------------------------------------------------------------------

    @property
    def reader(self) -> Reader:
        """Of what is in the state."""
        return self.machine.reader

    async def current_task(self, task_id: bytes) -> TaskView:
        """Everything that is known of a task at this moment, or a refusal."""
        await self.read_barrier()
        task = self.reader.task(task_id, self.now_ms())
        if task is None:
            rejection = task_not_found()
            raise RefusedError(rejection.code, rejection.message, field="task_id")
        return task

    async def allocate(self, source: int, reports: Sequence[LimitReport]) -> list[LimitGrant]:
        """Allocates limits of queues whose home is here to another shard; refuses if this node does not lead."""
        return await self._leads().allocate(source, reports)

    def settings_reported(self, queue: bytes, version: int) -> None:
        """Another node knows this version of the queue's settings: see settings_guard.py."""
        settings = self._leads().settings
        if settings is not None:
            settings.reported(queue, version)

    @property
    def stats(self) -> Stats:
        """What is counted while this node leads; refuses if it does not."""
        return self._leads().stats

    def index_starts(self) -> dict[int, bytes]:
        """By family of those that are ordered by time: where its rows begin."""
        return self._leads().housekeeping.starts()

    def executions(self, task_ids: list[bytes]) -> list[Execution | None]:
        """For reading only, and at once."""
        return self.machine.executions(task_ids)

    def queue(self, name: bytes) -> Queue | None:
        """A queue's counters; None if nothing was ever enqueued to it."""
        return self.machine.queue(name)

    @property
    def number(self) -> int:
        return self.machine.meta.shard

    @property
    def policies(self) -> Policies | None:
        """What queues do in their own way; None if all are as the configuration says, or this node does not lead."""
        policies = None if self._leading is None else self._leading.policies
        return None if policies is None or policies.is_empty else policies

    def outboxes(self) -> list[tuple[int, int]]:
        """(destination, how many tasks are on their way there), for all to which there ever were some."""
        return [(destination, box.waiting) for destination, box in self.reader.outboxes()]

    def settings_version(self, queue: bytes) -> int:
        """The version of a queue's settings in the state; 0 if it has none."""
        return self.reader.settings_version(queue)

    def waiting_for(self, queue: bytes) -> int:
        return 0 if self._leading is None else self._leading.reserver.waiting_for(queue)

    def oldest_ready_age_ms(self, name: bytes, queue: Queue) -> int:
        """How long the oldest ready task has been in its line, claims that came to nothing counted in; 0 if there is
        none."""
        task_id = None
        if queue.ready:
            task_id = self.reader.oldest_ready(self.machine.ready_in_age_page, name, queue)
        (task,) = self.executions([task_id]) if task_id is not None else (None,)
        return max(0, self.now_ms() - task.ready_since_ms) if task is not None else 0

    def oldest_claim_age_ms(self, name: bytes) -> int:
        """For how long the oldest claim of a queue has been held, as it was seen some seconds ago."""
        return 0 if self._leading is None else self._leading.claim_ages.age_ms(name)

    @property
    def waiters(self) -> int:
        return 0 if self._leading is None else self._leading.reserver.waiting

    @property
    def watched_tasks(self) -> int:
        return 0 if self._leading is None else self._leading.result_waiters.watched

    @property
    def proposals_waiting(self) -> int:
        return self.proposals.waiting + self.proposals.staged

    @property
    def has_work(self) -> bool:
        """Whether something waits for a round."""
        if self._leading is None:
            return False
        return (self.proposals.waiting > 0 and self._replicator.accepts) or self._reads.want_a_question

    @property
    def applied_index(self) -> int:
        """The newest entry that is in the state."""
        return self._committed_index

    @property
    def clock(self) -> ShardClock | None:
        """None unless this node leads."""
        return None if self._leading is None else self._leading.clock
