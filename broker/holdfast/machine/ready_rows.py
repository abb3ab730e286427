"""The rows of ready tasks: where each waits in its line, its lane, and by age."""

import struct

from holdfast.machine.keys import TASK_ID_BYTES

LANE_TASKS_MAX = 8  # that the row of a lane has itself

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

    __slots__ = ("_first", "mark", "ready")

    def __init__(self, ready: int = 0, mark: int = 0, first: bytes = b"") -> None:
        self.ready = ready
        self.mark = mark
        self._first = first  # packed, in the order in which they came

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
        for at in range(0, len(first), _PLACE.size):
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

_AGE_BITS = struct.Struct(">I")
_AGE_BYTES = 1 + TASK_ID_BYTES
_OFFSETS = [bytes((offset,)) for offset in range(AGE_PAGE_PLACES)]


class AgePage:
    """The ready tasks with a tenant or a limit key in a run of places of a queue, for whoever looks for the oldest.

    They come one behind the other and leave from anywhere, but often together. So one row for all of them is written
    far less often than a row for each. Those that have left are only marked, until the last one has left.
    """

    __slots__ = ("_tasks", "ready")

    def __init__(self, ready: int = 0, tasks: bytes = b"") -> None:
        self.ready = ready  # one bit for each place
        self._tasks = tasks  # packed: place in the page and task id, also of those that have left

    def join(self, sequence: int, task_id: bytes) -> None:
        offset = sequence % AGE_PAGE_PLACES
        self.ready |= 1 << offset
        tasks = self._tasks
        # A place belongs to one task for ever; it is here if the task is back.
        if not tasks or tasks[-_AGE_BYTES] < offset or offset not in tasks[::_AGE_BYTES]:
            self._tasks = b"%b%b%b" % (tasks, _OFFSETS[offset], task_id)

    def leave(self, sequence: int) -> None:
        self.ready &= ~(1 << sequence % AGE_PAGE_PLACES)
        if not self.ready:
            self._tasks = b""

    def tasks(self, number: int) -> list[tuple[int, bytes]]:
        """Sequences and ids of the ready ones, the oldest first, if this is the page of that number."""
        start, ready, tasks = number * AGE_PAGE_PLACES, self.ready, self._tasks
        return sorted(
            (start + tasks[at], tasks[at + 1 : at + _AGE_BYTES])
            for at in range(0, len(tasks), _AGE_BYTES)
            if ready >> tasks[at] & 1
        )

    def encode(self) -> bytes:
        return _AGE_BITS.pack(self.ready) + self._tasks

    @staticmethod
    def decode(row: bytes) -> "AgePage":
        return AgePage(_AGE_BITS.unpack_from(row)[0], row[_AGE_BITS.size :])
