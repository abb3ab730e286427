"""The rows of a run: tasks that were accepted together, and what those of them are doing that are still alike.

A run is coded by stretches: consecutive tasks in the same state, which entered it together. A task that does something
of its own departs: it gets rows of its own, and its place in the run is empty.
"""

import struct
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from operator import attrgetter, itemgetter
from typing import NamedTuple

from holdfast.machine.ids import SECRET_BITS, SECRET_MAX, later_token, task_id_sequence, task_id_time_ms
from holdfast.machine.new_runs import SIZE_BYTES, NewRun, unpack_ids, unpack_sizes
from holdfast.machine.rows import NOT_DEAD, READY, SUCCEEDED, Execution

RUN_TASKS_MAX = 128  # of one run: its row is written anew with whatever a task of it does
RUN_BYTES_MAX = 256 * 1024  # of its payloads
PART_BYTES_MAX = 32 * 1024  # of the payloads in one row: whoever hands out one task reads all of them
DEPARTED = 0  # the state of a place whose task has rows of its own, or is gone

_RUN = struct.Struct(">16sBHIIQIIHHHHHI")
_STRETCH = struct.Struct(">HBQQQQH")
_PAYLOAD_TAG = b"\x1a"  # of TaskSpec.payload, the third field, on the wire
_REQUEST_ID_TAG = b"\x3a"  # of TaskSpec.request_id, the seventh
_end = attrgetter("end")
_part_end = itemgetter(0)

# About what is kept of a run and of a stretch, in memory.
_RUN_KEPT_BYTES = 1500
STRETCH_KEPT_BYTES = 400
_IDS_KEPT_TIMES = 5  # as they came, in the row, and each by itself


class Stretch(NamedTuple):
    """Consecutive tasks of a run, behind those of the stretch before."""

    end: int  # the place behind the last of them
    state: int  # READY, CLAIMED, SUCCEEDED or DEPARTED
    token: int = 0  # of the first of them; those of the others follow it
    changed_ms: int = 0
    timer_ms: int = 0  # as that of an Execution
    worker: bytes = b""

    def continues(self, before: "Stretch", start: int, before_start: int) -> bool:
        """Whether this one, which begins at `start`, and the one before are one."""
        if (self.state, self.changed_ms, self.timer_ms, self.worker) != (
            before.state, before.changed_ms, before.timer_ms, before.worker,
        ):  # fmt: skip
            return False
        return not self.token or self.token == later_token(before.token, start - before_start)

    def encode(self) -> bytes:
        end, state, token, changed_ms, timer_ms, worker = self
        head = _STRETCH.pack(end, state, token >> SECRET_BITS, token & SECRET_MAX, changed_ms, timer_ms, len(worker))
        return head + worker


# Of the payloads that are in one row: the place behind the last of them, and where it ends among all payloads.
Part = tuple[int, int]


def parts_of(sizes: bytes) -> list[Part]:
    """How the payloads of a run are cut into rows: as many in each as there is room for, and at least one. All replicas
    cut alike, for as long as the run is there."""
    offsets = [0, *accumulate(unpack_sizes(sizes))]
    parts: list[Part] = []
    start, count = 0, len(offsets) - 1
    while start < count:
        start = max(start + 1, bisect_right(offsets, offsets[start] + PART_BYTES_MAX) - 1)
        parts.append((start, offsets[start]))
    return parts


class Run:
    """What the tasks of a run share, and what they are doing."""

    __slots__ = (
        "_first_number", "_ids", "_packed", "_parts", "_shared", "count", "enqueued_ms", "first_id", "first_sequence",
        "flags", "header_bytes", "largest_bytes", "last_sequence", "max_attempts", "max_claims", "names", "priority",
        "queue", "request_ids", "result_ttl_ms", "sizes", "stretches", "there", "timeout_ms", "type", "unfinished",
    )  # fmt: skip

    def __init__(
        self, first_id: bytes, priority: int, flags: int, max_attempts: int, max_claims: int, result_ttl_ms: int,
        timeout_ms: int, header_bytes: int, queue: bytes, type: bytes, sizes: bytes, tenant: bytes, limit_key: bytes,
        request_ids: bytes, stretches: list[Stretch],
    ) -> None:  # fmt: skip
        self.first_id = first_id
        self._first_number = int.from_bytes(first_id, "big")
        self.first_sequence = task_id_sequence(first_id)
        self.enqueued_ms = task_id_time_ms(first_id)
        self.priority = priority
        self.flags = flags
        self.max_attempts = max_attempts
        self.max_claims = max_claims
        self.result_ttl_ms = result_ttl_ms
        self.timeout_ms = timeout_ms
        self.header_bytes = header_bytes
        self.queue = queue
        self.type = type
        self.names = tenant, limit_key
        self.request_ids = request_ids  # of each task, packed; empty: none has its own
        self._ids: list[bytes] | None = None  # the same, once one was asked for
        self.sizes = sizes  # of the payloads, packed
        self.count = len(sizes) // SIZE_BYTES
        self.last_sequence = self.first_sequence + self.count - 1
        self.largest_bytes = self._largest_bytes()
        self._parts: list[Part] = []  # once somebody has asked for them
        self.stretches = stretches
        self.there = self.unfinished = 0  # of its tasks: how many are in it, and how many of those have not finished
        for start, stretch in self.spans():
            self._count(stretch, stretch.end - start)
        self._packed = [stretch.encode() for stretch in stretches]
        # What never changes is encoded once.
        self._shared = (
            _RUN.pack(
                first_id, priority, flags, max_attempts, max_claims, result_ttl_ms, timeout_ms, header_bytes,
                len(queue), len(type), self.count, len(tenant), len(limit_key), len(request_ids),
            )
            + queue + type + sizes + tenant + limit_key + request_ids
        )  # fmt: skip

    @classmethod
    def make(cls, new: NewRun, first_id: bytes) -> "Run":
        """All of them ready."""
        stretches = [Stretch(new.tasks, READY, changed_ms=task_id_time_ms(first_id))]
        return cls(
            first_id, new.priority, new.flags, new.max_attempts, new.max_claims, new.result_ttl_ms, new.timeout_ms,
            len(new.header), new.queue, new.type, new.sizes, new.tenant, new.limit_key, new.request_ids, stretches,
        )  # fmt: skip

    def _largest_bytes(self) -> int:
        """Of all envelopes."""
        sizes = unpack_sizes(self.sizes)
        if not self.request_ids:
            return envelope_bytes(self.header_bytes, max(sizes))
        request_ids = self.request_ids_of(0, self.count)
        kinds = set(zip(sizes, map(len, request_ids), strict=True))
        return max(envelope_bytes(self.header_bytes, size) + id_bytes(id_size) for size, id_size in kinds)

    def _count(self, stretch: Stretch, tasks: int) -> None:
        """So many more of its tasks are in this state."""
        if stretch.state != DEPARTED:
            self.there += tasks
            if stretch.state != SUCCEEDED:
                self.unfinished += tasks

    def place(self, task_id: bytes) -> int | None:
        """Of a task of the run, also of one that has departed."""
        place = int.from_bytes(task_id, "big") - self._first_number
        return place if 0 <= place < self.count else None

    def id_at(self, place: int) -> bytes:
        return (self._first_number + place).to_bytes(16, "big") if place else self.first_id

    def stretch_at(self, place: int) -> tuple[int, Stretch]:
        """Where the stretch begins that a place is in, and the stretch."""
        index = bisect_right(self.stretches, place, key=_end)
        return self.stretches[index - 1].end if index else 0, self.stretches[index]

    def spans(self) -> Iterator[tuple[int, Stretch]]:
        """All stretches, each with where it begins."""
        start = 0
        for stretch in self.stretches:
            yield start, stretch
            start = stretch.end

    def replace(self, start: int, changed: Stretch) -> tuple[list[tuple[int, Stretch]], list[tuple[int, Stretch]]]:
        """The tasks from `start` up to the end of `changed`, which are of one stretch, are in another state from now
        on. Returns the stretches that went and those that came, each with where it begins."""
        stretches = self.stretches
        index = bisect_right(stretches, start, key=_end)
        old = stretches[index]
        old_start = stretches[index - 1].end if index else 0
        assert changed.end <= old.end, "a stretch changes as a whole or in part"
        self._count(old, start - changed.end)
        self._count(changed, changed.end - start)
        went, parts = [(old_start, old)], []
        if old_start < start:
            parts.append((old_start, old._replace(end=start)))
        parts.append((start, changed))
        if changed.end < old.end:
            rest = old._replace(token=later_token(old.token, changed.end - old_start)) if old.token else old
            parts.append((changed.end, rest))
        first, last = index, index + 1
        if index and parts[0][1] is changed:
            before_start = stretches[index - 2].end if index > 1 else 0
            if changed.continues(stretches[index - 1], start, before_start):
                first = index - 1
                went.append((before_start, stretches[first]))
                parts[0] = before_start, stretches[first]._replace(end=changed.end)
        if parts[-1][1].end < self.count and stretches[last].continues(parts[-1][1], parts[-1][1].end, parts[-1][0]):
            went.append((parts[-1][1].end, stretches[last]))
            parts[-1] = parts[-1][0], parts[-1][1]._replace(end=stretches[last].end)
            last += 1
        stretches[first:last] = [part for _, part in parts]
        packed = self._packed[index]
        self._packed[first:last] = [packed if part is old else part.encode() for _, part in parts]
        return went, parts

    def execution(self, place: int) -> Execution | None:
        """What a task would have as a row of its own; None if it has departed."""
        start, stretch = self.stretch_at(place)
        if stretch.state == DEPARTED:
            return None
        token = later_token(stretch.token, place - start) if stretch.token else 0
        request_id = self.request_id_at(place)
        size_bytes = envelope_bytes(self.header_bytes, self.size_at(place)) + id_bytes(len(request_id))
        tenant, limit_key = self.names
        task = Execution(
            self.queue, tenant, request_id, self.type, limit_key, b"", stretch.worker, stretch.state, self.priority,
            self.flags, NOT_DEAD, self.first_sequence + place, token, stretch.timer_ms, 0, self.enqueued_ms,
            stretch.changed_ms, self.enqueued_ms, self.result_ttl_ms, int(stretch.state != READY), 0,
            self.max_attempts, self.max_claims, size_bytes, self.timeout_ms,
        )  # fmt: skip
        task.is_in_run = True
        return task

    def size_at(self, place: int) -> int:
        """Of the payload."""
        return int.from_bytes(self.sizes[place * SIZE_BYTES : (place + 1) * SIZE_BYTES], "big")

    @property
    def parts(self) -> list[Part]:
        """One for each row of payloads."""
        if not self._parts:
            self._parts = parts_of(self.sizes)
        return self._parts

    def part_at(self, place: int) -> tuple[int, int]:
        """The places whose payloads are in the same row: the first of them, and the one behind the last."""
        parts = self.parts
        index = bisect_right(parts, place, key=_part_end)
        return parts[index - 1][0] if index else 0, parts[index][0]

    @property
    def kept_bytes(self) -> int:
        """About what it takes in memory."""
        fixed = _RUN_KEPT_BYTES + 2 * len(self.sizes) + _IDS_KEPT_TIMES * len(self.request_ids)
        return fixed + STRETCH_KEPT_BYTES * len(self.stretches)

    def request_id_at(self, place: int) -> bytes:
        """Its own; empty if it has none."""
        return self.request_ids_of(place, 1)[0] if self.request_ids else b""

    def request_ids_of(self, place: int, count: int) -> list[bytes]:
        """Of so many tasks; none if none has its own."""
        if not self.request_ids:
            return []
        if self._ids is None:
            self._ids = unpack_ids(self.request_ids)
        return self._ids[place : place + count]

    def encode(self) -> bytes:
        return b"".join((self._shared, *self._packed))

    @staticmethod
    def decode(row: bytes) -> "Run":
        (
            first_id, priority, flags, attempts, claims, result_ttl_ms, timeout_ms, header_bytes,
            queue_n, type_n, count, tenant_n, limit_n, ids_n,
        ) = _RUN.unpack_from(row)  # fmt: skip
        a = _RUN.size
        b = a + queue_n
        c = b + type_n
        d = c + count * SIZE_BYTES
        e = d + tenant_n
        f = e + limit_n
        offset = f + ids_n
        request_ids, stretches = row[f:offset], []
        while offset < len(row):
            end, state, number, secret, changed_ms, timer_ms, worker_n = _STRETCH.unpack_from(row, offset)
            a_worker = offset + _STRETCH.size
            offset = a_worker + worker_n
            token = number << SECRET_BITS | secret
            stretches.append(Stretch(end, state, token, changed_ms, timer_ms, row[a_worker:offset]))
        return Run(
            first_id, priority, flags, attempts, claims, result_ttl_ms, timeout_ms, header_bytes, row[a:b], row[b:c],
            row[c:d], row[d:e], row[e:f], request_ids, stretches,
        )  # fmt: skip


def stretch_row(count: int) -> bytes:
    """The value of a RETENTION row that stands for so many tasks; its key names the last of them."""
    return b"%d" % count if count > 1 else b""


def stretch_count(row: bytes) -> int:
    """For how many tasks such a row stands, or one of CLAIM_EXPIRY (see `running.claim_row`)."""
    count = row.partition(b"\0")[0]
    return int(count) if count else 1


class RunPayloads:
    """A row of a run's payloads: the header that they share, their sizes, and one behind the other."""

    __slots__ = ("_begin", "_row", "header", "sizes")

    def __init__(self, row: bytes) -> None:
        header_n, count = int.from_bytes(row[:4], "big"), int.from_bytes(row[4:6], "big")
        self._row = row
        self.header = row[6 : 6 + header_n]
        self._begin = 6 + header_n + count * SIZE_BYTES  # where the first payload begins
        self.sizes = unpack_sizes(row[6 + header_n : self._begin])

    @staticmethod
    def encode(header: bytes, sizes: bytes, payloads: bytes | memoryview) -> bytes:
        count = len(sizes) // SIZE_BYTES
        return b"".join((len(header).to_bytes(4, "big"), count.to_bytes(2, "big"), header, sizes, payloads))

    def slice(self, place: int, count: int) -> list[bytes]:
        """The payloads of so many tasks."""
        row, offset = self._row, self._begin + sum(self.sizes[:place])
        return [row[offset : (offset := offset + size)] for size in self.sizes[place : place + count]]

    def envelope(self, place: int, request_id: bytes) -> bytes:
        """What the task of that place would have been handed over as by itself."""
        [payload] = self.slice(place, 1)
        return envelope_of(self.header, payload, request_id)


def envelope_of(header: bytes, payload: bytes | memoryview, request_id: bytes = b"") -> bytes:
    """Messages of protobuf that are written one behind the other are one message."""
    envelope = b"".join((header, _PAYLOAD_TAG, _varint(len(payload)), payload)) if payload else header
    return b"".join((envelope, _REQUEST_ID_TAG, _varint(len(request_id)), request_id)) if request_id else envelope


def id_bytes(size: int) -> int:
    """How much of an envelope a request id of that size is."""
    return 1 + len(_varint(size)) + size if size else 0


def envelope_bytes(header_bytes: int, payload_bytes: int) -> int:
    """How long that is."""
    return header_bytes + 1 + len(_varint(payload_bytes)) + payload_bytes if payload_bytes else header_bytes


def _varint(number: int) -> bytes:
    digits = bytearray()
    while number > 0x7F:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    digits.append(number)
    return bytes(digits)
