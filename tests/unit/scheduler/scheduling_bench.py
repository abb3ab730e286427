"""A shard in memory whose effects reach its scheduler at once, with policies and time that a test sets."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from holdfast.broker.config import BrokerConfig
from holdfast.broker.policy.policies import EffectivePolicy, EffectiveTenantPolicy, Limits, default_policy
from holdfast.broker.scheduler.limiter import OWN_LIMITS, Allowance
from holdfast.broker.scheduler.scheduler import Picked, Scheduler
from holdfast.machine import entries
from holdfast.machine.effects import Effects
from holdfast.machine.entries import Claim, ClaimRef
from holdfast.machine.kv import MemoryKV
from holdfast.machine.machine import Machine
from holdfast.machine.outcomes import Claimed, Outcome
from holdfast.machine.rows import Execution
from tests.unit.machine.machine_shard import KEEP_MS, QUEUE, Shard, new_task

PLENTY = 1 << 40
LEASE_MS = 10**9  # no test waits for its end


def weights(**of: int) -> Mapping[bytes, EffectiveTenantPolicy]:
    return {name.encode(): EffectiveTenantPolicy(weight) for name, weight in of.items()}


class CountingKV(MemoryKV):
    """Counts what is read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0
        self.rows_read = 0

    def get(self, key: bytes) -> bytes | None:
        self.reads += 1
        return super().get(key)

    def scan(self, start: bytes, stop: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        rows = super().scan(start, stop, limit)
        self.reads += 1
        self.rows_read += len(rows)
        return rows


class Bench:
    def __init__(self, *, window_tasks_max: int = 4096, oldest_share_percent: int = 0, **limits: Any) -> None:
        self.shard = Shard()
        self.kv = self.shard.kv = CountingKV()
        self.shard.machine = Machine(self.kv)
        self.window_tasks_max = window_tasks_max
        self.policy: EffectivePolicy = dataclasses.replace(
            default_policy(BrokerConfig()), oldest_share_percent=oldest_share_percent, limits=Limits(**limits)
        )
        self.allowance: Allowance | None = None
        self.wake_ms: list[int] = []  # when something opens, as the scheduler said
        self.enqueued: dict[bytes, bytes] = {}  # task id: tenant and limit key
        self.start()

    def start(self) -> None:
        """A new leader."""
        self.scheduler = Scheduler(
            self.shard.machine, policy_of=lambda _queue: self.policy, now_ms=lambda: self.shard.now_ms,
            window_tasks_max=self.window_tasks_max, allowance=lambda _queue: self.allowance or OWN_LIMITS,
            wake_at=self.wake_ms.append,
        )  # fmt: skip

    def set_limits(self, **limits: Any) -> None:
        self.policy = dataclasses.replace(self.policy, limits=Limits(**limits))
        self.scheduler.limits_changed(QUEUE)

    def set_policy(self, **changes: Any) -> None:
        self.policy = dataclasses.replace(self.policy, **changes)
        self.scheduler.limits_changed(QUEUE)

    def follow(self, effects: Effects | None = None) -> None:
        effects = effects or self.shard.effects
        self.scheduler.was_withdrawn(effects.withdrawn)
        self.scheduler.became_ready(effects.ready)
        self.scheduler.was_freed(effects.freed)

    def enqueue(self, count: int = 1, tenant: bytes = b"", limit_key: bytes = b"", *, priority: int = 4) -> list[bytes]:
        return self.enqueue_all([(tenant, limit_key)] * count, priority=priority)

    def enqueue_all(self, subqueues: list[tuple[bytes, bytes]], *, priority: int = 4) -> list[bytes]:
        tasks = [new_task(priority=priority, tenant=tenant, limit_key=limit_key) for tenant, limit_key in subqueues]
        accepted = [outcome.task_id for outcome in self.shard.enqueue_all(*tasks)]
        self.enqueued.update(
            (task_id, b"/".join(subqueue)) for task_id, subqueue in zip(accepted, subqueues, strict=True)
        )
        self.follow()
        return accepted

    def pick(self, tasks_max: int = 1) -> Picked | None:
        """Looks until all was looked at."""
        while True:
            self.scheduler.unfinished.clear()
            picked = self.scheduler.pick(QUEUE, tasks_max, PLENTY)
            if picked is not None or QUEUE not in self.scheduler.unfinished:
                return picked

    def claim_entry(self, picked: Picked, request_id: bytes = b"") -> Claim:
        now_ms = self.shard.now_ms
        return Claim(
            now_ms, now_ms + LEASE_MS, b"w", request_id, now_ms + KEEP_MS, picked.task_ids, picked.marks, picked.levels
        )  # fmt: skip

    def apply(self, picked: Picked) -> list[Outcome]:
        outcomes = self.shard.apply(self.claim_entry(picked))
        self.scheduler.settle(picked, refused=not all(isinstance(outcome, Claimed) for outcome in outcomes))
        self.follow()
        return outcomes

    def take(self, tasks_max: int = 1) -> list[bytes]:
        """Picks and claims."""
        picked = self.pick(tasks_max)
        if picked is None:
            return []
        assert all(isinstance(outcome, Claimed) for outcome in self.apply(picked))
        return picked.task_ids

    def subqueues(self, tasks_max: int = 1, *, times: int = 1) -> list[str]:
        """Tenant and limit key of what is taken."""
        return [
            self.enqueued[task_id].decode().removesuffix("/") for _ in range(times) for task_id in self.take(tasks_max)
        ]

    def take_all(self, at_once: int = 1) -> list[bytes]:
        taken: list[bytes] = []
        while more := self.take(at_once):
            taken += more
        return taken

    def task(self, task_id: bytes) -> Execution:
        return self.shard.task(task_id)

    def finish(self, *task_ids: bytes) -> None:
        for task_id in task_ids:
            self.shard.ack(task_id, self.task(task_id).token)
            self.follow()

    def release(self, *task_ids: bytes) -> None:
        refs = [ClaimRef(task_id, self.task(task_id).token) for task_id in task_ids]
        self.shard.apply(entries.Release(self.shard.now_ms, KEEP_MS, refs))
        self.follow()

    def cancel(self, task_id: bytes) -> None:
        self.shard.cancel(task_id)
        self.follow()

    def pass_ms(self, time_ms: int) -> None:
        self.shard.now_ms += time_ms
        self.scheduler.open_due()

    @property
    def available(self) -> int:
        return self.scheduler.available(QUEUE)
