"""How tasks are handed out: reserve calls, those that wait, and claims whose caller has gone."""

import asyncio
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from holdfast.broker.config import BrokerConfig
from holdfast.broker.leader.clock import ShardClock
from holdfast.broker.leader.picking import Picking, line_of
from holdfast.broker.leader.proposals import Proposal
from holdfast.broker.leader.ready_waiters import HELD, NOTHING, Awaited, AwaitWanted, ReadyWaiters
from holdfast.broker.leader.roles import Proposer
from holdfast.broker.leader.suspects import RunDry
from holdfast.broker.leader.waiters import ClaimProposal, Waiter, Waiters
from holdfast.broker.policy.policies import Policies
from holdfast.broker.scheduler.allocation_use import NOTHING_OPEN, Outlook
from holdfast.broker.scheduler.limiter import OWN_LIMITS, Allowance
from holdfast.broker.scheduler.picks import Picked
from holdfast.broker.scheduler.scheduler import Scheduler
from holdfast.broker.scheduler.slices import still_there
from holdfast.common.shared_deadlines import SharedDeadlines
from holdfast.machine.effects import Effects
from holdfast.machine.entries import BucketLevel, Claim, ClaimRef, Mark, Release
from holdfast.machine.entry_parts import DEPARTING_BYTES_MAX, departing_bytes, in_parts
from holdfast.machine.ids import SECRET_BITS, later_task_id, later_token
from holdfast.machine.machine import Machine
from holdfast.machine.outcomes import Claimed, Outcome
from holdfast.serving.refusals import RefusedError

CLAIM_REQUEST_KEEP_MS = 10 * 60 * 1000
WAKE_MS_MIN = 1
WAKE_MS_MAX = 1000  # shard time may be moved meanwhile

_NOTHING = Claim(0, 0, b"", b"", 0, [], [])  # to ask whether a claim would be let in

Applied = list[tuple[Proposal, list[Outcome]]]


@dataclass(slots=True)
class ReserveWanted:
    """A worker's request for tasks, already validated."""

    queues: list[bytes]
    tasks_max: int
    lease_ms: int
    wait_ms: int
    worker: bytes
    request_id: bytes
    queue_tasks_max: dict[bytes, int] = field(default_factory=dict)  # for the queues that have a limit of their own
    type_lease_ms: dict[bytes, int] = field(default_factory=dict)  # for the types that have a lease of their own
    empty_handed: bool | None = None  # whether the worker holds nothing; None: it does not say
    suspects_only: bool = False
    held_only: bool = False  # only what an earlier call of this request has claimed


def _is_repeat(proposal: Proposal, outcomes: list[Outcome]) -> bool:
    """Whether a claim's request had been answered before: its outcomes are those claims, and its picks stay ready."""
    entry = proposal.entry
    if not isinstance(entry, Claim) or not entry.request_id:
        return False
    for outcome in outcomes:
        if isinstance(outcome, Claimed):
            return not _asks_for(entry, outcome.task_id)
    return False


def _asks_for(claim: Claim, task_id: bytes) -> bool:
    if task_id in claim.task_ids or not claim.counts:
        return task_id in claim.task_ids
    slices = zip(claim.task_ids, claim.counts, strict=True)
    return any(first_id <= task_id < later_task_id(first_id, count) for first_id, count in slices)


def draw_secret() -> int:
    """What nobody can guess of the tokens of one claim. Never 0, which stands for none on the wire."""
    return int.from_bytes(os.urandom(SECRET_BITS // 8), "big") or 1


class Reserver:
    """Hands out the tasks of one shard."""

    def __init__(
        self,
        machine: Machine,
        clock: ShardClock,
        config: BrokerConfig,
        proposer: Proposer,
        policies: Policies,
        *,
        allowance: Callable[[bytes], Allowance] = lambda _queue: OWN_LIMITS,
    ) -> None:
        """`allowance`: what this shard may use of the limits of a queue that is spread, if it is."""
        self._reader = machine.reader
        self._machine = machine
        self._policies = policies
        self._clock = clock
        self._config = config
        self._proposer = proposer
        self._waiters: Waiters[Waiter] = Waiters(config.waiters_max)
        self._deadlines: SharedDeadlines[Waiter] = SharedDeadlines(Waiter.give_up)
        self._polls: dict[tuple[bytes, bytes], Waiter] = {}  # waiting calls by worker and request
        self._returning: set[int] = set()  # tokens of claims that go back because their caller has gone
        self._draining = False
        self._claims: dict[Proposal, None] = {}  # that are proposed and not yet applied, in order
        self._unsettled: list[Proposal] = []  # those of them from before a reset that may be applied nevertheless
        self._wake: asyncio.TimerHandle | None = None
        self._wake_ms = 0  # the shard time for which it is set
        self._is_poll_pending = False  # a look for tasks that stopped half-way goes on soon
        self.scheduler = Scheduler(
            machine,
            policy_of=policies.to_claim,
            now_ms=clock.now_ms,
            window_tasks_max=config.ready_window_tasks,
            allowance=allowance,
            wake_at=self._wake_at,
        )
        self._picking = Picking(
            machine,
            self.scheduler,
            now_ms=clock.now_ms,
            claims_per_worker_max=config.claims_per_worker_max,
            bytes_max=config.batch_bytes_max,
        )
        self._ready_waiters = ReadyWaiters(
            self._picking.available, calls_max=config.waiters_max, may_offer=lambda: self._may_claim()
        )

    async def reserve(self, wanted: ReserveWanted) -> list[Claimed] | RunDry:
        """Claims tasks, waiting for the first one if there is none. A caller that goes away claims nothing."""
        deadline_ms = self._clock.now_ms() + wanted.wait_ms
        if wanted.request_id:
            self._send_home_an_older_call(wanted.worker, wanted.request_id)
            claimed_now = await self._claim_unproven(wanted, deadline_ms)
            if claimed_now:
                return claimed_now
            await self._proposer.read_barrier()
            if wanted.held_only:
                await self._until_applied(wanted.worker, wanted.request_id)
            held = self._held_by_request(wanted.worker, wanted.request_id)
            if held or wanted.held_only or claimed_now is None:
                return held
        while True:
            waiter = self._waiter(wanted)
            claimed_now = await self._claim_or_wait(waiter, deadline_ms)
            if waiter.runs_dry:
                return RunDry()
            if claimed_now is None:
                # An older call of the same request may have claimed in the last moment, for a caller that is not there.
                return self._held_by_request(wanted.worker, wanted.request_id) if wanted.request_id else []
            # Every pick may have been cancelled on its way; then the wait goes on.
            if claimed_now or self._clock.now_ms() >= deadline_ms:
                return claimed_now

    async def _claim_unproven(self, wanted: ReserveWanted, deadline_ms: int) -> list[Claimed] | None:
        """Claims, or waits for something to claim, before it is known whether this node still leads. None if it has
        waited in vain, and an empty list if a proof is needed first.

        A claim is its own proof: only a leader's is committed. And whether the request has claimed before is found
        where the claim is applied, behind all that was committed before it. Everything else that a call may be told of
        comes out of the state of this moment, and has to wait for a proof: what the request holds, that there is
        nothing to claim, or why nothing may be claimed. In a leader that was cut off none of it need be true.
        """
        if wanted.held_only or self._held_by_request(wanted.worker, wanted.request_id):
            return []
        if self._picking.has_suspects(wanted.queues):
            return []  # to ask a worker twice in one call would be to ask it anew
        try:
            self._proposer.check_open(_NOTHING)
            waiter = self._waiter(wanted)
            if self._claim_what_is_left(waiter):
                return await self._claimed(waiter) or []
            wait_ms = deadline_ms - self._clock.now_ms()
            if waiter.runs_dry or wait_ms <= 0 or self._coming_claims(wanted.worker, wanted.request_id):
                return []
            return await self._wait(waiter, wait_ms)
        except RefusedError:
            return []

    async def await_tasks(self, wanted: AwaitWanted) -> Awaited:
        """Waits until there is a task to claim, and claims none."""
        worker, request_id = wanted.worker, wanted.request_id
        if request_id:
            self._send_home_an_older_call(worker, request_id)
            if self._held_by_request(worker, request_id):
                return HELD
        self._proposer.check_open(_NOTHING)
        self._picking.check_room(worker, holds_nothing=bool(wanted.empty_handed))
        hands = self._picking.hands(worker, wanted.empty_handed, suspects_only=wanted.suspects_only)
        answer = await self._ready_waiters.wait(wanted, hands.lines(wanted.queues))
        if answer == NOTHING and request_id and self._held_by_request(worker, request_id):
            return HELD  # an older call of the same request claimed in the last moment
        return answer

    async def _until_applied(self, worker: bytes, request_id: bytes) -> None:
        """A claim of this request that is on its way: that it holds nothing would be said too soon."""
        coming = self._coming_claims(worker, request_id)
        if coming:
            await asyncio.wait([proposal.future for proposal in coming])

    def _coming_claims(self, worker: bytes, request_id: bytes) -> list[Proposal]:
        """Of a request, that are proposed and not yet applied."""
        coming: list[Proposal] = []
        for proposal in (*self._claims, *self._unsettled):
            entry = proposal.entry
            if isinstance(entry, Claim) and entry.request_id == request_id and entry.worker == worker:
                coming.append(proposal)
        return coming

    def _held_by_request(self, worker: bytes, request_id: bytes) -> list[Claimed]:
        """What the request has been given and still holds."""
        now_ms = self._clock.now_ms()
        held = self.still_held(self._machine.claims_of_request(worker, request_id))
        held = [claim for claim in held if claim.expiry_ms > now_ms]
        if held:
            self._proposer.check_written()
        return held

    def _send_home_an_older_call(self, worker: bytes, request_id: bytes) -> None:
        """Who repeats a request no longer waits for its first answer: its connection broke, and nobody told us."""
        older = self._polls.get((worker, request_id)) if self._polls else None
        if older is not None:
            older.give_up()
        if self._ready_waiters:
            self._ready_waiters.send_home(worker, request_id)

    def _waiter(self, wanted: ReserveWanted) -> Waiter:
        return Waiter(
            wanted.queues,
            wanted.tasks_max,
            wanted.lease_ms,
            wanted.worker,
            wanted.request_id,
            wanted.queue_tasks_max,
            wanted.type_lease_ms,
            self._picking.hands(wanted.worker, wanted.empty_handed, suspects_only=wanted.suspects_only),
        )

    async def _claim_or_wait(self, waiter: Waiter, deadline_ms: int) -> list[Claimed] | None:
        """What it was given; None if it was nothing, or is to run dry."""
        self._proposer.check_open(_NOTHING)
        if self._claim_what_is_left(waiter):
            return await self._claimed(waiter)
        if waiter.runs_dry:
            return None
        wait_ms = deadline_ms - self._clock.now_ms()
        if wait_ms > 0:
            return await self._wait(waiter, wait_ms)
        # Others wait, but this caller does not: it may take what they left.
        return await self._claimed(waiter) if self._try_claim(waiter, waiter.queues) else None

    def _claim_what_is_left(self, waiter: Waiter) -> bool:
        """Where others wait already nothing is left to take, but in the other queues there may be."""
        queues = waiter.queues
        if self._waiters:
            queues = [queue for queue in queues if self._waiters.first(queue) is None]
        return self._try_claim(waiter, queues)

    async def _wait(self, waiter: Waiter, wait_ms: int) -> list[Claimed] | None:
        self._waiters.add(waiter)
        name = (waiter.worker, waiter.request_id)
        if waiter.request_id:
            self._polls[name] = waiter
        step = self._deadlines.add(waiter, wait_ms / 1000)
        try:
            return await self._claimed(waiter)
        finally:
            self._deadlines.remove(waiter, step)
            self._waiters.remove(waiter)
            if self._polls.get(name) is waiter:
                del self._polls[name]

    async def _claimed(self, waiter: Waiter) -> list[Claimed] | None:
        """What it was given, once that is applied; None if it was nothing."""
        try:
            return await waiter.future
        except asyncio.CancelledError:
            if waiter.proposal is not None:
                self._release_when_claimed(waiter.proposal)
            raise

    # --- picking and proposing --------------------------------------------------------------------------------

    def _is_written(self) -> bool:
        """Whether the state has all that was applied."""
        try:
            self._proposer.check_written()
        except RefusedError:
            return False
        return True

    def _may_claim(self) -> bool:
        """Whether a claim would be let in; otherwise those who wait are served when space is back."""
        try:
            self._proposer.check_room(_NOTHING)
        except RefusedError:
            return False
        return True

    def _try_claim(self, waiter: Waiter, queues: list[bytes]) -> bool:
        """Picks tasks and proposes their claim in one step: the log must have claims in the order of the picks.

        Also False if the caller is to run dry instead."""
        if self._unsettled:
            self._adopt()
        picks = self._picking.pick(waiter, queues)
        if self._ready_waiters.has_offers:
            for picked in picks:
                self._ready_waiters.was_taken(line_of(picked), picked.tasks)
        if self.scheduler.unfinished:
            self._poll_soon()
        if not picks:
            return False
        entry = self._claim_entry(waiter, picks)
        proposal = waiter.proposal = ClaimProposal(entry, picks, waiter)
        self._claims[proposal] = None
        self._picking.was_proposed(entry)
        self._proposer.propose(proposal)
        return True

    def _claim_entry(self, waiter: Waiter, picks: list[Picked]) -> Claim:
        now_ms = self._clock.now_ms()
        task_ids: list[bytes] = []
        counts: list[int] = []
        marks: list[Mark] = []
        levels: list[BucketLevel] = []
        for picked in picks:
            task_ids += picked.task_ids
            counts += picked.counts
            marks += picked.marks
            levels += picked.levels
        lease_ms_max = max(waiter.lease_ms, *waiter.type_lease_ms.values(), CLAIM_REQUEST_KEEP_MS)
        return Claim(
            now_ms,
            now_ms + waiter.lease_ms,
            waiter.worker,
            waiter.request_id,
            now_ms + lease_ms_max,
            task_ids,
            marks,
            levels,
            {name: now_ms + lease_ms for name, lease_ms in waiter.type_lease_ms.items()},
            draw_secret(),
            picks[0].is_suspect,
            counts if sum(counts) > len(counts) else [],
        )

    # --- what was applied -------------------------------------------------------------------------------------

    def follow(self, effects: Effects, applied: Applied) -> None:
        """Takes note of what was applied and serves those who wait for it."""
        queues = self._update_scheduler(effects, applied)
        if self._waiters:
            for line in self._picking.lines_of(queues):
                self.serve_waiters(line)
        if self._ready_waiters:
            self._notify_ready_waiters(queues, applied)

    def _notify_ready_waiters(self, queues: Iterable[bytes], applied: Applied) -> None:
        """Offers what those who wait to claim have left. A settled claim changes what is counted as left, too."""
        touched = dict.fromkeys(queues)
        for proposal, outcomes in applied:
            entry = proposal.entry
            if isinstance(entry, Claim):
                touched.update((picked.queue, None) for picked in proposal.picks)
                if entry.request_id and not proposal.abandoned and self.still_held(outcomes):
                    self._ready_waiters.was_claimed(entry.worker, entry.request_id)
        self._ready_waiters.poll(self._picking.lines_of(touched))

    def answer(self, proposal: Proposal, outcomes: list[Outcome]) -> list[Outcome]:
        """What the caller of a claim is told. If it has gone, its claims go back instead."""
        if proposal.abandoned and not _is_repeat(proposal, outcomes):
            self._release_abandoned(outcomes)
            return outcomes
        return list[Outcome](self.still_held(outcomes))

    def _update_scheduler(self, effects: Effects, applied: Applied) -> Iterable[bytes]:
        """Tells the scheduler what was applied; returns the queues in which tasks can be picked now."""
        ready, withdrawn = still_there(effects.ready, effects.withdrawn)
        if withdrawn:
            self.scheduler.was_withdrawn(withdrawn)
        queues = dict.fromkeys([task.queue for task in ready])
        for proposal, outcomes in applied:
            if proposal.picks:
                for queue in self._settle(proposal, outcomes):
                    queues[queue] = None
        if ready:
            self.scheduler.became_ready(ready)
        if effects.freed:
            for queue in self.scheduler.was_freed(effects.freed):
                queues[queue] = None
        for queue in effects.settings:
            self.scheduler.limits_changed(queue)
            queues[queue] = None
        return queues

    def _settle(self, proposal: Proposal, outcomes: list[Outcome]) -> list[bytes]:
        """A claim was applied. Returns the queues in which there may be more than was known."""
        self._claims.pop(proposal, None)
        if self._unsettled and proposal in self._unsettled:
            self._unsettled.remove(proposal)
        if isinstance(proposal.entry, Claim):
            self._picking.was_applied(proposal.entry)
        if _is_repeat(proposal, outcomes):
            for picked in proposal.picks:
                self.scheduler.give_back(picked)
            return [picked.queue for picked in proposal.picks]
        refused = False
        for outcome in outcomes:
            refused |= not isinstance(outcome, Claimed)
        for picked in proposal.picks:
            self.scheduler.settle(picked, refused=refused)
        return [picked.queue for picked in proposal.picks] if refused else []  # a cap may have room for another one

    def serve_waiters(self, line: bytes) -> None:
        while (waiter := self._waiters.first(line)) is not None:
            if waiter.future.done():  # gave up or went away, and has not had its turn to say so
                self._waiters.remove(waiter)
                continue
            if not self._may_claim():
                return
            try:
                is_served = self._try_claim(waiter, waiter.queues)
            except RefusedError as refused:  # only this worker: it got its share through other calls meanwhile
                self._waiters.remove(waiter)
                waiter.refuse(refused)
                continue
            if not is_served and not waiter.runs_dry:
                return
            self._waiters.remove(waiter)
            waiter.give_up()  # unless it is served

    def serve_all_waiters(self) -> None:
        """Looks for tasks for everyone who waits, after writes were refused for a while."""
        for line in self._waiters.lines():
            self.serve_waiters(line)
        self._ready_waiters.poll_all()

    def pass_over(self, marks: Iterable[Mark]) -> None:
        """Nothing is ready before these marks, so nothing need be read there."""
        self.scheduler.marks_were_raised(marks)

    def limits_changed(self, queue: bytes) -> None:
        """The allowance of the queue is another one."""
        self.scheduler.limits_changed(queue)
        self._poll([queue])

    def _poll(self, queues: Iterable[bytes]) -> None:
        """There may be more to claim in these queues than there was."""
        lines = self._picking.lines_of(queues)
        for line in lines:
            self.serve_waiters(line)
        self._ready_waiters.poll(lines)

    def _poll_soon(self) -> None:
        """Some queues have so much that is blocked that it is looked through bit by bit."""
        if not self._is_poll_pending:
            self._is_poll_pending = True
            asyncio.get_running_loop().call_soon(self._resume_poll)

    def _resume_poll(self) -> None:
        self._is_poll_pending = False
        queues = list(self.scheduler.unfinished)
        self.scheduler.unfinished.clear()
        if not self._draining:
            self._poll(queues)

    def _wake_at(self, when_ms: int) -> None:
        """A rate lets something through then."""
        if self._draining or (self._wake is not None and self._wake_ms <= when_ms):
            return
        self._stop_wake()
        wait_ms = max(WAKE_MS_MIN, when_ms - self._clock.now_ms())
        self._wake_ms = when_ms
        self._wake = asyncio.get_running_loop().call_later(min(wait_ms, WAKE_MS_MAX) / 1000, self._woken)

    def _woken(self) -> None:
        self._wake = None
        self._poll(self.scheduler.open_due())

    def _stop_wake(self) -> None:
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None

    # --- callers that have gone -------------------------------------------------------------------------------

    def still_held(self, outcomes: Sequence[Outcome]) -> list[Claimed]:
        """The claims among them, without those on their way back because their first caller has gone. Of a slice all go
        back or none."""
        returning = self._returning
        return [done for done in outcomes if isinstance(done, Claimed) and done.token not in returning]

    def _release_when_claimed(self, proposal: Proposal) -> None:
        """The caller has gone: what its claim brings goes back at once instead of waiting for the lease to end."""
        if not proposal.future.done():
            proposal.abandoned = True
        elif isinstance(proposal.entry, Claim) and not proposal.entry.request_id and not proposal.future.exception():
            # With a request id the claims are there to be asked for again, and somebody else may have done so.
            self._release_abandoned(proposal.future.result())

    def _release_abandoned(self, outcomes: list[Outcome]) -> None:
        """Hands back claims whose answer reached nobody. The lease is the promise, so this may fail silently."""
        items = [
            ClaimRef(later_task_id(claim.task_id, index), later_token(claim.token, index))
            for claim in self.still_held(outcomes)
            for index in range(claim.tasks)
        ]
        if not items or self._draining:
            return
        tasks = self._reader.executions([item.task_id for item in items])
        sizes = [departing_bytes(task) for task in tasks]
        for kept in self._policies.kept(tasks):
            for part in in_parts(kept.places, sizes, DEPARTING_BYTES_MAX):
                self._give_back([items[place] for place in part], kept.finished_ms)

    def _give_back(self, items: list[ClaimRef], keep_ms: int) -> None:
        tokens = {item.token for item in items}
        self._returning |= tokens
        proposal = Proposal(Release(self._clock.now_ms(), keep_ms, items))
        proposal.future.add_done_callback(lambda _: self._returning.difference_update(tokens))
        self._proposer.propose(proposal)

    # --- life and looks ---------------------------------------------------------------------------------------

    def reset(self) -> None:
        """Claims on their way will never be applied: forgets what was picked for them."""
        self.scheduler.reset()
        self._picking.reset()
        self._unsettled += self._claims
        self._claims.clear()

    def _adopt(self) -> None:
        """Claims that a reset did not end, because they were in the log already, count against limits as before."""
        unsettled, self._unsettled = self._unsettled, []
        for proposal in unsettled:
            if proposal.future.done():  # it was refused
                continue
            self._claims[proposal] = None
            if isinstance(proposal.entry, Claim):
                self._picking.was_proposed(proposal.entry)
            for picked in proposal.picks:
                self.scheduler.adopt(picked)

    def drain(self) -> None:
        """Sends everyone who waits home."""
        self._draining = True
        self._stop_wake()
        self._ready_waiters.drain()
        for waiter in self._waiters.everyone():
            waiter.give_up()

    def dismiss(self, error: Exception) -> None:
        """Somebody else hands out the tasks now: tells everyone who waits."""
        self._draining = True
        self._stop_wake()
        self._ready_waiters.dismiss(error)
        for waiter in self._waiters.everyone():
            waiter.refuse(error)

    def coming(self, queue: bytes) -> int:
        """How many tasks of the queue are on their way to a claim."""
        if self._unsettled:
            self._adopt()
        return self.scheduler.coming(queue)

    def outlook(self, queue: bytes) -> Outlook:
        """What holds up the ready tasks of the queue, if anything does. While the state lags behind the machine claims
        count twice, applied and on their way: a look then would take open limiters for closed ones."""
        if not self._is_written():
            return NOTHING_OPEN
        if self._unsettled:
            self._adopt()
        return self.scheduler.outlook(queue)

    @property
    def waiting(self) -> int:
        return len(self._waiters) + len(self._ready_waiters)

    def waiting_for(self, queue: bytes) -> int:
        return self._waiters.waiting_for(queue) + self._ready_waiters.waiting_for(queue)
