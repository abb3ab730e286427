"""How tasks of a run move between states together: what `transitions` does for single tasks.

The caller has checked the guards; these functions cannot refuse. What they are given is a part of one stretch.
"""

from collections.abc import Iterator

from holdfast.machine import keys
from holdfast.machine.draft import Draft
from holdfast.machine.effects import CLAIM_TO_ACK, READY_TO_CLAIM, ReadyTask, StateDuration
from holdfast.machine.entries import Claim
from holdfast.machine.ids import make_task_id, make_token
from holdfast.machine.new_runs import NewRun
from holdfast.machine.outcomes import Claimed
from holdfast.machine.ready_rows import AGE_PAGE_PLACES
from holdfast.machine.rows import CLAIMED, SUCCEEDED, Queue
from holdfast.machine.run_rows import DEPARTED, Run, Stretch

_PLAIN = (b"", b"")  # tenant and limit key


def join_ready_line(draft: Draft, new: NewRun) -> Run:
    """READY at the end of the line, from no other state."""
    meta, queue, count = draft.meta, draft.queue(new.queue), new.tasks
    run = Run.make(new, make_task_id(draft.now_ms, meta.shard, meta.next_sequence))
    meta.next_sequence += count
    queue.ready += count
    queue.enqueued_total += count
    draft.runs.add(run, new.header, new.payloads, draft.writes)
    if run.names != _PLAIN:
        _join_subqueue(draft, run, queue)
    effects = draft.effects
    effects.enqueued[new.queue] = effects.enqueued.get(new.queue, 0) + count
    effects.ready.append(
        ReadyTask(
            run.queue, run.priority, run.first_sequence, run.first_id, run.largest_bytes, *run.names, False, count
        )
    )  # fmt: skip
    return run


def _join_subqueue(draft: Draft, run: Run, queue: Queue) -> None:
    """New ready tasks with a tenant or a limit key wait in a sub-queue of their own, and in the line of all by age."""
    subqueue = draft.subqueue(run.queue, run.priority, *run.names)
    if not subqueue.ready:
        queue.subqueues[run.priority] += 1
        subqueue.mark = run.first_sequence
    subqueue.join_run(run.count)
    for sequence, tasks in _age_pages(run, 0, run.count):
        task_id = run.id_at(sequence - run.first_sequence)
        draft.age_page(run.queue, sequence).join_run(sequence, task_id, tasks)


def _leave_subqueue(draft: Draft, run: Run, start: int, end: int, queue: Queue) -> None:
    subqueue = draft.subqueue(run.queue, run.priority, *run.names)
    subqueue.leave_run(end - start)
    if not subqueue.ready:
        queue.subqueues[run.priority] -= 1
    for sequence, tasks in _age_pages(run, start, end):
        draft.age_page(run.queue, sequence).leave(sequence, tasks)


def _age_pages(run: Run, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Some of its tasks, page by page: the sequence of the first, and how many."""
    sequence, behind = run.first_sequence + start, run.first_sequence + end
    while sequence < behind:
        next_page = min(behind, (sequence // AGE_PAGE_PLACES + 1) * AGE_PAGE_PLACES)
        yield sequence, next_page - sequence
        sequence = next_page


def claim_ready(draft: Draft, run: Run, start: int, end: int, entry: Claim) -> Claimed:
    """READY tasks are CLAIMED under tokens that follow each other, for no longer than each may run at a time."""
    meta, queue, count, now_ms = draft.meta, draft.queue(run.queue), end - start, draft.now_ms
    expiry_ms = entry.type_expiries.get(run.type, entry.expiry_ms)
    if run.timeout_ms:
        expiry_ms = min(expiry_ms, now_ms + run.timeout_ms)
    token = make_token(meta.incarnation, meta.next_token, entry.secret)
    meta.next_token += count
    queue.ready -= count
    queue.claimed += count
    queue.claimed_total += count
    if entry.worker:
        draft.add_count(keys.worker(entry.worker), count)
    if run.names != _PLAIN:
        _leave_subqueue(draft, run, start, end, queue)
        draft.running.came(run.queue, *run.names, count)
    draft.runs.change(run, start, Stretch(end, CLAIMED, token, now_ms, expiry_ms, entry.worker), draft.writes)
    effects = draft.effects
    effects.timings.append(StateDuration(run.queue, run.type, READY_TO_CLAIM, now_ms - run.enqueued_ms, count))
    if not effects.expiry_ms or expiry_ms < effects.expiry_ms:
        effects.expiry_ms = expiry_ms
    return Claimed(run.id_at(start), token, expiry_ms, 0, 1, run.enqueued_ms, False, count)


def prolong(draft: Draft, run: Run, start: int, held: Stretch, token: int, expiry_ms: int) -> int:
    """CLAIMED tasks from `start` to the end of `held` are so until later, but never beyond the time that each may run;
    `token` is that of the first of them. Returns until when."""
    if run.timeout_ms:
        expiry_ms = min(expiry_ms, held.changed_ms + run.timeout_ms)
    if expiry_ms == held.timer_ms:
        return expiry_ms
    draft.runs.change(run, start, held._replace(token=token, timer_ms=expiry_ms), draft.writes)
    effects = draft.effects
    if not effects.expiry_ms or expiry_ms < effects.expiry_ms:
        effects.expiry_ms = expiry_ms
    return expiry_ms


def succeed(draft: Draft, run: Run, start: int, held: Stretch, token: int, keep_ms: int) -> None:
    """CLAIMED tasks from `start` to the end of `held` have succeeded; `token` is that of the first of them."""
    queue, count, now_ms = draft.queue(run.queue), held.end - start, draft.now_ms
    purge_ms = now_ms + keep_ms
    queue.claimed -= count
    queue.succeeded_total += count
    if held.worker:
        draft.add_count(keys.worker(held.worker), -count)
    if run.names != _PLAIN:
        draft.running.went(run.queue, *run.names, count)
    draft.runs.change(run, start, Stretch(held.end, SUCCEEDED, token, now_ms, purge_ms, held.worker), draft.writes)
    effects = draft.effects
    effects.freed.setdefault(run.queue, {})[run.names] = None
    effects.timings.append(StateDuration(run.queue, run.type, CLAIM_TO_ACK, now_ms - held.changed_ms, count))
    effects.finished_ranges.append((run.id_at(start), count))
    if not effects.purge_ms or purge_ms < effects.purge_ms:
        effects.purge_ms = purge_ms


def purge(draft: Draft, run: Run, start: int, end: int) -> None:
    """Finished tasks are gone."""
    draft.runs.change(run, start, Stretch(end, DEPARTED), draft.writes)
