"""A task as the model of the machine has it."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from holdfast.machine import keys
from holdfast.machine.new_runs import NewRun
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

    def timers(self) -> Iterable[tuple[int, int, bytes]]:
        """What is to be done with it, when: by family, as the state has it."""
        families = {CLAIMED: keys.CLAIM_EXPIRY, DELAYED: keys.DUE, RETRY_PENDING: keys.DUE}
        if self.state != READY:
            yield families.get(self.state, keys.RETENTION), self.timer_ms, self.id
        if self.start_by_ms and self.state in (READY, DELAYED, RETRY_PENDING):
            yield keys.START_BY, self.start_by_ms, self.id

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


def ids_from(task_id: bytes, count: int) -> list[bytes]:
    return [(int.from_bytes(task_id, "big") + index).to_bytes(16, "big") for index in range(count)]


def tasks_of(new: NewRun) -> list[NewTask]:
    """A run, told task by task. Payloads are shorter than 128 bytes here."""
    tasks, offset, count = [], 0, len(new.sizes) // 4
    request_ids = new.request_ids.split(b"\0") if new.request_ids else [b""] * count
    for place, request_id in enumerate(request_ids):
        size = int.from_bytes(new.sizes[4 * place : 4 * place + 4], "big")
        payload = new.payloads[offset : (offset := offset + size)]
        envelope = new.header + (bytes((26, len(payload))) + payload if payload else b"")
        envelope += bytes((58, len(request_id))) + request_id if request_id else b""
        tasks.append(
            NewTask(
                new.queue, new.priority, new.tenant, request_id, new.dedup_window_ms, 0, new.max_attempts,
                new.max_claims, new.result_ttl_ms, envelope, new.type, new.limit_key, flags=new.flags,
                timeout_ms=new.timeout_ms, start_by_ms=new.start_by_ms,
                digest=int.from_bytes(new.digests[8 * place : 8 * place + 8], "big"),
            )
        )  # fmt: skip
    return tasks
