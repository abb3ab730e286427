"""What the rows of a shard's state hold, and how they are written as bytes.

Every row begins with fixed fields in big-endian order; parts of varying length follow, each after its length.
"""

import struct
from typing import NamedTuple

from holdfast.machine.ids import SECRET_BITS, SECRET_MAX, task_id_time_ms
from holdfast.machine.keys import PRIORITY_MAX, TASK_ID_BYTES

# Task states. The numbers are stored and equal those of the wire API.
READY = 1
CLAIMED = 2
DELAYED = 3
RETRY_PENDING = 4
SUCCEEDED = 5
DEAD = 6
CANCELLED = 7

STATE_NAMES = {
    READY: "READY",
    CLAIMED: "CLAIMED",
    DELAYED: "DELAYED",
    RETRY_PENDING: "RETRY_PENDING",
    SUCCEEDED: "SUCCEEDED",
    DEAD: "DEAD",
    CANCELLED: "CANCELLED",
}

# Why a task died. The numbers are stored.
NOT_DEAD = 0
ATTEMPTS_SPENT = 1
CLAIMS_SPENT = 2
WORKER_GAVE_UP = 3
NON_RETRYABLE = 4
TTL_PASSED = 5
REQUEST_ID_CONFLICT = 6

DEAD_REASONS = {
    NOT_DEAD: "",
    ATTEMPTS_SPENT: "ATTEMPTS_SPENT",
    CLAIMS_SPENT: "CLAIMS_SPENT",
    WORKER_GAVE_UP: "WORKER_GAVE_UP",
    NON_RETRYABLE: "NON_RETRYABLE",
    TTL_PASSED: "TTL_PASSED",
    REQUEST_ID_CONFLICT: "REQUEST_ID_CONFLICT",
}

# Flags of a task. The numbers are stored.
HAS_RETRY = 1  # its envelope says how it is retried
UNIQUE_UNTIL_DONE = 2  # how long it keeps its unique key
UNIQUE_WHILE_WAITING = 4
HAS_ATTEMPTS = 8  # there is an ATTEMPTS row
HAD_FOLLOW_UPS = 16  # acked with some: RECENT has that answer, not the execution
CANCEL_REQUESTED = 32  # a cancel met a running claim
LOST_UNIQUE_KEY = 64  # when it last began to wait, another task had its unique key
HAD_RESULT = 128  # acked with one that was kept: known also when the row of the result is gone
# The lease of a claim ended without a word of its worker, and the task has not been heard of since: it may be what ends
# or stops its workers. It is handed out alone, so a claim of a suspect is a claim in which the task is alone.
SUSPECT = 256

_EXECUTION = struct.Struct(">BBHBQQQQQQQQQIIIIIIH")
_SEQUENCE_AT = 5
_NAMES = struct.Struct(">BHHHHH")


class Execution:
    """The mutable part of a task: all that changes between acceptance and the end."""

    __slots__ = (
        "_names", "changed_ms", "claims", "dead_reason", "enqueued_ms", "failures", "flags", "is_in_run", "limit_key",
        "max_attempts", "max_claims", "priority", "queue", "ready_since_ms", "request_id", "result_ttl_ms", "sequence",
        "size_bytes", "start_by_ms", "state", "tenant", "timeout_ms", "timer_ms", "token", "type", "unique_key",
        "worker",
    )  # fmt: skip

    def __init__(
        self, queue: bytes, tenant: bytes, request_id: bytes, type: bytes, limit_key: bytes, unique_key: bytes,
        worker: bytes, state: int, priority: int, flags: int, dead_reason: int, sequence: int, token: int,
        timer_ms: int, start_by_ms: int, enqueued_ms: int, changed_ms: int, ready_since_ms: int, result_ttl_ms: int,
        claims: int, failures: int, max_attempts: int, max_claims: int, size_bytes: int, timeout_ms: int,
    ) -> None:  # fmt: skip
        self.state = state
        self.priority = priority
        self.flags = flags
        self.dead_reason = dead_reason
        self.sequence = sequence  # the place in the ready line
        self.token = token  # of the newest claim, 0 before the first
        # What the one timer of a task means depends on its state: the lease's expiry while claimed, the due time while
        # delayed or retrying, the purge time once finished or dead, nothing while ready.
        self.timer_ms = timer_ms
        # It dies unless it is started before; 0: no such time, or it was started. A claim that is released was none.
        self.start_by_ms = start_by_ms
        self.enqueued_ms = enqueued_ms
        self.changed_ms = changed_ms  # when this state was entered
        # When it joined the line in which it is, or was last; 0 before the first time. A claim that comes to nothing
        # gives it back its place, and with it this: who waits for a worker has waited on meanwhile.
        self.ready_since_ms = ready_since_ms
        self.result_ttl_ms = result_ttl_ms
        self.claims = claims
        self.failures = failures
        self.max_attempts = max_attempts
        self.max_claims = max_claims
        self.size_bytes = size_bytes  # of the envelope
        self.timeout_ms = timeout_ms  # how long a claim may last, whatever its lease; 0: no limit
        self.queue = queue
        self.tenant = tenant
        self.request_id = request_id
        self.type = type
        self.limit_key = limit_key
        self.unique_key = unique_key
        self.worker = worker  # the last one that claimed it
        self.is_in_run = False  # it has no rows of its own: it departs with the first change of its own
        # What never changes is encoded once.
        lengths = len(queue), len(tenant), len(request_id), len(type), len(limit_key), len(unique_key)
        self._names = b"".join((_NAMES.pack(*lengths), queue, tenant, request_id, type, limit_key, unique_key))

    def encode(self) -> bytes:
        return (
            _EXECUTION.pack(
                self.state, self.priority, self.flags, self.dead_reason, self.sequence, self.token >> SECRET_BITS,
                self.token & SECRET_MAX, self.timer_ms, self.start_by_ms, self.enqueued_ms, self.changed_ms,
                self.ready_since_ms, self.result_ttl_ms, self.claims, self.failures, self.max_attempts, self.max_claims,
                self.size_bytes, self.timeout_ms, len(self.worker),
            )
            + self._names
            + self.worker
        )  # fmt: skip

    @staticmethod
    def decode(row: bytes) -> "Execution":
        state, priority, flags, reason, sequence, number, secret, *fixed, worker_n = _EXECUTION.unpack_from(row)
        queue_n, tenant_n, request_n, type_n, limit_n, unique_n = _NAMES.unpack_from(row, _EXECUTION.size)
        a = _EXECUTION.size + _NAMES.size
        b = a + queue_n
        c = b + tenant_n
        d = c + request_n
        e = d + type_n
        f = e + limit_n
        g = f + unique_n
        return Execution(
            row[a:b], row[b:c], row[c:d], row[d:e], row[e:f], row[f:g], row[g : g + worker_n], state, priority, flags,
            reason, sequence, number << SECRET_BITS | secret, *fixed,
        )  # fmt: skip

    @property
    def is_plain(self) -> bool:
        """Whether it waits in the plain sub-queue of its queue and priority: without a tenant and a limit key."""
        return not self.tenant and not self.limit_key

    @property
    def result_end_ms(self) -> int:
        """Until when the result of a task that has succeeded is kept, if it has one; 0: it can have none."""
        return self.changed_ms + self.result_ttl_ms if self.state == SUCCEEDED and self.result_ttl_ms else 0

    @property
    def cancel_requested(self) -> bool:
        return bool(self.flags & CANCEL_REQUESTED)

    @property
    def is_suspect(self) -> bool:
        return bool(self.flags & SUSPECT)

    @property
    def is_in_line(self) -> bool:
        """Whether it waits in a ready line: suspects that are ready wait apart from all lines."""
        return self.state == READY and not self.flags & SUSPECT

    @staticmethod
    def is_in_line_at(row: bytes, sequence: int) -> bool:
        """Whether the task is ready, and in this place of its line."""
        if row[0] != READY or int.from_bytes(row[_SEQUENCE_AT : _SEQUENCE_AT + 8], "big") != sequence:
            return False
        return not int.from_bytes(row[2:4], "big") & SUSPECT

    @property
    def state_name(self) -> str:
        return STATE_NAMES[self.state]


_META = struct.Struct(">QQQQQQHHH")


class Meta:
    """One row per shard, written with every batch: how far the log has been applied, and the shard's counters."""

    __slots__ = (
        "applied_index", "applied_term", "incarnation", "machine_level", "next_sequence", "next_token", "now_ms",
        "shard", "stepped_ms",
    )  # fmt: skip

    def __init__(
        self, applied_index: int = 0, applied_term: int = 0, now_ms: int = 0, stepped_ms: int = 0,
        next_sequence: int = 1, next_token: int = 1, shard: int = 0, incarnation: int = 1, machine_level: int = 1,
    ) -> None:  # fmt: skip
        self.applied_index = applied_index
        self.applied_term = applied_term
        self.now_ms = now_ms  # shard time of the newest applied entry; never goes back
        self.stepped_ms = stepped_ms  # shard time of the newest step of the clock; purges wait a while after it
        self.next_sequence = next_sequence
        self.next_token = next_token  # the counter part of the next token
        self.shard = shard
        self.incarnation = incarnation
        self.machine_level = machine_level  # the newest kinds of entries that every replica knows

    def encode(self) -> bytes:
        return _META.pack(
            self.applied_index, self.applied_term, self.now_ms, self.stepped_ms, self.next_sequence,
            self.next_token, self.shard, self.incarnation, self.machine_level,
        )  # fmt: skip

    @staticmethod
    def decode(row: bytes) -> "Meta":
        return Meta(*_META.unpack(row))


PRIORITIES = PRIORITY_MAX + 1
_QUEUE = struct.Struct(f">15Q{PRIORITIES}Q{PRIORITIES}I")


class Queue:
    """Counters of one queue, and its low-water marks.

    `marks[priority]`: no ready task of the plain sub-queue of that priority has a smaller sequence, so a leader starts
    reading the ready line there and never walks over the tombstones of what was claimed. Other sub-queues have marks of
    their own, and `age_mark` is that of the READY_AGE rows of all of them together. `mark_version` grows whenever a
    task returns behind its mark; a leader's proposal to raise a mark counts only if the version is still the same.
    `subqueues[priority]`: how many other sub-queues have ready tasks.
    `suspects`: how many of the ready tasks are suspects, which wait in no line.
    """

    __slots__ = (
        "age_mark",
        "cancelled_total",
        "claimed",
        "claimed_total",
        "dead",
        "dead_total",
        "delayed",
        "enqueued_total",
        "expired_total",
        "failed_total",
        "mark_version",
        "marks",
        "ready",
        "retrying",
        "subqueues",
        "succeeded_total",
        "suspects",
    )  # fmt: skip

    def __init__(self) -> None:
        self.ready = 0
        self.suspects = 0
        self.claimed = 0
        self.delayed = 0
        self.retrying = 0
        self.dead = 0
        self.enqueued_total = 0
        self.claimed_total = 0
        self.succeeded_total = 0
        self.failed_total = 0
        self.expired_total = 0
        self.cancelled_total = 0
        self.dead_total = 0
        self.mark_version = 0
        self.age_mark = 0
        self.marks = [0] * PRIORITIES
        self.subqueues = [0] * PRIORITIES

    @property
    def in_line(self) -> int:
        """How many ready tasks wait in lines."""
        return self.ready - self.suspects

    def encode(self) -> bytes:
        return _QUEUE.pack(
            self.ready, self.claimed, self.delayed, self.retrying, self.dead, self.enqueued_total,
            self.claimed_total, self.succeeded_total, self.failed_total, self.expired_total, self.cancelled_total,
            self.dead_total, self.mark_version, self.age_mark, self.suspects, *self.marks, *self.subqueues,
        )  # fmt: skip

    @staticmethod
    def decode(row: bytes) -> "Queue":
        queue = Queue()
        (
            queue.ready, queue.claimed, queue.delayed, queue.retrying, queue.dead, queue.enqueued_total,
            queue.claimed_total, queue.succeeded_total, queue.failed_total, queue.expired_total,
            queue.cancelled_total, queue.dead_total, queue.mark_version, queue.age_mark, queue.suspects, *levels,
        ) = _QUEUE.unpack(row)  # fmt: skip
        queue.marks, queue.subqueues = levels[:PRIORITIES], levels[PRIORITIES:]
        return queue


_BUCKET = struct.Struct(">QQQ")
bucket_row = _BUCKET.pack  # of a `Bucket`'s fields, without making one


class Bucket(NamedTuple):
    """The level of a rate limit; once it is full again the row says nothing and goes."""

    level_micro: int  # in millionths of a claim
    at_ms: int
    key_expiry_ms: int

    def encode(self) -> bytes:
        return _BUCKET.pack(*self)

    @staticmethod
    def decode(row: bytes) -> "Bucket":
        return Bucket(*_BUCKET.unpack(row))

    @staticmethod
    def key_expiry_ms_in(row: bytes) -> int:
        """That alone, where the rest is not needed."""
        return int.from_bytes(row[-8:], "big")


ATTEMPTS_KEPT = 16

# How an attempt ended. The numbers are stored.
ATTEMPT_FAILED = 1
ATTEMPT_LEASE_EXPIRED = 2
ATTEMPT_TIMED_OUT = 3

_ATTEMPT = struct.Struct(">BQQHH")


class Attempt(NamedTuple):
    """One attempt that came to nothing."""

    how: int  # ATTEMPT_*
    claimed_ms: int
    ended_ms: int
    worker: bytes
    brief: bytes  # of its error, opaque to the machine

    def encode(self) -> bytes:
        head = _ATTEMPT.pack(self.how, self.claimed_ms, self.ended_ms, len(self.worker), len(self.brief))
        return head + self.worker + self.brief


class AttemptsRow(NamedTuple):
    """The newest attempts of a task that came to nothing, the oldest first."""

    kept: tuple[Attempt, ...] = ()

    def plus(self, attempt: Attempt) -> "AttemptsRow":
        return AttemptsRow((*self.kept, attempt)[-ATTEMPTS_KEPT:])

    def encode(self) -> bytes:
        return b"".join(attempt.encode() for attempt in self.kept)

    @staticmethod
    def decode(row: bytes) -> "AttemptsRow":
        kept, offset = [], 0
        while offset < len(row):
            how, claimed_ms, ended_ms, worker_n, brief_n = _ATTEMPT.unpack_from(row, offset)
            a = offset + _ATTEMPT.size
            b = a + worker_n
            offset = b + brief_n
            kept.append(Attempt(how, claimed_ms, ended_ms, row[a:b], row[b:offset]))
        return AttemptsRow(tuple(kept))


_SCHEDULE = struct.Struct(">QQQBQQ16s")


class Schedule(NamedTuple):
    """A schedule and how far it is. What it says is opaque to the machine."""

    version: int  # grows with every change
    next_ms: int  # the next tick; 0: never, or paused
    last_ms: int  # the newest tick that is dealt with; 0: none yet
    paused: int
    fired_total: int
    skipped_total: int
    last_task_id: bytes  # of the newest tick's task; zeros: none yet
    body: bytes

    def encode(self) -> bytes:
        return _SCHEDULE.pack(*self[:-1]) + self.body

    @staticmethod
    def decode(row: bytes) -> "Schedule":
        version, next_ms, last_ms, paused, fired, skipped, last_task_id = _SCHEDULE.unpack_from(row)
        return Schedule(version, next_ms, last_ms, paused, fired, skipped, last_task_id, row[_SCHEDULE.size :])


NO_TASK = bytes(TASK_ID_BYTES)

_DISCARD = struct.Struct(">BQQBHHHH")


class Discard(NamedTuple):
    """What is left of a dead letter that was discarded."""

    dead_reason: int
    died_ms: int
    key_expiry_ms: int
    queue: bytes
    type: bytes
    tenant: bytes
    by: bytes
    note: bytes

    def encode(self) -> bytes:
        names = (self.queue, self.type, self.tenant, self.by, self.note)
        head = _DISCARD.pack(self.dead_reason, self.died_ms, self.key_expiry_ms, *map(len, names))
        return head + b"".join(names)

    @staticmethod
    def decode(row: bytes) -> "Discard":
        dead_reason, died_ms, key_expiry_ms, *lengths = _DISCARD.unpack_from(row)
        names, offset = [], _DISCARD.size
        for length in lengths:
            names.append(row[offset : offset + length])
            offset += length
        return Discard(dead_reason, died_ms, key_expiry_ms, *names)


class AllocationRow(NamedTuple):
    """What a shard may use of a limit of a queue that has its home here. Opaque to the machine."""

    body: bytes

    def encode(self) -> bytes:
        return self.body

    @staticmethod
    def decode(row: bytes) -> "AllocationRow":
        return AllocationRow(row)


_SETTINGS = struct.Struct(">QQ")


class SettingsRow(NamedTuple):
    """What a queue does in its own way. The leader reads the policy; to the machine it is opaque."""

    version: int  # grows with every change
    policy: bytes
    rates_since_ms: int = 0  # levels of token buckets from before say nothing any more; 0: all of them count

    def encode(self) -> bytes:
        return _SETTINGS.pack(self.version, self.rates_since_ms) + self.policy

    @staticmethod
    def decode(row: bytes) -> "SettingsRow":
        version, rates_since_ms = _SETTINGS.unpack_from(row)
        return SettingsRow(version, row[_SETTINGS.size :], rates_since_ms)


class OutboxMessage(NamedTuple):
    """A task on its way to another shard, whose leader decides what else it needs."""

    run_at_ms: int  # 0: at once
    envelope: bytes

    def encode(self) -> bytes:
        return self.run_at_ms.to_bytes(8, "big") + self.envelope

    @staticmethod
    def decode(row: bytes) -> "OutboxMessage":
        return OutboxMessage(int.from_bytes(row[:8], "big"), row[8:])


_OUTBOX = struct.Struct(">QQ")


class Outbox(NamedTuple):
    """How far the messages to one destination are: those after `delivered`, up to `last`, are on their way."""

    last: int = 0  # the sequence of the newest message
    delivered: int = 0

    @property
    def waiting(self) -> int:
        return self.last - self.delivered

    def encode(self) -> bytes:
        return _OUTBOX.pack(*self)

    @staticmethod
    def decode(row: bytes) -> "Outbox":
        return Outbox(*_OUTBOX.unpack(row))


class Inbox(NamedTuple):
    """The sequence of the newest message of one source: what comes again is known by it."""

    last: int

    def encode(self) -> bytes:
        return self.last.to_bytes(8, "big")

    @staticmethod
    def decode(row: bytes) -> "Inbox":
        return Inbox(int.from_bytes(row, "big"))


_DEDUP = struct.Struct(">16sQQQ")


class Dedup(NamedTuple):
    """Which task a request id made, or was answered with. The row may be there for longer than it counts."""

    task_id: bytes
    key_expiry_ms: int  # when the row goes, unless the task that the id made lives on
    window_ms: int  # how long the id counts at least; 0: it made no task, another one had its unique key
    digest: int  # of what the task was made of; 0: not to be compared

    @property
    def window_end_ms(self) -> int:
        """Exactly, however often the row was renewed: an id is accepted when its task is made."""
        return task_id_time_ms(self.task_id) + self.window_ms if self.window_ms else self.key_expiry_ms

    def encode(self) -> bytes:
        return _DEDUP.pack(*self)

    @staticmethod
    def decode(row: bytes) -> "Dedup":
        return Dedup(*_DEDUP.unpack(row))


ANSWER_ACK = 1
ANSWER_FAIL = 2
ANSWER_RELEASE = 3

_RECENT = struct.Struct(">16sBBQH")


class Recent(NamedTuple):
    """The first answer to a settled claim, for a caller that lost it and asks again."""

    task_id: bytes
    kind: int  # ANSWER_*
    state: int
    retry_at_ms: int
    follow_ups: tuple[tuple[bytes, bool, int], ...]  # (task id, duplicate, state of a duplicate)

    def encode(self) -> bytes:
        head = _RECENT.pack(self.task_id, self.kind, self.state, self.retry_at_ms, len(self.follow_ups))
        return head + b"".join(task_id + bytes(pair) for task_id, *pair in self.follow_ups)

    @staticmethod
    def decode(row: bytes) -> "Recent":
        settled_id, kind, state, retry_at_ms, count = _RECENT.unpack_from(row)
        ends = range(_RECENT.size + TASK_ID_BYTES, _RECENT.size + count * (TASK_ID_BYTES + 2), TASK_ID_BYTES + 2)
        follow_ups = tuple((row[end - TASK_ID_BYTES : end], bool(row[end]), row[end + 1]) for end in ends)
        return Recent(settled_id, kind, state, retry_at_ms, follow_ups)


REPORT_ERROR = 1
REPORT_RESULT = 2
REPORT_CONFLICT = 3


class TaskReport(NamedTuple):
    """What a worker last said about a task: its error or its result, opaque to the machine. Or what the machine has to
    say: the id of the task that its request id stands for."""

    kind: int  # REPORT_*
    body: bytes

    def encode(self) -> bytes:
        return bytes([self.kind]) + self.body

    @staticmethod
    def decode(row: bytes) -> "TaskReport":
        return TaskReport(row[0], row[1:])


_CLAIM_REF = struct.Struct(">16sQQI")


class ClaimRequest(NamedTuple):
    """The claims that one reserve call was given, for its retry."""

    key_expiry_ms: int
    # Task id, token, and how many tasks: those of a run have ids and tokens that follow each other.
    claims: tuple[tuple[bytes, int, int], ...]

    def encode(self) -> bytes:
        pack = _CLAIM_REF.pack
        refs = [pack(task_id, token >> SECRET_BITS, token & SECRET_MAX, count) for task_id, token, count in self.claims]
        return self.key_expiry_ms.to_bytes(8, "big") + b"".join(refs)

    @staticmethod
    def decode(row: bytes) -> "ClaimRequest":
        refs = _CLAIM_REF.iter_unpack(row[8:])
        claims = tuple((task_id, number << SECRET_BITS | secret, count) for task_id, number, secret, count in refs)
        return ClaimRequest(int.from_bytes(row[:8], "big"), claims)
