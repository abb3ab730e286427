"""What a stored schedule says: its times, and the task of each of its ticks. Pure."""

from functools import lru_cache
from typing import NamedTuple

from holdfast.broker.policy.policies import Policies
from holdfast.broker.policy.task_specs import TaskSpecs
from holdfast.cron.expressions import parse
from holdfast.cron.ticks import CatchUp
from holdfast.cron.timetables import Timetable
from holdfast.machine.new_tasks import NewTask
from holdfast.proto.v1 import schedules_pb2 as pb

TIME_ZONE_DEFAULT = "UTC"
NAME_HEADER = "holdfast-schedule"
TICK_HEADER = "holdfast-tick-ms"
TIMETABLES_CACHED_MAX = 1000

CATCH_UPS: dict[int, CatchUp] = {pb.CATCH_UP_NONE: "none", pb.CATCH_UP_ONE: "one", pb.CATCH_UP_ALL: "all"}


@lru_cache(maxsize=TIMETABLES_CACHED_MAX)
def timetable_of(expression: str, time_zone: str) -> Timetable:
    """Raises CronError. Ticks of `@every` are at whole periods since 1970, so that they are the same wherever and
    whenever they are worked out."""
    return parse(expression, time_zone or TIME_ZONE_DEFAULT)


class StoredSchedule(NamedTuple):
    """How a schedule that is in the state is carried out."""

    timetable: Timetable
    catch_up: CatchUp
    overlap: int
    tasks: "TickTasks"


class TickTasks:
    """Makes the tasks of a schedule's ticks."""

    def __init__(self, task_specs: TaskSpecs, name: bytes, spec: pb.ScheduleSpec) -> None:
        self._task_specs = task_specs
        self._task = spec.task
        self._task.headers[NAME_HEADER] = name.decode()

    def of_tick(self, tick_ms: int, now_ms: int, policies: Policies | None) -> NewTask:
        self._task.headers[TICK_HEADER] = str(tick_ms)
        return self._task_specs.new_task(self._task, now_ms, policies)

    def of_request(self, request_id: str, now_ms: int, policies: Policies | None) -> NewTask:
        """One that somebody asked for: it is no tick."""
        self._task.headers.pop(TICK_HEADER, None)
        self._task.request_id = request_id
        return self._task_specs.new_task(self._task, now_ms, policies)


def read_schedule(task_specs: TaskSpecs, name: bytes, body: bytes) -> StoredSchedule:
    """Raises whatever is wrong with it."""
    spec = pb.ScheduleSpec.FromString(body)
    timetable = timetable_of(spec.expression, spec.time_zone)
    tasks = TickTasks(task_specs, name, spec)
    return StoredSchedule(timetable, CATCH_UPS.get(spec.catch_up, "one"), spec.overlap or pb.OVERLAP_ALLOW, tasks)
