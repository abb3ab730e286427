"""The entries of a shard's log: what happened, decided by the leader, as data.

An entry is a kind byte, the shard time at which the leader decided (`now_ms`), and a body. Kind numbers are stored and
never reused. Everything a replica needs to apply an entry is inside it: apply reads no clock and makes no choice.
"""

import struct
from dataclasses import dataclass, field
from typing import NamedTuple

from holdfast.machine.ids import SECRET_BITS, SECRET_MAX
from holdfast.machine.new_tasks import NewTask, put_tasks, read_tasks
from holdfast.machine.operator_entries import (
    DiscardDead,
    DropSchedule,
    FireSchedule,
    PutSchedule,
    SetAllocations,
    TtlExpire,
    UpdateTasks,
)
from holdfast.machine.packing import COUNT, PAIR, U64, BytesReader, DecodeError, put_task_ids
from holdfast.machine.rows import ATTEMPT_LEASE_EXPIRED
from holdfast.machine.run_entries import AckRanges, EnqueueRuns, PurgeRanges

ENTRY_ITEMS_MAX = 1000  # what a leader puts into one entry at most

# Kinds of entries that came later are used only once the replicated `machine_level` says that every replica knows
# them: an older version would stop at the first of them. Level 1 has all kinds of data format 4 but those of level 2.
MACHINE_LEVEL = 2  # the newest that this version knows: adds SetQueue, AckAway, Receive and Delivered
AGE_MARK = 0xFF  # where a mark has a priority: it is that of all sub-queues but the plain ones, by age

_HEAD = struct.Struct(">BQ")
_CLAIM_HEAD = struct.Struct(">QQQHH?")
_TYPE_EXPIRY = struct.Struct(">QH")
_MARK = struct.Struct(">BHHQBQ")
_LEVEL_ITEM = struct.Struct(">BBHQQQ")
_ACK_ITEM = struct.Struct(">QQqH")
_FAIL_ITEM = struct.Struct(">QQQBIH")
_EXTEND_ITEM = struct.Struct(">QQQ")
_EXPIRE_ITEM = struct.Struct(">QQBQBIH")
_EXPIRING_KEY = struct.Struct(">QH")
_LEVEL = struct.Struct(">H")
_SETTINGS = struct.Struct(">BQI")
_REMOTE = struct.Struct(">HHQI")
_REMOTE_COUNT = struct.Struct(">H")
_RECEIVE_HEAD = struct.Struct(">HHQQ")
_DELIVERED = struct.Struct(">HQ")


class RemoteFollowUp(NamedTuple):
    """A follow-up for another shard."""

    place: int  # among all follow-ups of its ack
    destination: int  # the shard
    run_at_ms: int  # 0: at once
    envelope: bytes


class AckItem(NamedTuple):
    task_id: bytes
    token: int
    result: bytes | None
    follow_ups: tuple[NewTask, ...]
    remote_follow_ups: tuple[RemoteFollowUp, ...] = ()  # by place; only in an AckAway


class FailItem(NamedTuple):
    task_id: bytes
    token: int
    retry_at_ms: int  # 0: dead
    dead_reason: int  # rows.*, for a dead one
    error: bytes
    brief: bytes = b""  # of the error, for the list of attempts


class ExtendItem(NamedTuple):
    task_id: bytes
    token: int
    expiry_ms: int


class ClaimRef(NamedTuple):
    task_id: bytes
    token: int


class ExpireItem(NamedTuple):
    """A claim that ran out. A timeout of the task itself counts as a failure, the end of a lease does not."""

    task_id: bytes
    token: int
    dead_reason: int  # 0: it lives on
    retry_at_ms: int = 0  # 0: ready again at once, in its old place
    how: int = ATTEMPT_LEASE_EXPIRED  # or rows.ATTEMPT_TIMED_OUT
    error: bytes = b""  # empty: what is known of the task's last error stays
    brief: bytes = b""


class Mark(NamedTuple):
    """A leader's proposal to raise a low-water mark (see rows.Queue)."""

    queue: bytes
    mark_version: int
    priority: int  # or AGE_MARK
    sequence: int
    tenant: bytes = b""
    limit_key: bytes = b""


class BucketLevel(NamedTuple):
    """What is left in a token bucket after a claim."""

    queue: bytes
    scope: int  # keys.SCOPE_*
    name: bytes
    level_micro: int
    at_ms: int
    full_ms: int  # when it is full again: then nothing need be known of it


class ExpiringKey(NamedTuple):
    when_ms: int
    key: bytes


@dataclass(slots=True)
class LeaderStarted:
    """The first entry of a term: a leader serves only once it is applied."""

    now_ms: int
    stepped: bool  # the shard's clock was moved by more than drift explains

    def put(self, parts: list[bytes]) -> None:
        parts.append(bytes([self.stepped]))

    @classmethod
    def read(cls, now_ms: int, reader: BytesReader) -> "LeaderStarted":
        return cls(now_ms, reader.flag())


@dataclass(slots=True)
class Enqueue:
    now_ms: int
    tasks: list[NewTask]

    def put(self, parts: list[bytes]) -> None:
        parts.append(COUNT.pack(len(self.tasks)))
        put_tasks(parts, self.tasks)

    @classmethod
    def read(cls, now_ms: int, reader: BytesReader) -> "Enqueue":
        return cls(now_ms, read_tasks(reader, reader.count()))


@dataclass(slots=True)
class Claim:
    now_ms: int
    expiry_ms: int  # of tasks whose type has none of its own
    worker: bytes
    request_id: bytes  # empty: the caller will not retry
    key_expiry_ms: int  # until when to remember `request_id`
    task_ids: list[bytes]
    marks: list[Mark]
    levels: list[BucketLevel] = field(default_factory=list)
    type_expiries: dict[bytes, int] = field(default_factory=dict)
    # What nobody can guess of the tokens of these claims: the leader has drawn it.
    secret: int = 0
    is_alone: bool = False  # of one suspect, for a worker that holds nothing else
    # How many tasks each id stands for: it, and those behind it in its run. Empty: each for itself.
    counts: list[int] = field(default_factory=list)

    @property
    def tasks(self) -> int:
        """How many tasks are to be claimed."""
        return sum(self.counts) if self.counts else len(self.task_ids)

    def put(self, parts: list[bytes]) -> None:
        lengths = len(self.worker), len(self.request_id)
        parts.append(_CLAIM_HEAD.pack(self.expiry_ms, self.key_expiry_ms, self.secret, *lengths, self.is_alone))
        parts += (self.worker, self.request_id)
        put_task_ids(parts, self.task_ids)
        parts.append(COUNT.pack(len(self.marks)))
        for queue, mark_version, priority, sequence, tenant, limit_key in self.marks:
            head = len(queue), len(tenant), len(limit_key)
            parts += (_MARK.pack(*head, mark_version, priority, sequence), queue, tenant, limit_key)
        parts.append(COUNT.pack(len(self.levels)))
        for queue, scope, name, *numbers in self.levels:
            parts += (_LEVEL_ITEM.pack(len(queue), scope, len(name), *numbers), queue, name)
        parts.append(COUNT.pack(len(self.type_expiries)))
        for name, expiry_ms in self.type_expiries.items():
            parts += (_TYPE_EXPIRY.pack(expiry_ms, len(name)), name)
        parts.append(COUNT.pack(len(self.counts)))
        parts += map(COUNT.pack, self.counts)

    @classmethod
    def read(cls, now_ms: int, reader: BytesReader) -> "Claim":
        expiry_ms, key_expiry_ms, secret, worker_n, request_n, alone = reader.unpack(_CLAIM_HEAD)
        worker, request_id = reader.take(worker_n), reader.take(request_n)
        task_ids = reader.task_ids()
        marks = []
        for _ in range(reader.count()):
            queue_n, tenant_n, limit_n, mark_version, priority, sequence = reader.unpack(_MARK)
            queue, tenant, limit_key = reader.take(queue_n), reader.take(tenant_n), reader.take(limit_n)
            marks.append(Mark(queue, mark_version, priority, sequence, tenant, limit_key))
        levels = []
        for _ in range(reader.count()):
            queue_n, scope, name_n, *numbers = reader.unpack(_LEVEL_ITEM)
            levels.append(BucketLevel(reader.take(queue_n), scope, reader.take(name_n), *numbers))
        type_expiries = {}
        for _ in range(reader.count()):
            type_expiry_ms, type_n = reader.unpack(_TYPE_EXPIRY)
            type_expiries[reader.take(type_n)] = type_expiry_ms
        counts = [reader.count() for _ in range(reader.count())]
        if counts and len(counts) != len(task_ids):
            raise DecodeError(f"the entry claims {len(task_ids)} slices and says how long {len(counts)} are")
        return cls(
            now_ms, expiry_ms, worker, request_id, key_expiry_ms, task_ids, marks, levels, type_expiries, secret,
            bool(alone), counts,
        )  # fmt: skip


def _put_acks(parts: list[bytes], items: list[AckItem], *, away: bool) -> None:
    parts.append(COUNT.pack(len(items)))
    for task_id, token, result, follow_ups, remote_follow_ups in items:
        result_n = -1 if result is None else len(result)
        parts += (task_id, _ACK_ITEM.pack(token >> SECRET_BITS, token & SECRET_MAX, result_n, len(follow_ups)))
        if result is not None:
            parts.append(result)
        if follow_ups:
            put_tasks(parts, follow_ups)
        if away:
            parts.append(_REMOTE_COUNT.pack(len(remote_follow_ups)))
            for place, destination, run_at_ms, envelope in remote_follow_ups:
                parts += (_REMOTE.pack(place, destination, run_at_ms, len(envelope)), envelope)
        elif remote_follow_ups:
            raise ValueError("an Ack has no room for remote follow-ups: they need an AckAway")


def _read_acks(reader: BytesReader, *, away: bool) -> list[AckItem]:
    items = []
    for _ in range(reader.count()):
        task_id = reader.take(16)
        number, secret, result_n, follow_up_n = reader.unpack(_ACK_ITEM)
        if result_n < -1:
            raise DecodeError(f"the entry has a result of {result_n} bytes")
        result = None if result_n == -1 else reader.take(result_n)
        follow_ups = tuple(read_tasks(reader, follow_up_n)) if follow_up_n else ()
        remote_follow_ups = _read_remote_follow_ups(reader) if away else ()
        items.append(AckItem(task_id, number << SECRET_BITS | secret, result, follow_ups, remote_follow_ups))
    return items


def _read_remote_follow_ups(reader: BytesReader) -> tuple[RemoteFollowUp, ...]:
    remote_follow_ups = []
    for _ in range(*reader.unpack(_REMOTE_COUNT)):
        place, destination, run_at_ms, envelope_n = reader.unpack(_REMOTE)
        remote_follow_ups.append(RemoteFollowUp(place, destination, run_at_ms, reader.take(envelope_n)))
    return tuple(remote_follow_ups)


@dataclass(slots=True)
class Ack:
    now_ms: int
    keep_ms: int  # how long a finished task is remembered at least
    items: list[AckItem]

    def put(self, parts: list[bytes]) -> None:
        parts.append(U64.pack(self.keep_ms))
        _put_acks(parts, self.items, away=False)

    @classmethod
    def read(cls, now_ms: int, reader: BytesReader) -> "Ack":
        return cls(now_ms, reader.u64(), _read_acks(reader, away=False))


@dataclass(slots=True)
class AckAway:
    """An ack with follow-ups for other shards: they are put into the outbox, from where a relay brings them."""

    now_ms: int
    keep_ms: int
    waiting_max: int  # for one destination; what would exceed it is refused together with its ack
    items: list[AckItem]

    def put(self, parts: list[bytes]) -> None:
        parts.append(PAIR.pack(self.keep_ms, self.waiting_max))
        _put_acks(parts, self.items, away=True)

    @classmethod
    def read(cls, now_ms: int, reader: BytesReader) -> "AckAway":
        keep_ms, waiting_max = reader.unpack(PAIR)
        return cls(now_ms, keep_ms, waiting_max, _read_acks(reader, away=True))


@dataclass(slots=True)
class Fail:
    now_ms: int
    keep_ms: int
    dead_keep_ms: int  # how long a dead task is kept
    items: list[FailItem]

    def put(self, parts: list[bytes]) -> None:
        parts += (PAIR.pack(self.keep_ms, self.dead_keep_ms), COUNT.pack(len(self.items)))
        for task_id, token, retry_at_ms, dead_reason, error, brief in self.items:
            halves = token >> SECRET_BITS, token & SECRET_MAX
            head = _FAIL_ITEM.pack(*halves, retry_at_ms, dead_reason, len(error), len(brief))
            parts += (task_id, head, error, brief)

    @classmethod
    def read(cls, now_ms: int, reader: BytesReader) -> "Fail":
        keep_ms, dead_keep_ms = reader.unpack(PAIR)
        items = []
        for _ in range(reader.count()):
            task_id = reader.take(16)
            number, secret, retry_at_ms, dead_reason, error_n, brief_n = reader.unpack(_FAIL_ITEM)
            error, brief = reader.take(error_n), reader.take(brief_n)
            token = number << SECRET_BITS | secret
            items.append(FailItem(task_id, token, retry_at_ms, dead_reason, error, brief))
        return cls(now_ms, keep_ms, dead_keep_ms, items)


@dataclass(slots=True)
class Extend:
    now_ms: int
    items: list[ExtendItem]

    def put(self, parts: list[bytes]) -> None:
        parts.append(COUNT.pack(len(self.items)))
        for task_id, token, expiry_ms in self.items:
            parts += (task_id, _EXTEND_ITEM.pack(token >> SECRET_BITS, token & SECRET_MAX, expiry_ms))

    @classmethod
    def read(cls, now_ms: int, reader: BytesReader) -> "Extend":
        items = []
        for _ in range(reader.count()):
            task_id = reader.take(16)
            number, secret, expiry_ms = reader.unpack(_EXTEND_ITEM)
            items.append(ExtendItem(task_id, number << SECRET_BITS | secret, expiry_ms))
        return cls(now_ms, items)


@dataclass(slots=True)
class Release:
    now_ms: int
    keep_ms: int
    items: list[ClaimRef]
    ready_at_ms: int = 0  # 0: ready at once, in their old place

    def put(self, parts: list[bytes]) -> None:
        parts += (PAIR.pack(self.keep_ms, self.ready_at_ms), COUNT.pack(len(self.items)))
        for task_id, token in self.items:
            parts += (task_id, PAIR.pack(token >> SECRET_BITS, token & SECRET_MAX))

    @classmethod
    def read(cls, now_ms: int, reader: BytesReader) -> "Release":
        keep_ms, ready_at_ms = reader.unpack(PAIR)
        items = []
        for _ in range(reader.count()):
            task_id = reader.take(16)
            number, secret = reader.unpack(PAIR)
            items.append(ClaimRef(task_id, number << SECRET_BITS | secret))
        return cls(now_ms, keep_ms, items, ready_at_ms)


@dataclass(slots=True)
class Expire:
    now_ms: int
    keep_ms: int
    dead_keep_ms: int
    items: list[ExpireItem]

    def put(self, parts: list[bytes]) -> None:
        parts += (PAIR.pack(self.keep_ms, self.dead_keep_ms), COUNT.pack(len(self.items)))
        for task_id, token, dead_reason, retry_at_ms, how, error, brief in self.items:
            halves = token >> SECRET_BITS, token & SECRET_MAX
            head = _EXPIRE_ITEM.pack(*halves, dead_reason, retry_at_ms, how, len(error), len(brief))
            parts += (task_id, head, error, brief)

    @classmethod
    def read(cls, now_ms: int, reader: BytesReader) -> "Expire":
        keep_ms, dead_keep_ms = reader.unpack(PAIR)
        items = []
        for _ in range(reader.count()):
            task_id = reader.take(16)
            number, secret, dead_reason, retry_at_ms, how, error_n, brief_n = reader.unpack(_EXPIRE_ITEM)
            error, brief = reader.take(error_n), reader.take(brief_n)
            token = number << SECRET_BITS | secret
            items.append(ExpireItem(task_id, token, dead_reason, retry_at_ms, how, error, brief))
        return cls(now_ms, keep_ms, dead_keep_ms, items)


@dataclass(slots=True)
class Cancel:
    now_ms: int
    keep_ms: int
    task_ids: list[bytes]
    waiting_only: bool = False  # one that is claimed is left alone

    def put(self, parts: list[bytes]) -> None:
        parts += (U64.pack(self.keep_ms), bytes([self.waiting_only]))
        put_task_ids(parts, self.task_ids)

    @classmethod
    def read(cls, now_ms: int, reader: BytesReader) -> "Cancel":
        keep_ms, waiting_only = reader.u64(), reader.flag()
        return cls(now_ms, keep_ms, reader.task_ids(), waiting_only)


@dataclass(slots=True)
class _TaskIds:
    """The shape of the entries that only name tasks."""

    now_ms: int
    task_ids: list[bytes]

    def put(self, parts: list[bytes]) -> None:
        put_task_ids(parts, self.task_ids)


class Promote(_TaskIds):
    """Delayed and retrying tasks whose time has come become ready."""

    @classmethod
    def read(cls, now_ms: int, reader: BytesReader) -> "Promote":
        return cls(now_ms, reader.task_ids())


class RetryDead(_TaskIds):
    """Dead tasks become ready with fresh budgets."""

    @classmethod
    def read(cls, now_ms: int, reader: BytesReader) -> "RetryDead":
        return cls(now_ms, reader.task_ids())


class Purge(_TaskIds):
    """Finished and dead tasks whose retention has passed are deleted."""

    @classmethod
    def read(cls, now_ms: int, reader: BytesReader) -> "Purge":
        return cls(now_ms, reader.task_ids())


@dataclass(slots=True)
class ExpireKeys:
    """Rows that were kept only for a while are deleted."""

    now_ms: int
    items: list[ExpiringKey]

    def put(self, parts: list[bytes]) -> None:
        parts.append(COUNT.pack(len(self.items)))
        for when_ms, key in self.items:
            parts += (_EXPIRING_KEY.pack(when_ms, len(key)), key)

    @classmethod
    def read(cls, now_ms: int, reader: BytesReader) -> "ExpireKeys":
        items = []
        for _ in range(reader.count()):
            when_ms, key_n = reader.unpack(_EXPIRING_KEY)
            items.append(ExpiringKey(when_ms, reader.take(key_n)))
        return cls(now_ms, items)


@dataclass(slots=True)
class RaiseLevel:
    """Every replica knows the kinds of entries of this level: from here on they may be used."""

    now_ms: int
    level: int

    def put(self, parts: list[bytes]) -> None:
        parts.append(_LEVEL.pack(self.level))

    @classmethod
    def read(cls, now_ms: int, reader: BytesReader) -> "RaiseLevel":
        return cls(now_ms, *reader.unpack(_LEVEL))


@dataclass(slots=True)
class SetQueue:
    """What a queue does in its own way, from here on."""

    now_ms: int
    queue: bytes
    version: int  # counts only if it is newer than what is known
    policy: bytes  # opaque to the machine
    changes_rates: bool = False  # levels of token buckets from before say nothing any more

    def put(self, parts: list[bytes]) -> None:
        parts += (_SETTINGS.pack(len(self.queue), self.version, len(self.policy)), bytes([self.changes_rates]))
        parts += (self.queue, self.policy)

    @classmethod
    def read(cls, now_ms: int, reader: BytesReader) -> "SetQueue":
        queue_n, version, policy_n = reader.unpack(_SETTINGS)
        changes_rates = reader.flag()
        return cls(now_ms, reader.take(queue_n), version, reader.take(policy_n), changes_rates)


@dataclass(slots=True)
class Receive:
    """Tasks that came from the outbox of another shard. What has come before is passed over."""

    now_ms: int
    source: int
    incarnation: int  # of the source
    first_sequence: int  # of the tasks, which have sequences without a gap
    dead_keep_ms: int  # how long one is kept that is dead on arrival: nobody is there to refuse it to
    tasks: list[NewTask]

    def put(self, parts: list[bytes]) -> None:
        parts.append(_RECEIVE_HEAD.pack(self.source, self.incarnation, self.first_sequence, self.dead_keep_ms))
        parts.append(COUNT.pack(len(self.tasks)))
        put_tasks(parts, self.tasks)

    @classmethod
    def read(cls, now_ms: int, reader: BytesReader) -> "Receive":
        source, incarnation, first_sequence, dead_keep_ms = reader.unpack(_RECEIVE_HEAD)
        return cls(now_ms, source, incarnation, first_sequence, dead_keep_ms, read_tasks(reader, reader.count()))


@dataclass(slots=True)
class Delivered:
    """Another shard has all tasks up to a sequence: they leave the outbox, ENTRY_ITEMS_MAX at a time."""

    now_ms: int
    destination: int
    sequence: int

    def put(self, parts: list[bytes]) -> None:
        parts.append(_DELIVERED.pack(self.destination, self.sequence))

    @classmethod
    def read(cls, now_ms: int, reader: BytesReader) -> "Delivered":
        return cls(now_ms, *reader.unpack(_DELIVERED))


Entry = (
    LeaderStarted | Enqueue | Claim | Ack | Fail | Extend | Release | Expire | Promote | Cancel | RetryDead
    | DiscardDead | Purge | ExpireKeys | RaiseLevel | SetQueue | AckAway | Receive | Delivered | UpdateTasks | TtlExpire
    | PutSchedule | DropSchedule | FireSchedule | SetAllocations | EnqueueRuns | AckRanges | PurgeRanges
)  # fmt: skip

_KINDS: dict[int, type[Entry]] = {
    1: LeaderStarted,
    2: Enqueue,
    3: Claim,
    4: Ack,
    5: Fail,
    6: Extend,
    7: Release,
    8: Expire,
    9: Promote,
    10: Cancel,
    11: RetryDead,
    12: DiscardDead,
    13: Purge,
    14: ExpireKeys,
    15: RaiseLevel,
    16: SetQueue,
    17: AckAway,
    18: Receive,
    19: Delivered,
    20: UpdateTasks,
    21: TtlExpire,
    22: PutSchedule,
    23: DropSchedule,
    24: FireSchedule,
    25: SetAllocations,
    26: EnqueueRuns,
    27: AckRanges,
    28: PurgeRanges,
}
_NUMBERS: dict[type[Entry], int] = {entry_type: number for number, entry_type in _KINDS.items()}


def encode(entry: Entry) -> bytes:
    """The bytes that go into the log."""
    parts = [_HEAD.pack(_NUMBERS[type(entry)], entry.now_ms)]
    entry.put(parts)
    return b"".join(parts)


def decode(data: bytes) -> Entry:
    """The entry in `data`; raises DecodeError if it is not one that this version wrote."""
    try:
        kind, now_ms = _HEAD.unpack_from(data)
        if kind not in _KINDS:
            raise DecodeError(f"the entry is of kind {kind}, which this version does not know")
        reader = BytesReader(data, _HEAD.size)
        entry = _KINDS[kind].read(now_ms, reader)
    except struct.error as error:
        raise DecodeError(f"the entry is too short: {error}") from error
    if reader.offset != len(data):
        raise DecodeError(f"the entry is {reader.offset} bytes long, but {len(data)} were given")
    return entry
