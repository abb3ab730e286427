"""How a handler's end is told to the server."""

from typing import Any

import pytest

from holdfast.client import GiveUp, NotJson, RetryAfter
from holdfast.client.worker.jobs import describe, failure_of

YEAR_MS = 365 * 86_400_000


class OrderError(Exception):
    pass


class UnspeakableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:  # noqa: BLE001 - to have it with its traceback
        return caught


def test_an_exception_is_described_by_its_class_its_text_and_where_it_was_raised() -> None:
    told = describe(raised(OrderError("no such order")))
    assert told.type.endswith("OrderError")
    assert told.message == "no such order"
    assert "in raised" in told.traceback
    assert describe(ValueError("x")).type == "ValueError", "builtins need no module"


def test_an_exception_that_cannot_give_its_text_is_described_all_the_same() -> None:
    assert describe(raised(UnspeakableError())).type.endswith("UnspeakableError")


@pytest.mark.parametrize("text", ["x" * 100_000, "ä" * 100_000, "x" + "🙂" * 50_000, "\ud800" * 10])
def test_long_texts_are_cut_to_what_the_server_takes_and_stay_text(text: str) -> None:
    told = describe(raised(ValueError(text)))
    for part in (told.message, told.traceback):
        assert len(part.encode()) <= 16 * 1024
    if len(text) > 20:
        assert " … " in told.message


def test_the_beginning_and_the_end_of_a_long_text_are_kept() -> None:
    told = describe(ValueError("begin" + "-" * 100_000 + "end"))
    assert told.message.startswith("begin")
    assert told.message.endswith("end")


def test_only_what_says_so_gives_up_at_once() -> None:
    assert failure_of(GiveUp("closed account")).dead
    assert not failure_of(ValueError()).dead
    assert not failure_of(SystemExit(1)).dead
    # An argument that is no JSON in a call *inside* a handler is a mistake like any other.
    assert not failure_of(NotJson("the arguments of send", "it is a set")).dead


def test_retry_after_sets_the_delay_and_nothing_else_does() -> None:
    assert failure_of(RetryAfter(1.5, "rate limited")).retry_delay_ms == 1_500
    assert failure_of(RetryAfter(-1)).retry_delay_ms == 0
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
        (1e300, 365 * 86_400_000),
        (float("inf"), 365 * 86_400_000),
    ],
)
def test_a_delay_that_is_none_or_too_long_is_put_right(delay_s: Any, delay_ms: int | None) -> None:
    assert failure_of(RetryAfter(delay_s)).retry_delay_ms == delay_ms
