"""Cancel, update and the dead-letter calls: what a person or a producer asks for from outside a claim."""

from holdfast.machine import keys
from holdfast.machine.draft import Draft
from holdfast.machine.entries import Cancel, RetryDead
from holdfast.machine.operator_entries import KEEP_PRIORITY, START_AT, DiscardDead, UpdateItem, UpdateTasks
from holdfast.machine.outcomes import Moved, Outcome
from holdfast.machine.rejections import not_dead, task_finished, task_not_found, task_not_waiting
from holdfast.machine.rows import (
    CANCELLED,
    CLAIMED,
    DEAD,
    DELAYED,
    READY,
    RETRY_PENDING,
    SUCCEEDED,
    Discard,
    Execution,
)
from holdfast.machine.transitions import (
    enter_finished,
    enter_ready_line,
    enter_waiting,
    purge_task,
    remember_until,
    request_cancel,
    revive,
    withdraw,
)


def apply_cancel(draft: Draft, entry: Cancel) -> list[Outcome]:
    draft.read_ahead(entry.task_ids)
    return [cancel_one(draft, task_id, entry.keep_ms, entry.waiting_only) for task_id in entry.task_ids]


def cancel_one(draft: Draft, task_id: bytes, keep_ms: int, waiting_only: bool = False) -> Outcome:
    """A waiting task ends at once, a running one is marked for its holder; asking twice changes nothing more."""
    task = draft.execution(task_id)
    if task is None:
        return task_not_found()
    if task.state in (SUCCEEDED, DEAD):
        return task_finished(task.state_name)
    if task.state == CLAIMED:
        if waiting_only:
            return task_not_waiting(task.state_name)
        request_cancel(draft, task_id, task)
    elif task.state != CANCELLED:
        enter_finished(draft, task_id, task, CANCELLED, draft.now_ms + keep_ms)
    return Moved(task.state)


def apply_update_tasks(draft: Draft, entry: UpdateTasks) -> list[Outcome]:
    draft.read_ahead([item.task_id for item in entry.items])
    return [_update_one(draft, item) for item in entry.items]


def _update_one(draft: Draft, item: UpdateItem) -> Outcome:
    task_id = item.task_id
    task = draft.execution(task_id)
    if task is None:
        return task_not_found()
    if task.state not in (READY, DELAYED, RETRY_PENDING):
        return task_not_waiting(task.state_name)
    is_new_priority = item.priority not in (KEEP_PRIORITY, task.priority)
    if item.start == START_AT and item.run_at_ms > draft.now_ms:
        enter_waiting(draft, task_id, task, RETRY_PENDING if task.state == RETRY_PENDING else DELAYED, item.run_at_ms)
        if is_new_priority:
            _set_priority(draft, task_id, task, item.priority)
    elif task.state == READY and is_new_priority:
        _move_to_line(draft, task_id, task, item.priority)
    elif task.state != READY:
        if is_new_priority:
            _set_priority(draft, task_id, task, item.priority)
        if item.start == START_AT:
            enter_ready_line(draft, task_id, task)
    return Moved(task.state)


def _set_priority(draft: Draft, task_id: bytes, task: Execution, priority: int) -> None:
    """Of a task that is in no line: the priority is part of no index."""
    task.priority = priority
    draft.save(task_id, task)


def _move_to_line(draft: Draft, task_id: bytes, task: Execution, priority: int) -> None:
    """A ready task leaves its line and joins the end of another; how long it has been ready is not forgotten."""
    changed_ms, ready_since_ms = task.changed_ms, task.ready_since_ms
    withdraw(draft, task_id, task)
    enter_ready_line(draft, task_id, task, priority)
    task.changed_ms, task.ready_since_ms = changed_ms, ready_since_ms
    draft.save(task_id, task)


def apply_retry_dead(draft: Draft, entry: RetryDead) -> list[Outcome]:
    draft.read_ahead(entry.task_ids)
    outcomes: list[Outcome] = []
    for task_id in entry.task_ids:
        task = draft.execution(task_id)
        if task is None:
            outcomes.append(task_not_found())
        elif task.state != DEAD:
            outcomes.append(not_dead(task.state_name))
        else:
            revive(draft, task_id, task)
            outcomes.append(Moved(task.state))
    return outcomes


def apply_discard_dead(draft: Draft, entry: DiscardDead) -> list[Outcome]:
    draft.read_ahead(entry.task_ids)
    outcomes: list[Outcome] = []
    for task_id in entry.task_ids:
        task = draft.execution(task_id)
        if task is None:
            outcomes.append(task_not_found())
        elif task.state != DEAD:
            outcomes.append(not_dead(task.state_name))
        else:
            if entry.keep_ms:
                _record_discard(draft, task_id, task, entry)
            purge_task(draft, task_id, task)
            outcomes.append(Moved(DEAD))
    return outcomes


def _record_discard(draft: Draft, task_id: bytes, task: Execution, entry: DiscardDead) -> None:
    key = keys.discard(draft.now_ms, task_id)
    key_expiry_ms = draft.now_ms + entry.keep_ms
    record = Discard(
        task.dead_reason, task.changed_ms, key_expiry_ms, task.queue, task.type, task.tenant, entry.by, entry.note
    )
    draft.put(key, record.encode())
    remember_until(draft, key_expiry_ms, key)
