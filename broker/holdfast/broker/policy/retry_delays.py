"""How long a task that failed waits for its next attempt. Pure but for the random draw given."""

from collections.abc import Callable
from dataclasses import dataclass

EXPONENTIAL = "exponential"  # base, base x factor, base x factor^2, ...
LINEAR = "linear"  # base, 2 x base, 3 x base, ...
FIXED = "fixed"  # base, always
SHAPES = (EXPONENTIAL, LINEAR, FIXED)

EXPONENT_MAX = 64  # beyond it every delay is at its cap


@dataclass(frozen=True, slots=True)
class RetryDelays:
    """Capped, with jitter so that tasks that failed together do not come back together."""

    base_ms: int
    factor: float  # of the exponential shape only
    cap_ms: int
    jitter: float  # 0.2: up to 20 % less or more
    shape: str = EXPONENTIAL

    def delay_ms(self, failures: int, draw: Callable[[], float]) -> int:
        """The pause after the `failures`-th failure, never above the cap; `draw` gives numbers in [0, 1)."""
        plain_ms = min(self._plain_ms(max(failures, 1)), self.cap_ms)
        return max(0, min(int(plain_ms * (1 + self.jitter * (2 * draw() - 1))), self.cap_ms))

    def _plain_ms(self, failures: int) -> float:
        if self.shape == FIXED:
            return self.base_ms
        if self.shape == LINEAR:
            return self.base_ms * failures
        return self.base_ms * self.factor ** min(failures - 1, EXPONENT_MAX)
