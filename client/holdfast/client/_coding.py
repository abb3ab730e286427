"""What a client does with payloads, results and the texts of errors on their way out and in: nothing, or what its codec
says. What cannot be read raises when somebody looks at it, so that it takes nothing from what came with it.
"""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

from holdfast.client._lazy import LazyList
from holdfast.client.codec import Codec, of_error, of_payload, of_result
from holdfast.client.errors import InvalidArgument, Unreadable
from holdfast.client.models import Ack, Attempt, Claim, ClaimedTask, Failure, NewTask, TaskError, TaskInfo
from holdfast.client.schedules import Schedule, ScheduleInfo

T = TypeVar("T")


class Coding:
    """Nothing."""

    is_off = True

    def task(self, task: NewTask) -> NewTask:
        return task

    def tasks(self, tasks: Sequence[NewTask]) -> Sequence[NewTask]:
        return tasks

    def payloads(self, task: NewTask, payloads: Sequence[bytes]) -> Sequence[bytes]:
        return payloads

    def acks(self, items: Sequence[Claim | Ack]) -> Sequence[Claim | Ack]:
        return items

    def failures(self, items: Sequence[Failure]) -> Sequence[Failure]:
        return items

    def schedule(self, schedule: Schedule) -> Schedule:
        return schedule

    def claimed(self, claim: ClaimedTask) -> ClaimedTask:
        return claim

    def info(self, info: TaskInfo) -> TaskInfo:
        return info

    def infos(self, infos: tuple[TaskInfo, ...]) -> tuple[TaskInfo, ...]:
        return infos

    def schedule_info(self, info: ScheduleInfo) -> ScheduleInfo:
        return info


class CodecCoding(Coding):
    """What the codec says. What does not fit is left as it is: whoever makes the request tells which field it is."""

    is_off = False

    def __init__(self, codec: Codec) -> None:
        self._codec = codec

    # ------------------------------------------------------------------------------------------------------ out

    def task(self, task: NewTask) -> NewTask:
        if not _fits(task) or not _is_bytes(task.payload):
            return task
        # A request id stands for one payload: handed over once more, it has to be the same for the server, too.
        once = task.request_id if isinstance(task.request_id, str) else ""
        return replace(task, payload=self._codec.encode(task.payload, of_payload(task.type), once))

    def tasks(self, tasks: Sequence[NewTask]) -> Sequence[NewTask]:
        return [self.task(task) for task in tasks]

    def payloads(self, task: NewTask, payloads: Sequence[bytes]) -> Sequence[bytes]:
        if not _fits(task):
            return payloads
        bound, encode = of_payload(task.type), self._codec.encode
        return [encode(payload, bound) if _is_bytes(payload) else payload for payload in payloads]

    def acks(self, items: Sequence[Claim | Ack]) -> Sequence[Claim | Ack]:
        if isinstance(items, LazyList) and items.is_unseen:  # claims as they came
            return items
        return [self._ack(item) if isinstance(item, Ack) else item for item in items]

    def _ack(self, item: Ack) -> Ack:
        result = item.result
        if isinstance(result, bytes):
            result = self._codec.encode(result, of_result(str(item.claim.task_id)))
        return Ack(item.claim, result, self.tasks(item.follow_ups))

    def failures(self, items: Sequence[Failure]) -> Sequence[Failure]:
        return [*map(self._failure, items)] if self._codec.seals_errors else items

    def _failure(self, item: Failure) -> Failure:
        error = item.error
        bound, seal = of_error(str(item.claim.task_id)), self._codec.seal_text
        texts = [seal(text, bound) if isinstance(text, str) else text for text in (error.message, error.traceback)]
        return replace(item, error=TaskError(error.type, *texts))

    def schedule(self, schedule: Schedule) -> Schedule:
        return replace(schedule, task=self.task(schedule.task)) if isinstance(schedule, Schedule) else schedule

    # ------------------------------------------------------------------------------------------------------- in

    def claimed(self, claim: ClaimedTask) -> ClaimedTask:
        try:
            payload = self._codec.decode(claim.payload, of_payload(claim.type))
        except Unreadable as error:
            return _without(_UnreadableClaim, claim, error)
        return claim if payload is claim.payload else replace(claim, payload=payload)

    def info(self, info: TaskInfo) -> TaskInfo:
        task = None if info.task is None else self._read_task(info.task)
        bound, last = of_error(info.task_id), info.last_error
        if last is not None:
            read = self._codec.open_text
            last = TaskError(last.type, read(last.message, bound), read(last.traceback, bound))
        attempts = tuple(self._attempt(attempt, info.task_id) for attempt in info.attempts)
        read_info = replace(info, task=task, last_error=last, attempts=attempts)
        if info.result is None:
            return read_info
        try:
            return replace(read_info, result=self._codec.decode(info.result, of_result(info.task_id)))
        except Unreadable as error:
            return _without(_UnreadableInfo, read_info, error)

    def infos(self, infos: tuple[TaskInfo, ...]) -> tuple[TaskInfo, ...]:
        return tuple(map(self.info, infos))

    def schedule_info(self, info: ScheduleInfo) -> ScheduleInfo:
        return replace(info, schedule=replace(info.schedule, task=self._read_task(info.schedule.task)))

    def _read_task(self, task: NewTask) -> NewTask:
        if not task.payload:  # it was left out
            return task
        try:
            return replace(task, payload=self._codec.decode(task.payload, of_payload(task.type)))
        except Unreadable as error:
            return _without(_UnreadableTask, task, error)

    def _attempt(self, attempt: Attempt, task_id: str) -> Attempt:
        return replace(attempt, error_message=self._codec.open_text(attempt.error_message, of_error(task_id)))


def _fits(task: object) -> bool:
    return isinstance(task, NewTask) and isinstance(task.type, str)


def _is_bytes(value: object) -> bool:
    return isinstance(value, bytes)


AS_IT_IS = Coding()


def coding_of(codec: object) -> Coding:
    """`codec=` as it was given."""
    if codec is None:
        return AS_IT_IS
    if not isinstance(codec, Codec):
        sentence = f"Expected codec to be a Codec, but got {type(codec).__name__}: codec=Codec(keys=…)."
        raise InvalidArgument(sentence, reason="INVALID_FIELD", field="codec")
    return CodecCoding(codec)


class _Raising:
    """A field that raises when it is read, of a value that is otherwise as it was."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, value: Any, _owner: object = None) -> Any:
        if value is None:
            return self
        raise value._unreadable.with_traceback(None)


class _UnreadableClaim(ClaimedTask):
    __slots__ = ("_unreadable",)
    payload: bytes = _Raising("payload")  # type: ignore[assignment]


class _UnreadableTask(NewTask):
    __slots__ = ("_unreadable",)
    payload: bytes = _Raising("payload")  # type: ignore[assignment]


class _UnreadableInfo(TaskInfo):
    __slots__ = ("_unreadable",)
    result: bytes | None = _Raising("result")  # type: ignore[assignment]


def _without(kind: type[T], value: Any, error: Unreadable) -> T:
    """The same value, but for the field that raises."""
    found = object.__new__(kind)
    for field in fields(value):
        if not isinstance(vars(kind).get(field.name), _Raising):
            object.__setattr__(found, field.name, getattr(value, field.name))
    object.__setattr__(found, "_unreadable", error)
    return found
