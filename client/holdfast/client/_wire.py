"""Between the values of `models` and the messages of the wire API. `_queues_wire`, `_schedules_wire` and
`_cluster_wire` do the same for the other calls.

This is the library's hot path: a batch passes through it item by item, so it sets and reads fields directly, and looks
at optional ones only where they are present.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from itertools import count

from holdfast.client._claims import claim_parts, put_claim
from holdfast.client._fitting import (
    MISFITS,
    at_most_one_start,
    both_given,
    build,
    check_pauses,
    field_misfit,
    fit,
    misfit,
    number,
    number_of,
    parts,
    read_each,
    several,
    state_of,
    wanted_by,
)
from holdfast.client.errors import InvalidArgument, Rejected, UnexpectedAnswer
from holdfast.client.models import (
    Accepted,
    Ack,
    Acked,
    Attempt,
    Cancelled,
    Claim,
    Extended,
    Extension,
    Failed,
    Failure,
    NewTask,
    Released,
    RetryPolicy,
    RetryShape,
    TaskError,
    TaskInfo,
    TaskUpdate,
    UniqueScope,
    Updated,
)
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.routing.sets import is_automatic_key, parse_automatic_key

_SHAPE_NUMBERS = {
    RetryShape.EXPONENTIAL: pb.RETRY_SHAPE_EXPONENTIAL,
    RetryShape.LINEAR: pb.RETRY_SHAPE_LINEAR,
    RetryShape.FIXED: pb.RETRY_SHAPE_FIXED,
}
_SHAPES: dict[int, RetryShape] = {number: shape for shape, number in _SHAPE_NUMBERS.items()}
_SCOPE_NUMBERS = {
    UniqueScope.UNTIL_DONE: pb.UNIQUE_SCOPE_UNTIL_DONE,
    UniqueScope.WHILE_WAITING: pb.UNIQUE_SCOPE_WHILE_WAITING,
}
_SCOPES: dict[int, UniqueScope] = {number: scope for scope, number in _SCOPE_NUMBERS.items()}

# All numbers of a task, an automatic idempotency key, and what the encoding adds.
_TASK_BYTES = 300


# ---------------------------------------------------------------------------------------------- requests


def enqueue_request(tasks: Sequence[NewTask], places: Iterable[int] | None = None) -> pb.EnqueueRequest:
    """`places`: of these tasks in the caller's batch, if they are not all."""
    request = pb.EnqueueRequest()
    _put_specs(request.tasks.add, tasks, "tasks", places)
    return request


def approximate_bytes(task: NewTask) -> int:
    """About what a task takes in a request, never less: a character has up to four bytes."""
    text = len(task.queue) + len(task.type) + len(task.tenant) + len(task.request_id or "")
    text += len(task.unique_key) + len(task.limit_key)
    if task.retry is not None:
        text += sum(len(name) + 2 for name in task.retry.non_retryable)
    text += sum(len(name) + len(value) + 2 for name, value in task.headers.items())
    return len(task.payload) + 4 * text + _TASK_BYTES


def reserve_request(
    queues: Sequence[str],
    max_tasks: int,
    max_tasks_by_queue: Mapping[str, int] | None,
    lease_ms: int,
    lease_ms_by_type: Mapping[str, int] | None,
    wait_ms: int,
    claim_request_id: str,
    worker: str,
    empty_handed: bool | None,
    suspects_only: bool,
    settles_later: bool,
    held_only: bool,
    held_at: Sequence[int],
) -> pb.ReserveRequest:
    limits = build(lambda: _queue_limits(queues, max_tasks_by_queue or {}), "max_tasks_by_queue")
    leases = build(lambda: _type_leases(lease_ms_by_type or {}), "lease_ms_by_type")
    return fit(
        pb.ReserveRequest,
        queues=build(lambda: several(queues), "queues"),
        max_tasks=max_tasks,
        lease_ms=lease_ms,
        wait_ms=wait_ms,
        claim_request_id=claim_request_id,
        worker=worker,
        takes_runs=True,
        queue_tasks_max=limits,
        type_lease_ms=leases,
        empty_handed=empty_handed,
        suspects_only=suspects_only,
        settles_later=settles_later,
        held_only=held_only,
        held_at=build(lambda: [number(shard) for shard in held_at], "held_at"),
    )


def _type_leases(leases: Mapping[str, int]) -> dict[str, int]:
    found = {name: number(lease_ms) for name, lease_ms in leases.items()}
    pb.ReserveRequest(type_lease_ms=found)  # they may not fit, and have another name there
    return found


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
    found = [number(limits.get(queue, 0)) for queue in queues]
    pb.ReserveRequest(queue_tasks_max=found)  # they may not fit, and have another name there
    return found


def ack_request(items: Sequence[Claim | Ack], places: Iterable[int] | None = None) -> pb.AckRequest:
    """`places`: of these items in the caller's batch, if they are not all."""
    request = pb.AckRequest()
    add = request.items.add
    for index, item in zip(count() if places is None else places, items, strict=False):
        message = add()
        try:
            if isinstance(item, Ack):
                put_claim(message.claim, item.claim)
                if item.result is not None:
                    message.result = item.result
            else:
                put_claim(message.claim, item)
        except MISFITS as found:
            claim, result = (item.claim, item.result) if isinstance(item, Ack) else (item, None)
            values = {"claim": claim_parts(claim), "result": result}
            raise field_misfit(pb.AckItem, values, f"items[{index}]", found) from None
        if isinstance(item, Ack) and item.follow_ups:
            _put_specs(message.follow_ups.add, item.follow_ups, f"items[{index}].follow_ups")
    return request


def fail_request(items: Sequence[Failure]) -> pb.FailRequest:
    request = pb.FailRequest()
    for index, item in enumerate(items):
        message = request.items.add()
        try:
            put_claim(message.claim, item.claim)
            message.error.type = item.error.type
            message.error.message = item.error.message
            message.error.traceback = item.error.traceback
            if item.retry_delay_ms is not None:
                message.retry_delay_ms = number(item.retry_delay_ms)
            if item.retry_at_ms is not None:
                message.retry_at_ms = number(item.retry_at_ms)
            message.dead = item.dead
        except MISFITS as found:
            values = parts(item, "retry_delay_ms", "retry_at_ms", "dead")
            values["claim"] = claim_parts(getattr(item, "claim", None))
            values["error"] = parts(getattr(item, "error", None), "type", "message", "traceback")
            raise field_misfit(pb.FailItem, values, f"items[{index}]", found) from None
        if item.retry_at_ms is not None and item.retry_delay_ms is not None:
            raise both_given("retry_at_ms", "retry_delay_ms", f"items[{index}]")
    return request


def extend_request(items: Sequence[Extension]) -> pb.ExtendRequest:
    request = pb.ExtendRequest()
    for index, item in enumerate(items):
        message = request.items.add()
        try:
            put_claim(message.claim, item.claim)
            message.lease_ms = number(item.lease_ms)
        except MISFITS as found:
            values = {"claim": claim_parts(getattr(item, "claim", None))} | parts(item, "lease_ms")
            raise field_misfit(pb.ExtendItem, values, f"items[{index}]", found) from None
    return request


def release_request(claims: Sequence[Claim], delay_ms: int) -> pb.ReleaseRequest:
    request = fit(pb.ReleaseRequest, delay_ms=delay_ms)
    for index, claim in enumerate(claims):
        try:
            put_claim(request.claims.add(), claim)
        except MISFITS as found:
            raise field_misfit(pb.ClaimRef, claim_parts(claim), f"claims[{index}]", found) from None
    return request


def cancel_request(task_ids: Sequence[str]) -> pb.CancelRequest:
    return build(lambda: pb.CancelRequest(task_ids=several(task_ids)), "task_ids")


def update_request(items: Sequence[TaskUpdate]) -> pb.UpdateTasksRequest:
    request = pb.UpdateTasksRequest()
    for index, item in enumerate(items):
        message = request.items.add()
        try:
            message.task_id = item.task_id
            if item.priority is not None:
                message.priority = number(item.priority)
            if item.run_at_ms is not None:
                message.run_at_ms = number(item.run_at_ms)
            if item.delay_ms is not None:
                message.delay_ms = number(item.delay_ms)
        except MISFITS as found:
            values = parts(item, "task_id", "priority", "run_at_ms", "delay_ms")
            raise field_misfit(pb.UpdateItem, values, f"items[{index}]", found) from None
        at_most_one_start(item.run_at_ms, item.delay_ms, f"items[{index}]")
    return request


def get_task_request(task_id: str) -> pb.GetTaskRequest:
    return build(lambda: pb.GetTaskRequest(task_id=task_id), "task_id")


def wait_tasks_request(task_ids: Sequence[str]) -> pb.WaitTasksRequest:
    return build(lambda: pb.WaitTasksRequest(task_ids=several(task_ids)), "task_ids")


def checked_task_ids(task_ids: Sequence[str]) -> list[str]:
    return list(wait_tasks_request(task_ids).task_ids)


def _put_specs(
    add: Callable[[], pb.TaskSpec], tasks: Iterable[NewTask], where: str, places: Iterable[int] | None = None
) -> None:
    for index, task in zip(count() if places is None else places, tasks, strict=False):
        try:
            _put_spec(add(), task)
        except MISFITS as found:
            raise _spec_misfit(task, f"{where}[{index}]", found) from None
        _check(task, where, index)


def put_task(spec: pb.TaskSpec, task: NewTask, where: str) -> None:
    """The same for a single one."""
    try:
        _put_spec(spec, task)
    except MISFITS as found:
        raise _spec_misfit(task, where, found) from None
    at_most_one_start(task.run_at_ms, task.delay_ms, where)
    if task.retry is not None:
        check_pauses(task.retry, f"{where}.retry")


def single_spec(task: NewTask) -> pb.TaskSpec:
    """The same for the only task of a call."""
    spec = pb.TaskSpec()
    try:
        _put_spec(spec, task)
    except MISFITS as found:
        raise _spec_misfit(task, "tasks[0]", found) from None
    _check(task, "tasks", 0)
    return spec


def _check(task: NewTask, where: str, index: int) -> None:
    if task.request_id:
        refuse_automatic_key(task.request_id, f"{where}[{index}].request_id")
    if task.run_at_ms is not None and task.delay_ms is not None:
        raise both_given("run_at_ms", "delay_ms", f"{where}[{index}]")
    if task.retry is not None:
        check_pauses(task.retry, f"{where}[{index}].retry")


def refuse_automatic_key(request_id: str, field: str) -> None:
    """Servers would look for it where this client's own ids go, which is not always the same place."""
    if is_automatic_key(request_id):
        raise InvalidArgument(
            "Expected a request_id that does not look like one that clients make up (~0.x.0), but it does.",
            reason="INVALID_FIELD",
            field=field,
        )


def _put_spec(spec: pb.TaskSpec, task: NewTask) -> None:
    spec.queue = task.queue
    spec.type = task.type
    spec.payload = task.payload
    if task.headers:
        spec.headers.update(task.headers)
    if task.priority is not None:
        spec.priority = number(task.priority)
    if task.tenant:
        spec.tenant = task.tenant
    if task.request_id:
        spec.request_id = task.request_id
    if task.request_id_ttl_ms is not None:
        spec.request_id_ttl_ms = number(task.request_id_ttl_ms)
    if task.run_at_ms is not None:
        spec.run_at_ms = number(task.run_at_ms)
    if task.delay_ms is not None:
        spec.delay_ms = number(task.delay_ms)
    if task.max_attempts is not None:
        spec.max_attempts = number(task.max_attempts)
    if task.max_claims is not None:
        spec.max_claims = number(task.max_claims)
    if task.result_ttl_ms is not None:
        spec.result_ttl_ms = number(task.result_ttl_ms)
    _put_rules(spec, task)


def _put_rules(spec: pb.TaskSpec, task: NewTask) -> None:
    if task.retry is not None:
        _put_retry(spec.retry, task.retry)
    if task.unique_key:
        spec.unique_key = task.unique_key
    if task.unique_scope is not UniqueScope.UNTIL_DONE:
        spec.unique_scope = number_of(task.unique_scope, _SCOPE_NUMBERS, UniqueScope)
    if task.limit_key:
        spec.limit_key = task.limit_key
    if task.timeout_ms is not None:
        spec.timeout_ms = number(task.timeout_ms)
    if task.ttl_ms is not None:
        spec.ttl_ms = number(task.ttl_ms)


def _put_retry(message: pb.RetryPolicy, retry: RetryPolicy) -> None:
    message.SetInParent()
    if retry.shape is not None:
        message.shape = number_of(retry.shape, _SHAPE_NUMBERS, RetryShape)
    if retry.base_ms is not None:
        message.base_ms = number(retry.base_ms)
    if retry.factor is not None:
        message.factor = number(retry.factor)
    if retry.cap_ms is not None:
        message.cap_ms = number(retry.cap_ms)
    if retry.jitter is not None:
        message.jitter = number(retry.jitter)
    if retry.non_retryable:
        message.non_retryable.extend(several(retry.non_retryable))


def _spec_misfit(task: object, where: str, found: Exception) -> InvalidArgument:
    """Finds the field at leisure: the fast path does not keep track of it."""
    if not isinstance(task, NewTask):
        return misfit(where, found)
    for name in (field.name for field in fields(NewTask)):
        alone = NewTask(**{"queue": "", "type": "", name: getattr(task, name)})
        try:
            _put_spec(pb.TaskSpec(), alone)
        except MISFITS as of_this_one:
            inner = _retry_field(task.retry) if name == "retry" else ""
            return misfit(f"{where}.{name}{inner}", of_this_one, _wanted(name, inner))
    return misfit(where, found)


def _wanted(name: str, inner: str) -> str:
    return wanted_by(pb.RetryPolicy, inner[1:]) if inner else wanted_by(pb.TaskSpec, name)


def _retry_field(retry: object) -> str:
    """Which of its fields does not fit, with a dot before it; empty if it is no policy at all."""
    for name in (field.name for field in fields(RetryPolicy)) if isinstance(retry, RetryPolicy) else ():
        try:
            _put_retry(pb.RetryPolicy(), RetryPolicy(**{name: getattr(retry, name)}))
        except MISFITS:
            return f".{name}"
    return ""


# ----------------------------------------------------------------------------------------------- answers


def enqueue_outcomes(
    response: pb.EnqueueResponse, asked: int, automatic: Sequence[int] = ()
) -> list[Accepted | Rejected]:
    """`automatic`: where the request id is automatic and there is no unique key. There a duplicate is only this call's
    own repetition."""
    outcomes = read_each(response.outcomes, asked, "accepted", lambda outcome: accepted(outcome.accepted))
    for index in automatic:
        outcome = outcomes[index]
        if isinstance(outcome, Accepted) and outcome.duplicate:
            outcomes[index] = Accepted(outcome.task_id)
    return outcomes


def ack_outcomes(response: pb.AckResponse, asked: int) -> list[Acked | Rejected]:
    return read_each(response.outcomes, asked, "acked", lambda outcome: _acked(outcome.acked))


def fail_outcomes(response: pb.FailResponse, asked: int) -> list[Failed | Rejected]:
    return read_each(
        response.outcomes,
        asked,
        "failed",
        lambda outcome: Failed(state_of(outcome.failed.state), outcome.failed.retry_at_ms or None),
    )


def extend_outcomes(response: pb.ExtendResponse, asked: int, sent_s: float) -> list[Extended | Rejected]:
    sent_s += response.routed_ms / 1000
    return read_each(response.outcomes, asked, "extended", lambda outcome: _extended(outcome.extended, sent_s=sent_s))


def release_outcomes(response: pb.ReleaseResponse, asked: int) -> list[Released | Rejected]:
    return read_each(response.outcomes, asked, "released", lambda outcome: Released(state_of(outcome.released.state)))


def cancel_outcomes(response: pb.CancelResponse, asked: int) -> list[Cancelled | Rejected]:
    return read_each(
        response.outcomes, asked, "cancelled", lambda outcome: Cancelled(state_of(outcome.cancelled.state))
    )


def update_outcomes(response: pb.UpdateTasksResponse, asked: int) -> list[Updated | Rejected]:
    return read_each(response.outcomes, asked, "updated", lambda outcome: Updated(state_of(outcome.updated.state)))


def wait_outcomes(response: pb.WaitTasksResponse, asked: int) -> list[tuple[TaskInfo, bool] | Rejected]:
    """With each task, whether its result was left out."""
    return read_each(
        response.outcomes, asked, "task", lambda outcome: (task_info_of(outcome.task), outcome.task.result_omitted)
    )


def task_info(response: pb.GetTaskResponse | pb.GetDeadLetterResponse) -> TaskInfo:
    if not response.HasField("task"):
        raise UnexpectedAnswer("no task in it")
    return task_info_of(response.task)


def accepted(message: pb.Accepted) -> Accepted:
    if not message.duplicate:  # as nearly all
        return Accepted(message.task_id)
    state = message.state
    return Accepted(message.task_id, True, state_of(state) if state else None)


ACKED = Acked()


def _acked(message: pb.Acked) -> Acked:
    # Nearly every ack comes without follow-ups: they share one value.
    return Acked(tuple(map(accepted, message.follow_ups))) if message.follow_ups else ACKED


def _extended(message: pb.Extended, *, sent_s: float) -> Extended:
    return Extended(
        lease_ms=message.lease_ms,
        lease_ends_s=sent_s + (message.waited_ms + message.lease_ms) / 1000,
        cancel_requested=message.cancel_requested,
        draining=message.draining,
        ends_attempt=message.ends_attempt,
    )


def new_task(spec: pb.TaskSpec) -> NewTask:
    has = spec.HasField
    # Handed over once more, the task must not be taken for a repetition of the call that made its id up.
    is_automatic = parse_automatic_key(spec.request_id) is not None
    return NewTask(
        queue=spec.queue,
        type=spec.type,
        payload=spec.payload,
        headers=dict(spec.headers),
        priority=spec.priority if has("priority") else None,
        tenant=spec.tenant,
        request_id=None if is_automatic else spec.request_id,
        request_id_ttl_ms=spec.request_id_ttl_ms if has("request_id_ttl_ms") and not is_automatic else None,
        run_at_ms=spec.run_at_ms if has("run_at_ms") else None,
        delay_ms=spec.delay_ms if has("delay_ms") else None,
        max_attempts=spec.max_attempts if has("max_attempts") else None,
        max_claims=spec.max_claims if has("max_claims") else None,
        result_ttl_ms=spec.result_ttl_ms if has("result_ttl_ms") else None,
        retry=_retry(spec.retry) if has("retry") else None,
        unique_key=spec.unique_key,
        unique_scope=_SCOPES.get(spec.unique_scope, UniqueScope.UNKNOWN)
        if spec.unique_scope
        else UniqueScope.UNTIL_DONE,
        limit_key=spec.limit_key,
        timeout_ms=spec.timeout_ms if has("timeout_ms") else None,
        ttl_ms=spec.ttl_ms if has("ttl_ms") else None,
    )


def _retry(message: pb.RetryPolicy) -> RetryPolicy:
    has = message.HasField
    return RetryPolicy(
        shape=_SHAPES.get(message.shape, RetryShape.UNKNOWN) if message.shape else None,
        base_ms=message.base_ms if has("base_ms") else None,
        factor=message.factor if has("factor") else None,
        cap_ms=message.cap_ms if has("cap_ms") else None,
        jitter=message.jitter if has("jitter") else None,
        non_retryable=tuple(message.non_retryable),
    )


def task_info_of(info: pb.TaskInfo) -> TaskInfo:
    has = info.HasField
    error = info.last_error
    return TaskInfo(
        task_id=info.task_id,
        state=state_of(info.state),
        queue=info.queue,
        task=new_task(info.task) if has("task") else None,
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
        suspect=info.suspect,
        result_expired_at_ms=info.result_expired_at_ms or None,
        purge_at_ms=info.purge_at_ms or None,
        dead_reason=info.dead_reason,
        attempts=tuple(map(_attempt, info.attempts)),
        type=info.type,
        tenant=info.tenant,
        limit_key=info.limit_key,
        unique_key=info.unique_key,
        timeout_ms=info.timeout_ms or None,
        start_by_ms=info.start_by_ms or None,
    )


def _attempt(message: pb.Attempt) -> Attempt:
    return Attempt(
        worker=message.worker,
        claimed_at_ms=message.claimed_at_ms,
        ended_at_ms=message.ended_at_ms,
        how=message.how,
        error_type=message.error_type,
        error_message=message.error_message,
    )
