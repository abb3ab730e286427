"""Expire and promote: what time alone brings about. The leader proposes, the guards check against the entry's time."""

from holdfast.machine.draft import Draft
from holdfast.machine.entries import Expire, ExpireItem, Promote
from holdfast.machine.outcomes import Moved, Outcome
from holdfast.machine.rejections import not_due, not_expired, task_not_found
from holdfast.machine.rows import CANCELLED, CLAIMED, DELAYED, RETRY_PENDING
from holdfast.machine.transitions import enter_dead, enter_finished, enter_ready_line, return_to_ready_line


def apply_expire(draft: Draft, entry: Expire) -> list[Outcome]:
    draft.read_ahead([item.task_id for item in entry.items])
    return [_expire_one(draft, item, entry) for item in entry.items]


def _expire_one(draft: Draft, item: ExpireItem, entry: Expire) -> Outcome:
    task = draft.execution(item.task_id)
    if task is None:
        return task_not_found()
    if task.state != CLAIMED or task.token != item.token or task.timer_ms > draft.now_ms:
        return not_expired()
    draft.queue(task.queue).expired_total += 1
    if task.cancel_requested:
        enter_finished(draft, item.task_id, task, CANCELLED, draft.now_ms + entry.keep_ms)
    elif item.dead_reason:
        enter_dead(draft, item.task_id, task, item.dead_reason, draft.now_ms + entry.dead_keep_ms)
    else:
        return_to_ready_line(draft, item.task_id, task)
    return Moved(task.state)


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
