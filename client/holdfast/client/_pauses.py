"""How long to pause before a call is tried again."""

import random

from holdfast.client.errors import HoldfastError, Rejected

_PAUSE_FIRST_S = 0.05
_PAUSE_MAX_S = 1.0
# Shorter, because the question is cheap: it goes to all servers in turn until one of them leads.
_LOOK_ELSEWHERE_S_MAX = 0.2


def wished_pause_s(attempt: int, error: HoldfastError) -> float:
    """Grows with each attempt, never undercuts what the server asked for, and spreads clients that failed together."""
    pause_s = growing_pause_s(attempt)
    if isinstance(error, Rejected):
        pause_s = max(pause_s, error.retry_after_ms / 1000 * random.uniform(1.0, 1.25))
    return pause_s


def pause_elsewhere_s(attempt: int) -> float:
    """The same before an attempt at another server; what the last one asked for is its own affair."""
    return growing_pause_s(attempt, _LOOK_ELSEWHERE_S_MAX)


def growing_pause_s(attempt: int, longest_s: float = _PAUSE_MAX_S) -> float:
    return min(longest_s, _PAUSE_FIRST_S * (1 << min(attempt, 10))) * random.uniform(0.5, 1.0)
