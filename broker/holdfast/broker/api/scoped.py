"""What a caller may not see is not there: calls about tasks and schedules that exist already name neither queue nor
tenant, so the broker that has them looks, before it answers.

An id that the caller may not name becomes one that no task ever has. So it is answered by the same code, and with the
same words, as an id that does not exist.
"""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from holdfast.access.permits import Permit
from holdfast.broker.api.tasks import TaskService
from holdfast.machine import rejections
from holdfast.machine.ids import SECRET_BITS, later_task_id, parse_task_id
from holdfast.machine.rejections import SCHEDULE_NOT_FOUND
from holdfast.machine.rows import NO_TASK, Execution
from holdfast.proto.v1 import schedules_pb2
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.serving.refusals import PERMISSION_DENIED, RefusedError, permission_denied

NO_TASK_ID: Final = "00000000-0000-8000-8000-000000000000"
_RANGE_TASKS_MAX: Final = 1000  # a longer one is refused anyway

Handler = Callable[[Any], Coroutine[Any, Any, Any]]

# Calls about tasks, by the list of what has their ids. What only reads waits until this broker knows that it leads.
_LISTS: Final = {
    "Ack": ("items", "ranges"), "Fail": ("items",), "Extend": ("items",), "Release": ("claims",),
    "Cancel": ("task_ids",), "UpdateTasks": ("items",), "WaitTasks": ("task_ids",), "RetryDeadLetters": ("task_ids",),
    "DiscardDeadLetters": ("task_ids",), "GetTask": (), "GetDeadLetter": (),
}  # fmt: skip
_OF_CLAIMS: Final = frozenset({"Ack", "Fail", "Extend", "Release"})
_READS: Final = frozenset({"WaitTasks", "GetTask", "GetDeadLetter"})
_SCHEDULES: Final = frozenset({"GetSchedule", "DeleteSchedule", "PauseSchedule", "TriggerSchedule", "PreviewSchedule"})


def scoped(name: str, service: TaskService, permit: Permit, handler: Handler) -> Handler:
    """What answers a call of that name to a caller who may not see everything; `handler` answers it to others."""
    if name in _LISTS:
        scope = _Tasks(name, service, permit)
        return lambda request: scope.answer(request, handler)
    if name == "Enqueue":
        return lambda request: _enqueue(service, permit, request, handler)
    if name in _SCHEDULES or name == "PutSchedule":
        return lambda request: _of_schedule(name, service, permit, request, handler)
    return handler


class _Tasks:
    """A call about tasks that are there."""

    def __init__(self, name: str, service: TaskService, permit: Permit) -> None:
        self._name = name
        self._shard = service.shard
        self._permit = permit

    async def answer(self, request: Any, handler: Handler) -> Any:
        if self._name in _READS:
            await self._shard.read_barrier()
        else:
            self._shard.now_ms()  # refuses if another one leads: what is here may be old
        lists = _LISTS[self._name]
        if not lists:
            request.task_id = self._shown([request.task_id])[0]
        elif self._name in _OF_CLAIMS:
            return await self._of_claims(request, handler)
        elif lists == ("task_ids",):
            request.task_ids[:] = self._shown(request.task_ids)
        else:
            self._hide(request.items)
        return await handler(request)

    def _hide(self, refs: Sequence[Any]) -> None:
        for ref, text in zip(refs, self._shown([ref.task_id for ref in refs]), strict=True):
            if ref.task_id != text:
                ref.task_id = text

    def _shown(self, texts: Sequence[str]) -> list[str]:
        """What is no id at all is refused by others."""
        task_ids = [parse_task_id(text) for text in texts]
        found = iter(self._shard.executions([task_id for task_id in task_ids if task_id is not None]))
        return [
            text if task_id is None or _is_allowed(self._permit, next(found)) else NO_TASK_ID
            for text, task_id in zip(texts, task_ids, strict=True)
        ]

    # --- claims -------------------------------------------------------------------------------------------------

    async def _of_claims(self, request: Any, handler: Handler) -> Any:
        """All claims of one secret were handed out together, to somebody who was allowed to have them. So of those that
        can prove one with it, only the refused ones are looked at: what is said of them must not tell that there is
        such a task."""
        refs = _claims_in(self._name, request)
        by_secret: dict[int, list[Any]] = {}
        for ref in refs:
            by_secret.setdefault(ref.secret, []).append(ref)
        proved = self._proved([group[0] for group in by_secret.values()])
        for group, is_proved in zip(by_secret.values(), proved, strict=True):
            if not is_proved:
                self._hide([ref for ref in group if not isinstance(ref, pb.AckRange)])
                self._hide_ranges([ref for ref in group if isinstance(ref, pb.AckRange)])
        response = await handler(request)
        for ref, outcome in zip(refs, [*response.outcomes, *getattr(response, "ranges", ())], strict=True):
            self._hide_refusals(ref, outcome)
        if self._name == "Ack":
            for outcome in response.outcomes:
                for accepted in outcome.acked.follow_ups:
                    _hide_duplicate(self._shard, self._permit, accepted)
        return response

    def _proved(self, refs: Sequence[Any]) -> list[bool]:
        """Of each: whether it is the present claim of a task that may be seen."""
        task_ids = [parse_task_id(ref.task_id) or NO_TASK for ref in refs]
        return [
            task is not None and task.token == ref.token << SECRET_BITS | ref.secret and _is_allowed(self._permit, task)
            for ref, task in zip(refs, self._shard.executions(task_ids), strict=True)
        ]

    def _hide_ranges(self, ranges: Sequence[pb.AckRange]) -> None:
        for claims in ranges:
            first = parse_task_id(claims.task_id)
            if first is None or not 1 <= claims.count <= _RANGE_TASKS_MAX:
                continue  # it is refused anyway
            task_ids = [later_task_id(first, index) for index in range(claims.count)]
            if not all(_is_allowed(self._permit, task) for task in self._shard.executions(task_ids)):
                claims.task_id = NO_TASK_ID

    def _hide_refusals(self, ref: Any, outcome: Any) -> None:
        if outcome.HasField("rejection"):
            self._hide_refusal(ref.task_id, 0, outcome.rejection)
        for item in getattr(outcome, "refused", ()):
            self._hide_refusal(ref.task_id, item.at, item.rejection)

    def _hide_refusal(self, text: str, place: int, rejection: pb.Rejection) -> None:
        first = parse_task_id(text)
        if first is None or rejection.reason == rejections.TASK_NOT_FOUND:
            return
        (task,) = self._shard.executions([later_task_id(first, place)])
        if task is not None and not _is_allowed(self._permit, task):
            unknown = rejections.task_not_found()
            rejection.Clear()
            rejection.reason, rejection.message = unknown.code, unknown.message


def _claims_in(name: str, request: Any) -> list[Any]:
    """Claims and ranges of claims, in the order in which they are answered."""
    if name == "Release":
        return [*request.claims]
    return [*(item.claim for item in request.items), *getattr(request, "ranges", ())]


def _is_allowed(permit: Permit, task: Execution | None) -> bool:
    return task is not None and permit.allows(task.queue.decode(), task.tenant.decode())


# --- what is new, and what it meets


async def _enqueue(service: TaskService, permit: Permit, request: Any, handler: Handler) -> Any:
    """A request id, or a unique key, may be that of somebody else's task: then it cannot be had, and that is all."""
    response = await handler(request)
    for index, outcome in enumerate(response.outcomes):
        if outcome.accepted.duplicate and not _is_own(service.shard, permit, outcome.accepted):
            outcome.rejection.CopyFrom(_taken(f"tasks[{index}]"))
    for index, outcome in enumerate(response.runs):
        if outcome.duplicate and not _is_of_permit(service.shard, permit, outcome.first_task_id):
            outcome.Clear()
            outcome.rejection.CopyFrom(_taken(f"runs[{index}].task"))
    return response


def _is_own(shard: Any, permit: Permit, accepted: pb.Accepted) -> bool:
    return not accepted.duplicate or _is_of_permit(shard, permit, accepted.task_id)


def _is_of_permit(shard: Any, permit: Permit, text: str) -> bool:
    """One that has ended and is known no more says nothing to anybody."""
    task_id = parse_task_id(text)
    (task,) = shard.executions([task_id]) if task_id is not None else (None,)
    return task is None or _is_allowed(permit, task)


def _hide_duplicate(shard: Any, permit: Permit, accepted: pb.Accepted) -> None:
    if not _is_own(shard, permit, accepted):
        accepted.task_id = NO_TASK_ID
        accepted.ClearField("state")


def _taken(field: str) -> pb.Rejection:
    return pb.Rejection(
        reason=PERMISSION_DENIED,
        message=f"Expected a request_id and a unique_key for {field} that are free for this caller, but one is not; "
        "take another one.",
        field=field,
    )


# --- schedules


async def _of_schedule(name: str, service: TaskService, permit: Permit, request: Any, handler: Handler) -> Any:
    """A schedule is its task's: whose tenant may not be seen, has none."""
    if not request.queue or not request.name or permit.tenants_of(request.queue) is None:
        return await handler(request)
    wanted = schedules_pb2.GetScheduleRequest(queue=request.queue, name=request.name)
    try:
        found = (await service.schedules.get_schedule(wanted)).schedule
    except RefusedError as error:
        if error.reason != SCHEDULE_NOT_FOUND or name != "PutSchedule":
            raise
        return await handler(request)
    if not permit.allows(request.queue, found.spec.task.tenant):
        if name == "PutSchedule":
            raise permission_denied(
                "its caller", "operate", "with a schedule of this name; take another one", field="name"
            )
        rejection = rejections.schedule_not_found()
        raise RefusedError(rejection.code, rejection.message, field="name")
    response = await handler(request)
    if name == "TriggerSchedule" and not _is_own(service.shard, permit, response):
        response.task_id = NO_TASK_ID
        response.ClearField("state")
    return response
