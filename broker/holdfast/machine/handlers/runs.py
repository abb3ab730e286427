"""Runs: accepted as a whole, and purged in slices. Claimed and acked they are by the handlers of single tasks, too.

Whatever else a task does is up to those, and makes it depart from its run.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate

from holdfast.machine import keys
from holdfast.machine.draft import Draft
from holdfast.machine.handlers.accepting import accept_or_refuse, duplicate_of, make_task
from holdfast.machine.handlers.purging import purge_allowed_ms, purge_one
from holdfast.machine.handlers.request_ids import counts, differ, read_request, remember_request
from holdfast.machine.ids import later_task_id, make_task_id
from holdfast.machine.new_runs import (
    SIZE_BYTES,
    NewRun,
    pack_ids,
    pack_sizes,
    unpack_digests,
    unpack_ids,
    unpack_sizes,
)
from holdfast.machine.new_tasks import NewTask
from holdfast.machine.outcomes import AcceptedRun, Changed, Moved, Outcome
from holdfast.machine.rejections import request_id_conflict
from holdfast.machine.rows import SUCCEEDED, Dedup
from holdfast.machine.run_entries import EnqueueRuns, PurgeRanges, TaskRange
from holdfast.machine.run_rows import RUN_BYTES_MAX, RUN_TASKS_MAX, envelope_of
from holdfast.machine.run_transitions import join_ready_line, purge
from holdfast.machine.slices import slices


def apply_enqueue_runs(draft: Draft, entry: EnqueueRuns) -> list[Outcome]:
    return [_accept_run(draft, new) if isinstance(new, NewRun) else accept_or_refuse(draft, new) for new in entry.items]


def _accept_run(draft: Draft, new: NewRun) -> AcceptedRun:
    """Accepts the tasks of a run, or finds those that its request id made before."""
    if new.request_ids:
        return _accept_by_own_ids(draft, new)
    key, before = b"", None
    if new.request_id:
        key = keys.dedup(new.queue, new.request_id)
        before = read_request(draft, key)
        if before is not None and counts(draft, before):
            return AcceptedRun(before.task_id, True)
    first_id = _accept_all(draft, new)
    if key:
        remember_request(draft, key, before, new.dedup_window_ms, 0, first_id, made_it=True)
    return AcceptedRun(first_id, False)


def _accept_by_own_ids(draft: Draft, new: NewRun) -> AcceptedRun:
    """The same, with a request id for each: of those that are new a run is made."""
    row_keys = [keys.dedup(new.queue, request_id) if request_id else b"" for request_id in unpack_ids(new.request_ids)]
    draft.fetch([key for key in row_keys if key])
    next_id = first_id = make_task_id(draft.now_ms, draft.meta.shard, draft.meta.next_sequence)
    fresh: list[int] = []
    known: list[tuple[int, Dedup, int]] = []
    for place, (key, digest) in enumerate(zip(row_keys, _digests(new), strict=True)):
        before = read_request(draft, key) if key else None
        if before is not None and counts(draft, before):
            known.append((place, before, digest))
            continue
        if key:
            remember_request(draft, key, before, new.dedup_window_ms, digest, next_id, made_it=True)
        fresh.append(place)
        next_id = later_task_id(first_id, len(fresh))
    if fresh:
        _accept_all(draft, new if not known else _only(new, fresh))
    others = [
        (place, request_id_conflict() if differ(before.digest, digest) else duplicate_of(draft, before.task_id))
        for place, before, digest in known
    ]
    return AcceptedRun(first_id if fresh else b"", False, tuple(others))


def _digests(new: NewRun) -> Sequence[int]:
    return unpack_digests(new.digests) if new.digests else [0] * new.tasks


def _only(new: NewRun, places: list[int]) -> NewRun:
    """The tasks in these places."""
    sizes, request_ids = unpack_sizes(new.sizes), unpack_ids(new.request_ids)
    begins = [0, *accumulate(sizes)]
    return new._replace(
        sizes=pack_sizes([sizes[place] for place in places]),
        payloads=b"".join(new.payloads[begins[place] : begins[place + 1]] for place in places),
        request_ids=pack_ids([request_ids[place] for place in places]),
    )


def _accept_all(draft: Draft, new: NewRun) -> bytes:
    """The id of the first task. A request id stands for the tasks however they are stored: a repetition may come under
    another policy."""
    parts = _singles(new) if new.start_by_ms else _parts(new)
    first_id, *_ = [_accept_part(draft, part) for part in parts]
    return first_id


def _accept_part(draft: Draft, new: NewRun) -> bytes:
    """The id of the first task. One by itself is no run."""
    if new.tasks > 1:
        return join_ready_line(draft, new).first_id
    # What its request id stands for has been looked at.
    task = NewTask(
        new.queue, new.priority, new.tenant, new.request_ids, 0, 0, new.max_attempts, new.max_claims,
        new.result_ttl_ms, envelope_of(new.header, new.payloads, new.request_ids), new.type, new.limit_key,
        flags=new.flags, timeout_ms=new.timeout_ms, start_by_ms=new.start_by_ms,
    )  # fmt: skip
    return make_task(draft, task)


def _parts(new: NewRun) -> Iterator[NewRun]:
    """The same tasks in runs that are short enough."""
    if new.tasks <= RUN_TASKS_MAX and len(new.payloads) <= RUN_BYTES_MAX:
        yield new
        return
    first = begin = end = 0  # the first task of a part, and where its payload begins; where the next payload begins
    sizes = unpack_sizes(new.sizes)
    for place, size in enumerate((*sizes, RUN_BYTES_MAX + 1)):  # what is too large ends the last part
        if place > first and (place - first == RUN_TASKS_MAX or end + size - begin > RUN_BYTES_MAX):
            yield _part(new, first, place, begin, end)
            first, begin = place, end
        end += size


def _singles(new: NewRun) -> Iterator[NewRun]:
    """The same tasks in runs of one."""
    end = 0
    for place, size in enumerate(unpack_sizes(new.sizes)):
        yield _part(new, place, place + 1, end, end + size)
        end += size


def _part(new: NewRun, first: int, behind: int, begin: int, end: int) -> NewRun:
    """Some of its tasks; `begin` and `end` of their payloads."""
    request_ids = pack_ids(unpack_ids(new.request_ids)[first:behind]) if new.request_ids else b""
    sizes = new.sizes[first * SIZE_BYTES : behind * SIZE_BYTES]
    return new._replace(sizes=sizes, payloads=new.payloads[begin:end], request_ids=request_ids)


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
