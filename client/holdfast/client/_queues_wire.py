"""Between the values of `queue_models` and the messages of the wire API."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from holdfast.client._fitting import build, fit, read_each, several, wire_state
from holdfast.client._wire import task_info_of
from holdfast.client.errors import Rejected
from holdfast.client.queue_models import (
    DeadLetterDone,
    DeadLetterFilter,
    DeadLetterPage,
    Discard,
    DiscardPage,
    HeartbeatAnswer,
    Histogram,
    QueuePage,
    QueueStats,
    TaskFilter,
    TaskPage,
    TypeLatency,
    WorkerInfo,
    WorkerPage,
    WorkerState,
)
from holdfast.proto.v1 import queues_pb2
from holdfast.proto.v1 import tasks_pb2 as pb

# ---------------------------------------------------------------------------------------------- requests


def list_queues_request(page_size: int, page_token: str, *, partial: bool) -> pb.ListQueuesRequest:
    return fit(pb.ListQueuesRequest, page_size=page_size, page_token=page_token, partial=partial)


def queue_stats_request(queues: Sequence[str]) -> pb.QueueStatsRequest:
    return build(lambda: pb.QueueStatsRequest(queues=several(queues)), "queues")


def purge_request(queue: str, *, dry_run: bool) -> queues_pb2.PurgeQueueRequest:
    return fit(queues_pb2.PurgeQueueRequest, queue=queue, dry_run=dry_run)


def list_workers_request(page_size: int, page_token: str, *, partial: bool) -> queues_pb2.ListWorkersRequest:
    return fit(queues_pb2.ListWorkersRequest, page_size=page_size, page_token=page_token, partial=partial)


def list_tasks_request(
    queue: str, where: TaskFilter | None, page_size: int, page_token: str, *, partial: bool
) -> queues_pb2.ListTasksRequest:
    given = {"queue": queue, "page_size": page_size, "page_token": page_token, "partial": partial}
    request = fit(queues_pb2.ListTasksRequest, **given)
    if where is not None:
        values = {field.name: getattr(where, field.name) for field in fields(TaskFilter)}
        values["states"] = build(lambda: [wire_state(state) for state in where.states], "filter.states")
        request.filter.CopyFrom(fit(queues_pb2.TaskFilter, "filter", **values))
    return request


def list_dead_letters_request(
    queue: str, where: DeadLetterFilter | None, page_size: int, page_token: str
) -> pb.ListDeadLettersRequest:
    request = fit(pb.ListDeadLettersRequest, queue=queue, page_size=page_size, page_token=page_token)
    if where is not None:
        request.filter.CopyFrom(fit(pb.DeadLetterFilter, "filter", **build(lambda: _filter_values(where), "where")))
    return request


def _filter_values(where: DeadLetterFilter) -> dict[str, Any]:
    values = {field.name: getattr(where, field.name) for field in fields(DeadLetterFilter)}
    return {name: value for name, value in values.items() if value is not None}


def get_dead_letter_request(task_id: str) -> pb.GetDeadLetterRequest:
    return build(lambda: pb.GetDeadLetterRequest(task_id=task_id), "task_id")


def retry_dead_letters_request(task_ids: Sequence[str]) -> pb.RetryDeadLettersRequest:
    return build(lambda: pb.RetryDeadLettersRequest(task_ids=several(task_ids)), "task_ids")


def discard_dead_letters_request(task_ids: Sequence[str], by: str, note: str) -> pb.DiscardDeadLettersRequest:
    return fit(pb.DiscardDeadLettersRequest, task_ids=build(lambda: several(task_ids), "task_ids"), by=by, note=note)


def list_discards_request(queue: str, page_size: int, page_token: str) -> pb.ListDiscardsRequest:
    return fit(pb.ListDiscardsRequest, queue=queue, page_size=page_size, page_token=page_token)


# ----------------------------------------------------------------------------------------------- answers


def queue_page(response: pb.ListQueuesResponse) -> QueuePage:
    queues = tuple(map(_queue_stats, response.queues))
    return QueuePage(queues, response.next_page_token, tuple(response.missing_shards))


def queue_stats_outcomes(response: pb.QueueStatsResponse, asked: int) -> list[QueueStats | Rejected]:
    return read_each(response.outcomes, asked, "counts", lambda outcome: _queue_stats(outcome.counts))


def heartbeat_request(
    worker: str, state: WorkerState, slots: int, version: str, queues: Sequence[str]
) -> queues_pb2.HeartbeatRequest:
    return fit(
        queues_pb2.HeartbeatRequest,
        worker=worker,
        state=build(lambda: _wire_worker_state(state), "state"),
        slots=slots,
        version=version,
        queues=build(lambda: several(queues), "queues"),
    )


def signal_worker_request(worker: str, desired: WorkerState) -> queues_pb2.SignalWorkerRequest:
    return fit(
        queues_pb2.SignalWorkerRequest, worker=worker, desired=build(lambda: _wire_worker_state(desired), "desired")
    )


def _wire_worker_state(state: WorkerState) -> int:
    """ValueError for what no server knows."""
    return queues_pb2.WorkerState.Value(f"WORKER_STATE_{WorkerState(state).name}")


def heartbeat_answer(response: queues_pb2.HeartbeatResponse) -> HeartbeatAnswer:
    return HeartbeatAnswer(_worker_state(response.desired), max(0, response.next_ms) / 1000)


def signalled(response: queues_pb2.SignalWorkerResponse) -> WorkerState:
    return _worker_state(response.state) or WorkerState.UNKNOWN


def _worker_state(number: int) -> WorkerState | None:
    """None if there is none."""
    if not number:
        return None
    names = {value.number: value.name for value in queues_pb2.WorkerState.DESCRIPTOR.values}
    name = names.get(number, "").removeprefix("WORKER_STATE_")
    return WorkerState(name) if name in WorkerState.__members__ else WorkerState.UNKNOWN


def worker_page(response: queues_pb2.ListWorkersResponse) -> WorkerPage:
    """Without those that are gone, unless they hold something. Shards other than their home may not know that they are,
    so they are told together with those that are not."""
    found = map(_worker, response.workers)
    workers = tuple(worker for worker in found if worker.state is not WorkerState.GONE or worker.claims)
    return WorkerPage(workers, response.next_page_token, tuple(response.missing_shards))


def dead_letter_outcomes(
    response: pb.RetryDeadLettersResponse | pb.DiscardDeadLettersResponse, asked: int
) -> list[DeadLetterDone | Rejected]:
    return read_each(response.outcomes, asked, "done", lambda _: DeadLetterDone())


def task_page(response: queues_pb2.ListTasksResponse) -> TaskPage:
    tasks = tuple(map(task_info_of, response.tasks))
    return TaskPage(tasks, response.next_page_token, tuple(response.missing_shards))


def dead_letter_page(response: pb.ListDeadLettersResponse) -> DeadLetterPage:
    return DeadLetterPage(tuple(map(task_info_of, response.tasks)), response.next_page_token)


def discard_page(response: pb.ListDiscardsResponse) -> DiscardPage:
    return DiscardPage(tuple(map(_discard, response.discards)), response.next_page_token)


def _worker(message: queues_pb2.WorkerInfo) -> WorkerInfo:
    return WorkerInfo(
        worker=message.worker,
        claims=message.claims,
        last_seen_ms=message.last_seen_ms or None,
        queues=tuple(message.queues),
        is_waiting=message.is_waiting,
        state=_worker_state(message.state) or WorkerState.UNKNOWN,
        slots=message.slots,
        version=message.version,
        desired=_worker_state(message.desired),
    )


def _discard(message: pb.Discard) -> Discard:
    return Discard(
        task_id=message.task_id,
        queue=message.queue,
        type=message.type,
        tenant=message.tenant,
        dead_reason=message.dead_reason,
        died_at_ms=message.died_at_ms,
        discarded_at_ms=message.discarded_at_ms,
        by=message.by,
        note=message.note,
    )


def _latency(message: pb.TypeLatency) -> TypeLatency:
    return TypeLatency(
        message.type,
        Histogram(tuple(message.ready_to_claim), message.ready_to_claim_ms_total),
        Histogram(tuple(message.claim_to_ack), message.claim_to_ack_ms_total),
    )


def _queue_stats(counts: pb.QueueCounts) -> QueueStats:
    return QueueStats(
        queue=counts.queue,
        ready=counts.ready,
        claimed=counts.claimed,
        delayed=counts.delayed,
        retrying=counts.retrying,
        dead=counts.dead,
        enqueued_total=counts.enqueued_total,
        claimed_total=counts.claimed_total,
        succeeded_total=counts.succeeded_total,
        failed_total=counts.failed_total,
        expired_total=counts.expired_total,
        cancelled_total=counts.cancelled_total,
        dead_total=counts.dead_total,
        oldest_ready_age_ms=counts.oldest_ready_age_ms,
        waiting_reserves=counts.waiting_reserves,
        paused=counts.paused,
        enqueued_per_second=counts.enqueued_per_second,
        claimed_per_second=counts.claimed_per_second,
        succeeded_per_second=counts.succeeded_per_second,
        failed_per_second=counts.failed_per_second,
        latencies=tuple(map(_latency, counts.latencies)),
        dead_alert=counts.dead_alert,
        oldest_claim_age_ms=counts.oldest_claim_age_ms,
    )
