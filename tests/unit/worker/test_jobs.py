"""How a handler's end is told to the server."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from holdfast.client import ClaimedTask, Extended, GiveUp, NotJson, RetryAfter
from holdfast.client._options import Retry
from holdfast.client.context import RetryAt, Snooze
from holdfast.client.worker.jobs import (
    AttemptFailed,
    Job,
    Snoozed,
    describe,
    new_job,
    note_extended,
    outcome_of,
    timeout_of,
)


class OrderError(Exception):
    pass


class UnspeakableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def failure_of(error: BaseException) -> AttemptFailed:
    outcome = outcome_of(error)
    assert isinstance(outcome, AttemptFailed)
    return outcome


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:  # noqa: BLE001 - to have it with its traceback
        return caught


def test_an_exception_is_described_by_its_class_its_text_and_where_it_was_raised() -> None:
    reported = describe(raised(OrderError("no such order")))
    assert reported.type.endswith("OrderError")
    assert reported.message == "no such order"
    assert "in raised" in reported.traceback
    assert describe(ValueError("x")).type == "ValueError", "builtins need no module"


def test_an_exception_that_cannot_give_its_text_is_described_all_the_same() -> None:
    assert describe(raised(UnspeakableError())).type.endswith("UnspeakableError")


@pytest.mark.parametrize("text", ["x" * 100_000, "ä" * 100_000, "x" + "🙂" * 50_000, "\ud800" * 10])
def test_long_texts_are_cut_to_what_the_server_takes_and_stay_text(text: str) -> None:
    reported = describe(raised(ValueError(text)))
    for part in (reported.message, reported.traceback):
        assert len(part.encode()) <= 16 * 1024
    if len(text) > 20:
        assert " … " in reported.message


def test_the_beginning_and_the_end_of_a_long_text_are_kept() -> None:
    reported = describe(ValueError("begin" + "-" * 100_000 + "end"))
    assert reported.message.startswith("begin")
    assert reported.message.endswith("end")


def test_only_what_says_so_gives_up_at_once() -> None:
    assert failure_of(GiveUp("closed account")).dead
    assert not failure_of(ValueError()).dead
    assert not failure_of(SystemExit(1)).dead
    # An argument that is no JSON in a call *inside* a handler is a mistake like any other.
    assert not failure_of(NotJson("the arguments of send", "it is a set")).dead


def test_retry_after_sets_the_delay_and_nothing_else_does() -> None:
    assert failure_of(RetryAfter(1.5, "rate limited")).retry_delay_ms == 1_500
    assert failure_of(RetryAfter(timedelta(minutes=1))).retry_delay_ms == 60_000
    assert failure_of(ValueError()).retry_delay_ms is None


class Forgetful(RetryAfter):
    def __init__(self) -> None:
        Exception.__init__(self)

    def __str__(self) -> str:
        return "later"


def test_a_signal_without_its_delay_is_a_failure_like_any_other() -> None:
    assert failure_of(Forgetful()).retry_delay_ms is None


@pytest.mark.parametrize(
    ("delay_s", "delay_ms"),
    [
        (10**400, 365 * 86_400_000),
        (float("nan"), None),
        ("soon", None),
        (None, None),
        (-1, 0),
        (1e300, 365 * 86_400_000),
        (float("inf"), 365 * 86_400_000),
    ],
)
def test_a_delay_that_was_changed_later_is_put_right(delay_s: Any, delay_ms: int | None) -> None:
    retry, snooze = RetryAfter(1), Snooze(1)
    retry.delay_s = snooze.delay_s = delay_s
    assert failure_of(retry).retry_delay_ms == delay_ms
    if delay_ms is None:
        assert failure_of(snooze).retry_delay_ms is None, "a snooze without an end is a mistake"
    else:
        assert outcome_of(snooze) == Snoozed(delay_ms)


@pytest.mark.parametrize("signal", [RetryAfter, Snooze])
@pytest.mark.parametrize(
    ("delay_s", "kind", "shown"),
    [
        (-1, ValueError, "-1"),
        (timedelta(seconds=-1), ValueError, "-1.0"),
        (float("nan"), ValueError, "nan"),
        (float("inf"), ValueError, "inf"),
        ("soon", TypeError, "'soon'"),
        (None, TypeError, "None"),
        (True, TypeError, "True"),
    ],
)
def test_a_delay_that_is_none_is_refused_where_it_is_made(
    signal: type[Exception], delay_s: Any, kind: type[Exception], shown: str
) -> None:
    with pytest.raises(kind) as caught:
        signal(delay_s)
    assert str(caught.value).startswith(f"Expected {signal.__name__} with ")
    assert str(caught.value).endswith(f"but got {shown}.")


def test_a_moment_that_is_none_is_refused() -> None:
    with pytest.raises(TypeError, match="Expected RetryAt with a datetime, but got 5"):
        RetryAt(5)  # type: ignore[arg-type]  # on purpose


def test_a_snooze_is_no_failure() -> None:
    assert outcome_of(Snooze(1.5)) == Snoozed(1_500)
    assert outcome_of(Snooze(timedelta(minutes=1))) == Snoozed(60_000)
    assert outcome_of(Snooze(0)) == Snoozed(0)
    assert str(Snooze(3)) == "to be looked at again after 3 s"


def test_retry_at_sets_the_moment_and_needs_a_time_zone() -> None:
    noon = (datetime.now(UTC) + timedelta(days=30)).replace(hour=12, minute=0, second=0, microsecond=0)
    there = noon.astimezone(timezone(timedelta(hours=1)))
    failure = failure_of(RetryAt(there, "closed until then"))
    assert failure.retry_at_ms == noon.timestamp() * 1000
    assert (failure.retry_delay_ms, failure.dead, failure.error.message) == (None, False, "closed until then")
    assert failure_of(RetryAt(datetime(1960, 1, 1, tzinfo=UTC))).retry_at_ms == 0, "the past is now"
    assert failure_of(ValueError()).retry_at_ms is None
    with pytest.raises(ValueError, match="time zone"):
        RetryAt(datetime(2030, 1, 1))


@pytest.mark.parametrize("when", [datetime.max.replace(tzinfo=UTC), datetime.now(UTC) + timedelta(days=400)])
def test_a_moment_that_is_further_away_than_a_year_is_a_year(when: datetime) -> None:
    failure = failure_of(RetryAt(when, "closed until then"))
    assert (failure.retry_at_ms, failure.retry_delay_ms) == (None, 365 * 86_400_000)
    assert failure.error.message == "closed until then"


def test_a_moment_that_a_slower_clock_would_refuse_is_told_as_a_delay() -> None:
    """The server compares with its own clock, which may be a little behind."""
    left = timedelta(days=365) - timedelta(minutes=1)
    failure = failure_of(RetryAt(datetime.now(UTC) + left))
    assert failure.retry_at_ms is None
    assert failure.retry_delay_ms == pytest.approx(left / timedelta(milliseconds=1), abs=30_000)


def test_what_is_not_to_be_tried_again_is_listed_by_the_name_that_is_reported() -> None:
    odd: type[Exception] = type("Odd", (Exception,), {"__module__": "a.b"})
    for error in (OrderError(), ValueError(), OSError(), NotJson("it", "is a set"), odd()):
        kind = type(error)
        assert Retry(non_retryable=[kind]).policy().non_retryable == (describe(error).type,)


# --- deadlines ------------------------------------------------------------------------------------------------


def claim(timeout_ms: int | None, lease_ms: int, answered_s: float) -> ClaimedTask:
    return ClaimedTask(
        task_id="1", token=1, queue="q", type="t", timeout_ms=timeout_ms, lease_ms=lease_ms,
        lease_ends_s=answered_s + lease_ms / 1000,
    )  # fmt: skip


def job(timeout_ms: int | None, lease_ms: int = 30_000, answered_s: float = 100.0) -> Job:
    return new_job(claim(timeout_ms, lease_ms, answered_s), 30_000, asked_ms=30_000)


@pytest.mark.parametrize(
    ("timeout_ms", "left_ms", "answered_s", "deadline_s", "extend_at_s"),
    [
        (None, 30_000, 100.0, None, 110.0),
        (90_000, 30_000, 100.0, 190.0, 110.0),
        (30_000, 30_000, 100.0, 130.0, 110.0),
        (6_000, 6_000, 100.0, 106.0, 110.0),  # no heartbeat can extend it
        # The answer waited 20 s for a task, or for a leader.
        (6_000, 6_000, 120.0, 126.0, 130.0),
        (90_000, 30_000, 120.0, 210.0, 130.0),
        (None, 30_000, 120.0, None, 130.0),
        # It was claimed 15 s before the answer that arrived: the first one was lost.
        (90_000, 15_000, 115.0, 190.0, 120.0),
    ],
)
def test_a_deadline_is_counted_from_when_the_task_was_claimed(
    timeout_ms: int | None, left_ms: int, answered_s: float, deadline_s: float | None, extend_at_s: float
) -> None:
    made = job(timeout_ms, left_ms, answered_s)
    assert made.deadline_s == (None if deadline_s is None else pytest.approx(deadline_s))
    assert made.extend_at_s == pytest.approx(extend_at_s)


def test_a_lease_that_is_extended_as_asked_for_tells_nothing_of_a_deadline() -> None:
    for timeout_ms, deadline_s in ((None, None), (90_000, 190.0)):
        extended = job(timeout_ms)
        note_extended(extended, Extended(30_000, 140.0))
        assert (extended.lease_ends_s, extended.extend_at_s, extended.deadline_s) == (140.0, 120.0, deadline_s)


def test_a_lease_that_a_step_of_shard_time_has_shortened_is_extended_sooner() -> None:
    shortened = job(None)
    note_extended(shortened, Extended(6_000, 116.0))
    assert (shortened.lease_ends_s, shortened.extend_at_s, shortened.deadline_s) == (116.0, 112.0, None)


def test_a_lease_that_is_extended_by_less_ends_with_the_attempt() -> None:
    unknown = job(None)
    note_extended(unknown, Extended(5_000, 115.0, ends_attempt=True))
    assert (unknown.lease_ends_s, unknown.deadline_s, unknown.extend_at_s) == (115.0, 115.0, 120.0)
    known = job(45_000)
    note_extended(known, Extended(15_000, 144.8, ends_attempt=True))
    assert (known.lease_ends_s, known.deadline_s) == (145.0, 145.0), "the call took 0.2 s, and that is not lost"


def test_a_timeout_says_how_long_it_was_and_what_the_handler_did() -> None:
    known = timeout_of(job(1_500), raised(OrderError()))
    assert (known.error.type, known.dead) == ("TaskTimeout", False)
    assert "1.5 s" in known.error.message
    assert "in raised" in known.error.traceback
    assert timeout_of(job(None)).error.message == "The attempt took longer than its timeout."
