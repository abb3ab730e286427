"""What the leader decides before an entry is written: retry times and verdicts. Pure but for the random draw given."""

from collections.abc import Callable
from dataclasses import dataclass

from holdfast.machine.rows import ATTEMPTS_SPENT, CLAIMS_SPENT, NOT_DEAD, WORKER_GAVE_UP, Execution

EXPONENT_MAX = 64  # beyond it every back-off is at its cap


@dataclass(frozen=True, slots=True)
class BackOff:
    """Exponential, capped, with jitter so that tasks that failed together do not come back together."""

    base_ms: int
    factor: float
    cap_ms: int
    jitter: float  # 0.2: up to 20 % less or more

    def delay_ms(self, failures: int, draw: Callable[[], float]) -> int:
        """The pause after the `failures`-th failure; `draw` gives numbers in [0, 1)."""
        exponent = min(max(failures - 1, 0), EXPONENT_MAX)
        plain_ms = min(self.base_ms * self.factor**exponent, self.cap_ms)
        return min(int(plain_ms * (1 + self.jitter * (2 * draw() - 1))), self.cap_ms)


def fail_verdict(task: Execution, *, gave_up: bool) -> int:
    """Why a task that fails now is dead, or NOT_DEAD if it may be tried again."""
    if gave_up:
        return WORKER_GAVE_UP
    if task.failures + 1 >= task.max_attempts:
        return ATTEMPTS_SPENT
    return expire_verdict(task)


def expire_verdict(task: Execution) -> int:
    """Why a task whose claim came to nothing is dead, or NOT_DEAD if it may be claimed again."""
    return CLAIMS_SPENT if task.claims >= task.max_claims else NOT_DEAD
