"""The rows of ready tasks: where each waits in its line, its lane, and by age."""

import struct

from holdfast.machine.keys import TASK_ID_BYTES

LANE_TASKS_MAX = 16  # that the row of a lane has itself

_LANE = struct.Struct(">QQ")
_PLACE = struct.Struct(">Q16sI")

Place = tuple[int, bytes, int]  # of a ready task: its sequence, its id, and the size of its envelope


def ready_row(task_id: bytes, size_bytes: int) -> bytes:
    """The value of a READY row."""
    return task_id + size_bytes.to_bytes(4, "big")


def split_ready_row(row: bytes) -> tuple[bytes, int]:
    return row[:TASK_ID_BYTES], int.from_bytes(row[TASK_ID_BYTES:], "big")


class Lane:
    """The ready tasks of one priority, tenant and limit key: how many, and their low-water mark.

    Most lanes are short, so a few tasks are in the row itself: those that came while no task had a READY row of its
    own, and there was room.
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
        if len(first) != (self.ready - 1) * _PLACE.size or self.ready > LANE_TASKS_MAX:
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
        for at in range(_PLACE.size, len(first), _PLACE.size):
            if first.startswith(wanted, at):
                self._first = first[:at] + first[at + _PLACE.size :]
                return True
        return False

    def places(self) -> list[Place]:
        """Of the tasks that are in the row, in the order of the line."""
        return sorted(_PLACE.iter_unpack(self._first))

    def encode(self) -> bytes:
        return _LANE.pack(self.ready, self.mark) + self._first

    @staticmethod
    def decode(row: bytes) -> "Lane":
        ready, mark = _LANE.unpack_from(row)
        return Lane(ready, mark, row[_LANE.size :])


AGE_PAGE_PLACES = 32  # of one READY_AGE row

_AGED_BYTES = 1 + TASK_ID_BYTES
_OFFSETS = [bytes((offset,)) for offset in range(AGE_PAGE_PLACES)]


class AgePage:
    """The ready tasks with a tenant or a limit key in a run of places of a queue, for whoever looks for the oldest.

    They come one behind the other, and often leave together. So one row for all of them is written far less often than
    a row for each.
    """

    __slots__ = ("_tasks", "is_dirty")

    def __init__(self, tasks: bytes = b"") -> None:
        self._tasks = tasks  # packed: place in the page and task id, in the order in which they came
        self.is_dirty = False

    def join(self, sequence: int, task_id: bytes) -> None:
        self._tasks = b"%b%b%b" % (self._tasks, _OFFSETS[sequence % AGE_PAGE_PLACES], task_id)

    def leave(self, sequence: int) -> None:
        tasks, offset = self._tasks, sequence % AGE_PAGE_PLACES
        if tasks[0] == offset:
            self._tasks = tasks[_AGED_BYTES:]
        else:
            at = tasks[::_AGED_BYTES].index(offset) * _AGED_BYTES
            self._tasks = tasks[:at] + tasks[at + _AGED_BYTES :]

    def tasks(self, number: int) -> list[tuple[int, bytes]]:
        """Their sequences and ids, the oldest first, if this is the page of that number."""
        start, tasks = number * AGE_PAGE_PLACES, self._tasks
        return sorted((start + tasks[at], tasks[at + 1 : at + _AGED_BYTES]) for at in range(0, len(tasks), _AGED_BYTES))

    def encode(self) -> bytes:
        """Empty if there is none."""
        return self._tasks

    @staticmethod
    def decode(row: bytes) -> "AgePage":
        return AgePage(row)
