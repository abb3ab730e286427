"""Expire, promote and ttl-expire: what time alone brings about. The leader proposes, the guards check against the
entry's time."""

from holdfast.machine import keys
from holdfast.machine.draft import Draft
from holdfast.machine.entries import Expire, ExpireItem, Promote
from holdfast.machine.operator_entries import TtlExpire
from holdfast.machine.outcomes import Moved, Outcome
from holdfast.machine.rejections import not_due, not_expired, task_not_found
from holdfast.machine.rows import (
    ATTEMPT_TIMED_OUT,
    CANCELLED,
    CLAIMED,
    DELAYED,
    READY,
    REPORT_ERROR,
    RETRY_PENDING,
    TTL_PASSED,
    Execution,
    TaskReport,
)
from holdfast.machine.transitions import (
    become_suspect,
    enter_dead,
    enter_finished,
    enter_ready_line,
    enter_waiting,
    note_attempt,
    return_to_ready_line,
)


def apply_expire(draft: Draft, entry: Expire) -> list[Outcome]:
    draft.read_ahead([item.task_id for item in entry.items])
    return [_expire_one(draft, item, entry) for item in entry.items]


def _expire_one(draft: Draft, item: ExpireItem, entry: Expire) -> Outcome:
    task = draft.execution(item.task_id)
    if task is None:
        return task_not_found()
    if task.state != CLAIMED or task.token != item.token or task.timer_ms > draft.now_ms:
        return not_expired()
    _note_expiry(draft, item, task)
    if task.cancel_requested:
        enter_finished(draft, item.task_id, task, CANCELLED, draft.now_ms + entry.keep_ms)
    elif item.dead_reason and (task.is_suspect or item.how == ATTEMPT_TIMED_OUT):
        enter_dead(draft, item.task_id, task, item.dead_reason, draft.now_ms + entry.dead_keep_ms)
    elif item.retry_at_ms:
        enter_waiting(draft, item.task_id, task, RETRY_PENDING, item.retry_at_ms)
    elif task.is_suspect or item.how == ATTEMPT_TIMED_OUT:  # a suspect was alone: this claim is spent
        return_to_ready_line(draft, item.task_id, task)
    else:
        become_suspect(draft, item.task_id, task)
    return Moved(task.state)


def _note_expiry(draft: Draft, item: ExpireItem, task: Execution) -> None:
    queue = draft.queue(task.queue)
    queue.expired_total += 1
    if item.how == ATTEMPT_TIMED_OUT:
        task.failures += 1
        queue.failed_total += 1
    if item.error:
        draft.put(keys.report(item.task_id), TaskReport(REPORT_ERROR, item.error).encode())
    note_attempt(draft, item.task_id, task, item.how, item.brief)


def apply_promote(draft: Draft, entry: Promote) -> list[Outcome]:
    draft.read_ahead(entry.task_ids)
    outcomes: list[Outcome] = []
    for task_id in entry.task_ids:
        task = draft.execution(task_id)
        if task is None:
            outcomes.append(task_not_found())
        elif task.state not in (DELAYED, RETRY_PENDING) or task.timer_ms > draft.now_ms:
            outcomes.append(not_due())
        else:
            enter_ready_line(draft, task_id, task)
            outcomes.append(Moved(task.state))
    return outcomes


def apply_ttl_expire(draft: Draft, entry: TtlExpire) -> list[Outcome]:
    draft.read_ahead(entry.task_ids)
    return [_ttl_expire_one(draft, task_id, entry) for task_id in entry.task_ids]


def _ttl_expire_one(draft: Draft, task_id: bytes, entry: TtlExpire) -> Outcome:
    task = draft.execution(task_id)
    if task is None:
        return task_not_found()
    waits = task.state in (READY, DELAYED, RETRY_PENDING)
    if not waits or not task.start_by_ms or task.start_by_ms > draft.now_ms:
        return not_expired()
    draft.put(keys.report(task_id), TaskReport(REPORT_ERROR, entry.error).encode())
    enter_dead(draft, task_id, task, TTL_PASSED, draft.now_ms + entry.dead_keep_ms)
    return Moved(task.state)
