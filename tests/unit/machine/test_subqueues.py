"""Sub-queues of tenants and limit keys: their counts, their low-water marks, and what a leader is told about them."""

from typing import Any

import pytest

from holdfast.machine import entries, keys, rows
from holdfast.machine.effects import ReadyTask
from holdfast.machine.entries import AGE_MARK, BucketLevel, Entry, Mark
from holdfast.machine.invariants import violations
from holdfast.machine.operator_entries import (
    KEEP_PRIORITY,
    KEEP_START,
    START_AT,
    SetAllocations,
    UpdateItem,
    UpdateTasks,
)
from holdfast.machine.outcomes import Accepted, Changed, Claimed, Moved, Outcome
from holdfast.machine.ready_lines import read_ages
from holdfast.machine.rows import CANCELLED, READY
from tests.unit.machine.machine_shard import KEEP_MS, LEASE_MS, NOBODY, QUEUE, START_MS, Shard, code, new_task

BLUE: dict[str, Any] = {"tenant": b"blue", "limit_key": b"disk"}


def subqueue_of(shard: Shard) -> tuple[int, int] | None:
    subqueue = shard.subqueue(**BLUE)
    return None if subqueue is None else (subqueue.ready, subqueue.mark)


def blue_mark(version: int, sequence: int) -> Mark:
    return Mark(QUEUE, version, 4, sequence, b"blue", b"disk")


def apply_all(shard: Shard, *several: Entry) -> list[Outcome]:
    """Entries of one commit."""
    done = []
    for entry in several:
        done += shard.machine.apply(shard.machine.meta.applied_index + 1, 1, entry)
    shard.effects = shard.machine.commit()
    assert violations(shard.kv) == []
    return done


def claim_of(*task_ids: bytes, marks: tuple[Mark, ...] = ()) -> entries.Claim:
    return entries.Claim(START_MS, START_MS + LEASE_MS, b"worker", b"", 0, list(task_ids), list(marks))


# --- Sub-queues ------------------------------------------------------------------------------------------------------


def test_each_tenant_and_limit_key_of_a_priority_has_a_subqueue_of_its_own(shard: Shard) -> None:
    names = [(b"", b""), (b"blue", b""), (b"", b"disk"), (b"blue", b"disk"), (b"red", b"disk")]
    ids = {pair: shard.enqueue(tenant=pair[0], limit_key=pair[1]) for pair in names}
    high = shard.enqueue(priority=9, **BLUE)
    for pair, task_id in ids.items():
        assert shard.line(tenant=pair[0], limit_key=pair[1]) == [task_id]
    assert shard.queue().subqueues == [0, 0, 0, 0, 4, 0, 0, 0, 0, 1]
    level = keys.subqueue_level(QUEUE, 4)
    found = [keys.subqueue_names(key, level) for key, _ in shard.kv.scan(level, keys.after_prefix(level), 99)]
    assert found == sorted(names[1:]), "the plain sub-queue needs no row"
    aged = [*(ids[pair] for pair in names[1:]), high]
    by_age = read_ages(shard.kv, shard.machine.ready_in_age_page, QUEUE, 0, 99)
    assert by_age == ([(shard.task(item).sequence, item) for item in aged], None)


def test_a_subqueue_is_there_only_while_it_has_ready_tasks(shard: Shard) -> None:
    first, second = shard.enqueue(**BLUE), shard.enqueue(**BLUE)
    assert subqueue_of(shard) == (2, 1)
    shard.claim(first)
    assert subqueue_of(shard) == (1, 1)
    shard.cancel(second)
    assert subqueue_of(shard) is None
    assert shard.queue().subqueues == [0] * 10
    third = shard.enqueue(**BLUE)
    assert subqueue_of(shard) == (1, shard.task(third).sequence)
    assert violations(shard.kv) == []


@pytest.mark.parametrize("restarts", [False, True])
def test_a_subqueue_that_empties_and_fills_again_begins_with_a_fresh_mark(shard: Shard, restarts: bool) -> None:
    first, second = shard.enqueue(**BLUE), shard.enqueue(**BLUE)
    shard.claim_all(first, second, marks=(blue_mark(0, 3),))
    assert subqueue_of(shard) is None
    if restarts:
        shard.restart()
    shard.release(first, shard.task(first).token)
    assert subqueue_of(shard) == (1, 1), "an old mark of the emptied sub-queue would hide the task"
    assert shard.line(**BLUE) == [first]
    assert violations(shard.kv) == []


def test_a_subqueue_that_empties_and_fills_within_one_commit(shard: Shard) -> None:
    first = shard.enqueue(**BLUE)
    cancel = entries.Cancel(START_MS, KEEP_MS, [first])
    _, accepted = apply_all(shard, cancel, entries.Enqueue(START_MS, [new_task(**BLUE)]))
    assert isinstance(accepted, Accepted)
    assert subqueue_of(shard) == (1, 2)
    assert shard.queue().subqueues[4] == 1
    assert shard.line(**BLUE) == [accepted.task_id]
    # And the other way round: it fills and empties, so nothing of it is left.
    apply_all(shard, entries.Enqueue(START_MS, [new_task(tenant=b"red")]), entries.Cancel(START_MS, KEEP_MS, [NOBODY]))
    (red,) = shard.line(tenant=b"red")
    apply_all(shard, claim_of(red), entries.Enqueue(START_MS, [new_task(priority=9, tenant=b"red")]))
    assert shard.subqueue(b"red") is None
    assert shard.queue().subqueues == [0, 0, 0, 0, 1, 0, 0, 0, 0, 1]


# --- Marks -----------------------------------------------------------------------------------------------------------


def test_marks_of_subqueues_are_raised_apart_from_each_other(shard: Shard) -> None:
    tasks = [shard.enqueue(**BLUE) for _ in range(3)]
    shard.enqueue(tenant=b"red")
    shard.claim_all(tasks[0], marks=(blue_mark(0, 2), Mark(QUEUE, 0, AGE_MARK, 2)))
    red = shard.subqueue(b"red")
    assert red is not None
    assert (subqueue_of(shard), red.mark) == ((2, 2), 4)
    assert (shard.queue().age_mark, shard.queue().marks) == (2, [0] * 10)
    shard.claim_all(tasks[1], marks=(blue_mark(0, 1), Mark(QUEUE, 0, AGE_MARK, 1)))
    assert (subqueue_of(shard), shard.queue().age_mark) == ((1, 2), 2), "a mark was lowered without a task behind it"


def test_a_task_that_returns_behind_its_mark_moves_it_back(shard: Shard) -> None:
    first, second, third = (shard.enqueue(**BLUE) for _ in range(3))
    shard.claim_all(first, second, marks=(blue_mark(0, 3), Mark(QUEUE, 0, AGE_MARK, 3)))
    assert (subqueue_of(shard), shard.queue().age_mark) == ((1, 3), 3)
    shard.now_ms += LEASE_MS
    token = shard.task(second).token
    assert shard.release(second, token) == Moved(READY)
    assert (subqueue_of(shard), shard.queue().age_mark, shard.queue().mark_version) == ((2, 2), 2, 1)
    # Decided before the return: it must not count.
    shard.claim_all(third, marks=(blue_mark(0, 4), Mark(QUEUE, 0, AGE_MARK, 4), Mark(QUEUE, 0, 4, 4)))
    assert (subqueue_of(shard), shard.queue().age_mark, shard.queue().marks[4]) == ((1, 2), 2, 0)
    shard.claim_all(second, marks=(Mark(QUEUE, 1, AGE_MARK, 4),))
    assert shard.queue().age_mark == 4
    assert violations(shard.kv) == []


def test_the_mark_of_a_subqueue_without_tasks_is_nowhere_kept(shard: Shard) -> None:
    shard.enqueue()
    before = shard.state_rows()
    shard.claim_all(NOBODY, marks=(blue_mark(0, 9),))
    assert shard.state_rows() == before
    task_id = shard.enqueue(**BLUE)
    assert subqueue_of(shard) == (1, shard.task(task_id).sequence)


@pytest.mark.parametrize("names", [{}, BLUE], ids=["plain", "blue"])
def test_no_mark_passes_a_task_that_came_too_late_to_be_claimed(shard: Shard, names: dict[str, Any]) -> None:
    """Its claim was decided in time, and applied after its time to live: it stays in its line until it expires."""
    late, other = shard.enqueue(start_by_ms=START_MS + 5, **names), shard.enqueue(**names)
    shard.now_ms += 5
    marks = (blue_mark(0, 2), Mark(QUEUE, 0, 4, 2), Mark(QUEUE, 0, AGE_MARK, 2))
    assert code(shard.claim_all(late, marks=marks)[0]) == "START_TOO_LATE"
    assert violations(shard.kv) == []
    shard.claim_all(other, marks=(blue_mark(0, 3), Mark(QUEUE, 0, 4, 3), Mark(QUEUE, 0, AGE_MARK, 3)))
    assert violations(shard.kv) == [], "also if it was decided as if the first were gone"
    assert shard.line(**names) == [late]


# --- What a leader is told -------------------------------------------------------------------------------------------


def test_a_task_that_is_ready_updated_and_withdrawn_in_one_commit(shard: Shard) -> None:
    """A leader may take all that became ready first and then all that was withdrawn: each place is used once."""
    shard.enqueue()
    (task,) = shard.machine.apply(2, 1, entries.Enqueue(START_MS, [new_task(**BLUE)]))
    assert isinstance(task, Accepted)
    task_id = task.task_id
    apply_all(
        shard,
        UpdateTasks(START_MS, [UpdateItem(task_id, 9, KEEP_START, 0)]),
        UpdateTasks(START_MS, [UpdateItem(task_id, KEEP_PRIORITY, START_AT, START_MS + 5)]),
        UpdateTasks(START_MS, [UpdateItem(task_id, 4, START_AT, START_MS)]),
        entries.Cancel(START_MS, KEEP_MS, [task_id]),
    )
    places = [
        ReadyTask(QUEUE, priority, index, task_id, 8, b"blue", b"disk") for priority, index in ((4, 2), (9, 3), (4, 4))
    ]
    assert shard.effects.ready == places
    assert shard.effects.withdrawn == places
    assert shard.state(task_id) == CANCELLED
    assert shard.queue().subqueues == [0] * 10
    assert (shard.effects.due_ms, shard.effects.finished) == (START_MS + 5, [task_id])


def test_a_leader_is_told_whose_claims_ended_in_order_and_once(shard: Shard) -> None:
    red, blue, other = shard.enqueue(tenant=b"red"), shard.enqueue(**BLUE), shard.enqueue(**BLUE)
    tokens = {task_id: shard.claim(task_id) for task_id in (red, blue, other)}
    ack = entries.Ack(START_MS, KEEP_MS, [entries.AckItem(item, tokens[item], None, ()) for item in (blue, red, other)])
    apply_all(shard, ack)
    assert list(shard.effects.freed) == [QUEUE]
    assert list(shard.effects.freed[QUEUE]) == [(b"blue", b"disk"), (b"red", b"")]
    shard.cancel(shard.enqueue(**BLUE))
    assert not shard.effects.freed, "nobody held it"


# --- Caps and rates --------------------------------------------------------------------------------------------------


def running(shard: Shard) -> list[int]:
    tenants, limit_keys = shard.machine.running.tenants, shard.machine.running.limit_keys
    return [tenants.get((QUEUE, b"blue"), 0), limit_keys.get((QUEUE, b"disk"), 0), tenants.get((QUEUE, b"disk"), 0)]


@pytest.mark.parametrize("end", ["ack", "fail", "dead", "release", "snooze", "expire", "cancelled"])
def test_claims_are_counted_per_tenant_and_limit_key_until_they_end(shard: Shard, end: str) -> None:
    first, second, third = shard.enqueue(**BLUE), shard.enqueue(tenant=b"blue"), shard.enqueue(limit_key=b"disk")
    for task_id in (first, second, third):
        shard.claim(task_id)
    shard.restart()
    assert running(shard) == [2, 2, 0]
    token = shard.task(first).token
    shard.now_ms += LEASE_MS
    if end == "cancelled":
        shard.cancel(first)
        assert running(shard) == [2, 2, 0], "its holder has not let go of it"
    {
        "ack": lambda: shard.ack(first, token),
        "fail": lambda: shard.fail(first, token),
        "dead": lambda: shard.fail(first, token, dead_reason=rows.WORKER_GAVE_UP),
        "release": lambda: shard.release(first, token),
        "snooze": lambda: shard.release(first, token, shard.now_ms + 5),
        "expire": lambda: shard.expire(first, token),
        "cancelled": lambda: shard.release(first, token),
    }[end]()
    assert running(shard) == [1, 1, 0]
    shard.ack(second, shard.task(second).token)
    shard.ack(third, shard.task(third).token)
    assert running(shard) == [0, 0, 0]
    assert not shard.machine.running.tenants
    assert not shard.machine.running.limit_keys


def test_the_level_of_a_bucket_is_that_of_the_newest_claim_until_it_is_full(shard: Shard) -> None:
    level = BucketLevel(QUEUE, keys.SCOPE_TENANT, b"blue", 500_000, START_MS, START_MS + 50)
    shard.claim_all(shard.enqueue(), levels=(level,))
    key = keys.bucket(QUEUE, keys.SCOPE_TENANT, b"blue")
    assert shard.armed() == [(START_MS + 50, key)]
    assert shard.effects.key_expiry_ms == START_MS + 50
    later = level._replace(level_micro=1, full_ms=START_MS + 90)
    shard.claim_all(NOBODY, levels=(later,))
    assert shard.kv.get(key) == rows.Bucket(1, START_MS, START_MS + 90).encode(), "the leader took them from it"
    assert shard.armed() == [(START_MS + 90, key)]
    shard.now_ms += 90
    assert shard.expire_key(START_MS + 90, key) == Moved(0)
    assert shard.kv.get(key) is None
    assert violations(shard.kv) == []


def test_a_level_that_is_forgotten_at_the_same_time_is_armed_once_and_again_once_it_was_forgotten(shard: Shard) -> None:
    level = BucketLevel(QUEUE, keys.SCOPE_KEY, b"disk", 500_000, START_MS, START_MS + 50)
    key = keys.bucket(QUEUE, keys.SCOPE_KEY, b"disk")
    for _ in range(2):
        shard.claim_all(NOBODY, levels=(level,))
        shard.claim_all(NOBODY, levels=(level._replace(level_micro=1),))
        assert shard.armed() == [(START_MS + 50, key)]
        assert shard.kv.get(key) == rows.Bucket(1, START_MS, START_MS + 50).encode()
        shard.now_ms = START_MS + 50
        assert shard.expire_key(START_MS + 50, key) == Moved(0)
        assert (shard.kv.get(key), shard.armed()) == (None, [])
    assert violations(shard.kv) == []


def test_a_repeated_claim_request_keeps_the_levels_that_were_decided_with_it(shard: Shard) -> None:
    """The leader has taken the tokens before it could know that the request is answered already."""
    (first,) = shard.claim_all(shard.enqueue(), request_id=b"r")
    assert isinstance(first, Claimed)
    level = BucketLevel(QUEUE, keys.SCOPE_QUEUE, b"", 7, START_MS, START_MS + 50)
    assert shard.claim_all(shard.enqueue(), request_id=b"r", levels=(level,)) == [first]
    assert shard.kv.get(keys.bucket(QUEUE, keys.SCOPE_QUEUE, b"")) == rows.Bucket(7, START_MS, START_MS + 50).encode()


def test_allocations_are_kept_until_they_are_empty(shard: Shard) -> None:
    assert shard.apply(SetAllocations(START_MS, QUEUE, 1, [(0, b"a"), (3, b"b")])) == [Changed(2)]
    shard.apply(SetAllocations(START_MS, QUEUE, 2, [(3, b"other")]))
    shard.apply(SetAllocations(START_MS, QUEUE, 1, [(0, b""), (3, b"c")]))
    assert shard.state_rows() == {keys.allocation(QUEUE, 1, 3): b"c", keys.allocation(QUEUE, 2, 3): b"other"}
