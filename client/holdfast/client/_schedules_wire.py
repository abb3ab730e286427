"""Between the values of `schedules` and the messages of the wire API."""

from dataclasses import replace

from holdfast.client._fitting import build, fit, misfit, number_of, state_of, whole
from holdfast.client._wire import new_task, put_task, refuse_automatic_key
from holdfast.client.errors import UnexpectedAnswer
from holdfast.client.models import Accepted, NewTask
from holdfast.client.schedules import CatchUp, Overlap, Schedule, ScheduleInfo, SchedulePage
from holdfast.proto.v1 import schedules_pb2 as pb

_CATCH_UP_NUMBERS = {
    CatchUp.NONE: pb.CATCH_UP_NONE,
    CatchUp.ONE: pb.CATCH_UP_ONE,
    CatchUp.ALL: pb.CATCH_UP_ALL,
}
_CATCH_UPS: dict[int, CatchUp] = {number: catch_up for catch_up, number in _CATCH_UP_NUMBERS.items()}
_OVERLAP_NUMBERS = {
    Overlap.ALLOW: pb.OVERLAP_ALLOW,
    Overlap.SKIP: pb.OVERLAP_SKIP,
    Overlap.REPLACE: pb.OVERLAP_REPLACE,
}
_OVERLAPS: dict[int, Overlap] = {number: overlap for overlap, number in _OVERLAP_NUMBERS.items()}


def put_request(schedule: Schedule, *, must_be_new: bool, paused: bool) -> pb.PutScheduleRequest:
    if not isinstance(schedule, Schedule):
        raise misfit("schedule", TypeError(), "a Schedule")
    if not isinstance(schedule.task, NewTask):  # it names the queue
        raise misfit("spec.task", TypeError(), "a NewTask")
    spec = {"expression": schedule.expression, "time_zone": schedule.time_zone}
    request = fit(
        pb.PutScheduleRequest,
        queue=schedule.queue,
        name=schedule.name,
        must_be_new=must_be_new,
        paused=paused,
        spec=spec,
    )
    return _with_rules(request, schedule)


def _with_rules(request: pb.PutScheduleRequest, schedule: Schedule) -> pb.PutScheduleRequest:
    spec = request.spec
    spec.catch_up = build(lambda: number_of(schedule.catch_up, _CATCH_UP_NUMBERS, CatchUp), "spec.catch_up")
    spec.overlap = build(lambda: number_of(schedule.overlap, _OVERLAP_NUMBERS, Overlap), "spec.overlap")
    put_task(spec.task, schedule.task, "spec.task")
    return request


def get_request(queue: str, name: str) -> pb.GetScheduleRequest:
    return fit(pb.GetScheduleRequest, queue=queue, name=name)


def list_request(queue: str, page_size: int, page_token: str) -> pb.ListSchedulesRequest:
    return fit(pb.ListSchedulesRequest, queue=queue, page_size=page_size, page_token=page_token)


def delete_request(queue: str, name: str) -> pb.DeleteScheduleRequest:
    return fit(pb.DeleteScheduleRequest, queue=queue, name=name)


def pause_request(queue: str, name: str, *, paused: bool) -> pb.PauseScheduleRequest:
    return fit(pb.PauseScheduleRequest, queue=queue, name=name, paused=paused)


def trigger_request(queue: str, name: str, request_id: str) -> pb.TriggerScheduleRequest:
    request = fit(pb.TriggerScheduleRequest, queue=queue, name=name, request_id=request_id)
    refuse_automatic_key(request.request_id, "request_id")
    return request


def preview_request(
    expression: str, time_zone: str, queue: str, name: str, count: int, after_ms: int | None
) -> pb.PreviewScheduleRequest:
    whole("count", count, 1, None)  # on the wire 0 is as many as by default
    return fit(
        pb.PreviewScheduleRequest,
        expression=expression,
        time_zone=time_zone,
        queue=queue,
        name=name,
        count=count,
        after_ms=0 if after_ms is None else after_ms,
    )


def triggered(response: pb.TriggerScheduleResponse) -> Accepted:
    state = response.state
    return Accepted(response.task_id, response.duplicate, state_of(state) if response.duplicate and state else None)


def schedule_info(
    response: pb.PutScheduleResponse | pb.GetScheduleResponse | pb.PauseScheduleResponse,
) -> ScheduleInfo:
    if not response.HasField("schedule"):
        raise UnexpectedAnswer("no schedule in it")
    return _schedule_info(response.schedule)


def schedule_page(response: pb.ListSchedulesResponse) -> SchedulePage:
    return SchedulePage(tuple(map(_schedule_info, response.schedules)), response.next_page_token)


def _schedule_info(message: pb.ScheduleInfo) -> ScheduleInfo:
    spec = message.spec
    spec.task.queue = message.queue  # the schedule's, also if it is left out there
    schedule = Schedule(
        message.name,
        spec.expression,
        replace(new_task(spec.task), request_id=None),
        spec.time_zone,
        _CATCH_UPS.get(spec.catch_up, CatchUp.UNKNOWN) if spec.catch_up else CatchUp.ONE,
        _OVERLAPS.get(spec.overlap, Overlap.UNKNOWN) if spec.overlap else Overlap.ALLOW,
    )
    return ScheduleInfo(
        schedule=schedule,
        paused=message.paused,
        next_at_ms=message.next_at_ms or None,
        last_at_ms=message.last_at_ms or None,
        last_task_id=message.last_task_id,
        fired_total=message.fired_total,
        skipped_total=message.skipped_total,
        version=message.version,
    )
