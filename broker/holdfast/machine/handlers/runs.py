"""Runs: accepted, claimed, acked and purged as a whole or in slices.

What a task does by itself is up to the handlers of single tasks, and makes it depart from its run. Here it is asked for
where a slice has such tasks in it.
"""

from collections.abc import Iterator

from holdfast.machine import keys
from holdfast.machine.draft import Draft
from holdfast.machine.entries import AckItem, AckRange, AckRanges, EnqueueRuns, PurgeRanges, TaskRange
from holdfast.machine.handlers.accepting import accept_task
from holdfast.machine.handlers.purging import purge_allowed_ms, purge_one
from holdfast.machine.handlers.request_ids import counts, read_request, remember_request
from holdfast.machine.handlers.settling import ack_one
from holdfast.machine.ids import later_task_id, later_token
from holdfast.machine.new_runs import SIZE_BYTES, NewRun, unpack_sizes
from holdfast.machine.new_tasks import NewTask
from holdfast.machine.outcomes import AcceptedRun, AckedRange, Changed, Moved, Outcome
from holdfast.machine.rejections import Rejection, stale_token
from holdfast.machine.rows import CLAIMED, STATE_NAMES, SUCCEEDED
from holdfast.machine.run_rows import RUN_BYTES_MAX, RUN_TASKS_MAX, envelope_of
from holdfast.machine.run_transitions import join_ready_line, purge, succeed
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
    first_id, *_ = [_accept_part(draft, part) for part in _parts(new)]
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
    )  # fmt: skip
    return accept_task(draft, task).task_id


def _parts(new: NewRun) -> Iterator[NewRun]:
    """The same tasks in runs that are short enough."""
    if new.tasks <= RUN_TASKS_MAX and len(new.payloads) <= RUN_BYTES_MAX:
        yield new
        return
    first = at = end = 0  # the first task of a part, and where its payload begins; where the next payload begins
    sizes = unpack_sizes(new.sizes)
    for place, size in enumerate((*sizes, RUN_BYTES_MAX + 1)):  # what is too large ends the last part
        if place > first and (place - first == RUN_TASKS_MAX or end + size - at > RUN_BYTES_MAX):
            packed = new.sizes[first * SIZE_BYTES : place * SIZE_BYTES]
            yield new._replace(sizes=packed, payloads=new.payloads[at:end])
            first, at = place, end
        end += size


def apply_ack_ranges(draft: Draft, entry: AckRanges) -> list[Outcome]:
    return [_ack_range(draft, item, entry) for item in entry.ranges]


def _ack_range(draft: Draft, item: AckRange, entry: AckRanges) -> AckedRange:
    refused: list[tuple[int, Rejection]] = []
    for at, count, found in slices(draft, item.task_id, item.tasks):
        token = later_token(item.token, at)
        if found is None:
            refused += _ack_each(draft, at, count, item, entry)
            continue
        run, start, stretch, stretch_start = found
        if not stretch.token or token != later_token(stretch.token, start - stretch_start):
            refusal = stale_token(STATE_NAMES[stretch.state])
            refused += [(place, refusal) for place in range(at, at + count)]
        elif stretch.state == CLAIMED:  # otherwise it was acked before, and this is the answer once more
            succeed(draft, run, start, stretch._replace(end=start + count), token, entry.keep_ms)
    return AckedRange(tuple(refused))


def _ack_each(
    draft: Draft, first: int, count: int, item: AckRange, entry: AckRanges
) -> Iterator[tuple[int, Rejection]]:
    """Tasks with rows of their own, and those that are not known."""
    for place in range(first, first + count):
        ack = AckItem(later_task_id(item.task_id, place), later_token(item.token, place), None, ())
        outcome = ack_one(draft, ack, entry)
        if isinstance(outcome, Rejection):
            yield place, outcome


def apply_purge_ranges(draft: Draft, entry: PurgeRanges) -> list[Outcome]:
    return [_purge_range(draft, item) for item in entry.ranges]


def _purge_range(draft: Draft, item: TaskRange) -> Changed:
    """How many of them were purged."""
    purged = 0
    paused = draft.now_ms < purge_allowed_ms(draft.meta.stepped_ms)
    for at, count, found in slices(draft, item.task_id, item.tasks):
        if found is None:
            singles = [purge_one(draft, later_task_id(item.task_id, place)) for place in range(at, at + count)]
            purged += sum(isinstance(outcome, Moved) for outcome in singles)
            continue
        run, start, stretch, _ = found
        if stretch.state == SUCCEEDED and stretch.timer_ms <= draft.now_ms and not paused:
            purge(draft, run, start, start + count)
            purged += count
    return Changed(purged)
