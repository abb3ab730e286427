"""Request ids: how long one counts, to the millisecond, and that it stands for one content."""

from typing import Any

import pytest

from holdfast.machine import entries, keys, rows
from holdfast.machine.entries import AckItem, RemoteFollowUp
from holdfast.machine.invariants import violations
from holdfast.machine.new_tasks import NewTask
from holdfast.machine.outcomes import Accepted, Acked, Moved
from holdfast.machine.rejections import Rejection
from holdfast.machine.rows import CANCELLED, CLAIMED, DEAD, DELAYED, READY, RETRY_PENDING, SUCCEEDED
from tests.unit.machine.machine_shard import KEEP_MS, PAUSE_MS, QUEUE, UNTIL_DONE, WINDOW_MS, Shard, code, new_task

KEY = keys.dedup(QUEUE, b"r")
SHORT_MS = 1_000


def again(shard: Shard, **changes: Any) -> Accepted:
    (accepted,) = shard.enqueue_all(new_task(request_id=b"r", dedup_window_ms=SHORT_MS, **changes))
    assert violations(shard.kv) == []
    return accepted


def renew(shard: Shard) -> None:
    """The leader looks at the row again and again, as it does, for 35 windows."""
    end_ms = shard.now_ms + 35 * SHORT_MS
    while (armed := shard.armed()) and armed[0][0] <= end_ms:
        shard.now_ms = armed[0][0]
        shard.expire_key(*armed[0])
    shard.now_ms = end_ms


# --- How long --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ends", ["succeeds", "is cancelled", "is discarded"])
def test_an_id_whose_window_is_over_ends_with_its_task(shard: Shard, ends: str) -> None:
    """Also if its row stays: it was renewed while the task waited, each time for longer."""
    first = again(shard).task_id
    renew(shard)
    assert again(shard) == Accepted(first, True, READY), "it lives"
    if ends == "succeeds":
        shard.ack(first, shard.claim(first))
    elif ends == "is cancelled":
        shard.cancel(first)
    else:
        shard.fail(first, shard.claim(first), dead_reason=rows.WORKER_GAVE_UP)
        assert again(shard) == Accepted(first, True, DEAD), "it can be retried"
        shard.discard_dead(first)
    assert shard.armed()[0] > (shard.now_ms, KEY), "the row is there"
    second = again(shard)
    assert not second.duplicate
    assert again(shard) == Accepted(second.task_id, True, READY)


def test_an_id_counts_for_its_whole_window_and_no_longer(shard: Shard) -> None:
    first = shard.task_in(SUCCEEDED, request_id=b"r", dedup_window_ms=SHORT_MS)
    shard.now_ms += SHORT_MS - 1
    assert again(shard) == Accepted(first, True, SUCCEEDED)
    shard.now_ms += 1
    assert not again(shard).duplicate, "although nobody has deleted the row yet"


def test_the_window_counts_from_the_acceptance_also_of_a_task_that_is_known_no_more(shard: Shard) -> None:
    first = again(shard).task_id
    renew(shard)
    shard.ack(first, shard.claim(first))
    shard.now_ms += KEEP_MS
    shard.purge(first)
    assert shard.kv.get(KEY) is not None
    assert not again(shard).duplicate


@pytest.mark.parametrize("state", [READY, CLAIMED, DELAYED, RETRY_PENDING, DEAD])
def test_an_id_counts_while_its_task_lives(shard: Shard, state: int) -> None:
    first = shard.task_in(state, request_id=b"r", dedup_window_ms=SHORT_MS)
    shard.now_ms += 10 * SHORT_MS
    assert again(shard) == Accepted(first, True, state)


def test_an_id_that_met_a_unique_key_counts_for_its_own_window_only(shard: Shard) -> None:
    """However long the task with the key lives, and whenever it came."""
    holder = shard.enqueue(**UNTIL_DONE)
    shard.now_ms += SHORT_MS // 2
    assert again(shard, **UNTIL_DONE) == Accepted(holder, True, READY)
    shard.cancel(holder)
    shard.now_ms += SHORT_MS - 1
    assert again(shard, **UNTIL_DONE) == Accepted(holder, True, CANCELLED), "the same answer"
    shard.now_ms += 1
    assert not again(shard, **UNTIL_DONE).duplicate


def test_an_id_is_taken_over_with_all_that_it_has(shard: Shard) -> None:
    """One row, forgotten once, and what was to be forgotten of the old one is nobody's."""
    first = shard.task_in(SUCCEEDED, request_id=b"r", dedup_window_ms=SHORT_MS, digest=7)
    ((when_ms, _),) = shard.armed()
    shard.now_ms += SHORT_MS
    second = again(shard, digest=8)
    assert (second.duplicate, second.task_id == first) == (False, False)
    assert shard.armed() == [(shard.now_ms + SHORT_MS, KEY)]
    assert code(shard.expire_key(when_ms, KEY)) == "KEPT"
    shard.cancel(second.task_id)
    assert again(shard, digest=8) == Accepted(second.task_id, True, CANCELLED)
    shard.now_ms += SHORT_MS
    assert shard.expire_key(shard.now_ms, KEY) == Moved(0)
    assert shard.kv.get(KEY) is None


def test_after_a_step_of_the_clock_ids_go_on_to_count(shard: Shard) -> None:
    """A clock that is far ahead must not make a second task."""
    first = shard.task_in(SUCCEEDED, request_id=b"r", dedup_window_ms=WINDOW_MS)
    shard.now_ms += 10 * WINDOW_MS
    shard.apply(entries.LeaderStarted(shard.now_ms, True))
    shard.now_ms += PAUSE_MS - 1
    assert again(shard) == Accepted(first, True, SUCCEEDED)
    shard.now_ms += 1
    assert not again(shard).duplicate


def test_a_task_may_hand_on_its_id_when_its_window_is_over(shard: Shard) -> None:
    """Its ack ends it before its follow-ups come."""
    first = again(shard).task_id
    shard.now_ms += SHORT_MS
    done = shard.ack(first, shard.claim(first), follow_ups=(new_task(request_id=b"r", digest=8),))
    assert isinstance(done, Acked)
    assert not done.follow_ups[0].duplicate
    assert violations(shard.kv) == []


# --- What it stands for ----------------------------------------------------------------------------------------------


def content(digest: int, request_id: bytes = b"r", **changes: Any) -> NewTask:
    return new_task(request_id=request_id, digest=digest, **changes)


def refused_ack(shard: Shard, *follow_ups: NewTask, away: tuple[RemoteFollowUp, ...] = ()) -> Rejection:
    """Of a task that is held, which it is still afterwards; nothing else is changed."""
    task_id = shard.enqueue()
    token = shard.claim(task_id)
    before = shard.state_rows()
    item = AckItem(task_id, token, b"result", follow_ups, away)
    (outcome,) = shard.apply(entries.AckAway(shard.now_ms, KEEP_MS, 100, [item]))
    assert code(outcome) == "REQUEST_ID_CONFLICT"
    assert isinstance(outcome, Rejection)
    assert shard.state_rows() == before
    assert isinstance(shard.ack(task_id, token), Acked), "the claim holds"
    return outcome


def test_an_ack_with_a_follow_up_that_conflicts_changes_nothing(shard: Shard) -> None:
    shard.enqueue(request_id=b"r", digest=7)
    good = content(7), content(5, b"other"), new_task()
    assert refused_ack(shard, content(8)).place == 0
    assert refused_ack(shard, *good, content(8), content(9)).place == 3
    away = tuple(RemoteFollowUp(place, 2, 0, b"") for place in (0, 2, 5))
    assert refused_ack(shard, content(7), content(8), away=away).place == 3, "among all of them"
    assert refused_ack(shard, content(8), away=away).place == 1


def test_follow_ups_of_one_ack_are_compared_with_each_other(shard: Shard) -> None:
    assert refused_ack(shard, content(7), content(7), content(8)).place == 2
    shard.now_ms += 1
    first = shard.task_in(SUCCEEDED, request_id=b"r", digest=7, dedup_window_ms=SHORT_MS)
    shard.now_ms += SHORT_MS
    assert refused_ack(shard, content(8), content(7)).place == 1, "the first takes the id over"
    assert again(shard, digest=9).task_id != first, "nobody has taken it"


def test_a_follow_up_with_the_same_content_is_a_duplicate(shard: Shard) -> None:
    known, task_id = shard.enqueue(request_id=b"r", digest=7), shard.enqueue()
    follow_ups = content(7), content(0), content(7, b"new"), content(7, b"new"), content(8, b"r", queue=b"other")
    done = shard.ack(task_id, shard.claim(task_id), follow_ups=follow_ups)
    assert isinstance(done, Acked)
    assert done.follow_ups[:2] == (Accepted(known, True, READY),) * 2
    assert [accepted.duplicate for accepted in done.follow_ups[2:]] == [False, True, False]


def test_a_repeated_ack_gets_its_first_answer_whatever_its_ids_stand_for_by_then(shard: Shard) -> None:
    task_id = shard.enqueue()
    token = shard.claim(task_id)
    follow_ups = (content(7, dedup_window_ms=SHORT_MS),)
    first = shard.ack(task_id, token, follow_ups=follow_ups)
    assert isinstance(first, Acked)
    shard.cancel(first.follow_ups[0].task_id)
    shard.now_ms += SHORT_MS
    assert not again(shard, digest=8).duplicate
    assert shard.ack(task_id, token, follow_ups=follow_ups) == first


def test_the_id_of_a_task_that_ends_is_compared_as_if_it_had_ended(shard: Shard) -> None:
    """With its own ack another content may take its id, if the window is over, and not before."""
    first = again(shard, digest=7).task_id
    token = shard.claim(first)
    shard.now_ms += SHORT_MS - 1
    assert code(shard.ack(first, token, follow_ups=(content(8),))) == "REQUEST_ID_CONFLICT"
    shard.now_ms += 1
    assert isinstance(shard.ack(first, token, follow_ups=(content(8),)), Acked)


def test_what_a_follow_up_stands_for_is_compared_later(shard: Shard) -> None:
    task_id = shard.enqueue()
    shard.ack(task_id, shard.claim(task_id), follow_ups=(content(7),))
    (refused, same) = shard.apply(entries.Enqueue(shard.now_ms, [content(8), content(7)]))
    assert code(refused) == "REQUEST_ID_CONFLICT"
    assert isinstance(same, Accepted)
    assert same.duplicate
