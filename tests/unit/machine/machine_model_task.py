"""A task as the model of the machine has it."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from holdfast.machine.new_tasks import NewTask
from holdfast.machine.rows import (
    ATTEMPTS_SPENT,
    CANCELLED,
    CLAIMED,
    CLAIMS_SPENT,
    DELAYED,
    READY,
    RETRY_PENDING,
    SUCCEEDED,
)

ATTEMPTS_KEPT = 16

Subqueue = tuple[bytes, int, bytes, bytes]  # queue, priority, tenant, limit key


@dataclass
class Task:
    id: bytes
    new: NewTask
    place: int
    priority: int
    enqueued_ms: int
    start_by_ms: int
    state: int = 0
    changed_ms: int = 0
    lined_up_ms: int = 0
    timer_ms: int = 0
    token: int = 0
    worker: bytes = b""
    claims: int = 0
    failures: int = 0
    cancel: bool = False
    dead_reason: int = 0
    report: tuple[int, bytes] | None = None
    had_follow_ups: bool = False
    had_result: bool = False
    lost_key: bool = False
    suspect: bool = False
    deaths_alone: int = 0  # of its workers, since its budgets were fresh
    deaths_in_company: int = 0
    cleared: int = 0  # times that it was no suspect any more, or need not become one
    attempts: list[tuple[int, int, int, bytes, bytes]] = field(default_factory=list)

    @property
    def subqueue(self) -> Subqueue:
        return self.new.queue, self.priority, self.new.tenant, self.new.limit_key

    @property
    def is_in_line(self) -> bool:
        return self.state == READY and not self.suspect

    @property
    def is_plain(self) -> bool:
        return (self.new.tenant, self.new.limit_key) == (b"", b"")

    def note_attempt(self, how: int, now_ms: int, brief: bytes) -> None:
        self.attempts = [*self.attempts, (how, self.changed_ms, now_ms, self.worker, brief)][-ATTEMPTS_KEPT:]

    def fields(self) -> dict[str, Any]:
        """Named as in rows.Execution."""
        new = self.new
        flags = {
            8: bool(self.attempts), 16: self.had_follow_ups, 32: self.cancel, 64: self.lost_key, 128: self.had_result,
            256: self.suspect,
        }  # fmt: skip
        return {
            "queue": new.queue, "tenant": new.tenant, "request_id": new.request_id, "worker": self.worker,
            "type": new.type, "limit_key": new.limit_key, "unique_key": new.unique_key,
            "state": self.state, "priority": self.priority,
            "flags": new.flags + sum(flag for flag, is_set in flags.items() if is_set),
            "dead_reason": self.dead_reason, "sequence": self.place, "token": self.token, "timer_ms": self.timer_ms,
            "start_by_ms": self.start_by_ms, "timeout_ms": new.timeout_ms, "enqueued_ms": self.enqueued_ms,
            "changed_ms": self.changed_ms, "ready_since_ms": self.lined_up_ms, "result_ttl_ms": new.result_ttl_ms,
            "claims": self.claims,
            "failures": self.failures, "max_attempts": new.max_attempts, "max_claims": new.max_claims,
            "size_bytes": len(new.envelope),
        }  # fmt: skip


def check_budgets(tasks: Iterable[Task]) -> None:
    """Dead if and only if a budget is spent or the worker gave up: what waits still has a claim and an attempt.

    A claim is spent by a failure, or by the death of its worker while the task was alone, and by nothing else. In
    company the worker of a task dies once, and once more each time that the task was cleared."""
    for task in tasks:
        if task.state not in (SUCCEEDED, CANCELLED):
            assert task.claims == task.failures + task.deaths_alone + (task.state == CLAIMED)
        assert task.deaths_in_company <= 1 + task.cleared
        attempts_left = task.new.max_attempts - task.failures
        claims_left = task.new.max_claims - task.claims
        if task.state in (READY, DELAYED, RETRY_PENDING):
            assert attempts_left > 0
            assert claims_left > 0
        elif task.dead_reason == ATTEMPTS_SPENT:
            assert attempts_left == 0
        elif task.dead_reason == CLAIMS_SPENT:
            assert claims_left == 0
            assert attempts_left > 0
