"""How long this process was kept from running: a busy machine must not count against what a test measures."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

_POLL_EVERY_S = 0.02
_NORMAL_S = 0.1  # late by so much is nobody, unless the machine is busy


@dataclass
class Stalled:
    """When, and for how long."""

    moments: list[tuple[float, float]] = field(default_factory=list)  # by the monotonic clock

    @property
    def seconds(self) -> float:
        return sum(late_s for _, late_s in self.moments)

    def within(self, began_s: float, ended_s: float) -> float:
        """Of that time."""
        return sum(late_s for at_s, late_s in self.moments if began_s <= at_s and at_s - late_s <= ended_s)


@contextmanager
def stalls() -> Iterator[Stalled]:
    """Adds up, while it is open, by how much a thread that only sleeps wakes up too late."""
    found, ends = Stalled(), threading.Event()

    def watch() -> None:
        looked_s = time.monotonic()
        while not ends.wait(_POLL_EVERY_S):
            before_s, looked_s = looked_s, time.monotonic()
            late_s = looked_s - before_s - _POLL_EVERY_S
            if late_s > _NORMAL_S:
                found.moments.append((looked_s, late_s))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        ends.set()
        thread.join()
