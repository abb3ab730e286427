"""How a task moves between states: the only code that touches the index rows and the counters of a queue.

Every `enter_*` first takes the task out of the state it is in (its index row and its count), then puts it into the new
one. The caller has checked the guards; these functions cannot refuse.
"""

from holdfast.machine import keys
from holdfast.machine.draft import Draft
from holdfast.machine.effects import READY_TO_CLAIM, ReadyTask, StateDuration
from holdfast.machine.entries import Claim
from holdfast.machine.ids import make_token
from holdfast.machine.ready_rows import ready_row
from holdfast.machine.rows import (
    CANCEL_REQUESTED,
    CANCELLED,
    CLAIMED,
    DEAD,
    DELAYED,
    HAD_RESULT,
    HAS_ATTEMPTS,
    LOST_UNIQUE_KEY,
    NOT_DEAD,
    READY,
    REPORT_RESULT,
    RETRY_PENDING,
    SUCCEEDED,
    SUSPECT,
    UNIQUE_UNTIL_DONE,
    UNIQUE_WHILE_WAITING,
    Attempt,
    AttemptsRow,
    Execution,
    Queue,
    TaskReport,
)
from holdfast.machine.running import claim_row

_UNIQUE = UNIQUE_UNTIL_DONE | UNIQUE_WHILE_WAITING


def _leave(draft: Draft, task_id: bytes, task: Execution, queue: Queue, *, is_finishing: bool = False) -> None:
    state, is_in_run = task.state, task.is_in_run
    if is_in_run:
        draft.depart(task_id, task, is_finishing=is_finishing)
    if state == CLAIMED:
        if not is_in_run:
            draft.delete(keys.claim_expiry(task.timer_ms, task_id))
        _end_claim(draft, task, queue)
    elif state == READY:
        queue.ready -= 1
        if task.flags & SUSPECT:
            queue.suspects -= 1
            draft.delete(keys.suspect(task.queue, task.sequence))
        elif task.tenant or task.limit_key:
            _leave_subqueue(draft, task, queue)
        elif not is_in_run:
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
    elif state in (SUCCEEDED, CANCELLED) and not is_in_run:
        draft.delete(keys.retention(task.timer_ms, task_id))


def _end_claim(draft: Draft, task: Execution, queue: Queue) -> None:
    queue.claimed -= 1
    if task.worker:
        draft.add_count(keys.worker(task.worker), -1)
        if task.flags & SUSPECT:
            draft.add_count(keys.alone(task.worker), -1)
    if task.tenant or task.limit_key:
        draft.running.went(task.queue, task.tenant, task.limit_key)
    draft.effects.freed.setdefault(task.queue, {})[task.tenant, task.limit_key] = None


def _enter(draft: Draft, task_id: bytes, task: Execution, state: int, timer_ms: int) -> None:
    task.state = state
    task.timer_ms = timer_ms
    task.changed_ms = draft.now_ms
    draft.save(task_id, task)


def _join_subqueue(draft: Draft, task_id: bytes, task: Execution, queue: Queue) -> None:
    """A ready task with a tenant or a limit key waits in a sub-queue of its own, and in the line of all by age."""
    name, priority, sequence, size_bytes = task.queue, task.priority, task.sequence, task.size_bytes
    subqueue = draft.subqueue(name, priority, task.tenant, task.limit_key)
    if not subqueue.ready:
        queue.subqueues[priority] += 1
        subqueue.mark = sequence
    elif sequence < subqueue.mark:
        subqueue.mark = sequence
    if not subqueue.join(sequence, task_id, size_bytes):
        row = ready_row(task_id, size_bytes)
        draft.writes[keys.ready(name, priority, sequence, task.tenant, task.limit_key)] = row
    if sequence < queue.age_mark:
        queue.age_mark = sequence
    draft.age_page(name, sequence).join(sequence, task_id)


def _leave_subqueue(draft: Draft, task: Execution, queue: Queue) -> None:
    name, priority, sequence = task.queue, task.priority, task.sequence
    subqueue = draft.subqueue(name, priority, task.tenant, task.limit_key)
    if not subqueue.leave(sequence):
        draft.writes[keys.ready(name, priority, sequence, task.tenant, task.limit_key)] = None
    if not subqueue.ready:
        queue.subqueues[priority] -= 1
    draft.age_page(name, sequence).leave(sequence)


def _take_unique_key(draft: Draft, task_id: bytes, task: Execution) -> None:
    """A task that waits again takes its key back, unless another one has it by now."""
    if task.flags & _UNIQUE:
        key = keys.unique(task.queue, task.unique_key)
        holder = draft.get(key)
        if holder is None:
            draft.put(key, task_id)
        if holder is None or holder == task_id:
            task.flags &= ~LOST_UNIQUE_KEY
        else:
            task.flags |= LOST_UNIQUE_KEY


def _drop_unique_key(draft: Draft, task_id: bytes, task: Execution) -> None:
    if task.flags & _UNIQUE:
        key = keys.unique(task.queue, task.unique_key)
        if draft.get(key) == task_id:
            draft.delete(key)


def _end_start_by(draft: Draft, task_id: bytes, task: Execution) -> None:
    """It has ended, however that was."""
    if task.start_by_ms:
        if task.state != CLAIMED:  # while it is claimed there is no row
            draft.delete(keys.start_by(task.start_by_ms, task_id))
        task.start_by_ms = 0


def _resume_start_by(draft: Draft, task_id: bytes, task: Execution) -> None:
    """A claim came to nothing. One that was released does not count as a start: the time to live goes on, and if it has
    passed meanwhile the task ttl-expires. After any other end of a claim the task has been started."""
    if task.claims:
        task.start_by_ms = 0
    else:
        arm_start_by(draft, task_id, task)


def enter_ready_line(draft: Draft, task_id: bytes, task: Execution, priority: int | None = None) -> None:
    """READY at the end of the line, of another priority if one is given: its waiting is over."""
    queue = draft.queue(task.queue)
    _leave(draft, task_id, task, queue)
    if priority is not None:
        task.priority = priority
    join_ready_line(draft, task_id, task, queue)


def join_ready_line(draft: Draft, task_id: bytes, task: Execution, queue: Queue) -> None:
    """READY at the end of the line, from no other state."""
    meta = draft.meta
    task.sequence = meta.next_sequence
    meta.next_sequence += 1
    task.ready_since_ms = draft.now_ms
    _become_ready(draft, task_id, task, queue)


def return_to_ready_line(draft: Draft, task_id: bytes, task: Execution) -> None:
    """READY in its old place, as if it had never left it: a claim came to nothing."""
    queue = draft.queue(task.queue)
    _leave(draft, task_id, task, queue)
    if not task.is_suspect:
        if task.is_plain:
            queue.marks[task.priority] = min(queue.marks[task.priority], task.sequence)
        queue.mark_version += 1
    _become_ready(draft, task_id, task, queue)


def become_suspect(draft: Draft, task_id: bytes, task: Execution) -> None:
    """READY, apart from all lines: its worker fell silent, and may have held other tasks, too. Nobody knows which one
    it was, if any, so this claim spends nothing; but the task may have been started."""
    queue = draft.queue(task.queue)
    _leave(draft, task_id, task, queue)
    task.flags |= SUSPECT
    task.claims -= 1
    task.start_by_ms = 0
    _become_ready(draft, task_id, task, queue)


def clear(draft: Draft, task: Execution) -> None:
    """Its worker has told how the claim of a suspect ended, so it lived: no suspect any more. Call it while the task is
    CLAIMED, and save the task after it."""
    if task.flags & SUSPECT:
        task.flags &= ~SUSPECT
        if task.worker:
            draft.add_count(keys.alone(task.worker), -1)


def _become_ready(draft: Draft, task_id: bytes, task: Execution, queue: Queue) -> None:
    queue.ready += 1
    name, priority, sequence, size_bytes = task.queue, task.priority, task.sequence, task.size_bytes
    tenant, limit_key = task.tenant, task.limit_key
    is_suspect = task.is_suspect
    if is_suspect:
        queue.suspects += 1
        draft.writes[keys.suspect(name, sequence)] = ready_row(task_id, size_bytes)
    elif tenant or limit_key:
        _join_subqueue(draft, task_id, task, queue)
    else:
        draft.writes[keys.ready(name, priority, sequence)] = ready_row(task_id, size_bytes)
    if task.unique_key:
        _take_unique_key(draft, task_id, task)
    if task.start_by_ms and task.state == CLAIMED:
        _resume_start_by(draft, task_id, task)
    draft.effects.ready.append(
        ReadyTask(name, priority, sequence, task_id, size_bytes, tenant, limit_key, is_suspect)
    )  # fmt: skip
    _enter(draft, task_id, task, READY, 0)


def enter_claimed(draft: Draft, task_id: bytes, task: Execution, entry: Claim, expiry_ms: int) -> None:
    """CLAIMED under a new token, for no longer than the task may run at a time."""
    queue = draft.queue(task.queue)
    now_ms, worker = draft.now_ms, entry.worker
    # Of a task that came back, the wait since then: how long a worker had it for nothing was no wait for a worker, and
    # its first wait was counted with its first claim. How old the line is, `ready_since_ms` says.
    draft.effects.timings.append(StateDuration(task.queue, task.type, READY_TO_CLAIM, now_ms - task.changed_ms))
    _leave(draft, task_id, task, queue)
    if task.start_by_ms:
        draft.delete(keys.start_by(task.start_by_ms, task_id))
    if task.flags & UNIQUE_WHILE_WAITING:
        _drop_unique_key(draft, task_id, task)
    if task.timeout_ms:
        expiry_ms = min(expiry_ms, now_ms + task.timeout_ms)
    queue.claimed += 1
    queue.claimed_total += 1
    task.token = make_token(draft.meta.incarnation, draft.meta.next_token, entry.secret)
    draft.meta.next_token += 1
    task.claims += 1
    task.worker = worker
    if worker:  # callers that claim without a name are not counted
        draft.add_count(keys.worker(worker), 1)
        if task.flags & SUSPECT:
            draft.add_count(keys.alone(worker), 1)
    if task.tenant or task.limit_key:
        draft.running.came(task.queue, task.tenant, task.limit_key)
    _arm_lease(draft, task_id, task, expiry_ms)
    _enter(draft, task_id, task, CLAIMED, expiry_ms)


def prolong_claim(draft: Draft, task_id: bytes, task: Execution, expiry_ms: int) -> None:
    """CLAIMED as before, with another expiry, but never beyond the time that the task may run."""
    if task.timeout_ms:
        expiry_ms = min(expiry_ms, task.changed_ms + task.timeout_ms)
    draft.delete(keys.claim_expiry(task.timer_ms, task_id))
    _arm_lease(draft, task_id, task, expiry_ms)
    task.timer_ms = expiry_ms
    draft.save(task_id, task)


def request_cancel(draft: Draft, task_id: bytes, task: Execution) -> None:
    """CLAIMED as before; its holder will be told."""
    if task.is_in_run:
        draft.depart(task_id, task)
        draft.put(keys.claim_expiry(task.timer_ms, task_id), claim_row(task.queue, task.tenant, task.limit_key))
    task.flags |= CANCEL_REQUESTED
    draft.save(task_id, task)


def _arm_lease(draft: Draft, task_id: bytes, task: Execution, expiry_ms: int) -> None:
    draft.put(keys.claim_expiry(expiry_ms, task_id), claim_row(task.queue, task.tenant, task.limit_key))
    effects = draft.effects
    if not effects.expiry_ms or expiry_ms < effects.expiry_ms:
        effects.expiry_ms = expiry_ms


def enter_waiting(draft: Draft, task_id: bytes, task: Execution, state: int, due_ms: int) -> None:
    """DELAYED or RETRY_PENDING until `due_ms`."""
    queue = draft.queue(task.queue)
    if task.state == READY:
        withdraw(draft, task_id, task)
    _leave(draft, task_id, task, queue)
    if task.unique_key:
        _take_unique_key(draft, task_id, task)
    if task.start_by_ms and task.state == CLAIMED:
        _resume_start_by(draft, task_id, task)
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
    if task.state == READY:
        withdraw(draft, task_id, task)
    _leave(draft, task_id, task, queue)
    _end_start_by(draft, task_id, task)
    _drop_unique_key(draft, task_id, task)
    draft.effects.died.add(task.queue)
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
        withdraw(draft, task_id, task)
    has_envelope = not task.is_in_run
    _leave(draft, task_id, task, queue, is_finishing=True)
    if task.start_by_ms:
        _end_start_by(draft, task_id, task)
    if task.unique_key:
        _drop_unique_key(draft, task_id, task)
    if state == SUCCEEDED:
        queue.succeeded_total += 1
    else:
        queue.cancelled_total += 1
    if has_envelope:
        draft.delete(keys.envelope(task_id))
    _arm_purge(draft, task_id, purge_ms)
    draft.effects.finished.append(task_id)
    _enter(draft, task_id, task, state, purge_ms)
    draft.retire(task_id)


def withdraw(draft: Draft, task_id: bytes, task: Execution) -> None:
    """Tells the leader that a ready task leaves the line without a claim."""
    draft.effects.withdrawn.append(
        ReadyTask(
            task.queue, task.priority, task.sequence, task_id, task.size_bytes, task.tenant, task.limit_key,
            task.is_suspect,
        )
    )  # fmt: skip


def arm_start_by(draft: Draft, task_id: bytes, task: Execution) -> None:
    draft.put(keys.start_by(task.start_by_ms, task_id), b"")
    effects = draft.effects
    if not effects.start_by_ms or task.start_by_ms < effects.start_by_ms:
        effects.start_by_ms = task.start_by_ms


def note_attempt(draft: Draft, task_id: bytes, task: Execution, how: int, brief: bytes) -> None:
    """A claim of the task came to nothing; call it before the task leaves its state, and save the task after it."""
    key = keys.attempts(task_id)
    row = draft.get(key) if task.flags & HAS_ATTEMPTS else None
    known = AttemptsRow() if row is None else AttemptsRow.decode(row)
    draft.put(key, known.plus(Attempt(how, task.changed_ms, draft.now_ms, task.worker, brief)).encode())
    task.flags |= HAS_ATTEMPTS


def _arm_purge(draft: Draft, task_id: bytes, purge_ms: int) -> None:
    draft.put(keys.retention(purge_ms, task_id), b"")
    effects = draft.effects
    if not effects.purge_ms or purge_ms < effects.purge_ms:
        effects.purge_ms = purge_ms


def keep_result(draft: Draft, task_id: bytes, task: Execution, result: bytes, keep_ms: int) -> None:
    """The result of a task that is about to succeed; a task that is kept for longer than its result loses it before.

    Nothing is ever reported of a task that has succeeded, so the row that goes then is this one.
    """
    key = keys.report(task_id)
    task.flags |= HAD_RESULT
    draft.put(key, TaskReport(REPORT_RESULT, result).encode())
    if task.result_ttl_ms < keep_ms:
        remember_until(draft, draft.now_ms + task.result_ttl_ms, key)


def revive(draft: Draft, task_id: bytes, task: Execution) -> None:
    """A dead task becomes ready at the end of the line with fresh budgets."""
    task.failures = 0
    task.claims = 0
    task.dead_reason = NOT_DEAD
    enter_ready_line(draft, task_id, task)


def purge_task(draft: Draft, task_id: bytes, task: Execution) -> None:
    """Every row of the task goes; only its request id is remembered for the rest of its window."""
    _leave(draft, task_id, task, draft.queue(task.queue))
    draft.drop(task_id)
    draft.delete(keys.envelope(task_id))
    draft.delete(keys.report(task_id))
    if 0 < task.result_end_ms < task.timer_ms:  # its result had a time of its own, which may be late
        draft.delete(keys.key_expiry(task.result_end_ms, keys.report(task_id)))
    if task.flags & HAS_ATTEMPTS:
        draft.delete(keys.attempts(task_id))


def remember_until(draft: Draft, when_ms: int, key: bytes) -> None:
    """Arms the deletion of a row that is kept only for a while."""
    draft.put(keys.key_expiry(when_ms, key), b"")
    effects = draft.effects
    if not effects.key_expiry_ms or when_ms < effects.key_expiry_ms:
        effects.key_expiry_ms = when_ms
