"""Entries of what operators, schedules and limits bring about; see entries.py for what they are part of."""

import struct
from dataclasses import dataclass
from typing import NamedTuple

from holdfast.machine.new_tasks import NewTask, put_tasks, read_tasks
from holdfast.machine.packing import COUNT, U64, BytesReader, put_task_ids

KEEP_PRIORITY = 0xFF

# When an updated task may start.
KEEP_START = 0
START_AT = 1  # its run_at_ms; in the past: at once

# What to do if the task of the tick before has not finished. The numbers are stored and equal those of the wire API.
OVERLAP_ALLOW = 1
OVERLAP_SKIP = 2
OVERLAP_REPLACE = 3

_UPDATE_ITEM = struct.Struct(">16sBBQ")
_DISCARD_HEAD = struct.Struct(">QHH")
_TTL_EXPIRE_HEAD = struct.Struct(">QI")
_PUT_SCHEDULE = struct.Struct(">BBQBBQI")
_NAMES = struct.Struct(">BB")
_FIRE = struct.Struct(">QQQBH")
_ALLOCATION = struct.Struct(">BH")
_ALLOCATIONS_HEAD = struct.Struct(">BBH")


class UpdateItem(NamedTuple):
    task_id: bytes
    priority: int  # KEEP_PRIORITY: as it is
    start: int  # KEEP_START or START_AT
    run_at_ms: int


@dataclass(slots=True)
class UpdateTasks:
    """Waiting tasks get another priority or another time to start."""

    now_ms: int
    items: list[UpdateItem]

    def put(self, parts: list[bytes]) -> None:
        parts.append(COUNT.pack(len(self.items)))
        parts += [_UPDATE_ITEM.pack(*item) for item in self.items]

    @classmethod
    def read(cls, now_ms: int, reader: BytesReader) -> "UpdateTasks":
        items = []
        for _ in range(reader.count()):
            task_id = reader.take(16)
            priority, start = reader.take(2)
            items.append(UpdateItem(task_id, priority, start, reader.u64()))
        return cls(now_ms, items)


@dataclass(slots=True)
class DiscardDead:
    """Dead tasks are deleted, and a record of each is left for a while."""

    now_ms: int
    task_ids: list[bytes]
    keep_ms: int = 0  # how long the record is kept; 0: none is left
    by: bytes = b""
    note: bytes = b""

    def put(self, parts: list[bytes]) -> None:
        parts += (_DISCARD_HEAD.pack(self.keep_ms, len(self.by), len(self.note)), self.by, self.note)
        put_task_ids(parts, self.task_ids)

    @classmethod
    def read(cls, now_ms: int, reader: BytesReader) -> "DiscardDead":
        keep_ms, by_n, note_n = reader.unpack(_DISCARD_HEAD)
        by, note = reader.take(by_n), reader.take(note_n)
        return cls(now_ms, reader.task_ids(), keep_ms, by, note)


@dataclass(slots=True)
class TtlExpire:
    """Tasks that nobody started in time are dead."""

    now_ms: int
    dead_keep_ms: int
    error: bytes
    task_ids: list[bytes]

    def put(self, parts: list[bytes]) -> None:
        parts += (_TTL_EXPIRE_HEAD.pack(self.dead_keep_ms, len(self.error)), self.error)
        put_task_ids(parts, self.task_ids)

    @classmethod
    def read(cls, now_ms: int, reader: BytesReader) -> "TtlExpire":
        dead_keep_ms, error_n = reader.unpack(_TTL_EXPIRE_HEAD)
        return cls(now_ms, dead_keep_ms, reader.take(error_n), reader.task_ids())


@dataclass(slots=True)
class PutSchedule:
    """A schedule as it is from here on; what it has done so far is kept."""

    now_ms: int
    queue: bytes
    name: bytes
    version: int  # the one that is changed; 0: there must be none
    paused: int
    skip_missed: int  # 1: ticks up to now count as dealt with
    next_ms: int
    body: bytes

    def put(self, parts: list[bytes]) -> None:
        names = len(self.queue), len(self.name)
        parts.append(
            _PUT_SCHEDULE.pack(*names, self.version, self.paused, self.skip_missed, self.next_ms, len(self.body))
        )
        parts += (self.queue, self.name, self.body)

    @classmethod
    def read(cls, now_ms: int, reader: BytesReader) -> "PutSchedule":
        queue_n, name_n, version, paused, skip_missed, next_ms, body_n = reader.unpack(_PUT_SCHEDULE)
        queue, name, body = reader.take(queue_n), reader.take(name_n), reader.take(body_n)
        return cls(now_ms, queue, name, version, paused, skip_missed, next_ms, body)


@dataclass(slots=True)
class DropSchedule:
    now_ms: int
    queue: bytes
    name: bytes

    def put(self, parts: list[bytes]) -> None:
        parts += (_NAMES.pack(len(self.queue), len(self.name)), self.queue, self.name)

    @classmethod
    def read(cls, now_ms: int, reader: BytesReader) -> "DropSchedule":
        queue_n, name_n = reader.unpack(_NAMES)
        return cls(now_ms, reader.take(queue_n), reader.take(name_n))


@dataclass(slots=True)
class FireSchedule:
    """Ticks of a schedule become tasks, each once: a tick that is not newer than the last one counts for nothing.

    Without ticks (a tick of 0) it is a person who wants a task now.
    """

    now_ms: int
    queue: bytes
    name: bytes
    version: int  # of the schedule that was read
    next_ms: int  # the tick after these; 0: none
    keep_ms: int  # how long a task is remembered that is cancelled because it is replaced
    overlap: int  # OVERLAP_*
    ticks: list[int]  # in order, one for each task
    tasks: list[NewTask]

    def put(self, parts: list[bytes]) -> None:
        parts += (_NAMES.pack(len(self.queue), len(self.name)), self.queue, self.name)
        parts.append(_FIRE.pack(self.version, self.next_ms, self.keep_ms, self.overlap, len(self.tasks)))
        parts += [U64.pack(tick_ms) for tick_ms in self.ticks]
        put_tasks(parts, self.tasks)

    @classmethod
    def read(cls, now_ms: int, reader: BytesReader) -> "FireSchedule":
        queue_n, name_n = reader.unpack(_NAMES)
        queue, name = reader.take(queue_n), reader.take(name_n)
        version, next_ms, keep_ms, overlap, count = reader.unpack(_FIRE)
        ticks = [reader.u64() for _ in range(count)]
        return cls(now_ms, queue, name, version, next_ms, keep_ms, overlap, ticks, read_tasks(reader, count))


@dataclass(slots=True)
class SetAllocations:
    """What shards may use of a limit of a queue, from here on; an empty one is none."""

    now_ms: int
    queue: bytes
    what: int
    allocations: list[tuple[int, bytes]]  # (shard, what the coordinator knows of it)

    def put(self, parts: list[bytes]) -> None:
        parts += (_ALLOCATIONS_HEAD.pack(len(self.queue), self.what, len(self.allocations)), self.queue)
        for shard, body in self.allocations:
            parts += (_ALLOCATION.pack(len(body), shard), body)

    @classmethod
    def read(cls, now_ms: int, reader: BytesReader) -> "SetAllocations":
        queue_n, what, count = reader.unpack(_ALLOCATIONS_HEAD)
        queue = reader.take(queue_n)
        allocations = []
        for _ in range(count):
            body_n, shard = reader.unpack(_ALLOCATION)
            allocations.append((shard, reader.take(body_n)))
        return cls(now_ms, queue, what, allocations)
