"""Numbers of a history for plots: by second, and by fault. Pure."""

from collections import defaultdict
from dataclasses import dataclass
from statistics import median

from chaos.history import ACK, ENQUEUE, OK, Call, Story
from chaos.workloads.kinds import probed_shard

S = 1_000_000_000
MS = 1_000_000

Points = list[tuple[float, float]]  # seconds since the beginning, value


@dataclass(frozen=True)
class Band:
    """A fault or an operation, in seconds since the beginning."""

    what: str
    from_s: float
    to_s: float


@dataclass(frozen=True)
class Outage:
    """What followed a fault."""

    what: str
    at_s: float
    next_write_s: float | None  # until any write that was sent after it was acknowledged
    worst_shard_s: float | None  # the same of the shard for which it took the longest; None: never again


def throughput(story: Story, f: str, began_ns: int) -> Points:
    """Acknowledged calls by the second in which they were."""
    counts: dict[int, int] = defaultdict(int)
    for call in story.calls:
        if call.f == f and call.outcome == OK:
            counts[(call.ended_ns - began_ns) // S] += 1
    return [(float(second), float(counts.get(second, 0))) for second in range(max(counts, default=0) + 1)]


def latency_ms(story: Story, f: str, share: float, began_ns: int) -> Points:
    """A quantile of the calls that began in each second. One that was not answered took until its caller gave up."""
    took: dict[int, list[float]] = defaultdict(list)
    for call in story.calls:
        if call.f == f:
            took[(call.invoked_ns - began_ns) // S].append((call.ended_ns - call.invoked_ns) / MS)
    return [(float(second), quantile(values, share)) for second, values in sorted(took.items())]


def quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def bands(story: Story, began_ns: int) -> list[Band]:
    return [
        Band(f"{one.what} {' '.join(one.nodes)}".strip(), (one.from_ns - began_ns) / S, (one.to_ns - began_ns) / S)
        for one in story.windows()
    ]


def outages(story: Story, began_ns: int) -> list[Outage]:
    """Of each fault. Probes of each shard tell how long it was away."""
    answered = [call for call in story.calls if call.f == ENQUEUE and call.outcome == OK]
    by_shard: dict[int, list[Call]] = defaultdict(list)
    for call in answered:
        shard = probed_shard(call.queue)
        if shard is not None:
            by_shard[shard].append(call)
    found = []
    for window in story.windows():
        waits_s = [_wait_s(calls, window.from_ns) for calls in by_shard.values()]
        known = [wait_s for wait_s in waits_s if wait_s is not None]
        found.append(
            Outage(
                f"{window.what} {' '.join(window.nodes)}".strip(), (window.from_ns - began_ns) / S,
                _wait_s(answered, window.from_ns), max(known) if known and len(known) == len(waits_s) else None,
            )
        )  # fmt: skip
    return found


def _wait_s(calls: list[Call], from_ns: int) -> float | None:
    later = [call.ended_ns for call in calls if call.invoked_ns > from_ns]
    return (min(later) - from_ns) / S if later else None


def numbers(story: Story, began_ns: int) -> dict[str, object]:
    """All of it for the JSON beside the page."""
    waits = [one.worst_shard_s for one in outages(story, began_ns) if one.worst_shard_s is not None]
    return {
        "throughput": {f: throughput(story, f, began_ns) for f in (ENQUEUE, ACK)},
        "latency_ms": {
            f: {"p50": latency_ms(story, f, 0.5, began_ns), "p99": latency_ms(story, f, 0.99, began_ns)}
            for f in (ENQUEUE, ACK)
        },
        "bands": [vars(band) for band in bands(story, began_ns)],
        "outages": [vars(outage) for outage in outages(story, began_ns)],
        "worst_shard_s": {"median": round(median(waits), 3), "max": round(max(waits), 3)} if waits else None,
    }
