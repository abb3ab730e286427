"""Small arithmetic on samples."""

import math
from collections.abc import Mapping, Sequence


def percentile(values: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile: always a value that was measured; 0 if there is none."""
    if not values:
        return 0.0
    ordered = sorted(values)
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(0, int(rank) - 1)]


def histogram_percentile(buckets: Mapping[float, float], percent: float) -> float:
    """Of counts by upper limit, each with those below it, as Prometheus has them: within a bucket values are taken to
    be spread evenly. 0 if there is none."""
    limits = sorted(buckets)
    wanted = buckets[limits[-1]] * percent / 100 if limits else 0.0
    low, below = 0.0, 0.0
    for limit in limits:
        if buckets[limit] >= wanted > 0:
            share = (wanted - below) / (buckets[limit] - below)
            return limit if limit == math.inf else low + (limit - low) * share
        low, below = limit, buckets[limit]
    return 0.0


def median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    if not ordered:
        return 0.0
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
