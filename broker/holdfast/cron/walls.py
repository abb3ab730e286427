"""The times of a wall clock that an expression allows, found field by field and never minute by minute.

A wall time is a number of seconds: those since 1970 that a clock in UTC would have counted when it shows the same.
"""

from calendar import monthrange
from dataclasses import dataclass
from datetime import date
from typing import Literal

Step = Literal[1, -1]  # towards later times, or towards earlier ones

_DAY_S = 86_400
_HOUR_S = 3600
_MINUTE_S = 60
_EPOCH_ORDINAL = date(1970, 1, 1).toordinal()

_YEAR_MIN = 1969  # where the epoch is in zones west of Greenwich
_YEAR_MAX = 9998  # one less than a date can have: an offset may still be added
INSTANT_S_MAX = (date(_YEAR_MAX, 1, 1).toordinal() - _EPOCH_ORDINAL) * _DAY_S
# The longest wait for a date is that for a 29 February on one weekday: 40 years, where a century has no leap day.
_MONTHS_SEARCHED = 12 * 41
_FIVE_WEEKS = 1 | 1 << 7 | 1 << 14 | 1 << 21 | 1 << 28  # times a mask of seven days: the mask repeated for five weeks


@dataclass(frozen=True, slots=True)
class WallTimes:
    """The values that each field allows, as masks. None is empty but for `days` with `has_last_day`."""

    seconds: int
    minutes: int
    hours: int
    days: int
    months: int
    weekdays: int  # Sunday is 0
    has_last_day: bool
    is_either_day: bool  # a day need be in one of `days` and `weekdays` only

    def nearest(self, wall_s: int, step: Step) -> int | None:
        """The nearest allowed time: this one, else the first by `step`. None if there is none within 41 years."""
        day, time_s = divmod(wall_s, _DAY_S)
        found_day = self._nearest_day(day, step)
        if found_day == day:
            if (found_s := self._nearest_time(time_s, step)) is not None:
                return day * _DAY_S + found_s
            found_day = self._nearest_day(day + step, step)
        found_s = self._nearest_time(0 if step > 0 else _DAY_S - 1, step)
        return None if found_day is None or found_s is None else found_day * _DAY_S + found_s

    def _nearest_time(self, time_s: int, step: Step) -> int | None:
        """The nearest allowed time of the same day."""
        hour, minute, second = time_s // _HOUR_S, time_s // _MINUTE_S % 60, time_s % 60
        if self.hours >> hour & 1:
            if self.minutes >> minute & 1 and (found := _nearest(self.seconds, second, step)) is not None:
                return hour * _HOUR_S + minute * _MINUTE_S + found
            if (found := _nearest(self.minutes, minute + step, step)) is not None:
                return hour * _HOUR_S + found * _MINUTE_S + _first(self.seconds, step)
        if (found := _nearest(self.hours, hour + step, step)) is not None:
            return found * _HOUR_S + _first(self.minutes, step) * _MINUTE_S + _first(self.seconds, step)
        return None

    def _nearest_day(self, day: int, step: Step) -> int | None:
        """The nearest allowed day. Days are counted from 1970."""
        start = date.fromordinal(_EPOCH_ORDINAL + day)
        this_month, day_of_month = start.year * 12 + start.month - 1, start.day
        for month_number in range(this_month, this_month + step * _MONTHS_SEARCHED, step):
            year, month = month_number // 12, month_number % 12 + 1
            if not _YEAR_MIN <= year <= _YEAR_MAX:
                return None
            if (found := _nearest(self._days_of(year, month), day_of_month, step)) is not None:
                return date(year, month, found).toordinal() - _EPOCH_ORDINAL
            day_of_month = 1 if step > 0 else 31
        return None

    def _days_of(self, year: int, month: int) -> int:
        """The allowed days of a month, as a mask."""
        if not self.months >> month & 1:
            return 0
        first_weekday, length = monthrange(year, month)
        from_sunday = (first_weekday + 1) % 7
        days = self.days | self.has_last_day << length
        # Turned so that bit 0 is the weekday of the first day of the month.
        week = (self.weekdays >> from_sunday | self.weekdays << 7 - from_sunday) & 0b111_1111
        by_weekday = week * _FIVE_WEEKS << 1
        allowed = days | by_weekday if self.is_either_day else days & by_weekday
        return allowed & (2 << length) - 2


def _nearest(mask: int, value: int, step: Step) -> int | None:
    """The nearest value in the mask: this one, which may be -1 backwards, else the first by `step`."""
    rest = mask >> value << value if step > 0 else mask & (1 << value + 1) - 1
    return _first(rest, step) if rest else None


def _first(mask: int, step: Step) -> int:
    """The value in the mask that comes first by `step`."""
    return (mask & -mask if step > 0 else mask).bit_length() - 1
