"""What time alone brings about: expired leases, due tasks, purges. Decided here, written like everything else."""

import asyncio
from collections.abc import Awaitable, Callable

from holdfast.broker.config import BrokerConfig
from holdfast.broker.decisions import expire_verdict
from holdfast.broker.metrics import Metrics
from holdfast.broker.policies import Policies
from holdfast.broker.sweeps import Sweep
from holdfast.broker.views import read_executions
from holdfast.machine import keys
from holdfast.machine.effects import Effects
from holdfast.machine.entries import Entry, Expire, ExpireItem, Forget, ForgetItem, Promote, Purge
from holdfast.machine.handlers.purging import purge_allowed_ms
from holdfast.machine.kv import OrderedKV
from holdfast.machine.machine import Machine
from holdfast.machine.outcomes import Moved, Outcome
from holdfast.machine.rows import CLAIMED, DEAD
from holdfast.serving.refusals import OutcomeUnknownError, RefusedError

Due = list[tuple[int, bytes]]  # when, what


class Housekeeping:
    """The four sweeps of a shard. `submit` writes an entry behind client traffic."""

    def __init__(
        self,
        kv: OrderedKV,
        machine: Machine,
        config: BrokerConfig,
        metrics: Metrics,
        policies: Policies,
        *,
        now_ms: Callable[[], int],
        submit: Callable[[Entry], Awaitable[list[Outcome]]],
    ) -> None:
        self._kv = kv
        self._metrics = metrics
        self._policies = policies
        self._now_ms = now_ms
        self._submit = submit
        self._tasks: list[asyncio.Task[None]] = []

        def sweep(family: int, handle: Callable[[Due], Awaitable[bool]]) -> Sweep:
            purging = family in (keys.RETENTION, keys.FORGET)
            not_before_ms = (lambda: purge_allowed_ms(machine.meta.stepped_ms)) if purging else (lambda: 0)
            rows = config.sweep_batch_tasks
            return Sweep(kv, family, now_ms, handle, batch_rows=rows, not_before_ms=not_before_ms)

        self._expiries = sweep(keys.CLAIM_EXPIRY, self._expire)
        self._dues = sweep(keys.DUE, self._promote)
        self._purges = sweep(keys.RETENTION, self._purge)
        self._forgets = sweep(keys.FORGET, self._forget)

    def start(self) -> None:
        sweeps = (self._expiries, self._dues, self._purges, self._forgets)
        self._tasks = [asyncio.create_task(sweep.run()) for sweep in sweeps]

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def stop(self) -> None:
        self.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def failed(self) -> BaseException | None:
        """The error that ended a sweep, if one did: a bug that must stop the node."""
        for task in self._tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                return error
        return None

    def time_was_moved(self) -> None:
        for sweep in (self._expiries, self._dues, self._purges, self._forgets):
            sweep.look_again()

    def arm(self, effects: Effects) -> None:
        """Wakes the sweeps in time for what was just written."""
        if effects.expiry_ms:
            self._expiries.arm(effects.expiry_ms)
        if effects.due_ms:
            self._dues.arm(effects.due_ms)
        if effects.purge_ms:
            self._purges.arm(effects.purge_ms)
        if effects.forget_ms:
            self._forgets.arm(effects.forget_ms)

    async def _write(self, entry: Entry) -> list[Moved] | None:
        """What was moved, or None if the write was refused and must be tried again."""
        try:
            outcomes = await self._submit(entry)
        except (RefusedError, OutcomeUnknownError):
            return None
        return [outcome for outcome in outcomes if isinstance(outcome, Moved)]

    async def _expire(self, due: Due) -> bool:
        task_ids = [task_id for _, task_id in due]
        found = zip(task_ids, read_executions(self._kv, task_ids), strict=True)
        claimed = [(task_id, task) for task_id, task in found if task is not None and task.state == CLAIMED]
        for finished_ms, dead_ms, places in self._policies.kept([task for _, task in claimed]):
            expired = [claimed[place] for place in places]
            items = [ExpireItem(task_id, task.token, expire_verdict(task)) for task_id, task in expired]
            moved = await self._write(Expire(self._now_ms(), finished_ms, dead_ms, items))
            if moved is None:
                return False
            self._metrics.tasks_expired.inc(len(moved))
            self._metrics.tasks_dead.inc(sum(outcome.state == DEAD for outcome in moved))
        return True

    async def _promote(self, due: Due) -> bool:
        moved = await self._write(Promote(self._now_ms(), [task_id for _, task_id in due]))
        self._metrics.tasks_promoted.inc(len(moved or ()))
        return moved is not None

    async def _purge(self, due: Due) -> bool:
        moved = await self._write(Purge(self._now_ms(), [task_id for _, task_id in due]))
        self._metrics.tasks_purged.inc(len(moved or ()))
        return moved is not None

    async def _forget(self, due: Due) -> bool:
        return await self._write(Forget(self._now_ms(), [ForgetItem(when_ms, key) for when_ms, key in due])) is not None
