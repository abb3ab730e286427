"""When a schedule ticks. The ticks are a set of instants that follows from expression and zone alone.

Nothing is remembered from one tick to the next, so that from wherever one looks, the same ticks come, in rising order.

**Daylight saving.** What a change of the clock means depends on the hour field:

- It leaves out some hour (`30 2 * * *`, `0 */2 * * *`): the ticks are **times of day**, and each comes once: at the
  first instant at which the wall clock shows its time or a later one. So a time that is skipped comes at the instant
  the clock jumps over it; several that are skipped by one jump, and one at the time it jumps to, are one tick. A time
  that is shown twice comes when it is shown first, and the repeated hour is silent.
- It allows every hour (`*/15 * * * *`, `* * * * * *`): the ticks are **intervals**, and go on in real time. There is
  one at every instant at which the wall clock shows an allowed time: what is skipped does not come, what is shown
  twice comes twice, and where clocks change by whole hours two ticks of `0 * * * *` are always an hour apart.

Both hold for every change of a zone's clock, also by half an hour or by a whole day. `@every` knows no wall clock.

No cron expression has ticks before 1970 or after the year 9997.
"""

from dataclasses import dataclass
from typing import Protocol

from holdfast.cron.walls import INSTANT_S_MAX, Step, WallTimes
from holdfast.cron.zones import Zone


class Timetable(Protocol):
    """The ticks of a schedule, in milliseconds since 1970."""

    def next_after_ms(self, after_ms: int) -> int | None:
        """The first tick strictly after an instant. None: there is none any more."""

    def latest_at_ms(self, at_ms: int) -> int | None:
        """The last tick at an instant or before it. None: there was none."""


@dataclass(frozen=True, slots=True)
class EveryTimetable:
    """Ticks at the anchor and at whole periods before and after it, to the millisecond."""

    period_ms: int
    anchor_ms: int

    def next_after_ms(self, after_ms: int) -> int | None:
        return after_ms + self.period_ms - (after_ms - self.anchor_ms) % self.period_ms

    def latest_at_ms(self, at_ms: int) -> int | None:
        return at_ms - (at_ms - self.anchor_ms) % self.period_ms


@dataclass(frozen=True, slots=True)
class CronTimetable:
    """Ticks by a wall clock, on whole seconds."""

    times: WallTimes
    zone: Zone
    has_every_hour: bool

    def next_after_ms(self, after_ms: int) -> int | None:
        after_s = max(after_ms // 1000, -1)
        found_s = self._nearest_s(after_s + 1, 1) if after_s < INSTANT_S_MAX else None
        return None if found_s is None or found_s >= INSTANT_S_MAX else found_s * 1000

    def latest_at_ms(self, at_ms: int) -> int | None:
        at_s = min(at_ms // 1000, INSTANT_S_MAX - 1)
        found_s = self._nearest_s(at_s, -1) if at_s >= 0 else None
        return None if found_s is None or found_s < 0 else found_s * 1000

    def _nearest_s(self, at_s: int, step: Step) -> int | None:
        """The nearest tick: at this instant, else the first by `step`."""
        return self._nearest_interval_s(at_s, step) if self.has_every_hour else self._nearest_time_of_day_s(at_s, step)

    def _nearest_time_of_day_s(self, at_s: int, step: Step) -> int | None:
        # Times that the clock has shown, or jumped over, have had their tick.
        start_s = self.zone.highest_wall_s(at_s - 1) + 1 if step > 0 else self.zone.highest_wall_s(at_s)
        wall_s = self.times.nearest(start_s, step)
        return None if wall_s is None else self.zone.reading(wall_s).reached_s

    def _nearest_interval_s(self, at_s: int, step: Step) -> int | None:
        start_s = self.zone.wall_s(at_s)
        change = self.zone.reading(start_s).change
        if change is not None and (at_s < change.at_s) == (step > 0):
            # These times are shown on both sides of the change: first the rest on this side, then all on the other.
            wall_s = self.times.nearest(start_s, step)
            if wall_s is not None and self.zone.reading(wall_s).change == change:
                return at_s + wall_s - start_s
            at_s, start_s = change.far_side(step)
        while (wall_s := self.times.nearest(start_s, step)) is not None:
            first_s, change = self.zone.reading(wall_s)
            if change is None:
                return first_s
            if not change.is_ahead:
                near_s, far_s = (first_s, first_s + change.wall_before_s - change.wall_after_s)[::step]
                return near_s if (near_s - at_s) * step >= 0 else far_s
            _, start_s = change.far_side(step)
        return None
