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

from holdfast.cron.walls import INSTANT_S_MAX, WallTimes
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
        if after_s >= INSTANT_S_MAX:
            return None
        found_s = self._next_interval_s(after_s) if self.has_every_hour else self._next_time_of_day_s(after_s)
        return None if found_s is None or found_s >= INSTANT_S_MAX else found_s * 1000

    def latest_at_ms(self, at_ms: int) -> int | None:
        at_s = min(at_ms // 1000, INSTANT_S_MAX - 1)
        if at_s < 0:
            return None
        found_s = self._latest_interval_s(at_s) if self.has_every_hour else self._latest_time_of_day_s(at_s)
        return None if found_s is None or found_s < 0 else found_s * 1000

    def _next_time_of_day_s(self, after_s: int) -> int | None:
        # Times that the clock has shown, or jumped over, have had their tick.
        wall_s = self.times.first_from(self.zone.highest_wall_s(after_s) + 1)
        return None if wall_s is None else self.zone.reading(wall_s).reached_s

    def _latest_time_of_day_s(self, at_s: int) -> int | None:
        wall_s = self.times.last_until(self.zone.highest_wall_s(at_s))
        return None if wall_s is None else self.zone.reading(wall_s).reached_s

    def _next_interval_s(self, after_s: int) -> int | None:
        start_s = self.zone.wall_s(after_s) + 1
        change = self.zone.reading(start_s - 1).change
        if change is not None and after_s < change.at_s:
            # The clock is about to be set back: first the rest of what it will repeat, then all of that again.
            wall_s = self.times.first_from(start_s)
            if wall_s is not None and wall_s < change.wall_before_s:
                return after_s + 1 + wall_s - start_s
            after_s, start_s = change.at_s - 1, change.wall_after_s
        while (wall_s := self.times.first_from(start_s)) is not None:
            first_s, change = self.zone.reading(wall_s)
            if change is None:
                return first_s
            if not change.is_ahead:
                return first_s if first_s > after_s else first_s + change.wall_before_s - change.wall_after_s
            start_s = change.wall_after_s
        return None

    def _latest_interval_s(self, at_s: int) -> int | None:
        end_s = self.zone.wall_s(at_s)
        change = self.zone.reading(end_s).change
        if change is not None and at_s >= change.at_s:
            # The clock was set back: first what it has repeated so far, then all of what it had shown before.
            wall_s = self.times.last_until(end_s)
            if wall_s is not None and wall_s >= change.wall_after_s:
                return at_s + wall_s - end_s
            at_s, end_s = change.at_s - 1, change.wall_before_s - 1
        while (wall_s := self.times.last_until(end_s)) is not None:
            first_s, change = self.zone.reading(wall_s)
            if change is None:
                return first_s
            if not change.is_ahead:
                second_s = first_s + change.wall_before_s - change.wall_after_s
                return second_s if second_s <= at_s else first_s
            end_s = change.wall_before_s - 1
        return None
