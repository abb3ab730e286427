"""How long to pause before a call is tried again."""

import random

from holdfast.client.errors import HoldfastError, Rejected
from holdfast.routing import retries

_PAUSE_S_MAX = 1.0


def wished_pause_s(attempt: int, error: HoldfastError) -> float:
    """Grows with each attempt, never undercuts what the server asked for, and spreads clients that failed together."""
    pause_s = growing_pause_s(attempt)
    if isinstance(error, Rejected):
        pause_s = max(pause_s, error.retry_after_ms / 1000 * random.uniform(1.0, 1.25))
    return pause_s


def growing_pause_s(attempt: int) -> float:
    return retries.growing_pause_s(attempt, _PAUSE_S_MAX, random.random)
