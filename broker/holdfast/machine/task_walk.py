"""Goes over the tasks of a shard in the order of its indexes, from any place on: for lists that come in pages.

    READY                    of each queue: its plain lines by priority, its suspects, then its other sub-queues
    CLAIMED                  by the end of the lease
    DELAYED, RETRY_PENDING   by when they are due
    DEAD                     by queue and death
    SUCCEEDED, CANCELLED     by when they are forgotten

Nothing is read that is not needed: rows come a few at a time, and reading begins at low-water marks and where sweeps
have got to, so that the tombstones of what is gone are not walked over.

A place is the key of a row, or of the one that a task would have by itself which is in the row of its sub-queue or in a
run.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from heapq import merge

from holdfast.machine import keys
from holdfast.machine.ids import later_task_id
from holdfast.machine.kv import Rows
from holdfast.machine.ready_rows import SubqueueRow, ready_slice_of, split_ready_row
from holdfast.machine.rows import CANCELLED, CLAIMED, DEAD, DELAYED, READY, RETRY_PENDING, SUCCEEDED, Execution, Queue
from holdfast.machine.run_rows import stretch_count

SCAN_ROWS = 64

Found = tuple[bytes, bytes]  # the place of a task and its id; no id: a place where there is none

# In the order in which they are gone over: the families of a section, and the states of its tasks.
SECTIONS: tuple[tuple[tuple[int, ...], frozenset[int]], ...] = (
    ((keys.READY, keys.SUSPECT), frozenset({READY})),
    ((keys.CLAIM_EXPIRY,), frozenset({CLAIMED})),
    ((keys.DUE,), frozenset({DELAYED, RETRY_PENDING})),
    ((keys.DEAD,), frozenset({DEAD})),
    ((keys.RETENTION,), frozenset({SUCCEEDED, CANCELLED})),
)
_SEQUENCE_BYTES = 8
_READY = keys.family_start(keys.READY)
_SUSPECT = keys.family_start(keys.SUSPECT)
_SECTION_OF = {family: index for index, (families, _) in enumerate(SECTIONS) for family in families}
STATES_OF = {family: states for families, states in SECTIONS for family in families}


@dataclass(frozen=True, slots=True)
class TaskWanted:
    """Which tasks a list is to have; what is empty does not matter."""

    queue: bytes
    states: frozenset[int]
    type: bytes
    tenant: bytes
    worker: bytes
    min_age_ms: int

    def fits(self, task: Execution, place: bytes, now_ms: int) -> bool:
        """`place`: where it was found. A task that has left it meanwhile is met where it is now, or was."""
        return (
            task.state in self.states
            and task.state in STATES_OF[place[0]]
            and self.queue in (b"", task.queue)
            and self.type in (b"", task.type)
            and self.tenant in (b"", task.tenant)
            and self.worker in (b"", task.worker)
            and now_ms - task.enqueued_ms >= self.min_age_ms
        )


def is_place(key: bytes) -> bool:
    """Whether a walk can go on from here."""
    return bool(key) and key[0] in _SECTION_OF


def walk(
    state: Rows, states: Collection[int], queue: bytes, after: bytes, starts: Mapping[int, bytes]
) -> Iterator[Found]:
    """All tasks that may be in one of these states, behind a place. `queue`: empty for all; of those that are ordered
    by time, tasks of other queues come too, but only if this one has any there. `starts`: by family, where its rows
    begin."""
    first = _SECTION_OF[after[0]] if after else 0
    wanted = _states_in_use(state, queue).intersection(states) if queue else frozenset(states)
    for index, (families, its_states) in enumerate(SECTIONS):
        if index < first or its_states.isdisjoint(wanted):
            continue
        place = after if index == first else b""
        family = families[0]
        if family == keys.READY:
            yield from _ready(state, queue, place)
        elif family == keys.DEAD and queue:
            yield from _ids_at_end(state, keys.dead_prefix(queue), keys.after_prefix(keys.dead_prefix(queue)), place)
        else:
            start = starts.get(family, keys.family_start(family))
            yield from _ids_at_end(state, start, keys.family_start(family + 1), place)


def _states_in_use(state: Rows, name: bytes) -> frozenset[int]:
    """In which a queue may have tasks. Those that have finished are not counted."""
    row = state.get(keys.queue(name))
    queue = Queue() if row is None else Queue.decode(row)
    counts = {
        READY: queue.ready,
        CLAIMED: queue.claimed,
        DELAYED: queue.delayed,
        RETRY_PENDING: queue.retrying,
        DEAD: queue.dead,
    }
    return frozenset({SUCCEEDED, CANCELLED, *(state for state, count in counts.items() if count)})


def _ids_at_end(state: Rows, start: bytes, stop: bytes, after: bytes) -> Iterator[Found]:
    """Of rows whose keys end with the id of their task, or of the last of those that they stand for."""
    for key, row in _rows(state, start, stop, after):
        last_id, count = key[-keys.TASK_ID_BYTES :], stretch_count(row)
        for behind in range(count - 1, -1, -1):
            task_id = later_task_id(last_id, -behind)
            place = key[: -keys.TASK_ID_BYTES] + task_id
            if place > after:
                yield place, task_id


def _in_line(line: bytes, key: bytes, row: bytes, after: bytes) -> Iterator[Found]:
    """The tasks that a READY row stands for, each in its place."""
    sequence, first_id, _, count = ready_slice_of(keys.ready_sequence(key), row)
    for index in range(count):
        place = keys.ready_at(line, sequence + index)
        if place > after:
            yield place, later_task_id(first_id, index)


def _ready(state: Rows, queue: bytes, after: bytes) -> Iterator[Found]:
    its_queue = after[1:].partition(b"\0")[0]
    if queue:
        yield from _ready_of(state, queue, after if its_queue == queue else b"")
        return
    start = keys.queue(its_queue) if after else keys.family_start(keys.QUEUE)
    for key, row in _rows(state, start, keys.family_start(keys.QUEUE + 1), b""):
        name = key[1:]
        yield keys.ready_queue(name), b""  # one more queue was looked at
        if Queue.decode(row).ready:
            yield from _ready_of(state, name, after if its_queue == name else b"")


def _ready_of(state: Rows, name: bytes, after: bytes) -> Iterator[Found]:
    row = state.get(keys.queue(name))
    if row is None:
        return
    queue = Queue.decode(row)
    subqueue = after[:-_SEQUENCE_BYTES] if after[:1] == _READY else b""
    is_in_subqueues = bool(subqueue) and not _is_plain(subqueue, name) and after != keys.ready_queue(name)
    if not is_in_subqueues:
        if after[:1] != _SUSPECT:
            yield from _plain(state, name, queue, after)
        if queue.suspects:
            prefix = keys.suspects_of(name)
            place = after if after[:1] == _SUSPECT else b""
            for key, value in _rows(state, prefix, keys.after_prefix(prefix), place):
                yield key, split_ready_row(value)[0]
    if any(queue.subqueues):
        yield from _subqueues(state, name, after if is_in_subqueues else b"")


def _is_plain(subqueue: bytes, name: bytes) -> bool:
    return any(subqueue == keys.ready_subqueue(name, priority) for priority in range(keys.PRIORITY_MAX + 1))


def _plain(state: Rows, name: bytes, queue: Queue, after: bytes) -> Iterator[Found]:
    for priority in range(keys.PRIORITY_MAX, -1, -1):
        subqueue = keys.ready_subqueue(name, priority)
        start, stop = keys.ready_at(subqueue, queue.marks[priority]), keys.after_prefix(subqueue)
        for key, value in _rows(state, start, stop, after):
            yield from _in_line(subqueue, key, value, after)


def _subqueues(state: Rows, name: bytes, after: bytes) -> Iterator[Found]:
    prefix = keys.subqueue_queue(name)
    start = max(prefix, keys.subqueue_of_line(after[:-_SEQUENCE_BYTES])) if after else prefix
    for key, row in _rows(state, start, keys.after_prefix(prefix), b""):
        line = keys.line_of_subqueue(key)
        yield from _subqueue(state, line, SubqueueRow.decode(row), after if after.startswith(line) else b"")


def _subqueue(state: Rows, line: bytes, subqueue: SubqueueRow, after: bytes) -> Iterator[Found]:
    """Those in the row of the sub-queue and those with rows of their own, in the order of the line."""
    in_row = [(keys.ready_at(line, sequence), task_id) for sequence, task_id, *_ in subqueue.ready_slices()]
    own: Iterator[Found] = iter(())
    if subqueue.has_rows:
        rows = _rows(state, keys.ready_at(line, subqueue.mark), keys.after_prefix(line), after)
        own = (found for key, value in rows for found in _in_line(line, key, value, after))
    yield from merge(((key, task_id) for key, task_id in in_row if key > after), own)


def _rows(state: Rows, start: bytes, stop: bytes, after: bytes) -> Iterator[tuple[bytes, bytes]]:
    """A few at a time, behind `after` if that is in between."""
    start = max(start, after + b"\0") if after else start
    while start < stop and (rows := state.scan(start, stop, SCAN_ROWS)):
        yield from rows
        if len(rows) < SCAN_ROWS:
            return
        start = rows[-1][0] + b"\0"
