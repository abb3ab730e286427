"""Answers belong to those who earned them: what looks like a repetition, but is somebody else's call, is refused."""

from typing import Any

import pytest

from holdfast.machine import entries, keys
from holdfast.machine.entries import AckItem, Mark, RemoteFollowUp
from holdfast.machine.invariants import violations
from holdfast.machine.new_tasks import NewTask
from holdfast.machine.outcomes import Acked, Claimed
from holdfast.machine.packing import DecodeError
from holdfast.machine.rejections import Rejection
from holdfast.machine.rows import SUCCEEDED
from tests.unit.machine.machine_shard import KEEP_MS, LEASE_MS, QUEUE, WINDOW_MS, Shard, code, new_task


def test_the_first_answer_of_one_task_is_not_given_for_another(shard: Shard) -> None:
    acked, held = shard.enqueue(), shard.enqueue()
    token = shard.claim(acked)
    shard.claim(held)
    shard.ack(acked, token, None, (new_task(),))
    assert code(shard.ack(held, token)) == "STALE_TOKEN"


def test_the_first_answer_is_not_given_for_an_unknown_task(shard: Shard) -> None:
    task_id = shard.enqueue()
    token = shard.claim(task_id)
    shard.fail(task_id, token)
    assert code(shard.fail(bytes(16), token)) == "TASK_NOT_FOUND"


@pytest.mark.parametrize("settle", ["ack", "ack with a follow-up", "fail", "release", "nothing"])
def test_whoever_guesses_a_number_but_not_its_secret_is_told_what_a_stale_holder_is_told(
    shard: Shard, settle: str
) -> None:
    task_id = shard.enqueue()
    stale = shard.claim(task_id)
    shard.now_ms += LEASE_MS
    shard.expire(task_id, stale)
    token = shard.claim(task_id)
    follow_ups = (new_task(),) if "follow-up" in settle else ()
    settling = {"fail": lambda: shard.fail(task_id, token), "release": lambda: shard.release(task_id, token)}
    if settle != "nothing":
        settling.get(settle, lambda: shard.ack(task_id, token, None, follow_ups))()
    before = dict(shard.kv.scan(b"", b"\xff", 1000))
    for wrong in (token ^ 1, token ^ 1 << 63, token >> 64 << 64):
        answers = [
            [
                shard.ack(task_id, number),
                shard.ack(task_id, number, None, (new_task(),)),
                shard.fail(task_id, number),
                shard.extend(task_id, number, shard.now_ms + 1),
                shard.release(task_id, number),
            ]
            for number in (wrong, stale)
        ]
        assert answers[0] == answers[1]
        assert {code(answer) for answer in answers[0]} == {"STALE_TOKEN"}
    after = dict(shard.kv.scan(b"", b"\xff", 1000))
    assert {key for key in before | after if before.get(key) != after.get(key)} == {keys.META_KEY}


def test_a_claim_request_id_belongs_to_its_worker(shard: Shard) -> None:
    first, second = shard.enqueue(), shard.enqueue()
    shard.claim_all(first, request_id=b"1", worker=b"w1")
    (got,) = shard.claim_all(second, request_id=b"1", worker=b"w2")
    assert isinstance(got, Claimed)
    assert got.task_id == second


def test_a_repeated_claim_request_without_marks_hides_no_task(shard: Shard) -> None:
    first, second, third = (shard.enqueue() for _ in range(3))
    shard.claim_all(first, request_id=b"r", marks=(Mark(QUEUE, 0, 4, 2),))
    shard.claim_all(second, request_id=b"r")  # the second stays ready
    shard.claim_all(third, marks=(Mark(QUEUE, 0, 4, 4),))  # decided as if the second were gone
    assert violations(shard.kv) == []


def test_a_mark_makes_no_queue(shard: Shard) -> None:
    shard.claim_all(bytes(16), marks=(Mark(b"nowhere", 0, 4, 9),))
    assert shard.state_rows() == {}
    assert shard.machine.queue(b"nowhere") is None


def test_bytes_that_encode_never_writes_are_refused() -> None:
    started = bytearray(entries.encode(entries.LeaderStarted(1, True)))
    started[-1] = 2
    ack = bytearray(entries.encode(entries.Ack(1, 1, [entries.AckItem(bytes(16), 1, None, ())])))
    offset = ack.rindex(b"\xff" * 8)
    ack[offset : offset + 8] = b"\x80" + bytes(7)
    for data in (started, ack):
        with pytest.raises(DecodeError):
            entries.decode(bytes(data))


def test_asking_after_strangers_leaves_no_trace(shard: Shard) -> None:
    for number in range(100):
        assert shard.machine.worker_claims(b"%d" % number) == 0
    shard.kv.write({keys.worker(b"7"): (3).to_bytes(8, "big")})
    assert shard.machine.worker_claims(b"7") == 3, "it is read anew"


# --- What a request id stands for -------------------------------------------------------------------------------------


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
    first = shard.task_in(SUCCEEDED, request_id=b"r", digest=7, dedup_window_ms=WINDOW_MS)
    shard.now_ms += WINDOW_MS
    assert refused_ack(shard, content(8), content(7)).place == 1, "the first takes the id over"
    later = shard.enqueue(request_id=b"r", digest=9)
    assert later != first, "nobody has taken it"
