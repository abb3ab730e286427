"""What the commands print for programs: one line of JSON on standard output, problems on standard error.

Keys are an interface: add some, but never rename or drop one.
"""

import base64
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from holdfast.cli.dead_letters import Report
from holdfast.cli.problems import Problem, problem_of
from holdfast.client import (
    Accepted,
    Cancelled,
    NewTask,
    NodeReport,
    QueueStats,
    ShardHash,
    TaskInfo,
    TaskState,
    Transferred,
    WorkerReport,
)


def print_json(value: Mapping[str, object], *, at_once: bool = False) -> None:
    """`at_once`: more will follow, and whoever reads it should not have to wait for that."""
    print(json.dumps(value, separators=(",", ":")), flush=at_once)


def accepted_json(accepted: Accepted, task: NewTask) -> dict[str, object]:
    return {
        "task_id": accepted.task_id,
        "duplicate": accepted.duplicate,
        "queue": task.queue,
        "type": task.type,
    }


def stats_json(stats: Sequence[QueueStats]) -> dict[str, object]:
    return {"queues": [asdict(each) for each in stats]}


def task_json(info: TaskInfo) -> dict[str, object]:
    """All fields of the task; bytes are given as base64 and, where they are JSON, also as the value they hold."""
    task = info.task
    values: dict[str, object] = {
        "task_id": info.task_id,
        "state": str(info.state),
        "queue": info.queue,
        "type": task.type if task else None,
        "priority": info.priority,
        "tenant": task.tenant if task else None,
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
        "dead_reason": info.dead_reason,
        "last_error": asdict(info.last_error) if info.last_error else None,
    }
    values |= _bytes_json("payload", task.payload if task else None)
    values |= _bytes_json("result", info.result)
    return values


def _bytes_json(name: str, data: bytes | None) -> dict[str, object]:
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
    values = task_json(info) | _bytes_json("payload", None)  # `task get` has the payload
    if accepted is not None and task is not None:
        values |= accepted_json(accepted, task)
    return values


def cancelled_json(cancelled: Mapping[str, Cancelled]) -> dict[str, object]:
    return {
        "tasks": [
            {"task_id": task_id, "state": str(each.state), "cancelled": each.state is TaskState.CANCELLED}
            for task_id, each in cancelled.items()
        ]
    }


def dead_letters_json(queue: str, letters: Sequence[TaskInfo], *, more: bool) -> dict[str, object]:
    """Without payloads, whatever the server sends: `dlq show` has them."""
    listed = [
        {key: value for key, value in task_json(letter).items() if not key.startswith(("payload_", "result_"))}
        for letter in letters
    ]
    return {"queue": queue, "dead_letters": listed, "more": more}


def dead_letter_report_json(done_word: str, queue: str | None, report: Report) -> dict[str, object]:
    """`done_word` is the key of the count: retried or discarded."""
    return {
        "queue": queue,
        done_word: report.done,
        "failed": report.failed,
        "unknown": report.unknown,
        "failures": [
            {"task_id": task_id, "reason": refusal.reason, "message": refusal.message}
            for task_id, refusal in report.failures
        ],
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
    return {"shards": [_hash_json(each) for each in hashes]}


def _hash_json(each: ShardHash) -> dict[str, object]:
    return {
        "shard": each.shard,
        "index": each.index,
        "equal": each.complete and not each.different,
        "complete": each.complete,
        "different": each.different,
        "replicas": [
            {
                "node": replica.node,
                "address": replica.address or None,
                "state_hash": replica.state_hash,
                "applied_index": replica.applied_index or None,
                "error": str(replica.error) if replica.error else None,
            }
            for replica in each.replicas
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
