"""What shards tell of one queue or one worker, put together. The messages are those of the wire API, which this package
does not know: they describe themselves.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from holdfast.routing.splitting import outcomes_of


def sum_parts(kind: Any, parts: Iterable[tuple[Sequence[int], Any]], count: int) -> Any:
    """The response of this kind about `count` queues, from what shards answered about some of them each, as of
    `join_parts`. If a shard cannot say, neither can we."""
    reported: list[list[Any]] = [[] for _ in range(count)]
    for positions, answer in parts:
        for index, outcome in zip(positions, outcomes_of(kind, answer, positions), strict=True):
            reported[index].append(outcome)
    return kind(outcomes=[_sum_outcomes(outcomes) for outcomes in reported])


def _sum_outcomes(outcomes: Sequence[Any]) -> Any:
    """A queue need not have been used on each of its shards: one that knows it is enough."""
    counted = [outcome for outcome in outcomes if outcome.HasField("counts")]
    refused = next((outcome for outcome in outcomes if outcome.rejection.reason not in ("", "QUEUE_NOT_FOUND")), None)
    if refused is not None or not counted:
        return refused or outcomes[0]
    for outcome in counted[1:]:
        add_counts(counted[0].counts, outcome.counts)
    return counted[0]


def add_counts(into: Any, more: Any) -> None:
    """Of a queue (QueueCounts): numbers and rates are added up, what holds for one shard holds for the queue, and the
    oldest task or claim of all is the oldest."""
    for field in into.DESCRIPTOR.fields:
        here, there = getattr(into, field.name), getattr(more, field.name)
        if field.name == "latencies":
            _add_latencies(here, there)
        elif field.name in ("oldest_ready_age_ms", "oldest_claim_age_ms"):
            setattr(into, field.name, max(here, there))
        elif isinstance(there, bool):
            setattr(into, field.name, here or there)
        elif field.name != "queue":
            setattr(into, field.name, here + there)


def add_worker(into: Any, more: Any) -> None:
    """Of a worker (WorkerInfo), which may be known at several shards."""
    into.claims += more.claims
    into.last_seen_ms = max(into.last_seen_ms, more.last_seen_ms)
    into.is_waiting = into.is_waiting or more.is_waiting
    if more.state:  # known at one shard, the home of its name
        into.state, into.slots, into.version, into.desired = more.state, more.slots, more.version, more.desired
    queues = sorted({*into.queues, *more.queues})
    del into.queues[:]
    into.queues.extend(queues)


def _add_latencies(into: Any, more: Any) -> None:
    """Histograms, by the type of task."""
    known = {total.type: total for total in into}
    for latency in more:
        found = known.get(latency.type)
        if found is None:
            into.add().CopyFrom(latency)
            continue
        _add_each(found.ready_to_claim, latency.ready_to_claim)
        _add_each(found.claim_to_ack, latency.claim_to_ack)
        found.ready_to_claim_ms_total += latency.ready_to_claim_ms_total
        found.claim_to_ack_ms_total += latency.claim_to_ack_ms_total


def _add_each(into: Any, more: Any) -> None:
    """Of histograms with the same bounds; one that ends earlier has nothing in what follows."""
    both = min(len(into), len(more))
    for index in range(both):
        into[index] += more[index]
    into.extend(more[both:])
