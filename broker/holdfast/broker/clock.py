"""Shard time: never goes back, and follows a wall clock only as far as that clock can be believed."""

import time
from typing import Protocol

STEP_MS = 1000  # a wall clock that leaves the monotonic one by more than this has jumped
SLEW_PERCENT = 10  # how much faster or slower than real time shard time may run


class TimeSource(Protocol):
    """Where time comes from; simulated in tests."""

    def wall_ms(self) -> float:
        """Milliseconds since the Unix epoch, as the machine believes; may jump."""
        ...

    def monotonic_ms(self) -> float:
        """Milliseconds since some moment; never jumps."""
        ...


class SystemTime:
    """The clocks of this machine. CLOCK_BOOTTIME counts time spent in suspend, which CLOCK_MONOTONIC leaves out."""

    def wall_ms(self) -> float:
        return time.time_ns() / 1_000_000

    def monotonic_ms(self) -> float:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) / 1_000_000


class ShardClock:
    """Shard time on the leader.

    It starts at the wall clock, or at the last applied time if the wall clock is behind that. From then on it counts
    monotonic time and is drawn towards the believed wall clock by at most SLEW_PERCENT. The wall clock is believed
    while it moves with the monotonic clock; after a jump the clock as it was before is carried on instead, so that a
    jump of a day fires, expires and purges nothing. A jump that turns out to be right is adopted at the next start.
    """

    def __init__(self, source: TimeSource, last_applied_ms: int) -> None:
        self._source = source
        self._monotonic_ms = source.monotonic_ms()
        self._believed_wall_ms = source.wall_ms()
        self._now_ms = max(float(last_applied_ms), self._believed_wall_ms)
        self.started_by_step = 0 < last_applied_ms < self._believed_wall_ms - STEP_MS
        self.wall_offset_ms = 0.0  # the wall clock minus the believed one; large after a jump

    def now_ms(self) -> int:
        """The shard time of this moment."""
        monotonic_ms = self._source.monotonic_ms()
        elapsed_ms = max(0.0, monotonic_ms - self._monotonic_ms)
        self._monotonic_ms = monotonic_ms
        self._follow_wall(elapsed_ms)
        gap_ms = self._believed_wall_ms - (self._now_ms + elapsed_ms)
        slew_ms = elapsed_ms * SLEW_PERCENT / 100
        self._now_ms += elapsed_ms + min(max(gap_ms, -slew_ms), slew_ms)
        return int(self._now_ms)

    def _follow_wall(self, elapsed_ms: float) -> None:
        wall_ms = self._source.wall_ms()
        carried_ms = self._believed_wall_ms + elapsed_ms
        self.wall_offset_ms = wall_ms - carried_ms
        self._believed_wall_ms = wall_ms if abs(self.wall_offset_ms) <= STEP_MS else carried_ms

    @property
    def jumped(self) -> bool:
        """Whether the wall clock disagrees with the time that shard time follows."""
        return abs(self.wall_offset_ms) > STEP_MS
