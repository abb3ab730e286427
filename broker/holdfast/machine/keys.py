"""The key layout of a shard's state: the one place where a row's address is made.

A key is a family number (one byte) followed by big-endian parts, so that byte order is the order a reader wants.
A family number is never reused for something else, also when its family is retired.

    family          key parts                                   value
    META            -                                           rows.Meta
    ENVELOPE        task id                                     the producer's task, opaque to the machine
    EXECUTION       task id                                     rows.Execution
    READY           queue, 9 - priority, tenant, sequence       task id, size of the envelope
    READY_AGE       queue, sequence                             (used once tenants take turns)
    ACTIVE_TENANT   queue, tenant                               (used once tenants take turns)
    CLAIM_EXPIRY    expiry, task id                             -
    DUE             due, task id                                -
    DEAD            queue, died, task id                        -
    DEDUP           queue, request id                           rows.Dedup
    FORGET          when, key                                   - (the key of a DEDUP, RECENT or CLAIM_REQUEST row)
    RECENT          token                                       rows.Recent, the first answer to a settled claim
    RETENTION       when, task id                               -
    SCHEDULE        name                                        (used once schedules exist)
    SETTINGS        queue                                       rows.Settings, what the queue does in its own way
    QUEUE           queue                                       rows.Queue, counters and low-water marks
    OUTBOX          destination, sequence                       rows.Letter; at sequence 0 rows.Outbox, how far it is
    INBOX           source, incarnation                         rows.Inbox, how far that source's letters have come
    REPORT          task id                                     rows.Report, the last error or the result
    CLAIM_REQUEST   worker, claim request id                    rows.ClaimRequest
    WORKER          worker                                      how many claims it holds; no row if none

Queue names, tenants and ids are free of NUL bytes (the broker validates them), so NUL ends a part of varying length.
"""

import struct
from functools import lru_cache

META = 0x01
ENVELOPE = 0x02
EXECUTION = 0x03
READY = 0x04
READY_AGE = 0x05
ACTIVE_TENANT = 0x06
CLAIM_EXPIRY = 0x07
DUE = 0x08
DEAD = 0x09
DEDUP = 0x0A
FORGET = 0x0B
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

FAMILIES = (
    META, ENVELOPE, EXECUTION, READY, READY_AGE, ACTIVE_TENANT, CLAIM_EXPIRY, DUE, DEAD, DEDUP, FORGET, RECENT,
    RETENTION, SCHEDULE, SETTINGS, QUEUE, OUTBOX, INBOX, REPORT, CLAIM_REQUEST, WORKER,
)  # fmt: skip

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
_FORGET = bytes([FORGET])
_RECENT = bytes([RECENT])
_RETENTION = bytes([RETENTION])
_SETTINGS = bytes([SETTINGS])
_OUTBOX = struct.Struct(">BHQ")
_INBOX = struct.Struct(">BHH")
_QUEUE = bytes([QUEUE])
_REPORT = bytes([REPORT])
_CLAIM_REQUEST = bytes([CLAIM_REQUEST])
_WORKER = bytes([WORKER])


def envelope(task_id: bytes) -> bytes:
    return _ENVELOPE + task_id


def execution(task_id: bytes) -> bytes:
    return _EXECUTION + task_id


def report(task_id: bytes) -> bytes:
    return _REPORT + task_id


@lru_cache(maxsize=4096)
def ready_band(queue: bytes, priority: int) -> bytes:
    """The prefix of all ready tasks of one priority; bands sort from the highest priority down.

    The tenant part stays empty until tenants take turns: one band is one first-in, first-out line.
    """
    return b"%b%b\0%c\0" % (_READY, queue, PRIORITY_MAX - priority)


def ready(queue: bytes, priority: int, sequence: int) -> bytes:
    return ready_band(queue, priority) + _pack_u64(sequence)


def ready_sequence(key: bytes) -> int:
    """The sequence at the end of a READY key."""
    return int.from_bytes(key[-8:], "big")


def claim_expiry(expiry_ms: int, task_id: bytes) -> bytes:
    return _CLAIM_EXPIRY + _pack_u64(expiry_ms) + task_id


def due(due_ms: int, task_id: bytes) -> bytes:
    return _DUE + _pack_u64(due_ms) + task_id


def retention(purge_ms: int, task_id: bytes) -> bytes:
    return _RETENTION + _pack_u64(purge_ms) + task_id


def forget(when_ms: int, key: bytes) -> bytes:
    return _FORGET + _pack_u64(when_ms) + key


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
    return _RECENT + _pack_u64(token)


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
    """The first key behind all letters to a destination."""
    return outbox(destination, (1 << 64) - 1)


def inbox(source: int, incarnation: int) -> bytes:
    return _INBOX.pack(INBOX, source, incarnation)


def family_start(family: int) -> bytes:
    return bytes([family])


def after_prefix(prefix: bytes) -> bytes:
    """The first key behind every key that begins with `prefix` (families end far below 0xFF)."""
    return prefix[:-1] + bytes([prefix[-1] + 1])
