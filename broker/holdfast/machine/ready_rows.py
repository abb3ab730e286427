"""The rows of ready tasks: where each waits in its line, its lane, and by age."""

import struct
from typing import NamedTuple

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


_AGED = struct.Struct(">16sIBH")


def aged_row(task_id: bytes, size_bytes: int, priority: int, tenant: bytes, limit_key: bytes) -> bytes:
    """An `Aged`, written without making one."""
    return _AGED.pack(task_id, size_bytes, priority, len(tenant)) + tenant + limit_key


class Aged(NamedTuple):
    """Where a ready task with a tenant or a limit key is, for whoever looks for the oldest one of all lanes."""

    task_id: bytes
    size_bytes: int
    priority: int
    tenant: bytes
    limit_key: bytes

    def encode(self) -> bytes:
        return aged_row(*self)

    @staticmethod
    def decode(row: bytes) -> "Aged":
        task_id, size_bytes, priority, tenant_n = _AGED.unpack_from(row)
        at = _AGED.size + tenant_n
        return Aged(task_id, size_bytes, priority, row[_AGED.size : at], row[at:])
