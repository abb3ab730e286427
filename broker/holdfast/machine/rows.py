"""What the rows of a shard's state hold, and how they are written as bytes.

Every row begins with fixed fields in big-endian order; parts of varying length follow, each after its length.
"""

import struct
from typing import NamedTuple

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

DEAD_REASONS = {
    NOT_DEAD: "",
    ATTEMPTS_SPENT: "ATTEMPTS_SPENT",
    CLAIMS_SPENT: "CLAIMS_SPENT",
    WORKER_GAVE_UP: "WORKER_GAVE_UP",
}

_EXECUTION = struct.Struct(">BBBBBQQQQQQIIIIIH")
_NAMES = struct.Struct(">BHH")


class Execution:
    """The mutable part of a task: all that changes between acceptance and the end."""

    __slots__ = (
        "_names", "cancel_requested", "changed_ms", "claims", "dead_reason", "enqueued_ms", "failures",
        "had_follow_ups", "max_attempts",
        "max_claims", "priority", "queue", "request_id", "result_ttl_ms", "sequence", "size_bytes", "state", "tenant",
        "timer_ms", "token", "worker",
    )  # fmt: skip

    def __init__(
        self, queue: bytes, tenant: bytes, request_id: bytes, worker: bytes, state: int, priority: int,
        cancel_requested: int, dead_reason: int, had_follow_ups: int, sequence: int, token: int, timer_ms: int,
        enqueued_ms: int,
        changed_ms: int, result_ttl_ms: int, claims: int, failures: int, max_attempts: int, max_claims: int,
        size_bytes: int,
    ) -> None:  # fmt: skip
        self.state = state
        self.priority = priority
        self.cancel_requested = cancel_requested  # 1 once a cancel met a running claim
        self.dead_reason = dead_reason
        self.had_follow_ups = had_follow_ups  # 1 once acked with some: RECENT has that answer, not this row
        self.sequence = sequence  # the place in the ready line
        self.token = token  # of the newest claim, 0 before the first
        # What the one timer of a task means depends on its state: the lease's expiry while claimed, the due time while
        # delayed or retrying, the purge time once finished or dead, nothing while ready.
        self.timer_ms = timer_ms
        self.enqueued_ms = enqueued_ms
        self.changed_ms = changed_ms  # when this state was entered
        self.result_ttl_ms = result_ttl_ms
        self.claims = claims
        self.failures = failures
        self.max_attempts = max_attempts
        self.max_claims = max_claims
        self.size_bytes = size_bytes  # of the envelope
        self.queue = queue
        self.tenant = tenant
        self.request_id = request_id
        self.worker = worker  # the last one that claimed it
        # What never changes is encoded once.
        self._names = _NAMES.pack(len(queue), len(tenant), len(request_id)) + queue + tenant + request_id

    def encode(self) -> bytes:
        return (
            _EXECUTION.pack(
                self.state, self.priority, self.cancel_requested, self.dead_reason, self.had_follow_ups, self.sequence,
                self.token, self.timer_ms, self.enqueued_ms, self.changed_ms, self.result_ttl_ms, self.claims,
                self.failures, self.max_attempts, self.max_claims, self.size_bytes, len(self.worker),
            )
            + self._names
            + self.worker
        )  # fmt: skip

    @staticmethod
    def decode(row: bytes) -> "Execution":
        *fixed, worker_n = _EXECUTION.unpack_from(row)
        queue_n, tenant_n, request_n = _NAMES.unpack_from(row, _EXECUTION.size)
        a = _EXECUTION.size + _NAMES.size
        b = a + queue_n
        c = b + tenant_n
        d = c + request_n
        return Execution(row[a:b], row[b:c], row[c:d], row[d : d + worker_n], *fixed)

    @staticmethod
    def state_in(row: bytes) -> int:
        """The state alone, where the rest is not needed."""
        return row[0]

    @property
    def state_name(self) -> str:
        return STATE_NAMES[self.state]


def ready_row(task_id: bytes, size_bytes: int) -> bytes:
    """The value of a READY row."""
    return task_id + size_bytes.to_bytes(4, "big")


def split_ready_row(row: bytes) -> tuple[bytes, int]:
    return row[:TASK_ID_BYTES], int.from_bytes(row[TASK_ID_BYTES:], "big")


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


BANDS = PRIORITY_MAX + 1
_QUEUE = struct.Struct(f">13Q{BANDS}Q")


class Queue:
    """Counters of one queue, and its low-water marks.

    `marks[priority]`: no ready task of that priority has a smaller sequence, so a leader starts reading the ready line
    there and never walks over the tombstones of what was claimed. `mark_version` grows whenever a task returns behind
    its mark; a leader's wish to raise a mark counts only if the version is the one it decided on.
    """

    __slots__ = (
        "cancelled_total", "claimed", "claimed_total", "dead", "dead_total", "delayed", "enqueued_total",
        "expired_total", "failed_total", "mark_version", "marks", "ready", "retrying", "succeeded_total",
    )  # fmt: skip

    def __init__(self) -> None:
        self.ready = 0
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
        self.marks = [0] * BANDS

    def encode(self) -> bytes:
        return _QUEUE.pack(
            self.ready, self.claimed, self.delayed, self.retrying, self.dead, self.enqueued_total,
            self.claimed_total, self.succeeded_total, self.failed_total, self.expired_total, self.cancelled_total,
            self.dead_total, self.mark_version, *self.marks,
        )  # fmt: skip

    @staticmethod
    def decode(row: bytes) -> "Queue":
        queue = Queue()
        (
            queue.ready, queue.claimed, queue.delayed, queue.retrying, queue.dead, queue.enqueued_total,
            queue.claimed_total, queue.succeeded_total, queue.failed_total, queue.expired_total,
            queue.cancelled_total, queue.dead_total, queue.mark_version, *queue.marks,
        ) = _QUEUE.unpack(row)  # fmt: skip
        return queue


class Settings(NamedTuple):
    """What a queue does in its own way. The leader reads the policy; to the machine it is opaque."""

    version: int  # grows with every change
    policy: bytes

    def encode(self) -> bytes:
        return self.version.to_bytes(8, "big") + self.policy

    @staticmethod
    def decode(row: bytes) -> "Settings":
        return Settings(int.from_bytes(row[:8], "big"), row[8:])


class Letter(NamedTuple):
    """A task on its way to another shard, whose leader decides what else it needs."""

    run_at_ms: int  # 0: at once
    envelope: bytes

    def encode(self) -> bytes:
        return self.run_at_ms.to_bytes(8, "big") + self.envelope

    @staticmethod
    def decode(row: bytes) -> "Letter":
        return Letter(int.from_bytes(row[:8], "big"), row[8:])


_OUTBOX = struct.Struct(">QQ")


class Outbox(NamedTuple):
    """How far the letters to one destination are: those after `delivered`, up to `last`, are on their way."""

    last: int = 0  # the sequence of the newest letter
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
    """The sequence of the newest letter of one source: what comes again is known by it."""

    last: int

    def encode(self) -> bytes:
        return self.last.to_bytes(8, "big")

    @staticmethod
    def decode(row: bytes) -> "Inbox":
        return Inbox(int.from_bytes(row, "big"))


_DEDUP = struct.Struct(">16sQQ")


class Dedup(NamedTuple):
    """Which task a request id made."""

    task_id: bytes
    forget_ms: int
    window_ms: int  # how much longer to remember it if the task still lives when `forget_ms` comes

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
    follow_ups: tuple[tuple[bytes, bool], ...]  # (task id, duplicate)

    def encode(self) -> bytes:
        head = _RECENT.pack(self.task_id, self.kind, self.state, self.retry_at_ms, len(self.follow_ups))
        return head + b"".join(task_id + bytes([duplicate]) for task_id, duplicate in self.follow_ups)

    @staticmethod
    def decode(row: bytes) -> "Recent":
        settled_id, kind, state, retry_at_ms, count = _RECENT.unpack_from(row)
        step = TASK_ID_BYTES + 1
        starts = range(_RECENT.size, _RECENT.size + count * step, step)
        pairs = tuple((row[at : at + TASK_ID_BYTES], bool(row[at + TASK_ID_BYTES])) for at in starts)
        return Recent(settled_id, kind, state, retry_at_ms, pairs)


REPORT_ERROR = 1
REPORT_RESULT = 2


class Report(NamedTuple):
    """What a worker last said about a task: its error or its result, opaque to the machine."""

    kind: int  # REPORT_*
    body: bytes

    def encode(self) -> bytes:
        return bytes([self.kind]) + self.body

    @staticmethod
    def decode(row: bytes) -> "Report":
        return Report(row[0], row[1:])


_CLAIM_REF = struct.Struct(">16sQ")


class ClaimRequest(NamedTuple):
    """The claims that one reserve call was given, for its retry."""

    forget_ms: int
    claims: tuple[tuple[bytes, int], ...]  # (task id, token)

    def encode(self) -> bytes:
        return self.forget_ms.to_bytes(8, "big") + b"".join(_CLAIM_REF.pack(*claim) for claim in self.claims)

    @staticmethod
    def decode(row: bytes) -> "ClaimRequest":
        return ClaimRequest(int.from_bytes(row[:8], "big"), tuple(_CLAIM_REF.iter_unpack(row[8:])))
