"""Enqueue: a task is accepted once per request id."""

from holdfast.machine import keys
from holdfast.machine.draft import Draft
from holdfast.machine.entries import Enqueue, NewTask
from holdfast.machine.ids import make_task_id
from holdfast.machine.outcomes import Accepted, Outcome
from holdfast.machine.rows import DELAYED, NOT_DEAD, Dedup, Execution
from holdfast.machine.transitions import enter_waiting, join_ready_line, remember_until

_NEW = 0  # in no state yet: there is nothing to leave


def apply_enqueue(draft: Draft, entry: Enqueue) -> list[Outcome]:
    return [accept_task(draft, new) for new in entry.tasks]


def accept_task(draft: Draft, new: NewTask) -> Accepted:
    """Accepts one task, or finds the one that its request id made before."""
    now_ms = draft.now_ms
    key = b""
    if new.request_id:
        key = keys.dedup(new.queue, new.request_id)
        known = draft.get(key)
        if known is not None:
            return Accepted(Dedup.decode(known).task_id, True)
    meta = draft.meta
    task_id = make_task_id(now_ms, meta.shard, meta.next_sequence)
    task = Execution(
        new.queue, new.tenant, new.request_id, b"", _NEW, new.priority, 0, NOT_DEAD, 0, meta.next_sequence, 0, 0,
        now_ms, now_ms, new.result_ttl_ms, 0, 0, new.max_attempts, new.max_claims, len(new.envelope),
    )  # fmt: skip
    draft.put(keys.envelope(task_id), new.envelope)
    queue = draft.queue(new.queue)
    if new.run_at_ms > now_ms:
        meta.next_sequence += 1  # the id used it up
        enter_waiting(draft, task_id, task, DELAYED, new.run_at_ms)
    else:
        join_ready_line(draft, task_id, task, queue)
    queue.enqueued_total += 1
    if key:
        forget_ms = now_ms + new.dedup_window_ms
        draft.put(key, Dedup(task_id, forget_ms, new.dedup_window_ms).encode())
        remember_until(draft, forget_ms, key)
    return Accepted(task_id, False)
