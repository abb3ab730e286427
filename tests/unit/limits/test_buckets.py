"""Token buckets: never above the bound, nothing lost, and the same after every store and load."""

from fractions import Fraction
from itertools import accumulate

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from holdfast.limits.buckets import NEVER_MS, TOKEN_MICRO, Bucket, Level, Rate, part_of

START_MS = 1_700_000_000_000

rates = st.builds(Rate, st.integers(0, 5_000_000), st.integers(0, 50))
# What happens, how many milliseconds later (earlier if below 0), and with how many tokens.
steps = st.lists(
    st.tuples(
        st.sampled_from(["take", "take", "take", "drain", "store", "give_back"]),
        st.one_of(st.just(0), st.integers(-50, 50), st.integers(0, 20_000)),
        st.integers(1, 8),
    ),
    max_size=25,
)


def assert_within_bound(rate: Rate, grants: list[tuple[int, int]]) -> None:
    """In every window that begins and ends with a grant: the others give no more in a longer time."""
    sums = [0, *accumulate(count for _, count in grants)]
    for first, (from_ms, _) in enumerate(grants):
        for last in range(first, len(grants)):
            gained_milli = rate.per_second_milli * (grants[last][0] - from_ms)
            assert sums[last + 1] - sums[first] <= rate.burst + Fraction(gained_milli, TOKEN_MICRO)


@given(rates, steps)
def test_no_window_gives_more_than_burst_and_rate(rate: Rate, history: list[tuple[str, int, int]]) -> None:
    bucket, now_ms = Bucket(rate), START_MS
    grants: list[tuple[int, int]] = []
    for what, later_ms, count in history:
        now_ms += later_ms
        if what == "store":
            bucket = Bucket(rate, bucket.level(now_ms))
        elif what == "give_back":
            if grants:
                taken_ms, taken = grants.pop(count % len(grants))
                bucket.give_back(taken, taken_ms, now_ms)
        else:
            wanted = count if what == "take" else bucket.available(now_ms)
            enough = bucket.available(now_ms) >= wanted
            assert bucket.take(wanted, now_ms) == enough
            if enough and wanted:
                grants.append((bucket.level(0).at_ms, wanted))
    assert_within_bound(rate, sorted(grants))


@given(rates, steps)
def test_a_stored_level_goes_on_exactly(rate: Rate, history: list[tuple[str, int, int]]) -> None:
    kept, stored, now_ms = Bucket(rate), Bucket(rate), START_MS
    for _, later_ms, count in history:
        now_ms += abs(later_ms)
        stored = Bucket(rate, stored.level(now_ms - 3))
        assert stored.take(count, now_ms) == kept.take(count, now_ms)
        # To look at a bucket changes nothing, nor does the time at which it is looked at.
        kept.available(now_ms + 10_000)
        kept.level(now_ms + 10_000)
        assert stored.level(now_ms) == kept.level(now_ms)
        assert stored.full_at_ms() >= kept.full_at_ms()
        assert stored.ready_at_ms(now_ms, count) == kept.ready_at_ms(now_ms, count)


@given(st.integers(1, 3_000_000), st.integers(1, 50), st.integers(0, 7))
@settings(max_examples=40)
def test_steady_demand_uses_the_whole_rate(per_second_milli: int, burst: int, late_ms: int) -> None:
    """One that takes what is there when its timer fires loses nothing that the burst can hold until then."""
    rate = Rate(per_second_milli, burst)
    bucket, now_ms, taken = Bucket(rate, Level(0, START_MS)), START_MS, 0
    for _ in range(100):
        now_ms = bucket.ready_at_ms(now_ms) + late_ms
        count = bucket.available(now_ms)
        assert count >= 1
        assert bucket.take(count, now_ms)
        taken += count
    gained_micro = (now_ms - START_MS) * per_second_milli
    if TOKEN_MICRO + per_second_milli * (late_ms + 1) <= burst * TOKEN_MICRO:
        assert taken == gained_micro // TOKEN_MICRO
    elif per_second_milli * (late_ms + 1) <= TOKEN_MICRO // 20:
        assert taken * TOKEN_MICRO >= gained_micro * 95 // 100, "a burst of 1 is enough for what is slow"


@given(rates, st.integers(0, 60 * TOKEN_MICRO), st.integers(1, 60), st.integers(-100, 100))
def test_ready_is_the_first_millisecond_with_that_many(rate: Rate, micro: int, count: int, after_ms: int) -> None:
    bucket, now_ms = Bucket(rate, Level(micro, START_MS)), START_MS + after_ms
    ready_ms = bucket.ready_at_ms(now_ms, count)
    if ready_ms == NEVER_MS:
        assert count > rate.burst or rate.per_second_milli == 0
        assert bucket.available(START_MS + 10**9) < count
        return
    assert bucket.available(ready_ms) >= count
    assert ready_ms >= now_ms
    if ready_ms > max(now_ms, START_MS):
        assert bucket.available(ready_ms - 1) < count


def test_full_is_when_the_row_can_go() -> None:
    rate = Rate(300, 2)  # 3 tokens in 10 seconds
    bucket = Bucket(rate)
    assert bucket.full_at_ms() <= START_MS
    assert bucket.take(1, START_MS)
    full_ms = bucket.full_at_ms()
    assert full_ms == START_MS + 3334
    assert bucket.level(full_ms - 1).level_micro < 2 * TOKEN_MICRO
    assert bucket.level(full_ms) == Bucket(rate).level(full_ms)


def test_a_clock_that_repeats_or_goes_back_makes_no_tokens() -> None:
    bucket = Bucket(Rate(1_000, 3))
    assert bucket.take(3, START_MS)
    for now_ms in [START_MS, START_MS - 50_000, START_MS, 0] * 5:
        assert bucket.available(now_ms) == 0
        assert not bucket.take(1, now_ms)
        assert bucket.level(now_ms) == Level(0, START_MS)
    assert bucket.available(START_MS + 1_000) == 1


def test_a_take_that_fails_takes_nothing() -> None:
    bucket = Bucket(Rate(1_000, 3))
    assert not bucket.take(4, START_MS)
    assert bucket.take(3, START_MS)


def test_tokens_given_back_at_once_are_there_again() -> None:
    bucket = Bucket(Rate(1_000, 10))
    assert bucket.take(10, START_MS)
    bucket.give_back(4, START_MS, START_MS)
    assert bucket.available(START_MS) == 4
    bucket.give_back(5, START_MS, START_MS + 2_000)
    assert bucket.available(START_MS + 2_000) == 4 + 2 + 3, "less what was gained meanwhile"


def test_tokens_given_back_late_do_not_come_twice() -> None:
    bucket = Bucket(Rate(1_000, 10))
    assert bucket.take(10, START_MS)
    later_ms = START_MS + 10_000
    assert bucket.take(10, later_ms)
    bucket.give_back(10, START_MS, later_ms)
    assert bucket.available(later_ms) == 0


def test_a_bucket_takes_back_no_more_than_it_holds() -> None:
    bucket = Bucket(Rate(1_000, 10))
    bucket.give_back(5, START_MS, START_MS)
    assert bucket.available(START_MS) == 10


def test_tokens_of_a_former_rate_do_not_come_back() -> None:
    bucket = Bucket(Rate(1_000_000, 10))
    assert bucket.take(10, START_MS)
    bucket.change_rate(Rate(1, 10), START_MS + 10)
    assert bucket.take(10, START_MS + 10)
    bucket.give_back(10, START_MS, START_MS + 10)
    assert bucket.available(START_MS + 10) == 0


def test_a_level_above_the_burst_is_cut() -> None:
    assert Bucket(Rate(1_000, 3), Level(9 * TOKEN_MICRO, START_MS)).available(START_MS) == 3


@given(st.lists(st.tuples(rates, st.integers(0, 3_000), st.booleans()), min_size=1, max_size=30))
def test_a_change_of_the_rate_makes_no_tokens(changes: list[tuple[Rate, int, bool]]) -> None:
    bucket, now_ms = Bucket(changes[0][0]), START_MS
    burst, gained_micro, taken = bucket.rate.burst, 0, 0
    for rate, later_ms, drained in changes:
        gained_micro += bucket.rate.per_second_milli * later_ms
        now_ms += later_ms
        if drained:
            count = bucket.available(now_ms)
            assert bucket.take(count, now_ms)
            taken += count
        before = bucket.available(now_ms)
        bucket.change_rate(rate, now_ms)
        assert bucket.available(now_ms) == min(before, rate.burst)
        assert taken + bucket.available(now_ms) <= burst + gained_micro // TOKEN_MICRO


def test_after_a_change_the_new_rate_counts_from_the_change() -> None:
    bucket = Bucket(Rate(1_000, 5), Level(0, START_MS))
    bucket.change_rate(Rate(10_000, 20), START_MS + 2_000)
    assert bucket.available(START_MS + 2_000) == 2
    assert bucket.available(START_MS + 3_000) == 12
    assert bucket.available(START_MS + 60_000) == 20


@pytest.mark.parametrize("rate", [Rate(0, 0), Rate(1_000, 0), Rate(0, 5)])
def test_a_rate_of_nothing_is_never_ready(rate: Rate) -> None:
    bucket = Bucket(rate)
    assert bucket.take(rate.burst, START_MS)
    assert bucket.ready_at_ms(START_MS) == NEVER_MS
    assert not bucket.take(1, START_MS + 10**9)


@given(rates, st.lists(st.integers(0, 1_000_000), max_size=8))
def test_parts_of_a_rate_stay_within_it(rate: Rate, amounts_milli: list[int]) -> None:
    granted: list[int] = []
    for amount_milli in amounts_milli:
        granted.append(min(amount_milli, rate.per_second_milli - sum(granted)))
    parts = [part_of(rate, amount_milli) for amount_milli in granted]
    assert sum(part.per_second_milli for part in parts) <= rate.per_second_milli
    assert sum(part.burst for part in parts) <= rate.burst + len(parts)
    for part, amount_milli in zip(parts, granted, strict=True):
        assert part.per_second_milli == amount_milli
        assert (part.burst > 0) == (amount_milli > 0 and rate.burst > 0)
    assert part_of(rate, rate.per_second_milli) == (rate if rate.per_second_milli else Rate(0, 0))
