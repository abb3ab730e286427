"""The rows of the transition table, one guard at a time: what is refused changes nothing, what is done is done once."""

from collections.abc import Callable

import pytest

from holdfast.machine import entries, keys, rows
from holdfast.machine.handlers.governing import UnknownLevelError
from holdfast.machine.invariants import violations
from holdfast.machine.kv import MemoryKV
from holdfast.machine.machine import OutOfOrderError
from holdfast.machine.outcomes import Accepted, Acked, Changed, Moved, Outcome
from holdfast.machine.rejections import Rejection
from holdfast.machine.rows import CANCELLED, CLAIMED, DEAD, DELAYED, READY, RETRY_PENDING, SUCCEEDED
from tests.unit.machine.machine_shard import (
    ALL_STATES,
    BACKOFF_MS,
    KEEP_MS,
    NOBODY,
    QUEUE,
    START_MS,
    WAITING,
    Shard,
    code,
    new_task,
)


def others(*states: int) -> tuple[int, ...]:
    return tuple(state for state in ALL_STATES if state not in states)


# --- Levels and settings ----------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(("delay_ms", "state"), [(-1, READY), (0, READY), (1, DELAYED)])
def test_run_at_in_the_future_delays(shard: Shard, delay_ms: int, state: int) -> None:
    assert shard.state(shard.enqueue(run_at_ms=START_MS + delay_ms)) == state


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


# --- Claim -----------------------------------------------------------------------------------------------------------


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


# --- Time and order --------------------------------------------------------------------------------------------------


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


# --- What the model does not come to ----------------------------------------------------------------------------------


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


def test_of_a_duplicate_that_has_ended_and_is_forgotten_nothing_more_is_known(shard: Shard) -> None:
    """Its request id is remembered for longer than the task; it is forgotten only once it has ended."""
    task_id = shard.task_in(SUCCEEDED, request_id=b"r")
    shard.now_ms += KEEP_MS
    shard.purge(task_id)
    assert shard.enqueue_all(new_task(request_id=b"r")) == [Accepted(task_id, True, 0)]


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


def test_the_request_ids_of_a_call_are_looked_up_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a large state one after the other costs several times as much."""
    shard = Shard()
    looked_up: list[int] = []

    def noting(wanted: list[bytes]) -> list[bytes | None]:
        looked_up.append(sum(key[0] == keys.DEDUP for key in wanted))
        return MemoryKV.get_many(shard.kv, wanted)

    def noting_one(key: bytes) -> bytes | None:
        looked_up.extend([1] * (key[0] == keys.DEDUP))
        return MemoryKV.get(shard.kv, key)

    monkeypatch.setattr(shard.kv, "get_many", noting)
    monkeypatch.setattr(shard.kv, "get", noting_one)
    tasks = [new_task(request_id=b"%d" % number, digest=1 + number) for number in range(100)]
    first = shard.apply(entries.Enqueue(shard.now_ms, tasks))
    again = shard.apply(entries.Enqueue(shard.now_ms, tasks[:50]))
    assert [count for count in looked_up if count] == [100, 50]
    assert [(outcome.task_id, outcome.duplicate) for outcome in again if isinstance(outcome, Accepted)] == [
        (outcome.task_id, True) for outcome in first[:50] if isinstance(outcome, Accepted)
    ]
