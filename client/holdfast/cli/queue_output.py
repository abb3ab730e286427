"""What the commands about queues, workers and discarded tasks print for people."""

from collections.abc import Sequence

from holdfast.cli import output
from holdfast.cli.output import Shown
from holdfast.cli.times import shown_duration, shown_instant, shown_latency
from holdfast.client import Discard, Histogram, QueueStats, TaskInfo, TypeLatency, WorkerInfo, WorkerState

_STATES = ("ready", "claimed", "delayed", "retrying", "dead")
_TYPES_SHOWN_MAX = 20
_QUANTILES = (0.5, 0.95, 0.99)


def print_queues(stats: Sequence[QueueStats]) -> None:
    rows = [(marked_name(queue), *_state_cells(queue)) for queue in stats]
    output.show([output.table(("queue", *_STATES, "oldest"), rows)])


def stats_parts(stats: Sequence[QueueStats]) -> list[Shown]:
    """One screen: what there is now, how much comes and goes, how long it takes, what has happened so far."""
    now = [(queue.queue, *_state_cells(queue), f"{queue.waiting_reserves:,}") for queue in stats]
    parts = [output.table(("queue", *_STATES, "oldest", "waiting"), now), output.text("")]
    rates = [
        (queue.queue, *map(shown_rate, (queue.enqueued_per_second, queue.claimed_per_second)),
         *map(shown_rate, (queue.succeeded_per_second, queue.failed_per_second)))
        for queue in stats
    ]  # fmt: skip
    parts += [output.table(("per second", "enqueued", "claimed", "succeeded", "failed"), rates), output.text("")]
    parts += _latency_parts(stats)
    names = ("total of", "enqueued", "claimed", "succeeded", "failed", "expired", "cancelled", "dead")
    parts.append(output.table(names, [_total_cells(queue) for queue in stats]))
    return parts + _mark_parts(stats)


def _latency_parts(stats: Sequence[QueueStats]) -> list[Shown]:
    """The types that were claimed most often, in the order of the queues."""
    found = [(queue.queue, latency) for queue in stats for latency in queue.latencies if latency.ready_to_claim.count]
    if not found:
        return []
    most = sorted((latency.ready_to_claim.count for _, latency in found), reverse=True)
    least = most[min(len(most), _TYPES_SHOWN_MAX) - 1]
    shown = [pair for pair in found if pair[1].ready_to_claim.count >= least][:_TYPES_SHOWN_MAX]
    names = ("queue", "type", "wait p50", "p95", "p99", "run p50", "p95", "p99")
    parts: list[Shown] = [output.table(names, [_latency_cells(*pair) for pair in shown], left=2)]
    if len(found) > len(shown):
        parts.append(output.text(f"… and {len(found) - len(shown):,} types that are claimed less often.", "dim"))
    return [*parts, output.text("")]


def _latency_cells(queue: str, latency: TypeLatency) -> tuple[str, ...]:
    return (queue, latency.type, *_quantiles(latency.ready_to_claim), *_quantiles(latency.claim_to_ack))


def _quantiles(histogram: Histogram) -> list[str]:
    return [shown_latency(histogram.quantile_ms(share)) for share in _QUANTILES]


def _mark_parts(stats: Sequence[QueueStats]) -> list[Shown]:
    parts = []
    for queue in stats:
        if queue.paused:
            words = f"Queue {queue.queue} is paused: `holdfast queue resume {queue.queue}` lets its tasks out."
            parts.append(output.text(words, "yellow"))
        if queue.dead_alert:
            letters = "dead letter" if queue.dead == 1 else "dead letters"
            words = f"Queue {queue.queue} has {queue.dead:,} {letters}, an alert: `holdfast dlq ls {queue.queue}`."
            parts.append(output.text(words, "bold red"))
    return parts


def marked_name(queue: QueueStats) -> str:
    marks = ", ".join(mark for mark, is_on in (("paused", queue.paused), ("ALERT", queue.dead_alert)) if is_on)
    return f"{queue.queue} ({marks})" if marks else queue.queue


def _state_cells(queue: QueueStats) -> tuple[str, ...]:
    counts = (queue.ready, queue.claimed, queue.delayed, queue.retrying, queue.dead)
    return (*(f"{n:,}" for n in counts), shown_duration(queue.oldest_ready_age_ms))


def _total_cells(queue: QueueStats) -> tuple[str, ...]:
    sums = (queue.enqueued_total, queue.claimed_total, queue.succeeded_total, queue.failed_total)
    more = (queue.expired_total, queue.cancelled_total, queue.dead_total)
    return (queue.queue, *(f"{n:,}" for n in (*sums, *more)))


def shown_rate(per_second: float) -> str:
    return f"{per_second:,.0f}" if per_second >= 100 else f"{per_second:.1f}" if per_second >= 0.05 else "-"


def print_workers(workers: Sequence[WorkerInfo], now_ms: int) -> None:
    output.show([worker_table(workers, now_ms)])


def worker_table(workers: Sequence[WorkerInfo], now_ms: int) -> Shown:
    return output.table(("worker", "state", "claims", "slots", "seen", "version", "queues"), [
        (
            worker.worker or "(no name)",
            _worker_state(worker),
            f"{worker.claims:,}",
            f"{worker.slots:,}" if worker.slots else "-",
            _ago(worker.last_seen_ms, now_ms),
            worker.version or "-",
            ", ".join(worker.queues) or "-",
        )
        for worker in workers
    ], numbers=False)  # fmt: skip


def _worker_state(worker: WorkerInfo) -> str:
    """Of its heartbeats; of one that has none, what it is seen to do."""
    if worker.state is WorkerState.UNKNOWN:
        return "waits" if worker.is_waiting else "works" if worker.claims else "-"
    asked = f" (asked: {worker.desired.lower()})" if worker.desired is not None else ""
    return f"{worker.state.lower()}{asked}"


def _ago(instant_ms: int | None, now_ms: int) -> str:
    """The clock of the server may be a little ahead of this one's."""
    if instant_ms is None:
        return "not yet"
    return f"{shown_duration(now_ms - instant_ms)} ago" if now_ms - instant_ms >= 1_000 else "now"


def print_tasks(tasks: Sequence[TaskInfo], now_ms: int) -> None:
    rows = [
        (
            task.task_id,
            task.queue,
            task.type or "-",
            str(task.state),
            shown_duration(now_ms - task.enqueued_at_ms),
            shown_duration(now_ms - task.changed_at_ms),
            f"{task.failures}/{task.max_attempts}",
            task.worker or "-",
            task.tenant or "-",
        )
        for task in tasks
    ]
    names = ("task", "queue", "type", "state", "age", "in state", "failed", "worker", "tenant")
    output.show([output.table(names, rows, numbers=False)])


def print_claims(claims: Sequence[TaskInfo], now_ms: int) -> None:
    rows = [
        (
            shown_duration(now_ms - claim.changed_at_ms),
            claim.worker or "(no name)",
            claim.queue,
            claim.type or "-",
            claim.task_id,
            shown_duration((claim.lease_expires_at_ms or 0) - now_ms),
            "cancelled" if claim.cancel_requested else "alone" if claim.suspect else "-",
        )
        for claim in claims
    ]
    names = ("held for", "worker", "queue", "type", "task", "lease ends in", "note")
    output.show([output.table(names, rows, numbers=False)])


def print_discards(discards: Sequence[Discard]) -> None:
    rows = [
        (
            discard.task_id,
            discard.queue,
            discard.type or "-",
            shown_instant(discard.discarded_at_ms).rpartition(".")[0],
            discard.by or "-",
            discard.note or "-",
            discard.dead_reason,
        )
        for discard in discards
    ]
    names = ("task", "queue", "type", "discarded", "by", "note", "had died of")
    output.show([output.table(names, rows, numbers=False)])
