"""How claims and tasks end: once, and with the same answer however often the holder asks."""

from collections.abc import Callable

import pytest

from holdfast.machine import entries, keys, rows
from holdfast.machine.invariants import violations
from holdfast.machine.outcomes import Accepted, Acked, Extended, Failed, Moved, Outcome
from holdfast.machine.rows import CANCELLED, CLAIMED, DEAD, DELAYED, READY, RETRY_PENDING, SUCCEEDED
from tests.unit.machine.machine_shard import (
    BACKOFF_MS,
    DEAD_KEEP_MS,
    KEEP_MS,
    LEASE_MS,
    PAUSE_MS,
    QUEUE,
    START_MS,
    WAITING,
    Shard,
    code,
    names,
    new_task,
)

# --- Ack -------------------------------------------------------------------------------------------------------------


def test_an_acked_task_is_done_and_its_envelope_gone(shard: Shard) -> None:
    task_id = shard.enqueue()
    assert shard.ack(task_id, shard.claim(task_id), b"ignored: no time to live") == Acked(())
    task = shard.task(task_id)
    assert (task.state, task.timer_ms) == (SUCCEEDED, START_MS + KEEP_MS)
    assert shard.kv.get(keys.envelope(task_id)) is None
    assert shard.kv.get(keys.report(task_id)) is None
    assert shard.machine.worker_claims(b"worker") == 0


def test_a_result_is_kept_for_its_time_to_live(shard: Shard) -> None:
    task_id = shard.enqueue(result_ttl_ms=3 * KEEP_MS)
    shard.ack(task_id, shard.claim(task_id), b"42")
    assert shard.kv.get(keys.report(task_id)) == rows.TaskReport(rows.REPORT_RESULT, b"42").encode()
    assert shard.task(task_id).timer_ms == START_MS + 3 * KEEP_MS
    assert shard.armed() == [], "it goes with its task"


def test_a_task_that_is_kept_for_longer_than_its_result_loses_it_before(shard: Shard) -> None:
    task_id = shard.enqueue(result_ttl_ms=50)
    shard.ack(task_id, shard.claim(task_id), b"42")
    key, end_ms = keys.report(task_id), START_MS + 50
    assert shard.armed() == [(end_ms, key)]
    assert shard.effects.key_expiry_ms == end_ms
    assert violations(shard.kv) == []
    shard.now_ms += 49
    assert code(shard.expire_key(end_ms, key)) == "KEPT"
    shard.now_ms += 1
    assert shard.expire_key(end_ms, key) == Moved(0)
    assert shard.kv.get(key) is None
    assert (shard.state(task_id), shard.task(task_id).timer_ms) == (SUCCEEDED, START_MS + KEEP_MS)
    assert violations(shard.kv) == []
    shard.now_ms = START_MS + KEEP_MS
    assert shard.purge(task_id) == Moved(SUCCEEDED)
    assert [found for found in shard.state_rows() if task_id in found] == []


def test_a_task_that_is_purged_before_its_result_was_takes_it_along(shard: Shard) -> None:
    """Two sweeps delete them, and either may be late."""
    task_id = shard.enqueue(result_ttl_ms=50)
    shard.ack(task_id, shard.claim(task_id), b"42")
    shard.now_ms += KEEP_MS
    assert shard.purge(task_id) == Moved(SUCCEEDED)
    assert [found for found in shard.state_rows() if task_id in found] == []
    assert violations(shard.kv) == []


def test_the_error_of_a_dead_letter_stays_with_it_whatever_the_time_of_results(shard: Shard) -> None:
    task_id = shard.enqueue(result_ttl_ms=50)
    shard.fail(task_id, shard.claim(task_id), dead_reason=rows.WORKER_GAVE_UP)
    assert [key for _, key in shard.armed() if key[0] == keys.REPORT] == []
    shard.retry_dead(task_id)
    shard.ack(task_id, shard.claim(task_id))
    assert [key for _, key in shard.armed() if key[0] == keys.REPORT] == [], "there is no result"
    assert violations(shard.kv) == []


def test_a_retried_ack_gets_the_first_answer(shard: Shard) -> None:
    task_id = shard.enqueue(result_ttl_ms=KEEP_MS)
    token = shard.claim(task_id)
    shard.ack(task_id, token, b"first")
    before = shard.state_rows()
    shard.now_ms += 5
    assert shard.ack(task_id, token, b"second") == Acked(())
    assert shard.state_rows() == before


def test_a_retried_ack_gets_its_follow_ups_and_makes_no_more(shard: Shard) -> None:
    known = shard.enqueue(request_id=b"known")
    task_id = shard.enqueue()
    token = shard.claim(task_id)
    follow_ups = (new_task(request_id=b"known"), new_task(), new_task(queue=b"other", run_at_ms=START_MS + 9))
    first = shard.ack(task_id, token, None, follow_ups)
    assert isinstance(first, Acked)
    assert first.follow_ups[0] == Accepted(known, True, READY)
    assert [shard.state(accepted.task_id) for accepted in first.follow_ups[1:]] == [READY, DELAYED]
    before = shard.state_rows()
    shard.now_ms += 5
    assert shard.ack(task_id, token, None, (new_task(),)) == first
    assert shard.state_rows() == before


def test_the_same_ack_twice_in_one_entry_is_done_once(shard: Shard) -> None:
    task_id = shard.enqueue()
    item = entries.AckItem(task_id, shard.claim(task_id), None, (new_task(),))
    first, second = shard.apply(entries.Ack(START_MS, KEEP_MS, [item, item]))
    assert first == second
    assert (shard.queue().ready, shard.queue().succeeded_total) == (1, 1)


def test_follow_ups_come_with_their_ack_or_not_at_all(shard: Shard) -> None:
    task_id = shard.enqueue()
    token = shard.claim(task_id)
    index = shard.machine.meta.applied_index
    item = entries.AckItem(task_id, token, None, (new_task(),))
    before = shard.kv.rows()
    shard.machine.apply(index + 1, 1, entries.Ack(START_MS, KEEP_MS, [item]))
    assert shard.kv.rows() == before, "a part of the entry reached the state before the commit"
    shard.restart()  # a crash: the state is that of the last commit
    assert shard.machine.meta.applied_index == index
    assert shard.ack(task_id, token) == Acked(())


def test_an_ack_of_an_earlier_claim_is_refused(shard: Shard) -> None:
    task_id = shard.enqueue()
    first = shard.claim(task_id)
    shard.now_ms += LEASE_MS
    shard.expire(task_id, first)
    second = shard.claim(task_id)
    for outcome in (shard.ack(task_id, first), shard.fail(task_id, first), shard.release(task_id, first)):
        assert code(outcome) == "STALE_TOKEN"
    assert shard.task(task_id).token == second
    assert shard.ack(task_id, second) == Acked(())
    assert code(shard.ack(task_id, first)) == "STALE_TOKEN"


def test_a_late_ack_counts_as_long_as_nobody_noticed_the_expiry(shard: Shard) -> None:
    task_id = shard.enqueue()
    token = shard.claim(task_id)
    shard.now_ms += 10 * LEASE_MS
    assert shard.ack(task_id, token) == Acked(())
    assert code(shard.expire(task_id, token)) == "NOT_EXPIRED"


# --- Fail ------------------------------------------------------------------------------------------------------------


def test_a_failed_task_waits_until_the_time_that_the_leader_chose(shard: Shard) -> None:
    task_id = shard.enqueue(max_attempts=1)
    # The leader counts attempts; the machine does as it is told, so a change of policy cannot split replicas.
    assert shard.fail(task_id, shard.claim(task_id)) == Failed(RETRY_PENDING, START_MS + BACKOFF_MS)
    task = shard.task(task_id)
    assert (task.state, task.timer_ms, task.failures, task.claims) == (RETRY_PENDING, START_MS + BACKOFF_MS, 1, 1)
    assert shard.kv.get(keys.report(task_id)) == rows.TaskReport(rows.REPORT_ERROR, b"error").encode()


@pytest.mark.parametrize("reason", [rows.ATTEMPTS_SPENT, rows.CLAIMS_SPENT, rows.WORKER_GAVE_UP])
def test_a_dead_task_is_kept_whole(shard: Shard, reason: int) -> None:
    task_id = shard.enqueue()
    assert shard.fail(task_id, shard.claim(task_id), dead_reason=reason) == Failed(DEAD, 0)
    task = shard.task(task_id)
    assert (task.state, task.dead_reason, task.timer_ms) == (DEAD, reason, START_MS + DEAD_KEEP_MS)
    assert shard.kv.get(keys.envelope(task_id)) == b"envelope"
    assert shard.kv.get(keys.dead(QUEUE, START_MS, task_id)) == b""


@pytest.mark.parametrize("dead_reason", [0, rows.ATTEMPTS_SPENT])
def test_a_retried_fail_gets_the_first_answer_also_after_another_claim(shard: Shard, dead_reason: int) -> None:
    task_id = shard.enqueue()
    token = shard.claim(task_id)
    first = shard.fail(task_id, token, dead_reason=dead_reason)
    shard.now_ms += BACKOFF_MS
    assert shard.fail(task_id, token, error=b"again") == first
    shard.retry_dead(task_id) if dead_reason else shard.promote(task_id)
    newer = shard.claim(task_id)
    before = shard.state_rows()
    assert shard.fail(task_id, token, dead_reason=rows.WORKER_GAVE_UP) == first
    assert code(shard.ack(task_id, token)) == "STALE_TOKEN"
    assert code(shard.release(task_id, token)) == "STALE_TOKEN"
    assert shard.state_rows() == before
    assert shard.fail(task_id, newer) == Failed(RETRY_PENDING, shard.now_ms + BACKOFF_MS)


# --- Extend and release ----------------------------------------------------------------------------------------------


def test_extend_moves_the_expiry(shard: Shard) -> None:
    task_id = shard.enqueue()
    token = shard.claim(task_id)
    later_ms = START_MS + 5 * LEASE_MS
    assert shard.extend(task_id, token, later_ms) == Extended(later_ms, False)
    shard.now_ms = later_ms - 1
    assert code(shard.expire(task_id, token)) == "NOT_EXPIRED"
    shard.now_ms = later_ms
    assert shard.expire(task_id, token) == Moved(READY)


def test_extend_tells_the_holder_of_a_cancellation(shard: Shard) -> None:
    task_id = shard.enqueue()
    token = shard.claim(task_id)
    shard.cancel(task_id)
    assert shard.extend(task_id, token, START_MS + 5) == Extended(START_MS + 5, True)


def test_a_released_task_gets_its_old_place_and_spends_nothing(shard: Shard) -> None:
    first, second, third = (shard.enqueue() for _ in range(3))
    token = shard.claim(second)
    assert shard.release(second, token) == Moved(READY)
    assert shard.line() == [first, second, third]
    assert (shard.task(second).claims, shard.task(second).failures) == (0, 0)
    assert [ready.task_id for ready in shard.effects.ready] == [second]


def test_a_retried_release_gets_the_first_answer_also_after_another_claim(shard: Shard) -> None:
    task_id = shard.enqueue()
    token = shard.claim(task_id)
    shard.release(task_id, token)
    shard.claim(task_id)
    before = shard.state_rows()
    assert shard.release(task_id, token) == Moved(READY)
    assert shard.state_rows() == before


@pytest.mark.parametrize("settle", ["fail", "release"])
def test_first_answers_are_forgotten_in_time(shard: Shard, settle: str) -> None:
    task_id = shard.enqueue()
    token = shard.claim(task_id)
    call = shard.fail if settle == "fail" else shard.release
    call(task_id, token)
    ((when_ms, key),) = shard.armed()
    assert (when_ms, key) == (START_MS + KEEP_MS, keys.recent(token))
    shard.now_ms = when_ms - 1
    assert code(shard.expire_key(when_ms, key)) == "KEPT"
    shard.now_ms = when_ms
    assert shard.expire_key(when_ms, key) == Moved(0)
    assert code(call(task_id, token)) == "STALE_TOKEN"


# --- Expire and promote ----------------------------------------------------------------------------------------------


def test_the_expiry_of_an_earlier_claim_does_not_end_the_current_one(shard: Shard) -> None:
    task_id = shard.enqueue()
    first = shard.claim(task_id)
    shard.now_ms += LEASE_MS
    shard.expire(task_id, first)
    second = shard.claim(task_id)
    shard.now_ms += LEASE_MS  # both leases have run out by now
    before = shard.state_rows()
    assert code(shard.expire(task_id, first, rows.CLAIMS_SPENT)) == "NOT_EXPIRED"
    assert shard.state_rows() == before
    assert shard.expire(task_id, second) == Moved(READY)


def test_an_expired_claim_kills_the_task_when_the_leader_says_so(shard: Shard) -> None:
    task_id = shard.enqueue()
    shard.make_suspect(task_id)
    token = shard.claim(task_id)
    shard.now_ms += LEASE_MS
    assert shard.expire(task_id, token, rows.CLAIMS_SPENT) == Moved(DEAD)
    assert shard.task(task_id).dead_reason == rows.CLAIMS_SPENT


@pytest.mark.parametrize("state", [DELAYED, RETRY_PENDING], ids=names((DELAYED, RETRY_PENDING)))
def test_a_promoted_task_goes_to_the_end_of_the_line_when_it_is_due(shard: Shard, state: int) -> None:
    task_id = shard.task_in(state)
    waiting = shard.enqueue()
    shard.now_ms += BACKOFF_MS - 1
    assert code(shard.promote(task_id)) == "NOT_DUE"
    shard.now_ms += 1
    assert shard.promote(task_id) == Moved(READY)
    assert shard.line() == [waiting, task_id]


# --- Cancel ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", WAITING, ids=names(WAITING))
def test_cancel_ends_a_waiting_task_at_once(shard: Shard, state: int) -> None:
    task_id = shard.task_in(state)
    assert shard.cancel(task_id) == Moved(CANCELLED)
    assert shard.line() == []
    assert [ready.task_id for ready in shard.effects.withdrawn] == [task_id] * (state == READY)
    before = shard.state_rows()
    assert shard.cancel(task_id) == Moved(CANCELLED)
    assert shard.state_rows() == before


@pytest.mark.parametrize("settle", ["fail", "dead", "release", "expire", "expire dead"])
def test_a_cancelled_claim_ends_cancelled_unless_it_succeeds(shard: Shard, settle: str) -> None:
    task_id = shard.enqueue()
    token = shard.claim(task_id)
    assert shard.cancel(task_id) == Moved(CLAIMED)
    assert shard.cancel(task_id) == Moved(CLAIMED)
    shard.now_ms += LEASE_MS
    calls: dict[str, Callable[[], Outcome]] = {
        "fail": lambda: shard.fail(task_id, token),
        "dead": lambda: shard.fail(task_id, token, dead_reason=rows.ATTEMPTS_SPENT),
        "release": lambda: shard.release(task_id, token),
        "expire": lambda: shard.expire(task_id, token),
        "expire dead": lambda: shard.expire(task_id, token, rows.CLAIMS_SPENT),
    }
    first = calls[settle]()
    assert first in (Moved(CANCELLED), Failed(CANCELLED, 0))
    assert shard.state(task_id) == CANCELLED
    assert shard.kv.get(keys.envelope(task_id)) is None
    if not settle.startswith("expire"):
        assert calls[settle]() == first
    assert violations(shard.kv) == []


def test_an_ack_wins_over_a_cancellation(shard: Shard) -> None:
    task_id = shard.enqueue()
    token = shard.claim(task_id)
    shard.cancel(task_id)
    assert shard.ack(task_id, token) == Acked(())
    assert shard.state(task_id) == SUCCEEDED


# --- Dead letters ----------------------------------------------------------------------------------------------------


def test_a_retried_dead_task_starts_afresh_at_the_end_of_the_line(shard: Shard) -> None:
    task_id = shard.task_in(DEAD)
    waiting = shard.enqueue()
    assert shard.retry_dead(task_id) == Moved(READY)
    task = shard.task(task_id)
    assert (task.claims, task.failures, task.dead_reason) == (0, 0, rows.NOT_DEAD)
    assert shard.line() == [waiting, task_id]
    assert shard.queue().dead == 0
    assert code(shard.retry_dead(task_id)) == "NOT_DEAD"


def test_a_discarded_dead_task_is_gone(shard: Shard) -> None:
    task_id = shard.task_in(DEAD)
    assert shard.discard_dead(task_id) == Moved(DEAD)
    assert [key for key in shard.state_rows() if task_id in key] == []
    assert shard.queue().dead == 0


# --- Purge and forget ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [SUCCEEDED, CANCELLED, DEAD], ids=names((SUCCEEDED, CANCELLED, DEAD)))
def test_an_ended_task_is_purged_when_its_retention_has_passed(shard: Shard, state: int) -> None:
    task_id = shard.task_in(state)
    shard.now_ms += (DEAD_KEEP_MS if state == DEAD else KEEP_MS) - 1
    assert code(shard.purge(task_id)) == "KEPT"
    shard.now_ms += 1
    assert shard.purge(task_id) == Moved(state)
    assert [key for key in shard.state_rows() if task_id in key] == []
    assert code(shard.purge(task_id)) == "TASK_NOT_FOUND"


@pytest.mark.parametrize("state", [*WAITING, CLAIMED], ids=names((*WAITING, CLAIMED)))
def test_a_task_that_lives_is_never_purged(shard: Shard, state: int) -> None:
    task_id = shard.task_in(state)
    shard.now_ms += 1000 * DEAD_KEEP_MS
    assert code(shard.purge(task_id)) == "KEPT"


def test_purges_wait_after_a_step_of_the_clock(shard: Shard) -> None:
    task_id = shard.task_in(SUCCEEDED, request_id=b"a")
    ((when_ms, key),) = shard.armed()
    shard.now_ms += 1000 * DEAD_KEEP_MS
    shard.apply(entries.LeaderStarted(shard.now_ms, True))
    shard.now_ms += PAUSE_MS - 1
    before = shard.state_rows()
    assert code(shard.purge(task_id)) == "KEPT"
    assert code(shard.expire_key(when_ms, key)) == "KEPT"
    assert shard.state_rows() == before
    shard.now_ms += 1
    assert shard.purge(task_id) == Moved(SUCCEEDED)
    assert shard.expire_key(when_ms, key) == Moved(0)


def test_a_new_leader_without_a_step_pauses_nothing(shard: Shard) -> None:
    task_id = shard.task_in(SUCCEEDED)
    shard.now_ms += KEEP_MS
    assert shard.apply(entries.LeaderStarted(shard.now_ms, False)) == []
    assert shard.purge(task_id) == Moved(SUCCEEDED)


def test_only_what_is_armed_is_forgotten(shard: Shard) -> None:
    task_id = shard.enqueue(request_id=b"a")
    shard.cancel(task_id)
    ((when_ms, key),) = shard.armed()
    shard.now_ms = when_ms + 1
    before = shard.state_rows()
    for wrong_ms, wrong_key in ((when_ms - 1, key), (when_ms + 1, key), (when_ms, keys.execution(task_id))):
        assert code(shard.expire_key(wrong_ms, wrong_key)) == "KEPT"
    assert shard.state_rows() == before
