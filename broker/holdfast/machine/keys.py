"""The key layout of a shard's state: the one place where a row's address is made.

A key is a family number (one byte) followed by big-endian parts, so that byte order is the order a reader wants.
A family number is never reused for something else, also when its family is retired, as 0x16 is.

    family          key parts                                   value
    META            -                                           rows.Meta
    ENVELOPE        task id                                     the producer's task, opaque to the machine
    EXECUTION       task id                                     rows.Execution
    READY           queue, 9 - priority, tenant, limit key,     task id, size of the envelope
                    sequence
    READY_AGE       queue, number of the page                   ready_rows.AgePage; of ready tasks with a tenant or a
                                                                limit key, and of some that have left
    SUBQUEUE        queue, 9 - priority, tenant, limit key      ready_rows.Subqueue; of those with ready tasks, but not
                                                                of the plain one
    CLAIM_EXPIRY    expiry, task id                             of how many, queue, tenant and limit key; mostly nothing
    DUE             due, task id                                -
    DEAD            queue, died, task id                        -
    DEDUP           queue, request id                           rows.Dedup
    KEY_EXPIRY      when, key                                   - (of a DEDUP, RECENT, CLAIM_REQUEST, BUCKET or DISCARD,
                                                                  or of a result, a REPORT, that goes before its task)
    RECENT          token                                       rows.Recent, the first answer to a settled claim
    RETENTION       when, task id                               -
    SCHEDULE        queue, name                                 rows.Schedule
    SETTINGS        queue                                       rows.Settings, what the queue does in its own way
    QUEUE           queue                                       rows.Queue, counters and low-water marks
    OUTBOX          destination, sequence                       rows.OutboxMessage; at sequence 0 rows.Outbox, how far
    INBOX           source, incarnation                         rows.Inbox, how far that source's messages have come
    REPORT          task id                                     rows.TaskReport, the last error, result or conflict
    CLAIM_REQUEST   worker, claim request id                    rows.ClaimRequest
    WORKER          worker                                      how many claims it holds; no row if none
    BUCKET          queue, scope, name                          rows.Bucket, the level of a rate limit that is not full
    UNIQUE          queue, unique key                           id of the task that has the key
    ATTEMPTS        task id                                     rows.Attempts, those that came to nothing
    START_BY        when, task id                               - (of waiting tasks that die unless started by then)
    SCHEDULE_DUE    when, queue, name                           -
    DISCARD         when, task id                               rows.Discard, what is left of a discarded dead letter
    ALLOCATION      queue, what, shard                          rows.AllocationRow, what a shard may use of a limit
    SUSPECT         queue, sequence                             task id, size of the envelope; of ready suspects, which
                                                                have no READY row
    ALONE           worker                                      how many suspects it has claimed; no row if none
    RUN             sequence of the last task                   run_rows.Run: tasks that are still alike
    RUN_PAYLOADS    sequence of the last task in the row        run_rows.RunPayloads, some of those of a run, until all
                                                                of its tasks have finished

READY, CLAIM_EXPIRY and RETENTION rows of a stretch of a run have the sequence or the id of its last task in their keys.
So whoever reads from some task on finds the stretch that it is in, and what is taken from the front changes no key.

Queue names, tenants and ids are free of NUL bytes (the broker validates them), so NUL ends a part of varying length.
"""

import struct
from functools import lru_cache

META = 0x01
ENVELOPE = 0x02
EXECUTION = 0x03
READY = 0x04
READY_AGE = 0x05
SUBQUEUE = 0x06
CLAIM_EXPIRY = 0x07
DUE = 0x08
DEAD = 0x09
DEDUP = 0x0A
KEY_EXPIRY = 0x0B
RECENT = 0x0C
RETENTION = 0x0D
SCHEDULE = 0x0E
SETTINGS = 0x0F
QUEUE = 0x10
OUTBOX = 0x11
INBOX = 0x12
REPORT = 0x13
CLAIM_REQUEST = 0x14
WORKER = 0x15
BUCKET = 0x17
UNIQUE = 0x18
ATTEMPTS = 0x19
START_BY = 0x1A
SCHEDULE_DUE = 0x1B
DISCARD = 0x1C
ALLOCATION = 0x1D
SUSPECT = 0x1E
ALONE = 0x1F
RUN = 0x20
RUN_PAYLOADS = 0x21

FAMILIES = (
    META, ENVELOPE, EXECUTION, READY, READY_AGE, SUBQUEUE, CLAIM_EXPIRY, DUE, DEAD, DEDUP, KEY_EXPIRY, RECENT,
    RETENTION, SCHEDULE, SETTINGS, QUEUE, OUTBOX, INBOX, REPORT, CLAIM_REQUEST, WORKER, BUCKET, UNIQUE,
    ATTEMPTS, START_BY, SCHEDULE_DUE, DISCARD, ALLOCATION, SUSPECT, ALONE,
    RUN, RUN_PAYLOADS,
)  # fmt: skip

# What a cap or a rate is about: a part of BUCKET keys.
SCOPE_QUEUE = 0x71
SCOPE_TENANT = 0x74
SCOPE_KEY = 0x6B

PRIORITY_MAX = 9
TASK_ID_BYTES = 16

_U64 = struct.Struct(">Q")
_pack_u64 = _U64.pack

META_KEY = bytes([META])
_ENVELOPE = bytes([ENVELOPE])
_EXECUTION = bytes([EXECUTION])
_READY = bytes([READY])
_CLAIM_EXPIRY = bytes([CLAIM_EXPIRY])
_DUE = bytes([DUE])
_DEAD = bytes([DEAD])
_DEDUP = bytes([DEDUP])
_KEY_EXPIRY = bytes([KEY_EXPIRY])
_RECENT = bytes([RECENT])
_RETENTION = bytes([RETENTION])
_SETTINGS = bytes([SETTINGS])
_OUTBOX = struct.Struct(">BHQ")
_INBOX = struct.Struct(">BHH")
_QUEUE = bytes([QUEUE])
_REPORT = bytes([REPORT])
_CLAIM_REQUEST = bytes([CLAIM_REQUEST])
_WORKER = bytes([WORKER])
_READY_AGE = bytes([READY_AGE])
_SUBQUEUE = bytes([SUBQUEUE])
_BUCKET = bytes([BUCKET])
_UNIQUE = bytes([UNIQUE])
_ATTEMPTS = bytes([ATTEMPTS])
_START_BY = bytes([START_BY])
_SCHEDULE = bytes([SCHEDULE])
_SCHEDULE_DUE = bytes([SCHEDULE_DUE])
_DISCARD = bytes([DISCARD])
_ALLOCATION = bytes([ALLOCATION])
_SUSPECT = bytes([SUSPECT])
_ALONE = bytes([ALONE])
_RUN = bytes([RUN])
_RUN_PAYLOADS = bytes([RUN_PAYLOADS])


def envelope(task_id: bytes) -> bytes:
    return _ENVELOPE + task_id


def execution(task_id: bytes) -> bytes:
    return _EXECUTION + task_id


def report(task_id: bytes) -> bytes:
    return _REPORT + task_id


@lru_cache(maxsize=4096)
def ready_subqueue(queue: bytes, priority: int, tenant: bytes = b"", limit_key: bytes = b"") -> bytes:
    """The prefix of the ready tasks of one sub-queue, first in, first out. The highest priority sorts first."""
    return b"%b%b\0%c%b\0%b\0" % (_READY, queue, PRIORITY_MAX - priority, tenant, limit_key)


def ready(queue: bytes, priority: int, sequence: int, tenant: bytes = b"", limit_key: bytes = b"") -> bytes:
    return ready_subqueue(queue, priority, tenant, limit_key) + _pack_u64(sequence)


def ready_at(subqueue: bytes, sequence: int) -> bytes:
    """The READY key of a place in a sub-queue, of which `subqueue` is the prefix."""
    return subqueue + _pack_u64(sequence)


def ready_queue(queue: bytes) -> bytes:
    """The prefix of all ready tasks of a queue."""
    return b"%b%b\0" % (_READY, queue)


def ready_sequence(key: bytes) -> int:
    """The sequence at the end of a READY key."""
    return int.from_bytes(key[-8:], "big")


@lru_cache(maxsize=256)
def ready_age_queue(queue: bytes) -> bytes:
    return b"%b%b\0" % (_READY_AGE, queue)


def ready_age(queue: bytes, number: int) -> bytes:
    """Of the page of that number."""
    return ready_age_queue(queue) + _pack_u64(number)


def ready_age_number(key: bytes) -> int:
    return int.from_bytes(key[-8:], "big")


def subqueue_queue(queue: bytes) -> bytes:
    """The prefix of all sub-queues of a queue."""
    return b"%b%b\0" % (_SUBQUEUE, queue)


def subqueue_level(queue: bytes, priority: int) -> bytes:
    """The prefix of all sub-queues of one priority of a queue, ordered by tenant and then by limit key."""
    return b"%b%b\0%c" % (_SUBQUEUE, queue, PRIORITY_MAX - priority)


@lru_cache(maxsize=4096)
def subqueue(queue: bytes, priority: int, tenant: bytes, limit_key: bytes) -> bytes:
    return b"%b%b\0%c%b\0%b" % (_SUBQUEUE, queue, PRIORITY_MAX - priority, tenant, limit_key)


def subqueue_of_line(line: bytes) -> bytes:
    """The SUBQUEUE key of the sub-queue whose ready tasks have this prefix."""
    return _SUBQUEUE + line[1:-1]


def line_of_subqueue(key: bytes) -> bytes:
    """The prefix of the ready tasks of the sub-queue with this SUBQUEUE key."""
    return b"%b%b\0" % (_READY, key[1:])


def subqueue_names(key: bytes, level: bytes) -> tuple[bytes, bytes]:
    """The tenant and the limit key of a SUBQUEUE key that begins with `level`."""
    tenant, _, limit_key = key[len(level) :].partition(b"\0")
    return tenant, limit_key


@lru_cache(maxsize=4096)
def bucket(queue: bytes, scope: int, name: bytes) -> bytes:
    return b"%b%b\0%c%b" % (_BUCKET, queue, scope, name)


def unique(queue: bytes, key: bytes) -> bytes:
    return b"%b%b\0%b" % (_UNIQUE, queue, key)


def attempts(task_id: bytes) -> bytes:
    return _ATTEMPTS + task_id


def start_by(when_ms: int, task_id: bytes) -> bytes:
    return _START_BY + _pack_u64(when_ms) + task_id


def schedules_of(queue: bytes) -> bytes:
    """The prefix of all schedules of a queue."""
    return b"%b%b\0" % (_SCHEDULE, queue)


def schedule(queue: bytes, name: bytes) -> bytes:
    return schedules_of(queue) + name


def schedule_names(key: bytes) -> tuple[bytes, bytes]:
    """The queue and the name in what follows the family of a SCHEDULE key, or the time of a SCHEDULE_DUE key."""
    queue, _, name = key.partition(b"\0")
    return queue, name


def schedule_due(when_ms: int, queue: bytes, name: bytes) -> bytes:
    return b"%b%b%b\0%b" % (_SCHEDULE_DUE, _pack_u64(when_ms), queue, name)


def discard(when_ms: int, task_id: bytes) -> bytes:
    return _DISCARD + _pack_u64(when_ms) + task_id


def allocations_of(queue: bytes, what: int) -> bytes:
    """The prefix of what all shards may use of one limit of a queue."""
    return b"%b%b\0%c" % (_ALLOCATION, queue, what)


def allocation(queue: bytes, what: int, shard: int) -> bytes:
    return allocations_of(queue, what) + shard.to_bytes(2, "big")


def suspects_of(queue: bytes) -> bytes:
    """The prefix of all ready suspects of a queue, the oldest first."""
    return b"%b%b\0" % (_SUSPECT, queue)


def suspect(queue: bytes, sequence: int) -> bytes:
    return suspects_of(queue) + _pack_u64(sequence)


def alone(worker: bytes) -> bytes:
    return _ALONE + worker


def run(last_sequence: int) -> bytes:
    """Of the run whose last task has this sequence. The one that a task is in is the first from its sequence on."""
    return _RUN + _pack_u64(last_sequence)


def run_payloads(last_sequence: int) -> bytes:
    return _RUN_PAYLOADS + _pack_u64(last_sequence)


def claim_expiry(expiry_ms: int, task_id: bytes) -> bytes:
    return _CLAIM_EXPIRY + _pack_u64(expiry_ms) + task_id


def due(due_ms: int, task_id: bytes) -> bytes:
    return _DUE + _pack_u64(due_ms) + task_id


def retention(purge_ms: int, task_id: bytes) -> bytes:
    return _RETENTION + _pack_u64(purge_ms) + task_id


def key_expiry(when_ms: int, key: bytes) -> bytes:
    return _KEY_EXPIRY + _pack_u64(when_ms) + key


def timed(key: bytes) -> tuple[int, bytes]:
    """Splits a key of a family ordered by time into its time and what follows."""
    return int.from_bytes(key[1:9], "big"), key[9:]


def timed_from(family: int, when_ms: int) -> bytes:
    """Where the rows of a family ordered by time begin that are at or after `when_ms`."""
    return bytes([family]) + _pack_u64(when_ms)


def dead_prefix(queue: bytes) -> bytes:
    return b"%b%b\0" % (_DEAD, queue)


def dead(queue: bytes, died_ms: int, task_id: bytes) -> bytes:
    return dead_prefix(queue) + _pack_u64(died_ms) + task_id


def dedup(queue: bytes, request_id: bytes) -> bytes:
    return b"%b%b\0%b" % (_DEDUP, queue, request_id)


def recent(token: int) -> bytes:
    return _RECENT + token.to_bytes(16, "big")


def claim_request(worker: bytes, request_id: bytes) -> bytes:
    return b"%b%b\0%b" % (_CLAIM_REQUEST, worker, request_id)


def worker(name: bytes) -> bytes:
    return _WORKER + name


def queue(name: bytes) -> bytes:
    return _QUEUE + name


def settings(queue: bytes) -> bytes:
    return _SETTINGS + queue


def outbox(destination: int, sequence: int) -> bytes:
    return _OUTBOX.pack(OUTBOX, destination, sequence)


def outbox_place(key: bytes) -> tuple[int, int]:
    """The destination and the sequence of an OUTBOX key."""
    _, destination, sequence = _OUTBOX.unpack(key)
    return destination, sequence


def outbox_end(destination: int) -> bytes:
    """The first key behind all messages to a destination."""
    return outbox(destination, (1 << 64) - 1)


def inbox(source: int, incarnation: int) -> bytes:
    return _INBOX.pack(INBOX, source, incarnation)


def inbox_parts(key: bytes) -> tuple[int, int]:
    """Source and incarnation."""
    _family, source, incarnation = _INBOX.unpack(key)
    return source, incarnation


def family_start(family: int) -> bytes:
    return bytes([family])


def after_prefix(prefix: bytes) -> bytes:
    """The first key behind every key that begins with `prefix` (families end far below 0xFF)."""
    return prefix[:-1] + bytes([prefix[-1] + 1])
