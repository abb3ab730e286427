"""Purge and expire keys: deleting what was kept only for a while.

Both wait after a step of the shard's clock: a clock that is far ahead must not delete anything before people had a
chance to notice.
"""

from holdfast.machine import keys
from holdfast.machine.draft import Draft
from holdfast.machine.entries import ExpireKeys, ExpiringKey, Purge
from holdfast.machine.ids import task_id_time_ms
from holdfast.machine.outcomes import Moved, Outcome
from holdfast.machine.rejections import kept, task_not_found
from holdfast.machine.rows import CANCELLED, DEAD, SUCCEEDED, Dedup
from holdfast.machine.run_transitions import purge
from holdfast.machine.slices import slice_of
from holdfast.machine.transitions import purge_task, remember_until

PURGE_PAUSE_MS = 10 * 60 * 1000  # after a step of the clock
RENEWAL_MS_MAX = 60 * 60 * 1000  # how much longer the row of a request id stays whose task lives on, if not a window

_DEDUP = bytes([keys.DEDUP])


def purge_allowed_ms(stepped_ms: int) -> int:
    """The shard time from which rows may be deleted again."""
    return stepped_ms + PURGE_PAUSE_MS if stepped_ms else 0


def apply_purge(draft: Draft, entry: Purge) -> list[Outcome]:
    draft.read_ahead(entry.task_ids)
    return [purge_one(draft, task_id) for task_id in entry.task_ids]


def purge_one(draft: Draft, task_id: bytes) -> Outcome:
    task = draft.execution(task_id)
    if task is None:
        return task_not_found()
    paused = draft.now_ms < purge_allowed_ms(draft.meta.stepped_ms)
    if paused or task.state not in (SUCCEEDED, DEAD, CANCELLED) or task.timer_ms > draft.now_ms:
        return kept()
    found = slice_of(draft, task_id)
    if found is None:
        purge_task(draft, task_id, task)
    else:
        purge(draft, found[0], found[1], found[1] + 1)
    return Moved(task.state)


def apply_expire_keys(draft: Draft, entry: ExpireKeys) -> list[Outcome]:
    if draft.now_ms < purge_allowed_ms(draft.meta.stepped_ms):
        return [kept() for _ in entry.items]
    draft.fetch([key for item in entry.items for key in (keys.key_expiry(item.when_ms, item.key), item.key)])
    rows = [draft.get(item.key) for item in entry.items if item.key[:1] == _DEDUP]
    draft.read_ahead([Dedup.decode(row).task_id for row in rows if row is not None])
    return [_expire_key(draft, item) for item in entry.items]


def _expire_key(draft: Draft, item: ExpiringKey) -> Outcome:
    armed = keys.key_expiry(item.when_ms, item.key)
    if item.when_ms > draft.now_ms or draft.get(armed) is None:
        return kept()
    draft.delete(armed)
    row = draft.get(item.key)
    if row is not None and item.key[:1] == _DEDUP:
        dedup = Dedup.decode(row)
        task = draft.execution(dedup.task_id)
        state = task.state if task is not None else SUCCEEDED
        if dedup.window_ms and state not in (SUCCEEDED, CANCELLED):
            # A request id counts at least while its task lives, and a dead one can be brought back to life.
            # Renewals get rarer with its age, or a backlog of tasks with short windows would cost one per window each.
            age_ms = draft.now_ms - task_id_time_ms(dedup.task_id)
            renewed = dedup._replace(key_expiry_ms=draft.now_ms + max(dedup.window_ms, min(age_ms, RENEWAL_MS_MAX)))
            draft.put(item.key, renewed.encode())
            remember_until(draft, renewed.key_expiry_ms, item.key)
            return Moved(state)
    draft.expire_key(item.key)
    return Moved(0)
