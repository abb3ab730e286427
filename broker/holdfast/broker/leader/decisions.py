"""Verdicts of the leader before an entry is written: whether a task is dead, and why. Pure."""

from holdfast.broker.policy.retry_rules import RetryRules
from holdfast.machine.rows import ATTEMPTS_SPENT, CLAIMS_SPENT, NON_RETRYABLE, NOT_DEAD, WORKER_GAVE_UP, Execution


def fail_verdict(task: Execution, *, gave_up: bool, error_type: str = "", rules: RetryRules | None = None) -> int:
    """Why a task that fails now is dead, or NOT_DEAD if it may be tried again."""
    if gave_up:
        return WORKER_GAVE_UP
    if rules is not None and rules.forbids(error_type):
        return NON_RETRYABLE
    if task.failures + 1 >= task.max_attempts:
        return ATTEMPTS_SPENT
    return _claims_verdict(task)


def expire_verdict(task: Execution) -> int:
    """Why a task whose worker fell silent is dead, or NOT_DEAD if it may be claimed again. Only in a claim of its own
    can it be known that it was this task's fault: claims of suspects are."""
    return _claims_verdict(task) if task.is_suspect else NOT_DEAD


def _claims_verdict(task: Execution) -> int:
    return CLAIMS_SPENT if task.claims >= task.max_claims else NOT_DEAD
