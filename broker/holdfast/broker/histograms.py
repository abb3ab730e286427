"""Counts of how long things took, in steps wide enough for milliseconds and for days."""

from bisect import bisect_left

# Upper bounds: 1, 2, 5, 10, ... 100,000,000 ms. What is longer is counted behind the last one.
BOUNDS_MS = (*(step * 10**power for power in range(8) for step in (1, 2, 5)), 10**8)


class LatencyHistogram:
    """How often what took how long."""

    __slots__ = ("counts", "total_ms")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_MS) + 1)
        self.total_ms = 0

    def add(self, took_ms: int, times: int = 1) -> None:
        self.counts[bisect_left(BOUNDS_MS, took_ms)] += times
        self.total_ms += took_ms * times
