"""The invariant checker can fail: every kind of damage to a sound state is reported."""

from collections.abc import Callable

import pytest

from holdfast.machine import entries, ids, keys, ready_rows, rows, run_entries
from holdfast.machine.entries import BucketLevel, Mark
from holdfast.machine.ids import later_task_id
from holdfast.machine.invariants import violations
from holdfast.machine.kv import MemoryKV, rows_of, state_hash
from holdfast.machine.new_runs import NewRun, pack_sizes
from holdfast.machine.operator_entries import PutSchedule, SetAllocations
from holdfast.machine.outcomes import AcceptedRun, Claimed
from holdfast.machine.rows import CANCELLED, CLAIMED, DEAD, DELAYED, READY, RETRY_PENDING, SUCCEEDED
from holdfast.machine.run_entries import AckRange
from holdfast.machine.running import claim_row
from tests.unit.machine.machine_shard import (
    ALL_STATES,
    DEAD_KEEP_MS,
    KEEP_MS,
    LEASE_MS,
    QUEUE,
    START_MS,
    Shard,
    new_task,
)


def busy_shard() -> Shard:
    """A shard with a task in every state, and with every family of rows that is in use."""
    shard = Shard()
    for number, state in enumerate((*ALL_STATES, READY, CLAIMED)):
        shard.task_in(state, request_id=b"request %d" % number, result_ttl_ms=9)
    done = shard.task_in(CLAIMED, result_ttl_ms=9)
    shard.ack(done, shard.task(done).token, b"result", (new_task(),))
    shard.claim_all(shard.enqueue(priority=9), request_id=b"reserve")
    shard.apply(entries.SetQueue(shard.now_ms, QUEUE, 1, b"policy"))
    item = entries.AckItem(
        away := shard.enqueue(), shard.claim(away), None, (), (entries.RemoteFollowUp(0, 2, 0, b"x"),) * 3
    )
    shard.apply(entries.AckAway(shard.now_ms, KEEP_MS, 9, [item]))
    shard.apply(entries.Delivered(shard.now_ms, 2, 1))
    shard.apply(entries.Receive(shard.now_ms, 3, 1, 1, DEAD_KEEP_MS, [new_task()]))
    limit_and_date(shard)
    claim_of_a_run(shard)
    first = shard.task(shard.line()[0])
    shard.claim_all(marks=(Mark(QUEUE, shard.queue().mark_version, 4, first.sequence),))
    return shard


def claim_of_a_run(shard: Shard) -> None:
    """A run of which one task has departed, others are claimed or done, and the rest is ready."""
    new = NewRun(QUEUE, 4, b"", 0, 3, 5, 0, b"send", 0, 0, b"", pack_sizes([1] * 6), b"abcdef")
    (run,) = shard.apply(run_entries.EnqueueRuns(shard.now_ms, [new]))
    assert isinstance(run, AcceptedRun)
    times = shard.now_ms, shard.now_ms + LEASE_MS, b"", b"", shard.now_ms + KEEP_MS
    (claimed,) = shard.apply(entries.Claim(*times, [run.task_id], [], counts=[4]))
    assert isinstance(claimed, Claimed)
    shard.apply(run_entries.AckRanges(shard.now_ms, KEEP_MS, [AckRange(run.task_id, claimed.token, 2)]))
    shard.cancel(later_task_id(run.task_id, 5))


def limit_and_date(shard: Shard) -> None:
    """Sub-queues, unique keys, times to live, and what else only some tasks and queues have."""
    names = {"tenant": b"blue", "limit_key": b"disk", "timeout_ms": LEASE_MS}
    shard.task_in(CLAIMED, **names)
    for priority in (4, 4, 9):
        shard.enqueue(priority=priority, start_by_ms=START_MS + 9, **names)
    shard.enqueue(unique_key=b"k", flags=rows.UNIQUE_UNTIL_DONE, tenant=b"red")
    shard.claim_all(levels=(BucketLevel(QUEUE, keys.SCOPE_QUEUE, b"", 5, START_MS, START_MS + 9),))
    shard.discard_dead(shard.task_in(DEAD), keep_ms=KEEP_MS)
    shard.apply(PutSchedule(shard.now_ms, QUEUE, b"nightly", 0, 0, 0, START_MS + 5, b"body"))
    shard.apply(SetAllocations(shard.now_ms, QUEUE, 1, [(3, b"share")]))
    waiting, claimed = shard.enqueue(**names), shard.enqueue()
    for task_id in (waiting, claimed):
        shard.make_suspect(task_id)
    shard.claim(claimed)


def one_in(shard: Shard, state: int) -> bytes:
    found = (key[1:] for key, row in rows_of(shard.kv, b"\x03", b"\x04") if rows.Execution.decode(row).state == state)
    return next(found)


def in_subqueue(shard: Shard, state: int = READY) -> bytes:
    tasks = [(key[1:], rows.Execution.decode(row)) for key, row in rows_of(shard.kv, b"\x03", b"\x04")]
    return next(task_id for task_id, task in tasks if task.state == state and task.tenant == b"blue")


def change_task(shard: Shard, found: int | bytes, **changes: int) -> None:
    task_id = one_in(shard, found) if isinstance(found, int) else found
    task = shard.task(task_id)
    for name, value in changes.items():
        assert getattr(task, name) != value
        setattr(task, name, value)
    shard.kv.write({keys.execution(task_id): task.encode()})


def change_queue(shard: Shard, **changes: int) -> None:
    queue = shard.queue()
    for name, by in changes.items():
        setattr(queue, name, getattr(queue, name) + by)
    shard.kv.write({keys.queue(QUEUE): queue.encode()})


def test_a_sound_state_has_no_violations() -> None:
    shard = busy_shard()
    assert violations(shard.kv) == []
    assert {key[0] for key in shard.kv.rows()} == set(keys.FAMILIES)
    assert violations(MemoryKV()) == []


@pytest.mark.parametrize(
    "family",
    sorted({key[0] for key in busy_shard().kv.rows()} - {keys.REPORT, keys.SETTINGS, keys.INBOX, keys.ALLOCATION}),
)
def test_a_lost_row_is_reported(family: int) -> None:
    """Only reports, settings, inboxes and shares may be missing: not every task, queue or other shard has one."""
    whole = busy_shard().kv.rows()
    lost = [key for key in whole if key[0] == family]
    for key in lost:
        assert violations(MemoryKV({other: row for other, row in whole.items() if other != key}))


@pytest.mark.parametrize(
    "key",
    [
        keys.envelope(bytes(16)),
        keys.ready(QUEUE, 4, 1000),
        keys.claim_expiry(START_MS, bytes(16)),
        keys.due(START_MS, bytes(16)),
        keys.dead(QUEUE, START_MS, bytes(16)),
        keys.retention(START_MS, bytes(16)),
        keys.key_expiry(START_MS, keys.recent(1)),
        keys.recent(1),
        keys.worker(b"nobody"),
        keys.outbox(2, 4),
        keys.outbox(7, 1),
        keys.ready_age(QUEUE, 1000),
        keys.subqueue(QUEUE, 4, b"nobody", b""),
        keys.start_by(START_MS, bytes(16)),
        keys.unique(QUEUE, b"nobody"),
        keys.attempts(bytes(16)),
        keys.schedule_due(START_MS, QUEUE, b"nobody"),
    ],
)
def test_a_stray_row_is_reported(key: bytes) -> None:
    shard = busy_shard()
    size_bytes = {keys.ATTEMPTS: 0, keys.READY_AGE: 18}.get(key[0], 16)
    shard.kv.write({key: b"\1" * size_bytes})
    assert violations(shard.kv)


def name_another_tenant(shard: Shard) -> None:
    key = next(key for key in shard.kv.rows() if key[0] == keys.CLAIM_EXPIRY)
    shard.kv.write({key: claim_row(QUEUE, b"other", b"")})


def reorder_key_expiry(shard: Shard) -> None:
    when_ms, key = next(pair for pair in shard.armed() if pair[1][0] == keys.DEDUP)
    shard.kv.write({keys.key_expiry(when_ms, key): None, keys.key_expiry(when_ms + 1, key): b""})


def widen_window(shard: Shard) -> None:
    key = next(key for _, key in shard.armed() if key[0] == keys.DEDUP)
    dedup = rows.Dedup.decode(shard.kv.rows()[key])
    shard.kv.write({key: dedup._replace(window_ms=dedup.window_ms + 1).encode()})


def arm_twice(shard: Shard) -> None:
    when_ms, key = next(pair for pair in shard.armed() if pair[1][0] == keys.RECENT)
    shard.kv.write({keys.key_expiry(when_ms + 1, key): b""})


def swap_ready(shard: Shard) -> None:
    first, second = shard.line()[:2]
    sequence = shard.task(first).sequence
    shard.kv.write({keys.ready(QUEUE, 4, sequence): ready_rows.ready_row(second, 8)})


def share_token(shard: Shard) -> None:
    change_task(shard, DEAD, token=shard.task(one_in(shard, SUCCEEDED)).token)


def raise_mark(shard: Shard) -> None:
    queue = shard.queue()
    queue.marks[4] = shard.task(shard.line()[0]).sequence + 1
    shard.kv.write({keys.queue(QUEUE): queue.encode()})


def raise_age_mark(shard: Shard) -> None:
    change_queue(shard, age_mark=shard.task(in_subqueue(shard)).sequence + 1)


def change_subqueue(shard: Shard, *, ready: int = 0, mark: int = 0) -> None:
    key = keys.subqueue(QUEUE, 4, b"blue", b"disk")
    subqueue = ready_rows.SubqueueRow.decode(shard.kv.get(key) or b"")
    shard.kv.write({key: ready_rows.SubqueueRow(subqueue.ready + ready, subqueue.mark + mark).encode()})


def count_a_subqueue_more(shard: Shard) -> None:
    queue = shard.queue()
    queue.subqueues[4] += 1
    shard.kv.write({keys.queue(QUEUE): queue.encode()})


def give_key_away(shard: Shard) -> None:
    shard.kv.write({keys.unique(QUEUE, b"k"): one_in(shard, DEAD)})


def cut_envelope(shard: Shard) -> None:
    shard.kv.write({keys.envelope(one_in(shard, DELAYED)): b"shorter"})


def orphan_report(shard: Shard) -> None:
    shard.kv.write({keys.report(bytes(16)): rows.TaskReport(rows.REPORT_ERROR, b"").encode()})


def claim_again(shard: Shard) -> None:
    change_task(shard, CLAIMED, start_by_ms=5, claims=2)


def result_of_dead(shard: Shard) -> None:
    shard.kv.write({keys.report(one_in(shard, DEAD)): rows.TaskReport(rows.REPORT_RESULT, b"").encode()})


def strange_report(shard: Shard) -> None:
    shard.kv.write({keys.report(one_in(shard, DEAD)): rows.TaskReport(9, b"").encode()})


Damage = Callable[[Shard], None]
DAMAGES: list[tuple[str, Damage, str]] = [
    ("ready count", lambda s: change_queue(s, ready=1), "counts"),
    ("claimed count", lambda s: change_queue(s, claimed=-1), "counts"),
    ("delayed count", lambda s: change_queue(s, delayed=1), "counts"),
    ("retrying count", lambda s: change_queue(s, retrying=-1), "counts"),
    ("dead count", lambda s: change_queue(s, dead=1), "counts"),
    ("claims of a worker", lambda s: s.kv.write({keys.worker(b"worker"): bytes([0, 0, 0, 99])}), "hold 99 claims"),
    ("mark past a ready task", raise_mark, "behind its mark"),
    ("state without its index row", lambda s: change_task(s, READY, state=CLAIMED, timer_ms=5), "missing"),
    ("expiry elsewhere", lambda s: change_task(s, CLAIMED, timer_ms=START_MS + 1), "missing"),
    ("due elsewhere", lambda s: change_task(s, RETRY_PENDING, timer_ms=START_MS + 1), "missing"),
    ("purge elsewhere", lambda s: change_task(s, CANCELLED, timer_ms=START_MS + 1), "missing"),
    ("ready row of another task", swap_ready, "names another task"),
    ("token of the future", lambda s: change_task(s, CLAIMED, token=ids.make_token(1, 999, 1)), "not handed out"),
    ("token of two tasks", share_token, "belongs to 2 tasks"),
    ("sequence of the future", lambda s: change_task(s, DEAD, sequence=999), "sequence that was not handed out"),
    ("too many claims", lambda s: change_task(s, CLAIMED, claims=6), "was claimed 6 times"),
    ("too many failures", lambda s: change_task(s, RETRY_PENDING, failures=4), "failed 4 times"),
    ("dead without a reason", lambda s: change_task(s, DEAD, dead_reason=0), "dead reason 0"),
    ("a reason without death", lambda s: change_task(s, READY, dead_reason=1), "dead reason 1"),
    ("change in the future", lambda s: change_task(s, CLAIMED, changed_ms=START_MS + 1), "in the future"),
    ("in line before it came", lambda s: change_task(s, READY, ready_since_ms=START_MS - 1), "joined its line"),
    ("claimed before it lined up", lambda s: change_task(s, CLAIMED, ready_since_ms=START_MS + 1), "joined its line"),
    ("cancelled yet waiting", lambda s: change_task(s, DELAYED, flags=rows.CANCEL_REQUESTED), "cancellation"),
    ("ready count of a sub-queue", lambda s: change_subqueue(s, ready=1), "has 3 ready tasks"),
    ("mark of a sub-queue", lambda s: change_subqueue(s, mark=1), "but there are"),
    ("number of sub-queues", count_a_subqueue_more, "counts its sub-queues"),
    ("age mark past a ready task", raise_age_mark, "behind its age mark"),
    ("whose claim it is", name_another_tenant, "names another task"),
    (
        "lease beyond the timeout",
        lambda s: change_task(s, in_subqueue(s, CLAIMED), timeout_ms=5),
        "longer than it may run",
    ),
    ("ended yet to be started", lambda s: change_task(s, DEAD, start_by_ms=5), "die of waiting"),
    ("started yet to be started", lambda s: change_task(s, in_subqueue(s), claims=1), "die of waiting"),
    ("claimed again yet to be started", claim_again, "die of waiting"),
    ("unique key of a dead task", give_key_away, "must not have it"),
    ("lost unique key", lambda s: s.kv.write({keys.unique(QUEUE, b"k"): None}), "lost its unique key"),
    ("attempts that are not told", lambda s: change_task(s, RETRY_PENDING, flags=0), "attempts of task"),
    ("envelope of another size", cut_envelope, "envelope has"),
    ("report of nobody", orphan_report, "belongs to no task"),
    ("result of a dead task", result_of_dead, "of a task that has none"),
    ("report of an unknown kind", strange_report, "unknown kind"),
    ("forgotten at another time", reorder_key_expiry, "another time"),
    ("forgotten twice", arm_twice, "more than once"),
    ("forgotten in its window", widen_window, "before its window is over"),
    ("message gone", lambda s: s.kv.write({keys.outbox(2, 3): None}), "messages that it says"),
    ("message delivered, yet there", lambda s: s.kv.write({keys.outbox(2, 1): b""}), "messages that it says"),
    ("outbox of nothing", lambda s: s.kv.write({keys.outbox(8, 0): rows.Outbox().encode()}), "0 messages of 0"),
    (
        "more delivered than sent",
        lambda s: s.kv.write({keys.outbox(8, 0): rows.Outbox(1, 2).encode()}),
        "2 messages of",
    ),
    ("inbox of nothing", lambda s: s.kv.write({keys.inbox(3, 1): rows.Inbox(0).encode()}), "is empty"),
    ("settings without a version", lambda s: s.kv.write({keys.settings(QUEUE): bytes(16)}), "have no version"),
]


@pytest.mark.parametrize(
    ("damage", "report"), [pytest.param(damage, report, id=name) for name, damage, report in DAMAGES]
)
def test_damage_is_reported(damage: Damage, report: str) -> None:
    shard = busy_shard()
    before = state_hash(shard.kv)
    damage(shard)
    assert any(report in sentence for sentence in violations(shard.kv)), violations(shard.kv)
    assert state_hash(shard.kv) != before


# --- A leader that does not keep to its part -------------------------------------------------------------------------


def test_a_retry_beyond_the_attempts_is_reported() -> None:
    shard = Shard()
    task_id = shard.enqueue(max_attempts=1)
    for _ in range(2):
        shard.fail(task_id, shard.claim(task_id))
        shard.now_ms += 1000
        shard.promote(task_id)
    assert any("failed 2 times" in sentence for sentence in violations(shard.kv))


def test_a_claim_beyond_the_claims_is_reported() -> None:
    shard = Shard()
    task_id = shard.enqueue(max_claims=1)
    shard.make_suspect(task_id)
    for _ in range(2):
        token = shard.claim(task_id)
        shard.now_ms += LEASE_MS
        shard.expire(task_id, token)
    assert any("claimed 2 times" in sentence for sentence in violations(shard.kv))


def test_a_death_without_a_reason_is_reported() -> None:
    shard = Shard()
    task_id = shard.enqueue()
    item = entries.FailItem(task_id, shard.claim(task_id), 0, 0, b"")
    shard.apply(entries.Fail(shard.now_ms, 1, 1, [item]))
    assert any("dead reason 0" in sentence for sentence in violations(shard.kv))


def test_a_mark_raised_past_a_ready_task_is_reported() -> None:
    shard = Shard()
    first, _ = shard.enqueue(), shard.enqueue()
    shard.claim_all(first, marks=(Mark(QUEUE, 0, 4, 3),))
    assert any("behind its mark" in sentence for sentence in violations(shard.kv))


# --- The hash of a state ---------------------------------------------------------------------------------------------


def test_the_state_hash_sees_every_row() -> None:
    whole = busy_shard().kv.rows()
    assert state_hash(MemoryKV(whole)) == state_hash(busy_shard().kv)
    hashes = {state_hash(MemoryKV({k: v for k, v in whole.items() if k != lost})) for lost in whole}
    hashes |= {state_hash(MemoryKV({**whole, key: row + b"\0"})) for key, row in whole.items()}
    assert len(hashes) == 2 * len(whole)


def test_rows_are_read_in_pages_without_gaps() -> None:
    kv = MemoryKV({number.to_bytes(2, "big"): b"" for number in range(2500)})
    assert [key for key, _ in rows_of(kv, b"", b"\xff")] == sorted(kv.rows())
