"""The entries about runs: tasks that were accepted together, and slices of them."""

import struct
from dataclasses import dataclass
from typing import NamedTuple

from holdfast.machine.ids import SECRET_BITS, SECRET_MAX
from holdfast.machine.new_runs import NewRun, put_runs, read_runs
from holdfast.machine.packing import COUNT, U64, BytesReader

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
    now_ms: int
    runs: list[NewRun]

    def put(self, parts: list[bytes]) -> None:
        parts.append(COUNT.pack(len(self.runs)))
        put_runs(parts, self.runs)

    @classmethod
    def read(cls, now_ms: int, reader: BytesReader) -> "EnqueueRuns":
        return cls(now_ms, read_runs(reader, reader.count()))


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
