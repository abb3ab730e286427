"""Going over the tasks of a shard, in pages of any size: each comes once, wherever the pages end."""

import random
from collections.abc import Collection

import pytest

from holdfast.machine import keys
from holdfast.machine.ready_rows import SUBQUEUE_TASKS_MAX
from holdfast.machine.rows import CLAIMED, DEAD, DELAYED, READY, SUCCEEDED, WORKER_GAVE_UP, Execution
from holdfast.machine.task_walk import TaskWanted, is_place, walk
from tests.unit.machine.machine_shard import ALL_STATES, KEEP_MS, START_MS, Shard


def grown(seed: int) -> Shard:
    """A shard with tasks of some queues in all states, in plain lines and in sub-queues; some are suspects."""
    shard, draw = Shard(), random.Random(seed)
    made: list[bytes] = []
    for _ in range(220):
        made.append(shard.enqueue(
            queue=draw.choice((b"a", b"a", b"ab", b"b")),
            priority=draw.randrange(10),
            tenant=draw.choice((b"", b"", b"acme", b"acme", b"umbrella", b"t%d" % len(made))),
            limit_key=draw.choice((b"", b"", b"k")),
            run_at_ms=draw.choice((0, 0, 0, START_MS + 5_000)),
        ))  # fmt: skip
    for task_id in draw.sample(made, 90):
        task = shard.machine.execution(task_id)
        if task is None or task.state != READY:
            continue
        step = draw.randrange(7)
        token = shard.claim(task_id)
        shard.now_ms += draw.choice((0, 1))
        if step == 1:
            shard.ack(task_id, token)
        elif step == 2:
            shard.fail(task_id, token)
        elif step == 3:
            shard.fail(task_id, token, dead_reason=WORKER_GAVE_UP)
        elif step == 4:
            shard.release(task_id, token)
        elif step == 5:
            shard.release(task_id, token)
            shard.cancel(task_id)
        elif step == 6:
            shard.release(task_id, token)
            shard.make_suspect(task_id)
    return shard


def all_of(shard: Shard) -> dict[bytes, Execution]:
    start, stop = keys.family_start(keys.EXECUTION), keys.family_start(keys.EXECUTION + 1)
    return {key[1:]: Execution.decode(row) for key, row in shard.kv.scan(start, stop, 10_000)}


def pages(shard: Shard, states: Collection[int], queue: bytes, size: int) -> list[bytes]:
    wanted = TaskWanted(queue, frozenset(states), b"", b"", b"", 0)
    found: list[bytes] = []
    after = b""
    while True:
        scanned = 0
        for place, task_id in walk(shard.kv, states, queue, after, {}):
            assert is_place(place)
            scanned += bool(task_id)
            task = shard.machine.execution(task_id) if task_id else None
            if task is not None and wanted.fits(task, place, shard.now_ms):
                found.append(task_id)
            if scanned == size:
                after = place
                break
        else:
            return found


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_each_task_comes_once(seed: int, size: int) -> None:
    shard = grown(seed)
    whole = all_of(shard)
    assert {task.state for task in whole.values()} == set(ALL_STATES)
    assert any(task.is_suspect for task in whole.values())
    for states in (ALL_STATES, (READY,), (CLAIMED, DEAD), (DELAYED,), (SUCCEEDED,)):
        for queue in (b"", b"a", b"ab", b"none"):
            found = pages(shard, states, queue, size)
            fits = [id_ for id_, task in whole.items() if task.state in states and queue in (b"", task.queue)]
            assert sorted(found) == sorted(fits)


def test_ready_tasks_come_in_the_order_of_their_lines() -> None:
    shard = Shard()
    low = [shard.enqueue(priority=1) for _ in range(3)]
    high = [shard.enqueue(priority=8) for _ in range(3)]
    subqueue = [
        shard.enqueue(priority=9, tenant=b"acme") for _ in range(SUBQUEUE_TASKS_MAX + 3)
    ]  # some have rows of their own
    token = shard.claim(subqueue[2])
    shard.release(subqueue[2], token)  # back in its old place, behind others
    for size in (1, 4, 100):
        assert pages(shard, (READY,), b"mail", size) == [*high, *low, *subqueue]


def test_a_place_whose_task_and_subqueue_are_gone_is_gone_on_from() -> None:
    shard = Shard()
    first, second = shard.enqueue(tenant=b"a"), shard.enqueue(tenant=b"b")
    (place, task_id), *_ = walk(shard.kv, (READY,), b"mail", b"", {})
    assert task_id == first
    shard.ack(first, shard.claim(first))
    assert [task_id for _, task_id in walk(shard.kv, (READY,), b"mail", place, {})] == [second]


def test_reading_begins_where_rows_begin() -> None:
    """Low-water marks and sweeps: what is gone costs nothing."""
    shard = Shard()
    early, late = (shard.enqueue(run_at_ms=START_MS + delay) for delay in (1_000, 2_000))
    starts = {keys.DUE: keys.timed_from(keys.DUE, START_MS + 1_500)}
    assert [task_id for _, task_id in walk(shard.kv, (DELAYED,), b"", b"", starts)] == [late]
    assert [task_id for _, task_id in walk(shard.kv, (DELAYED,), b"", b"", {})] == [early, late]


def test_what_fits() -> None:
    shard = Shard()
    task_id = shard.enqueue(tenant=b"acme", type=b"send")
    shard.claim(task_id)
    task, place = shard.machine.execution(task_id), keys.claim_expiry(0, task_id)
    assert task is not None
    now_ms = START_MS + KEEP_MS
    right = TaskWanted(b"mail", frozenset({CLAIMED}), b"send", b"acme", b"worker", KEEP_MS)
    assert right.fits(task, place, now_ms)
    assert not right.fits(task, keys.due(0, task_id), now_ms), "it has left this place"
    for wrong in (
        TaskWanted(b"other", frozenset({CLAIMED}), b"", b"", b"", 0),
        TaskWanted(b"", frozenset({READY}), b"", b"", b"", 0),
        TaskWanted(b"", frozenset({CLAIMED}), b"other", b"", b"", 0),
        TaskWanted(b"", frozenset({CLAIMED}), b"", b"other", b"", 0),
        TaskWanted(b"", frozenset({CLAIMED}), b"", b"", b"other", 0),
        TaskWanted(b"", frozenset({CLAIMED}), b"", b"", b"", KEEP_MS + 1),
    ):
        assert not wrong.fits(task, place, now_ms)


@pytest.mark.parametrize("tail", [b"", b"a", b"mail\0", b"mail\0\x05", b"mail\0\x05acme\0", b"\xff" * 30])
@pytest.mark.parametrize("family", [keys.READY, keys.SUSPECT, keys.CLAIM_EXPIRY, keys.DUE, keys.DEAD, keys.RETENTION])
def test_a_place_that_somebody_made_up_harms_nobody(family: int, tail: bytes) -> None:
    shard = grown(1)
    for queue in (b"", b"a"):
        found = {task_id for _, task_id in walk(shard.kv, ALL_STATES, queue, bytes([family]) + tail, {}) if task_id}
        assert found <= all_of(shard).keys()


def test_a_queue_without_claims_is_not_looked_for_among_those_of_others() -> None:
    shard = Shard()
    for _ in range(5):
        shard.claim(shard.enqueue(queue=b"busy"))
    held = shard.enqueue(queue=b"mail")
    assert list(walk(shard.kv, {CLAIMED}, b"mail", b"", {})) == []
    shard.claim(held)
    assert len(list(walk(shard.kv, {CLAIMED}, b"mail", b"", {}))) == 6
