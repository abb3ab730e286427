"""What `holdfast top` shows to people."""

from collections.abc import Sequence

from holdfast.cli import cluster_output, output
from holdfast.cli.output import Shown
from holdfast.cli.queue_output import marked_name, shown_rate, worker_table
from holdfast.cli.times import shown_duration, shown_instant
from holdfast.cli.top import TopView
from holdfast.client import QueueStats, WorkerInfo, WorkerState

_WORKERS_SHOWN_MAX = 8
_PROBLEMS_SHOWN_MAX = 5


def screen(seen: TopView, by: str, limit: int) -> list[Shown]:
    """One screen, from the whole to its parts."""
    parts: list[Shown] = [*_head(seen), output.text("")]
    queues = seen.sorted_queues(by)
    if queues:
        parts.append(_queue_table(queues[:limit]))
        if len(queues) > limit:
            parts.append(output.text(f"… and {_count(len(queues) - limit, 'queue')} more; --limit shows more.", "dim"))
    else:
        parts.append(output.text("No queue has had a task yet."))
    parts.append(output.text(""))
    return parts + _worker_parts(seen.workers, seen.at_ms)


def _head(seen: TopView) -> list[Shown]:
    totals = seen.totals
    clock = shown_instant(seen.at_ms).rpartition(".")[0]
    counts = ", ".join(f"{totals[name]:,.0f} {name}" for name in ("ready", "claimed", "delayed", "retrying", "dead"))
    lines: list[Shown] = [output.text(f"Holdfast, {clock} UTC: {_count(len(seen.queues), 'queue')}: {counts}", "bold")]
    rates = (
        f"per second: {shown_rate(totals['enqueued_per_second'])} enqueued, "
        f"{shown_rate(totals['succeeded_per_second'])} succeeded, {shown_rate(totals['failed_per_second'])} failed"
    )
    ages = f"oldest ready {shown_duration(seen.oldest_ready_age_ms)}, oldest claim "
    lines.append(output.text(f"{rates}; {ages}{shown_duration(seen.oldest_claim_age_ms)}"))
    return lines + _cluster_lines(seen)


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def _cluster_lines(seen: TopView) -> list[Shown]:
    lines: list[Shown] = []
    if seen.cluster is not None:
        alive = sum(node.is_alive for node in seen.cluster.nodes)
        problems = seen.shard_problems
        were = "" if seen.cluster.etcd_answers else "were "
        words = f"{alive} of {len(seen.cluster.nodes)} nodes {were}alive, {len(seen.cluster.shards)} shards"
        style = "" if alive == len(seen.cluster.nodes) and not problems else "bold red"
        lines += [output.text(words, style), *cluster_output.last_known_parts(seen.cluster)]
        lines += [output.text(f"shard {shard}: {words}", "red") for shard, words in problems[:_PROBLEMS_SHOWN_MAX]]
        if len(problems) > _PROBLEMS_SHOWN_MAX:
            lines.append(output.text("… `holdfast cluster status` shows the others.", "dim"))
    if seen.missing_shards:
        names = ", ".join(map(str, seen.missing_shards))
        lines.append(output.text(f"Shards that did not answer, and are not in the numbers: {names}", "bold red"))
    return lines


def _queue_table(queues: Sequence[QueueStats]) -> Shown:
    names = (
        "queue",
        "ready",
        "claimed",
        "delayed",
        "retrying",
        "dead",
        "oldest",
        "held for",
        "in/s",
        "out/s",
        "fail/s",
    )
    return output.table(names, [
        (
            marked_name(queue),
            *(f"{number:,}" for number in (queue.ready, queue.claimed, queue.delayed, queue.retrying, queue.dead)),
            shown_duration(queue.oldest_ready_age_ms),
            shown_duration(queue.oldest_claim_age_ms),
            *map(shown_rate, (queue.enqueued_per_second, queue.succeeded_per_second, queue.failed_per_second)),
        )
        for queue in queues
    ])  # fmt: skip


def _worker_parts(workers: Sequence[WorkerInfo], now_ms: int) -> list[Shown]:
    if not workers:
        return [output.text("No worker has asked for tasks lately.", "yellow")]
    slots, claims = sum(worker.slots for worker in workers), sum(worker.claims for worker in workers)
    # Those that want to be looked at first, then the busiest.
    order = {WorkerState.GONE: 0, WorkerState.STOPPING: 1, WorkerState.QUIET: 2, WorkerState.DRAINED: 2}
    first = sorted(workers, key=lambda worker: (order.get(worker.state, 3), -worker.claims, worker.worker))
    words = f"{_count(len(workers), 'worker')} with {_count(slots, 'slot')}, {_count(claims, 'claim')}"
    parts: list[Shown] = [output.text(words), worker_table(first[:_WORKERS_SHOWN_MAX], now_ms)]
    if len(workers) > _WORKERS_SHOWN_MAX:
        parts.append(output.text(f"… and {len(workers) - _WORKERS_SHOWN_MAX:,} more: `holdfast workers`.", "dim"))
    return parts
