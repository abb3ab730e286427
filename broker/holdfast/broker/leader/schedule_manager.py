"""Makes the ticks of schedules tasks, each once: decided here, when their time has come, and guarded in the log.

The state says of each schedule when its next tick is. Whoever leads takes up what is due, so a new leader begins where
the one before stopped; a tick that both of them proposed counts once, because the log knows the newest one.
"""

import asyncio
from typing import NamedTuple

from holdfast.broker.config import BrokerConfig
from holdfast.broker.leader.roles import Housekeeping, Time
from holdfast.broker.leader.sweeps import Sweep
from holdfast.broker.metrics import Metrics
from holdfast.broker.policy.policies import Policies
from holdfast.broker.policy.schedule_specs import TickTasks, read_schedule
from holdfast.broker.policy.task_specs import TaskSpecs
from holdfast.common.service import Service
from holdfast.cron.ticks import CATCH_UP_TICKS_MAX, catch_up
from holdfast.machine import keys
from holdfast.machine.effects import Effects
from holdfast.machine.kv import Rows
from holdfast.machine.new_tasks import NewTask
from holdfast.machine.operator_entries import FireSchedule
from holdfast.machine.outcomes import Fired, Outcome
from holdfast.machine.rejections import Rejection
from holdfast.machine.rows import NO_TASK, Schedule
from holdfast.serving.logs import get_logger
from holdfast.serving.refusals import OutcomeUnknownError, RefusedError

GRACE_MS = 60_000  # how late a tick may be without having been missed: longer than any fail-over
PAGE_SCHEDULES = 32  # taken up at the same time
ENTRY_BYTES_MAX = 1024 * 1024  # of all tasks behind the first
ENTRIES_PER_TURN = 8  # of one schedule, while others wait
UNUSABLE_KNOWN_MAX = 10_000

_log = get_logger(__name__)


class _Plan(NamedTuple):
    """What is to be done about a schedule that is due."""

    queue: bytes
    name: bytes
    version: int
    overlap: int
    ticks: tuple[int, ...]
    next_ms: int  # the tick after these; 0: none
    tasks: TickTasks


class ScheduleManager(Service):
    """The schedules of a shard."""

    def __init__(
        self,
        rows: Rows,
        config: BrokerConfig,
        metrics: Metrics,
        policies: Policies,
        time: Time,
        log: Housekeeping,
    ) -> None:
        self._rows = rows
        self._metrics = metrics
        self._policies = policies
        self._now_ms = time.now_ms
        self._submit = log.submit_housekeeping
        self._task_specs = TaskSpecs(config)
        self._entry_ticks_max = config.sweep_batch_tasks
        # Ticks from here on were not missed, however long the many that are due at the same time take.
        self._here_since_ms = 0
        self._unusable: dict[tuple[bytes, bytes], int] = {}  # the version that is put aside until there is another one
        self.sweep = Sweep(rows, keys.SCHEDULE_DUE, time.now_ms, self._fire_page, batch_rows=PAGE_SCHEDULES)
        super().__init__(self.sweep.run)

    def start(self) -> None:
        self._here_since_ms = self._now_ms()
        super().start()

    def arm(self, effects: Effects) -> None:
        """Wakes in time for what was just written."""
        if effects.schedule_ms:
            self.sweep.arm(effects.schedule_ms)

    def time_was_moved(self) -> None:
        self._here_since_ms = self._now_ms()  # nobody was there for the ticks that were leapt over
        self.sweep.poll_again()

    async def _fire_page(self, due: list[tuple[int, bytes]]) -> bool:
        await asyncio.sleep(0)  # between pages other work gets its turn, also if nothing of a page can be used
        firing = (self._fire(*keys.schedule_names(what)) for _, what in due)
        fired = await asyncio.gather(*firing, return_exceptions=True)
        for error in fired:
            if isinstance(error, BaseException):
                raise error
        works = all(fired)
        if not works:
            self._here_since_ms = self._now_ms()  # for as long as nothing can be written, nobody is here
        return works

    async def _fire(self, queue: bytes, name: bytes) -> bool:
        """False if a write was refused and must be tried again."""
        plan = self._plan(queue, name)
        tick = 0
        # With many large tasks to make it gets several turns: it is due as long as a tick is left, and others are too.
        for _ in range(ENTRIES_PER_TURN):
            entry = None if plan is None else self._next_entry(plan, tick)
            if plan is None or entry is None:
                return True
            try:
                outcomes = await self._submit(entry)
            except (RefusedError, OutcomeUnknownError):
                return False
            if any(isinstance(outcome, Rejection) for outcome in outcomes):
                return True  # it was changed or deleted meanwhile; if there is a next tick, that change has armed us
            fired = sum(_is_new(outcome) for outcome in outcomes)
            self._metrics.tasks_enqueued.inc(fired)
            self._metrics.schedule_ticks_fired.inc(fired)
            self._metrics.schedule_ticks_skipped.inc(len(outcomes) - fired)
            tick += len(entry.ticks)
            if tick == len(plan.ticks):
                return True
        return True

    def _plan(self, queue: bytes, name: bytes) -> _Plan | None:
        """None if nothing is to be done."""
        row = self._rows.get(keys.schedule(queue, name))
        if row is None:
            return None
        schedule, now_ms = Schedule.decode(row), self._now_ms()
        is_due = 0 < schedule.next_ms <= now_ms
        if not is_due or self._unusable.get((queue, name)) == schedule.version:
            return None
        try:
            stored = read_schedule(self._task_specs, name, schedule.body)
            grace_ms = GRACE_MS + max(0, now_ms - self._here_since_ms)
            ticks, next_ms = catch_up(
                stored.catch_up, stored.timetable, schedule.next_ms - 1, now_ms, CATCH_UP_TICKS_MAX, grace_ms
            )
        except Exception as error:  # noqa: BLE001 - whatever is wrong with one schedule is no reason to stop the others
            self._put_aside(queue, name, schedule.version, error)
            return None
        return _Plan(queue, name, schedule.version, stored.overlap, ticks, next_ms or 0, stored.tasks)

    def _next_entry(self, plan: _Plan, tick: int) -> FireSchedule | None:
        """The ticks from number `at` on, as many as an entry may have. None if no task can be made of them."""
        now_ms = self._now_ms()
        keep_ms = self._policies.of(plan.queue).finished_retention_ms
        tasks: list[NewTask] = []
        size_bytes = 0
        try:
            for tick_ms in plan.ticks[tick : tick + self._entry_ticks_max]:
                new = plan.tasks.of_tick(tick_ms, now_ms, self._policies)
                size_bytes += len(new.envelope)
                if tasks and size_bytes > ENTRY_BYTES_MAX:
                    break
                tasks.append(new)
        except RefusedError as error:
            self._put_aside(plan.queue, plan.name, plan.version, error)
            return None
        end = tick + len(tasks)
        next_ms = plan.ticks[end] if end < len(plan.ticks) else plan.next_ms
        fired = list(plan.ticks[tick:end])
        return FireSchedule(now_ms, plan.queue, plan.name, plan.version, next_ms, keep_ms, plan.overlap, fired, tasks)

    def _put_aside(self, queue: bytes, name: bytes, version: int, error: Exception) -> None:
        if len(self._unusable) >= UNUSABLE_KNOWN_MAX:
            self._unusable.clear()
        self._unusable[queue, name] = version
        _log.error(
            "schedule_unusable", queue=queue.decode(), schedule=name.decode(), version=version,
            error=f"{type(error).__name__}: {error}",
        )  # fmt: skip


def _is_new(outcome: Outcome) -> bool:
    return isinstance(outcome, Fired) and outcome.task_id != NO_TASK and not outcome.duplicate
