"""Sub-queues of tenants and limit keys: what a leader is told about them."""

from typing import Any

from holdfast.machine import entries
from holdfast.machine.effects import ReadyTask
from holdfast.machine.entries import Entry
from holdfast.machine.invariants import violations
from holdfast.machine.operator_entries import (
    KEEP_PRIORITY,
    KEEP_START,
    START_AT,
    UpdateItem,
    UpdateTasks,
)
from holdfast.machine.outcomes import Accepted, Outcome
from holdfast.machine.rows import CANCELLED
from tests.unit.machine.machine_shard import KEEP_MS, QUEUE, START_MS, Shard, new_task

BLUE: dict[str, Any] = {"tenant": b"blue", "limit_key": b"disk"}


def apply_all(shard: Shard, *several: Entry) -> list[Outcome]:
    """Entries of one commit."""
    done = []
    for entry in several:
        done += shard.machine.apply(shard.machine.meta.applied_index + 1, 1, entry)
    shard.effects = shard.machine.commit()
    assert violations(shard.kv) == []
    return done


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
