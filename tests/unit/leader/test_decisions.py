"""Retry times and verdicts."""

from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from holdfast.broker.config import BrokerConfig
from holdfast.broker.leader.decisions import expire_verdict, fail_verdict
from holdfast.broker.policy.policies import default_policy
from holdfast.broker.policy.retry_delays import SHAPES, RetryDelays
from holdfast.broker.policy.retry_rules import RetryRules, merge
from holdfast.machine.rows import (
    ATTEMPTS_SPENT,
    CLAIMED,
    CLAIMS_SPENT,
    NON_RETRYABLE,
    NOT_DEAD,
    SUSPECT,
    WORKER_GAVE_UP,
    Execution,
)
from holdfast.proto.v1 import tasks_pb2 as pb

PLAIN = RetryDelays(base_ms=1000, factor=2.0, cap_ms=60_000, jitter=0.0)
QUEUE = replace(default_policy(BrokerConfig()), retry=PLAIN, non_retryable=frozenset(("BadInput", "app.Gone")))


def middle() -> float:
    return 0.5


def task(**changes: Any) -> Execution:
    fields = {"flags": 0, "claims": 1, "failures": 0, "max_attempts": 3, "max_claims": 5} | changes
    return Execution(
        queue=b"mail", tenant=b"", request_id=b"", type=b"t", limit_key=b"", unique_key=b"", worker=b"w",
        state=CLAIMED, priority=5, dead_reason=0, sequence=1, token=1, timer_ms=1, start_by_ms=0,
        enqueued_ms=1, changed_ms=1, ready_since_ms=1, result_ttl_ms=0, size_bytes=0, timeout_ms=0, **fields,
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
    delays = RetryDelays(base_ms=1000, factor=factor, cap_ms=60_000, jitter=0.0)
    assert delays.delay_ms(failures, middle) == (1000 if factor == 1 else 60_000)


def test_jitter_goes_both_ways() -> None:
    delays = RetryDelays(base_ms=1000, factor=2.0, cap_ms=60_000, jitter=0.2)
    assert delays.delay_ms(1, lambda: 0.0) == 800
    assert delays.delay_ms(1, middle) == 1000
    assert 1199 <= delays.delay_ms(1, lambda: 0.999999) <= 1200


@pytest.mark.parametrize(
    ("shape", "delays_ms"),
    [
        ("linear", [1000, 2000, 3000, 4000, 5000]),
        ("fixed", [1000, 1000, 1000, 1000, 1000]),
        ("exponential", [1000, 2000, 4000, 8000, 10_000]),
        ("of a newer version", [1000, 2000, 4000, 8000, 10_000]),
    ],
)
def test_each_shape_grows_in_its_own_way(shape: str, delays_ms: list[int]) -> None:
    delays = RetryDelays(base_ms=1000, factor=2.0, cap_ms=10_000, jitter=0.0, shape=shape)
    assert [delays.delay_ms(failures, middle) for failures in range(1, 6)] == delays_ms
    assert delays.delay_ms(0, middle) == 1000
    assert delays.delay_ms(2**32, middle) == (1000 if shape == "fixed" else 10_000)


@given(
    st.integers(0, 10**6), st.floats(1, 100), st.integers(0, 10**7), st.floats(0, 1), st.integers(0, 2**32),
    st.floats(0, 1, exclude_max=True), st.sampled_from(SHAPES),
)  # fmt: skip
def test_a_delay_stays_within_its_jitter(
    base_ms: int, factor: float, cap_ms: int, jitter: float, failures: int, drawn: float, shape: str
) -> None:
    plain_ms = RetryDelays(base_ms, factor, cap_ms, 0.0, shape).delay_ms(failures, middle)
    delay_ms = RetryDelays(base_ms, factor, cap_ms, jitter, shape).delay_ms(failures, lambda: drawn)
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
def test_the_death_of_a_worker_counts_claims_and_only_of_a_task_that_was_alone(claims: int, verdict: int) -> None:
    assert expire_verdict(task(failures=2, claims=claims, flags=SUSPECT)) == verdict
    assert expire_verdict(task(failures=2, claims=claims)) == NOT_DEAD


# Rules of one task


def test_without_rules_of_its_own_a_task_has_those_of_its_queue() -> None:
    rules = RetryRules(PLAIN, QUEUE.non_retryable)
    assert merge(QUEUE, None) == rules
    assert merge(QUEUE, pb.RetryPolicy()) == rules


def test_what_a_task_says_counts_field_by_field() -> None:
    assert merge(QUEUE, pb.RetryPolicy(base_ms=5)).delays == replace(PLAIN, base_ms=5)
    assert merge(QUEUE, pb.RetryPolicy(base_ms=0)).delays == replace(PLAIN, base_ms=0), "0 is said too"
    assert merge(QUEUE, pb.RetryPolicy(factor=3)).delays == replace(PLAIN, factor=3.0)
    assert merge(QUEUE, pb.RetryPolicy(cap_ms=7)).delays == replace(PLAIN, cap_ms=7)
    assert merge(QUEUE, pb.RetryPolicy(jitter=0.5)).delays == replace(PLAIN, jitter=0.5)
    for shape, name in ((1, "exponential"), (2, "linear"), (3, "fixed"), (9, "exponential")):
        assert merge(QUEUE, pb.RetryPolicy(shape=shape)).delays.shape == name  # type: ignore[arg-type]


def test_errors_that_the_task_or_its_queue_lists_are_listed() -> None:
    assert merge(QUEUE, pb.RetryPolicy(non_retryable=["X"])).non_retryable == {"X", "BadInput", "app.Gone"}


@pytest.mark.parametrize("extreme", [-(2**63), 2**63 - 1])
def test_a_task_without_sense_waits_all_the_same(extreme: int) -> None:
    retry = pb.RetryPolicy(base_ms=extreme, cap_ms=extreme, factor=float("nan"), jitter=float("nan"))
    assert 0 <= merge(QUEUE, retry).delays.delay_ms(9, lambda: 0.9) <= 11 * 366 * 24 * 3600 * 1000


@pytest.mark.parametrize(
    ("error_type", "verdict"),
    [
        ("BadInput", NON_RETRYABLE),
        ("app.errors.BadInput", NON_RETRYABLE),
        ("app.Gone", NON_RETRYABLE),
        ("Gone", NOT_DEAD),
        ("other.app.Gone", NOT_DEAD),
        ("badinput", NOT_DEAD),
        ("BadInput.Inner", NOT_DEAD),
        ("NotBadInput", NOT_DEAD),
        ("", NOT_DEAD),
    ],
)
def test_an_error_that_is_listed_is_the_end(error_type: str, verdict: int) -> None:
    rules = merge(QUEUE, None)
    assert fail_verdict(task(), gave_up=False, error_type=error_type, rules=rules) == verdict
    assert fail_verdict(task(), gave_up=True, error_type=error_type, rules=rules) == WORKER_GAVE_UP
    spent = fail_verdict(task(failures=2), gave_up=False, error_type=error_type, rules=rules)
    assert spent == (verdict or ATTEMPTS_SPENT), "what cannot be tried again is told, also at the last attempt"


def test_a_worker_has_the_last_word_on_the_time() -> None:
    rules = merge(QUEUE, None)
    assert rules.retry_at_ms(5000, 2, middle) == 7000
    assert rules.retry_at_ms(5000, 2, middle, delay_ms=0) == 5000
    assert rules.retry_at_ms(5000, 2, middle, delay_ms=99_000) == 104_000, "no cap of a queue holds for it"
    assert rules.retry_at_ms(5000, 2, middle, at_ms=9000) == 9000
    assert rules.retry_at_ms(5000, 2, middle, at_ms=4000) == 5000, "what is past is now"
