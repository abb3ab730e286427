"""The entries about runs: tasks that were accepted together, and slices of them."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from holdfast.machine.ids import SECRET_BITS, SECRET_MAX
from holdfast.machine.new_runs import NewRun, put_run, read_run
from holdfast.machine.new_tasks import NewTask, put_tasks, read_tasks
from holdfast.machine.packing import COUNT, U64, BytesReader

_IS_TASK, _IS_RUN = b"\0", b"\1"
_ACK_RANGE = struct.Struct(">QQI")


class AckRange(NamedTuple):
    """So many claimed tasks with consecutive ids and tokens, acked without results and follow-ups."""

    task_id: bytes
    token: int
    tasks: int


class TaskRange(NamedTuple):
    """So many tasks with consecutive ids."""

    task_id: bytes
    tasks: int


@dataclass(slots=True)
class EnqueueRuns:
    """Runs, and single tasks before and between them: all that one call brings, in its order."""

    now_ms: int
    items: Sequence[NewRun | NewTask]

    def put(self, parts: list[bytes]) -> None:
        parts.append(COUNT.pack(len(self.items)))
        for item in self.items:
            if isinstance(item, NewRun):
                parts.append(_IS_RUN)
                put_run(parts, item)
            else:
                parts.append(_IS_TASK)
                put_tasks(parts, [item])

    @classmethod
    def read(cls, now_ms: int, reader: BytesReader) -> "EnqueueRuns":
        items: list[NewRun | NewTask] = []
        for _ in range(reader.count()):
            items.append(read_run(reader) if reader.flag() else read_tasks(reader, 1)[0])
        return cls(now_ms, items)


@dataclass(slots=True)
class AckRanges:
    """Acks without results and follow-ups, of tasks that were claimed together."""

    now_ms: int
    keep_ms: int
    ranges: list[AckRange]

    def put(self, parts: list[bytes]) -> None:
        parts += (U64.pack(self.keep_ms), COUNT.pack(len(self.ranges)))
        for task_id, token, count in self.ranges:
            parts += (task_id, _ACK_RANGE.pack(token >> SECRET_BITS, token & SECRET_MAX, count))

    @classmethod
    def read(cls, now_ms: int, reader: BytesReader) -> "AckRanges":
        keep_ms, ranges = reader.u64(), []
        for _ in range(reader.count()):
            task_id = reader.take(16)
            number, secret, count = reader.unpack(_ACK_RANGE)
            ranges.append(AckRange(task_id, number << SECRET_BITS | secret, count))
        return cls(now_ms, keep_ms, ranges)


@dataclass(slots=True)
class PurgeRanges:
    """Finished tasks of runs whose retention has passed are deleted."""

    now_ms: int
    ranges: list[TaskRange]

    def put(self, parts: list[bytes]) -> None:
        parts.append(COUNT.pack(len(self.ranges)))
        for task_id, count in self.ranges:
            parts += (task_id, COUNT.pack(count))

    @classmethod
    def read(cls, now_ms: int, reader: BytesReader) -> "PurgeRanges":
        return cls(now_ms, [TaskRange(reader.take(16), reader.count()) for _ in range(reader.count())])
