"""Reads the lines of ready tasks as the state has them."""

from collections.abc import Callable

from holdfast.machine import keys
from holdfast.machine.kv import Rows
from holdfast.machine.ready_rows import AGE_PAGE_PLACES, Aged, ReadySlice, SubqueueRow, aged_tasks, ready_slice_of

ReadyIn = Callable[[bytes, int], int]  # which places of a queue's page of ages have ready tasks: a bit for each


def read_rows(state: Rows, line: bytes, sequence: int, limit: int) -> list[ReadySlice]:
    """The tasks with READY rows of their own, from a sequence on, in order. `line` is the prefix of the rows."""
    rows = state.scan(keys.ready_at(line, sequence), keys.after_prefix(line), limit)
    return [ready_slice_of(keys.ready_sequence(key), row) for key, row in rows]


def read_subqueue(state: Rows, line: bytes, sequence: int, limit: int) -> tuple[list[ReadySlice], bool]:
    """The tasks of a sub-queue with a tenant or a limit key, from a sequence on, in order; and whether these are all.

    About `limit` of them: those that are in the sub-queue's row come with the others.
    """
    row = state.get(keys.subqueue_of_line(line))
    if row is None:
        return [], True
    subqueue = SubqueueRow.decode(row)
    ready_slices = [ready_slice for ready_slice in subqueue.ready_slices() if ready_slice[0] >= sequence]
    if not subqueue.has_rows:
        return ready_slices, True
    further = read_rows(state, line, max(sequence, subqueue.mark), limit)
    if len(further) < limit:
        return sorted(ready_slices + further), True
    return sorted([ready_slice for ready_slice in ready_slices if ready_slice[0] <= further[-1][0]] + further), False


def read_ages(state: Rows, ready_in: ReadyIn, queue: bytes, sequence: int, pages: int) -> tuple[list[Aged], int | None]:
    """Ready tasks with a tenant or a limit key, from a sequence on, the oldest first, as far as they are in so many
    pages; and where to go on, None if there are no more pages."""
    start = keys.ready_age(queue, sequence // AGE_PAGE_PLACES)
    first = state.get(start) if pages == 1 else None  # mostly there, and found far sooner than by a scan
    stop = keys.after_prefix(keys.ready_age_queue(queue))
    rows = state.scan(start, stop, pages) if first is None else [(start, first)]
    found: list[Aged] = []
    number = 0
    for key, row in rows:
        number = keys.ready_age_number(key)
        found += aged_tasks(row, number, ready_in(queue, number))
    if found and found[0][0] < sequence:
        found = [aged for aged in found if aged[0] >= sequence]
    return found, (number + 1) * AGE_PAGE_PLACES if len(rows) == pages else None


def read_oldest(state: Rows, ready_in: ReadyIn, queue: bytes, sequence: int) -> Aged | None:
    """The first of them."""
    next_sequence: int | None = sequence
    while next_sequence is not None:
        found, next_sequence = read_ages(state, ready_in, queue, next_sequence, 1)
        if found:
            return found[0]
    return None
