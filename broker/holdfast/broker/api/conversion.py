"""Rows of the state as messages of the wire API."""

from collections.abc import Sequence
from typing import cast

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
