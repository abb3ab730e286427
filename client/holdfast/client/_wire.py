"""Between the values of `models` and the messages of the wire API: the only file here that knows both.

This is the library's hot path: a batch passes through it item by item, so it sets and reads fields directly, and looks
at optional ones only where they are present.
"""

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from holdfast.client.errors import InvalidArgument, Rejected, UnexpectedAnswer, rejected
from holdfast.client.models import (
    Accepted,
    Ack,
    Acked,
    Cancelled,
    Claim,
    ClaimedTask,
    DeadLetterDone,
    DeadLetterPage,
    Extended,
    Extension,
    Failed,
    Failure,
    NewTask,
    QueuePage,
    QueueStats,
    Released,
    TaskError,
    TaskInfo,
    TaskState,
)
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.routing.sets import made_up_id, parse_made_up

T = TypeVar("T")

_STATES: dict[int, TaskState] = {
    pb.TASK_STATE_READY: TaskState.READY,
    pb.TASK_STATE_CLAIMED: TaskState.CLAIMED,
    pb.TASK_STATE_DELAYED: TaskState.DELAYED,
    pb.TASK_STATE_RETRY_PENDING: TaskState.RETRY_PENDING,
    pb.TASK_STATE_SUCCEEDED: TaskState.SUCCEEDED,
    pb.TASK_STATE_DEAD: TaskState.DEAD,
    pb.TASK_STATE_CANCELLED: TaskState.CANCELLED,
}

# All numbers of a task, a made-up request id, and what the encoding adds.
_TASK_BYTES = 200

# What protobuf raises for a value that does not fit its field. Its own text names no field and may show the value.
_MISFITS = (TypeError, ValueError, OverflowError, AttributeError)


# ---------------------------------------------------------------------------------------------- requests


def enqueue_request(tasks: Sequence[NewTask]) -> pb.EnqueueRequest:
    request = pb.EnqueueRequest()
    _put_specs(request.tasks.add, tasks, "tasks")
    return request


def make_up_request_ids(
    request: pb.EnqueueRequest, tasks: Sequence[NewTask], ttl_ms: int, generation_of: Callable[[str], int]
) -> list[int]:
    """Gives an id to each task without one, so that the call can be repeated; returns the places of these tasks.

    `generation_of` a queue: of its set of shards. The id names it, so that a repetition finds its first attempt."""
    without = [at for at, task in enumerate(tasks) if task.request_id is None and task.request_id_ttl_ms is None]
    if without:
        call_key = uuid.uuid4().hex
        specs = request.tasks
        for at in without:
            spec = specs[at]
            spec.request_id = made_up_id(generation_of(spec.queue), call_key, at)
            spec.request_id_ttl_ms = ttl_ms
    return without


def approximate_bytes(task: NewTask) -> int:
    """About what a task takes in a request, never less: a character has up to four bytes."""
    text = len(task.queue) + len(task.type) + len(task.tenant) + len(task.request_id or "")
    text += sum(len(name) + len(value) + 2 for name, value in task.headers.items())
    return len(task.payload) + 4 * text + _TASK_BYTES


def reserve_request(
    queues: Sequence[str],
    max_tasks: int,
    max_tasks_by_queue: Mapping[str, int] | None,
    lease_ms: int,
    wait_ms: int,
    claim_request_id: str,
    worker: str,
) -> pb.ReserveRequest:
    limits = _build(lambda: _queue_limits(queues, max_tasks_by_queue or {}), "max_tasks_by_queue")
    return _build(
        lambda: pb.ReserveRequest(
            queues=_several(queues),
            max_tasks=max_tasks,
            lease_ms=lease_ms,
            wait_ms=wait_ms,
            claim_request_id=claim_request_id,
            worker=worker,
            queue_tasks_max=limits,
        ),
        "the request",
    )


def _queue_limits(queues: Sequence[str], limits: Mapping[str, int]) -> list[int]:
    """One number per queue, 0 where there is no limit; nothing if there are no limits at all."""
    if not limits:
        return []
    problem = ""
    if not limits.keys() <= set(queues):
        problem = "to name only queues of this call, but it names another"
    elif min(limits.values()) < 1:
        problem = "to allow at least 1 task of a queue, but it allows none: leave the queue out"
    if problem:
        field = "max_tasks_by_queue"
        raise InvalidArgument(f"Expected {field} {problem}.", reason="INVALID_FIELD", field=field)
    return [limits.get(queue, 0) for queue in queues]


def ack_request(items: Sequence[Claim | Ack]) -> pb.AckRequest:
    request = pb.AckRequest()
    add = request.items.add
    for index, item in enumerate(items):
        message = add()
        try:
            if isinstance(item, Ack):
                _put_claim(message.claim, item.claim)
                if item.result is not None:
                    message.result = item.result
            else:
                _put_claim(message.claim, item)
        except _MISFITS as misfit:
            raise _misfit(f"items[{index}]", misfit) from None
        if isinstance(item, Ack) and item.follow_ups:
            _put_specs(message.follow_ups.add, item.follow_ups, f"items[{index}].follow_ups")
    return request


def fail_request(items: Sequence[Failure]) -> pb.FailRequest:
    request = pb.FailRequest()
    for index, item in enumerate(items):
        message = request.items.add()
        try:
            _put_claim(message.claim, item.claim)
            message.error.type = item.error.type
            message.error.message = item.error.message
            message.error.traceback = item.error.traceback
            if item.retry_delay_ms is not None:
                message.retry_delay_ms = item.retry_delay_ms
            message.dead = item.dead
        except _MISFITS as misfit:
            raise _misfit(f"items[{index}]", misfit) from None
    return request


def extend_request(items: Sequence[Extension]) -> pb.ExtendRequest:
    request = pb.ExtendRequest()
    for index, item in enumerate(items):
        message = request.items.add()
        try:
            _put_claim(message.claim, item.claim)
            message.lease_ms = item.lease_ms
        except _MISFITS as misfit:
            raise _misfit(f"items[{index}]", misfit) from None
    return request


def release_request(claims: Sequence[Claim]) -> pb.ReleaseRequest:
    request = pb.ReleaseRequest()
    for index, claim in enumerate(claims):
        try:
            _put_claim(request.claims.add(), claim)
        except _MISFITS as misfit:
            raise _misfit(f"claims[{index}]", misfit) from None
    return request


def cancel_request(task_ids: Sequence[str]) -> pb.CancelRequest:
    return _build(lambda: pb.CancelRequest(task_ids=_several(task_ids)), "task_ids")


def get_task_request(task_id: str) -> pb.GetTaskRequest:
    return _build(lambda: pb.GetTaskRequest(task_id=task_id), "task_id")


def wait_tasks_request(task_ids: Sequence[str], wait_ms: int) -> pb.WaitTasksRequest:
    return _build(lambda: pb.WaitTasksRequest(task_ids=_several(task_ids), wait_ms=wait_ms), "task_ids")


def checked_task_ids(task_ids: Sequence[str]) -> list[str]:
    return list(wait_tasks_request(task_ids, 0).task_ids)


def list_queues_request(page_size: int, page_token: str) -> pb.ListQueuesRequest:
    return _build(lambda: pb.ListQueuesRequest(page_size=page_size, page_token=page_token), "the request")


def queue_stats_request(queues: Sequence[str]) -> pb.QueueStatsRequest:
    return _build(lambda: pb.QueueStatsRequest(queues=_several(queues)), "queues")


def list_dead_letters_request(queue: str, page_size: int, page_token: str) -> pb.ListDeadLettersRequest:
    return _build(
        lambda: pb.ListDeadLettersRequest(queue=queue, page_size=page_size, page_token=page_token), "the request"
    )


def get_dead_letter_request(task_id: str) -> pb.GetDeadLetterRequest:
    return _build(lambda: pb.GetDeadLetterRequest(task_id=task_id), "task_id")


def retry_dead_letters_request(task_ids: Sequence[str]) -> pb.RetryDeadLettersRequest:
    return _build(lambda: pb.RetryDeadLettersRequest(task_ids=_several(task_ids)), "task_ids")


def discard_dead_letters_request(task_ids: Sequence[str]) -> pb.DiscardDeadLettersRequest:
    return _build(lambda: pb.DiscardDeadLettersRequest(task_ids=_several(task_ids)), "task_ids")


def _build(build: Callable[[], T], where: str) -> T:
    try:
        return build()
    except _MISFITS as misfit:
        raise _misfit(where, misfit) from None


def _several(values: Sequence[str]) -> Sequence[str]:
    """A lone string is a sequence of strings too, and would be taken letter by letter."""
    if isinstance(values, str):
        raise TypeError
    return values


def _put_claim(message: pb.ClaimRef, claim: Claim) -> None:
    message.task_id = claim.task_id
    message.token = claim.token


def _put_specs(add: Callable[[], pb.TaskSpec], tasks: Iterable[NewTask], where: str) -> None:
    for index, task in enumerate(tasks):
        try:
            _put_spec(add(), task)
        except _MISFITS as misfit:
            raise _spec_misfit(task, f"{where}[{index}]", misfit) from None
        if task.request_id and parse_made_up(task.request_id) is not None:
            # Servers would look for it where this client's own ids go, which is not always the same place.
            raise InvalidArgument(
                "Expected a request_id that does not look like one that clients make up (~0.x.0), but it does.",
                reason="INVALID_FIELD",
                field=f"{where}[{index}].request_id",
            )
        if task.run_at_ms is not None and task.delay_ms is not None:
            raise InvalidArgument(
                "Expected at most one of run_at_ms and delay_ms, but both are set.",
                reason="INVALID_FIELD",
                field=f"{where}[{index}].run_at_ms",
            )


def _put_spec(spec: pb.TaskSpec, task: NewTask) -> None:
    spec.queue = task.queue
    spec.type = task.type
    spec.payload = task.payload
    if task.headers:
        spec.headers.update(task.headers)
    if task.priority is not None:
        spec.priority = task.priority
    if task.tenant:
        spec.tenant = task.tenant
    if task.request_id:
        spec.request_id = task.request_id
    if task.request_id_ttl_ms is not None:
        spec.request_id_ttl_ms = task.request_id_ttl_ms
    if task.run_at_ms is not None:
        spec.run_at_ms = task.run_at_ms
    if task.delay_ms is not None:
        spec.delay_ms = task.delay_ms
    if task.max_attempts is not None:
        spec.max_attempts = task.max_attempts
    if task.max_claims is not None:
        spec.max_claims = task.max_claims
    if task.result_ttl_ms is not None:
        spec.result_ttl_ms = task.result_ttl_ms


def _spec_misfit(task: object, where: str, misfit: Exception) -> InvalidArgument:
    """Finds the field at leisure: the fast path does not keep track of it."""
    if not isinstance(task, NewTask):
        return _misfit(where, misfit)
    for name in pb.TaskSpec.DESCRIPTOR.fields_by_name:
        value = getattr(task, name)
        try:
            pb.TaskSpec(**{name: value})
        except _MISFITS as found:
            return _misfit(f"{where}.{name}", found)
    return _misfit(where, misfit)


def _misfit(where: str, misfit: Exception) -> InvalidArgument:
    if isinstance(misfit, UnicodeError):
        problem = "text that can be written as UTF-8, but it cannot"
    elif isinstance(misfit, ValueError | OverflowError):
        problem = "a value that its field can hold, but it cannot"
    else:
        problem = "a value of its type, but it is of another"
    return InvalidArgument(f"Expected {where} to hold {problem}.", reason="INVALID_FIELD", field=where)


# ----------------------------------------------------------------------------------------------- answers


class _Outcome(Protocol):
    @property
    def rejection(self) -> pb.Rejection: ...
    # Named as protobuf names it.
    def WhichOneof(self, oneof_group: str, /) -> str | None: ...  # noqa: N802


OutcomeT = TypeVar("OutcomeT", bound=_Outcome)


def _read_each(
    outcomes: Sequence[OutcomeT], asked: int, done: str, read: Callable[[OutcomeT], T]
) -> list[T | Rejected]:
    """One result per item, in order; `done` is the case of the oneof that is not a rejection."""
    if len(outcomes) != asked:
        raise UnexpectedAnswer(f"{len(outcomes)} outcomes for {asked} items")
    results: list[T | Rejected] = []
    for outcome in outcomes:
        case = outcome.WhichOneof("outcome")
        if case == done:
            results.append(read(outcome))
        elif case == "rejection":
            results.append(_rejection(outcome.rejection))
        else:
            raise UnexpectedAnswer("an outcome of an unknown kind")
    return results


def _rejection(message: pb.Rejection) -> Rejected:
    return rejected(message.reason, message.message, field=message.field, retry_after_ms=max(0, message.retry_after_ms))


def enqueue_outcomes(
    response: pb.EnqueueResponse, asked: int, made_up: Sequence[int] = ()
) -> list[Accepted | Rejected]:
    """`made_up`: where the request id was made up. There a duplicate is only this call's own repetition."""
    outcomes = _read_each(response.outcomes, asked, "accepted", lambda outcome: _accepted(outcome.accepted))
    for at in made_up:
        outcome = outcomes[at]
        if isinstance(outcome, Accepted) and outcome.duplicate:
            outcomes[at] = Accepted(outcome.task_id)
    return outcomes


def ack_outcomes(response: pb.AckResponse, asked: int) -> list[Acked | Rejected]:
    return _read_each(response.outcomes, asked, "acked", lambda outcome: _acked(outcome.acked))


def fail_outcomes(response: pb.FailResponse, asked: int) -> list[Failed | Rejected]:
    return _read_each(
        response.outcomes,
        asked,
        "failed",
        lambda outcome: Failed(_state(outcome.failed.state), outcome.failed.retry_at_ms or None),
    )


def extend_outcomes(response: pb.ExtendResponse, asked: int, sent_s: float) -> list[Extended | Rejected]:
    return _read_each(response.outcomes, asked, "extended", lambda outcome: _extended(outcome.extended, sent_s=sent_s))


def release_outcomes(response: pb.ReleaseResponse, asked: int) -> list[Released | Rejected]:
    return _read_each(response.outcomes, asked, "released", lambda outcome: Released(_state(outcome.released.state)))


def cancel_outcomes(response: pb.CancelResponse, asked: int) -> list[Cancelled | Rejected]:
    return _read_each(response.outcomes, asked, "cancelled", lambda outcome: Cancelled(_state(outcome.cancelled.state)))


def wait_outcomes(response: pb.WaitTasksResponse, asked: int) -> list[tuple[TaskInfo, bool] | Rejected]:
    """With each task, whether its result was left out."""
    return _read_each(
        response.outcomes, asked, "task", lambda outcome: (_task_info(outcome.task), outcome.task.result_omitted)
    )


def queue_page(response: pb.ListQueuesResponse) -> QueuePage:
    return QueuePage(tuple(map(_queue_stats, response.queues)), response.next_page_token)


def queue_stats_outcomes(response: pb.QueueStatsResponse, asked: int) -> list[QueueStats | Rejected]:
    return _read_each(response.outcomes, asked, "counts", lambda outcome: _queue_stats(outcome.counts))


def dead_letter_outcomes(
    response: pb.RetryDeadLettersResponse | pb.DiscardDeadLettersResponse, asked: int
) -> list[DeadLetterDone | Rejected]:
    return _read_each(response.outcomes, asked, "done", lambda _: DeadLetterDone())


def claimed_tasks(response: pb.ReserveResponse, sent_s: float) -> list[ClaimedTask]:
    return [_claimed(claim, sent_s) for claim in response.claims]


def task_info(response: pb.GetTaskResponse | pb.GetDeadLetterResponse) -> TaskInfo:
    if not response.HasField("task"):
        raise UnexpectedAnswer("no task in it")
    return _task_info(response.task)


def dead_letter_page(response: pb.ListDeadLettersResponse) -> DeadLetterPage:
    return DeadLetterPage(tuple(map(_task_info, response.tasks)), response.next_page_token)


def _state(number: int) -> TaskState:
    return _STATES.get(number, TaskState.UNKNOWN)


def _accepted(message: pb.Accepted) -> Accepted:
    return Accepted(message.task_id, message.duplicate)


_ACKED = Acked()


def _acked(message: pb.Acked) -> Acked:
    # Nearly every ack comes without follow-ups: they share one value.
    return Acked(tuple(map(_accepted, message.follow_ups))) if message.follow_ups else _ACKED


def _extended(message: pb.Extended, *, sent_s: float) -> Extended:
    return Extended(
        lease_ms=message.lease_ms,
        lease_ends_s=sent_s + message.lease_ms / 1000,
        cancel_requested=message.cancel_requested,
        draining=message.draining,
    )


def _claimed(claim: pb.Claim, sent_s: float) -> ClaimedTask:
    spec = claim.task
    lease_ms = claim.lease_ms
    headers = spec.headers
    return ClaimedTask(
        task_id=claim.task_id,
        token=claim.token,
        queue=spec.queue,
        type=spec.type,
        payload=spec.payload,
        headers=dict(headers) if headers else {},
        priority=spec.priority if spec.HasField("priority") else None,
        tenant=spec.tenant,
        request_id=spec.request_id,
        attempt=claim.attempt,
        claims=claim.claims,
        max_attempts=spec.max_attempts if spec.HasField("max_attempts") else None,
        enqueued_at_ms=claim.enqueued_at_ms,
        lease_ms=lease_ms,
        lease_ends_s=sent_s + lease_ms / 1000,
    )


def _new_task(spec: pb.TaskSpec) -> NewTask:
    has = spec.HasField
    # Handed over once more, the task must not be taken for a repetition of the call that made its id up.
    made_up = parse_made_up(spec.request_id) is not None
    return NewTask(
        queue=spec.queue,
        type=spec.type,
        payload=spec.payload,
        headers=dict(spec.headers),
        priority=spec.priority if has("priority") else None,
        tenant=spec.tenant,
        request_id=None if made_up else spec.request_id,
        request_id_ttl_ms=spec.request_id_ttl_ms if has("request_id_ttl_ms") and not made_up else None,
        run_at_ms=spec.run_at_ms if has("run_at_ms") else None,
        delay_ms=spec.delay_ms if has("delay_ms") else None,
        max_attempts=spec.max_attempts if has("max_attempts") else None,
        max_claims=spec.max_claims if has("max_claims") else None,
        result_ttl_ms=spec.result_ttl_ms if has("result_ttl_ms") else None,
    )


def _task_info(info: pb.TaskInfo) -> TaskInfo:
    has = info.HasField
    error = info.last_error
    return TaskInfo(
        task_id=info.task_id,
        state=_state(info.state),
        queue=info.queue,
        task=_new_task(info.task) if has("task") else None,
        priority=info.priority,
        failures=info.failures,
        max_attempts=info.max_attempts,
        claims=info.claims,
        max_claims=info.max_claims,
        enqueued_at_ms=info.enqueued_at_ms,
        changed_at_ms=info.changed_at_ms,
        due_at_ms=info.due_at_ms or None,
        lease_expires_at_ms=info.lease_expires_at_ms or None,
        worker=info.worker,
        cancel_requested=info.cancel_requested,
        last_error=TaskError(error.type, error.message, error.traceback) if has("last_error") else None,
        result=info.result if has("result") else None,
        purge_at_ms=info.purge_at_ms or None,
        dead_reason=info.dead_reason,
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
    )
