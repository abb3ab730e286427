"""Rows of the state as messages of the wire API."""

from collections.abc import Iterable, Sequence
from typing import cast

from holdfast.broker.histograms import LatencyHistogram
from holdfast.broker.leader.stats import WorkerSeen
from holdfast.limits.reports import LimitGrant, LimitReport
from holdfast.machine.ids import SECRET_BITS, SECRET_MAX, format_task_id
from holdfast.machine.outcomes import ELSEWHERE, Accepted, Claimed
from holdfast.machine.reader import TaskView
from holdfast.machine.rows import (
    ATTEMPT_FAILED,
    ATTEMPT_LEASE_EXPIRED,
    ATTEMPT_TIMED_OUT,
    CANCELLED,
    CLAIMED,
    DEAD,
    DEAD_REASONS,
    DELAYED,
    READY,
    RETRY_PENDING,
    SUCCEEDED,
    Attempt,
    Discard,
    Execution,
    OutboxMessage,
    Queue,
)
from holdfast.proto.v1 import broker_calls_pb2 as calls_pb
from holdfast.proto.v1 import queues_pb2 as queues_pb
from holdfast.proto.v1 import tasks_pb2 as pb

_HOW = {
    ATTEMPT_FAILED: "FAILED",
    ATTEMPT_LEASE_EXPIRED: "LEASE_EXPIRED",
    ATTEMPT_TIMED_OUT: "TIMED_OUT",
}


def wire_state(state: int) -> "pb.TaskState":
    """The machine's states have the numbers of the wire API."""
    return cast("pb.TaskState", state)


def fill_claim(message: pb.Claim | pb.ClaimRun, claim: Claimed, envelope: bytes, now_ms: int) -> None:
    """`envelope`: of a slice, what its tasks share. `now_ms`: when the answer is made."""
    message.task_id = format_task_id(claim.task_id)
    message.token = claim.token >> SECRET_BITS
    message.secret = claim.token & SECRET_MAX
    message.task.ParseFromString(envelope)
    message.lease_ms = max(0, claim.expiry_ms - now_ms)
    message.attempt = claim.failures + 1
    message.claims = claim.claims
    message.enqueued_at_ms = claim.enqueued_ms
    message.alone = claim.is_alone


def fill_accepted(message: pb.Accepted, accepted: Accepted) -> None:
    message.task_id = format_task_id(accepted.task_id)
    if accepted.duplicate:
        message.duplicate = True
        message.state = wire_state(accepted.state)


def fill_follow_up(message: pb.Accepted, accepted: Accepted) -> None:
    """One that belongs to another shard has no id yet."""
    if accepted.task_id != ELSEWHERE:
        fill_accepted(message, accepted)


def discard_message(place: bytes, discard: Discard) -> pb.Discard:
    """`place`: when it was discarded, and the task's id."""
    return pb.Discard(
        task_id=format_task_id(place[8:]),
        queue=discard.queue.decode(),
        type=discard.type.decode(),
        tenant=discard.tenant.decode(),
        dead_reason=DEAD_REASONS[discard.dead_reason],
        died_at_ms=discard.died_ms,
        discarded_at_ms=int.from_bytes(place[:8], "big"),
        by=discard.by.decode(),
        note=discard.note.decode(),
    )


def _fill_attempt(message: pb.Attempt, attempt: Attempt) -> None:
    error = pb.TaskError.FromString(attempt.brief)
    message.worker = attempt.worker.decode()
    message.claimed_at_ms = attempt.claimed_ms
    message.ended_at_ms = attempt.ended_ms
    message.how = _HOW[attempt.how]
    message.error_type = error.type
    message.error_message = error.message


def receive_request(
    cluster_id: str,
    destination: int,
    source: int,
    incarnation: int,
    first_sequence: int,
    messages: Sequence[OutboxMessage],
) -> calls_pb.ReceiveTasksRequest:
    """What a relay says to the leader of the destination."""
    request = calls_pb.ReceiveTasksRequest(
        cluster_id=cluster_id,
        destination_shard=destination,
        source_shard=source,
        source_incarnation=incarnation,
        first_sequence=first_sequence,
    )
    for outgoing in messages:
        message = request.messages.add(run_at_ms=outgoing.run_at_ms)
        message.task.ParseFromString(outgoing.envelope)
    return request


def fill_queue(message: pb.QueueCounts, name: str, queue: Queue) -> None:
    message.queue = name
    message.ready = queue.ready
    message.claimed = queue.claimed
    message.delayed = queue.delayed
    message.retrying = queue.retrying
    message.dead = queue.dead
    message.enqueued_total = queue.enqueued_total
    message.claimed_total = queue.claimed_total
    message.succeeded_total = queue.succeeded_total
    message.failed_total = queue.failed_total
    message.expired_total = queue.expired_total
    message.cancelled_total = queue.cancelled_total
    message.dead_total = queue.dead_total


def fill_rates(message: pb.QueueCounts, per_second: Sequence[float]) -> None:
    """Enqueued, claimed, succeeded, failed."""
    (
        message.enqueued_per_second,
        message.claimed_per_second,
        message.succeeded_per_second,
        message.failed_per_second,
    ) = per_second


def fill_latencies(
    message: pb.QueueCounts, by_type: Iterable[tuple[bytes, LatencyHistogram, LatencyHistogram]]
) -> None:
    for name, ready, claimed in by_type:
        message.latencies.add(
            type=name.decode(),
            ready_to_claim=ready.counts,
            claim_to_ack=claimed.counts,
            ready_to_claim_ms_total=ready.total_ms,
            claim_to_ack_ms_total=claimed.total_ms,
        )


def wire_worker_state(state: int) -> "queues_pb.WorkerState":
    """The states of workers have the numbers of the wire API."""
    return cast("queues_pb.WorkerState", state)


def worker_message(worker: WorkerSeen) -> queues_pb.WorkerInfo:
    return queues_pb.WorkerInfo(
        worker=worker.name.decode(),
        claims=worker.claims,
        last_seen_ms=worker.last_seen_ms,
        queues=[queue.decode() for queue in worker.queues],
        is_waiting=worker.is_waiting,
        state=wire_worker_state(worker.state),
        slots=worker.slots,
        version=worker.version.decode(),
        desired=wire_worker_state(worker.desired),
    )


def error_of(view: TaskView) -> pb.TaskError | None:
    """What went wrong last, if anything did."""
    if view.conflict is not None:
        return conflict_error(view.execution, view.conflict)
    return None if view.error is None else pb.TaskError.FromString(view.error)


def conflict_error(execution: Execution, other_id: bytes) -> pb.TaskError:
    """Of a task whose request id stands for another one."""
    message = (
        f'The request id "{execution.request_id.decode()}" of queue {execution.queue.decode()} stands for task '
        f"{format_task_id(other_id)}, which has another type, payload, headers, tenant or key. Retry this letter to "
        "run it without the id, or discard it; a task of its own needs a request id of its own."
    )
    return pb.TaskError(type="RequestIdConflict", message=message)


def task_message(view: TaskView, *, with_payload: bool = True) -> pb.TaskInfo:
    """`with_payload=False` leaves out what makes a listing long: payload and traceback."""
    task = view.execution
    message = pb.TaskInfo(
        task_id=format_task_id(view.task_id),
        state=wire_state(task.state),
        queue=task.queue.decode(),
        priority=task.priority,
        failures=task.failures,
        max_attempts=task.max_attempts,
        claims=task.claims,
        max_claims=task.max_claims,
        enqueued_at_ms=task.enqueued_ms,
        changed_at_ms=task.changed_ms,
        worker=task.worker.decode(),
        cancel_requested=task.cancel_requested,
        dead_reason=DEAD_REASONS[task.dead_reason],
        type=task.type.decode(),
        tenant=task.tenant.decode(),
        limit_key=task.limit_key.decode(),
        unique_key=task.unique_key.decode(),
        timeout_ms=task.timeout_ms,
        suspect=task.is_suspect and task.state in (READY, CLAIMED, DELAYED, RETRY_PENDING),
        start_by_ms=task.start_by_ms if task.state != CLAIMED else 0,
    )
    for attempt in view.attempts if with_payload else ():
        _fill_attempt(message.attempts.add(), attempt)
    if task.state in (DELAYED, RETRY_PENDING):
        message.due_at_ms = task.timer_ms
    elif task.state == CLAIMED:
        message.lease_expires_at_ms = task.timer_ms
    elif task.state in (SUCCEEDED, DEAD, CANCELLED):
        message.purge_at_ms = task.timer_ms
    if view.envelope is not None:
        message.task.ParseFromString(view.envelope)
    if (error := error_of(view)) is not None:
        message.last_error.CopyFrom(error)
    if view.result is not None:
        message.result = view.result
    message.result_expired_at_ms = view.result_expired_ms
    if not with_payload:
        if message.HasField("task"):
            message.task.ClearField("payload")
        if message.HasField("last_error"):
            message.last_error.ClearField("traceback")
    return message


def allocate_request(
    cluster_id: str, destination: int, source: int, reports: Iterable[LimitReport]
) -> calls_pb.AllocateRequest:
    """As the home of queues reads it in `limit_reports`."""
    request = calls_pb.AllocateRequest(cluster_id=cluster_id, destination_shard=destination, source_shard=source)
    for report in reports:
        queue, what, holds, uses, demand, number, version = report
        request.reports.add(
            queue=queue.decode(), what=what, holds=holds, uses=uses, demand=demand, number=number, version=version
        )
    return request


def limit_reports(request: calls_pb.AllocateRequest) -> list[LimitReport]:
    return [
        LimitReport(
            message.queue.encode(), message.what, message.holds, message.uses, message.demand, message.number,
            message.version,
        )
        for message in request.reports
    ]  # fmt: skip


def allocate_response(grants: Iterable[LimitGrant]) -> calls_pb.AllocateResponse:
    """As another shard reads it in `limit_grants`."""
    response = calls_pb.AllocateResponse()
    for grant in grants:
        response.grants.add(
            queue=grant.queue.decode(), what=grant.what, amount=grant.amount, lease_ms=grant.lease_ms,
            unlimited=grant.unlimited, number=grant.number, version=grant.version,
        )  # fmt: skip
    return response


def limit_grants(response: calls_pb.AllocateResponse) -> list[LimitGrant]:
    return [
        LimitGrant(
            message.queue.encode(), message.what, message.amount, message.lease_ms, message.unlimited, message.number,
            message.version,
        )
        for message in response.grants
    ]  # fmt: skip
