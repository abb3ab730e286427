"""How long to pause before the next attempt. Pure: who sleeps counts its failures and brings the randomness."""

from collections.abc import Callable
from dataclasses import dataclass

_DOUBLINGS_MAX = 30  # beyond every cap, and small enough for a float


@dataclass(frozen=True, slots=True)
class Backoff:
    """`first_s` after the first failure in a row, then twice as long each time, up to `max_s`.

    >>> [Backoff(0.05, 1.0).longest_s(failures) for failures in range(7)]
    [0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.0]
    """

    first_s: float
    max_s: float

    def longest_s(self, failures: int) -> float:
        """The same for everybody; none before the first failure."""
        if failures < 1:
            return 0.0
        return min(self.max_s, self.first_s * (1 << min(failures - 1, _DOUBLINGS_MAX)))

    def pause_s(self, failures: int, draw: Callable[[], float]) -> float:
        """Between half of that and all of it, so that those who failed together come back one by one. `draw` gives
        numbers in [0, 1)."""
        return self.longest_s(failures) * (0.5 + draw() / 2)
