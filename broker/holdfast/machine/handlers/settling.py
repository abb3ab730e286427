"""Ack, fail and release: how a holder ends its claim. Only the current token counts.

A caller whose answer was lost asks again and gets the first answer. For an ack without follow-ups the finished task's
own row is that answer; everything else is kept in RECENT for as long as a finished task is kept at least.
"""

from holdfast.machine import keys
from holdfast.machine.draft import Draft
from holdfast.machine.effects import CLAIM_TO_ACK, StateDuration
from holdfast.machine.entries import Ack, AckAway, AckItem, Fail, FailItem, Release
from holdfast.machine.handlers.accepting import accept_task
from holdfast.machine.handlers.outbox import put_into_outbox, refuse_outbox
from holdfast.machine.handlers.request_ids import first_conflict
from holdfast.machine.ids import later_task_id, later_token
from holdfast.machine.outcomes import ELSEWHERE, Accepted, Acked, AckedRange, Failed, Moved, Outcome
from holdfast.machine.rejections import Rejection, request_id_conflict, stale_token, task_not_found
from holdfast.machine.rows import (
    ANSWER_ACK,
    ANSWER_FAIL,
    ANSWER_RELEASE,
    ATTEMPT_FAILED,
    CANCELLED,
    CLAIMED,
    DEAD,
    DELAYED,
    HAD_FOLLOW_UPS,
    REPORT_ERROR,
    RETRY_PENDING,
    STATE_NAMES,
    SUCCEEDED,
    Execution,
    Recent,
    TaskReport,
)
from holdfast.machine.run_entries import AckRange, AckRanges
from holdfast.machine.run_transitions import succeed
from holdfast.machine.slices import Slice, slice_of, slices
from holdfast.machine.transitions import (
    clear,
    enter_dead,
    enter_finished,
    enter_waiting,
    keep_result,
    note_attempt,
    remember_until,
    return_to_ready_line,
)


def _holds(task: Execution | None, token: int) -> bool:
    return task is not None and task.state == CLAIMED and task.token == token


def _refuse(task: Execution | None) -> Rejection:
    return task_not_found() if task is None else stale_token(task.state_name)


def _remember(draft: Draft, token: int, keep_ms: int, answer: Recent) -> None:
    key = keys.recent(token)
    draft.put(key, answer.encode())
    remember_until(draft, draft.now_ms + keep_ms, key)


def _first_answer(draft: Draft, task_id: bytes, token: int, kind: int) -> Recent | None:
    row = draft.get(keys.recent(token))
    answer = Recent.decode(row) if row is not None else None
    return answer if answer is not None and (answer.task_id, answer.kind) == (task_id, kind) else None


def apply_ack(draft: Draft, entry: Ack | AckAway) -> list[Outcome]:
    draft.read_ahead([item.task_id for item in entry.items])
    return [_ack_one(draft, item, entry) for item in entry.items]


def apply_ack_ranges(draft: Draft, entry: AckRanges) -> list[Outcome]:
    return [_ack_range(draft, item, entry) for item in entry.ranges]


def _ack_range(draft: Draft, item: AckRange, entry: AckRanges) -> AckedRange:
    refused: list[tuple[int, Rejection]] = []
    for index, count, found in slices(draft, item.task_id, item.tasks):
        token = later_token(item.token, index)
        if found is None:
            outcomes = _ack_singles(draft, later_task_id(item.task_id, index), token, count, entry)
            refused += [
                (index + place, outcome) for place, outcome in enumerate(outcomes) if isinstance(outcome, Rejection)
            ]
        elif (refusal := _ack_part(draft, found, count, token, entry.keep_ms)) is not None:
            refused += [(place, refusal) for place in range(index, index + count)]
    return AckedRange(tuple(refused))


def _ack_singles(draft: Draft, first_id: bytes, token: int, count: int, entry: AckRanges) -> list[Outcome]:
    """Tasks with rows of their own, and those that are not known."""
    pairs = ((later_task_id(first_id, place), later_token(token, place)) for place in range(count))
    return [_ack_single(draft, AckItem(*pair, None, ()), entry) for pair in pairs]


def _ack_part(draft: Draft, part: Slice, count: int, token: int, keep_ms: int) -> Rejection | None:
    """So many tasks of one stretch of a run; `token` is that of the first of them. Why not, if they are refused."""
    run, start, stretch, stretch_start = part
    if not stretch.token or token != later_token(stretch.token, start - stretch_start):
        return stale_token(STATE_NAMES[stretch.state])
    if stretch.state == CLAIMED:  # otherwise it was acked before, and gets the first answer
        succeed(draft, run, start, stretch._replace(end=start + count), token, keep_ms)
    return None


def _ack_one(draft: Draft, item: AckItem, entry: Ack | AckAway) -> Outcome:
    if item.follow_ups or item.remote_follow_ups:
        return _ack_single(draft, item, entry)
    found = slice_of(draft, item.task_id)
    if found is not None and (item.result is None or not found[0].result_ttl_ms):
        return _ack_part(draft, found, 1, item.token, entry.keep_ms) or Acked(())
    return _ack_single(draft, item, entry)


def _ack_single(draft: Draft, item: AckItem, entry: Ack | AckAway | AckRanges) -> Outcome:
    """A task that has rows of its own, or departs with what comes of it."""
    task = draft.execution(item.task_id)
    if task is None or not _holds(task, item.token):
        return _acked_before(draft, item, task)
    refusal = _refuse_follow_ups(draft, item, entry)
    if refusal is not None:
        return refusal
    keep_ms = entry.keep_ms
    if item.result is not None and task.result_ttl_ms:
        keep_result(draft, item.task_id, task, item.result, keep_ms)
        keep_ms = max(keep_ms, task.result_ttl_ms)
    draft.effects.timings.append(StateDuration(task.queue, task.type, CLAIM_TO_ACK, draft.now_ms - task.changed_ms))
    has_follow_ups = bool(item.follow_ups or item.remote_follow_ups)
    if has_follow_ups:
        task.flags |= HAD_FOLLOW_UPS
    enter_finished(draft, item.task_id, task, SUCCEEDED, draft.now_ms + keep_ms)
    if not has_follow_ups:
        return Acked(())
    accepted = _accept_follow_ups(draft, item)
    _remember(draft, item.token, keep_ms, Recent(item.task_id, ANSWER_ACK, SUCCEEDED, 0, accepted))
    return Acked(accepted)


def _refuse_follow_ups(draft: Draft, item: AckItem, entry: Ack | AckAway | AckRanges) -> Rejection | None:
    """Why an ack cannot be accepted because of what it brings, if it cannot: all of it is looked at before."""
    conflict = first_conflict(draft, item.follow_ups, item.task_id) if item.follow_ups else None
    if conflict is not None:
        for remote in item.remote_follow_ups:  # by place, and those before it shift it
            conflict += remote.place <= conflict
        return request_id_conflict(conflict)
    if isinstance(entry, AckAway) and item.remote_follow_ups:
        return refuse_outbox(draft, item.remote_follow_ups, entry.waiting_max)
    return None


def _accept_follow_ups(draft: Draft, item: AckItem) -> tuple[Accepted, ...]:
    accepted = [accept_task(draft, new) for new in item.follow_ups]
    if item.remote_follow_ups:
        put_into_outbox(draft, item.remote_follow_ups)
        for remote in item.remote_follow_ups:  # by place, so each insertion finds those before it where they belong
            accepted.insert(remote.place, Accepted(ELSEWHERE, False))
    return tuple(accepted)


def _acked_before(draft: Draft, item: AckItem, task: Execution | None) -> Outcome:
    answer = _first_answer(draft, item.task_id, item.token, ANSWER_ACK)
    if answer is not None:
        return Acked(tuple(Accepted(*follow_up) for follow_up in answer.follow_ups))
    is_known = task is not None and task.state == SUCCEEDED and task.token == item.token
    if is_known and task is not None and not task.flags & HAD_FOLLOW_UPS:
        return Acked(())
    return _refuse(task)


def apply_fail(draft: Draft, entry: Fail) -> list[Outcome]:
    draft.read_ahead([item.task_id for item in entry.items])
    return [_fail_one(draft, item, entry) for item in entry.items]


def _fail_one(draft: Draft, item: FailItem, entry: Fail) -> Outcome:
    task = draft.execution(item.task_id)
    if task is None or not _holds(task, item.token):
        answer = _first_answer(draft, item.task_id, item.token, ANSWER_FAIL)
        return _refuse(task) if answer is None else Failed(answer.state, answer.retry_at_ms)
    task.failures += 1
    draft.queue(task.queue).failed_total += 1
    draft.put(keys.report(item.task_id), TaskReport(REPORT_ERROR, item.error).encode())
    note_attempt(draft, item.task_id, task, ATTEMPT_FAILED, item.brief)
    clear(draft, task)
    if task.cancel_requested:
        enter_finished(draft, item.task_id, task, CANCELLED, draft.now_ms + entry.keep_ms)
        outcome = Failed(CANCELLED, 0)
    elif item.retry_at_ms:
        enter_waiting(draft, item.task_id, task, RETRY_PENDING, item.retry_at_ms)
        outcome = Failed(RETRY_PENDING, item.retry_at_ms)
    else:
        enter_dead(draft, item.task_id, task, item.dead_reason, draft.now_ms + entry.dead_keep_ms)
        outcome = Failed(DEAD, 0)
    answer = Recent(item.task_id, ANSWER_FAIL, outcome.state, outcome.retry_at_ms, ())
    _remember(draft, item.token, entry.keep_ms, answer)
    return outcome


def apply_release(draft: Draft, entry: Release) -> list[Outcome]:
    draft.read_ahead([item.task_id for item in entry.items])
    return [_release_one(draft, task_id, token, entry) for task_id, token in entry.items]


def _release_one(draft: Draft, task_id: bytes, token: int, entry: Release) -> Outcome:
    task = draft.execution(task_id)
    if task is None or not _holds(task, token):
        answer = _first_answer(draft, task_id, token, ANSWER_RELEASE)
        return _refuse(task) if answer is None else Moved(answer.state)
    if task.cancel_requested:
        enter_finished(draft, task_id, task, CANCELLED, draft.now_ms + entry.keep_ms)
    else:
        task.claims -= 1  # handing a task back spends nothing
        if entry.ready_at_ms > draft.now_ms:
            clear(draft, task)  # a snooze is asked for by the task's own handler
            enter_waiting(draft, task_id, task, DELAYED, entry.ready_at_ms)
        else:
            return_to_ready_line(draft, task_id, task)
    _remember(draft, token, entry.keep_ms, Recent(task_id, ANSWER_RELEASE, task.state, 0, ()))
    return Moved(task.state)
