"""Counts of durations in steps."""

import pytest

from holdfast.broker.histograms import BOUNDS_MS, LatencyHistogram


def test_bounds_are_what_the_api_says() -> None:
    assert BOUNDS_MS[:6] == (1, 2, 5, 10, 20, 50)
    assert BOUNDS_MS[-2:] == (50_000_000, 100_000_000)
    assert list(BOUNDS_MS) == sorted(set(BOUNDS_MS))


@pytest.mark.parametrize(
    ("took_ms", "place"), [(0, 0), (1, 0), (2, 1), (3, 2), (5, 2), (6, 3), (10**8, -2), (10**8 + 1, -1), (10**12, -1)]
)
def test_a_duration_counts_below_the_first_bound_that_holds_it(took_ms: int, place: int) -> None:
    histogram = LatencyHistogram()
    histogram.add(took_ms)
    expected = [0] * (len(BOUNDS_MS) + 1)
    expected[place] = 1
    assert (histogram.counts, histogram.total_ms) == (expected, took_ms)
