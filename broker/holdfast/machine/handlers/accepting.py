"""Enqueue: a task is accepted once per request id, and one at a time per unique key."""

from holdfast.machine import keys
from holdfast.machine.draft import Draft
from holdfast.machine.entries import Enqueue
from holdfast.machine.handlers.request_ids import (
    counts,
    read_ahead,
    read_request,
    remember_request,
    stands_for_another,
)
from holdfast.machine.ids import make_task_id
from holdfast.machine.new_tasks import NewTask
from holdfast.machine.outcomes import Accepted, Outcome
from holdfast.machine.rejections import request_id_conflict
from holdfast.machine.rows import (
    DEAD,
    DELAYED,
    NOT_DEAD,
    REPORT_CONFLICT,
    REQUEST_ID_CONFLICT,
    Dedup,
    Execution,
    TaskReport,
)
from holdfast.machine.transitions import arm_start_by, enter_dead, enter_waiting, join_ready_line

_NEW = 0  # in no state yet: there is nothing to leave


def apply_enqueue(draft: Draft, entry: Enqueue) -> list[Outcome]:
    read_ahead(draft, entry.tasks)
    return [accept_or_refuse(draft, new) for new in entry.tasks]


def accept_or_refuse(draft: Draft, new: NewTask) -> Outcome:
    return request_id_conflict() if stands_for_another(draft, new) else accept_task(draft, new)


def accept_task(draft: Draft, new: NewTask) -> Accepted:
    """Accepts one task, or finds the one that its request id made before or that has its unique key. What the id stands
    for was compared before."""
    key, before = b"", None
    if new.request_id:
        key = keys.dedup(new.queue, new.request_id)
        before = read_request(draft, key)
        if before is not None and counts(draft, before):
            return duplicate_of(draft, before.task_id)
    holder = draft.get(keys.unique(new.queue, new.unique_key)) if new.unique_key else None
    if holder is not None:
        if key:  # a repeat must get this answer, also once the key is free
            remember_request(draft, key, before, new.dedup_window_ms, new.digest, holder, made_it=False)
        return duplicate_of(draft, holder)
    task_id = make_task(draft, new)
    if key:
        remember_request(draft, key, before, new.dedup_window_ms, new.digest, task_id, made_it=True)
    return Accepted(task_id, False)


def accept_dead(draft: Draft, new: NewTask, known: Dedup, keep_ms: int) -> Accepted:
    """Accepts a task whose request id stands for another one, `known`, where nobody can be told: as a dead letter, for
    somebody to decide. It has no part in the id, also once it is retried."""
    task_id, task = _new_execution(draft, new)
    draft.meta.next_sequence += 1  # the id used it up
    draft.put(keys.report(task_id), TaskReport(REPORT_CONFLICT, known.task_id).encode())
    enter_dead(draft, task_id, task, REQUEST_ID_CONFLICT, draft.now_ms + keep_ms)
    _count(draft, new.queue)
    return Accepted(task_id, False, DEAD)


def _new_execution(draft: Draft, new: NewTask) -> tuple[bytes, Execution]:
    now_ms, meta = draft.now_ms, draft.meta
    task_id = make_task_id(now_ms, meta.shard, meta.next_sequence)
    task = Execution(
        new.queue, new.tenant, new.request_id, new.type, new.limit_key, new.unique_key, b"", _NEW, new.priority,
        new.flags, NOT_DEAD, meta.next_sequence, 0, 0, new.start_by_ms, now_ms, now_ms, 0, new.result_ttl_ms, 0, 0,
        new.max_attempts, new.max_claims, len(new.envelope), new.timeout_ms,
    )  # fmt: skip
    draft.put(keys.envelope(task_id), new.envelope)
    return task_id, task


def make_task(draft: Draft, new: NewTask) -> bytes:
    """A task whose request id and unique key were looked at."""
    task_id, task = _new_execution(draft, new)
    queue = draft.queue(new.queue)
    if new.start_by_ms:
        arm_start_by(draft, task_id, task)
    if new.run_at_ms > draft.now_ms:
        draft.meta.next_sequence += 1  # the id used it up
        enter_waiting(draft, task_id, task, DELAYED, new.run_at_ms)
    else:
        join_ready_line(draft, task_id, task, queue)
    _count(draft, new.queue)
    return task_id


def _count(draft: Draft, queue: bytes) -> None:
    draft.queue(queue).enqueued_total += 1
    enqueued = draft.effects.enqueued
    enqueued[queue] = enqueued.get(queue, 0) + 1


def duplicate_of(draft: Draft, task_id: bytes) -> Accepted:
    task = draft.execution(task_id)
    return Accepted(task_id, True, 0 if task is None else task.state)
