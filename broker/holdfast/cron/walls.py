"""The times of a wall clock that an expression allows, found field by field and never minute by minute.

A wall time is a number of seconds: those since 1970 that a clock in UTC would have counted when it shows the same.
"""

from calendar import monthrange
from dataclasses import dataclass
from datetime import date

DAY_S = 86_400
_HOUR_S = 3600
_MINUTE_S = 60
_EPOCH_ORDINAL = date(1970, 1, 1).toordinal()

YEAR_MIN = 1969  # where the epoch is in zones west of Greenwich
YEAR_MAX = 9998  # one less than a date can have: an offset may still be added
INSTANT_S_MAX = (date(YEAR_MAX, 1, 1).toordinal() - _EPOCH_ORDINAL) * DAY_S
# The longest wait for a date is that for a 29 February on one weekday: 40 years, where a century has no leap day.
_YEARS_SEARCHED = 41
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

    def first_from(self, wall_s: int) -> int | None:
        """The first allowed time that is this one or later. None if there is none in the next 41 years."""
        day, time_s = divmod(wall_s, DAY_S)
        today = self._first_day(day, months=1)
        if today == day:
            found_s = self._first_time(time_s)
            if found_s is not None:
                return day * DAY_S + found_s
        later = self._first_day(day + 1, months=12 * _YEARS_SEARCHED)
        found_s = self._first_time(0)
        return None if later is None or found_s is None else later * DAY_S + found_s

    def last_until(self, wall_s: int) -> int | None:
        """The last allowed time that is this one or earlier. None if there is none in the 41 years before."""
        day, time_s = divmod(wall_s, DAY_S)
        today = self._last_day(day, months=1)
        if today == day:
            found_s = self._last_time(time_s)
            if found_s is not None:
                return day * DAY_S + found_s
        earlier = self._last_day(day - 1, months=12 * _YEARS_SEARCHED)
        found_s = self._last_time(DAY_S - 1)
        return None if earlier is None or found_s is None else earlier * DAY_S + found_s

    def is_possible(self) -> bool:
        """Whether any date is allowed. Each date falls on each weekday now and then, so weekdays rule none out."""
        every_weekday = WallTimes(1, 1, 1, self.days, self.months, 0b111_1111, self.has_last_day, False)
        return self.is_either_day or any(every_weekday._days_of(1972, month) for month in range(1, 13))  # a leap year

    def _first_time(self, time_s: int) -> int | None:
        hour, minute, second = time_s // _HOUR_S, time_s // _MINUTE_S % 60, time_s % 60
        if self.hours >> hour & 1:
            if self.minutes >> minute & 1 and (found := _lowest(self.seconds, second)) is not None:
                return hour * _HOUR_S + minute * _MINUTE_S + found
            if (found := _lowest(self.minutes, minute + 1)) is not None:
                return hour * _HOUR_S + found * _MINUTE_S + _first(self.seconds)
        if (found := _lowest(self.hours, hour + 1)) is not None:
            return found * _HOUR_S + _first(self.minutes) * _MINUTE_S + _first(self.seconds)
        return None

    def _last_time(self, time_s: int) -> int | None:
        hour, minute, second = time_s // _HOUR_S, time_s // _MINUTE_S % 60, time_s % 60
        if self.hours >> hour & 1:
            if self.minutes >> minute & 1 and (found := _highest(self.seconds, second)) is not None:
                return hour * _HOUR_S + minute * _MINUTE_S + found
            if (found := _highest(self.minutes, minute - 1)) is not None:
                return hour * _HOUR_S + found * _MINUTE_S + _last(self.seconds)
        if (found := _highest(self.hours, hour - 1)) is not None:
            return found * _HOUR_S + _last(self.minutes) * _MINUTE_S + _last(self.seconds)
        return None

    def _first_day(self, day: int, months: int) -> int | None:
        """The first allowed day from this one on, looking at so many months. Days are counted from 1970."""
        start = date.fromordinal(_EPOCH_ORDINAL + day)
        year, month, lowest = start.year, start.month, start.day
        for _ in range(months):
            if year > YEAR_MAX:
                return None
            found = _lowest(self._days_of(year, month), lowest)
            if found is not None:
                return date(year, month, found).toordinal() - _EPOCH_ORDINAL
            year, month, lowest = (year, month + 1, 1) if month < 12 else (year + 1, 1, 1)
        return None

    def _last_day(self, day: int, months: int) -> int | None:
        start = date.fromordinal(_EPOCH_ORDINAL + day)
        year, month, highest = start.year, start.month, start.day
        for _ in range(months):
            if year < YEAR_MIN:
                return None
            found = _highest(self._days_of(year, month), highest)
            if found is not None:
                return date(year, month, found).toordinal() - _EPOCH_ORDINAL
            year, month, highest = (year, month - 1, 31) if month > 1 else (year - 1, 12, 31)
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


def _lowest(mask: int, low: int) -> int | None:
    """The lowest value in the mask that is not below `low`."""
    rest = mask >> low << low
    return (rest & -rest).bit_length() - 1 if rest else None


def _highest(mask: int, high: int) -> int | None:
    """The highest value in the mask that is not above `high`, which may be -1."""
    rest = mask & (1 << high + 1) - 1
    return rest.bit_length() - 1 if rest else None


def _first(mask: int) -> int:
    return (mask & -mask).bit_length() - 1


def _last(mask: int) -> int:
    return mask.bit_length() - 1
