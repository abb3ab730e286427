"""What a task may ask for itself: a unique key, an end of its attempts, an end of its waiting; and what people change
about it while it waits."""

from typing import Any

import pytest

from holdfast.machine import entries, keys, rows
from holdfast.machine.effects import CLAIM_TO_ACK, READY_TO_CLAIM, StateDuration
from holdfast.machine.entries import AckItem
from holdfast.machine.invariants import violations
from holdfast.machine.outcomes import Accepted, Claimed, Extended, Moved
from holdfast.machine.rows import CANCELLED, CLAIMED, DEAD, DELAYED, READY, RETRY_PENDING, SUCCEEDED
from tests.unit.machine.machine_shard import (
    BACKOFF_MS,
    DEAD_KEEP_MS,
    KEEP_MS,
    LEASE_MS,
    QUEUE,
    START_MS,
    UNTIL_DONE,
    WINDOW_MS,
    Shard,
    code,
    new_task,
)

WHILE_WAITING = {"unique_key": b"k", "flags": rows.UNIQUE_WHILE_WAITING}
SCOPES = pytest.mark.parametrize("scope", [UNTIL_DONE, WHILE_WAITING], ids=["until done", "while waiting"])


# --- Request ids -----------------------------------------------------------------------------------------------------


def test_a_request_id_that_stands_for_another_task_is_refused(shard: Shard) -> None:
    first = shard.enqueue(request_id=b"r", digest=7)
    before = shard.state_rows()
    tasks = [new_task(request_id=b"r", digest=digest) for digest in (8, 7, 0)]
    refused, same, careless = shard.apply(entries.Enqueue(START_MS, tasks))
    assert code(refused) == "REQUEST_ID_CONFLICT"
    assert same == careless == Accepted(first, True, READY)
    assert shard.state_rows() == before
    shard.enqueue(request_id=b"s")
    assert shard.enqueue_all(new_task(request_id=b"s", digest=8))[0].duplicate, "the first did not say what it was"
    assert not shard.enqueue_all(new_task(queue=b"other", request_id=b"r", digest=8))[0].duplicate


def test_a_repeated_ack_is_told_the_state_that_its_duplicate_had(shard: Shard) -> None:
    known, task_id = shard.enqueue(request_id=b"r"), shard.enqueue()
    item = AckItem(task_id, shard.claim(task_id), None, (new_task(request_id=b"r"), new_task()))
    (first,) = shard.apply(entries.Ack(START_MS, KEEP_MS, [item]))
    shard.ack(known, shard.claim(known))
    assert shard.apply(entries.Ack(START_MS, KEEP_MS, [item])) == [first]


@pytest.mark.parametrize("state", [READY, CLAIMED, DELAYED, RETRY_PENDING, SUCCEEDED, DEAD, CANCELLED])
def test_a_duplicate_is_told_what_the_task_is_now(shard: Shard, state: int) -> None:
    task_id = shard.task_in(state, request_id=b"r")
    assert shard.enqueue_all(new_task(request_id=b"r")) == [Accepted(task_id, True, state)]


def test_of_a_duplicate_that_has_ended_and_is_forgotten_nothing_more_is_known(shard: Shard) -> None:
    """Its request id is remembered for longer than the task; it is forgotten only once it has ended."""
    task_id = shard.task_in(SUCCEEDED, request_id=b"r")
    shard.now_ms += KEEP_MS
    shard.purge(task_id)
    assert shard.enqueue_all(new_task(request_id=b"r")) == [Accepted(task_id, True, 0)]


# --- Unique keys -----------------------------------------------------------------------------------------------------


@SCOPES
def test_a_unique_key_belongs_to_one_waiting_task_of_its_queue(shard: Shard, scope: dict[str, int]) -> None:
    first, again, elsewhere = shard.enqueue_all(new_task(**scope), new_task(**scope), new_task(queue=b"x", **scope))
    assert again == Accepted(first.task_id, True, READY)
    assert not elsewhere.duplicate
    assert shard.queue().ready == shard.queue().enqueued_total == 1
    assert shard.holder(b"k") == first.task_id
    assert not shard.enqueue_all(new_task(unique_key=b"other", flags=scope["flags"]))[0].duplicate


def test_a_key_is_kept_by_a_claim_until_done_and_not_while_waiting(shard: Shard) -> None:
    done, waiting = shard.enqueue(**UNTIL_DONE), shard.enqueue(unique_key=b"w", flags=rows.UNIQUE_WHILE_WAITING)
    tokens = [shard.claim(task_id) for task_id in (done, waiting)]
    assert (shard.holder(b"k"), shard.holder(b"w")) == (done, None)
    for task_id, token in zip((done, waiting), tokens, strict=True):
        shard.fail(task_id, token)
    assert (shard.holder(b"k"), shard.holder(b"w")) == (done, waiting), "a task that waits again has its key again"
    assert violations(shard.kv) == []


@SCOPES
@pytest.mark.parametrize("state", [SUCCEEDED, DEAD, CANCELLED, CLAIMED])
def test_a_task_that_ends_frees_its_key(shard: Shard, scope: dict[str, int], state: int) -> None:
    task_id = shard.task_in(state, **scope)
    keeps = state == CLAIMED and scope is UNTIL_DONE
    assert shard.holder(b"k") == (task_id if keeps else None)
    assert shard.enqueue_all(new_task(**scope))[0].duplicate is keeps
    assert violations(shard.kv) == []


@pytest.mark.parametrize("way_back", ["release", "snooze", "expire", "fail"])
def test_a_task_that_comes_back_does_not_take_its_key_from_another(shard: Shard, way_back: str) -> None:
    first = shard.enqueue(**WHILE_WAITING)
    token = shard.claim(first)
    second = shard.enqueue(**WHILE_WAITING)
    assert second != first
    shard.now_ms += LEASE_MS
    {
        "release": lambda: shard.release(first, token),
        "snooze": lambda: shard.release(first, token, shard.now_ms + 5),
        "expire": lambda: shard.expire(first, token),
        "fail": lambda: shard.fail(first, token),
    }[way_back]()
    assert shard.holder(b"k") == second
    assert shard.task(first).flags & rows.LOST_UNIQUE_KEY
    assert violations(shard.kv) == []
    shard.cancel(first)
    assert shard.holder(b"k") == second, "it has nothing to free"
    shard.cancel(second)
    assert shard.holder(b"k") is None
    assert violations(shard.kv) == []


def test_a_dead_task_that_is_revived_while_another_has_its_key(shard: Shard) -> None:
    first = shard.task_in(DEAD, **UNTIL_DONE)
    second = shard.enqueue(**UNTIL_DONE)
    shard.retry_dead(first)
    assert (shard.state(first), shard.holder(b"k")) == (READY, second)
    shard.ack(second, shard.claim(second))
    assert violations(shard.kv) == [], "nobody has the key, although the first waits"
    token = shard.claim(first)
    assert shard.holder(b"k") is None
    shard.release(first, token)
    assert shard.holder(b"k") == first, "it takes the key when it begins to wait and the key is free"
    assert not shard.task(first).flags & rows.LOST_UNIQUE_KEY
    assert violations(shard.kv) == []


def test_a_request_that_met_a_unique_key_gets_the_same_answer_again(shard: Shard) -> None:
    first = shard.enqueue(**UNTIL_DONE)
    asked = new_task(request_id=b"r", digest=5, **UNTIL_DONE)
    assert shard.enqueue_all(asked) == [Accepted(first, True, READY)]
    shard.cancel(first)
    assert shard.enqueue_all(asked) == [Accepted(first, True, CANCELLED)], "also once the key is free"
    assert code(shard.apply(entries.Enqueue(START_MS, [asked._replace(digest=6)]))[0]) == "REQUEST_ID_CONFLICT"
    shard.now_ms += WINDOW_MS
    shard.expire_key(shard.now_ms, keys.dedup(QUEUE, b"r"))
    assert not shard.enqueue_all(asked)[0].duplicate


# --- How long an attempt may take ------------------------------------------------------------------------------------


def test_a_lease_never_outlasts_the_timeout(shard: Shard) -> None:
    task_id = shard.enqueue(timeout_ms=300)
    (claimed,) = shard.claim_all(task_id)
    assert isinstance(claimed, Claimed)
    assert claimed.expiry_ms == shard.effects.expiry_ms == START_MS + 300
    shard.now_ms += 200
    assert shard.extend(task_id, claimed.token, START_MS + 900) == Extended(START_MS + 300, False)
    assert shard.extend(task_id, claimed.token, START_MS + 250) == Extended(START_MS + 250, False)
    shard.release(task_id, claimed.token)
    shard.claim(task_id)
    assert shard.task(task_id).timer_ms == START_MS + 500, "each attempt has the whole time"
    assert shard.task(shard.task_in(CLAIMED, timeout_ms=5 * LEASE_MS)).timer_ms == START_MS + 200 + LEASE_MS


def test_an_attempt_that_timed_out_counts_as_failed(shard: Shard) -> None:
    task_id = shard.enqueue(timeout_ms=300)
    token = shard.claim(task_id)
    shard.now_ms += 300
    timed_out: dict[str, Any] = {"how": rows.ATTEMPT_TIMED_OUT, "error": b"TaskTimeout", "brief": b"brief"}
    retry_at_ms = shard.now_ms + BACKOFF_MS
    assert shard.expire(task_id, token, retry_at_ms=retry_at_ms, **timed_out) == Moved(RETRY_PENDING)
    task, queue = shard.task(task_id), shard.queue()
    assert (task.failures, task.claims, task.timer_ms) == (1, 1, retry_at_ms)
    assert (queue.failed_total, queue.expired_total) == (1, 1)
    assert shard.kv.get(keys.report(task_id)) == rows.TaskReport(rows.REPORT_ERROR, b"TaskTimeout").encode()
    assert shard.attempts(task_id) == (
        rows.Attempt(rows.ATTEMPT_TIMED_OUT, START_MS, START_MS + 300, b"worker", b"brief"),
    )
    shard.now_ms = retry_at_ms
    shard.promote(task_id)
    token = shard.claim(task_id)
    shard.now_ms += 300
    assert shard.expire(task_id, token, rows.ATTEMPTS_SPENT, **timed_out) == Moved(DEAD)
    assert (shard.task(task_id).failures, shard.task(task_id).dead_reason) == (2, rows.ATTEMPTS_SPENT)


def test_the_end_of_a_lease_is_no_failure_and_keeps_the_last_error(shard: Shard) -> None:
    task_id = shard.enqueue()
    shard.fail(task_id, shard.claim(task_id), error=b"first", brief=b"b")
    shard.now_ms += BACKOFF_MS
    shard.promote(task_id)
    token = shard.claim(task_id)
    shard.now_ms += LEASE_MS
    shard.expire(task_id, token)
    assert (shard.task(task_id).failures, shard.queue().failed_total) == (1, 1)
    assert shard.kv.get(keys.report(task_id)) == rows.TaskReport(rows.REPORT_ERROR, b"first").encode()
    assert [attempt.how for attempt in shard.attempts(task_id)] == [rows.ATTEMPT_FAILED, rows.ATTEMPT_LEASE_EXPIRED]


# --- How long a task may wait ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [READY, DELAYED])
def test_a_task_that_nobody_started_in_time_is_dead(shard: Shard, state: int) -> None:
    task_id = shard.task_in(state, start_by_ms=START_MS + 50, tenant=b"blue", **UNTIL_DONE)
    assert shard.effects.start_by_ms == START_MS + 50
    shard.now_ms += 49
    assert code(shard.ttl_expire(task_id)) == "NOT_EXPIRED"
    shard.now_ms += 1
    assert shard.ttl_expire(task_id) == Moved(DEAD)
    task = shard.task(task_id)
    assert (task.dead_reason, task.start_by_ms, task.timer_ms) == (rows.TTL_PASSED, 0, shard.now_ms + DEAD_KEEP_MS)
    assert shard.kv.get(keys.report(task_id)) == rows.TaskReport(rows.REPORT_ERROR, b"too late").encode()
    assert [ready.task_id for ready in shard.effects.withdrawn] == [task_id] * (state == READY)
    assert (shard.effects.died, shard.effects.finished) == ({QUEUE}, [task_id])
    assert shard.holder(b"k") is None
    assert violations(shard.kv) == []
    assert shard.retry_dead(task_id) == Moved(READY)
    shard.now_ms += 1000
    assert code(shard.ttl_expire(task_id)) == "NOT_EXPIRED", "a person wants it whenever it is"
    shard.claim(task_id)


def test_a_task_is_not_claimed_after_its_time(shard: Shard) -> None:
    task_id = shard.enqueue(start_by_ms=START_MS + 50)
    shard.now_ms += 50
    assert code(shard.claim_all(task_id)[0]) == "START_TOO_LATE"
    assert (shard.state(task_id), shard.task(task_id).claims) == (READY, 0)


@pytest.mark.parametrize("way_back", ["fail", "expire", "time out"])
def test_a_start_ends_the_time_to_live(shard: Shard, way_back: str) -> None:
    task_id = shard.enqueue(start_by_ms=START_MS + 50)
    shard.now_ms += 49
    token = shard.claim(task_id)
    assert violations(shard.kv) == []
    shard.now_ms += LEASE_MS
    assert code(shard.ttl_expire(task_id)) == "NOT_EXPIRED", "it runs"
    if way_back == "fail":
        shard.fail(task_id, token)
    else:
        shard.expire(task_id, token, retry_at_ms=shard.now_ms + 5 if way_back == "time out" else 0)
    assert (shard.task(task_id).start_by_ms, shard.effects.start_by_ms) == (0, 0)
    assert code(shard.ttl_expire(task_id)) == "NOT_EXPIRED"
    if way_back != "expire":
        shard.now_ms += BACKOFF_MS
        shard.promote(task_id)
    shard.release(task_id, shard.claim(task_id))
    assert code(shard.ttl_expire(task_id)) == "NOT_EXPIRED", "a claim that is released changes nothing about that"
    assert violations(shard.kv) == []


@pytest.mark.parametrize("back_at_ms", [49, 70], ids=["in time", "too late"])
@pytest.mark.parametrize("way_back", ["release", "snooze"])
def test_a_claim_that_is_released_was_no_start(shard: Shard, way_back: str, back_at_ms: int) -> None:
    task_id = shard.enqueue(start_by_ms=START_MS + 50)
    shard.now_ms += 30
    token = shard.claim(task_id)
    assert [key for key in shard.kv.rows() if key[0] == keys.START_BY] == [], "nothing comes due while it is claimed"
    shard.now_ms = START_MS + back_at_ms
    state = DELAYED if way_back == "snooze" else READY
    assert shard.release(task_id, token, shard.now_ms + 500 if way_back == "snooze" else 0) == Moved(state)
    assert shard.effects.start_by_ms == START_MS + 50
    assert violations(shard.kv) == []
    if shard.now_ms < START_MS + 50:
        assert code(shard.ttl_expire(task_id)) == "NOT_EXPIRED"
        shard.now_ms = START_MS + 50
    if state == READY:
        assert code(shard.claim_all(task_id)[0]) == "START_TOO_LATE"
    assert shard.ttl_expire(task_id) == Moved(DEAD)
    assert shard.task(task_id).dead_reason == rows.TTL_PASSED
    assert [key for key in shard.kv.rows() if key[0] == keys.START_BY] == []
    assert violations(shard.kv) == []


@pytest.mark.parametrize("end", ["ack", "give up", "cancel"])
def test_a_task_that_ends_in_its_first_claim_does_not_die_of_waiting(shard: Shard, end: str) -> None:
    task_id = shard.enqueue(start_by_ms=START_MS + 50)
    token = shard.claim(task_id)
    if end == "ack":
        shard.ack(task_id, token)
    elif end == "give up":
        shard.fail(task_id, token, dead_reason=rows.WORKER_GAVE_UP)
    else:
        shard.cancel(task_id)
        shard.release(task_id, token)
    assert shard.task(task_id).start_by_ms == 0
    assert violations(shard.kv) == []


def test_a_cancelled_task_does_not_die_of_waiting(shard: Shard) -> None:
    task_id = shard.enqueue(start_by_ms=START_MS + 50)
    shard.cancel(task_id)
    assert [key for key in shard.kv.rows() if key[0] == keys.START_BY] == []
    shard.now_ms += 50
    assert code(shard.ttl_expire(task_id)) == "NOT_EXPIRED"


# --- Snooze ----------------------------------------------------------------------------------------------------------


def test_a_snoozed_task_waits_and_spends_nothing(shard: Shard) -> None:
    task_id = shard.enqueue()
    token = shard.claim(task_id)
    assert shard.release(task_id, token, START_MS + 80) == Moved(DELAYED)
    task = shard.task(task_id)
    assert (task.timer_ms, task.claims, task.failures) == (START_MS + 80, 0, 0)
    assert shard.effects.due_ms == START_MS + 80
    assert shard.attempts(task_id) == ()
    assert shard.release(task_id, token, START_MS + 500) == Moved(DELAYED), "the first answer"
    assert shard.task(task_id).timer_ms == START_MS + 80
    shard.now_ms += 80
    assert shard.promote(task_id) == Moved(READY)


def test_a_snooze_until_now_is_a_release(shard: Shard) -> None:
    first, _ = shard.enqueue(), shard.enqueue()
    assert shard.release(first, shard.claim(first), START_MS) == Moved(READY)
    assert shard.line()[0] == first


# --- Updates ---------------------------------------------------------------------------------------------------------


def test_a_ready_task_of_another_priority_joins_the_end_of_its_line(shard: Shard) -> None:
    task_id, other = shard.enqueue(), shard.enqueue(priority=9)
    shard.now_ms += 30
    assert shard.update(task_id, 9) == Moved(READY)
    assert (shard.line(), shard.line(priority=9)) == ([], [other, task_id])
    assert [ready[1:4] for ready in shard.effects.withdrawn] == [(4, 1, task_id)]
    assert [ready[1:4] for ready in shard.effects.ready] == [(9, 3, task_id)]
    shard.claim(task_id)
    assert shard.effects.timings == [StateDuration(QUEUE, b"", READY_TO_CLAIM, 30)], (
        "how long it waited is not forgotten"
    )
    shard.now_ms += 7
    shard.ack(task_id, shard.task(task_id).token)
    assert shard.effects.timings == [StateDuration(QUEUE, b"", CLAIM_TO_ACK, 7)]


def test_a_task_that_comes_back_has_waited_since_it_joined_the_line(shard: Shard) -> None:
    """Its place says how old the line is; what is counted for the second claim is the second wait."""
    task_id = shard.enqueue()
    shard.now_ms += 40
    token = shard.claim(task_id)
    shard.now_ms += 7
    shard.release(task_id, token)
    task = shard.task(task_id)
    assert (task.changed_ms, task.ready_since_ms) == (START_MS + 47, START_MS)
    shard.now_ms += 3
    shard.claim(task_id)
    assert shard.effects.timings == [StateDuration(QUEUE, b"", READY_TO_CLAIM, 3)]
    shard.fail(task_id, shard.task(task_id).token)
    shard.now_ms += BACKOFF_MS
    shard.promote(task_id)
    assert shard.task(task_id).ready_since_ms == shard.now_ms, "at the end of the line"
    assert violations(shard.kv) == []


@pytest.mark.parametrize("run_at_ms", [None, START_MS, START_MS - 5])
def test_an_update_that_changes_nothing_keeps_the_place(shard: Shard, run_at_ms: int | None) -> None:
    task_id = shard.enqueue()
    before = shard.state_rows()
    assert shard.update(task_id, 4, run_at_ms) == Moved(READY)
    assert shard.update(task_id, run_at_ms=run_at_ms) == Moved(READY)
    assert shard.state_rows() == before


@pytest.mark.parametrize(("state", "later"), [(READY, DELAYED), (DELAYED, DELAYED), (RETRY_PENDING, RETRY_PENDING)])
def test_a_waiting_task_gets_another_start_and_priority(shard: Shard, state: int, later: int) -> None:
    task_id = shard.task_in(state, tenant=b"blue", **UNTIL_DONE)
    assert shard.update(task_id, 7, START_MS + 70) == Moved(later)
    task = shard.task(task_id)
    assert (task.state, task.priority, task.timer_ms) == (later, 7, START_MS + 70)
    assert shard.effects.due_ms == START_MS + 70
    assert [ready.task_id for ready in shard.effects.withdrawn] == [task_id] * (state == READY)
    assert shard.holder(b"k") == task_id
    assert violations(shard.kv) == []
    assert shard.update(task_id, 8) == Moved(later), "a priority alone does not start it"
    assert shard.update(task_id, run_at_ms=0) == Moved(READY)
    assert shard.line(priority=8, tenant=b"blue") == [task_id]
    assert violations(shard.kv) == []


# --- Attempts and discards -------------------------------------------------------------------------------------------


def test_the_newest_attempts_are_kept_and_go_with_their_task(shard: Shard) -> None:
    task_id = shard.enqueue(max_attempts=99, max_claims=99)
    for number in range(rows.ATTEMPTS_KEPT + 4):
        shard.fail(task_id, shard.claim(task_id), brief=b"%d" % number)
        shard.now_ms += BACKOFF_MS
        shard.promote(task_id)
    kept = shard.attempts(task_id)
    assert [attempt.brief for attempt in kept] == [b"%d" % number for number in range(4, rows.ATTEMPTS_KEPT + 4)]
    at_ms = START_MS + 4 * BACKOFF_MS
    assert kept[0] == rows.Attempt(rows.ATTEMPT_FAILED, at_ms, at_ms, b"worker", b"4")
    shard.ack(task_id, shard.claim(task_id))
    assert shard.attempts(task_id) == kept
    shard.now_ms += KEEP_MS
    shard.purge(task_id)
    assert shard.attempts(task_id) == ()


def test_a_discard_leaves_a_record_for_a_while(shard: Shard) -> None:
    task_id = shard.task_in(DEAD, type=b"send", tenant=b"blue")
    shard.now_ms += 5
    assert shard.discard_dead(task_id, keep_ms=100) == Moved(DEAD)
    key = keys.discard(START_MS + 5, task_id)
    record = rows.Discard(
        rows.WORKER_GAVE_UP, START_MS, START_MS + 105, QUEUE, b"send", b"blue", by=b"ann", note=b"why"
    )
    assert shard.kv.get(key) == record.encode()
    assert shard.effects.key_expiry_ms == START_MS + 105
    assert [found for found in shard.state_rows() if task_id in found and found[0] != keys.KEY_EXPIRY] == [key]
    assert violations(shard.kv) == []
    shard.now_ms += 100
    assert shard.expire_key(START_MS + 105, key) == Moved(0)
    assert shard.kv.get(key) is None


def test_a_discard_without_a_time_leaves_nothing(shard: Shard) -> None:
    task_id = shard.task_in(DEAD)
    shard.discard_dead(task_id)
    assert [found for found in shard.state_rows() if task_id in found] == []
