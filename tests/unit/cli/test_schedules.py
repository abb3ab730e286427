"""`holdfast schedule …`: what is sent, printed and returned."""

import grpc
import pytest

from holdfast.proto.v1 import schedules_pb2 as pb
from holdfast.proto.v1 import tasks_pb2
from tests.unit.cli.cli_runner import Cli
from tests.unit.client.scripted_server import Refusal

TASK_ID = "01984f6e-0000-8000-8000-000000000001"
BEFORE_SPRING_MS = 1_900_828_800_000  # 2030-03-27T08:00:00Z; clocks in Berlin change on the 31st


def nightly(**fields: object) -> pb.ScheduleInfo:
    spec = pb.ScheduleSpec(
        expression="30 2 * * *", time_zone="Europe/Berlin", catch_up=pb.CATCH_UP_ALL, overlap=pb.OVERLAP_SKIP,
        task=tasks_pb2.TaskSpec(type="sales", payload=b'["x"]', tenant="acme", timeout_ms=90_000),
    )  # fmt: skip
    known = {"queue": "reports", "name": "nightly", "spec": spec, "next_at_ms": 1_900_978_200_000, "fired_total": 1_234}
    return pb.ScheduleInfo(**{**known, **fields})  # type: ignore[arg-type]  # passed through


# -------------------------------------------------------------------------------------------------------------- put


def test_put_sends_everything(cli: Cli) -> None:
    cli.server.on("PutSchedule", pb.PutScheduleResponse(schedule=nightly()))
    when = ["--cron", "30 2 * * mon-fri", "--zone", "Europe/Berlin", "--catch-up", "all", "--overlap", "replace"]
    task = ["--type", "sales", "--args", '["x"]', "--priority", "9", "--tenant", "acme", "--task-timeout", "15m"]
    more = ["--retry-base", "5s", "--unique-key", "u", "--paused", "--must-be-new"]
    assert cli.run("schedule", "put", "nightly", "--queue", "reports", *when, *task, *more) == 0
    [request] = cli.server.requests["PutSchedule"]
    assert request == pb.PutScheduleRequest(
        queue="reports",
        name="nightly",
        must_be_new=True,
        paused=True,
        spec=pb.ScheduleSpec(
            expression="30 2 * * mon-fri",
            time_zone="Europe/Berlin",
            catch_up=pb.CATCH_UP_ALL,
            overlap=pb.OVERLAP_REPLACE,
            task=tasks_pb2.TaskSpec(
                queue="reports",
                type="sales",
                payload=b'["x"]',
                headers={"content-type": "application/json"},
                priority=9,
                tenant="acme",
                timeout_ms=900_000,
                retry=tasks_pb2.RetryPolicy(base_ms=5_000),
                unique_key="u",
            ),
        ),
    )


def test_put_shows_what_is_there_now(cli: Cli) -> None:
    cli.server.on("PutSchedule", pb.PutScheduleResponse(schedule=nightly()))
    assert cli.run("schedule", "put", "nightly", "-q", "reports", "--every", "1h30m", "--type", "sales") == 0
    [request] = cli.server.requests["PutSchedule"]
    spec = request.spec
    assert (spec.expression, spec.time_zone, spec.task.payload) == ("@every 1h30m", "", b"{}")
    assert (spec.catch_up, spec.overlap, request.must_be_new) == (pb.CATCH_UP_ONE, pb.OVERLAP_ALLOW, False)
    rows = {line[:19].strip(): line[19:].strip() for line in cli.out.splitlines()}
    assert rows["next"] == "Fri 2030-03-29 02:30:00 +01:00"
    assert (rows["catch-up"], rows["overlap"], rows["state"]) == ("all", "skip", "on")
    assert (rows["time for an attempt"], rows["tenant"], rows["payload"]) == ("1m 30s", "acme", '["x"]')
    assert rows["made"] == "1,234 tasks, 0 ticks skipped"


@pytest.mark.parametrize(
    ("reason", "field", "message", "hint"),
    [
        ("INVALID_FIELD", "spec.expression", "Expected values of the minute field from 0 to 59.", "minute hour day"),
        ("INVALID_FIELD", "spec.time_zone", "Expected zone to be a name of the tz database.", "Europe/Berlin"),
        ("SCHEDULE_EXISTS", "", "There is one.", "Without --must-be-new"),
        ("OUT_OF_RANGE", "spec.task.priority", "Expected 0 to 9.", ""),
    ],
)
def test_what_a_schedule_is_refused_for(cli: Cli, reason: str, field: str, message: str, hint: str) -> None:
    refusal = Refusal(grpc.StatusCode.INVALID_ARGUMENT, reason, message, metadata={"field": field} if field else {})
    cli.server.on("PutSchedule", refusal)
    arguments = ["schedule", "put", "nightly", "-q", "reports", "--cron", "61 * * * *", "--type", "sales"]
    assert cli.run(*arguments, "--json") == 1
    error = cli.json_err()["error"]
    assert (error["reason"], error["field"]) == (reason, field)
    assert message in error["message"]
    assert hint in error["hint"]
    assert bool(hint) == bool(error["hint"])


# ------------------------------------------------------------------------------------------------------ ls and show


def test_ls_goes_through_all_pages(cli: Cli) -> None:
    paused = nightly(name="off", paused=True, next_at_ms=0, skipped_total=7)
    cli.server.on(
        "ListSchedules",
        lambda request: (
            pb.ListSchedulesResponse(schedules=[paused])
            if request.page_token
            else pb.ListSchedulesResponse(schedules=[nightly()], next_page_token="more")
        ),
    )
    assert cli.run("schedule", "ls", "-q", "reports") == 0
    header, _, first, second = cli.out.splitlines()
    assert header.split() == ["queue", "schedule", "when", "zone", "next", "made", "skipped"]
    assert " 30 2 * * * " in first
    assert first.split()[7:] == ["Europe/Berlin", "Fri", "2030-03-29", "02:30:00", "+01:00", "1,234", "0"]
    assert second.split()[-3:] == ["paused", "1,234", "7"]
    assert [request.queue for request in cli.server.requests["ListSchedules"]] == ["reports", "reports"]
    assert cli.run("schedule", "ls", "-n", "1", "--json") == 0
    printed = cli.json_out()
    assert (printed["queue"], printed["more"], [schedule["name"] for schedule in printed["schedules"]]) == (
        None, True, ["nightly"]
    )  # fmt: skip
    assert not any(key.startswith("payload") for key in printed["schedules"][0])


def test_ls_of_nothing(cli: Cli) -> None:
    cli.server.on("ListSchedules", pb.ListSchedulesResponse())
    assert cli.run("schedule", "ls", "--queue", "reports") == 0
    assert cli.out == "There are no schedules of queue reports.\n"


def test_show(cli: Cli) -> None:
    never = nightly(next_at_ms=0, last_at_ms=1_893_553_445_000, last_task_id=TASK_ID)
    cli.server.on("GetSchedule", pb.GetScheduleResponse(schedule=never))
    assert cli.run("schedule", "show", "nightly", "-q", "reports") == 0
    rows = {line[:19].strip(): line[19:].strip() for line in cli.out.splitlines()}
    assert (rows["next"], rows["last"]) == ("never again", "Wed 2030-01-02 04:04:05 +01:00")
    assert rows["last task"] == TASK_ID
    assert cli.run("schedule", "show", "nightly", "-q", "reports", "--json") == 0
    printed = cli.json_out()
    assert {key: printed[key] for key in ("expression", "catch_up", "overlap", "next_at_ms", "payload_json")} == {
        "expression": "30 2 * * *", "catch_up": "all", "overlap": "skip", "next_at_ms": None, "payload_json": ["x"],
    }  # fmt: skip


@pytest.mark.parametrize("command", ["show", "pause", "resume", "rm", "trigger", "next"])
def test_a_schedule_that_is_not_there(cli: Cli, command: str) -> None:
    missing = Refusal(grpc.StatusCode.NOT_FOUND, "SCHEDULE_NOT_FOUND", "There is none.")
    for method in ("GetSchedule", "PauseSchedule", "DeleteSchedule", "TriggerSchedule"):
        cli.server.on(method, missing)
    assert cli.run("schedule", command, "nope", "-q", "reports") == 5
    assert "holdfast schedule ls" in cli.err


# ------------------------------------------------------------------------------------------ pause, remove, trigger


def test_pause_and_resume(cli: Cli) -> None:
    cli.server.on("PauseSchedule", lambda request: pb.PauseScheduleResponse(schedule=nightly(paused=request.paused)))
    assert cli.run("schedule", "pause", "nightly", "-q", "reports") == 0
    assert cli.out == "Schedule nightly of queue reports is paused.\n"
    assert cli.run("schedule", "resume", "nightly", "-q", "reports") == 0
    assert cli.out == "Schedule nightly of queue reports goes on: next Fri 2030-03-29 02:30:00 +01:00.\n"
    assert cli.run("schedule", "pause", "nightly", "-q", "reports", "--json") == 0
    assert cli.json_out()["paused"] is True


def test_rm(cli: Cli) -> None:
    cli.server.on("DeleteSchedule", pb.DeleteScheduleResponse())
    assert cli.run("schedule", "rm", "nightly", "-q", "reports") == 0
    assert cli.out == "Schedule nightly of queue reports is removed.\n"
    assert cli.run("schedule", "rm", "nightly", "-q", "reports", "--json") == 0
    assert cli.json_out() == {"queue": "reports", "name": "nightly", "removed": True}


def test_trigger(cli: Cli) -> None:
    cli.server.on("TriggerSchedule", pb.TriggerScheduleResponse(task_id=TASK_ID))
    assert cli.run("schedule", "trigger", "nightly", "-q", "reports") == 0
    assert cli.out == f"Accepted task {TASK_ID} into queue reports.\n"
    there = pb.TriggerScheduleResponse(task_id=TASK_ID, duplicate=True, state=tasks_pb2.TASK_STATE_READY)
    cli.server.instead("TriggerSchedule", there)
    assert cli.run("schedule", "trigger", "nightly", "-q", "reports", "--request-id", "r") == 0
    has = "this request id or the same unique key"
    assert cli.out == f"Already there: task {TASK_ID} (READY) has {has}. Nothing was added.\n"
    automatic, given = (request.request_id for request in cli.server.requests["TriggerSchedule"])
    assert automatic
    assert given == "r"


def test_trigger_says_that_a_unique_key_kept_the_task_out(cli: Cli) -> None:
    taken = pb.TriggerScheduleResponse(
        task_id=TASK_ID, duplicate=True, is_of_another=True, state=tasks_pb2.TASK_STATE_CLAIMED
    )
    cli.server.on("TriggerSchedule", taken)
    assert cli.run("schedule", "trigger", "nightly", "-q", "reports") == 0
    assert cli.out == f"Already there: task {TASK_ID} (CLAIMED) has the same unique key. Nothing was added.\n"
    assert cli.run("schedule", "trigger", "nightly", "-q", "reports", "--json") == 0
    reported = cli.json_out()
    assert (reported["duplicate"], reported["state"]) == (True, "CLAIMED")


# ------------------------------------------------------------------------------------------------------------- next


def test_next_shows_how_the_offset_changes_with_daylight_saving(cli: Cli) -> None:
    at_ms = [BEFORE_SPRING_MS + day * 86_400_000 for day in (0, 7)]
    cli.server.on("PreviewSchedule", pb.PreviewScheduleResponse(at_ms=at_ms))
    assert cli.run("schedule", "next", "0 9 * * *", "--zone", "Europe/Berlin", "-n", "2") == 0
    header, _, *rows = cli.out.splitlines()
    assert header.startswith("next (Europe/Berlin)")
    assert [row.partition("   ")[0] for row in rows] == [
        "Wed 2030-03-27 09:00:00 +01:00", "Wed 2030-04-03 10:00:00 +02:00"
    ]  # fmt: skip
    [request] = cli.server.requests["PreviewSchedule"]
    assert request == pb.PreviewScheduleRequest(expression="0 9 * * *", time_zone="Europe/Berlin", count=2)
    assert cli.run("schedule", "next", "0 9 * * *", "--json") == 0
    assert cli.server.requests["PreviewSchedule"][1].count == 10
    assert cli.json_out() == {
        "expression": "0 9 * * *", "time_zone": "UTC", "paused": False,
        "times": [{"at_ms": at_ms[0], "at": "2030-03-27T08:00:00+00:00"},
                  {"at_ms": at_ms[1], "at": "2030-04-03T08:00:00+00:00"}],
    }  # fmt: skip


def test_next_of_a_schedule_is_in_its_own_zone(cli: Cli) -> None:
    cli.server.on("GetSchedule", pb.GetScheduleResponse(schedule=nightly(paused=True)))
    cli.server.on("PreviewSchedule", pb.PreviewScheduleResponse(at_ms=[BEFORE_SPRING_MS]))
    assert cli.run("schedule", "next", "nightly", "--queue", "reports") == 0
    assert "Wed 2030-03-27 09:00:00 +01:00" in cli.out
    assert "holdfast schedule resume nightly --queue reports" in cli.err
    [request] = cli.server.requests["PreviewSchedule"]
    assert request == pb.PreviewScheduleRequest(queue="reports", name="nightly", count=10)


def test_a_zone_that_only_the_server_knows_is_shown_in_utc(cli: Cli) -> None:
    cli.server.on("PreviewSchedule", pb.PreviewScheduleResponse(at_ms=[BEFORE_SPRING_MS]))
    assert cli.run("schedule", "next", "@daily", "--zone", "Mars/Olympus") == 0
    assert "Wed 2030-03-27 08:00:00 +00:00" in cli.out
    assert "does not know the zone Mars/Olympus" in cli.err


def test_next_of_what_never_comes(cli: Cli) -> None:
    cli.server.on("PreviewSchedule", pb.PreviewScheduleResponse())
    assert cli.run("schedule", "next", "0 0 29 2 *") == 0
    assert cli.out == "Never again.\n"


def test_next_of_a_name_without_its_queue_says_what_is_missing(cli: Cli) -> None:
    invalid = grpc.StatusCode.INVALID_ARGUMENT
    cli.server.on(
        "PreviewSchedule", Refusal(invalid, "INVALID_FIELD", "Expected five fields.", metadata={"field": "expression"})
    )
    assert cli.run("schedule", "next", "nightly") == 1
    assert "If nightly is the name of a schedule, say of which queue: --queue QUEUE." in cli.err
    for expression in ("61 * * * *", "@sometimes"):
        assert cli.run("schedule", "next", expression) == 1
        assert "--queue" not in cli.err


@pytest.mark.parametrize("option", ["--tenant", "--unique-key", "--limit-key"])
def test_an_empty_text_is_not_the_same_as_no_option(cli: Cli, option: str) -> None:
    assert cli.run("schedule", "put", "n", "-q", "r", "--every", "90s", "--type", "t", option, "") == 2
    assert f"{option}: Expected a text, but it is empty" in cli.err
    assert cli.run("schedule", "trigger", "n", "-q", "r", "--request-id", "") == 2
    assert "--request-id: Expected a text, but it is empty" in cli.err
    assert not cli.server.requests


def test_arguments_have_to_be_an_array_or_an_object(cli: Cli) -> None:
    assert cli.run("schedule", "put", "n", "-q", "r", "--every", "90s", "--type", "t", "--args", '"x"') == 2
    assert "Expected a JSON array or object" in cli.err
    assert not cli.server.requests
