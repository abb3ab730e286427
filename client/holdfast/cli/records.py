"""What the commands print for programs: one line of JSON on standard output, problems on standard error.

Keys are an interface: add some, but never rename or drop one.
"""

import base64
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from holdfast.cli.dead_letters import LetterTally
from holdfast.cli.options import word
from holdfast.cli.problems import Problem, problem_of
from holdfast.client import (
    Accepted,
    Cancelled,
    Discard,
    Histogram,
    NewTask,
    NodeReport,
    QueueStats,
    RetryPolicy,
    ShardHash,
    TaskInfo,
    TaskState,
    Transferred,
    Updated,
    WorkerInfo,
    WorkerReport,
)


def print_json(value: Mapping[str, object], *, at_once: bool = False) -> None:
    """`at_once`: more will follow, and whoever reads it should not have to wait for that."""
    print(json.dumps(value, separators=(",", ":")), flush=at_once)


def accepted_json(accepted: Accepted, task: NewTask) -> dict[str, object]:
    return {**triggered_json(accepted), "queue": task.queue, "type": task.type}


def triggered_json(accepted: Accepted) -> dict[str, object]:
    return {
        "task_id": accepted.task_id,
        "duplicate": accepted.duplicate,
        "state": None if accepted.state is None else str(accepted.state),
    }


def stats_json(stats: Sequence[QueueStats]) -> dict[str, object]:
    return {"queues": [_queue_json(queue) for queue in stats]}


def _queue_json(stats: QueueStats) -> dict[str, object]:
    latencies = [
        {
            "type": latency.type,
            "ready_to_claim": _histogram_json(latency.ready_to_claim),
            "claim_to_ack": _histogram_json(latency.claim_to_ack),
        }
        for latency in stats.latencies
    ]
    return {**asdict(stats), "latencies": latencies}


def _histogram_json(histogram: Histogram) -> dict[str, object]:
    return {
        "count": histogram.count,
        "mean_ms": histogram.mean_ms,
        "p50_ms": histogram.quantile_ms(0.5),
        "p95_ms": histogram.quantile_ms(0.95),
        "p99_ms": histogram.quantile_ms(0.99),
    }


def workers_json(workers: Sequence[WorkerInfo], *, more: bool) -> dict[str, object]:
    return {"workers": [asdict(worker) for worker in workers], "more": more}


def discards_json(queue: str | None, discards: Sequence[Discard], *, more: bool) -> dict[str, object]:
    return {"queue": queue, "discards": [asdict(discard) for discard in discards], "more": more}


def task_json(info: TaskInfo) -> dict[str, object]:
    """All fields of the task; bytes are given as base64 and, where they are JSON, also as the value they hold."""
    task = info.task
    values: dict[str, object] = {
        "task_id": info.task_id,
        "state": str(info.state),
        "queue": info.queue,
        "type": info.type or (task.type if task else None),
        "priority": info.priority,
        "tenant": info.tenant or (task.tenant if task else None),
        "request_id": task.request_id if task else None,
        "headers": dict(task.headers) if task else None,
        "failures": info.failures,
        "max_attempts": info.max_attempts,
        "claims": info.claims,
        "max_claims": info.max_claims,
        "enqueued_at_ms": info.enqueued_at_ms,
        "changed_at_ms": info.changed_at_ms,
        "due_at_ms": info.due_at_ms,
        "lease_expires_at_ms": info.lease_expires_at_ms,
        "purge_at_ms": info.purge_at_ms,
        "worker": info.worker,
        "cancel_requested": info.cancel_requested,
        "suspect": info.suspect,
        "dead_reason": info.dead_reason,
        "last_error": asdict(info.last_error) if info.last_error else None,
        "attempts": [asdict(attempt) for attempt in info.attempts],
        "limit_key": info.limit_key or (task.limit_key if task else None),
        "unique_key": info.unique_key or (task.unique_key if task else None),
        "unique_scope": word(task.unique_scope) if task and task.unique_key else None,
        "timeout_ms": info.timeout_ms,
        "ttl_ms": task.ttl_ms if task else None,
        "start_by_ms": info.start_by_ms,
        "retry": retry_json(task.retry) if task and task.retry else None,
    }
    values |= bytes_json("payload", task.payload if task else None)
    values |= bytes_json("result", info.result) | {"result_expired_at_ms": info.result_expired_at_ms}
    return values


def retry_json(retry: RetryPolicy) -> dict[str, object]:
    return {**asdict(retry), "shape": None if retry.shape is None else word(retry.shape)}


def bytes_json(name: str, data: bytes | None) -> dict[str, object]:
    encoded = None if data is None else base64.b64encode(data).decode("ascii")
    try:
        value = json.loads(data) if data else None
    except (ValueError, RecursionError):
        value = None
    return {f"{name}_base64": encoded, f"{name}_json": value}


def problem_json(problem: Problem, others: Sequence[Problem] = ()) -> dict[str, object]:
    """The one that decides the exit code, and what else went wrong."""
    more = {"other_errors": [_error_json(other) for other in others]} if others else {}
    return {"error": _error_json(problem), **more, "exit_code": int(problem.exit_code)}


def _error_json(problem: Problem) -> dict[str, object]:
    return {
        "reason": problem.reason,
        "message": problem.message,
        "hint": problem.hint,
        "field": problem.field,
        "retry_after_ms": problem.retry_after_ms,
    }


def print_problem_json(problem: Problem, others: Sequence[Problem] = ()) -> None:
    print(json.dumps(problem_json(problem, others), separators=(",", ":")), file=sys.stderr)


def waited_json(info: TaskInfo, accepted: Accepted | None = None, task: NewTask | None = None) -> dict[str, object]:
    """A finished task. After an enqueue also the keys that an enqueue alone has."""
    values = task_json(info) | bytes_json("payload", None)  # `task get` has the payload
    if accepted is not None and task is not None:
        values |= accepted_json(accepted, task) | {"state": str(info.state)}  # as it is in the end
    return values


def cancelled_json(cancelled: Mapping[str, Cancelled]) -> dict[str, object]:
    return {
        "tasks": [
            {"task_id": task_id, "state": str(outcome.state), "cancelled": outcome.state is TaskState.CANCELLED}
            for task_id, outcome in cancelled.items()
        ]
    }


def updated_json(updated: Mapping[str, Updated]) -> dict[str, object]:
    return {"tasks": [{"task_id": task_id, "state": str(outcome.state)} for task_id, outcome in updated.items()]}


def tasks_json(queue: str | None, tasks: Sequence[TaskInfo], next_token: str) -> dict[str, object]:
    """What a list knows of each: `task get` has the rest."""
    listed = [_listed_json(info) for info in tasks]
    return {"queue": queue, "tasks": listed, "more": bool(next_token), "next_page_token": next_token or None}


def claims_json(claims: Sequence[TaskInfo], total: int, now_ms: int, *, more: bool) -> dict[str, object]:
    listed = [_listed_json(info) | {"held_for_ms": max(0, now_ms - info.changed_at_ms)} for info in claims]
    return {"claims": listed, "total": total, "more": more}


_LISTED = (
    "task_id", "state", "queue", "type", "tenant", "priority", "failures", "max_attempts", "claims", "max_claims",
    "enqueued_at_ms", "changed_at_ms", "due_at_ms", "lease_expires_at_ms", "purge_at_ms", "worker", "cancel_requested",
    "suspect", "dead_reason", "limit_key", "unique_key", "timeout_ms", "start_by_ms",
)  # fmt: skip


def _listed_json(info: TaskInfo) -> dict[str, object]:
    values = task_json(info)
    return {name: values[name] for name in _LISTED}


def dead_letters_json(queue: str, letters: Sequence[TaskInfo], *, more: bool) -> dict[str, object]:
    """Without payloads, whatever the server sends: `dlq show` has them."""
    listed = [
        {key: value for key, value in task_json(letter).items() if not key.startswith(("payload_", "result_"))}
        for letter in letters
    ]
    return {"queue": queue, "dead_letters": listed, "more": more}


def dead_letter_report_json(
    done_word: str, queue: str | None, report: LetterTally, *, dry_run: bool
) -> dict[str, object]:
    """`done_word` is the key of the count: retried or discarded. In a dry run it is 0, and there is how many were
    found."""
    more: dict[str, object] = {"dry_run": True, "found": report.done} if dry_run else {}
    return {
        "queue": queue,
        done_word: 0 if dry_run else report.done,
        "failed": report.failed,
        "unknown": report.unknown,
        "failures": [
            {"task_id": task_id, "reason": refusal.reason, "message": refusal.message}
            for task_id, refusal in report.failures
        ],
        **more,
    }


def nodes_json(reports: Sequence[NodeReport]) -> dict[str, object]:
    """Each node with its replicas; one that did not answer has an error instead."""
    return {"nodes": [_node_json(report) for report in reports]}


def _node_json(report: NodeReport) -> dict[str, object]:
    node = report.node
    return {
        "node": report.name or None,
        "address": report.address,
        "node_id": node.node_id if node else None,
        "version": node.version if node else None,
        "error": problem_of(report.error).message if report.error else None,
        "replicas": [
            {**asdict(replica), "role": str(replica.role), "leader": replica.leader or None}
            for replica in (node.replicas if node else ())
        ],
    }


def hashes_json(hashes: Sequence[ShardHash]) -> dict[str, object]:
    return {"shards": [_hash_json(shard_hash) for shard_hash in hashes]}


def _hash_json(shard_hash: ShardHash) -> dict[str, object]:
    return {
        "shard": shard_hash.shard,
        "index": shard_hash.index,
        "equal": shard_hash.complete and not shard_hash.different,
        "complete": shard_hash.complete,
        "different": shard_hash.different,
        "replicas": [
            {
                "node": replica.node,
                "address": replica.address or None,
                "state_hash": replica.state_hash,
                "applied_index": replica.applied_index or None,
                "error": str(replica.error) if replica.error else None,
            }
            for replica in shard_hash.replicas
        ],
    }


def transferred_json(shard: int, transferred: Transferred) -> dict[str, object]:
    return {"shard": shard, "leader": transferred.leader, "epoch": transferred.epoch}


def worker_json(report: WorkerReport) -> dict[str, object]:
    return {
        "succeeded": report.succeeded,
        "failed": report.failed,
        "released": report.released,
        "lost": report.lost,
    }


def bench_json(values: Mapping[str, object]) -> dict[str, object]:
    """Figures to the thousandth: what is behind that is noise."""
    return {name: round(value, 3) if isinstance(value, float) else value for name, value in values.items()}
