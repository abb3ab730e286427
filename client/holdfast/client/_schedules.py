"""The calls about schedules. `AsyncClient` inherits them."""

import uuid

from holdfast.client import _schedules_wire
from holdfast.client._calls import Calls
from holdfast.client._rpc import method
from holdfast.client.models import Accepted
from holdfast.client.schedules import Schedule, ScheduleInfo, SchedulePage
from holdfast.proto.v1 import schedules_pb2 as pb

_SERVICE = "Schedules"
_PUT = method(pb, _SERVICE, "PutSchedule", pb.PutScheduleRequest, pb.PutScheduleResponse)
_GET = method(pb, _SERVICE, "GetSchedule", pb.GetScheduleRequest, pb.GetScheduleResponse)
_LIST = method(pb, _SERVICE, "ListSchedules", pb.ListSchedulesRequest, pb.ListSchedulesResponse)
_DELETE = method(pb, _SERVICE, "DeleteSchedule", pb.DeleteScheduleRequest, pb.DeleteScheduleResponse)
_PAUSE = method(pb, _SERVICE, "PauseSchedule", pb.PauseScheduleRequest, pb.PauseScheduleResponse)
_TRIGGER = method(pb, _SERVICE, "TriggerSchedule", pb.TriggerScheduleRequest, pb.TriggerScheduleResponse)
_PREVIEW = method(pb, _SERVICE, "PreviewSchedule", pb.PreviewScheduleRequest, pb.PreviewScheduleResponse)


class ScheduleCalls(Calls):
    """Tasks by the clock."""

    async def put_schedule(
        self,
        schedule: Schedule,
        *,
        must_be_new: bool = False,
        paused: bool = False,
        timeout_s: float | None = None,
    ) -> ScheduleInfo:
        """Makes a schedule, or changes the one of this name: then everything is as given here, and ticks that were
        missed are not made up for. With `must_be_new`, raises `Conflict` (SCHEDULE_EXISTS) if there is one.

        >>> import asyncio
        >>> async def main() -> None:
        ...     async with AsyncClient() as client:
        ...         nightly = Schedule("nightly", "0 3 * * *", NewTask("reports", "sales"), time_zone="Europe/Berlin")
        ...         print((await client.put_schedule(nightly)).next_at_ms)
        >>> asyncio.run(main())
        1893466800000
        """
        request = _schedules_wire.put_request(self._coding.schedule(schedule), must_be_new=must_be_new, paused=paused)
        # One that must be new is not repeated after a lost connection: the second answer would be that there is one.
        response = await self._call(_PUT, request, timeout_s, repeatable=not must_be_new)
        return self._coding.schedule_info(_schedules_wire.schedule_info(response))

    async def get_schedule(self, queue: str, name: str, *, timeout_s: float | None = None) -> ScheduleInfo:
        """A schedule, and what has come of it; raises `NotFound` if there is none."""
        request = _schedules_wire.get_request(queue, name)
        response = await self._call(_GET, request, timeout_s, repeatable=True)
        return self._coding.schedule_info(_schedules_wire.schedule_info(response))

    async def list_schedules(
        self, queue: str = "", *, page_size: int = 100, page_token: str = "", timeout_s: float | None = None
    ) -> SchedulePage:
        """One page of the schedules, by queue and name, without the payloads of their tasks. No queue: of all."""
        request = _schedules_wire.list_request(queue, page_size, page_token)
        return _schedules_wire.schedule_page(await self._call(_LIST, request, timeout_s, repeatable=True))

    async def delete_schedule(self, queue: str, name: str, *, timeout_s: float | None = None) -> None:
        """Ends a schedule. The tasks that it made stay."""
        # Not repeated after a lost connection: the second answer would be that there is none.
        await self._call(_DELETE, _schedules_wire.delete_request(queue, name), timeout_s, repeatable=False)

    async def pause_schedule(self, queue: str, name: str, *, timeout_s: float | None = None) -> ScheduleInfo:
        """No more tasks until `resume_schedule`. Ticks that pass meanwhile are not made up for."""
        request = _schedules_wire.pause_request(queue, name, paused=True)
        response = await self._call(_PAUSE, request, timeout_s, repeatable=True)
        return self._coding.schedule_info(_schedules_wire.schedule_info(response))

    async def resume_schedule(self, queue: str, name: str, *, timeout_s: float | None = None) -> ScheduleInfo:
        """Goes on with the next tick from now on."""
        request = _schedules_wire.pause_request(queue, name, paused=False)
        response = await self._call(_PAUSE, request, timeout_s, repeatable=True)
        return self._coding.schedule_info(_schedules_wire.schedule_info(response))

    async def trigger_schedule(
        self, queue: str, name: str, *, request_id: str | None = None, timeout_s: float | None = None
    ) -> Accepted:
        """One task now, whatever the time and the overlap policy; the ticks go on as they are.

        Calls with the same `request_id` make one task. None: the client makes one up for its own retries. Empty: none,
        and a call whose connection is lost is not repeated. `duplicate` of the answer is true if nothing was added:
        the task is of an earlier call with that `request_id`, or has the unique key of the schedule's task. `state` is
        what it is now. Raises `RequestIdConflict` if the id stands for something else.
        """
        chosen = uuid.uuid4().hex if request_id is None else request_id
        request = _schedules_wire.trigger_request(queue, name, chosen)
        response = await self._call(_TRIGGER, request, timeout_s, repeatable=bool(chosen))
        # With an id of this call alone, what was made by a call with that id is new: an earlier attempt made it.
        is_new = request_id is None and not response.is_of_another
        return Accepted(response.task_id) if is_new else _schedules_wire.triggered(response)

    async def preview_schedule(
        self,
        expression: str,
        *,
        time_zone: str = "",
        count: int = 5,
        after_ms: int | None = None,
        timeout_s: float | None = None,
    ) -> list[int]:
        """When an expression fires next, in milliseconds since the Unix epoch: the first `count` ticks after now, or
        after `after_ms`. Changes nothing; raises `InvalidArgument` if the expression or the zone is wrong.

        >>> import asyncio
        >>> async def main() -> None:
        ...     async with AsyncClient() as client:
        ...         print(await client.preview_schedule("0 3 * * *", time_zone="Europe/Berlin", count=2))
        >>> asyncio.run(main())
        [1893466800000, 1893553200000]
        """
        request = _schedules_wire.preview_request(expression, time_zone, "", "", count, after_ms)
        return list((await self._call(_PREVIEW, request, timeout_s, repeatable=True)).at_ms)

    async def schedule_times(
        self,
        queue: str,
        name: str,
        *,
        count: int = 5,
        after_ms: int | None = None,
        timeout_s: float | None = None,
    ) -> list[int]:
        """The same for the expression of a schedule that is there."""
        request = _schedules_wire.preview_request("", "", queue, name, count, after_ms)
        return list((await self._call(_PREVIEW, request, timeout_s, repeatable=True)).at_ms)
