"""What a scrape is told of queues."""

from collections.abc import Iterable, Iterator

from holdfast.broker.metrics import QUEUES_MAX, Latencies, QueueFigures
from holdfast.broker.replica.shard import Shard

OLDEST_QUEUES_MAX = 100  # for which a scrape looks for the oldest ready task and claim: that takes reads of the state


def queue_figures(shards: Iterable[Shard]) -> Iterator[QueueFigures]:
    """Of the shards that this node leads: a follower's would count everything twice. Other work may be done between
    two of them, so what a shard is has to be looked at again."""
    reads_left = OLDEST_QUEUES_MAX
    for shard in shards:
        if not shard.serves:
            continue
        policies = shard.policies
        for name in shard.reader.queue_names(QUEUES_MAX):
            if shard.policies is not policies:
                break
            queue = shard.queue(name)
            if queue is None:
                continue
            policy = None if policies is None else policies.of(name)
            tasks = {
                "ready": queue.ready,
                "claimed": queue.claimed,
                "delayed": queue.delayed,
                "retrying": queue.retrying,
                "dead": queue.dead,
            }
            totals = {
                "enqueued": queue.enqueued_total,
                "claimed": queue.claimed_total,
                "succeeded": queue.succeeded_total,
                "failed": queue.failed_total,
                "expired": queue.expired_total,
                "cancelled": queue.cancelled_total,
                "dead": queue.dead_total,
            }
            oldest_s: float | None = 0.0
            reads_left -= bool(queue.ready or queue.claimed)
            if queue.ready:
                oldest_s = shard.oldest_ready_age_ms(name, queue) / 1000 if reads_left >= 0 else None
            alert_at = 0 if policy is None else policy.dead_alert_at
            yield QueueFigures(
                name.decode(),
                tasks,
                totals,
                oldest_s,
                is_paused=policy is not None and policy.paused,
                has_dead_alert=queue.dead >= alert_at if alert_at else None,
                oldest_claim_seconds=shard.oldest_claim_age_ms(name) / 1000 if reads_left >= 0 else None,
            )


def latencies(shards: Iterable[Shard]) -> Iterator[Latencies]:
    for shard in shards:
        for queue, name, ready, claimed in list(shard.stats.latencies()) if shard.serves else ():
            yield Latencies(
                queue.decode(), name.decode(), ready.counts, ready.total_ms, claimed.counts, claimed.total_ms
            )
