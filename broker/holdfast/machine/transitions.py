"""How a task moves between states: the only code that touches the index rows and the counters of a queue.

Every `enter_*` first takes the task out of the state it is in (its index row and its count), then puts it into the new
one. The caller has checked the guards; these functions cannot refuse.
"""

from holdfast.machine import keys
from holdfast.machine.draft import Draft
from holdfast.machine.effects import ReadyTask
from holdfast.machine.ids import make_token
from holdfast.machine.rows import (
    CANCELLED,
    CLAIMED,
    DEAD,
    DELAYED,
    NOT_DEAD,
    READY,
    RETRY_PENDING,
    SUCCEEDED,
    Execution,
    Queue,
    ready_row,
)


def _leave(draft: Draft, task_id: bytes, task: Execution, queue: Queue) -> None:
    state = task.state
    if state == CLAIMED:
        queue.claimed -= 1
        draft.delete(keys.claim_expiry(task.timer_ms, task_id))
        draft.add_worker_claims(task.worker, -1)
    elif state == READY:
        queue.ready -= 1
        draft.delete(keys.ready(task.queue, task.priority, task.sequence))
    elif state == DELAYED:
        queue.delayed -= 1
        draft.delete(keys.due(task.timer_ms, task_id))
    elif state == RETRY_PENDING:
        queue.retrying -= 1
        draft.delete(keys.due(task.timer_ms, task_id))
    elif state == DEAD:
        queue.dead -= 1
        draft.delete(keys.dead(task.queue, task.changed_ms, task_id))
        draft.delete(keys.retention(task.timer_ms, task_id))
    elif state in (SUCCEEDED, CANCELLED):
        draft.delete(keys.retention(task.timer_ms, task_id))


def _enter(draft: Draft, task_id: bytes, task: Execution, state: int, timer_ms: int) -> None:
    task.state = state
    task.timer_ms = timer_ms
    task.changed_ms = draft.now_ms
    draft.save(task_id, task)


def enter_ready_line(draft: Draft, task_id: bytes, task: Execution) -> None:
    """READY at the end of the line: its waiting is over."""
    queue = draft.queue(task.queue)
    _leave(draft, task_id, task, queue)
    join_ready_line(draft, task_id, task, queue)


def join_ready_line(draft: Draft, task_id: bytes, task: Execution, queue: Queue) -> None:
    """READY at the end of the line, from no other state."""
    meta = draft.meta
    task.sequence = meta.next_sequence
    meta.next_sequence += 1
    _become_ready(draft, task_id, task, queue)


def return_to_ready_line(draft: Draft, task_id: bytes, task: Execution) -> None:
    """READY in its old place: a claim came to nothing."""
    queue = draft.queue(task.queue)
    _leave(draft, task_id, task, queue)
    queue.marks[task.priority] = min(queue.marks[task.priority], task.sequence)
    queue.mark_version += 1
    _become_ready(draft, task_id, task, queue)


def _become_ready(draft: Draft, task_id: bytes, task: Execution, queue: Queue) -> None:
    queue.ready += 1
    name, priority, sequence, size_bytes = task.queue, task.priority, task.sequence, task.size_bytes
    draft.writes[keys.ready(name, priority, sequence)] = ready_row(task_id, size_bytes)
    draft.effects.ready.append(ReadyTask(name, priority, sequence, task_id, size_bytes))
    _enter(draft, task_id, task, READY, 0)


def enter_claimed(draft: Draft, task_id: bytes, task: Execution, worker: bytes, expiry_ms: int) -> None:
    """CLAIMED under a new token."""
    queue = draft.queue(task.queue)
    _leave(draft, task_id, task, queue)
    queue.claimed += 1
    queue.claimed_total += 1
    task.token = make_token(draft.meta.incarnation, draft.meta.next_token)
    draft.meta.next_token += 1
    task.claims += 1
    task.worker = worker
    draft.add_worker_claims(worker, 1)
    _arm_lease(draft, task_id, expiry_ms)
    _enter(draft, task_id, task, CLAIMED, expiry_ms)


def prolong_claim(draft: Draft, task_id: bytes, task: Execution, expiry_ms: int) -> None:
    """CLAIMED as before, with another expiry."""
    draft.delete(keys.claim_expiry(task.timer_ms, task_id))
    _arm_lease(draft, task_id, expiry_ms)
    task.timer_ms = expiry_ms
    draft.save(task_id, task)


def _arm_lease(draft: Draft, task_id: bytes, expiry_ms: int) -> None:
    draft.put(keys.claim_expiry(expiry_ms, task_id), b"")
    effects = draft.effects
    if not effects.expiry_ms or expiry_ms < effects.expiry_ms:
        effects.expiry_ms = expiry_ms


def enter_waiting(draft: Draft, task_id: bytes, task: Execution, state: int, due_ms: int) -> None:
    """DELAYED or RETRY_PENDING until `due_ms`."""
    queue = draft.queue(task.queue)
    _leave(draft, task_id, task, queue)
    if state == DELAYED:
        queue.delayed += 1
    else:
        queue.retrying += 1
    draft.put(keys.due(due_ms, task_id), b"")
    effects = draft.effects
    if not effects.due_ms or due_ms < effects.due_ms:
        effects.due_ms = due_ms
    _enter(draft, task_id, task, state, due_ms)


def enter_dead(draft: Draft, task_id: bytes, task: Execution, reason: int, purge_ms: int) -> None:
    """DEAD: kept whole, for a person to look at."""
    queue = draft.queue(task.queue)
    _leave(draft, task_id, task, queue)
    queue.dead += 1
    queue.dead_total += 1
    task.dead_reason = reason
    draft.put(keys.dead(task.queue, draft.now_ms, task_id), b"")
    _arm_purge(draft, task_id, purge_ms)
    draft.effects.finished.append(task_id)
    _enter(draft, task_id, task, DEAD, purge_ms)


def enter_finished(draft: Draft, task_id: bytes, task: Execution, state: int, purge_ms: int) -> None:
    """SUCCEEDED or CANCELLED: the envelope goes, the execution row stays to answer repeated and late calls."""
    queue = draft.queue(task.queue)
    if task.state == READY:
        draft.effects.withdrawn.append(ReadyTask(task.queue, task.priority, task.sequence, task_id, task.size_bytes))
    _leave(draft, task_id, task, queue)
    if state == SUCCEEDED:
        queue.succeeded_total += 1
    else:
        queue.cancelled_total += 1
    draft.delete(keys.envelope(task_id))
    _arm_purge(draft, task_id, purge_ms)
    draft.effects.finished.append(task_id)
    _enter(draft, task_id, task, state, purge_ms)
    draft.retire(task_id)


def _arm_purge(draft: Draft, task_id: bytes, purge_ms: int) -> None:
    draft.put(keys.retention(purge_ms, task_id), b"")
    effects = draft.effects
    if not effects.purge_ms or purge_ms < effects.purge_ms:
        effects.purge_ms = purge_ms


def revive(draft: Draft, task_id: bytes, task: Execution) -> None:
    """A dead task becomes ready at the end of the line with fresh budgets."""
    task.failures = 0
    task.claims = 0
    task.dead_reason = NOT_DEAD
    enter_ready_line(draft, task_id, task)


def vanish(draft: Draft, task_id: bytes, task: Execution) -> None:
    """Every row of the task goes; only its request id is remembered for the rest of its window."""
    _leave(draft, task_id, task, draft.queue(task.queue))
    draft.drop(task_id)
    draft.delete(keys.envelope(task_id))
    draft.delete(keys.report(task_id))


def remember_until(draft: Draft, when_ms: int, key: bytes) -> None:
    """Arms the deletion of a row that is kept only to answer repeated requests."""
    draft.put(keys.forget(when_ms, key), b"")
    effects = draft.effects
    if not effects.forget_ms or when_ms < effects.forget_ms:
        effects.forget_ms = when_ms
