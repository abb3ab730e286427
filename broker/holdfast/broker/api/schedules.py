"""Calls about schedules: what they say is checked here, once, and stored as it was said."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from google.protobuf.message import DecodeError

from holdfast.broker.api.conversion import wire_state
from holdfast.broker.api.home_guard import HomeGuard
from holdfast.broker.api.validation import PAGE_DEFAULT, PAGE_MAX, Validator
from holdfast.broker.leader.schedule_manager import GRACE_MS
from holdfast.broker.policy.schedule_specs import CATCH_UPS, TIME_ZONE_DEFAULT, TickTasks, timetable_of
from holdfast.broker.replica.shard import Shard
from holdfast.cron.errors import CronError
from holdfast.cron.ticks import upcoming
from holdfast.cron.timetables import Timetable
from holdfast.machine import keys, rejections
from holdfast.machine.entries import Entry
from holdfast.machine.ids import TIME_MS_MAX, format_task_id
from holdfast.machine.operator_entries import OVERLAP_ALLOW, DropSchedule, FireSchedule, PutSchedule
from holdfast.machine.outcomes import Fired, Outcome
from holdfast.machine.rejections import Rejection
from holdfast.machine.rows import NO_TASK, Schedule
from holdfast.proto.v1 import schedules_pb2 as pb
from holdfast.proto.v1.tasks_pb2 import UNIQUE_SCOPE_WHILE_WAITING, TaskSpec
from holdfast.serving.refusals import (
    CHANGE_REFUSED,
    INVALID_FIELD,
    MISSING_FIELD,
    OUT_OF_RANGE,
    RefusedError,
    conflict,
)

SCHEDULES_MAX = 10_000  # of a shard
PREVIEW_DEFAULT = 5
PREVIEW_MAX = 100
PAGE_BYTES_MAX = 2 * 1024 * 1024  # of the rows that are read for one page
ROWS_PER_SLICE = 16  # read before other work of the loop gets a turn: each may have a large payload
TRIES_MAX = 5  # at a schedule that others change at the same time
_TICK_MS_WIDEST = 10**14  # as many digits as a tick has, if it is far away

_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")
_NAME_ALLOWED = "1-128 of [A-Za-z0-9._-]"
_PAGE_TOKEN = re.compile(r"([0-9a-f]{2}){3,257}")


class _Count(NamedTuple):
    """Counted once in each term of leading, and kept up from then on; calls at the same time may make it a few off."""

    term: int
    schedules: int


class ScheduleService:
    """One method per RPC."""

    def __init__(self, shard: Shard, validator: Validator, homes: HomeGuard) -> None:
        self._shard = shard
        self._validator = validator
        self._homes = homes
        self._count: _Count | None = None  # how many schedules there are, once it was asked for

    # --- changes ----------------------------------------------------------------------------------------------

    async def put_schedule(self, request: pb.PutScheduleRequest) -> pb.PutScheduleResponse:
        queue, name = self._names(request.queue, request.name)
        spec, timetable = self._checked(queue, name, request.spec)
        body = spec.SerializeToString(deterministic=True)
        await self._shard.read_barrier()
        self._homes.check(queue)  # on two shards it would tick twice

        async def put() -> Outcome | None:
            known = self._find(queue, name)
            # A program that puts its schedules at every start must not take back what an operator did.
            paused = request.paused or (known is not None and bool(known.paused))
            if known is None:
                await self._check_room()
            elif request.must_be_new:
                raise _refusal(rejections.schedule_exists())
            elif known.body == body and paused == bool(known.paused):
                return None
            return await self._put(queue, name, known, body, paused, timetable)

        await self._change(put)
        return pb.PutScheduleResponse(schedule=self._info(queue, name))

    async def pause_schedule(self, request: pb.PauseScheduleRequest) -> pb.PauseScheduleResponse:
        queue, name = self._names(request.queue, request.name)
        await self._shard.read_barrier()

        async def pause() -> Outcome | None:
            known = self._found(queue, name)
            if bool(known.paused) == request.paused:
                return None
            timetable = None if request.paused else self._timetable(_spec_of(known), "spec")
            return await self._put(queue, name, known, known.body, request.paused, timetable)

        await self._change(pause)
        return pb.PauseScheduleResponse(schedule=self._info(queue, name))

    async def delete_schedule(self, request: pb.DeleteScheduleRequest) -> pb.DeleteScheduleResponse:
        queue, name = self._names(request.queue, request.name)
        outcome = await self._submit(DropSchedule(self._shard.now_ms(), queue, name), added=-1)
        if isinstance(outcome, Rejection):
            raise _refusal(outcome)
        return pb.DeleteScheduleResponse()

    async def trigger_schedule(self, request: pb.TriggerScheduleRequest) -> pb.TriggerScheduleResponse:
        queue, name = self._names(request.queue, request.name)
        self._validator.own_request_id(request.request_id)
        await self._shard.read_barrier()

        async def trigger() -> Outcome | None:
            known = self._found(queue, name)
            tasks = TickTasks(self._validator, name, _spec_of(known))
            now_ms = self._shard.now_ms()
            new = tasks.of_request(request.request_id, now_ms, self._shard.policies)
            # A tick of 0 is no tick: what is to come stays as it is, and nothing is cancelled for it.
            entry = FireSchedule(now_ms, queue, name, known.version, known.next_ms, 0, OVERLAP_ALLOW, [0], [new])
            outcome = await self._submit(entry)
            if isinstance(outcome, Rejection) and outcome.code == rejections.REQUEST_ID_CONFLICT:
                raise _refusal(outcome, "request_id")
            return outcome

        fired = await self._change(trigger)
        assert isinstance(fired, Fired), "a trigger is answered with its task"
        return pb.TriggerScheduleResponse(
            task_id=format_task_id(fired.task_id),
            duplicate=fired.duplicate,
            is_of_another=fired.duplicate and self._is_of_another(fired.task_id, request.request_id),
            state=wire_state(fired.state),
        )

    def _is_of_another(self, task_id: bytes, request_id: str) -> bool:
        """Whether a task has another request id. One that has ended has no unique key: it can only be the same."""
        (envelope,) = self._shard.reader.envelopes([task_id])
        return envelope is not None and (not request_id or TaskSpec.FromString(envelope).request_id != request_id)

    async def _put(
        self, queue: bytes, name: bytes, known: Schedule | None, body: bytes, paused: bool, timetable: Timetable | None
    ) -> Outcome:
        now_ms = self._shard.now_ms()
        next_ms = 0 if paused or timetable is None else _next_ms(known, body, timetable, now_ms)
        version = 0 if known is None else known.version
        entry = PutSchedule(now_ms, queue, name, version, int(paused), 0, next_ms, body)
        return await self._submit(entry, added=int(known is None))

    async def _change(self, attempt: Callable[[], Awaitable[Outcome | None]]) -> Outcome | None:
        """Reads and changes a schedule until nobody else did so in between."""
        for _ in range(TRIES_MAX):
            outcome = await attempt()
            if not isinstance(outcome, Rejection):
                return outcome
        raise conflict("the schedule")

    async def _submit(self, entry: Entry, added: int = 0) -> Outcome:
        """`added`: how many schedules more there are, if it works."""
        try:
            (outcome,) = await self._shard.submit(entry)
        except BaseException:
            self._count = None  # nobody can tell
            raise
        if added and self._count is not None and not isinstance(outcome, Rejection):
            self._count = self._count._replace(schedules=self._count.schedules + added)
        return outcome

    # --- reads ------------------------------------------------------------------------------------------------

    async def get_schedule(self, request: pb.GetScheduleRequest) -> pb.GetScheduleResponse:
        queue, name = self._names(request.queue, request.name)
        await self._shard.read_barrier()
        return pb.GetScheduleResponse(schedule=self._info(queue, name))

    async def list_schedules(self, request: pb.ListSchedulesRequest) -> pb.ListSchedulesResponse:
        limit = self._validator.page_size(request.page_size, PAGE_DEFAULT, PAGE_MAX)
        prefix = keys.family_start(keys.SCHEDULE)
        if request.queue:
            prefix = keys.schedules_of(self._validator.queue(request.queue))
        start = max(prefix, _after_token(request.page_token))
        stop = keys.after_prefix(prefix)
        await self._shard.read_barrier()
        response = pb.ListSchedulesResponse()
        size_bytes = 0
        while rows := self._shard.reader.scan(start, stop, ROWS_PER_SLICE) if start < stop else []:
            for key, row in rows:
                if len(response.schedules) == limit or size_bytes > PAGE_BYTES_MAX:
                    return response
                info = _message(*keys.schedule_names(key[1:]), Schedule.decode(row))
                info.spec.task.ClearField("payload")
                response.schedules.append(info)
                response.next_page_token = key[1:].hex()
                size_bytes += len(row)
            start = rows[-1][0] + b"\0"
            await asyncio.sleep(0)
        response.next_page_token = ""
        return response

    async def preview_schedule(self, request: pb.PreviewScheduleRequest) -> pb.PreviewScheduleResponse:
        count = request.count or PREVIEW_DEFAULT
        if not 1 <= count <= PREVIEW_MAX:
            raise _out_of_range("count", count, PREVIEW_MAX)
        if not 0 <= request.after_ms <= TIME_MS_MAX:
            raise _out_of_range("after_ms", request.after_ms, TIME_MS_MAX)
        if request.name:
            queue, name = self._names(request.queue, request.name)
            await self._shard.read_barrier()
            timetable = self._timetable(_spec_of(self._found(queue, name)), "spec")
        else:
            timetable = self._timetable(pb.ScheduleSpec(expression=request.expression, time_zone=request.time_zone), "")
        after_ms = request.after_ms or self._shard.now_ms()
        return pb.PreviewScheduleResponse(at_ms=upcoming(timetable, after_ms, count))

    # --- what is asked for --------------------------------------------------------------------------------------

    def _names(self, queue: str, name: str) -> tuple[bytes, bytes]:
        encoded = self._validator.queue(queue)
        if not name:
            raise RefusedError(MISSING_FIELD, "Expected {field} to name a schedule, but it is empty.", "name")
        if not _NAME.fullmatch(name):
            raise RefusedError(
                INVALID_FIELD, f"Expected {{field}} of {_NAME_ALLOWED}, but got another name.", "name", _NAME_ALLOWED
            )
        return encoded, name.encode()

    def _checked(self, queue: bytes, name: bytes, given: pb.ScheduleSpec) -> tuple[pb.ScheduleSpec, Timetable]:
        """What is to be stored: everything that was left out is filled in, so that it is shown and never changes."""
        timetable = self._timetable(given, "spec")
        try:
            self._validator.task_sizes(given.task)  # before it is copied
        except RefusedError as error:
            raise error.within("spec.task") from None
        spec = pb.ScheduleSpec()
        spec.CopyFrom(given)
        spec.time_zone = spec.time_zone or TIME_ZONE_DEFAULT
        spec.catch_up = spec.catch_up or pb.CATCH_UP_ONE
        spec.overlap = spec.overlap or pb.OVERLAP_ALLOW
        for field, known in (("catch_up", CATCH_UPS), ("overlap", pb.Overlap.values())):
            if getattr(spec, field) not in known:
                sentence = f"Expected {{field}} from 0 to 3, but got {getattr(spec, field)}."
                raise RefusedError(INVALID_FIELD, sentence, f"spec.{field}")
        self._check_task(queue, name, spec)
        return spec, timetable

    def _check_task(self, queue: bytes, name: bytes, spec: pb.ScheduleSpec) -> None:
        task = spec.task
        if task.queue not in ("", queue.decode()):
            sentence = "Expected {field} to be empty or the queue of the schedule, but it is another one."
            raise RefusedError(INVALID_FIELD, sentence, "spec.task.queue")
        task.queue = queue.decode()
        present = [field for field in ("run_at_ms", "delay_ms") if task.HasField(field)]
        present += ["request_id"] * bool(task.request_id)
        if present:
            sentence = "Expected no {field}, but there is one: each tick makes a task of its own, at its own time."
            raise RefusedError(INVALID_FIELD, sentence, f"spec.task.{present[0]}")
        if spec.overlap == pb.OVERLAP_REPLACE and task.unique_key and task.unique_scope != UNIQUE_SCOPE_WHILE_WAITING:
            # The task before keeps its key until it has ended: it would be told to stop, and nothing take its place.
            sentence = "Expected {field} to be allow or skip, because the task has a unique_key until it is done."
            raise RefusedError(INVALID_FIELD, sentence, "spec.overlap")
        sample = pb.ScheduleSpec()
        sample.CopyFrom(spec)  # it gets the headers of a tick, which count too
        try:
            TickTasks(self._validator, name, sample).of_tick(
                _TICK_MS_WIDEST, self._shard.now_ms(), self._shard.policies
            )
        except RefusedError as error:
            raise error.within("spec.task") from None

    def _timetable(self, spec: pb.ScheduleSpec, parent: str) -> Timetable:
        if not spec.expression:
            sentence = "Expected {field} to say when, such as `0 3 * * *` or `@every 90s`, but it is empty."
            raise RefusedError(MISSING_FIELD, sentence, f"{parent}.expression" if parent else "expression")
        try:
            return timetable_of(spec.expression, spec.time_zone)
        except CronError as error:
            field = "time_zone" if error.field == "zone" else "expression"
            raise RefusedError(INVALID_FIELD, str(error), f"{parent}.{field}" if parent else field) from None

    # --- what is there ------------------------------------------------------------------------------------------

    def _find(self, queue: bytes, name: bytes) -> Schedule | None:
        row = self._shard.reader.get(keys.schedule(queue, name))
        return None if row is None else Schedule.decode(row)

    def _found(self, queue: bytes, name: bytes) -> Schedule:
        known = self._find(queue, name)
        if known is None:
            raise _refusal(rejections.schedule_not_found())
        return known

    def _info(self, queue: bytes, name: bytes) -> pb.ScheduleInfo:
        return _message(queue, name, self._found(queue, name))

    async def _check_room(self) -> None:
        term = self._shard.term
        if self._count is None or self._count.term != term or self._count.schedules >= SCHEDULES_MAX:
            self._count = _Count(term, await self.count_schedules())
        if self._count.schedules >= SCHEDULES_MAX:
            raise RefusedError(
                CHANGE_REFUSED,
                f"Expected fewer than {SCHEDULES_MAX} schedules on this shard, but there are that many; delete some "
                "first.",
                limit=str(SCHEDULES_MAX),
                metadata={"why": "schedules_max"},
            )

    async def count_schedules(self) -> int:
        count = 0
        start, stop = keys.family_start(keys.SCHEDULE), keys.family_start(keys.SCHEDULE + 1)
        while rows := self._shard.reader.scan(start, stop, ROWS_PER_SLICE):
            count += len(rows)
            start = rows[-1][0] + b"\0"
            await asyncio.sleep(0)
        return count


def _spec_of(schedule: Schedule) -> pb.ScheduleSpec:
    """Empty if it cannot be read any more: others must be listed all the same, and this one can be put anew."""
    try:
        return pb.ScheduleSpec.FromString(schedule.body)
    except DecodeError:
        return pb.ScheduleSpec()


def _message(queue: bytes, name: bytes, schedule: Schedule) -> pb.ScheduleInfo:
    return pb.ScheduleInfo(
        queue=queue.decode(),
        name=name.decode(),
        spec=_spec_of(schedule),
        paused=bool(schedule.paused),
        next_at_ms=schedule.next_ms,
        last_at_ms=schedule.last_ms,
        last_task_id="" if schedule.last_task_id == NO_TASK else format_task_id(schedule.last_task_id),
        fired_total=schedule.fired_total,
        skipped_total=schedule.skipped_total,
        version=schedule.version,
    )


def _next_ms(known: Schedule | None, body: bytes, timetable: Timetable, now_ms: int) -> int:
    """When a schedule that is put now ticks first; 0: never. What passed before is not made up for, but a tick whose
    task is only a moment late is not lost because something else than the times is changed."""
    if known is not None and now_ms - GRACE_MS <= known.next_ms <= now_ms:
        before, after = _spec_of(known), pb.ScheduleSpec.FromString(body)
        if (before.expression, before.time_zone) == (after.expression, after.time_zone):
            return known.next_ms
    return timetable.next_after_ms(now_ms) or 0


def _refusal(rejection: Rejection, field: str = "name") -> RefusedError:
    return RefusedError(rejection.code, rejection.message, field=field)


def _after_token(text: str) -> bytes:
    """The first key behind the last schedule of the page before; empty for the first page."""
    if not text:
        return b""
    if not _PAGE_TOKEN.fullmatch(text):
        raise RefusedError(INVALID_FIELD, "Expected {field} as a page returned it, but it is not.", "page_token")
    return keys.family_start(keys.SCHEDULE) + bytes.fromhex(text) + b"\0"


def _out_of_range(field: str, value: int, high: int) -> RefusedError:
    return RefusedError(OUT_OF_RANGE, f"Expected {{field}} from 0 to {high}, but got {value}.", field, f"0..{high}")
