"""Retry times and verdicts."""

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from holdfast.broker.decisions import BackOff, expire_verdict, fail_verdict
from holdfast.machine.rows import ATTEMPTS_SPENT, CLAIMED, CLAIMS_SPENT, NOT_DEAD, WORKER_GAVE_UP, Execution

PLAIN = BackOff(base_ms=1000, factor=2.0, cap_ms=60_000, jitter=0.0)


def middle() -> float:
    return 0.5


def task(**changes: Any) -> Execution:
    fields = {"claims": 1, "failures": 0, "max_attempts": 3, "max_claims": 5} | changes
    return Execution(
        queue=b"mail", tenant=b"", request_id=b"", worker=b"w", state=CLAIMED, priority=5, cancel_requested=0,
        dead_reason=0, had_follow_ups=0, sequence=1, token=1, timer_ms=1, enqueued_ms=1, changed_ms=1,
        result_ttl_ms=0, size_bytes=0, **fields,
    )  # fmt: skip


def test_the_delay_doubles_up_to_its_cap() -> None:
    delays = [PLAIN.delay_ms(failures, middle) for failures in range(1, 9)]
    assert delays == [1000, 2000, 4000, 8000, 16_000, 32_000, 60_000, 60_000]


@pytest.mark.parametrize("failures", [-1, 0, 1])
def test_before_the_second_failure_the_delay_is_the_base(failures: int) -> None:
    assert PLAIN.delay_ms(failures, middle) == 1000


@pytest.mark.parametrize("failures", [65, 66, 1000, 2**32 - 1])
@pytest.mark.parametrize("factor", [1.0, 1.5, 2.0, 100.0])
def test_huge_failure_counts_are_no_trouble(failures: int, factor: float) -> None:
    back_off = BackOff(base_ms=1000, factor=factor, cap_ms=60_000, jitter=0.0)
    assert back_off.delay_ms(failures, middle) == (1000 if factor == 1 else 60_000)


def test_jitter_goes_both_ways() -> None:
    back_off = BackOff(base_ms=1000, factor=2.0, cap_ms=60_000, jitter=0.2)
    assert back_off.delay_ms(1, lambda: 0.0) == 800
    assert back_off.delay_ms(1, middle) == 1000
    assert 1199 <= back_off.delay_ms(1, lambda: 0.999999) <= 1200


@given(
    st.integers(0, 10**6), st.floats(1, 100), st.integers(0, 10**7), st.floats(0, 1), st.integers(0, 2**32),
    st.floats(0, 1, exclude_max=True),
)  # fmt: skip
def test_a_delay_stays_within_its_jitter(
    base_ms: int, factor: float, cap_ms: int, jitter: float, failures: int, drawn: float
) -> None:
    plain_ms = BackOff(base_ms, factor, cap_ms, 0.0).delay_ms(failures, middle)
    delay_ms = BackOff(base_ms, factor, cap_ms, jitter).delay_ms(failures, lambda: drawn)
    assert delay_ms <= cap_ms
    assert min(base_ms, cap_ms) <= plain_ms <= cap_ms
    assert plain_ms * (1 - jitter) - 1 <= delay_ms <= (plain_ms + 1) * (1 + jitter)
    assert delay_ms >= 0


@pytest.mark.parametrize(
    ("failures", "claims", "verdict"),
    [
        (1, 1, NOT_DEAD),  # this is the second of three attempts
        (2, 1, ATTEMPTS_SPENT),
        (3, 1, ATTEMPTS_SPENT),
        (1, 4, NOT_DEAD),
        (1, 5, CLAIMS_SPENT),
        (2, 5, ATTEMPTS_SPENT),  # both are spent: the attempts are what the producer asked about
    ],
)
def test_a_failure_is_the_end_at_the_limit(failures: int, claims: int, verdict: int) -> None:
    assert fail_verdict(task(failures=failures, claims=claims), gave_up=False) == verdict


def test_a_worker_that_gives_up_ends_the_task_whatever_is_left() -> None:
    assert fail_verdict(task(), gave_up=True) == WORKER_GAVE_UP
    assert fail_verdict(task(failures=2, claims=5), gave_up=True) == WORKER_GAVE_UP


@pytest.mark.parametrize(("claims", "verdict"), [(1, NOT_DEAD), (4, NOT_DEAD), (5, CLAIMS_SPENT), (6, CLAIMS_SPENT)])
def test_an_expiry_counts_claims_only(claims: int, verdict: int) -> None:
    assert expire_verdict(task(failures=2, claims=claims)) == verdict
