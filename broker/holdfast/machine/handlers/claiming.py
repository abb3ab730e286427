"""Claim and extend: a worker's exclusive hold under a fencing token."""

from collections.abc import Iterable, Iterator

from holdfast.machine import keys
from holdfast.machine.draft import Draft
from holdfast.machine.entries import AGE_MARK, BucketLevel, Claim, Extend, ExtendItem, Mark
from holdfast.machine.ids import later_task_id, later_token
from holdfast.machine.outcomes import Claimed, Extended, Outcome
from holdfast.machine.rejections import not_alone, not_ready, stale_token, start_too_late, task_not_found
from holdfast.machine.rows import CLAIMED, READY, STATE_NAMES, ClaimRequest, Execution, bucket_row
from holdfast.machine.run_rows import Run, Stretch
from holdfast.machine.run_transitions import claim_ready, prolong
from holdfast.machine.slices import Slice, slice_of, slices
from holdfast.machine.transitions import enter_claimed, prolong_claim, remember_until


def apply_claim(draft: Draft, entry: Claim) -> list[Outcome]:
    """Claims the tasks that the leader chose. A repeated request gets what it was given and claims nothing new."""
    for level in entry.levels:
        _keep_level(draft, level)
    before = _request_row(draft, entry.worker, entry.request_id) if entry.request_id else None
    if before is not None:
        held = _still_held(draft, before)
        if held:
            _keep_ready(draft, entry)
            return list(held)
    outcomes = _claim_slices(draft, entry) if entry.counts else _claim_each(draft, entry.task_ids, entry)
    for mark in entry.marks:
        raise_mark(draft, mark)
    if entry.request_id:
        claims = tuple([(done.task_id, done.token, done.tasks) for done in outcomes if isinstance(done, Claimed)])
        if claims:
            _remember_request(draft, entry, before, claims)
    return outcomes


def _claim_each(draft: Draft, task_ids: list[bytes], entry: Claim) -> list[Outcome]:
    draft.read_ahead(task_ids)
    return [_claim_one(draft, task_id, entry) for task_id in task_ids]


def _claim_slices(draft: Draft, entry: Claim) -> list[Outcome]:
    """Each id stands for itself and those behind it in its run."""
    outcomes: list[Outcome] = []
    for first_id, count in zip(entry.task_ids, entry.counts, strict=True):
        if count == 1:
            outcomes.append(_claim_one(draft, first_id, entry))
            continue
        for index, part, found in slices(draft, first_id, count):
            if found is None:
                outcomes += _claim_each(draft, [later_task_id(first_id, index + place) for place in range(part)], entry)
            else:
                outcomes += _claim_part(draft, *found[:3], part, entry)
    return outcomes


def _claim_part(draft: Draft, run: Run, start: int, stretch: Stretch, count: int, entry: Claim) -> list[Outcome]:
    """So many tasks of one stretch."""
    if stretch.state != READY:
        return [not_ready(STATE_NAMES[stretch.state])] * count
    if entry.is_alone:
        return [not_alone()] * count
    return [claim_ready(draft, run, start, start + count, entry)]


def _keep_ready(draft: Draft, entry: Claim) -> None:
    """The chosen tasks stay ready although entries behind this one were decided as if they were gone."""
    for first_id, count in zip(entry.task_ids, entry.counts or [1] * len(entry.task_ids), strict=True):
        for index, part, found in _slices_of(draft, first_id, count):
            if found is not None:
                draft.queue(found[0].queue).mark_version += part
                continue
            for place in range(index, index + part):
                task = draft.execution(later_task_id(first_id, place))
                if task is not None:
                    draft.queue(task.queue).mark_version += 1


def _slices_of(draft: Draft, first_id: bytes, count: int) -> Iterable[tuple[int, int, Slice | None]]:
    """Nobody looks for the run of a task that is chosen by itself and has rows."""
    return slices(draft, first_id, count) if count > 1 else [(0, 1, slice_of(draft, first_id))]


def claims_of_request(draft: Draft, worker: bytes, request_id: bytes) -> list[Claimed]:
    """The claims that a worker's request was given and that still hold."""
    known = _request_row(draft, worker, request_id)
    return [] if known is None else _still_held(draft, known)


def _request_row(draft: Draft, worker: bytes, request_id: bytes) -> ClaimRequest | None:
    row = draft.get(keys.claim_request(worker, request_id))
    return None if row is None else ClaimRequest.decode(row)


def _still_held(draft: Draft, known: ClaimRequest) -> list[Claimed]:
    held: list[Claimed] = []
    for first_id, token, count in known.claims:
        for index, part, found in _slices_of(draft, first_id, count):
            held += _held(draft, later_task_id(first_id, index), later_token(token, index), part, found)
    return held


def _held(draft: Draft, first_id: bytes, token: int, count: int, found: Slice | None) -> Iterator[Claimed]:
    """Those of some tasks that are claimed with this token and those behind it, and not for too long."""
    if found is not None:
        run, start, stretch, stretch_start = found
        is_held = stretch.state == CLAIMED and token == later_token(stretch.token, start - stretch_start)
        if is_held and stretch.timer_ms > draft.now_ms:
            yield Claimed(first_id, token, stretch.timer_ms, 0, 1, run.enqueued_ms, False, count)
        return
    for place in range(count):
        task_id = later_task_id(first_id, place)
        task = draft.execution(task_id)
        if task is None or task.state != CLAIMED or task.token != later_token(token, place):
            continue
        if task.timer_ms > draft.now_ms:
            yield _granted(task_id, task)


def _claim_one(draft: Draft, task_id: bytes, entry: Claim) -> Outcome:
    found = slice_of(draft, task_id)
    if found is not None:
        return _claim_part(draft, *found[:3], 1, entry)[0]
    task = draft.own_execution(task_id)
    if task is None:
        return task_not_found()
    if task.state != READY:
        return not_ready(task.state_name)
    if task.is_suspect != entry.is_alone or (entry.is_alone and len(entry.task_ids) > 1):
        return not_alone()
    if task.start_by_ms and task.start_by_ms <= draft.now_ms:  # nobody has started it before
        draft.queue(task.queue).mark_version += 1  # it stays in its line until it ttl-expires, so no mark may pass it
        return start_too_late()
    expiry_ms = entry.type_expiries.get(task.type, entry.expiry_ms) if entry.type_expiries else entry.expiry_ms
    enter_claimed(draft, task_id, task, entry, expiry_ms)
    return _granted(task_id, task)


def _granted(task_id: bytes, task: Execution) -> Claimed:
    return Claimed(task_id, task.token, task.timer_ms, task.failures, task.claims, task.enqueued_ms, task.is_suspect)


def raise_mark(draft: Draft, mark: Mark) -> None:
    known = draft.peek_queue(mark.queue)
    if known is not None and known.mark_version == mark.mark_version:
        queue = draft.queue(mark.queue)
        if mark.priority == AGE_MARK:
            queue.age_mark = max(queue.age_mark, mark.sequence)
        elif mark.tenant or mark.limit_key:
            subqueue = draft.subqueue(mark.queue, mark.priority, mark.tenant, mark.limit_key)
            if subqueue.mark < mark.sequence:
                subqueue.mark = mark.sequence
        else:
            queue.marks[mark.priority] = max(queue.marks[mark.priority], mark.sequence)


def _keep_level(draft: Draft, level: BucketLevel) -> None:
    """Tokens were taken for this claim, also if it came to nothing: the leader counts on that."""
    key = keys.bucket(level.queue, level.scope, level.name)
    full_ms = level.full_ms
    before_ms = draft.put_level(key, bucket_row(level.level_micro, level.at_ms, full_ms), full_ms)
    if before_ms != full_ms:
        if before_ms is not None:
            draft.delete(keys.key_expiry(before_ms, key))
        remember_until(draft, full_ms, key)


def _remember_request(
    draft: Draft, entry: Claim, before: ClaimRequest | None, claims: tuple[tuple[bytes, int, int], ...]
) -> None:
    """In the place of what was there `before`."""
    key = keys.claim_request(entry.worker, entry.request_id)
    if before is not None:
        draft.delete(keys.key_expiry(before.key_expiry_ms, key))
    draft.put(key, ClaimRequest(entry.key_expiry_ms, claims).encode())
    remember_until(draft, entry.key_expiry_ms, key)


def apply_extend(draft: Draft, entry: Extend) -> list[Outcome]:
    """Tasks of a run that are extended together stay in it."""
    items = entry.items
    draft.read_ahead([item.task_id for item in items])
    outcomes: list[Outcome] = []
    for first, count in _neighbours(items):
        task_id, token, expiry_ms = items[first]
        if count == 1:
            found = slice_of(draft, task_id)
            done = None if found is None else _extend_part(draft, found, 1, token, expiry_ms)
            outcomes.append(_extend_single(draft, items[first]) if done is None else done)
            continue
        for index, part, found in slices(draft, task_id, count):
            if found is None:
                place = first + index
                outcomes += [_extend_single(draft, item) for item in items[place : place + part]]
            else:
                outcomes += [_extend_part(draft, found, part, later_token(token, index), expiry_ms)] * part
    return outcomes


def _neighbours(items: list[ExtendItem]) -> Iterator[tuple[int, int]]:
    """Items whose ids and tokens follow each other, and that want the same: which is the first, and how many."""
    first = 0
    for index in range(1, len(items) + 1):
        if index < len(items):
            (task_id, token, expiry_ms), item = items[index - 1], items[index]
            if item == (later_task_id(task_id, 1), later_token(token, 1), expiry_ms):
                continue
        yield first, index - first
        first = index


def _extend_part(draft: Draft, part: Slice, count: int, token: int, expiry_ms: int) -> Outcome:
    """So many tasks of one stretch of a run; `token` is that of the first of them."""
    run, start, stretch, stretch_start = part
    if stretch.state != CLAIMED or token != later_token(stretch.token, start - stretch_start):
        return stale_token(STATE_NAMES[stretch.state])
    return Extended(prolong(draft, run, start, stretch._replace(end=start + count), token, expiry_ms), False)


def _extend_single(draft: Draft, item: ExtendItem) -> Outcome:
    """A task with rows of its own, or one that is not known."""
    task = draft.own_execution(item.task_id)
    if task is None:
        return task_not_found()
    if task.state != CLAIMED or task.token != item.token:
        return stale_token(task.state_name)
    prolong_claim(draft, item.task_id, task, item.expiry_ms)
    return Extended(task.timer_ms, task.cancel_requested)
