"""What the commands about schedules ask. Each opens a client, asks, and closes it."""

from dataclasses import dataclass

from holdfast.cli import calls
from holdfast.client import Accepted, AsyncClient, Schedule, ScheduleInfo


@dataclass(frozen=True, slots=True)
class Times:
    """When something fires next."""

    expression: str
    time_zone: str  # empty: UTC
    at_ms: list[int]
    paused: bool = False  # the schedule is: these are only when it would


def put(address: str, timeout_s: float, schedule: Schedule, *, must_be_new: bool, paused: bool) -> ScheduleInfo:
    return calls.ask(
        address,
        timeout_s,
        lambda client: client.put_schedule(schedule, must_be_new=must_be_new, paused=paused),
    )


def get(address: str, timeout_s: float, queue: str, name: str) -> ScheduleInfo:
    return calls.ask(address, timeout_s, lambda client: client.get_schedule(queue, name))


def list_schedules(address: str, timeout_s: float, queue: str, limit: int) -> tuple[list[ScheduleInfo], bool]:
    """By queue and name, and whether there are more. An empty queue: of all."""

    async def question(client: AsyncClient) -> tuple[list[ScheduleInfo], bool]:
        found, token, _ = await calls.read_pages(
            lambda size, token: client.list_schedules(queue, page_size=size, page_token=token),
            lambda page: page.schedules,
            limit,
        )
        return found, bool(token)

    return calls.ask(address, timeout_s, question)


def pause(address: str, timeout_s: float, queue: str, name: str, *, paused: bool) -> ScheduleInfo:
    return calls.ask(
        address,
        timeout_s,
        lambda client: client.pause_schedule(queue, name) if paused else client.resume_schedule(queue, name),
    )


def delete(address: str, timeout_s: float, queue: str, name: str) -> None:
    calls.ask(address, timeout_s, lambda client: client.delete_schedule(queue, name))


def trigger(address: str, timeout_s: float, queue: str, name: str, request_id: str | None) -> Accepted:
    return calls.ask(address, timeout_s, lambda client: client.trigger_schedule(queue, name, request_id=request_id))


def times_of_expression(address: str, timeout_s: float, expression: str, time_zone: str, count: int) -> Times:
    at_ms = calls.ask(
        address, timeout_s, lambda client: client.preview_schedule(expression, time_zone=time_zone, count=count)
    )
    return Times(expression, time_zone, at_ms)


def times_of_schedule(address: str, timeout_s: float, queue: str, name: str, count: int) -> Times:
    async def question(client: AsyncClient) -> Times:
        info = await client.get_schedule(queue, name)
        at_ms = await client.schedule_times(queue, name, count=count)
        return Times(info.schedule.expression, info.schedule.time_zone, at_ms, info.paused)

    return calls.ask(address, timeout_s, question)
