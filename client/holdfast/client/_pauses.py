"""How long to pause before a call is tried again."""

import random

from holdfast.client.errors import HoldfastError, Rejected
from holdfast.common.backoff import Backoff

_BACKOFF = Backoff(first_s=0.05, max_s=1.0)


def asked_pause_s(attempt: int, error: HoldfastError) -> float:
    """Grows with each attempt, never undercuts what the server asked for, and spreads clients that failed together."""
    pause_s = growing_pause_s(attempt)
    if isinstance(error, Rejected):
        pause_s = max(pause_s, error.retry_after_ms / 1000 * random.uniform(1.0, 1.25))
    return pause_s


def growing_pause_s(attempt: int) -> float:
    return _BACKOFF.pause_s(attempt + 1, random.random)
