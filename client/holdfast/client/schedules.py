"""Tasks by the clock: what goes in and comes out of the calls about schedules."""

from dataclasses import dataclass

from holdfast.client.models import Choice, NewTask


class CatchUp(Choice):
    """What to do about ticks that were missed, for example because no broker ran."""

    NONE = "NONE"  # they are lost
    ONE = "ONE"  # one task for the newest of them
    ALL = "ALL"  # a task for each, the newest 1,000 at most
    UNKNOWN = "UNKNOWN"  # one that only a newer client knows


class Overlap(Choice):
    """What to do if the task of the tick before has not finished."""

    ALLOW = "ALLOW"
    SKIP = "SKIP"  # no task for this tick
    REPLACE = "REPLACE"  # the one before is cancelled
    UNKNOWN = "UNKNOWN"  # one that only a newer client knows


@dataclass(frozen=True, slots=True)
class Schedule:
    """Makes one task per tick. It belongs to the queue of its task, and its name is unique there.

    >>> report = Schedule("nightly", "30 2 * * mon-fri", NewTask("reports", "sales"), time_zone="Europe/Berlin")
    >>> report.queue, report.catch_up, report.overlap
    ('reports', <CatchUp.ONE: 'ONE'>, <Overlap.ALLOW: 'ALLOW'>)
    """

    name: str  # 1-128 of [A-Za-z0-9._-]
    expression: str  # five fields, six with seconds first, @daily and the like, or @every 90s
    task: NewTask  # without request_id, run_at_ms and delay_ms
    time_zone: str = ""  # of the IANA database, e.g. Europe/Berlin; UTC if empty
    catch_up: CatchUp = CatchUp.ONE
    overlap: Overlap = Overlap.ALLOW

    @property
    def queue(self) -> str:
        return self.task.queue


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleInfo:
    """A schedule, and what has come of it."""

    schedule: Schedule  # in a list without the payload of its task: get_schedule has it
    paused: bool = False
    next_at_ms: int | None = None  # None: never again, or paused
    last_at_ms: int | None = None  # the newest tick that was made a task or passed over; None: none yet
    last_task_id: str = ""  # empty: none yet
    fired_total: int = 0  # tasks that it made
    skipped_total: int = 0  # ticks without one, because of the overlap policy
    version: int = 0  # grows with every change

    @property
    def queue(self) -> str:
        return self.schedule.queue

    @property
    def name(self) -> str:
        return self.schedule.name


@dataclass(frozen=True, slots=True)
class SchedulePage:
    """Some schedules, by queue and name."""

    schedules: tuple[ScheduleInfo, ...]
    next_page_token: str = ""  # empty on the last page
