"""A shard of the sharing stage that hands out by its real scheduler, with tenants, limit keys and rates."""

from holdfast.broker.scheduler.allocation_use import Outlook
from holdfast.broker.scheduler.scheduler import Scheduler
from tests.unit.machine.machine_shard import QUEUE, new_task
from tests.unit.quota.allocation_stage import Member
from tests.unit.scheduler.scheduling_bench import PLENTY


class ScheduledMember(Member):
    scheduler: Scheduler | None = None
    workers = 1000  # ask for a task each whenever they have none
    handed_out = 0

    def lead(self) -> None:
        self.scheduler = None
        super().lead()
        self.scheduler = Scheduler(
            self.shard.machine, policy_of=self.policies.of, now_ms=self.shard_ms, window_tasks_max=4096,
            allowance=self.manager.allowance,
        )  # fmt: skip

    def limits_changed(self, queue: bytes) -> None:
        super().limits_changed(queue)
        if self.scheduler is not None:
            self.scheduler.limits_changed(queue)

    def outlook(self, queue: bytes) -> Outlook:
        assert self.scheduler is not None
        return self.scheduler.outlook(queue)

    def enqueue(self, count: int, limit_key: bytes = b"", tenant: bytes = b"") -> None:
        accepted = self.shard.enqueue_all(*[new_task(tenant=tenant, limit_key=limit_key)] * count)
        self._follow()
        if self.scheduler is None:
            self.ready += [task.task_id for task in accepted]
        else:
            self.manager.follow([QUEUE])

    def claim(self) -> None:
        assert self.scheduler is not None
        self.scheduler.open_due()
        while self.row.claimed < self.workers:
            picked = self.scheduler.pick(QUEUE, self.workers - self.row.claimed, PLENTY)
            if picked is None:
                if QUEUE not in self.scheduler.unfinished:
                    break
                self.scheduler.unfinished.clear()
                continue
            self.shard.claim_all(*picked.task_ids, marks=tuple(picked.marks), levels=tuple(picked.levels))
            self.scheduler.settle(picked, refused=False)
            self._follow()
            self.held += [(task_id, self.shard.task(task_id).token) for task_id in picked.task_ids]
            self.handed_out += len(picked.task_ids)

    def finish(self, count: int = 1) -> None:
        """Those who wait get what is free now at once."""
        for _ in range(min(count, len(self.held))):
            self.shard.ack(*self.held.pop(0))
            self._follow()
        self.claim()
        self.manager.follow([QUEUE])

    def _follow(self) -> None:
        effects = self.shard.effects
        if self.scheduler is not None:
            self.scheduler.was_withdrawn(effects.withdrawn)
            self.scheduler.became_ready(effects.ready)
            self.scheduler.was_freed(effects.freed)
