"""The calls about schedules: what they put on the wire, and what they make of the answer."""

from typing import Any

import grpc
import pytest

from holdfast.client import (
    Accepted,
    AsyncClient,
    CatchUp,
    Conflict,
    ConnectionFailed,
    InvalidArgument,
    NewTask,
    NotFound,
    Overlap,
    RetryPolicy,
    Schedule,
    ScheduleInfo,
    SchedulePage,
    TaskState,
    UnexpectedAnswer,
)
from holdfast.proto.v1 import schedules_pb2 as pb
from holdfast.proto.v1 import tasks_pb2
from tests.unit.client.scripted_server import LOST, Refusal, ScriptedServer, error_of, refused_field

Code = grpc.StatusCode

SCHEDULE = Schedule(
    "nightly", "30 2 * * mon-fri", NewTask("reports", "sales", b"{}", priority=7, tenant="acme"),
    time_zone="Europe/Berlin", catch_up=CatchUp.NONE, overlap=Overlap.REPLACE,
)  # fmt: skip
WIRE_SPEC = pb.ScheduleSpec(
    expression="30 2 * * mon-fri",
    time_zone="Europe/Berlin",
    catch_up=pb.CATCH_UP_NONE,
    overlap=pb.OVERLAP_REPLACE,
    task=tasks_pb2.TaskSpec(queue="reports", type="sales", payload=b"{}", priority=7, tenant="acme"),
)
WIRE_INFO = pb.ScheduleInfo(
    queue="reports", name="nightly", spec=WIRE_SPEC, paused=True, next_at_ms=30, last_at_ms=20, last_task_id="id-1",
    fired_total=4, skipped_total=5, version=6,
)  # fmt: skip
INFO = ScheduleInfo(
    schedule=SCHEDULE, paused=True, next_at_ms=30, last_at_ms=20, last_task_id="id-1", fired_total=4, skipped_total=5,
    version=6,
)  # fmt: skip


async def test_put_sends_everything(server: ScriptedServer, client: AsyncClient) -> None:
    server.on("PutSchedule", pb.PutScheduleResponse(schedule=WIRE_INFO))
    assert await client.put_schedule(SCHEDULE, must_be_new=True, paused=True) == INFO
    await client.put_schedule(Schedule("tick", "@every 90s", NewTask("q", "t")))
    full, bare = server.requests["PutSchedule"]
    assert full == pb.PutScheduleRequest(queue="reports", name="nightly", spec=WIRE_SPEC, must_be_new=True, paused=True)
    assert bare == pb.PutScheduleRequest(
        queue="q",
        name="tick",
        spec=pb.ScheduleSpec(
            expression="@every 90s",
            catch_up=pb.CATCH_UP_ONE,
            overlap=pb.OVERLAP_ALLOW,
            task=tasks_pb2.TaskSpec(queue="q", type="t"),
        ),
    )


async def test_a_schedule_that_must_be_new_is_not_made_twice(server: ScriptedServer, client: AsyncClient) -> None:
    server.on("PutSchedule", LOST, pb.PutScheduleResponse(schedule=WIRE_INFO))
    with pytest.raises(ConnectionFailed):
        await client.put_schedule(SCHEDULE, must_be_new=True)
    assert len(server.requests["PutSchedule"]) == 1, "the second would be told that there is one"


async def test_any_other_may_be_put_twice(server: ScriptedServer, client: AsyncClient) -> None:
    server.on("PutSchedule", LOST, pb.PutScheduleResponse(schedule=WIRE_INFO))
    assert await client.put_schedule(SCHEDULE) == INFO
    assert len(server.requests["PutSchedule"]) == 2


async def test_refusals(server: ScriptedServer, client: AsyncClient) -> None:
    bad = Refusal(Code.INVALID_ARGUMENT, "INVALID_FIELD", metadata={"field": "spec.time_zone"})
    server.on("PutSchedule", Refusal(Code.ALREADY_EXISTS, "SCHEDULE_EXISTS"), bad)
    server.on("GetSchedule", Refusal(Code.NOT_FOUND, "SCHEDULE_NOT_FOUND"), pb.GetScheduleResponse())
    exists = await error_of(client.put_schedule(SCHEDULE, must_be_new=True), Conflict)
    assert exists.reason == "SCHEDULE_EXISTS"
    assert await refused_field(client.put_schedule(SCHEDULE)) == "spec.time_zone"
    with pytest.raises(NotFound):
        await client.get_schedule("reports", "nope")
    with pytest.raises(UnexpectedAnswer):
        await client.get_schedule("reports", "nightly")


async def test_get_and_list(server: ScriptedServer, client: AsyncClient) -> None:
    newer: Any = pb.ScheduleInfo(queue="q", name="n")
    newer.spec.catch_up = newer.spec.overlap = 99
    server.on("GetSchedule", pb.GetScheduleResponse(schedule=WIRE_INFO))
    server.on(
        "ListSchedules",
        pb.ListSchedulesResponse(
            schedules=[WIRE_INFO, pb.ScheduleInfo(queue="q", name="m"), newer], next_page_token="n"
        ),
    )
    info = await client.get_schedule("reports", "nightly")
    assert info == INFO
    assert (info.queue, info.name) == ("reports", "nightly")
    assert server.requests["GetSchedule"] == [pb.GetScheduleRequest(queue="reports", name="nightly")]
    page = await client.list_schedules("reports", page_size=3, page_token="x")
    bare = Schedule("m", "", NewTask("q", ""))
    unknown = Schedule("n", "", NewTask("q", ""), catch_up=CatchUp.UNKNOWN, overlap=Overlap.UNKNOWN)
    assert page == SchedulePage((INFO, ScheduleInfo(schedule=bare), ScheduleInfo(schedule=unknown)), "n")
    await client.list_schedules()
    assert server.requests["ListSchedules"] == [
        pb.ListSchedulesRequest(queue="reports", page_size=3, page_token="x"),
        pb.ListSchedulesRequest(page_size=100),
    ]


async def test_delete_is_not_repeated(server: ScriptedServer, client: AsyncClient) -> None:
    server.on("DeleteSchedule", pb.DeleteScheduleResponse(), LOST)
    await client.delete_schedule("reports", "nightly")
    with pytest.raises(ConnectionFailed):
        await client.delete_schedule("reports", "nightly")
    assert server.requests["DeleteSchedule"] == [pb.DeleteScheduleRequest(queue="reports", name="nightly")] * 2


async def test_pause_and_resume(server: ScriptedServer, client: AsyncClient) -> None:
    server.on("PauseSchedule", LOST, pb.PauseScheduleResponse(schedule=WIRE_INFO))
    assert await client.pause_schedule("reports", "nightly") == INFO
    await client.resume_schedule("reports", "nightly")
    assert [request.paused for request in server.requests["PauseSchedule"]] == [True, True, False]


async def test_a_trigger_is_repeated_with_the_id_that_it_chose(server: ScriptedServer, client: AsyncClient) -> None:
    again = pb.TriggerScheduleResponse(task_id="id-1", duplicate=True)
    server.on("TriggerSchedule", LOST, again)
    # That it was there already is only its own first attempt.
    assert await client.trigger_schedule("reports", "nightly") == Accepted("id-1")
    await client.trigger_schedule("reports", "nightly")
    assert await client.trigger_schedule("reports", "nightly", request_id="mine") == Accepted("id-1", duplicate=True)
    first, second, third, fourth = (request.request_id for request in server.requests["TriggerSchedule"])
    assert first == second
    assert first
    assert third != first
    assert fourth == "mine"


async def test_a_trigger_that_a_unique_key_kept_out_is_a_duplicate(server: ScriptedServer, client: AsyncClient) -> None:
    """Not its own repetition, which has the id that this call chose."""
    server.on("TriggerSchedule", pb.TriggerScheduleResponse(task_id="id-1", duplicate=True, is_of_another=True))
    for request_id in (None, "", "mine"):
        triggered = await client.trigger_schedule("reports", "nightly", request_id=request_id)
        assert triggered == Accepted("id-1", duplicate=True)


async def test_a_trigger_tells_what_the_task_is_that_was_there(server: ScriptedServer, client: AsyncClient) -> None:
    there = pb.TriggerScheduleResponse(task_id="id-1", duplicate=True, state=tasks_pb2.TASK_STATE_CLAIMED)
    server.on("TriggerSchedule", there)
    triggered = await client.trigger_schedule("reports", "nightly", request_id="mine")
    assert triggered == Accepted("id-1", True, TaskState.CLAIMED)
    assert await client.trigger_schedule("reports", "nightly") == Accepted("id-1"), "its own first attempt"


async def test_a_trigger_with_an_id_that_looks_automatic_is_not_sent(
    server: ScriptedServer, client: AsyncClient
) -> None:
    refused = await error_of(client.trigger_schedule("reports", "nightly", request_id="~9.mine.0"), InvalidArgument)
    assert (refused.reason, refused.field) == ("INVALID_FIELD", "request_id")
    assert "TriggerSchedule" not in server.requests


async def test_a_trigger_without_an_id_is_not_repeated(server: ScriptedServer, client: AsyncClient) -> None:
    server.on("TriggerSchedule", LOST)
    with pytest.raises(ConnectionFailed):
        await client.trigger_schedule("reports", "nightly", request_id="")
    assert server.requests["TriggerSchedule"] == [pb.TriggerScheduleRequest(queue="reports", name="nightly")]


async def test_previews(server: ScriptedServer, client: AsyncClient) -> None:
    server.on("PreviewSchedule", pb.PreviewScheduleResponse(at_ms=[1, 2, 3]))
    assert await client.preview_schedule("@daily", time_zone="Asia/Tokyo", count=3, after_ms=17) == [1, 2, 3]
    assert await client.schedule_times("reports", "nightly") == [1, 2, 3]
    assert server.requests["PreviewSchedule"] == [
        pb.PreviewScheduleRequest(expression="@daily", time_zone="Asia/Tokyo", count=3, after_ms=17),
        pb.PreviewScheduleRequest(queue="reports", name="nightly", count=5),
    ]


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"name": 7}, "name"),
        ({"time_zone": 7}, "spec.time_zone"),
        ({"expression": None}, "spec.expression"),
        ({"expression": 7}, "spec.expression"),
        ({"catch_up": "some"}, "spec.catch_up"),
        ({"catch_up": CatchUp.UNKNOWN}, "spec.catch_up"),
        ({"overlap": None}, "spec.overlap"),
        ({"task": None}, "spec.task"),
        ({"task": NewTask("q", "t", priority=2**63)}, "spec.task.priority"),
        ({"task": NewTask("q", "t", run_at_ms=1, delay_ms=1)}, "spec.task.run_at_ms"),
        ({"task": NewTask("q", "t", retry=RetryPolicy(base_ms=10, cap_ms=5))}, "spec.task.retry.base_ms"),
    ],
)
async def test_what_does_not_fit_is_refused_by_name_and_not_sent(
    server: ScriptedServer, client: AsyncClient, given: dict[str, Any], field: str
) -> None:
    whole: dict[str, Any] = {"name": "n", "expression": "@daily", "task": NewTask("q", "t"), **given}
    assert await refused_field(client.put_schedule(Schedule(**whole))) == field
    assert not server.requests


async def test_what_is_no_schedule_is_refused(server: ScriptedServer, client: AsyncClient) -> None:
    with pytest.raises(InvalidArgument) as caught:
        await client.put_schedule(NewTask("q", "t"))  # type: ignore[arg-type]  # on purpose
    assert caught.value.field == "schedule"
    assert not server.requests


@pytest.mark.parametrize("count", [0, -1, True, 1.0, 2**63])
async def test_a_number_of_ticks_that_cannot_be_is_refused(
    server: ScriptedServer, client: AsyncClient, count: Any
) -> None:
    for call in (client.preview_schedule("@daily", count=count), client.schedule_times("q", "n", count=count)):
        assert await refused_field(call) == "count"
    assert not server.requests


async def test_choices_may_be_named(server: ScriptedServer, client: AsyncClient) -> None:
    server.on("PutSchedule", pb.PutScheduleResponse(schedule=WIRE_INFO))
    named: Any = {"catch_up": "all", "overlap": "skip"}
    await client.put_schedule(Schedule("n", "@daily", NewTask("q", "t"), **named))
    [request] = server.requests["PutSchedule"]
    assert (request.spec.catch_up, request.spec.overlap) == (pb.CATCH_UP_ALL, pb.OVERLAP_SKIP)
