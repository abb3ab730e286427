"""Request ids: which task one stands for, and for how long.

An id counts for its window, and at least while the task that it made lives. Dead is alive here, because a dead task can
be retried. Nothing else counts: its row may stay for longer, but says nothing then.
"""

from holdfast.machine import keys
from holdfast.machine.draft import Draft
from holdfast.machine.handlers.purging import purge_allowed_ms
from holdfast.machine.new_tasks import NewTask
from holdfast.machine.rows import CANCELLED, SUCCEEDED, Dedup
from holdfast.machine.transitions import remember_until


def read_request(draft: Draft, key: bytes) -> Dedup | None:
    """What a DEDUP row says, whether it counts or not."""
    row = draft.get(key)
    return None if row is None else Dedup.decode(row)


def counts(draft: Draft, known: Dedup) -> bool:
    if draft.now_ms < known.window_end_ms:
        return True
    if draft.now_ms < purge_allowed_ms(draft.meta.stepped_ms):
        return True  # the clock may be wrong
    task = draft.execution(known.task_id) if known.window_ms else None
    return task is not None and task.state not in (SUCCEEDED, CANCELLED)


def remember_request(
    draft: Draft, key: bytes, before: Dedup | None, new: NewTask, task_id: bytes, *, made_it: bool
) -> None:
    """In the place of what was there `before` and counts no more. `made_it`: whether this request made the task."""
    if before is not None:
        draft.delete(keys.forget(before.forget_ms, key))
    forget_ms = draft.now_ms + new.dedup_window_ms
    window_ms = new.dedup_window_ms if made_it else 0
    draft.put(key, Dedup(task_id, forget_ms, window_ms, new.digest).encode())
    remember_until(draft, forget_ms, key)
