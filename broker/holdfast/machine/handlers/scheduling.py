"""Schedules: each tick becomes a task once, whoever leads."""

from holdfast.machine import keys
from holdfast.machine.draft import Draft
from holdfast.machine.handlers.accepting import accept_task
from holdfast.machine.handlers.operating import cancel_one
from holdfast.machine.handlers.request_ids import stands_for_another
from holdfast.machine.new_tasks import NewTask
from holdfast.machine.operator_entries import (
    OVERLAP_ALLOW,
    OVERLAP_REPLACE,
    OVERLAP_SKIP,
    DropSchedule,
    FireSchedule,
    PutSchedule,
)
from holdfast.machine.outcomes import Changed, Fired, Outcome
from holdfast.machine.rejections import (
    Rejection,
    request_id_conflict,
    schedule_changed,
    schedule_exists,
    schedule_not_found,
)
from holdfast.machine.rows import CANCELLED, DEAD, NO_TASK, SUCCEEDED, Schedule


def _schedule(draft: Draft, queue: bytes, name: bytes) -> Schedule | None:
    row = draft.get(keys.schedule(queue, name))
    return None if row is None else Schedule.decode(row)


def _save(draft: Draft, queue: bytes, name: bytes, before: Schedule | None, after: Schedule) -> None:
    if before is not None and before.next_ms:
        draft.delete(keys.schedule_due(before.next_ms, queue, name))
    draft.put(keys.schedule(queue, name), after.encode())
    if after.next_ms:
        draft.put(keys.schedule_due(after.next_ms, queue, name), b"")
        effects = draft.effects
        if not effects.schedule_ms or after.next_ms < effects.schedule_ms:
            effects.schedule_ms = after.next_ms


def _first_version(draft: Draft) -> int:
    """More than any schedule of the same name had that was deleted before: each change took an entry of the log."""
    return draft.meta.applied_index


def apply_put_schedule(draft: Draft, entry: PutSchedule) -> list[Outcome]:
    before = _schedule(draft, entry.queue, entry.name)
    if before is None and entry.version:
        return [schedule_not_found()]
    if before is not None and not entry.version:
        return [schedule_exists()]
    if before is not None and entry.version != before.version:
        return [schedule_changed(before.version)]
    known = before or Schedule(_first_version(draft), 0, 0, 0, 0, 0, NO_TASK, b"")
    after = known._replace(
        version=known.version + 1,
        next_ms=entry.next_ms,
        last_ms=max(known.last_ms, draft.now_ms) if entry.skip_missed else known.last_ms,
        paused=entry.paused,
        body=entry.body,
    )
    _save(draft, entry.queue, entry.name, before, after)
    return [Changed(after.version)]


def apply_drop_schedule(draft: Draft, entry: DropSchedule) -> list[Outcome]:
    known = _schedule(draft, entry.queue, entry.name)
    if known is None:
        return [schedule_not_found()]
    draft.delete(keys.schedule(entry.queue, entry.name))
    if known.next_ms:
        draft.delete(keys.schedule_due(known.next_ms, entry.queue, entry.name))
    return [Changed(known.version)]


def apply_fire_schedule(draft: Draft, entry: FireSchedule) -> list[Outcome]:
    """One outcome per tick. What was decided on another version of the schedule counts for nothing."""
    before = _schedule(draft, entry.queue, entry.name)
    if before is None:
        return [schedule_not_found()]
    if before.version != entry.version:
        return [schedule_changed(before.version)]
    known = before
    outcomes: list[Outcome] = []
    for tick_ms, new in zip(entry.ticks, entry.tasks, strict=True):
        if tick_ms and tick_ms <= known.last_ms:
            outcomes.append(Fired(NO_TASK, True))
            continue
        fired = _fire_one(draft, entry, known, tick_ms, new)
        outcomes.append(fired)
        if isinstance(fired, Rejection):
            continue
        if not tick_ms:  # a person asked for it, it is no tick
            known = known._replace(fired_total=known.fired_total + (not fired.duplicate))
        elif fired.task_id == NO_TASK or fired.duplicate:  # also if another task has its unique key
            known = known._replace(last_ms=tick_ms, skipped_total=known.skipped_total + 1)
        else:
            known = known._replace(last_ms=tick_ms, fired_total=known.fired_total + 1, last_task_id=fired.task_id)
    if not entry.ticks and (not entry.next_ms or known.next_ms < entry.next_ms):  # what is due is passed over
        known = known._replace(last_ms=max(known.last_ms, known.next_ms))
    if any(entry.ticks) or not entry.ticks:
        known = known._replace(next_ms=entry.next_ms)
    if known is not before:
        _save(draft, entry.queue, entry.name, before, known)
    return outcomes


def _fire_one(draft: Draft, entry: FireSchedule, known: Schedule, tick_ms: int, new: NewTask) -> Fired | Rejection:
    if stands_for_another(draft, new):
        return request_id_conflict()
    if tick_ms and entry.overlap != OVERLAP_ALLOW and _is_unfinished(draft, known.last_task_id):
        if entry.overlap == OVERLAP_SKIP:
            return Fired(NO_TASK, False)
        if entry.overlap == OVERLAP_REPLACE:
            cancel_one(draft, known.last_task_id, entry.keep_ms)
    return Fired(*accept_task(draft, new))


def _is_unfinished(draft: Draft, task_id: bytes) -> bool:
    task = draft.execution(task_id) if task_id != NO_TASK else None
    return task is not None and task.state not in (SUCCEEDED, DEAD, CANCELLED)
