"""A task as the model of the machine has it."""

from dataclasses import dataclass, field
from typing import Any

from holdfast.machine.new_tasks import NewTask

ATTEMPTS_KEPT = 16

Lane = tuple[bytes, int, bytes, bytes]  # queue, priority, tenant, limit key


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
    attempts: list[tuple[int, int, int, bytes, bytes]] = field(default_factory=list)

    @property
    def lane(self) -> Lane:
        return self.new.queue, self.priority, self.new.tenant, self.new.limit_key

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
