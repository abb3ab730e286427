"""The state machine of a shard: applies the entries of its log, in order, to its state.

`apply` is a set of guarded transitions that every replica performs identically. It reads no clock, draws no random
number and makes no choice. A guard that fails is a typed rejection and changes nothing; an exception is a bug, and the
shard stops.
"""

from collections.abc import Callable
from typing import Any

from holdfast.machine.draft import Draft
from holdfast.machine.effects import Effects
from holdfast.machine.entries import (
    Ack,
    AckAway,
    Cancel,
    Claim,
    Delivered,
    Enqueue,
    Entry,
    Expire,
    ExpireKeys,
    Extend,
    Fail,
    LeaderStarted,
    Promote,
    Purge,
    RaiseLevel,
    Receive,
    Release,
    RetryDead,
    SetQueue,
)
from holdfast.machine.handlers.accepting import apply_enqueue
from holdfast.machine.handlers.claiming import apply_claim, apply_extend, claims_of_request
from holdfast.machine.handlers.governing import apply_raise_level, apply_set_allocations, apply_set_queue
from holdfast.machine.handlers.operating import (
    apply_cancel,
    apply_discard_dead,
    apply_retry_dead,
    apply_update_tasks,
)
from holdfast.machine.handlers.outbox import apply_delivered, apply_receive
from holdfast.machine.handlers.purging import apply_expire_keys, apply_purge
from holdfast.machine.handlers.runs import apply_enqueue_runs, apply_purge_ranges
from holdfast.machine.handlers.scheduling import apply_drop_schedule, apply_fire_schedule, apply_put_schedule
from holdfast.machine.handlers.settling import apply_ack, apply_ack_ranges, apply_fail, apply_release
from holdfast.machine.handlers.timing import apply_expire, apply_promote, apply_ttl_expire
from holdfast.machine.keys import alone, worker
from holdfast.machine.kv import OrderedKV
from holdfast.machine.operator_entries import (
    DiscardDead,
    DropSchedule,
    FireSchedule,
    PutSchedule,
    SetAllocations,
    TtlExpire,
    UpdateTasks,
)
from holdfast.machine.outcomes import Claimed, Outcome
from holdfast.machine.reader import Reader
from holdfast.machine.rows import Execution, Meta, Queue
from holdfast.machine.run_entries import AckRanges, EnqueueRuns, PurgeRanges
from holdfast.machine.running import Running


class OutOfOrderError(RuntimeError):
    """An entry was applied that is not the next one: the replica would diverge, so it stops."""


def _out_of_order(meta: Meta, index: int) -> OutOfOrderError:
    return OutOfOrderError(f"expected the entry of index {meta.applied_index + 1}, but got that of {index}")


def _apply_leader_started(draft: Draft, entry: LeaderStarted) -> list[Outcome]:
    if entry.stepped:
        draft.meta.stepped_ms = draft.now_ms
    return []


_HANDLERS: dict[type[Entry], Callable[[Draft, Any], list[Outcome]]] = {
    LeaderStarted: _apply_leader_started,
    Enqueue: apply_enqueue,
    Claim: apply_claim,
    Ack: apply_ack,
    Fail: apply_fail,
    Extend: apply_extend,
    Release: apply_release,
    Expire: apply_expire,
    Promote: apply_promote,
    Cancel: apply_cancel,
    RetryDead: apply_retry_dead,
    DiscardDead: apply_discard_dead,
    Purge: apply_purge,
    ExpireKeys: apply_expire_keys,
    RaiseLevel: apply_raise_level,
    SetQueue: apply_set_queue,
    AckAway: apply_ack,
    Receive: apply_receive,
    Delivered: apply_delivered,
    UpdateTasks: apply_update_tasks,
    TtlExpire: apply_ttl_expire,
    PutSchedule: apply_put_schedule,
    DropSchedule: apply_drop_schedule,
    FireSchedule: apply_fire_schedule,
    SetAllocations: apply_set_allocations,
    EnqueueRuns: apply_enqueue_runs,
    AckRanges: apply_ack_ranges,
    PurgeRanges: apply_purge_ranges,
}


class Machine:
    """A shard's state and the way to change it: `apply` any number of entries, then `commit` them as one batch."""

    __slots__ = ("_draft", "queue", "reader")

    # A queue's counters and marks; None if nothing was ever enqueued to it. For reading only.
    queue: Callable[[bytes], Queue | None]

    def __init__(self, kv: OrderedKV, *, shard: int = 0, incarnation: int = 1) -> None:
        self._draft = Draft(kv)
        self.reader = Reader(kv, self._draft.runs.at_hand)  # of what was committed
        self.queue = self._draft.peek_queue  # nothing in between: whoever picks tasks looks at it often
        if self._draft.meta.applied_index == 0:
            self._draft.meta.shard = shard
            self._draft.meta.incarnation = incarnation

    @property
    def meta(self) -> Meta:
        return self._draft.meta

    def apply(self, index: int, term: int, entry: Entry) -> list[Outcome]:
        """One outcome per item of the entry, in order."""
        draft = self._draft
        meta = draft.meta
        if index != meta.applied_index + 1:
            raise _out_of_order(meta, index)
        if entry.now_ms > meta.now_ms:
            meta.now_ms = entry.now_ms
        draft.now_ms = meta.now_ms
        outcomes = _HANDLERS[type(entry)](draft, entry)
        meta.applied_index = index
        meta.applied_term = term
        return outcomes

    def pass_over(self, index: int, term: int) -> None:
        """An entry that is none of the machine's business, and has its place in the log like any other."""
        meta = self._draft.meta
        if index != meta.applied_index + 1:
            raise _out_of_order(meta, index)
        meta.applied_index = index
        meta.applied_term = term

    def commit(self) -> Effects:
        """Writes what was applied as one atomic batch, the applied index inside, and returns what follows from it."""
        self._draft.commit()
        return self._draft.take_effects()

    def executions(self, task_ids: list[bytes]) -> list[Execution | None]:
        """Of tasks, None for those that are not known. Between commits, for reading only and at once."""
        return self._draft.peek_executions(task_ids)

    def read_ahead(self, task_ids: list[bytes]) -> None:
        """Takes executions that are about to be asked for to hand, in one read."""
        self._draft.read_ahead(task_ids)

    def execution(self, task_id: bytes) -> Execution | None:
        """Of a task that is about to be claimed: it is kept at hand. For reading only."""
        return self._draft.execution(task_id)

    def ready_in_age_page(self, queue: bytes, number: int) -> int:
        """Which places of a page of ages have ready tasks: a bit for each."""
        return self._draft.ready_in_age_page(queue, number)

    def worker_claims(self, name: bytes) -> int:
        """How many claims a worker holds."""
        return self._draft.count(worker(name))

    def suspects_held_by(self, name: bytes) -> int:
        """How many suspects a worker has claimed."""
        return self._draft.count(alone(name))

    @property
    def running(self) -> Running:
        """How many claims tenants and limit keys have."""
        return self._draft.running

    def claims_of_request(self, worker: bytes, request_id: bytes) -> list[Claimed]:
        """The claims that a reserve call was given before and that still hold."""
        return claims_of_request(self._draft, worker, request_id)
