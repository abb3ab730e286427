"""Cancel, and the dead-letter calls: what a person or a producer asks for from outside a claim."""

from holdfast.machine.draft import Draft
from holdfast.machine.entries import Cancel, DiscardDead, RetryDead
from holdfast.machine.outcomes import Moved, Outcome
from holdfast.machine.rejections import not_dead, task_finished, task_not_found
from holdfast.machine.rows import CANCELLED, CLAIMED, DEAD, SUCCEEDED
from holdfast.machine.transitions import enter_finished, revive, vanish


def apply_cancel(draft: Draft, entry: Cancel) -> list[Outcome]:
    draft.read_ahead(entry.task_ids)
    return [_cancel_one(draft, task_id, entry.keep_ms) for task_id in entry.task_ids]


def _cancel_one(draft: Draft, task_id: bytes, keep_ms: int) -> Outcome:
    """A waiting task ends at once, a running one is marked for its holder; asking twice changes nothing more."""
    task = draft.execution(task_id)
    if task is None:
        return task_not_found()
    if task.state in (SUCCEEDED, DEAD):
        return task_finished(task.state_name)
    if task.state == CLAIMED:
        task.cancel_requested = 1
        draft.save(task_id, task)
    elif task.state != CANCELLED:
        enter_finished(draft, task_id, task, CANCELLED, draft.now_ms + keep_ms)
    return Moved(task.state)


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
            vanish(draft, task_id, task)
            outcomes.append(Moved(DEAD))
    return outcomes
