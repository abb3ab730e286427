"""Tasks whose worker fell silent: they wait apart, are claimed alone, and only alone can they spend their claims."""

import pytest

from holdfast.machine import keys, rows
from holdfast.machine.entries import AGE_MARK, Mark
from holdfast.machine.invariants import violations
from holdfast.machine.outcomes import Claimed, Moved
from holdfast.machine.rejections import Rejection
from holdfast.machine.rows import CLAIMED, DEAD, READY, RETRY_PENDING
from tests.unit.machine.machine_shard import BACKOFF_MS, LEASE_MS, QUEUE, START_MS, Shard


def suspects(shard: Shard) -> list[bytes]:
    prefix = keys.suspects_of(QUEUE)
    found = [row[:16] for _, row in shard.kv.scan(prefix, keys.after_prefix(prefix), 100)]
    assert len(found) == shard.queue().suspects
    assert violations(shard.kv) == []
    return found


def die(shard: Shard, task_id: bytes, dead_reason: int = 0) -> object:
    """The worker that has it falls silent."""
    token = shard.task(task_id).token
    shard.extend(task_id, token, shard.now_ms)
    return shard.expire(task_id, token, dead_reason)


def codes(outcomes: list[object]) -> list[object]:
    return [outcome.code if isinstance(outcome, Rejection) else type(outcome).__name__ for outcome in outcomes]


@pytest.mark.parametrize("names", [{}, {"tenant": b"blue", "limit_key": b"k"}], ids=["plain", "subqueue"])
def test_a_task_whose_worker_fell_silent_waits_apart_and_spends_nothing(shard: Shard, names: dict[str, bytes]) -> None:
    first, second = shard.enqueue(**names), shard.enqueue(**names)
    marks = (Mark(QUEUE, 0, 4, 2, **names), Mark(QUEUE, 0, AGE_MARK, 2))
    shard.claim_all(first, marks=marks)
    assert die(shard, first) == Moved(READY)
    assert shard.line() == ([] if names else [second])
    assert suspects(shard) == [first]
    task, queue = shard.task(first), shard.queue()
    assert (task.is_suspect, task.claims, task.sequence) == (True, 0, 1)
    assert (queue.ready, queue.in_line, queue.expired_total, queue.mark_version) == (2, 1, 1, 0)
    [ready] = shard.effects.ready
    assert (ready.task_id, ready.is_suspect) == (first, True)


def test_suspects_are_claimed_alone_and_others_are_not(shard: Shard) -> None:
    one, other, plain = (shard.enqueue() for _ in range(3))
    for task_id in (one, other):
        shard.make_suspect(task_id)
    assert codes([*shard.claim_all(one, plain)]) == ["NOT_ALONE", "Claimed"]
    assert codes([*shard.claim_all(one, other, is_alone=True)]) == ["NOT_ALONE"] * 2
    assert codes([*shard.claim_all(shard.enqueue(), is_alone=True)]) == ["NOT_ALONE"]
    (claimed,) = shard.claim_all(one, is_alone=True)
    assert isinstance(claimed, Claimed)
    assert claimed.is_alone
    assert (shard.machine.suspects_held_by(b"worker"), shard.machine.worker_claims(b"worker")) == (1, 2)
    assert suspects(shard) == [other]


def test_only_alone_can_a_task_spend_its_claims(shard: Shard) -> None:
    task_id = shard.enqueue(max_claims=2)
    shard.claim(task_id)
    assert die(shard, task_id, rows.CLAIMS_SPENT) == Moved(READY), "whatever a leader says: it was not alone"
    shard.claim(task_id)
    assert die(shard, task_id) == Moved(READY)
    assert (shard.task(task_id).claims, suspects(shard)) == (1, [task_id])
    shard.claim(task_id)
    assert die(shard, task_id, rows.CLAIMS_SPENT) == Moved(DEAD)
    assert (shard.task(task_id).claims, shard.task(task_id).dead_reason) == (2, rows.CLAIMS_SPENT)
    assert shard.machine.suspects_held_by(b"worker") == 0
    shard.retry_dead(task_id)
    assert suspects(shard) == [task_id], "nobody has shown that it is harmless"
    assert shard.task(task_id).claims == 0


def test_whoever_is_heard_of_is_no_suspect_any_more(shard: Shard) -> None:
    failed, snoozed, released, acked = (shard.enqueue() for _ in range(4))
    for task_id in (failed, snoozed, released, acked):
        shard.make_suspect(task_id)
    shard.fail(failed, shard.claim(failed))
    shard.release(snoozed, shard.claim(snoozed), shard.now_ms + 5)
    shard.release(released, shard.claim(released))
    shard.ack(acked, shard.claim(acked))
    assert suspects(shard) == [released], "that a claim is given back tells nothing of its task"
    assert [shard.task(task_id).is_suspect for task_id in (failed, snoozed, released)] == [False, False, True]
    assert [shard.task(task_id).claims for task_id in (failed, snoozed, released)] == [1, 0, 0]
    assert shard.machine.suspects_held_by(b"worker") == 0
    shard.now_ms += BACKOFF_MS
    for task_id in (failed, snoozed):
        shard.promote(task_id)
    assert shard.line() == [failed, snoozed]


def test_an_attempt_that_took_too_long_is_not_a_dead_worker(shard: Shard) -> None:
    task_id, suspect = shard.enqueue(timeout_ms=LEASE_MS), shard.enqueue(timeout_ms=LEASE_MS)
    shard.make_suspect(suspect)
    tokens = [shard.claim(task_id), shard.claim(suspect)]
    shard.now_ms += LEASE_MS
    for item, token in zip((task_id, suspect), tokens, strict=True):
        how = {"how": rows.ATTEMPT_TIMED_OUT, "retry_at_ms": shard.now_ms + 5}
        assert shard.expire(item, token, **how) == Moved(RETRY_PENDING)
        assert (shard.task(item).failures, shard.task(item).claims) == (1, 1)
    shard.now_ms += 5
    for item in (task_id, suspect):
        shard.promote(item)
    assert (shard.line(), suspects(shard)) == ([task_id], [suspect])


def test_a_suspect_can_be_cancelled_put_off_and_moved_up(shard: Shard) -> None:
    cancelled, urgent = shard.enqueue(), shard.enqueue()
    for task_id in (cancelled, urgent):
        shard.make_suspect(task_id)
    shard.cancel(cancelled)
    assert [(left.task_id, left.is_suspect) for left in shard.effects.withdrawn] == [(cancelled, True)]
    shard.update(urgent, priority=9)
    assert (suspects(shard), shard.line(), shard.task(urgent).priority) == ([urgent], [], 9)


def test_a_start_in_company_ends_the_time_to_live(shard: Shard) -> None:
    task_id = shard.enqueue(start_by_ms=START_MS + 50)
    shard.make_suspect(task_id)
    assert (shard.task(task_id).start_by_ms, suspects(shard)) == (0, [task_id])
    shard.release(task_id, shard.claim(task_id))
    assert (shard.task(task_id).start_by_ms, suspects(shard)) == (0, [task_id])


def test_a_repeated_request_gets_its_suspect_again(shard: Shard) -> None:
    task_id = shard.enqueue()
    shard.make_suspect(task_id)
    first = shard.claim_all(task_id, request_id=b"r", is_alone=True)
    assert shard.claim_all(shard.enqueue(), request_id=b"r") == first
    assert shard.task(task_id).state == CLAIMED
