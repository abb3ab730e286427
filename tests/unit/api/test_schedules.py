"""Calls about schedules, from the request to the row and back."""

import asyncio
from typing import Any

import pytest

from holdfast.broker.api import schedules as schedule_service
from holdfast.broker.api.home_guard import HomeGuard
from holdfast.broker.api.schedules import ScheduleService
from holdfast.broker.api.validation import Validator
from holdfast.broker.cluster_view.view import StaticClusterView
from holdfast.broker.config import BrokerConfig
from holdfast.broker.leader.schedule_manager import GRACE_MS
from holdfast.machine import keys
from holdfast.machine.entries import Enqueue
from holdfast.machine.ids import parse_task_id
from holdfast.machine.operator_entries import OVERLAP_ALLOW, FireSchedule, PutSchedule
from holdfast.machine.outcomes import Changed
from holdfast.proto.v1 import schedules_pb2 as pb
from holdfast.proto.v1 import tasks_pb2
from holdfast.serving.refusals import RefusedError
from holdfast.serving.statuses import status_of
from tests.unit.machine.machine_shard import new_task
from tests.unit.replica.small_shard import SmallShard

CONFIG = BrokerConfig()
QUEUE, NAME = "mail", "nightly"
MINUTE_MS = 60_000


class Desk:
    """The service of a small shard. Time stands still unless a test moves it."""

    def __init__(self, small: SmallShard | None = None) -> None:
        self.small = small or SmallShard()
        shard = self.small.shard
        self.service = ScheduleService(shard, Validator(CONFIG), HomeGuard(shard, StaticClusterView(CONFIG)))

    @property
    def now_ms(self) -> int:
        return self.small.time.now_ms

    async def put(self, name: str = NAME, **changes: Any) -> pb.ScheduleInfo:
        response = await self.small.rounds_until(self.service.put_schedule(put_request(name, **changes)))
        return response.schedule

    async def get(self, name: str = NAME, queue: str = QUEUE) -> pb.ScheduleInfo:
        response = await self.small.rounds_until(
            self.service.get_schedule(pb.GetScheduleRequest(queue=queue, name=name))
        )
        return response.schedule

    async def pause(self, paused: bool) -> pb.ScheduleInfo:
        request = pb.PauseScheduleRequest(queue=QUEUE, name=NAME, paused=paused)
        return (await self.small.rounds_until(self.service.pause_schedule(request))).schedule

    async def delete(self, name: str = NAME) -> None:
        await self.small.rounds_until(self.service.delete_schedule(pb.DeleteScheduleRequest(queue=QUEUE, name=name)))

    async def trigger(self, request_id: str = "", name: str = NAME) -> pb.TriggerScheduleResponse:
        request = pb.TriggerScheduleRequest(queue=QUEUE, name=name, request_id=request_id)
        return await self.small.rounds_until(self.service.trigger_schedule(request))

    async def page(self, **request: Any) -> pb.ListSchedulesResponse:
        return await self.small.rounds_until(self.service.list_schedules(pb.ListSchedulesRequest(**request)))

    async def preview(self, **request: Any) -> list[int]:
        wanted = pb.PreviewScheduleRequest(**request)
        return list((await self.small.rounds_until(self.service.preview_schedule(wanted))).at_ms)

    async def refused(self, call: Any) -> RefusedError:
        with pytest.raises(RefusedError) as refused:
            await call
        status_of(refused.value)  # it has a status
        return refused.value

    async def put_beside(self, name: str, body: bytes, next_ms: int, paused: int = 0) -> None:
        """Written into the log by somebody else."""
        row = self.small.kv.get(keys.schedule(QUEUE.encode(), name.encode()))
        version = 0 if row is None else int.from_bytes(row[:8], "big")
        entry = PutSchedule(self.now_ms, QUEUE.encode(), name.encode(), version, paused, 0, next_ms, body)
        [outcome] = await self.small.submit(entry)
        assert isinstance(outcome, Changed)


def put_request(name: str = NAME, **changes: Any) -> pb.PutScheduleRequest:
    task = tasks_pb2.TaskSpec(type="report", **changes.pop("task", {}))
    request = pb.PutScheduleRequest(queue=changes.pop("queue", QUEUE), name=name)
    request.paused, request.must_be_new = changes.pop("paused", False), changes.pop("must_be_new", False)
    request.spec.CopyFrom(pb.ScheduleSpec(**{"expression": "* * * * *", **changes}, task=task))
    return request


@pytest.fixture
async def desk() -> Desk:
    return Desk()


def minute_after(now_ms: int) -> int:
    return now_ms - now_ms % MINUTE_MS + MINUTE_MS


async def test_what_is_too_large_is_refused_before_it_is_copied(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    many = put_request(task={"headers": {f"{number}": "x" for number in range(65)}})
    large = put_request(task={"payload": bytes(1024 * 1024 + 1)})
    monkeypatch.setattr(pb, "ScheduleSpec", None)  # nobody makes another one
    for request, field in ((many, "spec.task.headers"), (large, "spec.task.payload")):
        refused = await desk.refused(desk.service.put_schedule(request))
        assert (refused.reason, refused.field) == ("TOO_LARGE", field)


async def test_a_new_schedule_is_stored_as_it_will_be_used(desk: Desk) -> None:
    info = await desk.put(task={"payload": b"p", "headers": {"b": "2", "a": "1"}})
    assert info == await desk.get()
    assert (info.queue, info.name, info.paused, info.version > 0) == (QUEUE, NAME, False, True)
    assert info.next_at_ms == minute_after(desk.now_ms)
    assert (info.last_at_ms, info.last_task_id, info.fired_total, info.skipped_total) == (0, "", 0, 0)
    spec = info.spec
    assert (spec.expression, spec.time_zone) == ("* * * * *", "UTC")
    assert (spec.catch_up, spec.overlap) == (pb.CATCH_UP_ONE, pb.OVERLAP_ALLOW)
    assert (spec.task.queue, spec.task.payload) == (QUEUE, b"p")
    assert dict(spec.task.headers) == {"a": "1", "b": "2"}, "those of a tick are not stored"


async def test_the_same_put_twice_changes_nothing(desk: Desk) -> None:
    first = await desk.put(task={"headers": {str(number): "" for number in range(9)}})
    desk.small.time.now_ms += 10 * MINUTE_MS
    headers = {str(number): "" for number in reversed(range(9))}
    assert await desk.put(task={"headers": headers, "queue": QUEUE}, time_zone="UTC") == first
    assert (await desk.put(paused=True, task={"headers": headers})).version > first.version


async def test_a_change_does_not_make_up_for_what_passed(desk: Desk) -> None:
    first = await desk.put()
    desk.small.time.now_ms += 10 * MINUTE_MS
    changed = await desk.put(task={"payload": b"other"})
    assert changed.version > first.version
    assert changed.next_at_ms == minute_after(desk.now_ms)
    assert changed.last_at_ms == 0


async def test_a_tick_that_is_a_moment_late_is_not_lost_by_a_change_of_the_task(desk: Desk) -> None:
    due_ms = (await desk.put()).next_at_ms
    desk.small.time.now_ms = due_ms + GRACE_MS
    assert (await desk.put(task={"priority": 1})).next_at_ms == due_ms
    desk.small.time.now_ms += 1
    assert (await desk.put(task={"priority": 2})).next_at_ms > desk.now_ms
    desk.small.time.now_ms += MINUTE_MS
    assert (await desk.put("other")).next_at_ms > desk.now_ms
    assert (await desk.put(expression="*/2 * * * *")).next_at_ms > desk.now_ms, "that is another timetable"


async def test_must_be_new(desk: Desk) -> None:
    first = await desk.put(must_be_new=True)
    refused = await desk.refused(desk.put(must_be_new=True))
    assert (refused.reason, refused.field) == ("SCHEDULE_EXISTS", "name")
    assert status_of(refused)[0] == "ALREADY_EXISTS"
    assert await desk.get() == first


async def test_pause_and_resume(desk: Desk) -> None:
    first = await desk.put()
    paused = await desk.pause(True)
    assert (paused.paused, paused.next_at_ms) == (True, 0)
    assert await desk.pause(True) == paused
    assert await desk.get() == paused
    desk.small.time.now_ms += 10 * MINUTE_MS
    resumed = await desk.pause(False)
    assert (resumed.paused, resumed.next_at_ms) == (False, minute_after(desk.now_ms))
    assert resumed.spec == first.spec
    assert await desk.pause(False) == resumed
    assert (await desk.put("born-paused", paused=True)).next_at_ms == 0


async def test_a_program_that_puts_its_schedules_resumes_none(desk: Desk) -> None:
    await desk.put()
    await desk.pause(True)
    again = await desk.put(expression="*/5 * * * *")
    assert again.paused
    assert not again.next_at_ms
    assert not (await desk.pause(False)).paused


async def test_what_is_not_there(desk: Desk) -> None:
    for call in (desk.get(), desk.pause(True), desk.delete(), desk.trigger(), desk.preview(queue=QUEUE, name=NAME)):
        refused = await desk.refused(call)
        assert (refused.reason, status_of(refused)[0]) == ("SCHEDULE_NOT_FOUND", "NOT_FOUND")
    await desk.put()
    await desk.delete()
    assert (await desk.refused(desk.get())).reason == "SCHEDULE_NOT_FOUND"


async def test_a_trigger_is_one_task_and_no_tick(desk: Desk) -> None:
    first = await desk.put(task={"payload": b"p"}, overlap=pb.OVERLAP_SKIP)
    response = await desk.trigger("once")
    assert not response.duplicate
    again = await desk.trigger("once")
    assert (again.task_id, again.duplicate) == (response.task_id, True)
    assert (response.state, again.state) == (tasks_pb2.TASK_STATE_UNSPECIFIED, tasks_pb2.TASK_STATE_READY)
    other = await desk.trigger()
    assert other.task_id not in (response.task_id, (await desk.trigger()).task_id)
    info = await desk.get()
    assert info.fired_total == 3
    info.fired_total = 0
    assert info == first
    task_id = parse_task_id(response.task_id)
    assert task_id is not None
    task = await desk.small.shard.current_task(task_id)
    spec = tasks_pb2.TaskSpec.FromString(task.envelope or b"")
    assert (spec.payload, dict(spec.headers)) == (b"p", {"holdfast-schedule": NAME})


async def test_a_trigger_that_a_unique_key_keeps_out_says_so(desk: Desk) -> None:
    """It is told apart from the same call once more."""
    await desk.put(task={"unique_key": "one at a time"})
    first, same = await desk.trigger("a"), await desk.trigger("a")
    kept_out = [await desk.trigger("b"), await desk.trigger("b"), await desk.trigger()]
    assert [(reported.duplicate, reported.is_of_another) for reported in (first, same, *kept_out)] == [
        (False, False), (True, False), (True, True), (True, True), (True, True),
    ]  # fmt: skip
    assert {reported.task_id for reported in (first, same, *kept_out)} == {first.task_id}


async def test_a_trigger_whose_id_stands_for_another_task_is_refused(desk: Desk) -> None:
    """For what the schedule said before, for another one, or for a task that somebody enqueued."""
    await desk.put(task={"payload": b"p"})
    first = await desk.trigger("once")
    await desk.put(task={"payload": b"q"})
    refused = await desk.refused(desk.trigger("once"))
    assert (refused.reason, refused.field) == ("REQUEST_ID_CONFLICT", "request_id")
    assert status_of(refused)[0] == "FAILED_PRECONDITION"
    await desk.put(task={"payload": b"p"})
    assert (await desk.trigger("once")).task_id == first.task_id
    await desk.put("weekly", task={"payload": b"p"})
    assert (await desk.refused(desk.trigger("once", "weekly"))).reason == "REQUEST_ID_CONFLICT"
    validator = Validator(CONFIG)
    enqueued = tasks_pb2.TaskSpec(queue=QUEUE, type="t", payload=b"p", request_id="enqueued")
    await desk.small.rounds_until(desk.small.shard.submit(Enqueue(desk.now_ms, [validator.new_task(enqueued, 0)])))
    assert (await desk.refused(desk.trigger("enqueued"))).reason == "REQUEST_ID_CONFLICT"
    assert (await desk.get()).fired_total == 1


async def test_an_automatic_key_is_none_for_a_trigger(desk: Desk) -> None:
    """It would stand for anything."""
    await desk.put()
    refused = await desk.refused(desk.trigger("~0.x.0"))
    assert (refused.reason, refused.field) == ("INVALID_FIELD", "request_id")


async def test_a_paused_schedule_can_be_triggered(desk: Desk) -> None:
    await desk.put(paused=True)
    assert (await desk.trigger()).task_id
    assert (await desk.get()).next_at_ms == 0


async def test_a_request_id_that_is_none_is_refused(desk: Desk) -> None:
    await desk.put()
    assert (await desk.refused(desk.trigger("a\nb"))).field == "request_id"


BAD: dict[str, tuple[dict[str, Any], str, str]] = {
    "no queue": ({"queue": ""}, "queue", "MISSING_FIELD"),
    "no name": ({"name": ""}, "name", "MISSING_FIELD"),
    "a long name": ({"name": "n" * 129}, "name", "INVALID_FIELD"),
    "a name of other characters": ({"name": "a/b"}, "name", "INVALID_FIELD"),
    "a name with a line end": ({"name": "a\n"}, "name", "INVALID_FIELD"),
    "no expression": ({"expression": ""}, "spec.expression", "MISSING_FIELD"),
    "no cron": ({"expression": "every day"}, "spec.expression", "INVALID_FIELD"),
    "a date that never comes": ({"expression": "0 0 30 2 *"}, "spec.expression", "INVALID_FIELD"),
    "a period of nothing": ({"expression": "@every 0s"}, "spec.expression", "INVALID_FIELD"),
    "a negative period": ({"expression": "@every -5s"}, "spec.expression", "INVALID_FIELD"),
    "a huge expression": ({"expression": "*," * 5000}, "spec.expression", "INVALID_FIELD"),
    "an unknown zone": ({"time_zone": "Mars/Base"}, "spec.time_zone", "INVALID_FIELD"),
    "a zone outside": ({"time_zone": "../../etc/passwd"}, "spec.time_zone", "INVALID_FIELD"),
    "an unknown catch-up": ({"catch_up": 4}, "spec.catch_up", "INVALID_FIELD"),
    "an unknown overlap": ({"overlap": -1}, "spec.overlap", "INVALID_FIELD"),
    "a task that nothing can replace": (
        {"overlap": pb.OVERLAP_REPLACE, "task": {"unique_key": "k"}},
        "spec.overlap",
        "INVALID_FIELD",
    ),
    "another queue": ({"task": {"queue": "other"}}, "spec.task.queue", "INVALID_FIELD"),
    "a request id": ({"task": {"request_id": "r"}}, "spec.task.request_id", "INVALID_FIELD"),
    "a time": ({"task": {"run_at_ms": 0}}, "spec.task.run_at_ms", "INVALID_FIELD"),
    "a delay": ({"task": {"delay_ms": 5}}, "spec.task.delay_ms", "INVALID_FIELD"),
    "a priority": ({"task": {"priority": 10}}, "spec.task.priority", "OUT_OF_RANGE"),
    "a payload": ({"task": {"payload": bytes(CONFIG.payload_bytes_max + 1)}}, "spec.task.payload", "TOO_LARGE"),
    "headers": ({"task": {"headers": {str(n): "" for n in range(63)}}}, "spec.task.headers", "TOO_LARGE"),
}


@pytest.mark.parametrize(("changes", "field", "reason"), BAD.values(), ids=BAD)
async def test_bad_input_names_its_field_and_changes_nothing(
    desk: Desk, changes: dict[str, Any], field: str, reason: str
) -> None:
    refused = await desk.refused(desk.put(**changes))
    assert (refused.field, refused.reason) == (field, reason)
    assert "{" not in refused.message
    assert status_of(refused)[0] == "INVALID_ARGUMENT"
    assert not (await desk.page()).schedules


async def test_a_task_needs_a_type(desk: Desk) -> None:
    request = pb.PutScheduleRequest(queue=QUEUE, name=NAME, spec=pb.ScheduleSpec(expression="@daily"))
    refused = await desk.refused(desk.service.put_schedule(request))
    assert (refused.field, refused.reason) == ("spec.task.type", "MISSING_FIELD")


async def test_what_cron_says_is_said(desk: Desk) -> None:
    assert "minute field from 0 to 59" in (await desk.refused(desk.put(expression="61 * * * *"))).message


async def test_lists_are_ordered_and_paged_and_without_payloads(desk: Desk) -> None:
    for queue, name in (("b", "2"), ("a", "2"), ("b", "1"), ("a", "1"), ("a.x", "1"), ("b", "3")):
        await desk.put(name, queue=queue, task={"payload": b"secret", "tenant": "t"})
    whole = await desk.page()
    assert [(schedule.queue, schedule.name) for schedule in whole.schedules] == [
        ("a", "1"), ("a", "2"), ("a.x", "1"), ("b", "1"), ("b", "2"), ("b", "3")
    ]  # fmt: skip
    assert whole.next_page_token == ""
    assert {(schedule.spec.task.payload, schedule.spec.task.tenant) for schedule in whole.schedules} == {(b"", "t")}
    for request, expected in (({}, list(whole.schedules)), ({"queue": "b"}, list(whole.schedules)[3:])):
        for size in (1, 2, 3):
            assert await _all_pages(desk, size, **request) == expected
    assert [schedule.name for schedule in (await desk.page(queue="a")).schedules] == ["1", "2"]
    assert not (await desk.page(queue="nobody")).schedules


async def _all_pages(desk: Desk, size: int, **request: Any) -> list[pb.ScheduleInfo]:
    found: list[pb.ScheduleInfo] = []
    token = ""
    while True:
        page = await desk.page(page_size=size, page_token=token, **request)
        found += page.schedules
        assert len(page.schedules) <= size
        token = page.next_page_token
        if not token:
            return found
        assert len(page.schedules) == size


async def test_a_page_of_large_schedules_ends_early(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule_service, "PAGE_BYTES_MAX", 2000)
    monkeypatch.setattr(schedule_service, "ROWS_PER_SLICE", 2)
    for number in range(5):
        await desk.put(str(number), task={"payload": bytes(900)})
    page = await desk.page()
    assert [schedule.name for schedule in page.schedules] == ["0", "1", "2"]
    assert [schedule.name for schedule in (await desk.page(page_token=page.next_page_token)).schedules] == ["3", "4"]


@pytest.mark.parametrize(
    ("request_fields", "field"),
    [({"page_token": "zz"}, "page_token"), ({"page_size": -1}, "page_size"), ({"page_size": 1001}, "page_size")],
)
async def test_bad_pages(desk: Desk, request_fields: dict[str, Any], field: str) -> None:
    assert (await desk.refused(desk.page(**request_fields))).field == field


async def test_a_schedule_that_cannot_be_read_is_listed_and_can_be_put_anew(desk: Desk) -> None:
    await desk.put_beside("broken", b"\xff\xff\xff", 0)
    await desk.put()
    assert [schedule.name for schedule in (await desk.page()).schedules] == ["broken", NAME]
    assert (await desk.get("broken")).spec == pb.ScheduleSpec()
    assert (await desk.put("broken")).next_at_ms


async def test_previews(desk: Desk) -> None:
    minute_ms = minute_after(desk.now_ms)
    assert await desk.preview(expression="* * * * *") == [minute_ms + item * MINUTE_MS for item in range(5)]
    assert len(await desk.preview(expression="@every 1s", count=100)) == 100
    [berlin_ms] = await desk.preview(expression="0 3 * * *", time_zone="Europe/Berlin", count=1, after_ms=86_400_000)
    assert berlin_ms == 86_400_000 + 2 * 3_600_000
    await desk.put(expression="@every 90s", paused=True)
    assert await desk.preview(queue=QUEUE, name=NAME, count=2, after_ms=1) == [90_000, 180_000], "periods since 1970"


@pytest.mark.parametrize(
    ("request_fields", "field"),
    [
        ({"expression": "x"}, "expression"),
        ({"expression": ""}, "expression"),
        ({"expression": "@daily", "time_zone": "X"}, "time_zone"),
        ({"expression": "@daily", "count": 101}, "count"),
        ({"expression": "@daily", "count": -1}, "count"),
        ({"expression": "@daily", "after_ms": -1}, "after_ms"),
        ({"expression": "@daily", "after_ms": 1 << 62}, "after_ms"),
        ({"name": NAME}, "queue"),
    ],
)
async def test_bad_previews(desk: Desk, request_fields: dict[str, Any], field: str) -> None:
    assert (await desk.refused(desk.preview(**request_fields))).field == field


async def test_a_shard_has_so_many_and_no_more(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule_service, "SCHEDULES_MAX", 3)
    monkeypatch.setattr(schedule_service, "ROWS_PER_SLICE", 1)
    await desk.put_beside("there-before", b"", 0, paused=1)
    await desk.put("a")
    await desk.put("b")
    refused = await desk.refused(desk.put("c"))
    assert (refused.reason, refused.limit, status_of(refused)[0]) == ("CHANGE_REFUSED", "3", "FAILED_PRECONDITION")
    assert (await desk.put("b", paused=True)).paused, "those that are there can be changed"
    await desk.delete("a")
    await desk.put("c")
    assert (await desk.refused(desk.put("d"))).limit == "3"


async def test_how_many_there_are_is_counted_once(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    unseen = Desk(desk.small)  # whose changes the other's count does not know of
    count = desk.service.count_schedules

    async def counted() -> int:
        counts.append(await count())
        return counts[-1]

    monkeypatch.setattr(desk.service, "count_schedules", counted)
    monkeypatch.setattr(schedule_service, "SCHEDULES_MAX", 5)
    for number in range(5):
        await desk.put(str(number))
    await desk.delete("0")
    await desk.delete("1")
    await desk.put("0")
    assert counts == [0]
    desk.small.log.term += 1
    await desk.small.round()
    desk.small.lead()
    await desk.put("1")
    assert counts == [0, 4]
    monkeypatch.setattr(schedule_service, "SCHEDULES_MAX", 6)
    await desk.put("5")
    await unseen.delete("5")
    assert counts == [0, 4]
    await desk.put("5")
    assert counts == [0, 4, 5], "before anything is refused it is counted anew"
    desk.small.refuses = True
    await desk.refused(desk.delete("5"))
    desk.small.refuses = False
    await desk.delete("5")
    await desk.put("5")
    assert counts == [0, 4, 5, 5], "of a write that failed nobody can tell"


async def _changed_meanwhile(desk: Desk, call: Any, meanwhile: Any) -> Any:
    """`meanwhile` is in the log before what `call` proposes, and behind what it has read."""
    submit = desk.small.shard.submit
    done = False

    async def submit_late(entry: Any) -> Any:
        nonlocal done
        if not done:
            done = True
            desk.small.shard.submit = submit  # type: ignore[method-assign]
            await desk.small.rounds_until(meanwhile())
        return await submit(entry)

    desk.small.shard.submit = submit_late  # type: ignore[method-assign]
    return await call


async def test_a_change_at_the_same_time_is_not_overwritten_unread(desk: Desk) -> None:
    await desk.put()
    other = put_request(task={"payload": b"theirs"})
    request = pb.PauseScheduleRequest(queue=QUEUE, name=NAME, paused=True)
    call = desk.small.rounds_until(desk.service.pause_schedule(request))
    info = (await _changed_meanwhile(desk, call, lambda: desk.service.put_schedule(other))).schedule
    assert (info.paused, info.spec.task.payload) == (True, b"theirs")


async def test_one_that_is_made_at_the_same_time_is_changed(desk: Desk) -> None:
    call = desk.small.rounds_until(desk.service.put_schedule(put_request(expression="@daily")))
    info = (await _changed_meanwhile(desk, call, lambda: desk.service.put_schedule(put_request()))).schedule
    assert info.spec.expression == "@daily"
    call = desk.small.rounds_until(desk.service.put_schedule(put_request("second", must_be_new=True)))
    with pytest.raises(RefusedError, match="there is one"):
        await _changed_meanwhile(desk, call, lambda: desk.service.put_schedule(put_request("second")))


async def test_a_schedule_that_others_change_all_the_time_is_a_conflict(desk: Desk) -> None:
    await desk.put()
    submit = desk.small.shard.submit
    changes = 0

    async def submit_late(entry: Any) -> Any:
        nonlocal changes
        changes += 1
        row = desk.small.kv.get(keys.schedule(b"mail", b"nightly"))
        assert row is not None
        version = int.from_bytes(row[:8], "big")
        await submit(PutSchedule(desk.now_ms, b"mail", b"nightly", version, 0, 0, 0, b"%d" % changes))
        return await submit(entry)

    desk.small.shard.submit = submit_late  # type: ignore[method-assign]
    assert (await desk.refused(desk.pause(True))).reason == "CONFLICT"
    assert changes == schedule_service.TRIES_MAX


async def test_ticks_do_not_disturb_a_change(desk: Desk) -> None:
    first = await desk.put()
    desk.small.time.now_ms = first.next_at_ms
    tick = FireSchedule(
        desk.now_ms, b"mail", b"nightly", first.version, first.next_at_ms + MINUTE_MS, 0, OVERLAP_ALLOW,
        [first.next_at_ms], [new_task()],
    )  # fmt: skip
    await desk.small.submit(tick)
    info = await desk.pause(True)
    assert (info.fired_total, info.last_at_ms, bool(info.last_task_id)) == (1, first.next_at_ms, True)


async def test_only_the_leader_answers(desk: Desk) -> None:
    await desk.put()
    desk.small.log.serves = False
    desk.small.follow_role()
    await asyncio.sleep(0)
    for call in (desk.put(), desk.get(), desk.page(), desk.delete(), desk.trigger(), desk.preview(expression="@daily")):
        assert (await desk.refused(call)).reason == "NOT_LEADER"
