"""Request ids: which task one stands for, and for how long.

An id counts for its window, and at least while the task that it made lives. Dead is alive here, because a dead task can
be retried. Its row may stay for longer, but says nothing then. After a step of the clock every row counts for a while.
"""

from collections.abc import Iterable, Sequence

from holdfast.machine import keys
from holdfast.machine.draft import Draft
from holdfast.machine.handlers.purging import purge_allowed_ms
from holdfast.machine.new_tasks import NewTask
from holdfast.machine.rows import CANCELLED, NO_TASK, SUCCEEDED, Dedup
from holdfast.machine.transitions import remember_until


def read_ahead(draft: Draft, tasks: Sequence[NewTask]) -> None:
    """Fetches what their request ids stand for in one go. As a rule that is nothing, and to find that out for one after
    the other costs several times as much in a large state."""
    if len(tasks) > 1:
        wanted = [keys.dedup(new.queue, new.request_id) for new in tasks if new.request_id]
        if wanted:
            draft.fetch(wanted)


def read_request(draft: Draft, key: bytes) -> Dedup | None:
    """What a DEDUP row says, whether it counts or not."""
    row = draft.get(key)
    return None if row is None else Dedup.decode(row)


def counts(draft: Draft, known: Dedup, ending: bytes = NO_TASK) -> bool:
    """`ending`: a task that is about to succeed, and counts as ended."""
    if draft.now_ms < known.window_end_ms:
        return True
    if draft.now_ms < purge_allowed_ms(draft.meta.stepped_ms):
        return True  # the clock may be wrong
    task = draft.execution(known.task_id) if known.window_ms and known.task_id != ending else None
    return task is not None and task.state not in (SUCCEEDED, CANCELLED)


def stands_for_another(draft: Draft, new: NewTask) -> Dedup | None:
    """What the request id of a new task stands for, if that is something else."""
    if not new.digest:
        return None
    known = read_request(draft, keys.dedup(new.queue, new.request_id))
    return known if known is not None and differ(known.digest, new.digest) and counts(draft, known) else None


def first_conflict(draft: Draft, tasks: Iterable[NewTask], ending: bytes) -> int | None:
    """Which is the first of some new tasks whose request id stands for something else, before any of them is accepted:
    for a known task, or for one of those before it. `ending` is the task that they come from."""
    digests: dict[bytes, int] = {}
    for index, new in enumerate(tasks):
        if not new.request_id:
            continue
        key = keys.dedup(new.queue, new.request_id)
        if key not in digests:
            known = read_request(draft, key)
            if known is not None and not counts(draft, known, ending):
                known = None
            digests[key] = new.digest if known is None else known.digest
        if differ(digests[key], new.digest):
            return index
    return None


def differ(digest: int, other: int) -> bool:
    return 0 not in (digest, other) and digest != other


def remember_request(
    draft: Draft, key: bytes, before: Dedup | None, window_ms: int, digest: int, task_id: bytes, *, made_it: bool
) -> None:
    """In the place of what was there `before` and counts no more. `made_it`: whether this request made the task."""
    if before is not None:
        draft.delete(keys.key_expiry(before.key_expiry_ms, key))
    key_expiry_ms = draft.now_ms + window_ms
    draft.put(key, Dedup(task_id, key_expiry_ms, window_ms if made_it else 0, digest).encode())
    remember_until(draft, key_expiry_ms, key)
