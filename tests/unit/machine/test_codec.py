"""How entries, rows, ids and tokens are written as bytes. What is stored must be read back by every version."""

import contextlib
import uuid
from typing import Any, get_args

import hypothesis.strategies as st
import pytest
from hypothesis import example, given, settings

from holdfast.machine import entries, ids, keys, operator_entries, ready_rows, rows, run_entries
from holdfast.machine.entries import (
    AckItem,
    BucketLevel,
    ClaimRef,
    Entry,
    ExpireItem,
    ExpiringKey,
    ExtendItem,
    FailItem,
    Mark,
    RemoteFollowUp,
)
from holdfast.machine.new_runs import NewRun, pack_digests, pack_ids, pack_sizes
from holdfast.machine.new_tasks import NewTask
from holdfast.machine.operator_entries import UpdateItem
from holdfast.machine.packing import DecodeError
from holdfast.machine.run_entries import AckRange, TaskRange

quick = settings(max_examples=30, deadline=None, print_blob=True)
thorough = settings(max_examples=120, deadline=None, print_blob=True)

u128 = st.integers(0, 2**128 - 1)
u64 = st.integers(0, 2**64 - 1)
u32 = st.integers(0, 2**32 - 1)
u16 = st.integers(0, 2**16 - 1)
numbered = st.tuples(u16, st.integers(0, 2**48 - 1))
u8 = st.integers(0, 255)
task_ids = st.binary(min_size=16, max_size=16)
# Without NUL, as the broker makes sure: it ends a part of varying length.
names = st.binary(max_size=128).map(lambda name: name.replace(b"\0", b"x"))
queues = names.map(lambda name: name or b"q")
blobs = st.binary(max_size=64)
priorities = st.integers(0, 9)

new_tasks = st.builds(
    NewTask,
    queue=queues,
    priority=priorities,
    tenant=names,
    request_id=names,
    dedup_window_ms=u64,
    run_at_ms=u64,
    max_attempts=u32,
    max_claims=u32,
    result_ttl_ms=u64,
    envelope=blobs,
    type=names,
    limit_key=names,
    unique_key=names,
    flags=u8,
    timeout_ms=u32,
    start_by_ms=u64,
    digest=u64,
)


def some(items: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(items, max_size=4)


ack_items = st.builds(AckItem, task_ids, u128, st.none() | blobs, some(new_tasks).map(tuple), st.just(()))
remote_follow_ups = st.builds(RemoteFollowUp, u16, u16, u64, blobs)
flags = st.integers(0, 1)
fired_ticks = st.tuples(u64, new_tasks)


def fire_schedule(fired: list[tuple[int, NewTask]], **fields: Any) -> operator_entries.FireSchedule:
    """A tick for each task."""
    ticks, tasks = [tick_ms for tick_ms, _ in fired], [new for _, new in fired]
    return operator_entries.FireSchedule(ticks=ticks, tasks=tasks, **fields)


def slices_claim(slices: list[tuple[bytes, int]], now_ms: int) -> entries.Claim:
    """A claim of slices of runs."""
    counts = [count for _, count in slices]
    return entries.Claim(now_ms, 0, b"", b"", 0, [task_id for task_id, _ in slices], [], counts=counts)


def new_run(payloads: list[bytes], *, has_ids: bool, has_digests: bool, **fields: Any) -> NewRun:
    sizes = pack_sizes([len(payload) for payload in payloads])
    request_ids = pack_ids([b"id %d" % index for index in range(len(payloads))]) if has_ids else b""
    digests = pack_digests(range(len(payloads))) if has_digests else b""
    return NewRun(
        sizes=sizes, payloads=b"".join(payloads), request_ids=request_ids, digests=digests, **fields
    )  # fmt: skip


new_runs = st.builds(
    new_run,
    st.lists(blobs, min_size=1, max_size=4),
    queue=queues,
    priority=priorities,
    request_id=names,
    dedup_window_ms=u64,
    max_attempts=u32,
    max_claims=u32,
    result_ttl_ms=u64,
    type=names,
    flags=u16,
    timeout_ms=u32,
    start_by_ms=u64,
    header=blobs,
    tenant=names,
    limit_key=names,
    has_ids=st.booleans(),
    has_digests=st.booleans(),
)
away_items = st.builds(
    AckItem, task_ids, u128, st.none() | blobs, some(new_tasks).map(tuple), some(remote_follow_ups).map(tuple)
)
ENTRIES: dict[type[Entry], st.SearchStrategy[Entry]] = {
    entries.LeaderStarted: st.builds(entries.LeaderStarted, u64, st.booleans()),
    entries.Enqueue: st.builds(entries.Enqueue, u64, some(new_tasks)),
    entries.Claim: st.builds(
        entries.Claim,
        u64,
        u64,
        names,
        names,
        u64,
        some(task_ids),
        some(st.builds(Mark, queues, u64, priorities | st.just(entries.AGE_MARK), u64, names, names)),
        some(st.builds(BucketLevel, queues, u8, names, u64, u64, u64)),
        st.dictionaries(names, u64, max_size=3),
        u64,
    )
    | st.builds(slices_claim, some(st.tuples(task_ids, u32)), u64),
    entries.Ack: st.builds(entries.Ack, u64, u64, some(ack_items)),
    entries.Fail: st.builds(
        entries.Fail, u64, u64, u64, some(st.builds(FailItem, task_ids, u128, u64, u8, blobs, blobs))
    ),
    entries.Extend: st.builds(entries.Extend, u64, some(st.builds(ExtendItem, task_ids, u128, u64))),
    entries.Release: st.builds(entries.Release, u64, u64, some(st.builds(ClaimRef, task_ids, u128)), u64),
    entries.Expire: st.builds(
        entries.Expire, u64, u64, u64, some(st.builds(ExpireItem, task_ids, u128, u8, u64, u8, blobs, blobs))
    ),
    entries.Promote: st.builds(entries.Promote, u64, some(task_ids)),
    entries.Cancel: st.builds(entries.Cancel, u64, u64, some(task_ids)),
    entries.RetryDead: st.builds(entries.RetryDead, u64, some(task_ids)),
    operator_entries.DiscardDead: st.builds(operator_entries.DiscardDead, u64, some(task_ids), u64, names, blobs),
    entries.Purge: st.builds(entries.Purge, u64, some(task_ids)),
    entries.ExpireKeys: st.builds(entries.ExpireKeys, u64, some(st.builds(ExpiringKey, u64, blobs))),
    entries.RaiseLevel: st.builds(entries.RaiseLevel, u64, u16),
    entries.SetQueue: st.builds(entries.SetQueue, u64, queues, u64, blobs),
    entries.AckAway: st.builds(entries.AckAway, u64, u64, u64, some(away_items)),
    entries.Receive: st.builds(entries.Receive, u64, u16, u16, u64, u64, some(new_tasks)),
    entries.Delivered: st.builds(entries.Delivered, u64, u16, u64),
    operator_entries.UpdateTasks: st.builds(
        operator_entries.UpdateTasks, u64, some(st.builds(UpdateItem, task_ids, u8, u8, u64))
    ),
    operator_entries.TtlExpire: st.builds(operator_entries.TtlExpire, u64, u64, blobs, some(task_ids)),
    operator_entries.PutSchedule: st.builds(
        operator_entries.PutSchedule, u64, queues, queues, u64, flags, flags, u64, blobs
    ),
    operator_entries.DropSchedule: st.builds(operator_entries.DropSchedule, u64, queues, queues),
    operator_entries.FireSchedule: st.builds(
        fire_schedule,
        some(fired_ticks),
        now_ms=u64,
        queue=queues,
        name=queues,
        version=u64,
        next_ms=u64,
        keep_ms=u64,
        overlap=u8,
    ),
    operator_entries.SetAllocations: st.builds(
        operator_entries.SetAllocations, u64, queues, u8, some(st.tuples(u16, blobs))
    ),
    run_entries.EnqueueRuns: st.builds(run_entries.EnqueueRuns, u64, some(new_runs | new_tasks)),
    run_entries.AckRanges: st.builds(run_entries.AckRanges, u64, u64, some(st.builds(AckRange, task_ids, u128, u32))),
    run_entries.PurgeRanges: st.builds(run_entries.PurgeRanges, u64, some(st.builds(TaskRange, task_ids, u32))),
}
# Stored in every log: a number is never changed or given to another kind.
KIND_NUMBERS = {
    entries.LeaderStarted: 1, entries.Enqueue: 2, entries.Claim: 3, entries.Ack: 4, entries.Fail: 5,
    entries.Extend: 6, entries.Release: 7, entries.Expire: 8, entries.Promote: 9, entries.Cancel: 10,
    entries.RetryDead: 11, operator_entries.DiscardDead: 12, entries.Purge: 13, entries.ExpireKeys: 14,
    entries.RaiseLevel: 15, entries.SetQueue: 16, entries.AckAway: 17, entries.Receive: 18, entries.Delivered: 19,
    operator_entries.UpdateTasks: 20, operator_entries.TtlExpire: 21, operator_entries.PutSchedule: 22,
    operator_entries.DropSchedule: 23, operator_entries.FireSchedule: 24, operator_entries.SetAllocations: 25,
    run_entries.EnqueueRuns: 26, run_entries.AckRanges: 27, run_entries.PurgeRanges: 28,
}  # fmt: skip
any_entry = st.one_of(list(ENTRIES.values()))


# --- Entries ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ENTRIES, ids=lambda kind: kind.__name__)
def test_an_entry_is_read_back_as_written(kind: type[Entry]) -> None:
    @quick
    @given(ENTRIES[kind])
    def check(entry: Entry) -> None:
        data = entries.encode(entry)
        assert data[0] == KIND_NUMBERS[kind]
        read_back = entries.decode(data)
        assert type(read_back) is kind
        assert read_back == entry
        assert entries.encode(read_back) == data

    check()


FULL_TASK = NewTask(
    b"queue", 9, b"tenant", b"request", 5, 1, 2, 3, 4, b"envelope", b"type", b"limit", b"unique", 6, 7, 8, 9
)  # fmt: skip
FULL_RUN = NewRun(b"queue", 9, b"request", 5, 1, 2, 3, b"type", 4, 6, b"header", pack_sizes([1, 2]), b"abb", 7)
MARKS = [Mark(b"queue", 1, 2, 3), Mark(b"queue", 1, 2, 3, b"tenant", b"limit")]
LEVELS = [BucketLevel(b"queue", keys.SCOPE_TENANT, b"tenant", 1, 2, 3)] * 2
FULL_ENTRIES: list[Entry] = [
    entries.LeaderStarted(1, True),
    entries.Enqueue(1, [FULL_TASK, FULL_TASK]),
    entries.Claim(1, 2, b"worker", b"request", 3, [bytes(16)] * 2, MARKS, LEVELS, {b"slow": 9, b"": 4}, 9),
    entries.Ack(1, 2, [AckItem(bytes(16), 1, b"result", ()), AckItem(bytes(16), 1, None, (FULL_TASK, FULL_TASK))]),
    entries.Fail(1, 2, 3, [FailItem(bytes(16), 1, 2, 3, b"error", b"brief")]),
    entries.Extend(1, [ExtendItem(bytes(16), 1, 2)]),
    entries.Release(1, 2, [ClaimRef(bytes(16), 1)], 3),
    entries.Expire(1, 2, 3, [ExpireItem(bytes(16), 1, 2, 3, 4, b"error", b"brief")]),
    entries.Promote(1, [bytes(16)]),
    entries.Cancel(1, 2, [bytes(16)]),
    entries.RetryDead(1, [bytes(16)]),
    operator_entries.DiscardDead(1, [bytes(16)], 2, b"by", b"note"),
    entries.Purge(1, [bytes(16)]),
    entries.ExpireKeys(1, [ExpiringKey(1, b"key")]),
    entries.RaiseLevel(1, 2),
    entries.SetQueue(1, b"queue", 2, b"policy"),
    entries.AckAway(
        1, 2, 3, [AckItem(bytes(16), 1, b"result", (FULL_TASK,), (RemoteFollowUp(1, 2, 3, b"envelope"),) * 2)]
    ),
    entries.Receive(1, 2, 3, 4, 5, [FULL_TASK, FULL_TASK]),
    entries.Delivered(1, 2, 3),
    operator_entries.UpdateTasks(1, [UpdateItem(bytes(16), 2, 1, 3)] * 2),
    operator_entries.TtlExpire(1, 2, b"error", [bytes(16)]),
    operator_entries.PutSchedule(1, b"queue", b"name", 2, 1, 0, 3, b"body"),
    operator_entries.DropSchedule(1, b"queue", b"name"),
    operator_entries.FireSchedule(1, b"queue", b"name", 2, 3, 4, 1, [5, 6], [FULL_TASK, FULL_TASK]),
    operator_entries.SetAllocations(1, b"queue", 2, [(3, b"share"), (4, b"")]),
    run_entries.EnqueueRuns(1, [FULL_RUN, FULL_RUN]),
    run_entries.AckRanges(1, 2, [AckRange(bytes(16), 1, 2)]),
    run_entries.PurgeRanges(1, [TaskRange(bytes(16), 2)]),
]


@pytest.mark.parametrize("entry", FULL_ENTRIES, ids=lambda entry: type(entry).__name__)
def test_an_entry_cut_anywhere_is_refused(entry: Entry) -> None:
    whole = entries.encode(entry)
    for length in range(len(whole)):
        with pytest.raises(DecodeError):
            entries.decode(whole[:length])


def test_an_ack_never_loses_a_remote_follow_up() -> None:
    with pytest.raises(ValueError, match="AckAway"):
        entries.encode(entries.Ack(1, 2, [AckItem(bytes(16), 1, None, (), (RemoteFollowUp(0, 1, 2, b""),))]))


def test_every_kind_of_entry_is_covered() -> None:
    assert {type(entry) for entry in FULL_ENTRIES} == set(ENTRIES) == set(KIND_NUMBERS) == set(get_args(Entry))


@thorough
@given(any_entry, st.binary(min_size=1, max_size=40))
def test_an_entry_with_bytes_behind_it_is_refused(entry: Entry, more: bytes) -> None:
    with pytest.raises(DecodeError):
        entries.decode(entries.encode(entry) + more)


@pytest.mark.parametrize("kind", [0, 29, 99, 255])
def test_an_unknown_kind_is_refused_by_number(kind: int) -> None:
    with pytest.raises(DecodeError, match=f"kind {kind}"):
        entries.decode(bytes([kind]) + bytes(30))


@thorough
@given(st.builds(lambda kind, body: bytes([kind]) + body, st.integers(0, 26), st.binary(max_size=80)))
@example(b"")
@example(b"\x02" + b"\xff" * 60)  # counts and lengths of billions
@example(b"\x04" + b"\xff" * 60)
@example(b"\x18" + b"\xff" * 9 + bytes(400))
def test_noise_is_an_entry_or_refused(data: bytes) -> None:
    with contextlib.suppress(DecodeError):
        assert entries.decode(data).now_ms == int.from_bytes(data[1:9], "big")


# --- Rows ------------------------------------------------------------------------------------------------------------

executions = st.builds(
    rows.Execution,
    queue=queues,
    tenant=names,
    request_id=names,
    type=names,
    limit_key=names,
    unique_key=names,
    worker=names,
    state=st.sampled_from(sorted(rows.STATE_NAMES)),
    priority=priorities,
    flags=u8,
    dead_reason=st.sampled_from(sorted(rows.DEAD_REASONS)),
    sequence=u64,
    token=u128,
    timer_ms=u64,
    start_by_ms=u64,
    enqueued_ms=u64,
    changed_ms=u64,
    ready_since_ms=u64,
    result_ttl_ms=u64,
    claims=u32,
    failures=u32,
    max_attempts=u32,
    max_claims=u32,
    size_bytes=u32,
    timeout_ms=u32,
)
metas = st.builds(
    rows.Meta,
    applied_index=u64,
    applied_term=u64,
    now_ms=u64,
    stepped_ms=u64,
    next_sequence=u64,
    next_token=u64,
    shard=u16,
    incarnation=u16,
    machine_level=u16,
)


@st.composite
def queue_rows(draw: st.DrawFn) -> rows.Queue:
    queue = rows.Queue()
    for name in rows.Queue.__slots__:
        if name not in ("marks", "subqueues"):
            setattr(queue, name, draw(u64))
    queue.marks = [draw(u64) for _ in range(rows.PRIORITIES)]
    queue.subqueues = [draw(u32) for _ in range(rows.PRIORITIES)]
    return queue


def fields(row: object) -> list[Any]:
    names: tuple[str, ...] = type(row).__slots__  # type: ignore[attr-defined]
    return [getattr(row, name) for name in names if not name.startswith("_")]


@quick
@given(executions | metas | queue_rows() | st.builds(ready_rows.SubqueueRow, u64, u64))
def test_a_row_with_slots_is_read_back_as_written(
    row: rows.Execution | rows.Meta | rows.Queue | ready_rows.SubqueueRow,
) -> None:
    assert fields(type(row).decode(row.encode())) == fields(row)


attempts = st.builds(rows.Attempt, u8, u64, u64, names, blobs)
named_rows = st.one_of(
    st.builds(rows.Dedup, task_ids, u64, u64, u64),
    st.builds(rows.Recent, task_ids, u8, u8, u64, some(st.tuples(task_ids, st.booleans(), u8)).map(tuple)),
    st.builds(rows.TaskReport, u8, blobs),
    st.builds(rows.ClaimRequest, u64, some(st.tuples(task_ids, u128, u32)).map(tuple)),
    st.builds(rows.SettingsRow, u64, blobs, u64),
    st.builds(rows.OutboxMessage, u64, blobs),
    st.builds(rows.Outbox, u64, u64),
    st.builds(rows.Inbox, u64),
    st.builds(rows.Bucket, u64, u64, u64),
    st.builds(rows.AttemptsRow, some(attempts).map(tuple)),
    st.builds(rows.Schedule, u64, u64, u64, flags, u64, u64, task_ids, blobs),
    st.builds(rows.Discard, u8, u64, u64, queues, names, names, names, blobs),
    st.builds(rows.AllocationRow, blobs),
)


@thorough
@given(named_rows)
def test_a_row_is_read_back_as_written(row: Any) -> None:
    assert type(row).decode(row.encode()) == row


@quick
@given(task_ids, u32, st.integers(1, 1000))
def test_a_ready_row_is_read_back_as_written(task_id: bytes, size_bytes: int, tasks: int) -> None:
    row = ready_rows.ready_row(task_id, size_bytes, tasks)
    assert ready_rows.split_ready_row(row) == (task_id, size_bytes, tasks)
    assert ready_rows.ready_slice_of(2000, row) == (2001 - tasks, task_id, size_bytes, tasks)


def test_stored_numbers_of_states_and_reasons() -> None:
    assert {name: number for number, name in rows.STATE_NAMES.items()} == {
        "READY": 1, "CLAIMED": 2, "DELAYED": 3, "RETRY_PENDING": 4, "SUCCEEDED": 5, "DEAD": 6, "CANCELLED": 7,
    }  # fmt: skip
    assert rows.DEAD_REASONS == {
        0: "", 1: "ATTEMPTS_SPENT", 2: "CLAIMS_SPENT", 3: "WORKER_GAVE_UP", 4: "NON_RETRYABLE", 5: "TTL_PASSED",
        6: "REQUEST_ID_CONFLICT",
    }  # fmt: skip
    assert (rows.REPORT_ERROR, rows.REPORT_RESULT, rows.REPORT_CONFLICT) == (1, 2, 3)
    how = rows.ATTEMPT_FAILED, rows.ATTEMPT_LEASE_EXPIRED, rows.ATTEMPT_TIMED_OUT
    assert how == (1, 2, 3)
    assert (keys.SCOPE_QUEUE, keys.SCOPE_TENANT, keys.SCOPE_KEY) == (0x71, 0x74, 0x6B)
    overlaps = operator_entries.OVERLAP_ALLOW, operator_entries.OVERLAP_SKIP, operator_entries.OVERLAP_REPLACE
    assert overlaps == (1, 2, 3)
    assert (operator_entries.KEEP_START, operator_entries.START_AT, operator_entries.KEEP_PRIORITY) == (0, 1, 255)
    assert entries.AGE_MARK == 255


def test_stored_numbers_of_flags() -> None:
    assert [
        rows.HAS_RETRY, rows.UNIQUE_UNTIL_DONE, rows.UNIQUE_WHILE_WAITING, rows.HAS_ATTEMPTS, rows.HAD_FOLLOW_UPS,
        rows.CANCEL_REQUESTED, rows.LOST_UNIQUE_KEY, rows.HAD_RESULT,
    ] == [1, 2, 4, 8, 16, 32, 64, 128]  # fmt: skip


# --- Task ids and tokens ---------------------------------------------------------------------------------------------

times = st.integers(0, ids.TIME_MS_MAX)
shards = st.integers(0, ids.SHARD_MAX)
sequences = st.integers(0, ids.SEQUENCE_MAX)


@thorough
@given(times, shards, sequences)
@example(0, 0, 0)
@example(ids.TIME_MS_MAX, ids.SHARD_MAX, ids.SEQUENCE_MAX)
def test_a_task_id_is_a_uuid_of_version_8_that_carries_time_shard_and_sequence(
    time_ms: int, shard: int, sequence: int
) -> None:
    task_id = ids.make_task_id(time_ms, shard, sequence)
    standard = uuid.UUID(bytes=task_id)
    assert (standard.version, standard.variant) == (8, uuid.RFC_4122)
    assert ids.task_id_time_ms(task_id) == time_ms
    assert ids.task_id_shard(task_id) == shard
    assert ids.task_id_sequence(task_id) == sequence
    text = ids.format_task_id(task_id)
    assert text == str(standard)
    assert ids.parse_task_id(text) == ids.parse_task_id(text.upper()) == task_id


@thorough
@given(st.tuples(times, sequences), st.tuples(times, sequences), shards)
def test_task_ids_of_a_shard_sort_by_time_and_sequence(
    one: tuple[int, int], other: tuple[int, int], shard: int
) -> None:
    first, second = sorted((one, other))
    first_id, second_id = (ids.make_task_id(time_ms, shard, sequence) for time_ms, sequence in (first, second))
    assert (first_id < second_id) == (first < second)
    assert (ids.format_task_id(first_id) < ids.format_task_id(second_id)) == (first < second)


GOOD_ID = "0190c2f3-a1b2-8123-9000-000000000001"


@pytest.mark.parametrize(
    "text",
    [
        "",
        GOOD_ID[:-1],
        GOOD_ID + "0",
        GOOD_ID.replace("-", ""),
        "{" + GOOD_ID + "}",
        "urn:uuid:" + GOOD_ID,
        GOOD_ID.replace("-8", "-7"),
        GOOD_ID.replace("-9000", "-0000"),
        GOOD_ID.replace("-9000", "-c000"),
        GOOD_ID.replace("a1b2-", "-a1b2"),
        GOOD_ID.replace("-", "_"),
        GOOD_ID.replace("f", "g"),
        GOOD_ID.replace("0001", "000١"),
        GOOD_ID.replace("0190", "+190"),
        " " + GOOD_ID[1:],
        GOOD_ID.replace("c2f3", "c2  "),
        GOOD_ID[:-2] + "\t\n",
        GOOD_ID[:-2] + "--",
        GOOD_ID + "\n",
    ],
)
def test_a_malformed_task_id_is_refused(text: str) -> None:
    assert ids.parse_task_id(GOOD_ID) is not None
    assert ids.parse_task_id(text) is None


@thorough
@given(st.text(max_size=40) | st.text(alphabet="0123456789abcdefABCDEF-", min_size=36, max_size=36))
def test_only_canonical_text_is_a_task_id(text: str) -> None:
    task_id = ids.parse_task_id(text)
    assert task_id is None or ids.format_task_id(task_id) == text.lower()


@quick
@given(numbered, numbered, u64, u64)
def test_tokens_grow_with_the_incarnation_first_whatever_their_secrets(
    one: tuple[int, int], other: tuple[int, int], secret: int, other_secret: int
) -> None:
    token = ids.make_token(*one, secret)
    assert (token < ids.make_token(*other, other_secret)) == ((*one, secret) < (*other, other_secret))
    assert token < 2**128
    assert ids.token_counter(token) == one[1]
