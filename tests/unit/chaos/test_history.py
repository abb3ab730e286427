"""Lines become calls: what belongs together is put together, and a history that cannot be read is refused."""

from dataclasses import replace
from pathlib import Path

import pytest

from chaos.calling import outcome_of, value_in
from chaos.history import (
    ACK,
    CLAIM,
    ENQUEUE,
    FAIL,
    FAULT,
    HEAL,
    INFO,
    INVOKE,
    NEMESIS,
    OK,
    Event,
    History,
    MalformedHistoryError,
    next_writes_s,
    put_together,
    read_history,
)
from holdfast.client import (
    ConnectionFailed,
    DeadlineExceeded,
    HoldfastError,
    InvalidArgument,
    OutcomeUnknown,
    Overloaded,
    Rejected,
    ServerError,
    StaleToken,
    UnexpectedAnswer,
)

S = 1_000_000_000


def line(t: float, kind: str, f: str, proc: int = 1, **fields: object) -> Event:
    return Event(t_ns=int(t * S), proc=proc, type=kind, f=f, **fields)  # type: ignore[arg-type]  # of an event


def test_a_batch_is_paired_item_by_item() -> None:
    story = put_together([
        line(1, INVOKE, ENQUEUE, value="a", req_id="ra", queue="q"),
        line(1, INVOKE, ENQUEUE, value="b", queue="q"),
        line(2, OK, ENQUEUE, value="b", task="t2"),
        line(2, FAIL, ENQUEUE, value="a", err="OVERLOADED"),
    ])  # fmt: skip
    a, b = sorted(story.calls, key=lambda call: call.value)
    assert (a.outcome, a.req_id, a.task, a.err) == (FAIL, "ra", "", "OVERLOADED")
    assert (b.outcome, b.task, b.invoked_ns, b.ended_ns) == (OK, "t2", 1 * S, 2 * S)
    assert story.known_tasks() == {"t2"}


def test_a_claim_sent_again_is_as_old_as_its_first_call() -> None:
    story = put_together([
        line(1, INVOKE, CLAIM, req_id="c"),
        line(2, INFO, CLAIM, req_id="c", err="ConnectionFailed"),
        line(3, INVOKE, CLAIM, proc=2, req_id="c"),
        line(4, OK, CLAIM, proc=2, req_id="c", task="t1", token=7, lease_ms=500, value="a"),
        line(4, OK, CLAIM, proc=2, req_id="c", task="t2", token=8, lease_ms=500, value="b"),
        line(5, INVOKE, CLAIM, proc=2, req_id="d"),
        line(6, OK, CLAIM, proc=2, req_id="d"),
    ])  # fmt: skip
    assert [(one.task, one.token, one.asked_ns, one.sent_ns) for one in story.claims] == [
        ("t1", 7, 1 * S, 3 * S), ("t2", 8, 1 * S, 3 * S),
    ]  # fmt: skip


def test_a_call_under_way_at_the_end_is_unknown() -> None:
    story = put_together([line(1, INVOKE, ACK, task="t1", token=7), line(2, INVOKE, CLAIM, proc=2, req_id="c")])
    [call] = story.calls
    assert (call.outcome, call.task, call.token) == (INFO, "t1", 7)
    assert story.claims == []


@pytest.mark.parametrize(
    "lines",
    [
        [line(1, INVOKE, ACK, task="t", token=1), line(2, INFO, ACK, task="t", token=1), line(3, INVOKE, CLAIM)],
        [line(1, INVOKE, ACK, task="t", token=1), line(2, INVOKE, CLAIM)],
        [line(1, INVOKE, CLAIM), line(2, INVOKE, CLAIM)],
        [line(1, OK, ENQUEUE, value="a")],
        [line(1, INVOKE, ENQUEUE, value="a"), line(2, OK, ENQUEUE, value="b")],
        [line(1, INVOKE, CLAIM, req_id="c"), line(2, OK, CLAIM, req_id="d")],
    ],
    ids=["goes on after an info", "two calls", "two claims", "no call", "another item", "another claim"],
)
def test_a_history_that_cannot_be_read_is_refused(lines: list[Event]) -> None:
    with pytest.raises(MalformedHistoryError):
        put_together(lines)


def test_the_next_write_is_one_that_was_sent_after_the_fault() -> None:
    lines = [
        line(1, INVOKE, ENQUEUE, value="before"),
        line(2, INFO, FAULT, proc=NEMESIS, value="kill n1"),
        line(2.1, OK, ENQUEUE, value="before", task="t1"),
        line(2.2, INVOKE, ENQUEUE, value="refused"),
        line(2.3, FAIL, ENQUEUE, value="refused"),
        line(2.5, INVOKE, ENQUEUE, value="after"),
        line(3, OK, ENQUEUE, value="after", task="t2"),
        line(4, INFO, HEAL, proc=NEMESIS, value="start n1"),
        line(5, INFO, FAULT, proc=NEMESIS, value="kill n2"),
    ]
    assert [(fault.value, waited) for fault, waited in next_writes_s(put_together(lines))] == [
        ("kill n1", 1.0), ("kill n2", None),
    ]  # fmt: skip


def test_a_history_survives_its_file(tmp_path: Path) -> None:
    clock = iter(range(100, 200))
    history = History(tmp_path / "history.jsonl", now_ns=lambda: next(clock))
    proc = history.new_proc()
    assert proc != history.new_proc()
    history.write(line(0, INVOKE, ACK, proc=proc, task="t1", token=2**63))
    history.fault("kill n1")
    history.close()
    assert read_history(tmp_path / "history.jsonl") == history.events
    assert [event.t_ns for event in history.events] == [100, 101]
    assert history.events[0] == replace(line(0, INVOKE, ACK, task="t1", token=2**63), t_ns=100, proc=proc)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ConnectionFailed("h:1"), INFO),
        (DeadlineExceeded("h:1", 1.0), INFO),
        (UnexpectedAnswer("what"), INFO),
        (OutcomeUnknown("", reason="OUTCOME_UNKNOWN"), INFO),
        (ServerError("", reason="INTERNAL"), INFO),
        (Rejected("", reason="NEWER_THAN_THIS_LIST"), INFO),
        (StaleToken("", reason="STALE_TOKEN"), FAIL),
        (Overloaded("", reason="OVERLOADED"), FAIL),
        (Rejected("", reason="NOT_LEADER"), FAIL),
    ],
)
def test_only_an_answer_that_says_so_is_a_failure(error: HoldfastError, expected: str) -> None:
    assert outcome_of(error) == expected


def test_a_mistake_of_the_harness_is_not_hidden_in_the_history() -> None:
    with pytest.raises(InvalidArgument):
        outcome_of(InvalidArgument("", reason="OUT_OF_RANGE"))


def test_the_value_of_a_payload() -> None:
    assert value_in(b"produce-1-7 \x00\xff rest") == "produce-1-7"
