"""What time alone brings about: expired leases, due tasks, purges. Decided here, written like everything else."""

import random
from collections.abc import Awaitable, Callable

from holdfast.broker.config import BrokerConfig
from holdfast.broker.leader.expiring import Expiries, ttl_error
from holdfast.broker.leader.roles import Housekeeping, Time
from holdfast.broker.leader.sweeps import Sweep
from holdfast.broker.metrics import Metrics
from holdfast.broker.policy.policies import Policies
from holdfast.common.service import Service
from holdfast.machine import keys
from holdfast.machine.effects import Effects
from holdfast.machine.entries import Entry, Expire, ExpireKeys, ExpiringKey, Promote, Purge
from holdfast.machine.entry_parts import DEPARTING_BYTES_MAX, departing_bytes, in_parts
from holdfast.machine.handlers.purging import purge_allowed_ms
from holdfast.machine.ids import later_task_id
from holdfast.machine.machine import Machine
from holdfast.machine.operator_entries import TtlExpire
from holdfast.machine.outcomes import Changed, Moved, Outcome
from holdfast.machine.rows import ATTEMPT_TIMED_OUT, CLAIMED, DEAD
from holdfast.machine.run_entries import PurgeRanges, TaskRange
from holdfast.serving.refusals import OutcomeUnknownError, RefusedError

Due = list[tuple[int, bytes]]  # when, what


class Timers(Service):
    """The sweeps of a shard."""

    def __init__(
        self,
        machine: Machine,
        config: BrokerConfig,
        metrics: Metrics,
        policies: Policies,
        time: Time,
        log: Housekeeping,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._reader = machine.reader
        self._expiring = Expiries(machine.reader, policies, draw)
        self._metrics = metrics
        self._policies = policies
        self._now_ms = time.now_ms
        self._submit = log.submit_housekeeping
        self._tasks_max = config.sweep_batch_tasks  # in one entry, however many a row stands for

        def sweep(family: int, handle: Callable[[Due], Awaitable[bool]]) -> Sweep:
            purging = family in (keys.RETENTION, keys.KEY_EXPIRY)
            not_before_ms = (lambda: purge_allowed_ms(machine.meta.stepped_ms)) if purging else (lambda: 0)
            rows = config.sweep_batch_tasks
            return Sweep(machine.reader, family, time.now_ms, handle, batch_rows=rows, not_before_ms=not_before_ms)

        self._expiries = sweep(keys.CLAIM_EXPIRY, self.expire)
        self._dues = sweep(keys.DUE, self._promote)
        self._purges = sweep(keys.RETENTION, self.purge)
        self._key_expiries = sweep(keys.KEY_EXPIRY, self._expire_keys)
        self._ttl_expiries = sweep(keys.START_BY, self._ttl_expire)
        self._sweeps = (self._expiries, self._dues, self._purges, self._key_expiries, self._ttl_expiries)
        super().__init__(*(sweep.run for sweep in self._sweeps))

    def starts(self) -> dict[int, bytes]:
        """By family: where its rows begin, as far as is known."""
        sweeps = {keys.CLAIM_EXPIRY: self._expiries, keys.DUE: self._dues, keys.RETENTION: self._purges}
        return {family: sweep.position for family, sweep in sweeps.items()}

    def time_was_moved(self) -> None:
        for sweep in self._sweeps:
            sweep.poll_again()

    def arm(self, effects: Effects) -> None:
        """Wakes the sweeps in time for what was just written."""
        if effects.expiry_ms:
            self._expiries.arm(effects.expiry_ms)
        if effects.due_ms:
            self._dues.arm(effects.due_ms)
        if effects.purge_ms:
            self._purges.arm(effects.purge_ms)
        if effects.key_expiry_ms:
            self._key_expiries.arm(effects.key_expiry_ms)
        if effects.start_by_ms:
            self._ttl_expiries.arm(effects.start_by_ms)

    async def _write(self, entry: Entry) -> list[Moved] | None:
        """What was moved, or None if the write was refused and must be tried again."""
        outcomes = await self._submitted(entry)
        return None if outcomes is None else [outcome for outcome in outcomes if isinstance(outcome, Moved)]

    async def _submitted(self, entry: Entry) -> list[Outcome] | None:
        """None if the write was refused and must be tried again."""
        try:
            return await self._submit(entry)
        except (RefusedError, OutcomeUnknownError):
            return None

    async def expire(self, due: Due) -> bool:
        ranges = self._reader.ranges_at([task_id for _, task_id in due])
        task_ids = [later_task_id(first_id, index) for first_id, tasks in ranges for index in range(tasks)]
        for start in range(0, len(task_ids), self._tasks_max):
            if not await self._expire_tasks(task_ids[start : start + self._tasks_max]):
                return False
        return True

    async def _expire_tasks(self, task_ids: list[bytes]) -> bool:
        found = zip(task_ids, self._reader.executions(task_ids), strict=True)
        claimed = [(task_id, task) for task_id, task in found if task is not None and task.state == CLAIMED]
        sizes = [departing_bytes(task) for _, task in claimed]
        for finished_ms, dead_ms, places in self._policies.kept([task for _, task in claimed]):
            for part in in_parts(places, sizes, DEPARTING_BYTES_MAX):
                now_ms = self._now_ms()
                items = self._expiring.items([claimed[place] for place in part], now_ms)
                moved = await self._write(Expire(now_ms, finished_ms, dead_ms, items))
                if moved is None:
                    return False
                self._metrics.tasks_expired.inc(len(moved))
                self._metrics.tasks_timed_out.inc(sum(item.how == ATTEMPT_TIMED_OUT for item in items))
                self._metrics.tasks_dead.inc(sum(outcome.state == DEAD for outcome in moved))
        return True

    async def _promote(self, due: Due) -> bool:
        moved = await self._write(Promote(self._now_ms(), [task_id for _, task_id in due]))
        self._metrics.tasks_promoted.inc(len(moved or ()))
        return moved is not None

    async def _ttl_expire(self, due: Due) -> bool:
        task_ids = [task_id for _, task_id in due]
        tasks = self._reader.executions(task_ids)
        for _, dead_ms, places in self._policies.kept(tasks):
            chosen = [task_ids[place] for place in places]
            moved = await self._write(TtlExpire(self._now_ms(), dead_ms, ttl_error(), chosen))
            if moved is None:
                return False
            self._metrics.tasks_dead.inc(len(moved))
            self._metrics.tasks_ttl_expired.inc(len(moved))
        return True

    async def purge(self, due: Due) -> bool:
        ranges = self._reader.ranges_at([task_id for _, task_id in due])
        singles = [task_id for task_id, tasks in ranges if tasks == 1]
        of_runs = [task_range for task_range in ranges if task_range.tasks > 1]
        return (not singles or await self._purge_tasks(singles)) and (not of_runs or await self._purge_ranges(of_runs))

    async def _purge_tasks(self, task_ids: list[bytes]) -> bool:
        moved = await self._write(Purge(self._now_ms(), task_ids))
        self._metrics.tasks_purged.inc(len(moved or ()))
        return moved is not None

    async def _purge_ranges(self, ranges: list[TaskRange]) -> bool:
        outcomes = await self._submitted(PurgeRanges(self._now_ms(), ranges))
        self._metrics.tasks_purged.inc(
            sum(outcome.number for outcome in outcomes or () if isinstance(outcome, Changed))
        )
        return outcomes is not None

    async def _expire_keys(self, due: Due) -> bool:
        return (
            await self._write(ExpireKeys(self._now_ms(), [ExpiringKey(when_ms, key) for when_ms, key in due]))
            is not None
        )
