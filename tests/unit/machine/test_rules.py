"""The rows of the transition table, one guard at a time: what is refused changes nothing, what is done is done once."""

from collections.abc import Callable

import pytest

from holdfast.machine import entries, ids, keys, rows
from holdfast.machine.entries import Mark
from holdfast.machine.handlers.governing import UnknownLevelError
from holdfast.machine.invariants import violations
from holdfast.machine.machine import OutOfOrderError
from holdfast.machine.outcomes import Accepted, Changed, Claimed, Moved, Outcome
from holdfast.machine.rejections import Rejection
from holdfast.machine.rows import CANCELLED, CLAIMED, DEAD, DELAYED, READY, RETRY_PENDING, SUCCEEDED
from tests.unit.machine.machine_shard import (
    ALL_STATES,
    KEEP_MS,
    LEASE_MS,
    NOBODY,
    QUEUE,
    START_MS,
    WAITING,
    WINDOW_MS,
    Shard,
    code,
    new_task,
)


def others(*states: int) -> tuple[int, ...]:
    return tuple(state for state in ALL_STATES if state not in states)


# --- Levels and settings ----------------------------------------------------------------------------------------------


def test_settings_are_taken_only_forward(shard: Shard) -> None:
    assert shard.apply(entries.SetQueue(START_MS, QUEUE, 5, b"first")) == [Changed(5)]
    assert shard.effects.settings == [QUEUE]
    before = shard.state_rows()
    for version in (0, 4, 5):
        (refused,) = shard.apply(entries.SetQueue(START_MS, QUEUE, version, b"old"))
        assert code(refused) == "OLD_VERSION"
        assert shard.effects.settings == []
    assert shard.state_rows() == before
    assert shard.apply(entries.SetQueue(START_MS, b"other", 4, b"another")) == [Changed(4)]
    assert shard.apply(entries.SetQueue(START_MS, QUEUE, 6, b"")) == [Changed(6)]
    assert shard.kv.get(keys.settings(QUEUE)) == rows.SettingsRow(6, b"").encode()


def test_a_level_is_only_raised(shard: Shard) -> None:
    assert shard.machine.meta.machine_level == 1
    assert shard.apply(entries.RaiseLevel(START_MS, 2)) == [Changed(2)]
    for level in (1, 2):
        assert code(shard.apply(entries.RaiseLevel(START_MS, level))[0]) == "OLD_LEVEL"
    shard.restart()
    assert shard.machine.meta.machine_level == 2


def test_a_replica_stops_before_entries_that_it_does_not_know(shard: Shard) -> None:
    with pytest.raises(UnknownLevelError, match="upgrade"):
        shard.apply(entries.RaiseLevel(START_MS, entries.MACHINE_LEVEL + 1))


# --- A refused entry changes nothing ---------------------------------------------------------------------------------

Call = Callable[[Shard, bytes], Outcome]


def with_token(call: Callable[[Shard, bytes, int], Outcome], wrong_by: int = 0) -> Call:
    return lambda shard, task_id: call(shard, task_id, shard.task(task_id).token + wrong_by)


def refusals() -> list[tuple[str, int, Call, str]]:
    """(name, the task's state, the call, the code of its refusal)."""
    holders: list[tuple[str, Callable[[Shard, bytes, int], Outcome], str]] = [
        ("ack", lambda s, t, token: s.ack(t, token, b"result", (new_task(),)), "STALE_TOKEN"),
        ("fail", lambda s, t, token: s.fail(t, token), "STALE_TOKEN"),
        ("extend", lambda s, t, token: s.extend(t, token, s.now_ms + 5), "STALE_TOKEN"),
        ("release", lambda s, t, token: s.release(t, token), "STALE_TOKEN"),
        ("expire", lambda s, t, token: s.expire(t, token), "NOT_EXPIRED"),
    ]
    table: list[tuple[str, int, Call, str]] = []
    for name, call, refusal in holders:
        table += [(name, state, with_token(call), refusal) for state in (READY, DELAYED, CANCELLED)]
        # With its last token these would give the first answer.
        claimed_once = (CLAIMED, RETRY_PENDING, SUCCEEDED, DEAD)
        table += [(name, state, with_token(call, -1), refusal) for state in claimed_once]
        table += [(f"{name} future", CLAIMED, with_token(call, 1), refusal)]
    table += [("expire early", CLAIMED, with_token(lambda s, t, token: s.expire(t, token)), "NOT_EXPIRED")]
    table += [("claim", state, lambda s, t: s.claim_all(t)[0], "NOT_READY") for state in others(READY)]
    table += [("promote", state, lambda s, t: s.promote(t), "NOT_DUE") for state in ALL_STATES]
    table += [("cancel", state, lambda s, t: s.cancel(t), "TASK_FINISHED") for state in (SUCCEEDED, DEAD)]
    table += [("retry dead", state, lambda s, t: s.retry_dead(t), "NOT_DEAD") for state in others(DEAD)]
    table += [("discard dead", state, lambda s, t: s.discard_dead(t), "NOT_DEAD") for state in others(DEAD)]
    table += [("purge", state, lambda s, t: s.purge(t), "KEPT") for state in ALL_STATES]
    table += [("ttl_expire", state, lambda s, t: s.ttl_expire(t), "NOT_EXPIRED") for state in ALL_STATES]
    table += [("update", state, lambda s, t: s.update(t, 9, 5), "TASK_NOT_WAITING") for state in others(*WAITING)]
    return table


@pytest.mark.parametrize(
    ("state", "call", "refusal"),
    [
        pytest.param(state, call, refusal, id=f"{name}-{rows.STATE_NAMES[state]}")
        for name, state, call, refusal in refusals()
    ],
)
def test_a_refused_entry_changes_nothing(shard: Shard, state: int, call: Call, refusal: str) -> None:
    task_id = shard.task_in(state, result_ttl_ms=5)
    before, index = shard.state_rows(), shard.machine.meta.applied_index
    shard.now_ms += 1
    assert code(call(shard, task_id)) == refusal
    assert shard.state_rows() == before
    meta = rows.Meta.decode(shard.kv.get(keys.META_KEY) or b"")
    assert (meta.applied_index, meta.now_ms) == (index + 1, shard.now_ms)


@pytest.mark.parametrize(
    "call",
    [
        lambda s: s.claim_all(NOBODY)[0],
        lambda s: s.ack(NOBODY, 1, b"result", (new_task(),)),
        lambda s: s.fail(NOBODY, 1),
        lambda s: s.extend(NOBODY, 1, START_MS),
        lambda s: s.release(NOBODY, 1),
        lambda s: s.expire(NOBODY, 1),
        lambda s: s.promote(NOBODY),
        lambda s: s.cancel(NOBODY),
        lambda s: s.retry_dead(NOBODY),
        lambda s: s.discard_dead(NOBODY),
        lambda s: s.purge(NOBODY),
        lambda s: s.ttl_expire(NOBODY),
        lambda s: s.update(NOBODY, 9, 5),
    ],
)
def test_an_unknown_task_is_not_found(shard: Shard, call: Callable[[Shard], Outcome]) -> None:
    assert code(call(shard)) == "TASK_NOT_FOUND"
    assert shard.state_rows() == {}


def test_a_refused_item_does_not_hinder_its_neighbours(shard: Shard) -> None:
    first, second = shard.enqueue(), shard.enqueue()
    done = shard.claim_all(first, NOBODY, first, second)
    assert [type(outcome).__name__ for outcome in done] == ["Claimed", "Rejection", "Rejection", "Claimed"]
    assert [code(outcome) for outcome in done[1:3]] == ["TASK_NOT_FOUND", "NOT_READY"]
    assert shard.queue().claimed == 2


def test_refusals_are_sentences(shard: Shard) -> None:
    outcome = shard.promote(NOBODY)
    assert isinstance(outcome, Rejection)
    assert outcome.message.startswith("Expected ")
    assert outcome.message.endswith(".")


# --- Enqueue ---------------------------------------------------------------------------------------------------------


def test_an_accepted_task_is_ready_and_its_id_says_when_and_where(shard: Shard) -> None:
    shard.enqueue()
    task_id = shard.enqueue(envelope=b"body")
    assert shard.kv.get(keys.envelope(task_id)) == b"body"
    task = shard.task(task_id)
    assert (task.state, task.claims, task.failures, task.token, task.enqueued_ms) == (READY, 0, 0, 0, START_MS)
    assert ids.task_id_time_ms(task_id) == START_MS
    assert ids.task_id_shard(task_id) == 7
    assert ids.task_id_sequence(task_id) == task.sequence == 2


@pytest.mark.parametrize(("delay_ms", "state"), [(-1, READY), (0, READY), (1, DELAYED)])
def test_run_at_in_the_future_delays(shard: Shard, delay_ms: int, state: int) -> None:
    assert shard.state(shard.enqueue(run_at_ms=START_MS + delay_ms)) == state


def test_a_seen_request_id_returns_the_existing_task(shard: Shard) -> None:
    task_id = shard.enqueue(request_id=b"order-1")
    before = shard.state_rows()
    shard.now_ms += WINDOW_MS - 1
    assert shard.enqueue_all(new_task(request_id=b"order-1", envelope=b"other")) == [Accepted(task_id, True, READY)]
    assert shard.state_rows() == before


def test_a_request_id_twice_in_one_entry_makes_one_task(shard: Shard) -> None:
    first, second, third = shard.enqueue_all(*[new_task(request_id=b"a")] * 2, new_task(request_id=b"b"))
    assert second == Accepted(first.task_id, True, READY)
    assert not third.duplicate
    assert shard.queue().ready == shard.queue().enqueued_total == 2


def test_request_ids_belong_to_their_queue(shard: Shard) -> None:
    done = shard.enqueue_all(new_task(request_id=b"a"), new_task(request_id=b"a", queue=b"other"))
    assert [outcome.duplicate for outcome in done] == [False, False]


def test_a_request_id_is_remembered_while_its_task_lives(shard: Shard) -> None:
    task_id = shard.enqueue(request_id=b"a")
    key = keys.dedup(QUEUE, b"a")
    shard.now_ms += WINDOW_MS
    shard.expire_key(shard.now_ms, key)
    assert shard.armed() == [(shard.now_ms + WINDOW_MS, key)]
    assert shard.enqueue_all(new_task(request_id=b"a")) == [Accepted(task_id, True, READY)]
    shard.ack(task_id, shard.claim(task_id))
    shard.now_ms += WINDOW_MS
    assert shard.expire_key(shard.now_ms, key) == Moved(0)
    assert shard.enqueue_all(new_task(request_id=b"a"))[0].duplicate is False


def test_each_task_has_its_own_window(shard: Shard) -> None:
    shard.enqueue_all(*(new_task(request_id=b"%d" % ms, dedup_window_ms=ms) for ms in (30, 10, 20)))
    assert [when_ms - START_MS for when_ms, _ in shard.armed()] == [10, 20, 30]
    held = shard.enqueue()
    token = shard.claim(held)
    shard.ack(held, token, follow_ups=(new_task(request_id=b"next", dedup_window_ms=15),))
    assert (START_MS + 15, keys.dedup(QUEUE, b"next")) in shard.armed()


def test_a_short_window_is_renewed_less_and_less_often(shard: Shard) -> None:
    """Or each task of a large backlog would cost a write per window."""
    task_id = shard.enqueue(request_id=b"a", dedup_window_ms=1_000)
    key = keys.dedup(QUEUE, b"a")
    ages_ms = []
    for _ in range(16):
        shard.now_ms = shard.armed()[0][0]
        ages_ms.append(shard.now_ms - START_MS)
        shard.expire_key(shard.now_ms, key)
    assert ages_ms[:4] == [1_000, 2_000, 4_000, 8_000]
    assert ages_ms[-1] - ages_ms[-2] == 3_600_000
    assert shard.enqueue_all(new_task(request_id=b"a")) == [Accepted(task_id, True, READY)]


def test_a_request_id_outlives_its_purged_task_for_the_rest_of_its_window(shard: Shard) -> None:
    task_id = shard.task_in(SUCCEEDED, request_id=b"a")
    shard.now_ms += KEEP_MS
    assert shard.purge(task_id) == Moved(SUCCEEDED)
    assert shard.enqueue_all(new_task(request_id=b"a")) == [Accepted(task_id, True)]


# --- Claim -----------------------------------------------------------------------------------------------------------


def test_a_claim_holds_the_task_under_a_new_token(shard: Shard) -> None:
    task_id = shard.enqueue()
    (outcome,) = shard.claim_all(task_id, worker=b"w1")
    task = shard.task(task_id)
    assert outcome == Claimed(task_id, task.token, START_MS + LEASE_MS, failures=0, claims=1, enqueued_ms=START_MS)
    assert (task.state, task.worker, task.claims, task.timer_ms) == (CLAIMED, b"w1", 1, START_MS + LEASE_MS)
    assert shard.line() == []
    assert shard.machine.worker_claims(b"w1") == 1


def test_claims_are_counted_per_worker_and_across_restarts(shard: Shard) -> None:
    shard.claim_all(shard.enqueue(), shard.enqueue(), worker=b"w1")
    task_id = shard.enqueue()
    shard.claim_all(task_id, worker=b"w2")
    shard.claim_all(shard.enqueue(), worker=b"")
    shard.restart()
    assert [shard.machine.worker_claims(name) for name in (b"w1", b"w2", b"", b"w3")] == [2, 1, 0, 0]
    shard.release(task_id, shard.task(task_id).token)
    shard.claim_all(task_id, worker=b"w1")
    assert [shard.machine.worker_claims(name) for name in (b"w1", b"w2")] == [3, 0]
    assert shard.kv.get(keys.worker(b"w2")) is None


def test_tokens_grow_across_tasks_restarts_and_incarnations(shard: Shard) -> None:
    tokens = []
    for _ in range(3):
        task_id = shard.enqueue()
        tokens.append(shard.claim(task_id))
        shard.release(task_id, tokens[-1])
        shard.restart()
        tokens.append(shard.claim(task_id))
    made_anew = Shard(incarnation=2)
    tokens.append(made_anew.claim(made_anew.enqueue()))
    assert tokens == sorted(set(tokens))


def test_a_restart_keeps_shard_and_incarnation() -> None:
    shard = Shard(shard=9, incarnation=4)
    shard.apply(entries.LeaderStarted(START_MS, False))
    shard.restart()
    assert (shard.machine.meta.shard, shard.machine.meta.incarnation) == (9, 4)


def test_a_repeated_claim_request_gets_its_claims_again(shard: Shard) -> None:
    first, second, third = (shard.enqueue() for _ in range(3))
    claimed = shard.claim_all(first, second, request_id=b"r")
    before = shard.state_rows()
    again = shard.claim_all(third, request_id=b"r")
    assert again == claimed
    changed = {key for key, row in shard.state_rows().items() if before.get(key) != row}
    assert changed == {keys.queue(QUEUE)}, "only the version of its marks: the third stays ready"
    assert [outcome.task_id for outcome in shard.machine.claims_of_request(b"worker", b"r")] == [first, second]


def test_a_repeated_claim_request_gets_only_what_still_holds(shard: Shard) -> None:
    first, second, third = (shard.enqueue() for _ in range(3))
    shard.claim_all(first, second, request_id=b"r")
    shard.ack(first, shard.task(first).token)
    assert [outcome[0] for outcome in shard.claim_all(third, request_id=b"r")] == [second]
    token = shard.task(second).token
    shard.release(second, token)
    shard.claim(second)
    assert [outcome[0] for outcome in shard.claim_all(third, request_id=b"r")] == [third]
    assert [outcome.task_id for outcome in shard.machine.claims_of_request(b"worker", b"r")] == [third]
    assert violations(shard.kv) == []


def test_a_claim_request_that_got_nothing_is_not_remembered(shard: Shard) -> None:
    task_id = shard.task_in(DELAYED)
    shard.claim_all(task_id, request_id=b"r")
    assert shard.armed() == []


# --- Low-water marks -------------------------------------------------------------------------------------------------


def test_a_mark_is_raised_only_on_the_version_it_was_decided_on(shard: Shard) -> None:
    first, second = shard.enqueue(), shard.enqueue()
    shard.claim_all(first, marks=(Mark(QUEUE, 1, 4, 2),))
    assert shard.queue().marks[4] == 0
    shard.claim_all(second, marks=(Mark(QUEUE, 0, 4, 3),))
    assert shard.queue().marks == [0, 0, 0, 0, 3, 0, 0, 0, 0, 0]
    shard.claim_all(second, marks=(Mark(QUEUE, 0, 4, 2),))
    assert shard.queue().marks[4] == 3, "a mark was lowered without a task behind it"


def test_a_task_that_returns_moves_the_mark_back(shard: Shard) -> None:
    first, second = shard.enqueue(), shard.enqueue()
    shard.claim_all(first, second, marks=(Mark(QUEUE, 0, 4, 3),))
    shard.now_ms += LEASE_MS
    token = shard.task(second).token
    assert shard.release(second, token) == Moved(READY)
    assert (shard.queue().marks[4], shard.queue().mark_version) == (2, 1)
    shard.claim_all(NOBODY, marks=(Mark(QUEUE, 0, 4, 3),))
    assert shard.queue().marks[4] == 2, "a raise that was decided before the return has hidden the task"
    assert violations(shard.kv) == []


def test_a_repeated_claim_request_voids_the_raises_that_counted_on_it(shard: Shard) -> None:
    first, second, third = (shard.enqueue() for _ in range(3))
    shard.claim_all(first, request_id=b"r", marks=(Mark(QUEUE, 0, 4, 2),))
    # Decided one after the other, before the first is applied: it takes `second`, so the next raises the mark past it.
    shard.claim_all(second, request_id=b"r", marks=(Mark(QUEUE, 0, 4, 3),))
    shard.claim_all(third, marks=(Mark(QUEUE, 0, 4, 4),))
    assert shard.state(second) == READY
    assert (shard.queue().marks[4], shard.queue().mark_version) == (2, 1)
    assert violations(shard.kv) == []


# --- Time and order --------------------------------------------------------------------------------------------------


def test_shard_time_never_goes_back(shard: Shard) -> None:
    task_id = shard.enqueue()
    token = shard.claim(task_id)
    shard.apply(entries.LeaderStarted(START_MS + LEASE_MS, False))
    shard.now_ms = START_MS - 5
    assert shard.expire(task_id, token) == Moved(READY)
    assert shard.task(task_id).changed_ms == shard.machine.meta.now_ms == START_MS + LEASE_MS
    later = shard.enqueue(run_at_ms=START_MS + LEASE_MS)
    assert shard.state(later) == READY
    assert ids.task_id_time_ms(later) == START_MS + LEASE_MS


@pytest.mark.parametrize("offset", [-1, 0, 2])
def test_an_entry_out_of_order_stops_the_shard_and_changes_nothing(shard: Shard, offset: int) -> None:
    shard.enqueue()
    meta = shard.machine.meta.encode()
    before = shard.kv.rows()
    with pytest.raises(OutOfOrderError, match="expected the entry of index 2"):
        shard.machine.apply(1 + offset, 9, entries.Enqueue(START_MS + 99, [new_task()]))
    assert shard.machine.meta.encode() == meta
    shard.machine.commit()
    assert shard.kv.rows() == before


def test_a_commit_tells_the_earliest_new_time_of_each_kind(shard: Shard) -> None:
    """A leader sets its timers by it, so an earlier time must not be hidden by a later one in the same commit."""
    held = [shard.enqueue() for _ in range(3)]
    tokens = [shard.claim(task_id) for task_id in held]
    index = shard.machine.meta.applied_index
    extends = [entries.ExtendItem(held[0], tokens[0], START_MS + after_ms) for after_ms in (90, 30, 60)]
    tasks = [new_task(run_at_ms=START_MS + after_ms, request_id=b"%d" % after_ms) for after_ms in (9, 3, 6)]
    several: list[entries.Entry] = [
        entries.Extend(START_MS, extends),
        *(
            entries.Enqueue(START_MS, [new._replace(dedup_window_ms=10 * (7 - number))])
            for number, new in enumerate(tasks)
        ),
        *(
            entries.Ack(START_MS, keep_ms, [entries.AckItem(task_id, token, None, ())])
            for keep_ms, task_id, token in zip((5, 2, 4), held, tokens, strict=True)
        ),
    ]
    for number, entry in enumerate(several, start=1):
        shard.machine.apply(index + number, 1, entry)
    effects = shard.machine.commit()
    times = (effects.expiry_ms, effects.due_ms, effects.key_expiry_ms, effects.purge_ms)
    assert times == (START_MS + 30, START_MS + 3, START_MS + 50, START_MS + 2)
    shard.apply(entries.LeaderStarted(START_MS, False))
    nothing = shard.effects
    assert (nothing.expiry_ms, nothing.due_ms, nothing.key_expiry_ms, nothing.purge_ms) == (0, 0, 0, 0)


def test_counters_are_per_queue_and_unknown_queues_have_none(shard: Shard) -> None:
    for state in ALL_STATES:
        shard.task_in(state)
    shard.enqueue(queue=b"other")
    queue = shard.queue()
    assert (queue.ready, queue.claimed, queue.delayed, queue.retrying, queue.dead) == (1, 1, 1, 1, 1)
    assert (queue.enqueued_total, queue.claimed_total, queue.succeeded_total) == (7, 4, 1)
    assert (queue.failed_total, queue.cancelled_total, queue.dead_total, queue.expired_total) == (2, 1, 1, 0)
    assert shard.queue(b"other").ready == 1
    assert shard.machine.queue(b"never used") is None
