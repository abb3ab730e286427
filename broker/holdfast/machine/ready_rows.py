"""The rows of ready tasks: where each waits in its line, its sub-queue, and by age."""

import struct
from collections.abc import Callable

from holdfast.machine.ids import later_task_id
from holdfast.machine.keys import TASK_ID_BYTES

SUBQUEUE_TASKS_MAX = 16  # that the row of a sub-queue has itself

_SUBQUEUE = struct.Struct(">QQ")
_PLACE = struct.Struct(">Q16sI")

# Of a ready task: its sequence, its id, and the size of its envelope. Or of so many tasks of a run: sequence and id of
# the first of them, and the size of the largest.
ReadySlice = tuple[int, bytes, int, int]

_SIZE_END = TASK_ID_BYTES + 4


def ready_row(task_id: bytes, size_bytes: int, count: int = 1) -> bytes:
    """The value of a READY row. That of a slice of a run names the first task, and its key the sequence of the last."""
    row = task_id + size_bytes.to_bytes(4, "big")
    return row if count == 1 else row + count.to_bytes(4, "big")


def split_ready_row(row: bytes) -> tuple[bytes, int, int]:
    """The id, the size of the envelope, and how many tasks it stands for."""
    count = int.from_bytes(row[_SIZE_END:], "big") if len(row) > _SIZE_END else 1
    return row[:TASK_ID_BYTES], int.from_bytes(row[TASK_ID_BYTES:_SIZE_END], "big"), count


def ready_slice_of(sequence: int, row: bytes) -> ReadySlice:
    """Of a READY row; `sequence` is that of its key."""
    task_id, size_bytes, count = split_ready_row(row)
    return sequence - count + 1, task_id, size_bytes, count


class SubqueueRow:
    """The ready tasks of one priority, tenant and limit key: how many, and their low-water mark.

    Most sub-queues are short, so a few tasks are in the row itself: those that came while no task had a READY row of
    its own, and there was room. Tasks of runs always have READY rows, one for those that follow each other.
    """

    __slots__ = ("_first", "is_dirty", "key", "mark", "ready")

    def __init__(self, ready: int = 0, mark: int = 0, first: bytes = b"") -> None:
        self.ready = ready
        self.mark = mark
        self._first = first  # packed, in the order in which they came
        self.key = b""  # under which it is written
        self.is_dirty = False  # since it was read or written

    @property
    def has_rows(self) -> bool:
        """Whether some of its tasks have READY rows."""
        return self.ready * _PLACE.size > len(self._first)

    def join(self, sequence: int, task_id: bytes, size_bytes: int) -> bool:
        """One task more. False if it is to have a READY row."""
        first = self._first
        self.ready += 1
        if len(first) != (self.ready - 1) * _PLACE.size or self.ready > SUBQUEUE_TASKS_MAX:
            return False
        self._first = first + _PLACE.pack(sequence, task_id, size_bytes)
        return True

    def leave(self, sequence: int) -> bool:
        """One task less. False if it has a READY row."""
        first = self._first
        self.ready -= 1
        wanted = sequence.to_bytes(8, "big")
        if first.startswith(wanted):  # as a rule
            self._first = first[_PLACE.size :]
            return True
        for index in range(_PLACE.size, len(first), _PLACE.size):
            if first.startswith(wanted, index):
                self._first = first[:index] + first[index + _PLACE.size :]
                return True
        return False

    def join_run(self, tasks: int) -> None:
        """So many more, which are in a run."""
        self.ready += tasks

    def leave_run(self, tasks: int) -> None:
        self.ready -= tasks

    def ready_slices(self) -> list[ReadySlice]:
        """Of the tasks that are in the row, in the order of the line."""
        return sorted([(*ready_slice, 1) for ready_slice in _PLACE.iter_unpack(self._first)])

    def encode(self) -> bytes:
        return _SUBQUEUE.pack(self.ready, self.mark) + self._first

    @staticmethod
    def decode(row: bytes) -> "SubqueueRow":
        ready, mark = _SUBQUEUE.unpack_from(row)
        return SubqueueRow(ready, mark, row[_SUBQUEUE.size :])


AGE_PAGE_PLACES = 32  # of one READY_AGE row

_AGED = struct.Struct(">BB16s")  # place in the page, how many there are from there on, id of the first
_OFFSETS = [bytes((offset, 1)) for offset in range(AGE_PAGE_PLACES)]

Aged = tuple[int, bytes]  # sequence and id of a task


class AgePage:
    """The ready tasks with a tenant or a limit key in a run of places of a queue, for whoever looks for the oldest.

    Its row lists who has come since the page was last empty. They come one behind the other, so it is written a few
    times; but they leave in any order, so who has left stays in it: that is counted, not stored. The row goes with the
    last of them. Which ones are left, a start can tell from their executions.
    """

    __slots__ = ("_came", "_listed", "_replaces_row", "is_dirty", "ready")

    def __init__(self, listed: int = 0, ready: int = 0) -> None:
        self.ready = ready  # a bit for each place with a ready task
        self._listed = listed  # the same of those that the row lists, or will with the next commit
        self._came = b""  # what the row does not list yet
        self._replaces_row = not listed  # what the row lists is of the past
        self.is_dirty = False

    def join(self, sequence: int, task_id: bytes) -> None:
        offset = sequence % AGE_PAGE_PLACES
        bit = 1 << offset
        self.ready |= bit
        if not self._listed & bit:
            self._listed |= bit
            self._came += _OFFSETS[offset] + task_id

    def join_run(self, sequence: int, task_id: bytes, tasks: int) -> None:
        """So many tasks that are new, and have consecutive ids; all of them on this page."""
        bits = ((1 << tasks) - 1) << sequence % AGE_PAGE_PLACES
        self.ready |= bits
        self._listed |= bits
        self._came += _AGED.pack(sequence % AGE_PAGE_PLACES, tasks, task_id)

    def leave(self, sequence: int, tasks: int = 1) -> None:
        self.ready &= ~(((1 << tasks) - 1) << sequence % AGE_PAGE_PLACES)
        if not self.ready:
            self._listed, self._came, self._replaces_row = 0, b"", True

    def row(self, before: Callable[[], bytes | None]) -> tuple[bool, bytes | None]:
        """Whether the row must be written, and what it is then; None: it goes. `before` reads what it is so far."""
        if not self.ready:
            return True, None
        if not self._came:
            return False, None
        return True, self._came if self._replaces_row else (before() or b"") + self._came

    def was_written(self) -> None:
        self.is_dirty = False
        self._came, self._replaces_row = b"", False


def aged_tasks(row: bytes, number: int, ready: int = -1) -> list[Aged]:
    """All that the row of the page of that number lists, the oldest first; of `ready` only those with their bits."""
    start = number * AGE_PAGE_PLACES
    found: list[Aged] = []
    for offset, tasks, task_id in _AGED.iter_unpack(row):
        if tasks == 1:
            if ready >> offset & 1:
                found.append((start + offset, task_id))
            continue
        for index in range(tasks):
            if ready >> offset + index & 1:
                found.append((start + offset + index, later_task_id(task_id, index)))
    found.sort()
    return found
