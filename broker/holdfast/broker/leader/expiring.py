"""What becomes of a task whose claim ran out: its lease ended, or it ran for longer than it may."""

from collections.abc import Callable, Iterable

from holdfast.broker.leader.decisions import expire_verdict, fail_verdict
from holdfast.broker.policy.policies import Policies
from holdfast.broker.policy.retry_rules import rules_of
from holdfast.broker.policy.task_errors import broker_error
from holdfast.machine.entries import ExpireItem
from holdfast.machine.reader import EnvelopeOf, Reader
from holdfast.machine.rows import (
    ATTEMPT_LEASE_EXPIRED,
    ATTEMPT_TIMED_OUT,
    HAS_RETRY,
    NOT_DEAD,
    Execution,
)

TASK_TIMEOUT = "TaskTimeout"
CLAIMS_SPENT = "ClaimsSpent"
TTL_PASSED = "TtlPassed"


class Expiries:
    """Decides for claims of one shard."""

    def __init__(self, reader: Reader, policies: Policies, draw: Callable[[], float]) -> None:
        self._reader = reader
        self._policies = policies
        self._draw = draw

    def items(self, claimed: Iterable[tuple[bytes, Execution]], now_ms: int) -> list[ExpireItem]:
        envelope_of = self._reader.envelope_reader()
        return [self._item(task_id, task, now_ms, envelope_of) for task_id, task in claimed]

    def _item(self, task_id: bytes, task: Execution, now_ms: int, envelope_of: EnvelopeOf) -> ExpireItem:
        if task.timeout_ms and task.timer_ms >= task.changed_ms + task.timeout_ms:  # it was not the lease that ended
            return self._timed_out(task_id, task, now_ms, envelope_of)
        verdict = expire_verdict(task)
        error, brief = broker_error(CLAIMS_SPENT, _claims_spent(task)) if verdict != NOT_DEAD else (b"", b"")
        return ExpireItem(task_id, task.token, verdict, 0, ATTEMPT_LEASE_EXPIRED, error, brief)

    def _timed_out(self, task_id: bytes, task: Execution, now_ms: int, envelope_of: EnvelopeOf) -> ExpireItem:
        """A failure like any other: the task had its time."""
        own = envelope_of(task_id) if task.flags & HAS_RETRY else None
        rules = rules_of(self._policies.of(task.queue), own)
        verdict = fail_verdict(task, gave_up=False, error_type=TASK_TIMEOUT, rules=rules)
        retry_at_ms = 0
        if verdict == NOT_DEAD:
            retry_at_ms = rules.retry_at_ms(now_ms, task.failures + 1, self._draw)
        error, brief = broker_error(TASK_TIMEOUT, _timeout(task))
        return ExpireItem(task_id, task.token, verdict, retry_at_ms, ATTEMPT_TIMED_OUT, error, brief)


def ttl_error() -> bytes:
    error, _ = broker_error(TTL_PASSED, "Nobody started the task within its time to live.")
    return error


def _timeout(task: Execution) -> str:
    return f"The task ran for longer than its timeout of {task.timeout_ms / 1000:g} s at {_worker(task)}."


def _claims_spent(task: Execution) -> str:
    """Failures have spent the other claims: whatever else ends a claim gives it back."""
    deaths = task.claims - task.failures
    times = "once" if deaths == 1 else f"{deaths} times"
    return (
        f"Its worker died or stood still {times} while this task ran alone, the last one being {_worker(task)}: it is "
        f"what ends or stops its workers, and its {task.max_claims} claims are spent."
    )


def _worker(task: Execution) -> str:
    return f"worker {task.worker.decode()}" if task.worker else "a worker without a name"
