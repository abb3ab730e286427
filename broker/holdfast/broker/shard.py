"""A shard on its leader: decides, proposes, applies, answers.

    propose -> (rounds.py: stage, sync) -> apply -> commit -> effects -> answer

Between a commit and the end of its effects nothing else runs, so a reader never sees one without the other.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

from holdfast.broker.clock import ShardClock
from holdfast.broker.config import BrokerConfig
from holdfast.broker.decisions import expire_verdict
from holdfast.broker.log.node_log import Entry as LogEntry
from holdfast.broker.metrics import Metrics
from holdfast.broker.proposals import Proposal, ProposalQueue
from holdfast.broker.refusals import WORKER_AT_LIMIT, OutcomeUnknownError, RefusedError, shutting_down
from holdfast.broker.replication import Replicator
from holdfast.broker.scheduler import Picked, Scheduler
from holdfast.broker.sweeps import Sweep
from holdfast.broker.waiters import Waiter, Waiters
from holdfast.machine import keys
from holdfast.machine.effects import Effects
from holdfast.machine.entries import (
    Claim,
    ClaimRef,
    Entry,
    Expire,
    ExpireItem,
    Forget,
    ForgetItem,
    LeaderStarted,
    Mark,
    Promote,
    Purge,
    Release,
    decode,
)
from holdfast.machine.handlers.purging import purge_allowed_ms
from holdfast.machine.kv import OrderedKV
from holdfast.machine.machine import Machine
from holdfast.machine.outcomes import Claimed, Outcome
from holdfast.machine.rejections import Rejection
from holdfast.machine.rows import CLAIMED, NOT_DEAD, Execution, Queue

SLICE_SECONDS = 0.002  # how long entries are applied before other work of the loop gets a turn
CLAIM_REQUEST_KEEP_MS = 10 * 60 * 1000


@dataclass(frozen=True, slots=True)
class ReserveWanted:
    """A worker's wish for tasks, already validated."""

    queues: list[bytes]
    tasks_max: int
    lease_ms: int
    wait_ms: int
    worker: bytes
    request_id: bytes


def _is_repeat(proposal: Proposal, outcomes: list[Outcome]) -> bool:
    """Whether a claim's request had been answered before: its outcomes are those claims, and its picks stay ready."""
    entry = proposal.entry
    if not isinstance(entry, Claim) or not entry.request_id:
        return False
    return len(outcomes) != len(entry.task_ids) or any(
        isinstance(outcome, Claimed) and outcome.task_id != task_id
        for outcome, task_id in zip(outcomes, entry.task_ids, strict=True)
    )


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
    ) -> None:
        self._kv = kv
        self._machine = machine
        self._replicator = replicator
        self._clock = clock
        self._config = config
        self._metrics = metrics
        self._wake_rounds = wake_rounds
        self._check_disk = check_disk
        self._proposals = ProposalQueue(config.proposals_max, config.proposals_bytes_max)
        self._staged: dict[int, Proposal] = {}  # by index: in the log or on the way there, not yet applied
        self._round = range(0)  # the indexes that the newest round appends
        self._waiters = Waiters(config.waiters_max)
        self._claims_by_worker: dict[bytes, int] = {}
        self._returning: set[int] = set()  # tokens of claims that go back because their caller has gone
        self._scheduler = Scheduler(
            kv,
            machine.queue,
            lambda: machine.meta.next_sequence,
            window_tasks_max=config.ready_window_tasks,
            oldest_share_percent=config.oldest_share_percent,
        )
        self._draining = False
        self._sweeps = self._make_sweeps()
        self._sweep_tasks: list[asyncio.Task[None]] = []

    # --- life -------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Writes the first entry of the term and begins to serve once it is applied."""
        await self._submit_housekeeping(LeaderStarted(self._clock.now_ms(), self._clock.started_by_step))
        self._sweep_tasks = [asyncio.create_task(sweep.run()) for sweep in self._sweeps.values()]

    def drain(self) -> None:
        """Refuses new work and sends waiting workers home; what is on its way is finished."""
        self._draining = True
        for waiter in self._waiters.everyone():
            waiter.give_up()

    async def stop(self) -> None:
        for task in self._sweep_tasks:
            task.cancel()
        await asyncio.gather(*self._sweep_tasks, return_exceptions=True)

    def failed(self) -> BaseException | None:
        """The error that ended a sweep, if one did: a bug that must stop the node."""
        for task in self._sweep_tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                return error
        return None

    @property
    def draining(self) -> bool:
        return self._draining

    @property
    def busy(self) -> bool:
        """Whether a write is on its way."""
        return bool(self._proposals) or bool(self._staged)

    # --- writes -----------------------------------------------------------------------------------------------

    def now_ms(self) -> int:
        return self._clock.now_ms()

    async def submit(self, entry: Entry) -> list[Outcome]:
        """Proposes an entry and waits for its outcomes: they come once it is durable on a majority and applied."""
        self._check_open(entry)
        proposal = Proposal(entry)
        self._proposals.add(proposal)
        self._wake_rounds()
        return await proposal.future

    def _check_open(self, entry: Entry) -> None:
        if self._draining:
            raise shutting_down()
        self._check_disk(entry)
        self._proposals.check_room()

    async def _submit_housekeeping(self, entry: Entry) -> list[Outcome]:
        self._check_disk(entry)
        proposal = Proposal(entry)
        self._proposals.add_housekeeping(proposal)
        self._wake_rounds()
        return await proposal.future

    # --- rounds -----------------------------------------------------------------------------------------------

    def stage(self) -> int:
        """Hands waiting proposals to the replicator; returns how many."""
        taken = self._proposals.take_round()
        first_index = self._replicator.stage([proposal.payload for proposal in taken]) if taken else 0
        self._round = range(first_index, first_index + len(taken))
        self._staged.update(zip(self._round, taken, strict=True))
        return len(taken)

    def flushed(self) -> None:
        self._replicator.flushed()

    def aborted(self, error: Exception) -> None:
        """The disk had no room for the round: nothing of it was written, and what waits behind it must not be either.

        Entries that wait were decided as if those before them would be applied (low-water marks), so all are refused
        and the scheduler starts afresh. The round before may still be being applied: it is durable and stays.
        """
        self._replicator.aborted()
        dropped = [*(self._staged.pop(index) for index in self._round), *self._proposals.drop_all()]
        self._scheduler.reset()
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
            at = self._apply_slice(committed, at)
            if at < len(committed):
                await asyncio.sleep(0)

    def _apply_slice(self, committed: list[LogEntry], at: int) -> int:
        started = time.perf_counter()
        applied: list[tuple[Proposal, list[Outcome]]] = []
        while at < len(committed):
            record = committed[at]
            proposal = self._staged.pop(record.index, None)
            entry = proposal.entry if proposal is not None else decode(record.payload)
            outcomes = self._machine.apply(record.index, record.term, entry)
            if proposal is not None:
                applied.append((proposal, outcomes))
            at += 1
            if time.perf_counter() - started > SLICE_SECONDS:
                break
        effects = self._machine.commit()
        to_serve = self._update_scheduler(effects, applied)
        self._run_effects(effects)
        if self._waiters:
            for queue in to_serve:
                self._serve_waiters(queue)
        for proposal, outcomes in applied:
            if proposal.abandoned and not _is_repeat(proposal, outcomes):
                self._release_abandoned(outcomes)
            elif proposal.picks:
                outcomes = [*self._still_held(outcomes)]
            proposal.resolve(outcomes)
        self._metrics.apply_seconds.observe(time.perf_counter() - started)
        return at

    def _update_scheduler(self, effects: Effects, applied: list[tuple[Proposal, list[Outcome]]]) -> Iterable[bytes]:
        """Tells the scheduler what was applied; returns the queues in which tasks can be picked now."""
        ready, withdrawn = effects.ready, effects.withdrawn
        if ready and withdrawn:  # what came and went at once was never there
            came, gone = {task.sequence for task in ready}, {task.sequence for task in withdrawn}
            ready = [task for task in ready if task.sequence not in gone]
            withdrawn = [task for task in withdrawn if task.sequence not in came]
        self._scheduler.was_withdrawn(withdrawn)
        queues = dict.fromkeys(task.queue for task in ready)
        for proposal, outcomes in applied:
            if not proposal.picks:
                continue
            if _is_repeat(proposal, outcomes):
                for picked in proposal.picks:
                    self._scheduler.give_back(picked)
                    queues[picked.queue] = None
            else:
                for picked in proposal.picks:
                    self._scheduler.settle(picked)
        self._scheduler.became_ready(ready)
        return queues

    def _run_effects(self, effects: Effects) -> None:
        for worker, delta in effects.claim_deltas.items():
            held = self._claims_by_worker.get(worker, 0) + delta
            if held > 0:
                self._claims_by_worker[worker] = held
            else:
                self._claims_by_worker.pop(worker, None)
        for family, when_ms in (
            (keys.CLAIM_EXPIRY, effects.expiry_ms),
            (keys.DUE, effects.due_ms),
            (keys.RETENTION, effects.purge_ms),
            (keys.FORGET, effects.forget_ms),
        ):
            if when_ms:
                self._sweeps[family].arm(when_ms)

    # --- claims -----------------------------------------------------------------------------------------------

    async def reserve(self, wanted: ReserveWanted) -> list[Claimed]:
        """Claims tasks, waiting for the first one if there is none. A caller that goes away claims nothing."""
        deadline_ms = self._clock.now_ms() + wanted.wait_ms
        if wanted.request_id:
            held = self._still_held(self._machine.claims_of_request(wanted.request_id))
            if held:
                return held
        while True:
            proposal = await self._claim_or_wait(wanted, deadline_ms)
            if proposal is None:
                return []
            claimed = await self._claimed(proposal)
            # Every pick may have been cancelled on its way; then the wait goes on.
            if claimed or self._clock.now_ms() >= deadline_ms:
                return claimed

    async def _claim_or_wait(self, wanted: ReserveWanted, deadline_ms: int) -> Proposal | None:
        tasks_max = self._tasks_allowed(wanted)
        waiter = Waiter(wanted.queues, tasks_max, wanted.lease_ms, wanted.worker, wanted.request_id)
        self._check_open(self._claim_entry(waiter, []))
        # Where others wait already nothing is left to take, but in the other queues there may be.
        proposal = self._try_claim(waiter, [queue for queue in wanted.queues if self._waiters.first(queue) is None])
        if proposal is not None:
            return proposal
        wait_ms = deadline_ms - self._clock.now_ms()
        if wait_ms <= 0:
            # Others wait, but this caller does not: it may take what they left.
            return self._try_claim(waiter, wanted.queues)
        return await self._wait(waiter, wait_ms)

    async def _wait(self, waiter: Waiter, wait_ms: int) -> Proposal | None:
        self._waiters.add(waiter)
        timer = asyncio.get_running_loop().call_later(wait_ms / 1000, waiter.give_up)
        try:
            return await waiter.future
        except asyncio.CancelledError:
            if waiter.future.done() and not waiter.future.cancelled() and (proposal := waiter.future.result()):
                self._release_when_claimed(proposal)
            raise
        finally:
            timer.cancel()
            self._waiters.remove(waiter)

    async def _claimed(self, proposal: Proposal) -> list[Claimed]:
        try:
            outcomes = await asyncio.shield(proposal.future)
        except asyncio.CancelledError:
            self._release_when_claimed(proposal)
            raise
        return [outcome for outcome in outcomes if isinstance(outcome, Claimed)]

    def _still_held(self, outcomes: Sequence[Outcome]) -> list[Claimed]:
        """The claims among them, without those on their way back because their first caller has gone."""
        return [done for done in outcomes if isinstance(done, Claimed) and done.token not in self._returning]

    def _release_when_claimed(self, proposal: Proposal) -> None:
        """The caller has gone: what its claim brings goes back at once instead of waiting for the lease to end."""
        if not proposal.future.done():
            proposal.abandoned = True
        elif isinstance(proposal.entry, Claim) and not proposal.entry.request_id and not proposal.future.exception():
            # With a request id the claims are there to be asked for again, and somebody else may have done so.
            self._release_abandoned(proposal.future.result())

    def _release_abandoned(self, outcomes: list[Outcome]) -> None:
        """Hands back claims whose answer reached nobody. The lease is the promise, so this may fail silently."""
        items = [ClaimRef(claim.task_id, claim.token) for claim in self._still_held(outcomes)]
        if items and not self._draining:
            tokens = {item.token for item in items}
            self._returning |= tokens
            proposal = Proposal(Release(self._clock.now_ms(), self._config.finished_retention_ms, items))
            proposal.future.add_done_callback(lambda _: self._returning.difference_update(tokens))
            self._proposals.add(proposal)
            self._wake_rounds()

    def _tasks_allowed(self, wanted: ReserveWanted) -> int:
        if not wanted.worker:
            return wanted.tasks_max
        limit = self._config.claims_per_worker_max
        room = limit - self._claims_by_worker.get(wanted.worker, 0)
        if room <= 0:
            raise RefusedError(
                WORKER_AT_LIMIT,
                f"Expected the worker to hold fewer than {limit} claims, but it does; settle some first.",
                field="worker",
                limit=str(limit),
                retry_after_ms=1000,
            )
        return min(wanted.tasks_max, room)

    def _claim_entry(self, waiter: Waiter, picks: list[Picked]) -> Claim:
        now_ms = self._clock.now_ms()
        task_ids: list[bytes] = []
        marks: list[Mark] = []
        for picked in picks:
            task_ids += picked.task_ids
            marks += picked.marks
        return Claim(
            now_ms,
            now_ms + waiter.lease_ms,
            waiter.worker,
            waiter.request_id,
            now_ms + max(waiter.lease_ms, CLAIM_REQUEST_KEEP_MS),
            task_ids,
            marks,
        )

    def _try_claim(self, waiter: Waiter, queues: list[bytes]) -> Proposal | None:
        """Picks tasks and proposes their claim in one step: the log must have claims in the order of the picks."""
        picks: list[Picked] = []
        room = waiter.tasks_max
        room_bytes = self._config.batch_bytes_max
        for queue in queues:
            picked = self._scheduler.pick(queue, room, room_bytes)
            if picked is not None:
                picks.append(picked)
                room -= len(picked.places)
                room_bytes -= picked.size_bytes
                if not room or room_bytes <= 0:
                    break
        if not picks:
            return None
        proposal = Proposal(self._claim_entry(waiter, picks), picks)
        self._proposals.add(proposal)
        self._wake_rounds()
        return proposal

    def _serve_waiters(self, queue: bytes) -> None:
        while (waiter := self._waiters.first(queue)) is not None:
            if waiter.future.done():  # gave up or went away, and has not had its turn to say so
                self._waiters.remove(waiter)
                continue
            try:
                self._check_disk(self._claim_entry(waiter, []))
            except RefusedError:
                return  # they are served when space is back
            proposal = self._try_claim(waiter, waiter.queues)
            if proposal is None:
                return
            self._waiters.remove(waiter)
            waiter.future.set_result(proposal)

    def serve_all_waiters(self) -> None:
        """Looks for tasks for everyone who waits, after writes were refused for a while."""
        for queue in self._waiters.queues():
            self._serve_waiters(queue)

    # --- housekeeping -----------------------------------------------------------------------------------------

    def _make_sweeps(self) -> dict[int, Sweep]:
        def sweep(family: int, handle: Callable[[list[tuple[int, bytes]]], Awaitable[bool]], rows: int) -> Sweep:
            purging = family in (keys.RETENTION, keys.FORGET)
            not_before_ms = (lambda: purge_allowed_ms(self._machine.meta.stepped_ms)) if purging else (lambda: 0)
            return Sweep(self._kv, family, self.now_ms, handle, batch_rows=rows, not_before_ms=not_before_ms)

        rows = self._config.sweep_batch_tasks
        return {
            keys.CLAIM_EXPIRY: sweep(keys.CLAIM_EXPIRY, self._expire, rows),
            keys.DUE: sweep(keys.DUE, self._promote, rows),
            keys.RETENTION: sweep(keys.RETENTION, self._purge, rows),
            keys.FORGET: sweep(keys.FORGET, self._forget, rows),
        }

    async def _housekeep(self, entry: Entry) -> list[Outcome] | None:
        """The outcomes, or None if the write was refused and must be tried again."""
        try:
            return await self._submit_housekeeping(entry)
        except (RefusedError, OutcomeUnknownError):
            return None

    async def _expire(self, due: list[tuple[int, bytes]]) -> bool:
        task_ids = [task_id for _, task_id in due]
        items = []
        for task_id, task in zip(task_ids, self.executions(task_ids), strict=True):
            if task is not None and task.state == CLAIMED:
                items.append(ExpireItem(task_id, task.token, expire_verdict(task)))
        config = self._config
        entry = Expire(self.now_ms(), config.finished_retention_ms, config.dead_retention_ms, items)
        outcomes = await self._housekeep(entry)
        done = [outcome for outcome in outcomes or () if not isinstance(outcome, Rejection)]
        self._metrics.tasks_expired.inc(len(done))
        if outcomes is not None:
            self._metrics.tasks_dead.inc(sum(item.dead_reason != NOT_DEAD for item in items))
        return outcomes is not None

    async def _promote(self, due: list[tuple[int, bytes]]) -> bool:
        outcomes = await self._housekeep(Promote(self.now_ms(), [task_id for _, task_id in due]))
        self._metrics.tasks_promoted.inc(sum(not isinstance(outcome, Rejection) for outcome in outcomes or ()))
        return outcomes is not None

    async def _purge(self, due: list[tuple[int, bytes]]) -> bool:
        outcomes = await self._housekeep(Purge(self.now_ms(), [task_id for _, task_id in due]))
        self._metrics.tasks_purged.inc(sum(not isinstance(outcome, Rejection) for outcome in outcomes or ()))
        return outcomes is not None

    async def _forget(self, due: list[tuple[int, bytes]]) -> bool:
        items = [ForgetItem(when_ms, key) for when_ms, key in due]
        return await self._housekeep(Forget(self.now_ms(), items)) is not None

    # --- reads ------------------------------------------------------------------------------------------------

    def executions(self, task_ids: list[bytes]) -> list[Execution | None]:
        rows = self._kv.get_many([keys.execution(task_id) for task_id in task_ids])
        return [Execution.decode(row) if row is not None else None for row in rows]

    def queue(self, name: bytes) -> Queue | None:
        """A queue's counters; None if nothing was ever enqueued to it."""
        return self._machine.queue(name)

    def waiting_for(self, queue: bytes) -> int:
        return self._waiters.waiting_for(queue)

    def oldest_ready_age_ms(self, queue: bytes) -> int:
        """How long the oldest ready task has been ready; 0 if there is none."""
        task_id = self._scheduler.oldest_ready(queue)
        (task,) = self.executions([task_id]) if task_id is not None else (None,)
        return max(0, self.now_ms() - task.changed_ms) if task is not None else 0

    @property
    def waiters(self) -> int:
        return len(self._waiters)

    @property
    def proposals_waiting(self) -> int:
        return len(self._proposals) + len(self._staged)

    @property
    def applied_index(self) -> int:
        return self._machine.meta.applied_index

    @property
    def clock(self) -> ShardClock:
        return self._clock
