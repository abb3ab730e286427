"""Runs: accepted as a whole, and purged in slices. Claimed and acked they are by the handlers of single tasks, too.

Whatever else a task does is up to those, and makes it depart from its run.
"""

from collections.abc import Iterator

from holdfast.machine import keys
from holdfast.machine.draft import Draft
from holdfast.machine.handlers.accepting import accept_task
from holdfast.machine.handlers.purging import purge_allowed_ms, purge_one
from holdfast.machine.handlers.request_ids import counts, read_request, remember_request
from holdfast.machine.ids import later_task_id
from holdfast.machine.new_runs import SIZE_BYTES, NewRun, unpack_sizes
from holdfast.machine.new_tasks import NewTask
from holdfast.machine.outcomes import AcceptedRun, Changed, Moved, Outcome
from holdfast.machine.rows import SUCCEEDED
from holdfast.machine.run_entries import EnqueueRuns, PurgeRanges, TaskRange
from holdfast.machine.run_rows import RUN_BYTES_MAX, RUN_TASKS_MAX, envelope_of
from holdfast.machine.run_transitions import join_ready_line, purge
from holdfast.machine.slices import slices


def apply_enqueue_runs(draft: Draft, entry: EnqueueRuns) -> list[Outcome]:
    return [_accept_run(draft, new) for new in entry.runs]


def _accept_run(draft: Draft, new: NewRun) -> AcceptedRun:
    """Accepts the tasks of a run, or finds those that its request id made before."""
    key, before = b"", None
    if new.request_id:
        key = keys.dedup(new.queue, new.request_id)
        before = read_request(draft, key)
        if before is not None and counts(draft, before):
            return AcceptedRun(before.task_id, True)
    # Its request id stands for the tasks however they are stored: a repetition may come under another policy.
    first_id, *_ = [_accept_part(draft, part) for part in (_singles(new) if new.start_by_ms else _parts(new))]
    if key:
        remember_request(draft, key, before, new, first_id, made_it=True)
    return AcceptedRun(first_id, False)


def _accept_part(draft: Draft, new: NewRun) -> bytes:
    """The id of the first task. One by itself is no run."""
    if new.tasks > 1:
        return join_ready_line(draft, new).first_id
    # It has no part in the request id, which has been looked at.
    task = NewTask(
        new.queue, new.priority, b"", b"", 0, 0, new.max_attempts, new.max_claims, new.result_ttl_ms,
        envelope_of(new.header, new.payloads), new.type, flags=new.flags, timeout_ms=new.timeout_ms,
        start_by_ms=new.start_by_ms,
    )  # fmt: skip
    return accept_task(draft, task).task_id


def _parts(new: NewRun) -> Iterator[NewRun]:
    """The same tasks in runs that are short enough."""
    if new.tasks <= RUN_TASKS_MAX and len(new.payloads) <= RUN_BYTES_MAX:
        yield new
        return
    first = begin = end = 0  # the first task of a part, and where its payload begins; where the next payload begins
    sizes = unpack_sizes(new.sizes)
    for place, size in enumerate((*sizes, RUN_BYTES_MAX + 1)):  # what is too large ends the last part
        if place > first and (place - first == RUN_TASKS_MAX or end + size - begin > RUN_BYTES_MAX):
            packed = new.sizes[first * SIZE_BYTES : place * SIZE_BYTES]
            yield new._replace(sizes=packed, payloads=new.payloads[begin:end])
            first, begin = place, end
        end += size


def _singles(new: NewRun) -> Iterator[NewRun]:
    """The same tasks in runs of one."""
    end = 0
    for place, size in enumerate(unpack_sizes(new.sizes)):
        packed = new.sizes[place * SIZE_BYTES : (place + 1) * SIZE_BYTES]
        yield new._replace(sizes=packed, payloads=new.payloads[end : end + size])
        end += size


def apply_purge_ranges(draft: Draft, entry: PurgeRanges) -> list[Outcome]:
    return [_purge_range(draft, item) for item in entry.ranges]


def _purge_range(draft: Draft, item: TaskRange) -> Changed:
    """How many of them were purged."""
    purged = 0
    paused = draft.now_ms < purge_allowed_ms(draft.meta.stepped_ms)
    for index, count, found in slices(draft, item.task_id, item.tasks):
        if found is None:
            singles = [purge_one(draft, later_task_id(item.task_id, place)) for place in range(index, index + count)]
            purged += sum(isinstance(outcome, Moved) for outcome in singles)
            continue
        run, start, stretch, _ = found
        if stretch.state == SUCCEEDED and stretch.timer_ms <= draft.now_ms and not paused:
            purge(draft, run, start, start + count)
            purged += count
    return Changed(purged)
